"""Where pictures of a run go: a file, and TensorBoard where the run has it; and how much time they may take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import mmcv
import numpy as np
from mmengine.runner import Runner

JPEG = [
    *(cv2.IMWRITE_JPEG_QUALITY, 85),
    # Colour in full resolution: the lines of boxes are thin.
    *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
]
SHOWN_SIDE = 1500
"""Pixels of a picture's longer side in TensorBoard, at most: encoding it as PNG costs more than drawing it."""


def write_picture(picture: np.ndarray, path: Path) -> None:
    """Write a uint8 (H, W, 3) RGB picture, whole or not at all; folders are made."""
    # mmcv encodes before it opens the file: a failure leaves no half picture.
    mmcv.imwrite(mmcv.rgb2bgr(picture), str(path), JPEG if path.suffix == '.jpg' else None)


def show_picture(runner: Runner, name: str, picture: np.ndarray, *, epoch: int | None = None) -> None:
    """Give a picture to TensorBoard, at a number of epochs done, by default now, if the visualizer has that backend."""
    # Not visualizer.add_image: the local backend would write the same picture into a second folder.
    backend = runner.visualizer.get_backend('TensorboardVisBackend')
    if backend is None:
        return
    if (scale := SHOWN_SIDE / max(picture.shape[:2])) < 1:
        picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    backend.add_image(name, picture, step=runner.epoch if epoch is None else epoch)


class DrawingTime:
    """Keeps drawing to a share of the time since the first picture.

    Args:
        share: The share, above 0 to 1; None does not limit.

    Raises:
        ValueError: The share is out of range.
    """

    def __init__(self, share: float | None) -> None:
        if share is not None and not 0 < share <= 1:
            raise ValueError(f'time_share={share} must be above 0 and at most 1, or None; 0.05 is a twentieth')
        self._share = share
        self._started: float | None = None
        self._spent = 0.0

    @property
    def left(self) -> bool:
        """Whether a picture may be drawn now; the first one always may."""
        if self._share is None or self._started is None:
            return True
        return self._spent <= self._share * (time.monotonic() - self._started)

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Around drawing."""
        started = time.monotonic()
        if self._started is None:
            self._started = started
        try:
            yield
        finally:
            self._spent += time.monotonic() - started


def is_last_validation(runner: Runner) -> bool:
    """Whether no epoch of the training follows that a validation is part of."""
    loop = runner._train_loop
    if loop is None or isinstance(loop, dict):
        return False
    return runner.epoch >= runner.max_epochs or bool(getattr(loop, 'stop_training', False))
