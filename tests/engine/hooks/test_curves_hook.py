import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mmcv
import numpy as np
import pytest
from mmengine.runner import Runner

from lucid.engine import drawing
from lucid.engine.hooks import CheckpointHook, CurvesHook, DeferredInfoHook, ProgressHook
from lucid.registry import HOOKS

Build = Callable[..., Runner]


class Spy:
    """A painter that remembers what it was asked to draw."""

    def __init__(self) -> None:
        self.drawn: list[tuple[list[dict], list[dict]]] = []

    def draw_curves(self, training: Sequence[dict], validations: Sequence[dict]) -> np.ndarray:
        self.drawn.append((list(training), list(validations)))
        return np.zeros((4, 4, 3), np.uint8)


class Logged(DeferredInfoHook):
    """Notes what a logging iteration puts into the hub."""

    def __init__(self) -> None:
        super().__init__(interval=2)
        self.seen: list[tuple[int, float, float]] = []

    def flush(self, runner: Runner) -> None:
        super().flush(runner)
        hub = runner.message_hub.log_scalars
        row = (runner.iter + 1, hub['train/loss'].current(), hub['train/lr'].current())
        if len(self.seen) < len(hub['train/loss'].data[0]):
            self.seen.append(row)


def spied(**options: Any) -> tuple[CurvesHook, Spy]:
    hook = CurvesHook(metrics=('score',), **options)
    hook.painter = Spy()
    return hook, hook.painter


def test_the_hook_is_found_by_its_bare_name_and_refuses_an_interval_of_zero() -> None:
    assert isinstance(HOOKS.build({'type': 'CurvesHook'}), CurvesHook)
    with pytest.raises(ValueError, match='interval is 0; use 1 or more'):
        CurvesHook(interval=0)


@pytest.mark.usefixtures('drawn_here')
def test_what_is_drawn_is_what_was_logged_with_its_place(line_runner: Build) -> None:
    logged, (hook, painter) = Logged(), spied()
    line_runner([logged, hook], scores=[0.25, 0.5]).train()  # two epochs of five iterations, logged at 2, 4, 5
    training, validations = painter.drawn[-1]
    assert (
        [round(row['epoch'] * 5) for row in training] == [place for place, _, _ in logged.seen] == [2, 4, 5, 7, 9, 10]
    )
    assert [row['loss'] for row in training] == [loss for _, loss, _ in logged.seen]
    assert [row['lr'] for row in training] == [lr for _, _, lr in logged.seen]
    assert training[0].keys() == {'epoch', 'loss', 'loss_fit', 'lr'}  # no times, no rows
    assert validations == [{'epoch': 1.0, 'toy/score': 0.25}, {'epoch': 2.0, 'toy/score': 0.5}]
    # Control: between logging iterations nothing is taken.
    assert len(training) < 10


@pytest.mark.usefixtures('drawn_here')
def test_a_picture_follows_each_validation_and_the_end_draws_only_what_is_new(line_runner: Build) -> None:
    hook, painter = spied()
    line_runner([Logged(), hook], scores=[0.25, 0.5]).train()
    assert [len(validations) for _, validations in painter.drawn] == [1, 2]
    hook, painter = spied(interval=2)
    line_runner([Logged(), hook], scores=[0.25, 0.5, 0.5], epochs=3).train()
    assert [len(validations) for _, validations in painter.drawn] == [2, 3]


@pytest.mark.usefixtures('drawn_here')
def test_drawing_keeps_to_its_share_of_the_time_and_the_end_draws_what_is_left_out(
    line_runner: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds from one look at the clock to the next: each picture takes ten."""
    clock = itertools.count(step=10.0)
    monkeypatch.setattr(drawing, 'time', SimpleNamespace(monotonic=lambda: next(clock)))
    for share, expected in ((None, [1, 2, 3, 4]), (0.5, [1, 3, 4]), (0.01, [1, 4])):
        hook, painter = spied(time_share=share)
        line_runner([Logged(), hook], scores=[0.1, 0.2, 0.3, 0.4], epochs=4).train()
        assert [len(validations) for _, validations in painter.drawn] == expected


def test_the_file_is_that_which_drawing_here_gives(
    line_runner: Build, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path, saved = tmp_path / 'pictures' / 'curves.png', []
    for _ in range(2):
        line_runner([Logged(), CurvesHook(metrics=('score',))], scores=[0.25, 0.5]).train()
        saved.append(path.read_bytes())
        path.unlink()
        request.getfixturevalue('drawn_here')
    assert saved[0] == saved[1]


def test_the_last_picture_is_there_when_the_run_says_where_it_is(line_runner: Build, tmp_path: Path) -> None:
    found = []

    class Told(ProgressHook):
        def after_train(self, runner: Runner) -> None:
            found.extend(path.name for path in (tmp_path / 'pictures').iterdir())

    line_runner([Told(), Logged(), CurvesHook(interval=5)], scores=[0.25], epochs=1).train()
    assert found == ['curves.png']


def test_a_share_of_the_time_that_cannot_be_meant_is_refused() -> None:
    for share in (0.0, 1.5, -0.1):
        with pytest.raises(ValueError, match=r'time_share=.* must be above 0 and at most 1'):
            CurvesHook(time_share=share)


def test_the_picture_lies_in_the_work_directory(line_runner: Build, tmp_path: Path) -> None:
    line_runner([Logged(), CurvesHook()], scores=[0.25, 0.5]).train()
    assert mmcv.imread(str(tmp_path / 'pictures' / 'curves.png')).shape[1] > 1000


def test_without_a_metric_of_the_named_ones_all_are_drawn(line_runner: Build) -> None:
    hook = CurvesHook(metrics=('mAP',))
    hook.painter = Spy()
    line_runner([Logged(), hook], scores=[0.25], epochs=1).train()
    assert hook.validations == [{'epoch': 1.0, 'toy/score': 0.25}]


def test_the_named_metrics_of_every_path_are_taken_in_order() -> None:
    hook = CurvesHook()
    runner: Any = SimpleNamespace(_train_loop=object(), epoch=3)
    metrics = {'coco/AR': 0.9, 'coco/mAP50': 0.5, 'coco/mAP': 0.25, 'coco/nms/mAP': 0.3, 'coco/AP/bolt': 0.1}
    hook.after_val_epoch(runner, metrics)
    assert list(hook.validations[0].items()) == [
        ('epoch', 3.0),
        ('coco/mAP', 0.25),
        ('coco/nms/mAP', 0.3),
        ('coco/mAP50', 0.5),
    ]


def test_a_validation_outside_training_is_no_point_of_the_curve(line_runner: Build) -> None:
    hook, painter = spied()
    line_runner([hook], scores=[0.25]).val()
    assert (hook.validations, painter.drawn) == ([], [])


@pytest.mark.usefixtures('drawn_here')
def test_the_curves_of_a_resumed_run_are_those_of_one_that_ran_through(line_runner: Build, tmp_path: Path) -> None:
    whole, _ = spied()
    saver = CheckpointHook(save_best='toy/score')
    line_runner([Logged(), whole, saver], scores=[0.1, 0.2, 0.3], epochs=3, work_dir=tmp_path / 'a').train()
    first, _ = spied()
    saver = CheckpointHook(save_best='toy/score')
    line_runner([Logged(), first, saver], scores=[0.1, 0.2], epochs=2, work_dir=tmp_path / 'b').train()
    second, painter = spied()
    saver = CheckpointHook(save_best='toy/score')
    last = tmp_path / 'b' / 'last.pth'
    runner = line_runner([Logged(), second, saver], scores=[0.3], epochs=3, work_dir=tmp_path / 'b', load_from=last)
    runner.train()
    assert second.training == whole.training
    assert second.validations == whole.validations
    assert len(painter.drawn) == 1
    # Control: the second part alone is shorter.
    assert len(second.training) > 3
