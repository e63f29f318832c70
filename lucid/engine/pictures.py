"""Where pictures of a run go: a file, and TensorBoard where the run has it."""

from pathlib import Path

import mmcv
import numpy as np
from mmengine.runner import Runner


def write_picture(picture: np.ndarray, path: Path) -> None:
    """Write a uint8 (H, W, 3) RGB picture, whole or not at all; folders are made."""
    # mmcv encodes before it opens the file: a failure leaves no half picture.
    mmcv.imwrite(mmcv.rgb2bgr(picture), str(path))


def show_picture(runner: Runner, name: str, picture: np.ndarray) -> None:
    """Give a picture to TensorBoard, at the number of epochs done, if the visualizer has that backend."""
    # Not visualizer.add_image: the local backend would write the same picture into a second folder.
    backend = runner.visualizer.get_backend('TensorboardVisBackend')
    if backend is not None:
        backend.add_image(name, picture, step=runner.epoch)
