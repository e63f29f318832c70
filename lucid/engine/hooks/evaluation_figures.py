"""What a validation or a test found, as charts, and the images on which it went worst."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
from mmengine.dist import is_main_process
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.drawing import Drawing, begun_drawing
from lucid.engine.hooks.checkpoint import CheckpointHook
from lucid.engine.pictures import Picture, is_last_validation
from lucid.registry import HOOKS, VISUALIZERS
from lucid.structures.evaluation import EvaluationReport, ImageErrors

Reporter = Callable[[], Sequence[EvaluationReport]]


@HOOKS.register_module()
class EvaluationFiguresHook(Hook):
    """Draws average precision per class, precision over recall, the confusion matrix, and the worst images.

    For metrics that give ``reports``, or have a ``reporter``, which is called where pictures are drawn: counting takes
    time too. In training into ``work_dir/pictures``, where the next ones replace them, and to
    TensorBoard: those of the best validation so far, as in ``best.pth``, or of the latest where ``CheckpointHook``
    keeps no best. Because drawing takes seconds on a CPU, a better validation waits for its turn, every ``interval``-th
    one, the last of a training, or a stop on request; if nothing is better, nothing is drawn. After a test into
    ``test_dir``. Charts show every path that was evaluated, confusion matrix and worst images the first one. Only for
    the first process of a distributed run; in training a process of its own draws, see ``Drawing``.

    Args:
        interval: Validations from one drawing to the next; the first and the last of a training draw as well.
        num_worst: Worst images drawn, at most; 0 draws none.
        confusion_score: Lowest score of a detection in the confusion matrix.
        confusion_iou: Lowest IoU of a detection with the object that it is taken for.
        test_dir: Folder for the pictures of a test; None draws none.
        painter: Config of the class that draws images, from VISUALIZERS; None is a ``DetectionPainter``.
        figures: Config of the class that draws charts, from VISUALIZERS; None is a ``FigurePainter``.

    Raises:
        ValueError: A number is out of range.
    """

    # After the hook that writes checkpoints: a picture that fails must not cost one.
    priority = 'LOWEST'

    def __init__(
        self,
        *,
        interval: int = 10,
        num_worst: int = 8,
        confusion_score: float = 0.25,
        confusion_iou: float = 0.5,
        test_dir: str | Path | None = None,
        painter: Mapping[str, Any] | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        if interval < 1 or num_worst < 0 or not (0 <= confusion_score <= 1 and 0 < confusion_iou <= 1):
            raise ValueError(
                f'EvaluationFiguresHook: interval={interval} must be 1 or more, num_worst={num_worst} 0 or more, '
                f'confusion_score={confusion_score} and confusion_iou={confusion_iou} in 0..1, the last above 0'
            )
        self.interval = interval
        self.num_worst = num_worst
        self.confusion_rule = (confusion_score, confusion_iou)
        self.test_dir = None if test_dir is None else Path(test_dir)
        self.painter = VISUALIZERS.build({'type': 'DetectionPainter', **(painter or {})})
        self.figures = VISUALIZERS.build({'type': 'FigurePainter', **(figures or {})})
        self._drawing = Drawing()
        self._num_validations = 0
        # Epochs done, and what tells what was found then; it holds the detections of that validation.
        self._waiting: tuple[int, list[Reporter]] | None = None

    def before_train(self, runner: Runner) -> None:
        """Draw in a process from now on."""
        self._drawing = begun_drawing(runner)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Keep what the validation that has just ended tells, if it is the best; draw what is kept when it is time."""
        due = self._num_validations % self.interval == 0 or is_last_validation(runner)
        self._num_validations += 1
        saver = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
        best = None if saver is None else saver.best_epoch
        if due if best is None else best == runner.epoch:
            self._waiting = runner.epoch, self._reporters(runner.val_loop.evaluator)
        if due:
            self._draw_waiting(runner)
        self._drawing.collect(runner)

    def after_train(self, runner: Runner) -> None:
        """Wait for all pictures."""
        self._drawing.finish(runner)

    def close(self, runner: Runner) -> None:
        """Wait for all pictures, however training ended."""
        self._drawing.close(runner)

    def on_stop(self, runner: Runner) -> None:
        """Draw what is kept: a resumed run does not know it."""
        self._draw_waiting(runner)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Draw the test that has just ended, where a folder is named."""
        if self.test_dir is not None:
            self._draw(runner, self._reporters(runner.test_loop.evaluator), self.test_dir)

    def _reporters(self, evaluator: Evaluator) -> list[Reporter]:
        """Of every metric that has any; none on processes that evaluated nothing."""
        rules = {'num_worst': self.num_worst, 'confusion_rule': self.confusion_rule}
        found: list[Reporter] = []
        for metric in evaluator.metrics if is_main_process() else ():
            if hasattr(metric, 'reporter'):
                found.append(metric.reporter(**rules))
            elif hasattr(metric, 'reports'):
                found.append(partial(list, [_portable(report) for report in metric.reports(**rules)]))
        return found

    def _draw_waiting(self, runner: Runner) -> None:
        if self._waiting is not None:
            (epoch, reporters), self._waiting = self._waiting, None
            self._draw(runner, reporters, Path(runner.work_dir, 'pictures'), shown_at=epoch)

    def _draw(
        self, runner: Runner, reporters: Sequence[Reporter], folder: Path, *, shown_at: int | None = None
    ) -> None:
        if reporters:
            arguments = self.figures, self.painter, reporters, folder, shown_at is not None
            self._drawing.draw(runner, self, _pictures, *arguments, epoch=shown_at)


def _pictures(
    figures: Any, painter: Any, reporters: Sequence[Reporter], folder: Path, is_shown: bool
) -> Iterator[Picture | str]:
    """The charts of the last metric that has reports with classes, and its worst images or why they cannot be read."""
    given = [reports for reporter in reporters if (reports := reporter()) and reports[0].classes]
    if not given:
        return
    reports = given[-1]
    for name, picture in figures.draw_evaluation(reports).items():
        yield Picture(picture, folder / f'{name}.png', f'evaluation/{name}' if is_shown else None)
    panels = []
    for errors in reports[0].worst:
        try:
            image = mmcv.imread(errors.file, channel_order='rgb')
        except (OSError, ValueError) as error:
            yield f'{errors.file} is among the worst images and cannot be drawn: {error}'
            continue
        panels.append(_compared(painter, image, errors, reports[0]))
    if panels:
        name = 'worst_images'
        yield Picture(painter.stack(panels), folder / f'{name}.jpg', f'evaluation/{name}' if is_shown else None)


def _compared(painter: Any, image: np.ndarray, errors: ImageErrors, report: EvaluationReport) -> np.ndarray:
    picture: np.ndarray = painter.draw_comparison(
        image,
        {'boxes': errors.truth_boxes, 'labels': errors.truth_labels, **errors.truth_shapes},
        {'boxes': errors.boxes, 'labels': errors.labels, 'scores': errors.scores, **errors.shapes},
        f'{errors.num_missed} missed, {errors.num_false} false: {Path(errors.file).name}',
        report.classes,
        score_threshold=report.confidence,
    )
    return picture


def _portable(report: EvaluationReport) -> EvaluationReport:
    """The same with mappings that can be pickled, which a mapping proxy cannot."""
    worst = [
        errors._replace(truth_shapes=dict(errors.truth_shapes), shapes=dict(errors.shapes)) for errors in report.worst
    ]
    return report._replace(worst=tuple(worst))
