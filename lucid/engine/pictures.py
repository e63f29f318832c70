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
SHOWN_SIDE = 1500
"""Pixels of a picture's longer side in TensorBoard, at most: its writer takes time for every byte."""


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


def write_picture(picture: np.ndarray, path: Path) -> bytes:
    """Write a uint8 (H, W, 3) RGB picture, whole or not at all, and return the file's content; folders are made."""
    content = encoded(picture, path.suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    # What a process of several writes has a name of its own until it is whole.
    part = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return content


def encoded(picture: np.ndarray, suffix: str) -> bytes:
    """A uint8 (H, W, 3) RGB picture as ``.jpg`` or what else OpenCV knows by its suffix."""
    return cv2.imencode(suffix, mmcv.rgb2bgr(picture), JPEG if suffix == '.jpg' else [])[1].tobytes()


def to_show(picture: Picture, content: bytes) -> ShownPicture:
    """A picture for TensorBoard, from that of its file and its content: the same, or smaller and encoded alike.

    Args:
        picture: With its tag.
        content: Of its file.

    Returns:
        At most ``SHOWN_SIDE`` pixels long.
    """
    assert picture.tag is not None
    pixels = picture.pixels
    if (scale := SHOWN_SIDE / max(pixels.shape[:2])) < 1:
        pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        content = encoded(pixels, picture.path.suffix)
    return ShownPicture(picture.tag, content, *pixels.shape[:2])


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
