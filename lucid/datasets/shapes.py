"""A data set that makes itself: image files of rotated shapes with COCO JSON."""

import json
import shutil
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import mmcv
import numpy as np
from mmengine.dist import is_main_process
from rich.progress import track

from lucid.datasets.coco_file import read_coco
from lucid.datasets.detection import DetectionDataset
from lucid.datasets.problems import Problems
from lucid.datasets.shape_painting import paint_scene
from lucid.datasets.shape_scenes import CLASSES, DIFFICULTIES, KEYPOINTS, Shape, make_scene
from lucid.datasets.transforms import Transform, height_width
from lucid.registry import DATASETS
from lucid.structures.polygons import ring_area

GENERATOR_VERSION = 1
"""Raised with every change of what is generated, so that folders of an older one are not taken for new."""

ANNOTATIONS = '_annotations.coco.json'
PARAMETERS = '_parameters.json'
LONG_RUN = 200
"""Images from which on a progress bar is shown."""


@DATASETS.register_module()
class ShapesDataset(DetectionDataset):
    """One to eight rotated shapes per image on a softly textured background, written as files on first use.

    Folder ``data_root/split`` gets JPEG images of quality 85 and ``_annotations.coco.json`` with boxes, polygons,
    rotated boxes (``obb``: four corners) and keypoints, all of the whole shape, hidden parts included. The same
    parameters give the same annotations on every machine. The folder appears complete or not at all; one that is there
    is used if it was made with the same parameters, and never changed.

    Args:
        data_root: Folder in which the split's folder is made.
        split: Name of the folder; another name gives other scenes.
        num_images: Images to make.
        image_size: Side, or height and width, of the network input, for transforms whose config does not state it.
        scene_size: Side of the square images in pixels; None takes the longer side of ``image_size``.
        scene_seed: What the scenes depend on.
        difficulty: ``'easy'``: sides of 8 to 50 % of the image's, strong contrast; ``'hard'``: 4 to 16 %, low contrast.
        pipeline: See ``CocoDataset``.
        targets: See ``CocoDataset``.
        seed: See ``CocoDataset``; the scenes do not depend on it.
        on_bad: See ``CocoDataset``.
        cache_mb: See ``CocoDataset``.

    Raises:
        ValueError: The folder holds something else.
    """

    def __init__(
        self,
        data_root: str | Path,
        *,
        split: str,
        num_images: int,
        image_size: int | Sequence[int],
        scene_size: int | None = None,
        scene_seed: int = 0,
        difficulty: str = 'easy',
        pipeline: Sequence[Mapping[str, Any] | Transform] = (),
        targets: Sequence[str] = ('boxes',),
        seed: int = 0,
        on_bad: str = 'error',
        cache_mb: int = 0,
    ) -> None:
        root = Path(data_root).expanduser()
        write_shapes(
            root / split,
            num_images=num_images,
            scene_size=scene_size or max(height_width(image_size)),
            scene_seed=scene_seed,
            difficulty=difficulty,
        )
        problems = Problems(on_bad)
        content = read_coco(
            root, split, problems=problems, targets=targets, ann_file=f'{split}/{ANNOTATIONS}', image_dir=split
        )
        super().__init__(
            content, problems, image_size=image_size, pipeline=pipeline, targets=targets, seed=seed, cache_mb=cache_mb
        )


def write_shapes(folder: Path, *, num_images: int, scene_size: int, scene_seed: int, difficulty: str) -> None:
    """Make the folder of one split, unless it is there already; of several processes at once, one provides it.

    Args:
        folder: Appears complete or not at all; its name goes into the scenes.
        num_images: Images to make.
        scene_size: Side of the square images in pixels.
        scene_seed: What the scenes depend on.
        difficulty: A key of ``DIFFICULTIES``.

    Raises:
        ValueError: A parameter is out of range, or the folder holds something else.
    """
    if difficulty not in DIFFICULTIES:
        raise ValueError(f'difficulty={difficulty!r} is unknown; choose one of {", ".join(DIFFICULTIES)}')
    if num_images < 1 or scene_size < 32 or scene_seed < 0:
        raise ValueError(
            f'num_images={num_images}, scene_size={scene_size}, scene_seed={scene_seed}; '
            'choose at least 1 image, 32 pixels and seed 0'
        )
    parameters = {
        'generator_version': GENERATOR_VERSION,
        'num_images': num_images,
        'scene_size': scene_size,
        'scene_seed': scene_seed,
        'difficulty': difficulty,
    }
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f'.{folder.name}-', dir=folder.parent))
        try:
            _fill(draft, folder.name, parameters)
            draft.chmod(0o755)
            try:
                draft.rename(folder)
            except OSError:
                # Another process was first: its folder stands, and is checked below like any other.
                if not folder.exists():
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    _check_parameters(folder, parameters)


def _check_parameters(folder: Path, parameters: dict[str, Any]) -> None:
    try:
        present = json.loads((folder / PARAMETERS).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f'{folder} was not made by ShapesDataset; choose another data_root or split') from error
    differing = {key: present.get(key) for key, value in parameters.items() if present.get(key) != value}
    if differing:
        raise ValueError(
            f'{folder} was made with {differing}, wanted is { ({key: parameters[key] for key in differing}) }; '
            'choose another data_root, or delete that folder'
        )


def _fill(folder: Path, split: str, parameters: dict[str, Any]) -> None:
    """Write images, annotations and parameters into an empty folder."""
    difficulty = DIFFICULTIES[parameters['difficulty']]
    size, num_images = parameters['scene_size'], parameters['num_images']
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    quiet = num_images < LONG_RUN or not is_main_process()
    for index in track(range(num_images), f'making {num_images} images of {split}', disable=quiet, transient=True):
        # Two streams: how many numbers the painter draws never moves an object.
        entropy = [parameters['scene_seed'], zlib.crc32(split.encode()), index]
        scene_rng, paint_rng = (np.random.Generator(np.random.PCG64([*entropy, stream])) for stream in (0, 1))
        shapes = make_scene(scene_rng, size, difficulty)
        name = f'{index:06d}.jpg'
        pixels = paint_scene(paint_rng, shapes, size, difficulty)
        mmcv.imwrite(pixels[..., ::-1], str(folder / name), [cv2.IMWRITE_JPEG_QUALITY, 85])
        images.append({'id': index + 1, 'file_name': name, 'width': size, 'height': size})
        annotations += [
            _annotation(shape, index + 1, len(annotations) + order) for order, shape in enumerate(shapes, 1)
        ]
    categories = [
        {'id': label, 'name': name, 'keypoints': list(KEYPOINTS), 'skeleton': [[1, 2], [2, 3], [3, 4], [4, 1]]}
        for label, name in enumerate(CLASSES, 1)
    ]
    content = {'info': parameters, 'categories': categories, 'images': images, 'annotations': annotations}
    (folder / ANNOTATIONS).write_text(json.dumps(content, separators=(',', ':')))
    (folder / PARAMETERS).write_text(json.dumps(parameters, indent=2))


def _annotation(shape: Shape, image_id: int, annotation_id: int) -> dict[str, Any]:
    x1, y1 = shape.outline.min(axis=0).tolist()
    x2, y2 = shape.outline.max(axis=0).tolist()
    return {
        'id': annotation_id,
        'image_id': image_id,
        'category_id': shape.label + 1,
        'bbox': [x1, y1, round(x2 - x1, 2), round(y2 - y1, 2)],
        'area': round(ring_area(shape.outline), 2),
        'iscrowd': 0,
        'segmentation': [shape.outline.ravel().tolist()],
        'obb': shape.corners.ravel().tolist(),
        'num_keypoints': len(shape.keypoints),
        'keypoints': shape.keypoints.ravel().tolist(),
    }
