"""Looking at a data set before training does: what is wrong with it, what is odd, and what it holds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.registry import init_default_scope
from rich.console import Console
from rich.progress import track

from lucid.apis.check_data_pictures import draw_pictures
from lucid.apis.check_data_report import write_report
from lucid.apis.check_data_sources import Source, check_outputs, check_outside, find_sources
from lucid.apis.check_data_tables import print_check
from lucid.apis.check_data_types import DataCheck, SplitCheck
from lucid.apis.data import build_dataset, check_agreement
from lucid.apis.validate import ConfigError
from lucid.datasets.detection import DetectionDataset
from lucid.datasets.fingerprints import Fingerprint, duplicates, fingerprints
from lucid.datasets.kind_statistics import kind_statistics
from lucid.datasets.oddities import find_oddities, unlisted_images
from lucid.datasets.problems import DataError, Problem
from lucid.datasets.statistics import SplitContent, split_statistics
from lucid.datasets.yolo_file import label_of
from lucid.registry import SCOPE

FILE_PROBLEMS = ('missing_image', 'empty_file', 'broken_image', 'wrong_size')


class _Read(NamedTuple):
    """A split that was read; ``dataset`` is None where nothing in it is usable."""

    source: Source
    dataset: DetectionDataset | None
    problems: list[Problem]


def check_data(
    target: str | Path,
    out: str | Path | None = None,
    *,
    json_file: str | Path | None = None,
    image_size: int | Sequence[int] | None = None,
    targets: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    samples: int = 16,
    console: Console | None = None,
) -> DataCheck:
    """Find what is wrong or odd in the train, val and test data, measure it, print tables and leave pictures.

    Every image is decoded once. The data set is never written to.

    Args:
        target: A config file, or the folder of a data set.
        out: Folder for pictures and ``report.json``, made where it does not exist; None takes
            ``work_dirs/check_data/NAME``.
        json_file: Where to write the report too.
        image_size: Side, or height and width, of the network input; None takes the config's, else 640.
        targets: Kinds to read of a folder, such as masks; None reads its boxes. A config states its own.
        options: What ``--cfg-options`` gives.
        samples: Most images on a sheet; 0 draws no pictures.
        console: Where tables and progress go; None is the standard output.

    Returns:
        Everything that was found.

    Raises:
        ConfigError: The target cannot be checked, or the results would lie in the data set.
    """
    console = console or Console()
    init_default_scope(SCOPE)
    sources = find_sources(target, image_size=image_size, targets=targets, options=options)
    out = Path('work_dirs', 'check_data', sources.name) if out is None else Path(out).expanduser()
    json_file = None if json_file is None else Path(json_file).expanduser()
    check_outputs(sources, out, json_file)

    reads = [read for source in sources.splits if (read := _read(source))]
    if all(problem.kind == 'unreadable_split' for read in reads for problem in read.problems) and not any(
        read.dataset for read in reads
    ):
        raise ConfigError('\n'.join(dict.fromkeys(problem.text for read in reads for problem in read.problems)))
    datasets = {read.source.split: read.dataset for read in reads if read.dataset is not None}
    folders = sorted({folder for dataset in datasets.values() for folder in _folders(dataset)})
    for place in filter(None, (out, json_file)):
        check_outside(place, folders)

    prints = {split: _fingerprints(split, dataset, console) for split, dataset in datasets.items()}
    listed = [file for dataset in datasets.values() for file in dataset.files.tolist()]
    checks = [_check(read, prints.get(read.source.split), listed, sources.capacity) for read in reads]
    files = {split: (dataset.files.tolist(), prints[split]) for split, dataset in datasets.items()}
    check = DataCheck(str(target), out, sources.capacity, checks, duplicates(files), _mismatches(datasets))

    out.mkdir(parents=True, exist_ok=True)
    pictures = draw_pictures(check, out, samples=samples, console=console)
    write_report(check, pictures, json_file)
    print_check(check, console)
    return check


def _read(source: Source) -> _Read | None:
    """Read a split; None where it is optional and not there."""
    place = str(source.root)
    try:
        dataset = build_dataset(source.dataset)
    except ConfigError as error:
        if isinstance(error.__cause__, DataError):
            whole = Problem('unusable_split', place, str(error), -1, -1)
            return _Read(source, None, [*error.__cause__.problems, whole])
        if source.optional:
            return None
        return _Read(source, None, [Problem('unreadable_split', place, str(error), -1, -1)])
    if not isinstance(dataset, DetectionDataset):
        raise ConfigError(
            f'{type(dataset).__name__} of {source.split} is no DetectionDataset, so its data cannot be checked; '
            'check its files by a data set of lucid'
        )
    return _Read(source, dataset, list(dataset.findings))


def _folders(dataset: DetectionDataset) -> set[Path]:
    """Where the files of a data set lie, and the one that leads to them."""
    files = [Path(file) for file in dataset.files.tolist()]
    if dataset.layout == 'yolo':
        files += [label_of(file, dataset.source.parent) for file in files]
    return {dataset.source, *(file.parent for file in files)}


def _fingerprints(split: str, dataset: DetectionDataset, console: Console) -> list[Fingerprint]:
    files = dataset.files.tolist()
    sizes = [dataset.ground_truth(index).original_hw for index in range(len(files))]
    return list(
        track(
            fingerprints(files, sizes),
            f'decoding {len(files)} images of {split}',
            total=len(files),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
    )


def _check(
    read: _Read, prints: Sequence[Fingerprint] | None, listed: Sequence[str], capacity: Sequence[int]
) -> SplitCheck:
    """Join what the reader found with what decoding found, and measure what is usable."""
    dataset, problems = read.dataset, list(read.problems)
    if dataset is None or prints is None:
        return SplitCheck(
            read.source.split, str(read.source.root), read.source.policy, [], [], problems, [], None, None
        )
    files = dataset.files.tolist()
    known = {problem.image for problem in problems if problem.annotation < 0 and problem.kind in FILE_PROBLEMS}
    for index, one in enumerate(prints):
        if one.error is not None and index not in known:
            text = str(one.error).removeprefix(f'{files[index]}: ')
            problems.append(Problem(one.error.kind, files[index], text, index, -1))
    bad = {problem.image for problem in problems if problem.annotation < 0}
    usable = [index for index in range(len(files)) if index not in bad]
    truths = [dataset.ground_truth(index) for index in range(len(files))]
    content = SplitContent.of(dataset.classes, [truths[index] for index in usable])
    word = 'annotation' if dataset.layout == 'coco' else 'line'
    notes = find_oddities(content, source=str(dataset.source), capacity=capacity, word=word)
    notes += unlisted_images(files, listed)
    statistics = split_statistics(content, image_size=dataset.image_size, capacity=capacity)
    return SplitCheck(
        read.source.split,
        str(dataset.source),
        read.source.policy,
        files,
        [len(truth.labels) for truth in truths],
        problems,
        notes,
        content,
        statistics,
        kind_statistics([truths[index] for index in usable], dataset.keypoint_names),
        lambda row: dataset.read(usable[row]),
    )


def _mismatches(datasets: Mapping[str, DetectionDataset]) -> list[str]:
    """How splits number their classes otherwise than the first one, which training refuses whatever its policy."""
    found = []
    first, *others = datasets.values() if datasets else (None,)
    for other in others:
        try:
            assert first is not None
            check_agreement(first, other, first.classes)
        except ConfigError as error:
            found.append(str(error))
    return found
