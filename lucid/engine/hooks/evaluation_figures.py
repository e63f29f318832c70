"""What a validation or a test found, as charts, and the images on which it went worst."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
from mmengine.dist import master_only
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.pictures import show_picture, write_picture
from lucid.registry import HOOKS, VISUALIZERS
from lucid.structures.evaluation import EvaluationReport, ImageErrors


@HOOKS.register_module()
class EvaluationFiguresHook(Hook):
    """Draws average precision per class, precision over recall, the confusion matrix, and the worst images.

    For metrics that give ``reports``. After a validation into ``work_dir/pictures``, where the next one replaces them,
    and to TensorBoard; after a test into ``test_dir``. Charts show every path that was evaluated, confusion matrix and
    worst images the first one. Everything happens on the first process, after the evaluation.

    Args:
        interval: Validations from one drawing to the next; the last of a training always draws.
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
        interval: int = 1,
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
        self._num_validations = 0

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Draw the validation that has just ended."""
        due = self._num_validations % self.interval == 0 or _is_last(runner)
        self._num_validations += 1
        if due:
            self._draw(runner, runner.val_loop.evaluator, Path(runner.work_dir, 'pictures'), shown=True)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Draw the test that has just ended, where a folder is named."""
        if self.test_dir is not None:
            self._draw(runner, runner.test_loop.evaluator, self.test_dir, shown=False)

    @master_only
    def _draw(self, runner: Runner, evaluator: Evaluator, folder: Path, *, shown: bool) -> None:
        for metric in evaluator.metrics:
            if not hasattr(metric, 'reports'):
                continue
            reports = metric.reports(num_worst=self.num_worst, confusion_rule=self.confusion_rule)
            if not reports or not reports[0].classes:
                continue
            pictures = self.figures.draw_evaluation(reports)
            if (worst := self._worst(runner, reports[0])) is not None:
                pictures['worst_images'] = worst
            for name, picture in pictures.items():
                write_picture(picture, folder / f'{name}.png')
                if shown:
                    show_picture(runner, f'evaluation/{name}', picture)

    def _worst(self, runner: Runner, report: EvaluationReport) -> np.ndarray | None:
        """The worst images in one picture; None where there is nothing to show."""
        panels = []
        for errors in report.worst:
            try:
                image = mmcv.imread(errors.file, channel_order='rgb')
            except (OSError, ValueError) as error:
                runner.logger.warning(f'{errors.file} is among the worst images and cannot be drawn: {error}')
                continue
            panels.append(self._compare(image, errors, report))
        return self.painter.stack(panels) if panels else None

    def _compare(self, image: np.ndarray, errors: ImageErrors, report: EvaluationReport) -> np.ndarray:
        picture: np.ndarray = self.painter.draw_comparison(
            image,
            {'boxes': errors.truth_boxes, 'labels': errors.truth_labels},
            {'boxes': errors.boxes, 'labels': errors.labels, 'scores': errors.scores},
            f'{errors.num_missed} missed, {errors.num_false} false: {Path(errors.file).name}',
            report.classes,
            score_threshold=report.confidence,
        )
        return picture


def _is_last(runner: Runner) -> bool:
    """Whether a validation is that of training's last epoch."""
    loop = runner._train_loop
    return loop is not None and not isinstance(loop, dict) and runner.epoch >= runner.max_epochs
