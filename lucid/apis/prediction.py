"""Detections of image files: drawn, written as JSON, and summed up in a table."""

import glob
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import mmcv
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torchvision.datasets.folder import IMG_EXTENSIONS

from lucid.apis.inference import TrainedDetector, inference_detector
from lucid.apis.outputs import folder_problem
from lucid.datasets import ImageError, read_image
from lucid.structures.detections import Prediction
from lucid.structures.points import limbs_of
from lucid.structures.rotated import exact_corners
from lucid.visualization import draw_objects

ROWS = 50
"""Images that the table lists."""


class PredictedFiles(NamedTuple):
    """What became of a list of image files.

    records:    per image that was read: file, picture, width, height, detections: class, label, score, box (xyxy), and
                what else the detector predicts: mask (run lengths), rotated_box (cx, cy, w, h, theta in radians) and
                its four corners, or keypoints (x, y each); pixels of the image
    unreadable: what is wrong with the other files, each message with the file's name
    json_file:  where ``records`` are written
    """

    records: list[dict[str, Any]]
    unreadable: list[str]
    json_file: Path


def find_image_files(inputs: Sequence[str]) -> list[Path]:
    """Image files that files, folders and glob patterns name, each once, in the order given; folders are not descended.

    Args:
        inputs: What a user typed; ``**`` in a pattern stands for any depth of folders.

    Returns:
        Paths that exist; what a pattern or a folder adds is sorted.

    Raises:
        ValueError: One of ``inputs`` leads to no file.
    """
    files: list[Path] = []
    for text in inputs:
        path = Path(text).expanduser()
        if path.is_file():
            found = [path]  # before patterns: a file may have brackets in its name
        elif path.is_dir():
            found = sorted(file for file in path.iterdir() if file.suffix.lower() in IMG_EXTENSIONS)
        else:
            matches = sorted(map(Path, glob.glob(str(path), recursive=True)))
            found = [file for file in matches if file.is_file() and file.suffix.lower() in IMG_EXTENSIONS]
        if not found:
            what = f"the folder holds no image; for folders below it use '{path}/**/*'" if path.is_dir() else 'no file'
            raise ValueError(f'{text}: {what}; give image files, a folder of them, or a quoted pattern')
        files += found
    return list(dict.fromkeys(files))


def predict_files(
    detector: TrainedDetector,
    files: Sequence[Path],
    out: str | Path,
    *,
    score_threshold: float = 0.25,
    batch_size: int = 1,
    console: Console | None = None,
) -> PredictedFiles:
    """Detect objects in image files; write drawn pictures and ``predictions.json`` into a folder, and print a table.

    A file that cannot be read is skipped and named. A picture keeps the name of its image, with ``.png`` added
    where no picture can be written by that name; where two images have the same name, the second one's gets a number.

    Args:
        detector: What ``init_detector`` returned.
        files: Image files.
        out: Folder for the results, made where it does not exist.
        score_threshold: Detections below it are left out.
        batch_size: Images per forward pass.
        console: Where progress and table go; None is the standard output.

    Returns:
        What was found and what could not be read.

    Raises:
        ValueError: A picture would overwrite one of ``files``, or ``out`` can be no folder.
    """
    out, console = Path(out), console or Console()
    if problem := folder_problem(out):
        raise ValueError(f'results cannot go to {out}: {problem}')
    pictures = _pictures(files, out)
    out.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    unreadable: list[str] = []
    starts = range(0, len(files), batch_size)
    for start in track(starts, 'detecting', console=console, transient=True, disable=not console.is_terminal):
        images: dict[Path, np.ndarray] = {}
        for file in files[start : start + batch_size]:
            try:
                images[file] = read_image(file)
            except ImageError as error:
                unreadable.append(str(error))
                console.print(f'skipped {error}', style='yellow', highlight=False, markup=False, soft_wrap=True)
        predictions = inference_detector(
            detector, list(images.values()), batch_size=batch_size, score_threshold=score_threshold
        )
        for (file, image), prediction in zip(images.items(), predictions, strict=True):
            objects = {**prediction, 'limbs': limbs_of(detector.keypoint_names)}
            picture = draw_objects(image, objects, classes=detector.classes)
            mmcv.imwrite(mmcv.rgb2bgr(picture), str(pictures[file]))
            records.append(_record(file, pictures[file], image.shape, prediction, detector.classes))
    json_file = out / 'predictions.json'
    _write_json(records, json_file)
    _print(records, unreadable, json_file, console)
    return PredictedFiles(records, unreadable, json_file)


def _pictures(files: Sequence[Path], out: Path) -> dict[Path, Path]:
    """Where each file's picture goes; decided before anything is written."""
    pictures: dict[Path, Path] = {}
    taken: set[str] = set()
    for file in files:
        # OpenCV reads more formats than it writes, and goes by the name when it writes.
        stem, suffix = (file.stem, file.suffix) if cv2.haveImageWriter(file.name) else (file.name, '.png')
        name, number = f'{stem}{suffix}', 0
        while name.lower() in taken:
            number += 1
            name = f'{stem}_{number}{suffix}'
        taken.add(name.lower())
        pictures[file] = out / name
    sources = {file.resolve() for file in files}
    if overwritten := [picture for picture in pictures.values() if picture.resolve() in sources]:
        raise ValueError(
            f'the picture {overwritten[0]} would overwrite an image; choose another folder for the results'
        )
    return pictures


def _record(
    file: Path, picture: Path, shape: Sequence[int], prediction: Prediction, classes: Sequence[str]
) -> dict[str, Any]:
    columns = (prediction['labels'].tolist(), prediction['scores'].tolist(), prediction['boxes'].tolist())
    rows = zip(*columns, _shapes(prediction), strict=True)
    return {
        'file': str(file),
        'picture': str(picture),
        'width': shape[1],
        'height': shape[0],
        'detections': [
            {
                'class': classes[label],
                'label': label,
                'score': round(score, 4),
                'box': _rounded(box),
                **shape,
            }
            for label, score, box, shape in rows
        ],
    }


def _shapes(prediction: Prediction) -> list[dict[str, Any]]:
    """What each detection has beside its box."""
    shapes: list[dict[str, Any]] = [{} for _ in prediction['scores']]
    if 'masks' in prediction:
        for shape, mask in zip(shapes, prediction['masks'], strict=True):
            shape['mask'] = mask
    if 'rboxes' in prediction:
        rboxes = prediction['rboxes'].numpy()
        for shape, (*sides, theta), ring in zip(shapes, rboxes.tolist(), exact_corners(rboxes).tolist(), strict=True):
            shape |= {
                'rotated_box': [*_rounded(sides), round(theta, 4)],
                'corners': [_rounded(point) for point in ring],
            }
    if 'keypoints' in prediction:
        for shape, points in zip(shapes, prediction['keypoints'].tolist(), strict=True):
            shape['keypoints'] = [_rounded(point) for point in points]
    return shapes


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]


def _write_json(records: list[dict[str, Any]], path: Path) -> None:
    part = path.with_name(f'{path.name}.part')
    part.write_text(json.dumps(records, indent=1, ensure_ascii=False), encoding='utf-8')
    os.replace(part, path)


def _print(records: list[dict[str, Any]], unreadable: list[str], json_file: Path, console: Console) -> None:
    table = Table('image', 'pixels', 'objects', 'classes', 'best score')
    for record in records[:ROWS]:
        found = record['detections']
        counts = Counter(detection['class'] for detection in found)
        best = max((detection['score'] for detection in found), default=None)
        table.add_row(
            Path(record['file']).name,
            f'{record["width"]}x{record["height"]}',
            str(len(found)),
            ', '.join(f'{count} {name}' for name, count in counts.most_common()),
            '-' if best is None else f'{best:.2f}',
        )
    console.print(table, markup=False)
    if len(records) > ROWS:
        console.print(f'... and {len(records) - ROWS} more images')
    total = sum(len(record['detections']) for record in records)
    lines = [f'{total} objects in {len(records)} images', f'pictures: {json_file.parent}', f'JSON: {json_file}']
    if unreadable:
        lines.append(f'{len(unreadable)} of {len(records) + len(unreadable)} files could not be read:')
        lines += [f'  {message}' for message in unreadable]
    console.print('\n'.join(lines), markup=False, highlight=False, soft_wrap=True)
