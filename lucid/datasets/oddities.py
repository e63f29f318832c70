"""What training takes as it is, and what is yet seldom meant: doubled boxes, classes without boxes, forgotten files."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from lucid.datasets.problems import Problem
from lucid.datasets.statistics import SplitContent
from lucid.structures.boxes import pairwise_iou

SAME = 0.95
"""Overlap (IoU) from which on two boxes are taken for the same."""


def find_oddities(
    content: SplitContent, *, source: str, capacity: Sequence[int], word: str = 'annotation'
) -> list[Problem]:
    """Doubled boxes, boxes with two classes, images with more boxes than any capacity, unused or equally named classes.

    Args:
        content: Usable annotations.
        source: The file that the classes are in, for the place.
        capacity: Numbers of boxes that targets are padded to.
        word: What ``ids_N`` number: annotations, or lines of a label file.

    Returns:
        ``image`` is the row in ``content``; ``annotation`` the row of the later one of two boxes.
    """
    targets = content.targets()
    found = []
    order_N = np.argsort(targets.images_N, kind='stable')
    bounds_I1 = np.searchsorted(targets.images_N[order_N], np.arange(len(content.files_I) + 1))
    for image, (start, end) in enumerate(zip(bounds_I1[:-1].tolist(), bounds_I1[1:].tolist(), strict=True)):
        found += _doubled(targets, image, order_N[start:end].tolist(), word)
        if end - start > max(capacity):
            text = f'{end - start} boxes, more than the largest capacity of {max(capacity)}; raise capacity'
            found.append(Problem('crowded_image', content.files_I[image], text, image, -1))
    used = set(targets.labels_N.tolist())
    for label, name in enumerate(content.classes):
        if label not in used:
            found.append(Problem('unused_class', source, f'class {name!r} has no box', -1, -1))
    for name, number in Counter(content.classes).items():
        if number > 1:
            found.append(Problem('same_class_name', source, f'{number} classes are called {name!r}', -1, -1))
    return found


def _doubled(content: SplitContent, image: int, rows: list[int], word: str) -> list[Problem]:
    """Pairs of boxes of one image that lie on each other; each row is the later one at most once."""
    if len(rows) < 2:
        return []
    boxes_N4 = torch.from_numpy(content.boxes_N4[rows]).double()
    pairs = (pairwise_iou(boxes_N4, boxes_N4) >= SAME).triu(diagonal=1).nonzero().tolist()
    first = {late: early for early, late in reversed(pairs)}
    found = []
    for late, early in sorted(first.items()):
        labels = [int(content.labels_N[rows[row]]) for row in (early, late)]
        names = [content.classes[label] for label in labels]
        ids = [int(content.ids_N[rows[row]]) for row in (early, late)]
        box = tuple(content.boxes_N4[rows[late]].tolist())
        where = f'at {", ".join(f"{value:.1f}" for value in box)}'
        place = f'{word} {ids[1]} of image {content.files_I[image]}'
        if labels[0] == labels[1]:
            kind, text = 'duplicate_box', f'a second {names[1]} {where}, like {word} {ids[0]}'
        else:
            kind, text = 'two_classes', f'{names[1]} {where}, where {word} {ids[0]} says {names[0]}'
        found.append(Problem(kind, place, text, image, rows[late], box))
    return found


def unlisted_images(files: Iterable[str], listed: Iterable[str]) -> list[Problem]:
    """Image files beside those of a split that no split lists.

    Args:
        files: Images of the split; the folders that they lie in are looked at, not those below.
        listed: Images of all splits.

    Returns:
        In the order of their names.
    """
    known = {Path(file).resolve() for file in listed}
    folders = sorted({Path(file).parent for file in files})
    return [
        Problem('unlisted_image', str(path), 'an image file that the annotations do not list', -1, -1)
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in IMG_EXTENSIONS and path.resolve() not in known
    ]
