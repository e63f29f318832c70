"""Parity of the three tasks beside ``detect``: their own configs, in the regions that hold the loss."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lucid.apis import load_config
from lucid.apis.parity import check_parity

CONFIGS = Path(__file__).parents[2] / 'configs' / 'yolo'


@pytest.fixture(params=['cpu', pytest.param('cuda', marks=pytest.mark.cuda)])
def place(request: pytest.FixtureRequest) -> str:
    torch.set_num_threads(1)
    return request.param


@pytest.mark.parametrize('region', ['network+loss', 'step'])
@pytest.mark.parametrize('task', ['segment', 'oriented', 'keypoint'])
def test_the_whole_step_of_each_task_equals_eager(
    tmp_path: Path, place: str, task: str, region: str, small_network: Mapping[str, Any]
) -> None:
    options = {'data_root': str(tmp_path), 'image_size': 64, 'train_dataloader.batch_size': 2}
    options |= {'train_dataloader.num_workers': 0, 'train_dataloader.dataset.num_images': 4}
    if place == 'cpu':  # every operator costs there: the step of one task has the whole body and neck
        options['optim_wrapper.optimizer.ns_steps'] = 1
        options |= {} if (task, region) == ('segment', 'step') else small_network
    cfg = load_config(CONFIGS / f'{task}_n_shapes.py', options)
    parity = check_parity(cfg, region=region, precision=['bf16'], accumulate=[2], steps=2, device=place)
    assert parity.equal, parity.rows
    assert [(row.replays, row.eager_calls) for row in parity.rows] == [(4, 0)]
