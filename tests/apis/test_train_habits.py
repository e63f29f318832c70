"""Runs from a config: fine-tuning, frozen parts, effective batch size, rare classes and early stopping together."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook

from lucid.apis import ConfigError, Interrupted, build_runner, complete, train
from lucid.apis import test as evaluate
from lucid.capture import CudaMemory, Parts, TapeMemory
from lucid.engine import checkpoint as files
from lucid.engine.hooks import CaptureHook
from lucid.engine.hooks.capture import FILE
from lucid.registry import HOOKS

Make = Callable[..., Config]
Read = Callable[[Config], dict[int, dict[str, Any]]]
CAPTURE = {'type': 'CaptureHook', 'regions': [{'type': 'ModuleRegion', 'target': 'network'}]}
ROW = 'network.head.one_to_one.classes.0.4.bias'


@HOOKS.register_module(force=True)
class KeepStart(Hook):
    """Writes the state that the first iteration starts from, and nothing after it."""

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        path = Path(runner.work_dir, 'start.pth')
        if not path.exists():
            torch.save(runner.model.state_dict(), path)


def start_of(cfg: Config) -> dict[str, torch.Tensor]:
    return torch.load(Path(cfg.work_dir, 'start.pth'), map_location='cpu')


def log_of(cfg: Config) -> str:
    return '\n'.join(file.read_text() for file in Path(cfg.work_dir).glob('*/*.log'))


@pytest.fixture(scope='module')
def source(tiny: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of five classes, of which three are those of the data, in another order."""
    runner = build_runner(complete(tiny()), mode='train')
    classes = list(runner.train_dataloader.dataset.classes)
    model = runner.model
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name in model.class_rows:
        state[name] = torch.rand(5, *state[name].shape[1:]) - 3
    content = {'state_dict': state, 'classes': ['car', classes[2], classes[0], 'bus', classes[1]], 'meta': {'cfg': {}}}
    shadow = {name: value * 1.25 for name, value in state.items() if value.is_floating_point()}
    path = tmp_path_factory.mktemp('source') / 'best.pth'
    files.save({**content, 'ema': {'shadow': shadow, 'num_updates': 3}}, path)
    return path


class TestFineTuning:
    def test_shared_classes_keep_their_averaged_rows_and_the_log_says_what_did_not_fit(
        self, tiny: Make, source: Path
    ) -> None:
        cfg = tiny(stop_at=1, load_from=str(source))
        cfg.custom_hooks.append({'type': 'KeepStart'})
        with pytest.raises(Interrupted):
            train(cfg)
        shadow, start = files.load(source)['ema']['shadow'], start_of(cfg)
        name = 'network.backbone.to_p3.0.conv.weight'
        assert torch.equal(start[name], shadow[name])
        # The data's classes 0, 1 and 2 are the checkpoint's 2, 4 and 1; class 3 is new, so it has its prior.
        assert torch.equal(start[ROW][:3], shadow[ROW][[2, 4, 1]])
        assert start[ROW][3].item() == pytest.approx(-4.59512, abs=1e-4)  # log(0.01 / 0.99)
        report = json.loads(Path(cfg.work_dir, 'loaded_weights.json').read_text())
        assert ROW in report['loaded_rows']
        assert report['classes']['dropped'] == ['car', 'bus']
        assert len(report['classes']['shared']) == 3
        assert not report['fresh']
        log = log_of(cfg)
        assert f'averaged weights of {source}' in log
        assert 'loaded for shared classes' in log
        assert f'classes that start fresh: {report["classes"]["new"][0]}' in log

    def test_the_weights_that_training_started_from_are_not_tested(
        self, tiny: Make, source: Path, tmp_path: Path
    ) -> None:
        runner = build_runner(complete(tiny()), mode='train')
        state = runner.model.state_dict()
        files.save(
            {'state_dict': state, 'classes': list(runner.train_dataloader.dataset.classes), 'meta': {}},
            tmp_path / 'last.pth',
        )
        seen = {}

        @HOOKS.register_module(force=True)
        class Look(Hook):
            def before_test_epoch(self, runner: Any) -> None:
                seen.update({name: value.clone() for name, value in runner.model.state_dict().items()})

        cfg = tiny(load_from=str(source))
        cfg.custom_hooks = [{'type': 'Look'}]
        evaluate(cfg, tmp_path / 'last.pth')
        assert all(torch.equal(seen[name], value) for name, value in state.items())

    def test_a_missing_or_unfit_file_is_refused_when_the_runner_is_built(
        self, tiny: Make, source: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match=r'no checkpoint at .*nowhere\.pth'):
            build_runner(complete(tiny(load_from=str(tmp_path / 'nowhere.pth'))), mode='train')
        with pytest.raises(ConfigError, match=r'best\.pth: no weight of the checkpoint fits.*model\.scale'):
            build_runner(complete(tiny(load_from=str(source), scale_n=True, model__scale='s')), mode='train')


class TestFrozen:
    PARTS = ('backbone', 'neck.top_t4')

    @pytest.mark.parametrize('backend', ['tape', pytest.param('cuda', marks=pytest.mark.cuda)])
    def test_captured_validated_and_averaged_the_parts_stay_bit_for_bit(
        self, tiny: Make, source: Path, monkeypatch: pytest.MonkeyPatch, backend: str
    ) -> None:
        torch.set_num_threads(1)
        memory = CudaMemory if backend == 'cuda' else lambda device: TapeMemory()
        monkeypatch.setattr(CaptureHook, 'parts', Parts(memory=memory))
        runs = []
        for hooks in ([], [CAPTURE]):
            cfg = tiny(load_from=str(source), model__frozen=self.PARTS, train_cfg__val_interval=1)
            cfg.custom_hooks += [{'type': 'KeepStart'}, *hooks]
            cfg.optim_wrapper.optimizer.weight_decay = 0.1
            cfg.randomness.deterministic = backend == 'cuda'
            cfg.env_cfg.cudnn_benchmark = False
            train(cfg)
            runs.append((cfg, files.load(Path(cfg.work_dir, 'last.pth'))))
        torch.use_deterministic_algorithms(False)
        (eager, plain), (captured, taped) = runs
        start, state, shadow = start_of(eager), plain['state_dict'], plain['ema']['shadow']
        held = {name for name in state if name.startswith(('network.backbone.', 'network.neck.top_t4.'))}
        assert all(torch.equal(state[name], start[name]) for name in held)
        assert all(torch.equal(shadow[name], start[name]) for name in held & shadow.keys())
        moved = {name for name in state if name not in held and not torch.equal(state[name], start[name])}
        assert ROW in moved
        assert len(moved) > 0.9 * (len(state) - len(held))
        assert all(torch.equal(value, taped['state_dict'][name]) for name, value in state.items())
        region = json.loads(Path(captured.work_dir, FILE).read_text())['regions']['network']
        assert (region['replays'], region['captures'], region['problems']) == (10, 1, [])
        assert 'frozen: backbone, neck.top_t4: ' in log_of(eager)

    def test_a_resumed_run_with_other_parts_is_another_run(self, tiny: Make) -> None:
        cfg = tiny(stop_at=5, model__frozen=('backbone',))
        with pytest.raises(Interrupted):
            train(cfg)
        assert 'frozen parts stay random: there are no weights; set load_from' in log_of(cfg)
        cfg.model.frozen = ()
        with pytest.raises(ValueError, match=r'model\.frozen'):
            train(cfg, resume=True)

    def test_a_part_that_is_not_there_is_an_error_of_the_config(self, tiny: Make) -> None:
        with pytest.raises(ConfigError, match="the nearest is 'backbone'"):
            build_runner(complete(tiny(model__frozen=('backbon',))), mode='train')


def test_in_two_parts_a_run_with_all_habits_computes_what_the_whole_one_does(tiny: Make, losses: Read) -> None:
    """Windows of two of four batches: the sixth iteration ends the third; lr is scaled once."""
    torch.set_num_threads(1)
    options: dict[str, Any] = {
        'effective_batch_size': 8,
        'auto_scale_lr': {'enable': True, 'base_batch_size': 16},
        'model__frozen': ('backbone.to_p3',),
        'train_dataloader__sampler': {'type': 'RepeatFactorSampler', 'threshold': 1.0, 'num_samples': 16},
        'default_hooks__checkpoint__every_n_steps': 1,
        'default_hooks__pictures': None,
        'default_hooks__early_stopping__patience': 2,
    }
    whole = tiny(scale_n=True, **options)
    runner = train(whole)
    assert runner.cfg.optim_wrapper.accumulative_counts == 2
    assert runner.optim_wrapper.num_steps == 4
    assert losses(whole)[2]['lr'] == pytest.approx(1e-3 * 8 / 16)  # the second of two steps of warm-up
    assert 'RepeatFactorSampler: 16 samples per epoch of 20 images' in log_of(whole)
    cfg = tiny(stop_at=7, scale_n=True, **options)
    with pytest.raises(Interrupted):
        train(cfg)
    assert files.load(Path(cfg.work_dir, 'last.pth'))['meta']['iter'] == 6
    cfg.custom_hooks[0].stop_at = None
    train(cfg, resume=True)
    assert losses(cfg) == losses(whole)
    one, other = (files.load(Path(each.work_dir, 'last.pth'))['state_dict'] for each in (cfg, whole))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
