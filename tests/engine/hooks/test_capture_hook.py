"""The hook around whole runs: any model, any runner, and nothing left behind."""

import copy
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper as PlainOptimWrapper
from mmengine.optim import OptimWrapperDict
from mmengine.registry import DefaultScope
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.models import resnet18

from lucid.capture import CaptureError, CudaMemory, ModuleRegion, Parts, TapeMemory, training_values
from lucid.capture.compiling import SLOT
from lucid.engine.hooks import CaptureHook
from lucid.engine.hooks.capture import FILE
from lucid.engine.optim_wrappers import OptimWrapper
from lucid.engine.optimizers import SGD
from lucid.engine.windows import window_size

Make = Callable[..., Runner]
NO_VALIDATION = {'val_dataloader': None, 'val_cfg': None, 'val_evaluator': None}
NETWORK = {'type': 'ModuleRegion', 'target': 'network'}


@pytest.fixture(params=['tape', pytest.param('cuda', marks=pytest.mark.cuda)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Puts the stand-in where CUDA graphs are, or the graphs themselves, wherever the model lies."""
    torch.backends.cudnn.deterministic = True
    memory = CudaMemory if request.param == 'cuda' else lambda device: TapeMemory()
    monkeypatch.setattr(CaptureHook, 'parts', Parts(memory=memory))
    yield request.param
    torch.backends.cudnn.deterministic = False


class Images(Dataset):
    """Ten images: with a batch of four, the last batch is partial."""

    metainfo: dict[str, Any] = {}

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {'inputs': torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(index)), 'label': index % 5}


class Classifier(BaseModel):
    """Not lucid's: torchvision's network and a cross entropy."""

    def __init__(self, *, network: nn.Module | None = None, by_forward: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = resnet18(num_classes=5) if network is None else network
        self.by_forward = by_forward
        self.fail_at: int | None = None
        self.calls = 0

    def forward(self, inputs: Tensor, label: Tensor, mode: str = 'tensor') -> Any:
        self.calls += mode == 'loss'
        if self.calls == self.fail_at:
            raise ArithmeticError
        scores = self.network.forward(inputs) if self.by_forward else self.network(inputs)
        if mode == 'loss':
            return {'loss': nn.functional.cross_entropy(scores, label)}
        return [scores]


class SmallNet(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
        )


class Trace(Hook):
    """Keeps the values after each iteration, and the addresses that the target's region replays at."""

    priority = 'VERY_LOW'

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []
        self.micro_batches: list[int] = []
        self.was_routed: list[bool] = []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        values = {name: value.detach().clone() for name, value in (outputs or {}).items()}
        values |= training_values(runner.model, runner.optim_wrapper.optimizer)
        self.values.append({key: value for key, value in values.items() if 'param_groups' not in key})
        for hook in runner.hooks:
            if isinstance(hook, CaptureHook):
                self.micro_batches.append(hook.regions[0].micro_batches)
                self.was_routed.append(hook.regions[0].active)


@pytest.fixture
def make(toy_runner: Make) -> Make:
    """A plain mmengine runner over ten images in batches of four, capturing unless told not to."""

    def build(
        *,
        capture: dict[str, Any] | None = None,
        model: BaseModel | None = None,
        hooks: tuple[Hook, ...] = (),
        validate: bool = False,
        **options: Any,
    ) -> Runner:
        loader = {
            'batch_size': 4,
            'num_workers': 0,
            'dataset': Images(),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'collate_fn': {'type': 'default_collate'},
        }
        captures = [] if capture is None else [{'type': 'CaptureHook', 'regions': [NETWORK], **capture}]
        return toy_runner(
            **{
                'model': Classifier(network=SmallNet()) if model is None else model,
                'train_dataloader': loader,
                **({'val_dataloader': loader} if validate else NO_VALIDATION),
                'train_cfg': {'type': 'EpochBasedTrainLoop', 'max_epochs': 2},
                'custom_hooks': [*captures, *hooks],
                'randomness': {'seed': 0},
                **options,
            }
        )

    return build


def hook_of(runner: Runner) -> CaptureHook:
    return next(hook for hook in runner.hooks if isinstance(hook, CaptureHook))


def equal(a: Trace, b: Trace) -> None:
    assert len(a.values) == len(b.values) > 0
    for step, (reference, candidate) in enumerate(zip(a.values, b.values, strict=True)):
        assert reference.keys() == candidate.keys()
        for key, value in reference.items():
            same = torch.equal(value, candidate[key]) if isinstance(value, Tensor) else value == candidate[key]
            assert same, f'step {step}: {key}'


PLAIN = {'type': 'mmengine.OptimWrapper', 'optimizer': {'type': 'mmengine.SGD', 'lr': 0.05, 'momentum': 0.9}}


@pytest.mark.parametrize('accumulate', [1, 2])
def test_a_foreign_model_under_a_plain_runner_is_captured_by_three_lines_and_equals_eager(
    make: Make, backend: str, accumulate: int, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    traces = []
    for capture in (None, {}):
        trace = Trace()
        runner = make(
            capture=capture,
            model=Classifier(),
            hooks=(trace,),
            optim_wrapper={**PLAIN, 'accumulative_counts': accumulate},
        )
        runner.train()
        traces.append(trace)
    equal(*traces)
    routes = hook_of(runner).report.routes[0]
    assert (routes.replays, routes.captures, routes.calls) == (4, 1, 6)  # two epochs of 4, 4 and 2 images
    assert SLOT not in vars(runner.model.network)
    # Six micro-batches in windows over the epochs' end; all are full.
    assert traces[1].micro_batches == [accumulate] * 6
    written = json.loads((tmp_path / FILE).read_text())
    assert written['regions']['network']['replays'] == 4
    assert written['problems'] == []
    assert [(e['reason'], e['calls'], e['expected']) for e in written['regions']['network']['eager']] == [
        ('new_signature', 2, True)
    ]


def test_the_default_scope_of_mmengine_finds_the_hook_by_its_scope(make: Make, backend: str) -> None:
    runner = make(default_scope='mmengine', custom_hooks=[{'type': 'lucid.CaptureHook', 'regions': [NETWORK]}],
                  optim_wrapper=PLAIN, default_hooks={'checkpoint': None, 'logger': None})  # fmt: skip
    assert DefaultScope.get_current_instance().scope_name == 'mmengine'
    runner.train()
    assert hook_of(runner).report.routes[0].replays == 4


def test_windows_reach_the_region_with_their_real_length(make: Make, backend: str) -> None:
    for loop, wrapper, expected in (
        ('EpochTrainLoop', {'type': 'OptimWrapper', 'optimizer': {'type': 'SGD', 'lr': 0.1}}, [2, 2, 1] * 2),
        ('EpochBasedTrainLoop', PLAIN, [2] * 6),
        ('EpochBasedTrainLoop', PLAIN | {'accumulative_counts': 4}, [4] * 4 + [2] * 2),
    ):
        trace = Trace()
        make(
            capture={},
            hooks=(trace,),
            train_cfg={'type': loop, 'max_epochs': 2},
            optim_wrapper={'accumulative_counts': 2, **wrapper},
        ).train()
        assert trace.micro_batches == expected


def test_the_window_of_any_wrapper_is_known() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    plain = PlainOptimWrapper(torch.optim.SGD(parameters, lr=0.1), accumulative_counts=3)
    assert window_size(plain) == 3  # nobody said how many micro-batches there are
    plain.initialize_count_status(nn.Linear(1, 1), 6, 8)
    assert window_size(plain) == 2
    ours = OptimWrapper(SGD(parameters, lr=0.1), accumulative_counts=4)
    assert window_size(OptimWrapperDict(a=plain, b=ours)) == 4


@pytest.mark.parametrize('table', ['replay', 'eager'])
def test_a_row_that_says_eager_holds_in_windows_of_several_only(make: Make, backend: str, table: str) -> None:
    runner = make(
        capture={'accumulation': {(None, 'network'): table}},
        train_cfg={'type': 'EpochTrainLoop', 'max_epochs': 2},
        optim_wrapper={'type': 'OptimWrapper', 'optimizer': {'type': 'SGD', 'lr': 0.1}, 'accumulative_counts': 2},
        train_dataloader={
            'batch_size': 2,
            'dataset': Images(),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'collate_fn': {'type': 'default_collate'},
        },
    )
    runner.train()
    routes = hook_of(runner).report.routes[0]
    assert sum(count for (reason, _), count in routes.eager.items() if reason.name != 'EVAL') == (
        0 if table == 'replay' else 8
    )
    # Five batches of two: windows of 2, 2 and 1 in each epoch; the window of one replays in any case.
    assert routes.replays == (10 if table == 'replay' else 2)


def test_validation_and_swapped_averages_keep_the_recording(make: Make, backend: str) -> None:
    def run(capture: dict[str, Any] | None) -> tuple[Trace, Runner]:
        trace = Trace()
        runner = make(
            capture=capture,
            hooks=(trace,),
            train_cfg={'type': 'EpochTrainLoop', 'max_epochs': 3},
            validate=True,
            val_cfg={'type': 'ValLoop'},
            default_hooks={
                'runtime_info': None,
                'timer': None,
                'logger': None,
                'checkpoint': None,
                'param_scheduler': None,
                'ema': {'type': 'EMAHook', 'decay': 0.5, 'warmup': 1.0},
            },
        )
        runner.train()
        return trace, runner

    reference, _ = run(None)
    trace, runner = run({})
    equal(reference, trace)
    routes = hook_of(runner).report.routes[0]
    assert not routes.retired
    assert (routes.captures, routes.replays) == (1, 6)
    reasons = {reason.name: count for (reason, _), count in routes.eager.items()}
    assert reasons == {'EVAL': 9, 'NEW_SIGNATURE': 3}
    assert not routes.problems()


def test_a_resumed_run_captures_and_equals_one_that_was_not_interrupted(
    make: Make, backend: str, tmp_path: Path
) -> None:
    def build(**options: Any) -> tuple[Trace, Runner]:
        trace = Trace()
        return trace, make(
            hooks=(trace,),
            default_hooks={
                'runtime_info': None,
                'timer': None,
                'logger': None,
                'param_scheduler': None,
                'checkpoint': {'type': 'lucid.CheckpointHook', 'save_best': None},
            },
            train_cfg={'type': 'EpochTrainLoop', 'max_epochs': options.pop('epochs')},
            **options,
        )

    reference, runner = build(epochs=2, work_dir=str(tmp_path / 'whole'))
    runner.train()
    first, runner = build(epochs=1, capture={}, work_dir=str(tmp_path / 'part'))
    runner.train()
    second, runner = build(
        epochs=2,
        capture={},
        work_dir=str(tmp_path / 'part'),
        load_from=str(tmp_path / 'part' / 'last.pth'),
        resume=True,
    )
    runner.train()
    first.values += second.values
    equal(reference, first)
    assert hook_of(runner).report.routes[0].replays == 2


@pytest.mark.parametrize('loop', ['EpochTrainLoop', 'EpochBasedTrainLoop'])
def test_after_an_exception_a_second_train_captures_anew(make: Make, backend: str, loop: str) -> None:
    model = Classifier(network=SmallNet())
    model.fail_at = 3
    runner = make(capture={}, model=model, train_cfg={'type': loop, 'max_epochs': 2}, optim_wrapper=PLAIN)
    with pytest.raises(ArithmeticError):
        runner.train()
    # lucid's loop closes; under mmengine's the recording lives until the next training, or as long as the runner.
    assert (SLOT in vars(model.network)) is (loop == 'EpochBasedTrainLoop')
    runner.train()
    assert SLOT not in vars(model.network)
    assert hook_of(runner).report.routes[0].replays >= 2


def test_the_end_of_the_runner_releases_what_a_failed_training_left(make: Make, backend: str) -> None:
    model = Classifier(network=SmallNet())
    model.fail_at = 2
    runner = make(capture={}, model=model)
    with pytest.raises(ArithmeticError):
        runner.train()
    pool = weakref.ref(hook_of(runner).regions[0]._pool)
    assert SLOT in vars(model.network)
    assert pool() is not None
    del runner
    gc.collect()
    assert SLOT not in vars(model.network)
    assert pool() is None


def test_control_without_the_finalizer_a_failed_training_leaves_its_recording(
    make: Make, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('lucid.engine.hooks.capture._release', lambda regions, forward: None)
    model = Classifier(network=SmallNet())
    model.fail_at = 2
    runner = make(capture={}, model=model)
    with pytest.raises(ArithmeticError):
        runner.train()
    del runner
    gc.collect()
    assert SLOT in vars(model.network)


def test_copies_and_state_of_a_captured_model_are_plain(make: Make, backend: str) -> None:
    class Copy(Hook):
        def after_train_epoch(self, runner: Runner) -> None:
            copied = copy.deepcopy(runner.model)
            assert SLOT in vars(runner.model.network)
            assert SLOT not in vars(copied.network)
            assert copied.state_dict().keys() == runner.model.state_dict().keys()

    make(capture={}, hooks=(Copy(),)).train()


def test_without_cuda_a_run_trains_eager_and_log_and_report_say_so_once(make: Make, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip('there is a CUDA card')
    reference, trace = Trace(), Trace()
    make(hooks=(reference,)).train()
    runner = make(capture={}, hooks=(trace,), work_dir=str(tmp_path / 'eager'))
    runner.train()
    equal(reference, trace)
    log = next((tmp_path / 'eager').rglob('*.log')).read_text()
    assert log.count('runs eager: there is no CUDA card') == 1
    report = json.loads((tmp_path / 'eager' / FILE).read_text())
    assert report['problems'] == []
    assert report['regions']['network']['eager'][0]['text'] == 'there is no CUDA card'
    with pytest.raises(CaptureError, match=r'strict: network: there is no CUDA card; .*strict=False'):
        make(capture={'strict': True}).train()


def test_the_end_of_training_logs_a_table_and_each_epoch_writes_scalars(
    make: Make, backend: str, tmp_path: Path
) -> None:
    make(capture={}, visualizer={'type': 'Visualizer', 'vis_backends': [{'type': 'LocalVisBackend'}]}).train()
    log = next(tmp_path.rglob('*.log')).read_text()
    assert 'network  replay      4  1 captures' in log
    assert 'network: captured 4x3x32x32 float32' in log
    rows = [json.loads(line) for line in next(tmp_path.rglob('scalars.json')).read_text().splitlines()]
    found = [(r['capture/network/replays'], r['capture/network/eager'], r['step']) for r in rows]
    assert found == [(2, 1, 3), (4, 2, 6)]


class AddHook(Hook):
    """Hooks a submodule before iteration ``at``: from then on its calls must be eager."""

    def __init__(self, at: int) -> None:
        self.at = at

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if runner.iter == self.at:
            runner.model.network[0].register_forward_hook(lambda *_: None)


def test_strict_fails_the_run_in_the_iteration_of_the_first_unexpected_eager_call(make: Make, backend: str) -> None:
    runner = make(capture={'strict': True}, hooks=(AddHook(at=3),))
    with pytest.raises(CaptureError, match=r'strict: network: a hook that a replay would not run .*0'):
        runner.train()
    assert runner.iter == 3
    runner = make(capture={}, hooks=(AddHook(at=3),))
    runner.train()  # without strict it goes on, and says so
    assert 'a hook that a replay would not run' in hook_of(runner).report.problems()[0]


def test_strict_passes_a_run_whose_only_eager_calls_are_expected(make: Make, backend: str) -> None:
    runner = make(capture={'strict': True})
    runner.train()
    assert runner.epoch == 2


def test_strict_fails_when_the_target_was_never_called_or_never_replayed(make: Make, backend: str) -> None:
    model = Classifier(network=SmallNet(), by_forward=True)
    runner = make(capture={'strict': True}, model=model)
    with pytest.raises(CaptureError, match=r'network: never called; .*`\.forward\(\)`'):
        runner.train()
    assert runner.epoch == 0  # after the first epoch, not after the last one
    loose = make(capture={}, model=Classifier(network=SmallNet(), by_forward=True))
    loose.train()
    assert 'never called' in hook_of(loose).report.problems()[0]
    rows = {'accumulation': {(None, 'network'): 'eager'}, 'strict': True}
    with pytest.raises(CaptureError, match='never replayed'):
        make(capture=rows, optim_wrapper={**PLAIN, 'accumulative_counts': 2}).train()


def test_what_cannot_be_captured_is_refused_before_training(make: Make, backend: str) -> None:
    with pytest.raises(ValueError, match=r'compile.*remove `compile`'):
        make(capture={}, cfg={'compile': True}).train()
    with pytest.raises(ValueError, match=r"CaptureHook.regions: the model has no module 'netwrok'; .*'network'"):
        make(capture={'regions': [{'type': 'ModuleRegion', 'target': 'netwrok'}]}).train()
    model = Classifier(network=SmallNet())
    model.network.compile(backend='eager')
    with pytest.raises(ValueError, match=r'network is compiled with module.compile\(\)'):
        make(capture={}, model=model).train()
    with pytest.raises(ValueError, match='captured already'):
        make(capture={'regions': [NETWORK, NETWORK]}).train()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'regions': []}, "regions is empty: name one, such as dict\\(type='ModuleRegion'"),
        ({'on_change': 'ignore'}, "on_change='ignore' is unknown; use one of 'recapture'"),
        ({'max_signatures': 0}, 'use 1 or more'),
        ({'accumulation': {('detekt', 'network'): 'eager'}}, "the nearest is 'detect'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CaptureHook(**{'regions': [NETWORK], **options})


def test_a_region_may_be_given_as_an_object_and_nested_ones_take_turns(make: Make, backend: str) -> None:
    regions = [ModuleRegion('network'), ModuleRegion('network.5')]
    reference, trace = Trace(), Trace()
    make(hooks=(reference,)).train()
    hook = CaptureHook(regions=regions)
    make(hooks=(hook, trace)).train()
    equal(reference, trace)
    assert regions[0].routes.replays == 4
    assert {reason.name for reason, _ in regions[1].routes.eager} == {'NESTED'}


def test_a_model_that_names_its_task_is_looked_up_under_it(make: Make, backend: str) -> None:
    model = Classifier(network=SmallNet())
    model.task = 'segment'
    capture = {'accumulation': {('segment', 'network'): 'eager'}}
    runner = make(capture=capture, model=model, optim_wrapper={**PLAIN, 'accumulative_counts': 2})
    runner.train()
    routes = hook_of(runner).report.routes[0]
    assert (routes.replays, {reason.name for reason, _ in routes.eager}) == (0, {'ACCUMULATION'})
