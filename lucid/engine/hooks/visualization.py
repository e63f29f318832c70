"""Pictures of a run: what it trains on, and what it finds."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.pictures import DrawingTime, is_last_validation, show_picture, write_picture
from lucid.registry import HOOKS, VISUALIZERS
from lucid.structures.affine import translation, warp_boxes, warp_points
from lucid.structures.pictures import PictureBatch
from lucid.structures.points import limbs_of
from lucid.structures.rotated import warp_rboxes
from lucid.structures.targets import MASK_STRIDE

_NO_OBJECTS: dict[str, Any] = {'boxes': (), 'labels': ()}


@HOOKS.register_module()
class VisualizationHook(Hook):
    """Saves the first training batches with their targets, and validation images with truth beside predictions.

    Written on the first process into ``work_dir/pictures``: ``train_batch_0.jpg`` and so on, from the batches as they
    lie on the host, and ``val_epoch_XX.jpg`` after each validation, of which the newest stay; all of them go to
    TensorBoard where the visualizer has that backend. A test writes one picture per image into ``test_dir``.

    Args:
        num_batches: Training batches to draw, from the run's first iteration on; a resumed run draws none again.
        batch_images: Images drawn of a training batch, at most.
        val_images: Validation images drawn, the first ones of the set.
        interval: Validations from one picture to the next.
        time_share: Share of the time since the first validation that drawing validations may take, above 0 to 1: where
            they follow each other faster, some are left out. The first is drawn, and the last of a training that
            runs to its end; one that stops early does not know its last in time. None does not limit.
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
        self._drawing = False  # in the validation that runs
        self._panels: list[np.ndarray] = []
        self._num_validations = 0

    @master_only
    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Draw a batch before the step has touched it."""
        if runner.iter >= self.num_batches:
            return
        shown = slice(self.batch_images)
        images, metas = _images(data_batch['inputs'], runner.train_dataloader, shown), data_batch['metas'][shown]
        captions = [Path(meta['file']).name for meta in metas]
        classes, keypoints = _names(runner.train_dataloader)
        picture = self.painter.draw_batch(images, _truths(data_batch, keypoints)[shown], captions, classes)
        write_picture(picture, Path(runner.work_dir, 'pictures', f'train_batch_{runner.iter}.jpg'))

    def before_val_epoch(self, runner: Runner) -> None:
        """Begin a new picture, if it is time for one."""
        self._panels.clear()
        due = self._num_validations % self.interval == 0
        self._drawing = due and (self._time.left or is_last_validation(runner))

    @master_only
    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Draw the first images, one by one, so that no batch is kept."""
        missing = self.val_images - len(self._panels) if self._drawing else 0
        if missing > 0:
            names = _names(runner.val_dataloader)
            with self._time.spent():
                self._panels += [panel for _, panel in self._compare(data_batch, (outputs or ())[:missing], *names)]

    @master_only
    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Write the picture, named by the number of epochs done."""
        self._num_validations += 1
        if not self._panels:
            return
        with self._time.spent():
            picture = self.painter.stack(self._panels)
            self._panels.clear()
            folder = Path(runner.work_dir, 'pictures')
            write_picture(picture, folder / f'val_epoch_{runner.epoch:02d}.jpg')
            self._remove_old(folder, runner.epoch)
            show_picture(runner, 'validation', picture)

    def _remove_old(self, folder: Path, epoch: int) -> None:
        matches = ((re.fullmatch(r'val_epoch_(\d+)\.jpg', path.name), path) for path in folder.iterdir())
        numbered = {int(match[1]): path for match, path in matches if match}
        kept = sorted(number for number in numbered if number <= epoch)[-self.keep :]
        for number in numbered.keys() - kept:
            numbered[number].unlink(missing_ok=True)

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Write a picture per image, on every process: each has images of its own."""
        if self.test_dir is not None:
            for meta, picture in self._compare(data_batch, outputs or (), *_names(runner.test_dataloader)):
                write_picture(picture, self.test_dir / f'{Path(meta["file"]).stem}_{meta["image_id"]}.png')

    def _compare(
        self,
        data_batch: Mapping[str, Any],
        outputs: Sequence[Mapping[str, Any]],
        classes: Sequence[str],
        names: Sequence[str] = (),
    ) -> list[tuple[Mapping[str, Any], np.ndarray]]:
        """The first ``len(outputs)`` images of a batch: their metas and their pictures, without the padding."""
        drawn = []
        for image, truth, meta, output in zip(
            data_batch['inputs'].numpy(), _truths(data_batch, names), data_batch['metas'], outputs, strict=False
        ):
            height, width = meta['original_hw']
            window = warp_boxes(meta['matrix'], np.array([[0, 0, width, height]], np.float32))[0]
            left, top, right, bottom = np.clip(window.round().astype(int), 0, (image.shape[1], image.shape[0]) * 2)
            picture = self.painter.draw_comparison(
                image[top:bottom, left:right],
                _in_window(truth, (left, top, right, bottom)),
                _in_input(output, translation(-left, -top) @ np.asarray(meta['matrix'], np.float64), names),
                Path(meta['file']).name,
                classes,
            )
            drawn.append((meta, picture))
        return drawn


def _images(inputs: Any, dataloader: Any, shown: slice) -> Sequence[np.ndarray]:
    """The images of a batch as they lie on the host; those that only the device draws are drawn here once more."""
    if isinstance(inputs, PictureBatch):
        return [dataloader.dataset[key].image for key in inputs.keys[shown]]
    return inputs[shown].numpy()


def _truths(data_batch: Mapping[str, Any], keypoint_names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Objects of each image of a batch, in pixels of the network input; none where the batch has no targets."""
    targets = data_batch.get('targets')
    if targets is None:
        return [_NO_OBJECTS] * len(data_batch['metas'])
    counts = list(targets.counts)
    columns = {
        'boxes': targets.boxes_N4,
        'labels': targets.labels_N,
        'masks': targets.masks_NHW,
        'rboxes': targets.rboxes_N5,
        'keypoints': targets.keypoints_NJ3,
    }
    parts = {key: values.split(counts) for key, values in columns.items() if values is not None}
    limbs = limbs_of(keypoint_names)
    return [{'limbs': limbs, **{key: values[i].numpy() for key, values in parts.items()}} for i in range(len(counts))]


def _in_window(truth: Mapping[str, Any], window: tuple[int, int, int, int]) -> dict[str, Any]:
    """Objects in pixels of a window of the network input, instead of all of it."""
    left, top, right, bottom = window
    shift = np.array([left, top], np.float32)
    moved = {**truth, 'boxes': np.asarray(truth['boxes'], dtype=np.float32).reshape(-1, 4) - np.tile(shift, 2)}
    if truth.get('masks') is not None:
        pixels = truth['masks'].repeat(MASK_STRIDE, axis=1).repeat(MASK_STRIDE, axis=2)
        moved['masks'] = pixels[:, top:bottom, left:right]
    if truth.get('rboxes') is not None:
        moved['rboxes'] = truth['rboxes'] - np.append(shift, [0, 0, 0]).astype(np.float32)
    if truth.get('keypoints') is not None:
        moved['keypoints'] = truth['keypoints'] - np.append(shift, 0).astype(np.float32)
    return moved


def _in_input(output: Mapping[str, Any], matrix: np.ndarray, keypoint_names: Sequence[str]) -> dict[str, Any]:
    """A prediction in the pixels that its original image's are mapped to; its masks cover that image anyway."""
    moved = {**output, 'boxes': warp_boxes(matrix, np.asarray(output['boxes'], dtype=np.float32).reshape(-1, 4))}
    if output.get('rboxes') is not None:
        moved['rboxes'] = warp_rboxes(matrix, np.asarray(output['rboxes'], dtype=np.float32).reshape(-1, 5))
    if output.get('keypoints') is not None:
        moved['keypoints'] = warp_points(matrix, np.asarray(output['keypoints'], dtype=np.float32))
        moved['limbs'] = limbs_of(keypoint_names)
    return moved


def _names(dataloader: Any) -> tuple[Sequence[str], Sequence[str]]:
    """Of the classes and of the keypoints, none where the data set does not say."""
    meta = getattr(dataloader.dataset, 'metainfo', {})
    return meta.get('classes', ()), meta.get('keypoint_names', ())
