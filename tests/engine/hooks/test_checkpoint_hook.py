from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner

from lucid.engine import checkpoint as files
from lucid.engine.checkpoint import CheckpointError
from lucid.engine.hooks import CheckpointHook, DeferredInfoHook, EMAHook
from lucid.engine.loops import Stopped
from lucid.engine.monitored import possible_keys

Toy = Callable[..., Runner]
SCORE = 'toy/score'


class Written(Hook):
    """Where ``last.pth`` was each time it was written: (epoch, iter, pending)."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int, bool]] = []

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        meta = checkpoint['meta']
        self.places.append((meta['epoch'], meta['iter'], meta['validation_pending']))


def trained(make: Toy, hook: CheckpointHook, **options: Any) -> list[tuple[int, int, bool]]:
    written = Written()
    make([hook, written], **options).train()
    return written.places


def test_last_is_written_at_each_epoch_end(line_runner: Toy) -> None:
    assert trained(line_runner, CheckpointHook(save_best=None)) == [(1, 5, False), (2, 10, False)]


def test_an_interval_skips_epochs_but_never_the_last(line_runner: Toy) -> None:
    places = trained(line_runner, CheckpointHook(save_best=None, interval=2), epochs=3)
    assert [epoch for epoch, _, _ in places] == [2, 3]


def test_inside_an_epoch_it_is_written_at_window_ends_only(line_runner: Toy) -> None:
    places = trained(line_runner, CheckpointHook(save_best=None, every_n_steps=1), epochs=1, accumulate=2)
    assert places == [(0, 2, False), (0, 4, False), (1, 5, False)]


def test_before_validation_it_says_so_and_after_it_no_longer(line_runner: Toy) -> None:
    places = trained(line_runner, CheckpointHook(save_best=SCORE), epochs=1, scores=[0.5])
    assert places == [(1, 5, True), (1, 5, False)]


@pytest.mark.parametrize(
    ('scores', 'best', 'epoch'),
    [
        ((0.1, 0.3, 0.2), 0.3, 2),
        ((0.3, 0.3, 0.1), 0.3, 1),
        ((float('nan'), 0.1, 0.2), 0.2, 3),
        ((0.3, float('nan'), 0.2), 0.3, 1),
    ],
)
def test_best_follows_the_greatest_score_and_the_earlier_of_equals(
    line_runner: Toy, tmp_path: Path, scores: tuple[float, ...], best: float, epoch: int
) -> None:
    trained(line_runner, CheckpointHook(save_best=SCORE), epochs=3, scores=scores)
    meta = files.load(tmp_path / 'best.pth')['meta']
    assert (meta['best_score'], meta['best_epoch'], meta['epoch']) == (best, epoch, epoch)
    assert files.load(tmp_path / 'last.pth')['meta']['best_score'] == best


def test_a_metric_that_validation_does_not_give_is_named(line_runner: Toy) -> None:
    with pytest.raises(KeyError, match="save_best names 'coco/mAP', but validation gives toy/score"):
        trained(line_runner, CheckpointHook(save_best='coco/mAP'), scores=[0.5] * 2)


def test_auto_follows_the_chief_figure_of_the_first_metric_that_names_one(
    line_runner: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="save_best is 'auto', and no metric of the validation names its chief figure"):
        trained(line_runner, CheckpointHook(), scores=[0.5] * 2)
    runner = line_runner([hook := CheckpointHook()], epochs=2, scores=[0.5, 0.25])
    monkeypatch.setattr(type(runner.val_loop.evaluator.metrics[0]), 'chief', 'score', raising=False)
    runner.train()
    assert hook.save_best == 'toy/score'
    meta = files.load(tmp_path / 'best.pth')['meta']
    assert (meta['save_best'], meta['best_score'], meta['best_epoch']) == ('toy/score', 0.5, 1)


def test_auto_without_validation_keeps_no_best(line_runner: Toy, tmp_path: Path) -> None:
    trained(line_runner, CheckpointHook())
    assert not (tmp_path / 'best.pth').exists()


def test_previous_is_the_one_before_last(line_runner: Toy, tmp_path: Path) -> None:
    trained(line_runner, CheckpointHook(save_best=None))
    assert files.load(tmp_path / 'previous.pth')['meta']['epoch'] == 1
    assert files.load(tmp_path / 'last.pth')['meta']['epoch'] == 2


@pytest.mark.parametrize(('keep', 'kept'), [(0, []), (2, [3, 4]), (-1, [1, 2, 3, 4])])
def test_the_newest_epoch_files_are_kept(line_runner: Toy, tmp_path: Path, keep: int, kept: list[int]) -> None:
    trained(line_runner, CheckpointHook(save_best=None, max_keep_ckpts=keep), epochs=4)
    names = [f'epoch_{number}.pth' for number in range(1, 5) if (tmp_path / f'epoch_{number}.pth').exists()]
    assert names == [f'epoch_{number}.pth' for number in kept]
    assert all(files.load(tmp_path / f'epoch_{number}.pth')['meta']['epoch'] == number for number in kept)


def test_it_holds_what_a_resumed_run_needs_as_plain_values(line_runner: Toy, tmp_path: Path) -> None:
    trained(line_runner, CheckpointHook(save_best=None))
    content = files.load(tmp_path / 'last.pth')
    names = ('classes', 'keypoint_names')
    assert content.keys() == {'meta', *names, 'state_dict', 'optimizer', 'param_schedulers', 'message_hub', 'rng'}
    assert (content['classes'], content['keypoint_names']) == (['a', 'b'], [])
    assert content['meta']['environment']['torch'].startswith(torch.__version__.split('+')[0])


def test_resuming_restores_weights_optimizer_place_best_score_and_generators(line_runner: Toy, tmp_path: Path) -> None:
    hook = CheckpointHook(save_best=SCORE)
    first = line_runner([hook], scores=[0.5, 0.7], epochs=2)
    first.train()
    expected = torch.rand(3)
    second_hook = CheckpointHook(save_best=SCORE)
    second = line_runner([second_hook], scores=[0.6], epochs=2, load_from=tmp_path / 'last.pth')
    torch.manual_seed(99)
    second.train()
    assert torch.equal(torch.rand(3), expected)
    assert (second.epoch, second.iter) == (2, 10)
    assert (second_hook.best_score, second_hook.best_epoch) == (0.7, 2)
    assert torch.equal(second.model.line.weight, first.model.line.weight)
    assert second.optim_wrapper.num_steps == 10


def resumed(make: Toy, hook: CheckpointHook, source: Path, **options: Any) -> Runner:
    runner = make([hook], epochs=3, load_from=source, **options)
    runner.train()
    return runner


def test_a_best_score_of_another_metric_is_not_taken_over(line_runner: Toy, tmp_path: Path) -> None:
    trained(line_runner, CheckpointHook(save_best=SCORE), scores=[0.5, 0.7])
    content = files.load(tmp_path / 'last.pth')
    content['meta']['save_best'] = 'other/score'
    files.save(content, tmp_path / 'last.pth')
    hook = CheckpointHook(save_best=SCORE)
    resumed(line_runner, hook, tmp_path / 'last.pth', scores=[0.6])
    assert (hook.best_score, hook.best_epoch) == (0.6, 3)


@pytest.mark.parametrize(('there', 'best'), [(True, (0.7, 1)), (False, (0.6, 3))])
def test_the_best_file_comes_along_into_another_folder_or_counts_no_more(
    line_runner: Toy, tmp_path: Path, there: bool, best: tuple[float, int]
) -> None:
    trained(line_runner, CheckpointHook(save_best=SCORE), scores=[0.7, 0.5])
    if not there:
        (tmp_path / 'best.pth').unlink()
    hook = CheckpointHook(save_best=SCORE)
    resumed(line_runner, hook, tmp_path / 'last.pth', scores=[0.6], work_dir=tmp_path / 'other')
    assert (hook.best_score, hook.best_epoch) == best
    assert files.load(tmp_path / 'other' / 'best.pth')['meta']['best_score'] == best[0]


class Telling:
    """Lets ``toy/score`` be known before training."""

    prefix = 'toy'

    def keys(self) -> list[str]:
        return ['score']


def test_a_misspelt_metric_is_refused_before_training(line_runner: Toy) -> None:
    written = Written()
    runner = line_runner([CheckpointHook(save_best='toy/scroe'), written], scores=[0.5])
    runner.val_loop.evaluator.metrics[0].keys = Telling().keys
    with pytest.raises(ValueError, match=r"names 'toy/scroe', which validation lacks; did you mean 'toy/score'\?"):
        runner.train()
    assert written.places == []


def test_keys_are_known_only_if_every_metric_tells() -> None:
    tell, mute = Telling(), SimpleNamespace(prefix='x')
    assert possible_keys(SimpleNamespace(metrics=[tell])) == {'toy/score'}
    assert possible_keys(SimpleNamespace(metrics=[tell, mute])) is None


def test_previous_is_of_the_epoch_before_although_last_is_written_twice(line_runner: Toy, tmp_path: Path) -> None:
    trained(line_runner, CheckpointHook(save_best=SCORE), scores=[0.5, 0.7])
    assert files.load(tmp_path / 'previous.pth')['meta']['epoch'] == 1


def test_a_damaged_last_does_not_replace_previous(line_runner: Toy, tmp_path: Path) -> None:
    trained(line_runner, CheckpointHook(save_best=None))
    (tmp_path / 'last.pth').write_bytes(b'damaged')
    runner = line_runner([CheckpointHook(save_best=None)], epochs=2, load_from=tmp_path / 'previous.pth')
    runner.train()
    assert files.load(tmp_path / 'previous.pth')['meta']['epoch'] == 1
    assert files.load(tmp_path / 'last.pth')['meta']['epoch'] == 2


def test_a_resumed_checkpoint_has_its_validation_pending_or_not(line_runner: Toy, tmp_path: Path) -> None:
    trained(line_runner, CheckpointHook(save_best=SCORE), epochs=1, scores=[0.5])
    content = files.load(tmp_path / 'last.pth')
    for pending, scores in ((False, [0.6]), (True, [0.9, 0.6])):
        content['meta']['validation_pending'] = pending
        files.save(content, tmp_path / 'start.pth')
        hook = CheckpointHook(save_best=SCORE)
        line_runner([hook], epochs=2, scores=scores, load_from=tmp_path / 'start.pth').train()
        assert (hook.best_score, hook.best_epoch) == ((0.9, 1) if pending else (0.6, 2))


def test_a_stop_asked_for_after_the_last_batch_comes_when_the_epoch_is_written(
    line_runner: Toy, tmp_path: Path
) -> None:
    class Ask(Hook):
        priority = 'HIGHEST'

        def after_train_epoch(self, runner: Runner) -> None:
            assert runner.train_loop.training
            runner.train_loop.request_stop()

    runner = line_runner([CheckpointHook(save_best=SCORE, interval=5), Ask()], epochs=3, scores=[0.5] * 3)
    with pytest.raises(Stopped):
        runner.train()
    meta = files.load(tmp_path / 'last.pth')['meta']
    assert (meta['epoch'], meta['iter'], meta['validation_pending']) == (1, 5, True)
    assert not runner.train_loop.training


def test_weights_of_another_shape_are_refused(line_runner: Toy, tmp_path: Path) -> None:
    trained(line_runner, CheckpointHook(save_best=None))
    content = files.load(tmp_path / 'last.pth')
    content['state_dict']['line.weight'] = torch.zeros(1, 3)
    files.save(content, tmp_path / 'last.pth')
    with pytest.raises(CheckpointError, match=r'line\.weight is \(1, 3\) there and \(1, 2\) here'):
        line_runner([CheckpointHook(save_best=None)], load_from=tmp_path / 'last.pth').train()


@pytest.mark.parametrize('options', [{'interval': 0}, {'every_n_steps': 0}, {'max_keep_ckpts': -2}])
def test_numbers_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match='use interval >= 1'):
        CheckpointHook(**options)


class NormedLine(BaseModel):
    """A line behind a normalisation, which takes a NaN in image ``poison`` (counted over the run) into its buffers."""

    def __init__(self, poison: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.line = torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)
        self.poison, self.calls = poison, 0
        self.validated: list[bool] = []

    def forward(self, inputs: torch.Tensor, metas: Any = None, mode: str = 'tensor') -> Any:
        if mode == 'predict':
            self.validated.append(bool(self.line(self.norm(inputs)).isfinite().all()))
            return [{'value': row} for row in inputs]
        inputs = torch.where(torch.tensor(self.calls == self.poison), torch.nan, inputs)
        self.calls += 1
        return {'loss_fit': (self.line(self.norm(inputs)) - 1).square().mean()}


class Contents(Hook):
    """Whether each checkpoint that was written held finite numbers only, by its iteration."""

    def __init__(self) -> None:
        self.finite: dict[int, bool] = {}

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        self.finite[checkpoint['meta']['iter']] = is_finite(checkpoint)


def is_finite(checkpoint: dict[str, Any]) -> bool:
    momenta = [state['momentum_buffer'] for state in checkpoint['optimizer']['state'].values()]
    values = [*checkpoint['state_dict'].values(), *checkpoint['ema']['shadow'].values(), *momenta]
    return all(bool(value.isfinite().all()) for value in values)


def faulty(make: Toy, poison: int, *, every: int | None = None, **options: Any) -> tuple[Runner, Contents]:
    contents = Contents()
    saver = CheckpointHook(save_best=SCORE, every_n_steps=every)
    hooks = [DeferredInfoHook(interval=100), EMAHook(decay=0.9, warmup=2.0), saver, contents]
    return make(hooks, model=NormedLine(poison), scores=iter([0.1, 0.2]), **options), contents


@pytest.mark.parametrize('accumulate', [1, 2])
def test_a_step_left_out_reaches_no_checkpoint_no_average_and_no_validation(
    line_runner: Toy, tmp_path: Path, accumulate: int
) -> None:
    runner, contents = faulty(line_runner, 2, every=1, accumulate=accumulate, on_nonfinite='skip')
    runner.train()
    assert set(contents.finite) == ({*range(1, 11)} if accumulate == 1 else {2, 4, 5, 7, 9, 10})
    assert all(contents.finite.values())
    assert all(runner.model.validated)
    for name in ('last', 'previous', 'best'):
        assert is_finite(files.load(tmp_path / f'{name}.pth'))
    assert files.load(tmp_path / 'best.pth')['meta']['epoch'] == 2
    assert runner.optim_wrapper.faults.count == 1


def test_what_is_ignored_reaches_all_of_them(line_runner: Toy, tmp_path: Path) -> None:
    runner, contents = faulty(line_runner, 2, every=1, on_nonfinite='ignore')
    runner.train()
    assert [contents.finite[i] for i in (1, 2, 3, 4)] == [True, True, False, False]
    assert not any(runner.model.validated)
    assert not is_finite(files.load(tmp_path / 'best.pth'))


def test_after_a_fault_that_raises_no_checkpoint_is_written_though_it_was_not_logged_yet(
    line_runner: Toy, tmp_path: Path
) -> None:
    runner, contents = faulty(line_runner, 7, every=1)  # the third iteration of the second epoch
    with pytest.raises(FloatingPointError, match='not finite in iteration 8 of 10'):
        runner.train()
    assert list(contents.finite) == [1, 2, 3, 4, 5, 6, 7]
    assert all(contents.finite.values())
    last, best = (files.load(tmp_path / f'{name}.pth') for name in ('last', 'best'))
    assert (last['meta']['iter'], best['meta']['iter']) == (7, 5)
    assert is_finite(last)
    assert is_finite(best)


def test_a_fault_that_raises_comes_before_the_checkpoint_and_the_validation_of_its_epoch(
    line_runner: Toy, tmp_path: Path
) -> None:
    runner, _ = faulty(line_runner, 9)  # the last iteration of all
    with pytest.raises(FloatingPointError, match='not finite in iteration 10 of 10'):
        runner.train()
    assert files.load(tmp_path / 'last.pth')['meta']['iter'] == 5
    assert len(runner.model.validated) == 5
    again, _ = faulty(line_runner, -1, load_from=tmp_path / 'last.pth')
    again.train()  # goes on from before the fault
    assert again.iter == 10


def test_even_a_checkpoint_that_nobody_prevents_is_sound(
    line_runner: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(DeferredInfoHook, 'check_faults')
    runner, contents = faulty(line_runner, 7, every=1)
    with pytest.raises(FloatingPointError, match='not finite in iteration 8 of 10'):
        runner.train()
    assert list(contents.finite) == [1, 2, 3, 4, 5, 6, 7, 8, 9]  # control: the check is what prevents it
    assert all(contents.finite.values())
