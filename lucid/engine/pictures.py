"""Where pictures of a run go: a file, and TensorBoard where the run has it."""

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
