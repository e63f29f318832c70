"""From what processes gathered to figures: what all metrics of detections do with their results."""

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mmengine.logging import print_log

from lucid.evaluation.average_precision import SUMMARY, AveragePrecision, average_precision
from lucid.evaluation.class_table import class_table
from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.kinds import BOXES, MASKS, Kind
from lucid.evaluation.report import make_report
from lucid.evaluation.result_file import Names, write_results
from lucid.evaluation.results import ImageResult, result_rows
from lucid.structures.detections import PATHS
from lucid.structures.evaluation import EvaluationReport

Images = Mapping[int, ImageResult]
Run = Callable[..., Iterable[Any]]


class Evaluation(NamedTuple):
    """One path, compared in one way; ``images`` are its detections by image id."""

    path: str
    kind: Kind
    images: Images
    truth: GroundTruth
    figures: AveragePrecision
    sigmas: np.ndarray | None = None

    @property
    def prefix(self) -> str:
        """What its keys begin with; those of boxes by the end-to-end path with nothing."""
        return prefix_of(self.path, self.kind)


class Comparison(NamedTuple):
    """What an evaluation is made of.

    path:   how the detections came
    kind:   what is compared
    images: detections by image id
    truth:  the annotations
    limits: detections per class and image that AP and AR count, and those that ``recall50`` counts
    sigmas: (J,), of keypoints
    """

    path: str
    kind: Kind
    images: Images
    truth: GroundTruth
    limits: tuple[int, int]
    sigmas: np.ndarray | None = None


def figures_of(comparison: Comparison) -> AveragePrecision:
    """Compare the detections of one path in one way; nothing but the figures comes of it, so that any process can."""
    with uncollected():
        return _figures(comparison)  # a function, so that its rows are gone before Python looks for cycles again


def _figures(comparison: Comparison) -> AveragePrecision:
    _, kind, images, truth, limits, sigmas = comparison
    rows = result_rows(images, truth, kind)
    return average_precision(rows, sorted(images), truth, limits=limits, kind=kind, sigmas=sigmas)


@contextmanager
def uncollected() -> Iterator[None]:
    """Make no search for cycles of objects meanwhile.

    Rows of detections are many small objects at once, in no cycle. Their number lets Python look through all objects of
    the process several times, which takes longer than the evaluation.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def evaluations_of(comparisons: Sequence[Comparison], *, run: Run = map) -> list[Evaluation]:
    """The figures of comparisons, and what they rest on.

    Args:
        comparisons: Of all paths.
        run: What calls a function for each of them, in order, as the builtin ``map`` does.

    Returns:
        One per comparison.
    """
    return [
        Evaluation(one.path, one.kind, one.images, one.truth, figures, one.sigmas)
        for one, figures in zip(comparisons, run(figures_of, comparisons), strict=True)
    ]


def images_by_path(results: Sequence[tuple], paths: Sequence[str]) -> dict[str, dict[int, ImageResult]]:
    """Detections by path and image id; an image that came twice (padding of the sampler) counts once.

    Args:
        results: Of every image, of all ranks, its ``ImageResult`` by each path.
        paths: In the order of the results.

    Returns:
        Rebuilt, because mmengine's device move turns a NamedTuple into a plain tuple.
    """
    return {path: {row[i][0]: ImageResult(*row[i]) for row in reversed(results)} for i, path in enumerate(paths)}


def check_images(images: Images, truth: GroundTruth, *, first: bool) -> None:
    """Raise ``ValueError`` for detections that do not fit the annotation file; say what is left out.

    Args:
        images: Detections by image id.
        truth: The annotations.
        first: Whether they are those of the first path.
    """
    if unknown := sorted(images.keys() - truth.coco.imgs.keys()):
        raise ValueError(f'detections of image ids {unknown[:5]}, which ann_file does not list; correct ann_file')
    top = max((int(result.labels.max()) for result in images.values() if len(result.labels)), default=0)
    if top >= len(truth.classes) > 0:
        raise ValueError(f'a detection has label {top}, ann_file has {len(truth.classes)} classes; correct ann_file')
    for image_id, result in images.items():
        image = truth.coco.imgs[image_id]
        if result.masks:
            sizes = {tuple(mask['size']) for mask in result.masks}
            if sizes != {(image['height'], image['width'])}:
                raise ValueError(
                    f'masks of image {image_id} are of (height, width) {sorted(sizes)}, ann_file says '
                    f'{image["height"], image["width"]}; masks must have the size of the original image'
                )
        found = truth.num_keypoints if result.keypoints is None else result.keypoints.shape[1]
        if found != truth.num_keypoints:
            raise ValueError(
                f'detections have {found} keypoints, objects of ann_file {truth.num_keypoints}; '
                'evaluate on data with the keypoints that the model was trained for'
            )
    if dropped := sum(result.num_dropped for result in images.values()):
        print_log(f'{dropped} detections are not finite and were dropped', 'current', logging.WARNING)
    if first and len(images) < len(truth.coco.imgs):
        text = f'{len(images)} of the {len(truth.coco.imgs)} images of the annotation file are evaluated'
        print_log(text, 'current', logging.WARNING)


def write_images(images: Images, truth: GroundTruth, kind: Kind, outfile: str | Path, *, named: bool) -> None:
    """Write detections as COCO results JSON.

    Args:
        images: By image id.
        truth: For the ids of the categories.
        kind: What is compared, and written beside the boxes.
        outfile: The file.
        named: Write file and class beside the ids, because no COCO JSON of the user's says what they stand for.
    """
    names = None
    if named:
        files = {image_id: result.file for image_id, result in images.items()}
        names = Names(files, dict(zip(truth.category_ids, truth.classes, strict=True)))
    rows = result_rows(images, truth, kind)
    write_results(rows, Path(outfile), names)
    print_log(f'{len(rows)} detections of {len(images)} images written to {outfile}', 'current')


def summary_keys(paths: Sequence[str], kinds: Sequence[Kind], truth: GroundTruth) -> list[str]:
    """The keys of ``summarise``, known before there is anything to evaluate."""
    figures = {kind: (*SUMMARY, *(('IoU',) if kind.field == MASKS.field else ())) for kind in kinds}
    prefixes = [prefix_of(paths[0], kind) for kind in kinds]
    return [
        *(f'{prefix_of(path, kind)}{key}' for path in paths for kind in kinds for key in figures[kind]),
        *(f'{prefix}{key}/{name}' for prefix in prefixes for key in ('AP', 'AP50') for name in class_names(truth)),
    ]


def summarise(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """Log the table, and return its figures by key.

    What was compared in one way only stands side by side by path; else each path has a table, with its ways beside
    each other.

    Args:
        evaluations: The first is that of the first path.

    Returns:
        Figures over all classes of each, and figures per class of each that is of the first path.
    """
    first, names = evaluations[0], class_names(evaluations[0].truth)
    summary = {f'{one.prefix}{key}': value for one in evaluations for key, value in one.figures.summary().items()}
    by_path: dict[str, list[Evaluation]] = {}
    for one in evaluations:
        by_path.setdefault(one.path, []).append(one)
    if len(by_path) == len(evaluations):
        print_log(_table({one.prefix: one for one in evaluations}, names), 'current')
    else:
        for path, group in by_path.items():
            print_log(f'path {path}{_table({one.kind.prefix: one for one in group}, names)}', 'current')
    for one in by_path[first.path]:
        for key, values_K in (('AP', one.figures.ap_K), ('AP50', one.figures.ap50_K)):
            figures_by_name = zip(names, values_K, strict=True)
            summary |= {f'{one.prefix}{key}/{name}': float(value) for name, value in figures_by_name}
    return summary


def _table(group: Mapping[str, Evaluation], names: Sequence[str]) -> str:
    """Evaluations beside each other, by the prefix of their headings."""
    first = next(iter(group.values()))
    # Where keypoints are compared too, not all boxes count for them.
    counted = next((one.figures for one in group.values() if one.kind == BOXES), first.figures)
    columns = {'images': counted.images_K, 'boxes': counted.boxes_K}
    summary: dict[str, float] = {}
    for prefix, one in group.items():
        figures = one.figures
        columns |= {f'{prefix}AP': figures.ap_K, f'{prefix}AP50': figures.ap50_K}
        columns |= {f'{prefix}AP75': figures.ap75_K, f'{prefix}AR': figures.ar_K}
        summary |= {f'{prefix}{key}': value for key, value in figures.summary().items()}
    return class_table(names, columns, summary, num_images=len(first.images))


def reports_of(
    evaluations: Sequence[Evaluation], kind: Kind, *, num_worst: int, confusion_rule: tuple[float, float]
) -> list[EvaluationReport]:
    """What the evaluations of one kind tell beyond their figures, path by path.

    Args:
        evaluations: Of all kinds.
        kind: The one to report.
        num_worst: Images listed at most.
        confusion_rule: Lowest score of a detection in the confusion matrix, and lowest overlap of a match.

    Returns:
        A report per path, in their order; none before an evaluation, and on other ranks than the first.
    """
    return [
        make_report(
            one.images,
            one.figures,
            one.truth,
            path=one.path,
            names=tuple(class_names(one.truth)),
            num_worst=num_worst,
            confusion_rule=confusion_rule,
            kind=kind,
            sigmas=one.sigmas,
        )
        for one in evaluations
        if one.kind == kind
    ]


def class_names(truth: GroundTruth) -> list[str]:
    """Class names, with the category id where two classes share a name: figures are kept by name."""
    shared = {name for name, count in Counter(truth.classes).items() if count > 1}
    pairs = zip(truth.classes, truth.category_ids, strict=True)
    return [f'{name} (id {category})' if name in shared else name for name, category in pairs]


def prefix_of(path: str, kind: Kind) -> str:
    """What the keys of a path begin with, then those of a kind; of the end-to-end path and of boxes nothing."""
    return f'{"" if path == PATHS[0] else f"{path}/"}{kind.prefix}'


def chief_key(path: str, kind: Kind) -> str:
    """The key of the figure that says best how good a detector is."""
    return f'{prefix_of(path, kind)}mAP'


def is_content(ann_file: Any) -> bool:
    """Whether annotations were handed over, not read from a file of the user's."""
    return isinstance(ann_file, Mapping)
