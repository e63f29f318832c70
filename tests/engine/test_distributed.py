import os
import subprocess
import sys
from pathlib import Path

import torch

from lucid.engine.distributed import DistributedModel, synchronise

TINY = Path(__file__).parents[1] / 'configs' / 'tiny.py'
SCRIPT = """
import sys
from pathlib import Path
import torch
from mmengine.hooks import Hook
from lucid.apis import load_config, override, train
from lucid.engine.distributed import unwrapped
from lucid.registry import HOOKS

seen = {}

@HOOKS.register_module()
class Before(Hook):
    priority = 'HIGHEST'

    def after_train_epoch(self, runner):
        seen['before'] = {name: value.clone() for name, value in unwrapped(runner.model).state_dict().items()}

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        seen['detached'] = not any(value.requires_grad for value in outputs.values())

tiny, root, out = sys.argv[1:]
cfg = load_config(tiny, {'data_root': root, 'train_cfg.max_epochs': 1, 'optim_wrapper.accumulative_counts': 2})
cfg.custom_hooks = [{'type': 'Before'}]
runner = train(override(cfg, work_dir=out, launcher='pytorch'))
ema = next(hook.ema for hook in runner.hooks if hasattr(hook, 'ema'))
state = unwrapped(runner.model).state_dict()
content = {**seen, 'state': state, 'shadow': ema.shadow, 'wrapper': type(runner.model).__name__}
torch.save(content, Path(out, f'rank{runner.rank}.pt'))
"""


def test_after_training_all_processes_have_equal_weights_buffers_and_averages(tmp_path: Path) -> None:
    """On CPUs, over gloo: each sees its half of the epoch, the gradients are averaged, the first one writes.

    Gradients need not be those of one process with the joined batch: BatchNorm normalises by each one's own.
    """
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT)
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''}
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2', str(script)]
    done = subprocess.run(
        [*command, str(TINY), str(tmp_path / 'data'), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'FutureWarning' not in done.stderr
    assert 'coco/mAP' in done.stdout
    one, other = (torch.load(tmp_path / f'rank{rank}.pt') for rank in range(2))
    assert one['wrapper'] == DistributedModel.__name__
    assert one['detached']
    for key in ('state', 'shadow'):
        assert one[key].keys() == other[key].keys()
        assert [name for name in one[key] if not torch.equal(one[key][name], other[key][name])] == [], key
    # The control: before the average, BatchNorm's statistics differ and nothing else does.
    differing = [name for name, value in one['before'].items() if not torch.equal(value, other['before'][name])]
    assert differing
    assert all('running_' in name for name in differing)
    written = torch.load(tmp_path / 'last.pth')
    assert written['meta']['batches_per_epoch'] == 3  # 20 images over 2 processes in batches of 4
    name = differing[0]
    mean = (one['before'][name] + other['before'][name]) / 2
    assert torch.allclose(written['state_dict'][name], mean)


def test_a_single_process_does_nothing() -> None:
    class Alone:
        world_size = 1

    synchronise(Alone())  # it has no model to touch
