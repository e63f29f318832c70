"""What a training run shows: batches with their targets, and predictions beside ground truth."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lucid.registry import VISUALIZERS
from lucid.visualization.objects import draw_objects
from lucid.visualization.panels import add_caption, grid, resize_to_side

_ROWS = ('boxes', 'labels', 'scores', 'masks', 'rboxes', 'keypoints')


@VISUALIZERS.register_module()
class DetectionPainter:
    """Draws panels of detections; every image is brought to one size of panel, so that names stay readable.

    Images are uint8 (H, W, 3) RGB, in and out; what comes out is the caller's. Objects are a dict with ``boxes``
    (N, 4) xyxy in pixels of their image, ``labels`` (N,), and for predictions ``scores`` (N,): arrays or tensors on the
    host. Masks, polygons, rotated boxes and keypoints are drawn too where they are given, as ``draw_objects`` says. It
    is no mmengine visualizer: it only draws, and the runner's own visualizer sends pictures to its backends.

    Args:
        score_threshold: Predictions below it are not drawn.
        side: Pixels of a panel's longer side; None takes the image's own, but at least 320 and at most 480.
    """

    def __init__(self, *, score_threshold: float = 0.25, side: int | None = None) -> None:
        self.score_threshold = score_threshold
        self.side = side

    def draw_batch(
        self,
        images: Sequence[np.ndarray],
        truths: Sequence[Mapping[str, Any]],
        captions: Sequence[str],
        classes: Sequence[str],
        *,
        columns: int | None = None,
    ) -> np.ndarray:
        """A grid of images with their targets, about square unless the number of columns is given."""
        return grid(
            [
                add_caption(self._panel(image, truth, classes), caption)
                for image, truth, caption in zip(images, truths, captions, strict=True)
            ],
            columns=columns,
        )

    def draw_comparison(
        self,
        image: np.ndarray,
        truth: Mapping[str, Any],
        prediction: Mapping[str, Any],
        caption: str,
        classes: Sequence[str],
        *,
        score_threshold: float | None = None,
    ) -> np.ndarray:
        """Ground truth on the left, predictions on the right.

        Args:
            image: To draw on.
            truth: Objects of the ground truth.
            prediction: Objects with scores.
            caption: What the picture is called.
            classes: Names by label.
            score_threshold: Of this picture; None takes the painter's.

        Returns:
            Both panels as one picture.
        """
        least = self.score_threshold if score_threshold is None else score_threshold
        kept = np.asarray(prediction['scores']) >= least
        shown = {key: _kept(prediction[key], kept) for key in _ROWS if prediction.get(key) is not None}
        shown['limbs'] = prediction.get('limbs')
        left = f'{caption}: truth ({len(truth["labels"])})'
        right = f'predicted ({len(shown["labels"])}), score ≥ {least:.3g}'
        pair = [
            add_caption(self._panel(image, objects, classes), text) for objects, text in ((truth, left), (shown, right))
        ]
        return grid(pair, columns=2, gap=2)

    def stack(self, panels: Sequence[np.ndarray]) -> np.ndarray:
        """Several comparisons as one picture, two in a row."""
        return grid(panels, columns=2)

    def _panel(self, image: np.ndarray, objects: Mapping[str, Any], classes: Sequence[str]) -> np.ndarray:
        longer = max(image.shape[:2])
        side = self.side or min(max(longer, 320), 480)
        # Drawn after scaling: lines and letters that are scaled down get lost.
        return draw_objects(resize_to_side(image, side), objects, classes=classes, scale=side / longer)


def _kept(values: Any, kept: np.ndarray) -> Any:
    """Some rows of an array, or of a list, which masks may be."""
    if isinstance(values, list):
        return [value for value, wanted in zip(values, kept, strict=True) if wanted]
    return np.asarray(values)[kept]
