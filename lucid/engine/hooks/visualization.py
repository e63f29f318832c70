"""Pictures of a run: what it trains on, and what it finds."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.comparison import Comparison, comparisons, truths
from lucid.engine.drawing import Drawing, DrawingTime, begun_drawing
from lucid.engine.pictures import Picture, is_last_validation, write_picture
from lucid.registry import HOOKS, VISUALIZERS
from lucid.structures.pictures import PictureBatch


@HOOKS.register_module()
class VisualizationHook(Hook):
    """Saves the first training batches with their targets, and validation images with truth beside predictions.

    For the first process of a distributed run, into ``work_dir/pictures``: ``train_batch_0.jpg`` and so on, from the
    batches as they lie on the host, and ``val_epoch_XX.jpg`` after each validation, of which the newest stay; these go
    to TensorBoard where the visualizer has that backend. In training a process of its own draws, see ``Drawing``. A
    test writes one picture per image into ``test_dir``.

    Args:
        num_batches: Training batches to draw, from the run's first iteration on; a resumed run draws none again.
        batch_images: Images drawn of a training batch, at most.
        val_images: Validation images drawn, the first ones of the set.
        interval: Validations from one picture to the next.
        time_share: Share of the time since the first validation that drawing validations may take of a process, above
            0 to 1: where they follow each other faster, some are left out. The first is drawn, and the last of a
            training that runs to its end; one that stops early does not know its last in time. None draws each, and
            training waits where drawing does not keep up.
        keep: Validations whose pictures stay, the newest; with a new one, those of later epochs go too: they are of a
            run that this one replaces.
        test_dir: Folder for the pictures of a test; None draws none.
        painter: Config of the class that draws, from VISUALIZERS; None is a ``DetectionPainter``.

    Raises:
        ValueError: A number is negative, ``interval`` is not positive, or ``time_share`` is out of range.
    """

    # After the hook that writes checkpoints: a picture that fails must not cost one.
    priority = 'LOWEST'

    def __init__(
        self,
        *,
        num_batches: int = 3,
        batch_images: int = 16,
        val_images: int = 8,
        interval: int = 1,
        time_share: float | None = None,
        keep: int = 3,
        test_dir: str | Path | None = None,
        painter: Mapping[str, Any] | None = None,
    ) -> None:
        if min(num_batches, batch_images - 1, val_images, interval - 1, keep - 1) < 0:
            raise ValueError(
                f'num_batches={num_batches} and val_images={val_images} must be 0 or more, '
                f'batch_images={batch_images}, interval={interval} and keep={keep} 1 or more; use 0 to draw nothing'
            )
        self.num_batches = num_batches
        self.batch_images = batch_images
        self.val_images = val_images
        self.interval = interval
        self.keep = keep
        self.test_dir = None if test_dir is None else Path(test_dir)
        self.painter = VISUALIZERS.build({'type': 'DetectionPainter', **(painter or {})})
        self._time = DrawingTime(time_share)
        self._drawing = Drawing()
        self._due = False  # in the validation that runs
        self._compared: list[Comparison] = []
        self._num_validations = 0

    def before_train(self, runner: Runner) -> None:
        """Draw in a process from now on."""
        self._drawing = begun_drawing(runner)

    @master_only
    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Have a batch drawn as it is before the step has touched it."""
        if runner.iter >= self.num_batches:
            return
        shown = slice(self.batch_images)
        images, metas = _images(data_batch['inputs'], runner.train_dataloader, shown), data_batch['metas'][shown]
        captions = [Path(meta['file']).name for meta in metas]
        classes, keypoints = _names(runner.train_dataloader)
        path = Path(runner.work_dir, 'pictures', f'train_batch_{runner.iter}.jpg')
        arguments = self.painter, images, truths(data_batch, keypoints)[shown], captions, tuple(classes), path
        self._drawing.draw(runner, self, _batch_picture, *arguments)

    def before_val_epoch(self, runner: Runner) -> None:
        """Begin a new picture, if it is time for one."""
        self._compared.clear()
        due = self._num_validations % self.interval == 0
        self._due = due and (self._time.left or is_last_validation(runner))

    @master_only
    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Copy the first images, one by one, so that no batch is kept."""
        missing = self.val_images - len(self._compared) if self._due else 0
        if missing > 0:
            _, keypoints = _names(runner.val_dataloader)
            self._compared += comparisons(data_batch, (outputs or ())[:missing], keypoints)

    @master_only
    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Have the picture drawn, named by the number of epochs done."""
        self._num_validations += 1
        if self._compared:
            classes, keypoints = _names(runner.val_dataloader)
            names, folder = (tuple(classes), tuple(keypoints)), Path(runner.work_dir, 'pictures')
            arguments = self.painter, self._compared, names, folder, runner.epoch, self.keep
            self._time.count(self._drawing.draw(runner, self, _validation_picture, *arguments))
            self._compared.clear()
        self._drawing.collect(runner)

    def after_train(self, runner: Runner) -> None:
        """Wait for all pictures."""
        self._drawing.finish(runner)

    def close(self, runner: Runner) -> None:
        """Wait for all pictures, however training ended."""
        self._drawing.close(runner)

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Write a picture per image, on every process: each has images of its own."""
        if self.test_dir is not None:
            classes, keypoints = _names(runner.test_dataloader)
            for each in comparisons(data_batch, outputs or (), keypoints):
                picture = each.draw(self.painter, classes, keypoints)
                write_picture(picture, self.test_dir / f'{each.file.stem}_{each.image_id}.png')


def _batch_picture(
    painter: Any, images: Any, truth: Any, captions: Sequence[str], classes: Sequence[str], path: Path
) -> Iterator[Picture]:
    yield Picture(painter.draw_batch(images, truth, captions, classes), path)


def _validation_picture(
    painter: Any,
    compared: Sequence[Comparison],
    names: tuple[Sequence[str], Sequence[str]],
    folder: Path,
    epoch: int,
    keep: int,
) -> Iterator[Picture]:
    """The picture of a validation; then, when it is written, those of others go."""
    pixels = painter.stack([each.draw(painter, *names) for each in compared])
    yield Picture(pixels, folder / f'val_epoch_{epoch:02d}.jpg', 'validation')
    matches = ((re.fullmatch(r'val_epoch_(\d+)\.jpg', path.name), path) for path in folder.iterdir())
    numbered = {int(match[1]): path for match, path in matches if match}
    kept = sorted(number for number in numbered if number <= epoch)[-keep:]
    for number in numbered.keys() - kept:
        numbered[number].unlink(missing_ok=True)


def _images(inputs: Any, dataloader: Any, shown: slice) -> Sequence[np.ndarray]:
    """The images of a batch as they lie on the host; those that only the device draws are drawn here once more."""
    if isinstance(inputs, PictureBatch):
        return [dataloader.dataset[key].image for key in inputs.keys[shown]]
    return inputs[shown].numpy()


def _names(dataloader: Any) -> tuple[Sequence[str], Sequence[str]]:
    """Of the classes and of the keypoints, none where the data set does not say."""
    meta = getattr(dataloader.dataset, 'metainfo', {})
    return meta.get('classes', ()), meta.get('keypoint_names', ())
