"""The tables of a check on a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from lucid.apis.check_data_report import NAME
from lucid.apis.check_data_types import DataCheck, SplitCheck, kinds
from lucid.datasets.kind_statistics import KindStatistics
from lucid.datasets.problems import POLICIES, Problem
from lucid.datasets.statistics import TINY, SplitStatistics

PLACES = 10
"""Places that are named for each kind."""
CLASSES = 60
"""Classes that the table lists."""


def print_check(check: DataCheck, console: Console) -> None:
    """Print what the splits hold, then what is odd, and last what is wrong.

    Args:
        check: What was found.
        console: Where to.
    """
    measured = [split for split in check.splits if split.statistics is not None]
    if measured:
        _print_table(_figures(measured, check.capacity), console)
        for split in measured:
            if split.statistics is not None:
                _print_table(_classes(split.name, split.statistics), console)
            if split.kinds is not None and split.kinds.keypoints is not None:
                _print_table(_keypoints(split.name, split.kinds), console)
    if check.num_notes:
        _print_table(_notes(check), console)
        for split in check.splits:
            _print_places(split.name, split.notes, console)
        for (first, second), found in check.duplicates.items():
            texts = [f'{one.file} is {_alike(one.kind, one.correlation)} {one.other}' for one in found]
            _print_list(f'duplicates in {_pair(first, second)}', texts, console)
    if check.num_problems:
        _print_table(_problems(check), console)
        for split in check.splits:
            _print_places(split.name, split.problems, console)
        _print_list('splits that do not agree, which training refuses', check.mismatches, console)
    counts = (check.num_problems, 'problem'), (check.num_notes, 'note')
    summary = ', '.join(f'{number} {word}{"" if number == 1 else "s"}' for number, word in counts)
    _say(f'{summary}; pictures and {NAME}: {check.out}', console)


def _figures(splits: Sequence[SplitCheck], capacity: Sequence[int]) -> Table:
    columns = [
        _column(split.statistics, capacity) | _kinds(split.kinds) for split in splits if split.statistics is not None
    ]
    table = Table('usable data', *(split.name for split in splits))
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(name, *(column.get(name, '-') for column in columns))
    return table


def _column(figures: SplitStatistics, capacity: Sequence[int]) -> dict[str, str]:
    height, width = figures.image_size
    sizes = list(figures.image_sizes.items())
    listed = [f'{w}x{h}: {number}' for (w, h), number in sizes[:3]]
    listed += [f'{len(sizes) - 3} more sizes'] if len(sizes) > 3 else []
    sizes_S = [sum(getattr(one, size) for one in figures.classes) for size in ('small', 'medium', 'large')]
    needed = [
        f'{number} above' if step < 0 else f'{number} up to {step}'
        for step, number in figures.images_per_capacity.items()
        if number
    ]
    return {
        'images': str(figures.images),
        'without boxes': str(figures.images_without_boxes),
        'width x height': '\n'.join(listed),
        'boxes': str(figures.boxes),
        'crowd regions': str(figures.crowds),
        'boxes per image: median, most': _spread(figures.boxes_per_image, (50, 100)),
        f'images by capacity {"/".join(map(str, capacity))}': '\n'.join(needed),
        'small, medium, large*': ', '.join(map(str, sizes_S)),
        f'a side below {TINY} px*': str(figures.tiny),
        'box side* px 1, 50, 99 %': _spread(figures.box_side, (1, 50, 99)),
        'width/height 1, 50, 99 %': _spread(figures.aspect_ratio, (1, 50, 99)),
        '* in the input of': f'{width}x{height}',
    }


def _kinds(figures: KindStatistics | None) -> dict[str, str]:
    """What is known beside boxes."""
    rows: dict[str, str] = {}
    if figures is None:
        return rows
    if figures.difficult:
        rows['difficult'] = str(figures.difficult)
    if figures.outlined is not None:
        rows['with an outline, rings'] = f'{figures.outlined}, {figures.rings}'
    if figures.side_ratio is not None and figures.degrees is not None:
        rows['rotated: long/short 1, 50, 99 %'] = _spread(figures.side_ratio, (1, 50, 99))
        rows['rotated: degrees 1, 50, 99 %'] = _spread(figures.degrees, (1, 50, 99))
    if figures.with_points is not None:
        rows['with keypoints'] = str(figures.with_points)
    return rows


def _keypoints(split: str, figures: KindStatistics) -> Table:
    table = Table()
    table.add_column(f'keypoint in {split}', overflow='fold')
    for title in ('labelled', '%', 'visible', 'outside'):
        table.add_column(title, justify='right', no_wrap=True)
    for one in figures.keypoints or ():
        share = f'{100 * one.labelled / max(figures.objects, 1):.1f}'
        table.add_row(_shown(one.name), str(one.labelled), share, str(one.visible), str(one.outside))
    return table


def _spread(percentiles: dict[int, float], percents: Sequence[int]) -> str:
    return ', '.join(f'{percentiles[percent]:.4g}' for percent in percents) if percentiles else '-'


def _classes(split: str, figures: SplitStatistics) -> Table:
    table = Table()
    table.add_column(f'class in {split}', overflow='fold')
    for title in ('images', 'boxes', '%', 'small*', 'medium*', 'large*'):
        table.add_column(title, justify='right', no_wrap=True)
    for label, one in enumerate(figures.classes[:CLASSES]):
        share = f'{100 * one.boxes / max(figures.boxes, 1):.1f}'
        counts = (one.images, one.boxes, share, one.small, one.medium, one.large)
        table.add_row(f'{label} {_shown(one.name)}', *map(str, counts))
    if len(figures.classes) > CLASSES:
        table.caption = f'and {len(figures.classes) - CLASSES} more classes: {NAME}'
    return table


def _problems(check: DataCheck) -> Table:
    table = Table()
    for title in ('problem', 'split', 'found', 'error', 'skip_box'):
        table.add_column(title, no_wrap=True)
    table.add_column('skip_image')
    for split in check.splits:
        for kind, found in kinds(split.problems).items():
            effects = [str(split.effect(policy, kind)) for policy in POLICIES]
            table.add_row(kind, split.name, str(len(found)), *effects)
        if split.problems:
            effects = [str(split.effect(policy)) for policy in POLICIES]
            table.add_row(f'all (now {split.policy})', split.name, str(len(split.problems)), *effects, end_section=True)
    if check.mismatches:
        table.add_row('class_mismatch', 'all', str(len(check.mismatches)), *['refused'] * len(POLICIES))
    table.caption = "what training does, by its data set's on_bad; now: as the split is set"
    return table


def _notes(check: DataCheck) -> Table:
    table = Table('note', 'split', 'found')
    for split in check.splits:
        for kind, found in kinds(split.notes).items():
            table.add_row(kind, split.name, str(len(found)))
    for (first, second), duplicates in check.duplicates.items():
        for kind in sorted({one.kind for one in duplicates}):
            table.add_row(kind, _pair(first, second), str(sum(one.kind == kind for one in duplicates)))
    table.caption = 'training takes these as they are'
    return table


def _pair(first: str, second: str) -> str:
    return first if first == second else f'{first} and {second}'


def _alike(kind: str, correlation: float) -> str:
    return {'same_file': 'the same file as', 'same_picture': 'the same picture as'}.get(
        kind, f'nearly ({correlation:g}) the picture'
    )


def _print_places(split: str, problems: Sequence[Problem], console: Console) -> None:
    for kind, found in kinds(problems).items():
        _print_list(f'{kind} in {split}', [problem.message for problem in found], console)


def _print_list(title: str, lines: Sequence[str], console: Console) -> None:
    if not lines:
        return
    _say(f'{title}:', console)
    for line in lines[:PLACES]:
        _say(f'  {line}', console)
    if len(lines) > PLACES:
        _say(f'  ... and {len(lines) - PLACES} more: {NAME}', console)


def _print_table(table: Table, console: Console) -> None:
    console.print(table, markup=False)


def _say(text: str, console: Console) -> None:
    console.print(_shown(text), markup=False, highlight=False, soft_wrap=True)


def _shown(text: str) -> str:
    """Text without signs that a terminal cannot encode: JSON can hold half of a surrogate pair."""
    return ''.join(sign if sign.isprintable() or sign == '\n' else '?' for sign in text)
