"""Pictures of a check: charts, sample images with their boxes, and what is wrong, marked."""

from collections.abc import Sequence
from pathlib import Path

import mmcv
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from lucid.apis.check_data_report import remove_pictures
from lucid.apis.check_data_types import DataCheck, SplitCheck, kinds
from lucid.datasets.fingerprints import Duplicate
from lucid.datasets.images import ImageError, read_image
from lucid.datasets.problems import Problem
from lucid.datasets.statistics import SplitContent
from lucid.visualization import DetectionPainter, grid
from lucid.visualization.data_figures import box_figure, class_figure
from lucid.visualization.figures import to_image
from lucid.visualization.marks import draw_message, draw_problem

Picture = tuple[str, np.ndarray]


def draw_pictures(check: DataCheck, out: Path, *, samples: int, console: Console) -> list[Path]:
    """Write PNG files into a folder, in the place of those of an earlier check.

    Args:
        check: What was found.
        out: An existing folder.
        samples: Most images on a sheet; 0 draws nothing.
        console: Where progress goes.

    Returns:
        The files.
    """
    remove_pictures(out)
    if samples < 1:
        return []
    jobs = [(check, split, samples) for split in [None, *check.splits]]
    written = []
    for job in track(jobs, 'drawing', console=console, transient=True, disable=not console.is_terminal):
        for name, picture in _pictures(*job):
            path = out / f'{name}.png'
            mmcv.imwrite(mmcv.rgb2bgr(picture), str(path))
            written.append(path)
    return written


def _pictures(check: DataCheck, split: SplitCheck | None, samples: int) -> list[Picture]:
    """Those of one split, or those of all together."""
    if split is None:
        charts = [('classes', to_image(figure))] if (figure := _classes(check)) else []
        pairs = [(f'duplicates_{a}_{b}', found) for (a, b), found in check.duplicates.items() if found]
        return charts + [(name, _duplicates(found, samples)) for name, found in pairs]
    pictures = []
    if split.content is not None and split.statistics is not None and len(split.content.files_I):
        pictures.append((f'boxes_{split.name}', to_image(_boxes(check, split, split.content))))
        pictures.append((f'samples_{split.name}', _samples(split, split.content, samples)))
    for kind, found in kinds(split.problems).items():
        if any(problem.image >= 0 for problem in found):
            pictures.append((f'problems_{split.name}_{kind}', _sheet(found, split.files, samples)))
    for kind, found in kinds(split.notes).items():
        if split.content is not None and any(note.box is not None for note in found):
            pictures.append((f'notes_{split.name}_{kind}', _sheet(found, split.content.files_I, samples)))
    return pictures


def _classes(check: DataCheck) -> Figure | None:
    measured = {split.name: split.statistics for split in check.splits if split.statistics is not None}
    if not measured:
        return None
    names = max(([figures.name for figures in one.classes] for one in measured.values()), key=len)
    boxes = {
        name: [one.classes[label].boxes if label < len(one.classes) else 0 for label in range(len(names))]
        for name, one in measured.items()
    }
    return class_figure(names, boxes)


def _boxes(check: DataCheck, split: SplitCheck, content: SplitContent) -> Figure:
    assert split.statistics is not None
    targets = content.targets()
    sizes_N2 = targets.sizes_I2[targets.images_N][:, ::-1]
    boxes_N4 = targets.boxes_N4.astype(np.float64)
    return box_figure(
        targets.input_sides(split.statistics.image_size),
        (boxes_N4[:, :2] + boxes_N4[:, 2:]) / 2 / sizes_N2,
        np.bincount(targets.images_N, minlength=len(targets.files_I)),
        title=f'{split.name}: {split.statistics.boxes} boxes in {split.statistics.images} images',
        image_size=split.statistics.image_size,
        capacity=check.capacity,
    )


def _samples(split: SplitCheck, content: SplitContent, samples: int) -> np.ndarray:
    """Images at even distances, so that a second check shows the same, with all targets that were loaded."""
    assert split.read is not None, 'a split with content can be read'
    number = len(content.files_I)
    shown = np.unique(np.linspace(0, number - 1, min(samples, number)).round().astype(int)).tolist()
    read = [split.read(index) for index in shown]
    captions = [f'{Path(sample.file).name} ({len(sample.labels)})' for sample in read]
    return DetectionPainter().draw_batch(
        [sample.image for sample in read], [vars(sample) for sample in read], captions, content.classes
    )


def _sheet(problems: Sequence[Problem], files: Sequence[str], samples: int) -> np.ndarray:
    shown = [problem for problem in problems if problem.image >= 0][:samples]
    return grid([_panel(problem, files[problem.image]) for problem in shown])


def _panel(problem: Problem, file: str) -> np.ndarray:
    name = Path(file).name
    # The picture is named above it: of the place there remains the annotation, or the line.
    where = problem.place.partition(' of image ')[0].rpartition('/')[2]
    caption = list(dict.fromkeys([name, where, f'{problem.kind}: {problem.text}']))
    try:
        return draw_problem(read_image(file), problem.box, caption)
    except ImageError:
        return draw_message([problem.text], [name, problem.kind])


def _duplicates(found: Sequence[Duplicate], samples: int) -> np.ndarray:
    pairs = []
    for one in found[: max(1, samples // 2)]:
        texts = [Path(one.other).name, f'{one.kind} {one.correlation:g}: {Path(one.file).name}']
        panels = [
            draw_problem(read_image(file), None, [text], side=320)
            for file, text in zip((one.other, one.file), texts, strict=True)
        ]
        pairs.append(grid(panels, columns=2, gap=2))
    return grid(pairs)
