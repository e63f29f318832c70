"""Charts of a run as pictures, for hooks that find their painter by name."""

from collections.abc import Sequence

import numpy as np

from lucid.registry import VISUALIZERS
from lucid.structures.evaluation import EvaluationReport
from lucid.visualization.curves import Rows, curves_figure
from lucid.visualization.evaluation import ap_figure, confusion_figure, precision_recall_figure
from lucid.visualization.figures import to_image


@VISUALIZERS.register_module()
class FigurePainter:
    """Draws the curves of a training and the figures of an evaluation; pictures are uint8 (H, W, 3) RGB, the caller's.

    It is no mmengine visualizer: it only draws, and the runner's own visualizer sends pictures to its backends.
    """

    def draw_curves(self, training: Rows, validations: Rows) -> np.ndarray:
        """Loss, learning rate and metrics over the epochs."""
        return to_image(curves_figure(training, validations))

    def draw_evaluation(self, reports: Sequence[EvaluationReport]) -> dict[str, np.ndarray]:
        """The charts of an evaluation; the confusion matrix is that of the first report.

        Args:
            reports: One per path, of one evaluation; at least one, with at least one class.

        Returns:
            Pictures by the name of their file.
        """
        return {
            'class_ap': to_image(ap_figure(reports)),
            'precision_recall': to_image(precision_recall_figure(reports)),
            'confusion_matrix': to_image(confusion_figure(reports[0], normalised=False)),
            'confusion_matrix_normalised': to_image(confusion_figure(reports[0], normalised=True)),
        }
