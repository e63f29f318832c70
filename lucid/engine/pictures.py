"""Where pictures of a run go: a file, and TensorBoard where the run has it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import mmcv
import numpy as np
from mmengine.runner import Runner

JPEG = [
    *(cv2.IMWRITE_JPEG_QUALITY, 85),
    # Colour in full resolution: the lines of boxes are thin.
    *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
]
PNG = [cv2.IMWRITE_PNG_COMPRESSION, 6]
"""Half as many bytes as by OpenCV's own choice, and three times as long: for TensorBoard, not for files."""
SHOWN_SIDE = 1500
"""Pixels of a picture's longer side in TensorBoard, at most: its writer spends a fifth of a second on a megabyte, in a
thread of the main process.
"""


class Picture(NamedTuple):
    """One that is drawn.

    pixels: uint8 (H, W, 3), RGB
    path:   of its file, which has no folder yet perhaps
    tag:    its name in TensorBoard; None keeps it out
    """

    pixels: np.ndarray
    path: Path
    tag: str | None = None


class ShownPicture(NamedTuple):
    """One as TensorBoard takes it: encoded, of so many pixels."""

    tag: str
    encoded: bytes
    height: int
    width: int


def write_picture(picture: np.ndarray, path: Path) -> None:
    """Write a uint8 (H, W, 3) RGB picture, whole or not at all; folders are made."""
    content = _encoded(picture, path.suffix, JPEG if path.suffix == '.jpg' else [])
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'.{path.name}.{os.getpid()}')  # until it is whole
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def to_show(picture: Picture) -> ShownPicture | None:
    """A picture as TensorBoard takes it, at most ``SHOWN_SIDE`` pixels long: JPEG where its file is, else PNG."""
    pixels, path, tag = picture
    if tag is None:
        return None
    if (scale := SHOWN_SIDE / max(pixels.shape[:2])) < 1:
        pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    content = _encoded(pixels, '.jpg', JPEG) if path.suffix == '.jpg' else _encoded(pixels, '.png', PNG)
    return ShownPicture(tag, content, *pixels.shape[:2])


def _encoded(picture: np.ndarray, suffix: str, options: Sequence[int]) -> bytes:
    return cv2.imencode(suffix, mmcv.rgb2bgr(picture), options)[1].tobytes()


def show_pictures(runner: Runner, pictures: Sequence[ShownPicture], *, epoch: int) -> None:
    """Give pictures to TensorBoard, at a number of epochs done, if the visualizer has that backend."""
    # Not visualizer.add_image: the local backend would write the same picture into a second folder. Nor add_image of
    # the backend, which encodes: half a second for one of photographs.
    backend = runner.visualizer.get_backend('TensorboardVisBackend') if pictures else None
    if backend is None:
        return
    # Only here: importing them takes a while.
    from tensorboard.compat.proto.summary_pb2 import Summary
    from torch.utils.tensorboard import FileWriter

    writer = backend.experiment
    # mmengine's LoggerHook closes it at the end of training, before the last pictures are there.
    again = FileWriter(writer.get_logdir()) if writer.file_writer is None else None
    for tag, content, height, width in pictures:
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=content)
        (again or writer.file_writer).add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), epoch)
    if again is not None:
        again.close()


def is_last_validation(runner: Runner) -> bool:
    """Whether no epoch of the training follows that a validation is part of."""
    loop = runner._train_loop
    if loop is None or isinstance(loop, dict):
        return False
    return runner.epoch >= runner.max_epochs or bool(getattr(loop, 'stop_training', False))
