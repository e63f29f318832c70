"""Data sets of image files and COCO JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from lucid.datasets.coco_file import TARGETS, read_coco
from lucid.datasets.images import ImageStore
from lucid.datasets.layout import find_annotations, find_images
from lucid.datasets.problems import Problems
from lucid.datasets.sample import Sample
from lucid.datasets.samplers import SampleKey
from lucid.datasets.transforms import Transform, build_pipeline, height_width
from lucid.registry import DATASETS
from lucid.structures.affine import Float32
from lucid.structures.points import flip_order


class GroundTruth(NamedTuple):
    """All annotations of one image, crowds included, in pixels of its file.

    boxes:   float32 (N, 4), xyxy, clipped to the image
    labels:  int64 (N,)
    iscrowd: bool (N,), a region in which detections are ignored
    areas:   float32 (N,), square pixels
    ids:     int64 (N,), of the annotations
    """

    image_id: int
    file: str
    original_hw: tuple[int, int]
    boxes: Float32
    labels: NDArray[np.int64]
    iscrowd: NDArray[np.bool_]
    areas: Float32
    ids: NDArray[np.int64]


@DATASETS.register_module()
class CocoDataset(Dataset[Sample]):
    """Image files with COCO instances JSON; never writes into them.

    ``dataset[key]`` takes a ``SampleKey`` or a plain index and returns the sample after the pipeline. All random draws
    come from (seed, epoch, index). Classes come from the file, numbered by ascending category id. Images without boxes
    are kept; crowd annotations are no training targets.

    Attributes: ``classes``; ``metainfo`` (classes, annotation_file); ``category_ids``, the id of each class in the
    file; ``keypoint_names``; ``annotation_file``; ``image_ids``, int64; ``files``, an array of paths; ``problems``,
    what was left out, counted by kind; ``findings``, each ``Problem`` of it.

    Args:
        data_root: Folder of the data set.
        split: Its part, such as ``train``; leads to the files unless they are given.
        image_size: Side, or height and width, of the network input, for transforms whose config does not state it.
        ann_file: Annotation file, relative to ``data_root``; None looks in the usual places.
        image_dir: Folder of the images, relative to ``data_root``; None looks in the usual places.
        pipeline: Configs of transforms, applied in turn.
        targets: Kinds to load: boxes, polygons, rboxes, keypoints; boxes are always loaded.
        seed: What the transforms' draws depend on, next to epoch and index.
        on_bad: What to do about bad annotations and images: ``'error'``, ``'skip_box'`` or ``'skip_image'``. All
            find missing, empty, truncated and wrongly sized images at the start; the last decodes every image for it,
            the others meet damage in the middle of a file when they read it.
        cache_mb: Megabytes of decoded images to keep in memory.

    Raises:
        ValueError: Files are missing or ambiguous.
        DataError: A ValueError with all ``problems``: data is bad and ``on_bad`` does not leave it out.
    """

    def __init__(
        self,
        data_root: str | Path,
        *,
        split: str,
        image_size: int | Sequence[int],
        ann_file: str | Path | None = None,
        image_dir: str | Path | None = None,
        pipeline: Sequence[Mapping[str, Any] | Transform] = (),
        targets: Sequence[str] = ('boxes',),
        seed: int = 0,
        on_bad: str = 'error',
        cache_mb: int = 0,
    ) -> None:
        if unknown := set(targets) - set(TARGETS):
            raise ValueError(f'targets={list(targets)} has {sorted(unknown)}; choose from {", ".join(TARGETS)}')
        root = Path(data_root).expanduser()
        self.image_size = height_width(image_size)
        self.seed = seed
        self.annotation_file = find_annotations(root, split, ann_file)

        problems = Problems(on_bad)
        content = read_coco(self.annotation_file, targets=targets, problems=problems)
        folder = find_images(root, split, [image.file_name for image in content.images], image_dir)
        files = [str(folder / image.file_name) for image in content.images]
        sizes = np.array([(image.height, image.width) for image in content.images], dtype=np.int32)
        for index, error in ImageStore(files, sizes).errors(decode=on_bad == 'skip_image').items():
            problems.add(error.kind, str(error).removeprefix(f'{files[index]}: '), place=files[index], image=index)
        problems.settle(str(self.annotation_file))
        self.problems = problems.counts()
        self.findings = tuple(problems.found)

        # One array each: lists of strings and integers would be copied into every worker, count by count.
        self._rows = np.flatnonzero(~problems.bad_images(len(files)))
        if not len(self._rows):
            raise ValueError(f'{self.annotation_file}: no image is usable ({self.problems}); correct the files')
        self.files = np.array(files)[self._rows]
        self.image_ids = np.array([image.id for image in content.images], dtype=np.int64)[self._rows]
        self._annotations = content.annotations
        self._images = ImageStore(self.files, sizes[self._rows], cache_mb=cache_mb)

        self.classes = content.categories.names
        self.category_ids = content.categories.ids
        self.keypoint_names = content.categories.keypoints
        self.metainfo = {'classes': self.classes, 'annotation_file': str(self.annotation_file)}
        order = flip_order(self.keypoint_names) if 'keypoints' in targets else None
        self.pipeline = build_pipeline(pipeline, image_size=self.image_size, source=self, flip_order=order)

    def __len__(self) -> int:
        """Number of usable images."""
        return len(self.files)

    @property
    def num_rings(self) -> int | None:
        """Polygon rings of all objects; None where polygons were not asked for."""
        offsets = self._annotations.ring_offsets_R1
        return None if offsets is None else len(offsets) - 1

    def __getitem__(self, key: int | SampleKey) -> Sample:
        key = SampleKey.of(key)
        sample = self.read(key.index)
        sample.key, sample.rng = key, key.generator(self.seed)
        for transform in self.pipeline:
            sample = transform(sample)
        return sample

    def read(self, index: int) -> Sample:
        """An image as it is in its file, with its training targets; an unusable file raises ``ImageError``."""
        image = self._images.read(index)
        notes = self._annotations
        rows = notes.rows(self._rows[index])
        rows = rows[~notes.crowd_N[rows]]
        return Sample(
            image=image,
            boxes=notes.boxes_N4[rows],
            labels=notes.labels_N[rows],
            polygons=None if notes.points_P2 is None else [notes.rings(row) for row in rows],
            rboxes=None if notes.rboxes_N5 is None else notes.rboxes_N5[rows],
            keypoints=None if notes.keypoints_NK3 is None else notes.keypoints_NK3[rows],
            image_id=int(self.image_ids[index]),
            file=str(self.files[index]),
            original_hw=image.shape[:2],
        )

    def ground_truth(self, index: int) -> GroundTruth:
        """All usable annotations of an image; the image is not read."""
        notes = self._annotations
        rows = notes.rows(self._rows[index])
        height, width = self._images.sizes[index].tolist()
        return GroundTruth(
            image_id=int(self.image_ids[index]),
            file=str(self.files[index]),
            original_hw=(height, width),
            boxes=notes.boxes_N4[rows],
            labels=notes.labels_N[rows],
            iscrowd=notes.crowd_N[rows],
            areas=notes.areas_N[rows],
            ids=notes.ids_N[rows],
        )
