import json
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.config import Config
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lucid.apis import CheckpointError, ConfigError, Interrupted, train
from lucid.apis.train import check_resumable
from lucid.engine import checkpoint as files

Make = Callable[..., Config]
Read = Callable[[Config], dict[int, dict[str, Any]]]
INTERVAL = {'default_hooks__checkpoint__every_n_steps': 4}


class Classes(Dataset):
    classes = ('a', 'b')

    def __len__(self) -> int:
        return 20


def assert_same_state(one: Config, other: Config) -> None:
    """Weights, average, optimizer, schedule and generators of both ``last.pth``, bit for bit."""
    a, b = (files.load(Path(cfg.work_dir, 'last.pth')) for cfg in (one, other))
    for group in a['optimizer']['param_groups'] + b['optimizer']['param_groups']:
        group.pop('differentiable', None)  # torch adds it when a state is loaded
    for key in ('state_dict', 'ema', 'optimizer', 'param_schedulers', 'rng', 'classes'):
        assert_equal(a[key], b[key], key)
    for key in ('epoch', 'iter', 'best_score', 'best_epoch'):
        assert a['meta'][key] == b['meta'][key], key


def assert_equal(a: Any, b: Any, where: str) -> None:
    if isinstance(a, Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f'{where}.{key}')
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, pair in enumerate(zip(a, b, strict=True)):
            assert_equal(*pair, f'{where}[{i}]')
    else:
        assert a == b, where


def logged(cfg: Config) -> dict[int, float]:
    """The losses of the log lines, by iteration."""
    paths = sorted(Path(cfg.work_dir).glob('*/vis_data/scalars.json'))
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return {row['iter']: row['loss'] for row in rows if 'loss' in row}


def stopped(cfg: Config) -> None:
    with pytest.raises(Interrupted):
        train(cfg)


def test_a_tiny_config_trains_validates_and_leaves_what_the_readme_lists(tiny: Make, losses: Read) -> None:
    cfg = tiny(scale_n=True)
    runner = train(cfg)
    work_dir = Path(cfg.work_dir)
    assert sorted(losses(cfg)) == list(range(10))
    assert (runner.epoch, runner.iter) == (2, 10)
    for name in ('last.pth', 'best.pth', 'previous.pth', 'config.py', 'config.json', 'environment.json'):
        assert (work_dir / name).is_file(), name
    assert list((work_dir / 'pictures').glob('*.jpg'))
    assert list(work_dir.glob('*/vis_data/events.out.tfevents.*'))
    assert json.loads((work_dir / 'environment.json').read_text())['seed'] == 0
    resolved = Config.fromfile(str(work_dir / 'config.py'))
    assert resolved.model.num_classes == 4
    assert resolved.to_dict() == runner.cfg.to_dict()


def test_the_processes_of_validations_end_with_the_training(tiny: Make) -> None:
    runner = train(tiny(train_cfg__max_epochs=1, val_cfg__num_workers=1))
    workers = runner.val_loop.workers
    assert workers.number == 1
    assert workers._pool is None
    assert all(metric.run == workers.map for metric in runner.val_loop.evaluator.metrics)  # control: they were its


def test_the_config_that_was_passed_in_stays_as_it_was(tiny: Make) -> None:
    cfg = tiny(train_cfg__max_epochs=1)
    before = cfg.to_dict()
    train(cfg)
    assert cfg.to_dict() == before


@pytest.fixture(scope='module')
def whole(tiny: Make) -> Config:
    cfg = tiny(train_cfg__max_epochs=4)
    train(cfg)
    return cfg


class TestResumed:
    """A run of four epochs in one go, and the same in two parts."""

    def test_after_two_epochs_a_run_computes_what_the_whole_one_does(
        self, tiny: Make, losses: Read, whole: Config
    ) -> None:
        cfg = tiny(train_cfg__max_epochs=4, stop_at=10)
        stopped(cfg)
        assert files.load(Path(cfg.work_dir, 'last.pth'))['meta']['epoch'] == 2
        cfg.custom_hooks[0].stop_at = None
        train(cfg, resume=True)
        assert losses(cfg) == losses(whole)
        assert_same_state(cfg, whole)

    def test_in_mid_epoch_a_run_computes_what_the_whole_one_does(self, tiny: Make, losses: Read, whole: Config) -> None:
        cfg = tiny(train_cfg__max_epochs=4, stop_at=8, **INTERVAL)
        stopped(cfg)
        meta = files.load(Path(cfg.work_dir, 'last.pth'))['meta']
        assert (meta['epoch'], meta['iter']) == (1, 8)
        cfg.custom_hooks[0].stop_at = None
        train(cfg, resume=True)
        assert losses(cfg) == losses(whole)
        assert_same_state(cfg, whole)
        assert logged(cfg) == logged(whole)

    def test_control_without_the_sampler_start_other_images_come(
        self, tiny: Make, losses: Read, whole: Config, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from lucid.datasets import EpochSampler

        cfg = tiny(train_cfg__max_epochs=4, stop_at=8, **INTERVAL)
        stopped(cfg)
        set_epoch = EpochSampler.set_epoch
        monkeypatch.setattr(EpochSampler, 'set_epoch', lambda self, *args, start=0, **kw: set_epoch(self, *args, **kw))
        cfg.custom_hooks[0].stop_at = None
        with suppress(RuntimeError):  # the epoch has more batches than the wrapper was told
            train(cfg, resume=True)
        assert losses(cfg)[8]['files'] != losses(whole)[8]['files']


def test_a_resumed_run_follows_the_options_of_its_config(tiny: Make, losses: Read) -> None:
    cfg = tiny(train_cfg__max_epochs=4, stop_at=10)
    stopped(cfg)
    before = files.load(Path(cfg.work_dir, 'last.pth'))['optimizer']
    cfg.custom_hooks[0].stop_at = None
    cfg.optim_wrapper.optimizer.update(lr=1e-4, momentum=0.5, weight_decay=0.25)
    cfg.param_scheduler.lrf = 0.5
    runner = train(cfg, resume=True)
    group = runner.optim_wrapper.param_groups[0]
    assert (group['initial_lr'], group['momentum'], group['weight_decay']) == (1e-4, 0.5, 0.25)
    # Of 20 steps the fifth has factor 1 and the last 0.5; step 10, counted from 0, lies 6 of 15 down the line.
    assert losses(cfg)[10]['lr'] == pytest.approx(1e-4 * (1 - 0.5 * 6 / 15))
    assert losses(cfg)[19]['lr'] == pytest.approx(0.5e-4)
    log = next(file for file in Path(cfg.work_dir).glob('*/*.log') if 'those of this config hold' in file.read_text())
    for text in ('optimizer.lr 0.001 -> 0.0001', 'momentum 0.9 -> 0.5', 'weight_decay None -> 0.25', 'lrf 0.01 -> 0.5'):
        assert text in log.read_text()
    assert runner.optim_wrapper.num_steps == 20
    assert before['num_steps'] == 10


def test_an_interrupt_inside_a_window_resumes_at_the_last_window_end(tiny: Make, losses: Read) -> None:
    """cases.md 21: five batches, windows of two: two, two and one."""
    options = {'train_cfg__max_epochs': 2, 'optim_wrapper__accumulative_counts': 2, **INTERVAL}
    whole = tiny(**options)
    whole_run = train(whole)
    assert whole_run.optim_wrapper.num_steps == 6
    cfg = tiny(stop_at=8, **options)  # iterations 5 and 6 are the fourth window, 7 and 8 the fifth
    stopped(cfg)
    assert files.load(Path(cfg.work_dir, 'last.pth'))['meta']['iter'] == 7
    cfg.custom_hooks[0].stop_at = None
    train(cfg, resume=True)
    assert losses(cfg) == losses(whole)
    assert_same_state(cfg, whole)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_window_end_and_writes_a_checkpoint(tiny: Make, losses: Read, number: signal.Signals) -> None:
    cfg = tiny(optim_wrapper__accumulative_counts=2)
    cfg.custom_hooks.append({'type': 'RaiseSignal', 'at': 2, 'number': int(number)})
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r'in epoch 1 of 2, after iteration 4 of 5\. .*--resume .*last\.pth') as stop:
        train(cfg)
    assert stop.value.signum == number
    assert signal.getsignal(number) is before
    assert sorted(losses(cfg)) == [0, 1, 2, 3]
    assert files.load(Path(cfg.work_dir, 'last.pth'))['meta']['iter'] == 4


def test_a_run_killed_in_its_validation_validates_when_it_resumes(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from lucid.evaluation import CocoMetric

    cfg = tiny()
    compute = CocoMetric.compute_metrics

    def killed(self: CocoMetric, results: list) -> dict[str, float]:
        raise KeyboardInterrupt

    monkeypatch.setattr(CocoMetric, 'compute_metrics', killed)
    stopped(cfg)
    assert files.load(Path(cfg.work_dir, 'last.pth'))['meta']['validation_pending']
    monkeypatch.setattr(CocoMetric, 'compute_metrics', compute)
    train(cfg, resume=True)
    meta = files.load(Path(cfg.work_dir, 'last.pth'))['meta']
    assert not meta['validation_pending']
    assert Path(cfg.work_dir, 'best.pth').is_file()


class TestCheckResumable:
    @pytest.fixture
    def runner(self) -> SimpleNamespace:
        cfg = Config(
            {
                'model': {'type': 'YOLODetector', 'scale': 'n', 'num_classes': 2},
                'optim_wrapper': {'type': 'OptimWrapper', 'optimizer': {'type': 'MuSGD', 'lr': 0.01}},
                'train_cfg': {'max_epochs': 4},
            }
        )
        loader = DataLoader(Classes(), batch_size=4)
        return SimpleNamespace(cfg=cfg, seed=0, _train_dataloader=loader, logger=logging.getLogger('test'))

    @pytest.fixture
    def meta(self, runner: SimpleNamespace) -> dict[str, Any]:
        return {
            'cfg': runner.cfg.to_dict(),
            'seed': 0,
            'batches_per_epoch': 5,
            'epoch': 2,
            'max_epochs': 4,
        }

    def test_the_same_run_goes_on(
        self, runner: SimpleNamespace, meta: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        check_resumable({'classes': ['a', 'b'], 'meta': meta}, runner)
        assert not caplog.records

    def test_other_options_go_on_with_one_warning_naming_them(
        self, runner: SimpleNamespace, meta: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        runner.cfg.optim_wrapper.optimizer.lr = 0.02
        runner.cfg.param_scheduler = {'type': 'WarmupLinearLR'}
        check_resumable({'classes': ['a', 'b'], 'meta': meta}, runner)
        (record,) = caplog.records
        assert 'optim_wrapper.optimizer.lr 0.01 -> 0.02, param_scheduler None -> ' in record.getMessage()

    @pytest.mark.parametrize(
        ('change', 'message'),
        [
            ({'seed': 7}, r'randomness\.seed is 7 there and 0 here'),
            ({'batches_per_epoch': 10}, 'batches per epoch is 10 there and 5 here'),
            ({'epoch': 4}, r'finished run of 4 epochs; raise train_cfg\.max_epochs'),
        ],
    )
    def test_another_run_is_refused(
        self, runner: SimpleNamespace, meta: dict[str, Any], change: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(CheckpointError, match=message):
            check_resumable({'classes': ['a', 'b'], 'meta': {**meta, **change}}, runner, path=Path('last.pth'))

    @pytest.mark.parametrize(
        ('place', 'value', 'message'),
        [
            ('model.scale', 's', r"model\.scale is 'n' there and 's' here"),
            ('optim_wrapper.optimizer.type', 'SGD', "type is 'MuSGD' there and 'SGD' here"),
            ('optim_wrapper.accumulative_counts', 2, 'accumulative_counts is None there and 2 here'),
            ('train_dataloader.batch_size', 8, r'train_dataloader\.batch_size is None there and 8 here'),
            ('train_dataloader.sampler', {'type': 'RepeatFactorSampler'}, r'train_dataloader\.sampler is None there'),
        ],
    )
    def test_another_config_is_refused_naming_the_key(
        self, runner: SimpleNamespace, meta: dict[str, Any], place: str, value: Any, message: str
    ) -> None:
        runner.cfg.merge_from_dict({place: value})
        with pytest.raises(CheckpointError, match=message):
            check_resumable({'classes': ['a', 'b'], 'meta': meta}, runner, path=Path('last.pth'))

    def test_other_classes_are_refused(self, runner: SimpleNamespace, meta: dict[str, Any]) -> None:
        with pytest.raises(CheckpointError, match=r"classes is \['a', 'c'\] there and \['a', 'b'\] here"):
            check_resumable({'classes': ['a', 'c'], 'meta': meta}, runner, path=Path('last.pth'))

    def test_a_longer_run_goes_on_with_a_warning(
        self, runner: SimpleNamespace, meta: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        runner.cfg.train_cfg.max_epochs = 8
        check_resumable({'classes': ['a', 'b'], 'meta': {**meta, 'epoch': 4}}, runner)
        assert 'max_epochs was 4 and is 8' in caplog.text


def test_a_truncated_checkpoint_is_refused_naming_the_one_before_it(tiny: Make) -> None:
    cfg = tiny()
    work_dir = Path(cfg.work_dir)
    files.save({'state_dict': {}, 'meta': {}}, work_dir / 'previous.pth')
    files.save({'state_dict': {'a': torch.ones(1000)}, 'meta': {}}, work_dir / 'last.pth')
    (work_dir / 'last.pth').write_bytes((work_dir / 'last.pth').read_bytes()[:-500])
    with pytest.raises(CheckpointError, match=r'last\.pth is truncated.*before it is .*previous\.pth'):
        train(cfg, resume=True)


def test_resuming_without_a_checkpoint_says_where_it_looked(tiny: Make) -> None:
    with pytest.raises(FileNotFoundError, match=r'no checkpoint at .*last\.pth.*correct the path, or train anew'):
        train(tiny(), resume=True)


def test_a_second_run_in_the_folder_of_a_first_is_refused_before_it_writes_unless_told(tiny: Make) -> None:
    cfg = tiny(stop_at=0)
    stopped(cfg)
    stopped(cfg)  # control: where no checkpoint was written, there is nothing to lose
    last = Path(cfg.work_dir, 'last.pth')
    last.write_bytes(b'an earlier run')
    before = {path: path.stat().st_mtime_ns for path in Path(cfg.work_dir).rglob('*')}
    with pytest.raises(ConfigError, match=r'holds a run already.*--resume.*--work-dir.*--overwrite'):
        train(cfg)
    assert {path: path.stat().st_mtime_ns for path in Path(cfg.work_dir).rglob('*')} == before
    with pytest.raises(
        Interrupted, match='in epoch 1 of 2, after iteration 0 of 5, before the first checkpoint was wri'
    ):
        train(cfg, overwrite=True)  # which has not replaced the file yet
