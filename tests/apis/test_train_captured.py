"""A whole run of lucid with CaptureHook: same checkpoint as without, bit for bit."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from torch import Tensor

from lucid.apis import ConfigError, Interrupted, build_runner, complete, load_config, train
from lucid.apis.host_time import host_time
from lucid.capture import CudaMemory, Parts, TapeMemory
from lucid.engine import checkpoint as files
from lucid.engine.hooks import CaptureHook
from lucid.engine.hooks.capture import FILE
from lucid.engine.loops import evaluation
from lucid.registry import HOOKS

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
    'step and evaluation': [{'type': 'StepRegion'}, {'type': 'EvalRegion'}],
}


def checkpoints_equal(cfgs: list[Config]) -> bool:
    """Whether the runs of some configs end in the same weights, averages, optimizer and generators."""
    first, *others = (files.load(Path(cfg.work_dir, 'last.pth')) for cfg in cfgs)
    parts = ('state_dict', 'ema', 'optimizer', 'rng')
    expected = tensors({key: first[key] for key in parts})
    found = [tensors({key: other[key] for key in parts}) for other in others]
    assert all(state.keys() == expected.keys() for state in found)
    return all(torch.equal(value, state[key]) for state in found for key, value in expected.items())


class Trained:
    """Runs of the tiny config on its own images, eager ones made once: a run is the same each time."""

    def __init__(self, make: Make, folder: Path) -> None:
        self.make, self.folder = make, folder
        self.eager_runs: dict[str, Config] = {}

    def eager(self, backend: str, **options: Any) -> Config:
        key = f'{backend} {options}'
        if key not in self.eager_runs:
            self.eager_runs[key] = self._run(backend, [], options)
        return self.eager_runs[key]

    def captured(self, backend: str, kind: str, **options: Any) -> tuple[Config, dict[str, Any]]:
        """The run, and what the report says of the regions."""
        cfg = self._run(backend, [{**CAPTURE, 'regions': REGIONS[kind]}], options)
        return cfg, json.loads(Path(cfg.work_dir, FILE).read_text())['regions']

    def _run(self, backend: str, hooks: list[dict[str, Any]], options: dict[str, Any]) -> Config:
        torch.set_num_threads(1)
        root = self.folder / str(options.get('train_dataloader__dataset__num_images', 'all'))
        options = {'data_root': str(root), 'randomness__deterministic': backend == 'cuda', **options}
        cfg = self.make(**options)
        cfg.env_cfg.cudnn_benchmark = False
        cfg.custom_hooks += hooks
        train(cfg)
        torch.use_deterministic_algorithms(False)
        return cfg


@pytest.fixture(scope='module')
def trained(tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tiny, tmp_path_factory.mktemp('captured'))


@pytest.mark.parametrize(('accumulate', 'kind'), [(1, 'network'), (2, 'network and loss'), (1, 'step'), (2, 'step')])
def test_a_captured_run_writes_the_checkpoint_of_an_eager_one(
    trained: Trained, backend: str, accumulate: int, kind: str
) -> None:
    options = {'optim_wrapper__accumulative_counts': accumulate}
    eager = trained.eager(backend, **options)
    captured, regions = trained.captured(backend, kind, **options)
    assert checkpoints_equal([eager, captured])
    assert len(regions) == len(REGIONS[kind])
    for region in regions.values():
        assert (region['replays'], region['captures'], region['problems']) == (10, 1, [])
    assert not Path(eager.work_dir, FILE).exists()


@pytest.mark.parametrize(('accumulate', 'kind'), [(1, 'step'), (2, 'step'), (2, 'network and loss')])
def test_a_last_batch_of_one_image_and_validation_after_each_epoch_change_nothing(
    trained: Trained, losses: Any, backend: str, accumulate: int, kind: str
) -> None:
    """Nine images: batches of 4, 4 and 1."""
    options = {
        'train_dataloader__dataset__num_images': 9,
        'train_cfg__val_interval': 1,
        'train_cfg__max_epochs': 3,
        'optim_wrapper__accumulative_counts': accumulate,
    }
    eager = trained.eager(backend, **options)
    captured, regions = trained.captured(backend, kind, **options)
    assert losses(eager) == losses(captured)
    assert [len(row['files']) for row in losses(captured).values()] == [4, 4, 1] * 3
    assert checkpoints_equal([eager, captured])
    for name, region in regions.items():
        asked = {eager['reason']: eager['calls'] for eager in region['eager'] if eager['reason'] != 'eval'}
        assert asked == ({} if name == 'loss' else {'new_signature': 3})  # the loss records other batches too
        assert (region['replays'], region['problems'], region['retired']) == (9 - sum(asked.values()), [], {})


@pytest.mark.parametrize('filled', [True, False])
def test_captured_validations_of_a_captured_training_find_what_eager_ones_find(
    trained: Trained, backend: str, tmp_path: Path, filled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine images in batches of 4, 4 and 1, by both paths, with the averages swapped in, after each epoch.

    The last one is filled up, as on a card, or left as it is, as on a CPU.
    """
    monkeypatch.setattr(evaluation, '_on_card', lambda model: filled)
    files = [tmp_path / 'eager.json', tmp_path / 'captured.json']
    options = {
        'data_root': str(tmp_path),
        'train_dataloader__dataset__num_images': 8,
        'val_dataloader__dataset__num_images': 9,
        'train_cfg__val_interval': 1,
    }
    plain = trained.eager(backend, val_evaluator__outfile=str(files[0]), **options)
    cfg, regions = trained.captured(backend, 'step and evaluation', val_evaluator__outfile=str(files[1]), **options)
    assert checkpoints_equal([plain, cfg])
    eager, captured = (json.loads(file.read_text()) for file in files)
    assert eager == captured
    assert len(eager) > 20
    routes = regions['eval']
    assert (routes['captures'], routes['problems'], routes['retired']) == (1, [], {})
    assert routes['replays'] == (6 if filled else 4)
    assert [(e['reason'], e['calls']) for e in routes['eager']] == ([] if filled else [('new_signature', 2)])
    assert regions['step']['replays'] == 4


@pytest.mark.parametrize('kind', ['step', 'network and loss'])
def test_a_mosaic_that_closes_during_captured_training_changes_nothing(
    trained: Trained, losses: Any, backend: str, kind: str
) -> None:
    options = {'train_dataloader__dataset__num_images': 8, 'train_cfg__max_epochs': 3}
    closing = 'train_dataloader__dataset__pipeline__0__close_last'
    eager = trained.eager(backend, **options, **{closing: 1})
    captured, regions = trained.captured(backend, kind, **options, **{closing: 1})
    assert losses(eager) == losses(captured)
    assert checkpoints_equal([eager, captured])
    for region in regions.values():
        assert (region['replays'], region['problems']) == (6, [])
    never = trained.eager(backend, **options, **{closing: 0})  # the control: it really closed
    same = [losses(never)[i]['loss'] == losses(captured)[i]['loss'] for i in range(6)]
    assert same == [True] * 4 + [False] * 2


@pytest.mark.parametrize('name', sorted(path.stem for path in CONFIG.parent.glob('yolo_capture*.py')))
def test_every_shipped_capture_config_replays(
    name: str, tmp_path: Path, backend: str, small_network: Mapping[str, Any]
) -> None:
    """Strict, so that an unexpected eager call fails the run.

    On the stand-in nothing is compiled: there the compiled step of scale n is that of the other config.
    """
    torch.set_num_threads(1)
    small = {
        'data_root': str(tmp_path / 'shapes'),
        'image_size': 64,
        'train_cfg.max_epochs': 1,
        'train_dataloader.batch_size': 4,
        'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False,
        'train_dataloader.dataset.num_images': 12,
        'val_dataloader.num_workers': 0,
        'val_dataloader.persistent_workers': False,
        'val_dataloader.dataset.num_images': 4,
        'custom_hooks.0.strict': True,
    }
    if backend == 'tape':
        small['optim_wrapper.optimizer.ns_steps'] = 1
        small |= small_network if name.endswith('compiled') else {}
    cfg = load_config(CONFIG.with_name(f'{name}.py'), small)
    cfg.work_dir = str(tmp_path)
    train(cfg)
    report = json.loads((tmp_path / FILE).read_text())
    assert report['problems'] == []
    replays = {name: region['replays'] for name, region in report['regions'].items()}
    assert replays.pop('eval') == 1  # a validation of one batch
    assert set(replays.values()) == {3}


@pytest.fixture(scope='module')
def whole(tiny: Make) -> Config:
    torch.set_num_threads(1)
    cfg = tiny(optim_wrapper__accumulative_counts=2)
    train(cfg)
    return cfg


@pytest.mark.parametrize('backend', ['tape'], indirect=True)  # the whole run is the CPU's
@pytest.mark.parametrize(('first', 'second'), [('step', 'step'), ('step', None), (None, 'step')])
def test_a_run_stopped_inside_a_window_resumes_captured_or_eager_as_if_it_had_not_been(
    tiny: Make, losses: Any, whole: Config, backend: str, first: str | None, second: str | None
) -> None:
    """Five batches an epoch: the windows end after the micro-batches 2, 4, 5 and 7, 9, 10."""
    torch.set_num_threads(1)
    options = {'optim_wrapper__accumulative_counts': 2, 'default_hooks__checkpoint__every_n_steps': 4}
    cfg = tiny(stop_at=8, **options)
    record = cfg.custom_hooks[0]
    cfg.custom_hooks = [record, {**CAPTURE, 'regions': REGIONS[first]}] if first else [record]
    with pytest.raises(Interrupted):
        train(cfg)
    assert files.load(Path(cfg.work_dir, 'last.pth'))['meta']['iter'] == 7
    record.stop_at = None
    cfg.custom_hooks = [record, {**CAPTURE, 'regions': REGIONS[second]}] if second else [record]
    train(cfg, resume=True)
    assert losses(cfg) == losses(whole)
    ends = [files.load(Path(each.work_dir, 'last.pth')) for each in (cfg, whole)]
    a, b = (tensors({key: end[key] for key in ('state_dict', 'ema', 'optimizer')}) for end in ends)
    assert a.keys() == b.keys()
    assert all(torch.equal(value, b[key]) for key, value in a.items())


@HOOKS.register_module(force=True)
class BreakWeight(Hook):
    """Makes the loss of one iteration NaN."""

    def __init__(self, *, at: int) -> None:
        self.at = at

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        runner.model.criterion.branch_weight.fill_(float('nan') if runner.iter == self.at else 0.5)


@pytest.mark.parametrize('captured', [False, True])
def test_a_fault_in_a_captured_step_is_undone_and_reported_with_its_images(
    tiny: Make, losses: Any, backend: str, captured: bool
) -> None:
    torch.set_num_threads(1)
    cfg = tiny(optim_wrapper__on_nonfinite='skip')
    cfg.custom_hooks += [{'type': 'BreakWeight', 'at': 3}]
    if captured:
        cfg.custom_hooks += [{**CAPTURE, 'regions': REGIONS['step']}]
    runner = train(cfg)
    bad = losses(cfg)[3]['files']
    (log,) = Path(cfg.work_dir).glob('*/*.log')
    line = next(line for line in log.read_text().splitlines() if 'not finite' in line)
    assert 'iteration 4 of 10' in line
    assert all(name in line for name in bad)
    assert all(parameter.isfinite().all() for parameter in runner.model.parameters())
    content = files.load(Path(cfg.work_dir, 'last.pth'))
    assert all(value.isfinite().all() for value in tensors(content['ema']).values() if value.is_floating_point())


def test_an_error_inside_a_window_of_captured_steps_leaves_a_plain_model_and_a_second_run_trains(
    tiny: Make, backend: str
) -> None:
    torch.set_num_threads(1)
    cfg = tiny(stop_at=3, how='error', optim_wrapper__accumulative_counts=2)
    cfg.custom_hooks += [{**CAPTURE, 'regions': REGIONS['step']}]
    runner = build_runner(complete(cfg), mode='train')
    with pytest.raises(ArithmeticError):
        runner.train()
    assert 'step' not in vars(runner.model)
    cfg.custom_hooks[0].stop_at = None
    train(cfg)
    region = json.loads(Path(cfg.work_dir, FILE).read_text())['regions']['step']
    assert (region['replays'], region['problems']) == (10, [])


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
    regions = [*REGIONS[kind], {'type': 'EvalRegion'}]
    assert load_config(CONFIG.with_name(f'{name}.py')).custom_hooks == [{**CAPTURE, 'regions': regions}]


def test_the_host_time_of_a_replayed_call_is_told_by_part(tiny: Make, backend: str) -> None:
    measured = host_time(tiny(), precision='fp32', calls=3, device='cuda' if backend == 'cuda' else 'cpu')
    names = {'forward': ['guards', 'lookup', 'inputs', 'outputs', 'node'], 'backward': ['inputs', 'gradients']}
    for direction, parts in names.items():
        times = measured[direction]
        assert list(times['parts']) == parts
        assert all(0 < part < times['call'] for part in times['parts'].values())
    assert measured['forward']['eager'] > 0
    assert measured['backward']['accumulate'] > 0
