"""A whole run of lucid with CaptureHook: same checkpoint as without, bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from torch import Tensor

from lucid.apis import ConfigError, build_runner, complete, load_config, train
from lucid.capture import CudaMemory, Parts, TapeMemory
from lucid.engine import checkpoint as files
from lucid.engine.hooks import CaptureHook
from lucid.engine.hooks.capture import FILE

Make = Callable[..., Config]
CAPTURE = {'type': 'CaptureHook', 'regions': [{'type': 'ModuleRegion', 'target': 'network'}]}
CONFIG = Path(__file__).parents[2] / 'configs' / 'yolo_capture.py'


@pytest.fixture(params=['tape', pytest.param('cuda', marks=pytest.mark.cuda)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    memory = CudaMemory if request.param == 'cuda' else lambda device: TapeMemory()
    monkeypatch.setattr(CaptureHook, 'parts', Parts(memory=memory))
    return request.param


def tensors(value: Any, where: str = '') -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {where: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {name: tensor for key, item in items for name, tensor in tensors(item, f'{where}.{key}').items()}


REGIONS = {
    'network': [{'type': 'ModuleRegion', 'target': 'network'}],
    'network and loss': [{'type': 'ModuleRegion', 'target': 'network'}, {'type': 'LossRegion'}],
    'step': [{'type': 'StepRegion'}],
    'compiled step': [{'type': 'StepRegion', 'compile': True}],
}


@pytest.mark.parametrize(('accumulate', 'kind'), [(1, 'network'), (2, 'network and loss'), (1, 'step'), (2, 'step')])
def test_a_captured_run_writes_the_checkpoint_of_an_eager_one(
    tiny: Make, backend: str, accumulate: int, kind: str
) -> None:
    torch.set_num_threads(1)
    states, cfgs = [], []
    for hooks in ([], [{**CAPTURE, 'regions': REGIONS[kind]}]):
        cfg = tiny(optim_wrapper__accumulative_counts=accumulate, randomness__deterministic=backend == 'cuda')
        cfg.custom_hooks = hooks
        cfg.env_cfg.cudnn_benchmark = False
        train(cfg)
        content = files.load(Path(cfg.work_dir, 'last.pth'))
        states.append(tensors({key: content[key] for key in ('state_dict', 'ema', 'optimizer', 'rng')}))
        cfgs.append(cfg)
    torch.use_deterministic_algorithms(False)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    regions = json.loads(Path(cfgs[1].work_dir, FILE).read_text())['regions']
    assert len(regions) == len(REGIONS[kind])
    for region in regions.values():
        assert (region['replays'], region['captures'], region['problems']) == (10, 1, [])
    assert not Path(cfgs[0].work_dir, FILE).exists()


def test_a_target_that_is_not_there_and_compile_are_refused_when_the_runner_is_built(tiny: Make) -> None:
    cfg = tiny()
    cfg.custom_hooks = [{**CAPTURE, 'regions': [{'type': 'ModuleRegion', 'target': 'network.hed'}]}]
    with pytest.raises(ConfigError, match=r"no module 'network\.hed'; the nearest is 'network\.head'"):
        build_runner(complete(cfg), mode='train')
    cfg.custom_hooks, cfg.compile = [CAPTURE], True
    with pytest.raises(ConfigError, match='remove `compile`, or the hook'):
        build_runner(complete(cfg), mode='train')


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'regions': [*REGIONS['network'], *REGIONS['step']]}, 'StepRegion holds the whole step; remove the other'),
        ({'regions': REGIONS['step'] * 2}, 'StepRegion holds the whole step; remove the other'),
        ({'regions': [{'type': 'LossRegion', 'target': 'critrion'}]}, "the nearest is 'criterion'"),
    ],
)
def test_regions_that_do_not_go_together_are_refused_when_the_runner_is_built(
    tiny: Make, change: dict[str, Any], message: str
) -> None:
    cfg = tiny()
    cfg.custom_hooks = [{**CAPTURE, **change}]
    with pytest.raises(ConfigError, match=message):
        build_runner(complete(cfg), mode='train')


def test_a_wrapper_whose_step_reads_the_host_is_refused_by_name_for_the_step_region(tiny: Make) -> None:
    cfg = tiny()
    cfg.optim_wrapper = {'type': 'mmengine.OptimWrapper', 'optimizer': {'type': 'mmengine.SGD', 'lr': 0.1}}
    cfg.default_hooks.ema = None
    cfg.custom_hooks = [{**CAPTURE, 'regions': REGIONS['step']}]
    with pytest.raises(ConfigError, match=r"OptimWrapper has no .*amplify.*use lucid's OptimWrapper"):
        build_runner(complete(cfg), mode='train')


def test_the_detector_names_the_task_of_its_head(tiny: Make) -> None:
    runner = build_runner(complete(tiny()), mode='train')
    assert runner.model.task == 'detect'


@pytest.mark.parametrize(
    ('name', 'kind'),
    [
        ('yolo_capture', 'step'),
        ('yolo_capture_network', 'network'),
        ('yolo_capture_loss', 'network and loss'),
        ('yolo_capture_compiled', 'compiled step'),
    ],
)
def test_the_shipped_capture_configs_capture_what_their_names_say(name: str, kind: str) -> None:
    assert load_config(CONFIG.with_name(f'{name}.py')).custom_hooks == [{**CAPTURE, 'regions': REGIONS[kind]}]
