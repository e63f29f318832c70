import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import pytest
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine import checkpoint as files
from lucid.engine.drawing import DrawingError
from lucid.engine.hooks import CheckpointHook, EvaluationFiguresHook
from lucid.engine.loops import Stopped, TestLoop
from lucid.registry import HOOKS
from lucid.structures.evaluation import EvaluationReport, ImageErrors

Build = Callable[..., Runner]
CHARTS = {'class_ap', 'precision_recall', 'confusion_matrix', 'confusion_matrix_normalised'}


def report(*worst: ImageErrors, path: str = 'one_to_one') -> EvaluationReport:
    ones = np.ones(2)
    precision, confusion = np.ones((2, 101)), np.eye(3, dtype=np.int64)
    return EvaluationReport(
        path, ('bolt', 'nut'), ones, ones, np.arange(101) / 100, precision, 0.4, 0.8, confusion, (0.25, 0.5), worst
    )


def errors(file: Path | str) -> ImageErrors:
    box, label = np.array([[10.0, 10, 30, 40]]), np.array([1])
    return ImageErrors(7, str(file), 1, 2, box, label, box + 5, np.array([0.45]), label)


class Reporting(BaseMetric):
    """Gives the reports that it was made with, and notes how it was asked."""

    default_prefix = 'toy'

    def __init__(self, reports: list[EvaluationReport]) -> None:
        super().__init__()
        self.given, self.asked = reports, []

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results += [0] * len(data_samples)

    def compute_metrics(self, results: list) -> dict[str, float]:
        return {'score': 1.0}

    def reports(self, **options: Any) -> list[EvaluationReport]:
        self.asked.append(options)
        return self.given


class Spy:
    """A painter that remembers what it was asked to draw."""

    def __init__(self) -> None:
        self.compared: list[tuple] = []
        self.charted: list[Sequence[EvaluationReport]] = []

    def draw_comparison(self, image: np.ndarray, *arguments: Any, **options: Any) -> np.ndarray:
        self.compared.append((image.shape, *arguments, options))
        return image

    def stack(self, panels: Sequence[np.ndarray]) -> np.ndarray:
        return panels[0]

    def draw_evaluation(self, reports: Sequence[EvaluationReport]) -> dict[str, np.ndarray]:
        self.charted.append(reports)
        return {}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / 'images' / 'seven.png'
    mmcv.imwrite(np.full((50, 60, 3), 120, np.uint8), str(path))
    return path


def validated(line_runner: Build, hook: EvaluationFiguresHook, metric: BaseMetric, epochs: int = 1) -> Runner:
    runner = line_runner([hook], scores=[], epochs=epochs)
    runner._val_evaluator = Evaluator([metric])
    runner.train()
    return runner


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob('*.*')}


def test_the_hook_is_found_by_its_bare_name_and_refuses_senseless_numbers() -> None:
    assert HOOKS.build({'type': 'EvaluationFiguresHook', 'painter': {'side': 200}}).painter.side == 200
    for wrong in ({'interval': 0}, {'num_worst': -1}, {'confusion_score': 2.0}, {'confusion_iou': 0.0}):
        with pytest.raises(ValueError, match=f'{next(iter(wrong))}={next(iter(wrong.values()))}'):
            EvaluationFiguresHook(**wrong)


def test_a_validation_leaves_charts_and_the_worst_images(line_runner: Build, tmp_path: Path, image: Path) -> None:
    metric = Reporting([report(errors(image)), report(path='nms')])
    hook = EvaluationFiguresHook(num_worst=3, confusion_iou=0.45)
    validated(line_runner, hook, metric)
    assert names(tmp_path / 'pictures') == {*CHARTS, 'worst_images'}
    assert metric.asked == [{'num_worst': 3, 'confusion_rule': (0.25, 0.45)}]


@pytest.mark.usefixtures('drawn_here')
def test_worst_images_are_drawn_from_their_files_with_truth_beside_what_was_found(
    line_runner: Build, image: Path
) -> None:
    hook, spy = EvaluationFiguresHook(), Spy()
    hook.painter = hook.figures = spy
    reports = [report(errors(image)), report(path='nms')]
    validated(line_runner, hook, Reporting(reports))
    assert spy.charted == [reports]
    ((shape, truth, found, caption, classes, options),) = spy.compared
    assert shape == (50, 60, 3)
    assert truth['boxes'].tolist() == [[10, 10, 30, 40]]
    assert found['boxes'].tolist() == [[15, 15, 35, 45]]
    assert caption == '1 missed, 2 false: seven.png'
    assert classes == ('bolt', 'nut')
    assert options == {'score_threshold': 0.4}


def test_an_image_that_is_gone_costs_a_warning_and_its_panel_only(line_runner: Build, tmp_path: Path) -> None:
    validated(line_runner, EvaluationFiguresHook(), Reporting([report(errors(tmp_path / 'gone.png'))]))
    assert names(tmp_path / 'pictures') == CHARTS
    assert 'gone.png is among the worst images and cannot be drawn' in next(tmp_path.rglob('*.log')).read_text()


class Best(CheckpointHook):
    """Says which validations were better than all before."""

    def __init__(self, *epochs: int) -> None:
        super().__init__()
        self.epochs = epochs

    def after_val_epoch(self, runner: Runner, metrics: Any = None) -> None:
        self.best_epoch = runner.epoch if runner.epoch in self.epochs else self.best_epoch

    before_train = after_train_epoch = lambda self, runner: None


def drawn(line_runner: Build, *hooks: Hook, epochs: int, interval: int) -> list[float]:
    """The F1 of what was drawn, in order; that of a validation is its epoch."""
    hook, spy, metric = EvaluationFiguresHook(interval=interval), Spy(), Reporting([])
    hook.figures = spy
    runner = line_runner([hook, *hooks], scores=[], epochs=epochs)
    metric.reports = lambda **_: [report()._replace(f1=runner.epoch)]
    runner._val_evaluator = Evaluator([metric])
    runner.train()
    return [reports[0].f1 for reports in spy.charted]


@pytest.mark.usefixtures('drawn_here')
def test_an_interval_skips_validations_but_neither_the_first_nor_the_last(line_runner: Build) -> None:
    assert drawn(line_runner, epochs=5, interval=3) == [1, 4, 5]


@pytest.mark.usefixtures('drawn_here')
def test_the_best_validation_is_drawn_when_its_turn_comes_and_once(line_runner: Build) -> None:
    # The second and third are better than the first and wait; from the seventh on nothing is better.
    assert drawn(line_runner, Best(1, 2, 3, 6), epochs=9, interval=3) == [1, 3, 6]
    # Control: one more that waits is drawn at the end.
    assert drawn(line_runner, Best(1, 2, 3, 6, 8), epochs=9, interval=3) == [1, 3, 6, 8]


@pytest.mark.usefixtures('drawn_here')
def test_an_early_end_and_a_stop_draw_what_waits(line_runner: Build) -> None:
    class Stop(Hook):
        def after_val_epoch(self, runner: Runner, metrics: Any = None) -> None:
            runner.train_loop.stop_training = runner.epoch == 3

    assert drawn(line_runner, Stop(), Best(1, 2), epochs=9, interval=10) == [1, 2]
    hook, spy = EvaluationFiguresHook(), Spy()
    hook.figures, hook._waiting = spy, (4, [lambda: [report()]])
    runner = line_runner([hook], scores=[])
    for _ in range(2):
        runner.call_hook('on_stop')
    assert len(spy.charted) == 1


def test_a_test_is_drawn_where_a_folder_is_named(line_runner: Build, tmp_path: Path) -> None:
    for folder in (None, tmp_path / 'shown'):
        runner = line_runner([EvaluationFiguresHook(test_dir=folder)], scores=[])
        runner._test_loop = TestLoop(runner, runner._val_dataloader, Evaluator([Reporting([report()])]))
        runner._test_evaluator = runner._test_loop.evaluator
        runner.test_loop.run()
    assert names(tmp_path / 'shown') == CHARTS
    assert not (tmp_path / 'pictures').exists()


def test_a_metric_that_reports_nothing_or_cannot_is_passed_over(line_runner: Build, tmp_path: Path) -> None:
    validated(line_runner, EvaluationFiguresHook(), Reporting([]))
    line_runner([EvaluationFiguresHook()], scores=[0.5], epochs=1).train()
    assert not (tmp_path / 'pictures').exists()


@pytest.mark.usefixtures('drawn_here')
def test_worst_images_show_what_was_compared(line_runner: Build, image: Path) -> None:
    hook, spy = EvaluationFiguresHook(), Spy()
    hook.painter = hook.figures = spy
    worst = errors(image)._replace(
        truth_shapes={'rboxes': np.array([[20.0, 25, 20, 10, 0.3]])}, shapes={'rboxes': np.zeros((1, 5))}
    )
    validated(line_runner, hook, Reporting([report(worst)]))
    ((_, truth, found, *_),) = spy.compared
    assert truth['rboxes'].tolist() == [[20, 25, 20, 10, 0.3]]
    assert found['rboxes'].shape == (1, 5)
    # Control: where boxes are compared there is nothing beside them.
    spy.compared.clear()
    validated(line_runner, hook, Reporting([report(errors(image))]))
    assert set(spy.compared[0][1]) == {'boxes', 'labels'}


def test_the_files_are_those_that_drawing_here_gives(
    line_runner: Build, tmp_path: Path, image: Path, request: pytest.FixtureRequest
) -> None:
    def pictures() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / 'pictures').iterdir()}

    metric = Reporting([report(errors(image)), report(path='nms')])
    validated(line_runner, EvaluationFiguresHook(), metric)
    apart = pictures()
    shutil.rmtree(tmp_path / 'pictures')
    request.getfixturevalue('drawn_here')
    validated(line_runner, EvaluationFiguresHook(), metric)
    assert len(apart) == 5
    assert apart == pictures()


class LateReport:
    """Says which process counted."""

    def __call__(self) -> list[EvaluationReport]:
        Path(self.path).write_text(str(os.getpid()))
        return [report()]


class Late(Reporting):
    """A metric whose reports are made where they are drawn."""

    def __init__(self, path: Path) -> None:
        super().__init__([])
        self.path = path

    def reporter(self, **options: Any) -> LateReport:
        self.asked.append(options)
        late = LateReport()
        late.path = str(self.path)
        return late


def test_what_a_metric_puts_off_is_counted_by_the_process_that_draws(line_runner: Build, tmp_path: Path) -> None:
    metric = Late(tmp_path / 'process')
    validated(line_runner, EvaluationFiguresHook(num_worst=3), metric)
    assert names(tmp_path / 'pictures') == CHARTS
    assert int((tmp_path / 'process').read_text()) != os.getpid()
    assert metric.asked == [{'num_worst': 3, 'confusion_rule': (0.25, 0.5)}]


class BrokenCharts:
    def draw_evaluation(self, reports: Sequence[EvaluationReport]) -> dict[str, np.ndarray]:
        raise ArithmeticError('no room')


def test_a_chart_that_fails_ends_the_training_and_costs_no_checkpoint(line_runner: Build, tmp_path: Path) -> None:
    hook, saver = EvaluationFiguresHook(), CheckpointHook(save_best='toy/score')
    hook.figures = BrokenCharts()
    runner = line_runner([hook, saver], scores=[], epochs=1)
    runner._val_evaluator = Evaluator([Reporting([report()])])
    with pytest.raises(DrawingError, match='EvaluationFiguresHook could not draw: ArithmeticError: no room') as caught:
        runner.train()
    assert 'in draw_evaluation' in str(caught.value.__cause__)
    assert files.load(tmp_path / 'best.pth')['meta']['best_score'] == 1.0


class Stops(Hook):
    """Asks for a stop in the second epoch."""

    def after_train_epoch(self, runner: Runner) -> None:
        if runner.epoch == 1:
            runner.train_loop.request_stop()


def test_what_waits_at_a_stop_is_written_before_the_run_returns(line_runner: Build, tmp_path: Path) -> None:
    hook, metric = EvaluationFiguresHook(interval=10), Reporting([report()])
    runner = line_runner([hook, Stops()], scores=[], epochs=5)
    runner._val_evaluator = Evaluator([metric])
    with pytest.raises(Stopped):
        runner.train()
    assert names(tmp_path / 'pictures') == CHARTS
