"""Joining the processes that torchrun started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.config import Config
from mmengine.dist import init_dist, is_distributed
from mmengine.utils.dl_utils import set_multi_processing
from torch import distributed

from lucid.apis.validate import ConfigError


@contextmanager
def joined(cfg: Config) -> Iterator[None]:
    """Be part of the process group inside, where ``launcher`` asks for one and there is none yet.

    Samplers ask for their share when they are built, so this comes before any data set. With CUDA it is mmengine's
    start, over ``env_cfg.dist_cfg``; without, gloo, because mmengine picks a CUDA device unasked. ``ConfigError`` says
    that nobody launched the processes.
    """
    if cfg.get('launcher', 'none') == 'none' or is_distributed():
        yield
        return
    if 'RANK' not in os.environ:
        raise ConfigError(
            "launcher is 'pytorch', but nothing launched this process; use "
            'torchrun --nproc-per-node NUMBER tools/train.py ..., or --launcher none'
        )
    env_cfg = cfg.get('env_cfg', {})
    if torch.cuda.is_available():
        set_multi_processing(
            **env_cfg.get('mp_cfg', {}), distributed=True
        )  # before init_dist, which would take 'spawn'
        init_dist('pytorch', **env_cfg.get('dist_cfg', {}))
    else:
        distributed.init_process_group('gloo')
    try:
        yield
    finally:
        distributed.destroy_process_group()
