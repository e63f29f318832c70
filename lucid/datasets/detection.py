"""What all data sets of images with boxes share, whatever their layout."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from lucid.datasets.annotations import pack
from lucid.datasets.content import KINDS, Content
from lucid.datasets.ground_truth import GroundTruth, coco_content
from lucid.datasets.images import ImageStore
from lucid.datasets.layers import Image, Source
from lucid.datasets.picture import Picture
from lucid.datasets.problems import DataError, Problems
from lucid.datasets.sample import Sample
from lucid.datasets.samplers import SampleKey
from lucid.datasets.transforms import Transform, build_pipeline, height_width
from lucid.structures.points import flip_order


class DetectionDataset(Dataset[Sample]):
    """Image files with boxes that a reader found; never writes into them.

    ``dataset[key]`` takes a ``SampleKey`` or a plain index and returns the sample after the pipeline. All random draws
    come from (seed, epoch, index). Images without boxes are kept; crowd annotations are no training targets, difficult
    objects are.

    Attributes: ``layout``; ``source``, the file or folder that leads to the others; ``annotation_file``, the source if
    it is COCO JSON, else None; ``classes``; ``metainfo`` (classes and, if any, annotation_file; where keypoints are
    loaded, keypoint_names and flip_order, the keypoint that takes each one's place in a mirrored image);
    ``category_ids``, the id of each class in the source; ``keypoint_names``; ``image_ids``, int64; ``files``, an array
    of paths; ``problems``, what was left out, counted by kind; ``findings``, each ``Problem`` of it.

    Args:
        content: What a reader found.
        problems: What it found wrong, and the policy. All policies find missing, empty, truncated and wrongly sized
            images now; ``'skip_image'`` decodes every image for it, the others meet damage in the middle of a file
            when they read it.
        image_size: Side, or height and width, of the network input, for transforms whose config does not state it.
        pipeline: Configs of transforms, applied in turn.
        targets: Kinds that the reader was asked for.
        seed: What the transforms' draws depend on, next to epoch and index.
        cache_mb: Megabytes of decoded images to keep in memory.

    Raises:
        DataError: A ValueError with all ``problems``: data is bad and the policy does not leave it out, or leaves out
            every image.
    """

    def __init__(
        self,
        content: Content,
        problems: Problems,
        *,
        image_size: int | Sequence[int],
        pipeline: Sequence[Mapping[str, Any] | Transform] = (),
        targets: Sequence[str] = ('boxes',),
        seed: int = 0,
        cache_mb: int = 0,
    ) -> None:
        self.image_size = height_width(image_size)
        self.seed = seed
        self.layout = content.layout
        self.source = content.source
        self.annotation_file = content.source if content.layout == 'coco' else None
        self.classes = content.categories.names
        self.category_ids = content.categories.ids
        self.keypoint_names = content.categories.keypoints
        self.metainfo: dict[str, Any] = {'classes': self.classes}
        if self.annotation_file is not None:
            self.metainfo['annotation_file'] = str(self.annotation_file)

        self._rows = usable_images(content, problems)
        self.problems = problems.counts()
        self.findings = tuple(problems.found)
        # One array each: lists of strings and integers would be copied into every worker, count by count.
        sizes = np.array([(image.height, image.width) for image in content.images], dtype=np.int32)
        self.files = np.array([image.file for image in content.images])[self._rows]
        self.image_ids = np.array([image.id for image in content.images], dtype=np.int64)[self._rows]
        self._annotations = pack(content.rows, len(sizes), targets, len(self.keypoint_names))
        self._images = ImageStore(self.files, sizes[self._rows], cache_mb=cache_mb)
        # The image that each was cut from, empty for those that are no tiles.
        self._sources = np.array([image.source for image in content.images])[self._rows]
        self._windows = np.array([image.window for image in content.images], dtype=np.float64)[self._rows]
        order = flip_order(self.keypoint_names) if 'keypoints' in targets else None
        if order is not None:
            self.metainfo |= {'keypoint_names': self.keypoint_names, 'flip_order': tuple(order.tolist())}
        self.pipeline = build_pipeline(pipeline, image_size=self.image_size, source=self, flip_order=order)

    def __len__(self) -> int:
        """Number of usable images."""
        return len(self.files)

    @property
    def num_rings(self) -> int | None:
        """Polygon rings of all objects, 0 where the layout holds none; None where they were not asked for."""
        offsets = self._annotations.ring_offsets_R1
        if offsets is None:
            return None if 'polygons' in KINDS[self.layout] else 0
        return len(offsets) - 1

    def __getitem__(self, key: int | SampleKey) -> Sample:
        key = SampleKey.of(key)
        sample = self.read(key.index)
        sample.key, sample.rng = key, key.generator(self.seed)
        for transform in self.pipeline:
            sample = transform(sample)
        return sample

    def read(self, index: int) -> Sample:
        """An image as it is in its file, with its training targets.

        The file is read when the image is first asked for; an unusable one raises ``ImageError`` then.
        """
        height, width = self._images.sizes[index].tolist()
        notes = self._annotations
        rows = notes.rows(self._rows[index])
        rows = rows[~notes.crowd_N[rows]]
        return Sample(
            picture=Picture.read_by(Source((height, width), self._images, index)),
            boxes=notes.boxes_N4[rows],
            labels=notes.labels_N[rows],
            polygons=None if notes.points_P2 is None else [notes.rings(row) for row in rows],
            rboxes=None if notes.rboxes_N5 is None else notes.rboxes_N5[rows],
            keypoints=None if notes.keypoints_NK3 is None else notes.keypoints_NK3[rows],
            image_id=int(self.image_ids[index]),
            file=str(self.files[index]),
            original_hw=(height, width),
        )

    def read_image(self, index: int) -> Image:
        """The pixels of an image as they are in its file, perhaps shared: not to be written to."""
        return self._images.read(index)

    def ground_truth(self, index: int) -> GroundTruth:
        """All usable annotations of an image; the image is not read."""
        notes = self._annotations
        rows = notes.rows(self._rows[index])
        height, width = self._images.sizes[index].tolist()
        x1, y1, x2, y2 = self._windows[index].tolist()
        return GroundTruth(
            image_id=int(self.image_ids[index]),
            file=str(self.files[index]),
            original_hw=(height, width),
            boxes=notes.boxes_N4[rows],
            labels=notes.labels_N[rows],
            iscrowd=notes.crowd_N[rows],
            areas=notes.areas_N[rows],
            ids=notes.ids_N[rows],
            difficult=notes.difficult_N[rows],
            num_rings=notes.num_rings(rows),
            rboxes=None if notes.rboxes_N5 is None else notes.rboxes_N5[rows],
            keypoints=None if notes.keypoints_NK3 is None else notes.keypoints_NK3[rows],
            source_image=str(self._sources[index]) or Path(self.files[index]).name,
            window=(x1, y1, x2, y2) if self._sources[index] else (0.0, 0.0, float(width), float(height)),
        )

    def as_coco(self) -> dict[str, list[dict[str, Any]]]:
        """The usable images and their boxes as the content of COCO instances JSON; see ``coco_content``."""
        truths = [self.ground_truth(index) for index in range(len(self))]
        return coco_content(truths, self.category_ids, self.classes)


def usable_images(content: Content, problems: Problems) -> NDArray[np.int64]:
    """Check the image files and settle what is wrong with a split.

    Args:
        content: What a reader found.
        problems: What it found wrong; what is wrong with image files is added.

    Returns:
        Indices of the images that the policy keeps.

    Raises:
        DataError: The policy refuses the data, or keeps no image.
    """
    files = [image.file for image in content.images]
    sizes = np.array([(image.height, image.width) for image in content.images], dtype=np.int32)
    problems.add_images(ImageStore(files, sizes).errors(decode=problems.policy == 'skip_image'), files)
    source = f'{content.source}, split {content.split}' if content.split else str(content.source)
    bad_I = problems.bad_images(len(files))
    boxes = sum(bool(bad_I[row.image]) for row in content.rows)
    problems.settle(source, f' {bad_I.sum()} of {len(files)} images, with {boxes} good boxes' if bad_I.any() else '')
    kept = np.flatnonzero(~bad_I)
    if not len(kept):
        text = f'{source}: no image is usable ({problems.counts()}); correct the files'
        raise DataError(text, problems.found)
    return kept
