"""What a check of a data set found, and what each policy would do about it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lucid.datasets.fingerprints import Duplicate
from lucid.datasets.kind_statistics import KindStatistics
from lucid.datasets.problems import POLICIES, Problem
from lucid.datasets.sample import Sample
from lucid.datasets.statistics import SplitContent, SplitStatistics

ALWAYS_REFUSED = ('unreadable_split', 'unusable_split')
"""Kinds that no policy leaves out."""


class Effect(NamedTuple):
    """What a policy does about some problems.

    refused:     whether training stops at its start; the rest is then 0
    annotations: bad ones that are left out
    images:      left out, bad entries for images among them
    lost:        good annotations that go with them
    """

    refused: bool
    annotations: int = 0
    images: int = 0
    lost: int = 0

    def __str__(self) -> str:
        """A few words for a table."""
        if self.refused:
            return 'refused'
        if self.images:
            lost = f' ({_number(self.lost, "good box", "good boxes")})' if self.lost else ''
            return f'skips {_number(self.images, "image")}{lost}'
        return f'skips {_number(self.annotations, "box", "boxes")}' if self.annotations else 'as it is'


class SplitCheck(NamedTuple):
    """One split.

    name:       train, val or test; with a number where the config joins several
    source:     the file that leads to the others; the folder where it could not be read
    policy:     the ``on_bad`` that it trains with
    files:      of all images, bad ones included
    boxes:      usable annotations of each of them, crowds included
    problems:   what training refuses, or leaves out; ``image`` is a row of ``files``
    notes:      what training takes as it is; ``image`` is a row of ``content.files_I``
    content:    of the images without a problem of their own; None where there is none
    statistics: of ``content``
    kinds:      what it holds beside boxes
    read:       gives a row of ``content.files_I`` with all targets that were loaded
    """

    name: str
    source: str
    policy: str
    files: list[str]
    boxes: list[int]
    problems: list[Problem]
    notes: list[Problem]
    content: SplitContent | None
    statistics: SplitStatistics | None
    kinds: KindStatistics | None = None
    read: Callable[[int], Sample] | None = None

    def effect(self, policy: str, kind: str | None = None) -> Effect:
        """What a policy does about the problems of one kind, or about all."""
        problems = [problem for problem in self.problems if kind is None or problem.kind == kind]
        if any(problem.refused_by(policy) or problem.kind in ALWAYS_REFUSED for problem in problems):
            return Effect(True)
        if policy == 'skip_box':
            return Effect(False, annotations=len(problems))
        images = {problem.image for problem in problems if problem.image >= 0}
        nowhere = [problem for problem in problems if problem.image < 0]
        return Effect(
            False,
            annotations=len({problem for problem in problems if problem.annotation >= 0}),
            images=len(images) + sum(problem.annotation < 0 for problem in nowhere),
            lost=sum(self.boxes[image] for image in images),
        )


class DataCheck(NamedTuple):
    """Everything that was found.

    target:     the config or folder
    out:        folder of the pictures and of ``report.json``
    capacity:   numbers of boxes that targets are padded to
    duplicates: by pair of splits; a name twice for those inside a split
    mismatches: how splits number their classes differently; training refuses them whatever the policy
    """

    target: str
    out: Path
    capacity: tuple[int, ...]
    splits: list[SplitCheck]
    duplicates: dict[tuple[str, str], list[Duplicate]]
    mismatches: list[str]

    @property
    def num_problems(self) -> int:
        """What training refuses, or leaves out."""
        return len(self.mismatches) + sum(len(split.problems) for split in self.splits)

    @property
    def num_notes(self) -> int:
        """What training takes as it is, duplicates included."""
        return sum(map(len, self.duplicates.values())) + sum(len(split.notes) for split in self.splits)

    def to_json(self) -> dict[str, Any]:
        """Plain types; numbers that JSON does not have are null."""
        return {
            'target': self.target,
            'problems': self.num_problems,
            'notes': self.num_notes,
            'mismatches': self.mismatches,
            'capacity': list(self.capacity),
            'splits': {split.name: _split_json(split) for split in self.splits},
            'duplicates': [
                {'splits': list(pair), **duplicate._asdict()}
                for pair, found in self.duplicates.items()
                for duplicate in found
            ],
        }


def kinds(problems: Sequence[Problem]) -> dict[str, list[Problem]]:
    """Problems by kind, the most frequent kind first."""
    found: dict[str, list[Problem]] = {}
    for problem in problems:
        found.setdefault(problem.kind, []).append(problem)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def _split_json(split: SplitCheck) -> dict[str, Any]:
    return {
        'source': split.source,
        'on_bad': split.policy,
        'images': len(split.files),
        'counts': {kind: len(found) for kind, found in kinds(split.problems).items()},
        'policies': {policy: split.effect(policy)._asdict() for policy in POLICIES},
        'problems': [_problem_json(problem, split.files) for problem in split.problems],
        'notes': [_problem_json(note, split.content.files_I if split.content else []) for note in split.notes],
        'statistics': split.statistics.to_json() if split.statistics else None,
        'kinds': split.kinds.to_json() if split.kinds else None,
    }


def _problem_json(problem: Problem, files: Sequence[str]) -> dict[str, Any]:
    box = problem.box
    return {
        'kind': problem.kind,
        'place': problem.place,
        'text': problem.text,
        'file': files[problem.image] if 0 <= problem.image < len(files) else None,
        # A NaN is not JSON; the text has it.
        'box': [value if abs(value) < float('inf') else None for value in box] if box else None,
    }


def _number(number: int, one: str, many: str = '') -> str:
    return f'{number} {one if number == 1 else many or one + "s"}'
