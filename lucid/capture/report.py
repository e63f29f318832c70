"""The report: how every call of every region ran, and why."""

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass
class Recorded:
    """What making one recording took.

    what:      its inputs, or what else it is of
    num_bytes: added to what the region's recordings hold; those made before may have left room in the pool
    seconds:   warm-up and capture
    retired:   it has been dropped, and holds nothing any longer; what it left in the pool is the next one's
    """

    what: str
    num_bytes: int
    seconds: float
    retired: bool = False


class Reason(enum.Enum):
    """Why a call ran eager: what it says, and whether the configuration asked for it."""

    EVAL = 'the target is in eval mode', True
    NO_GRAD = 'gradients are off', True
    NO_CUDA = 'there is no CUDA card', True
    HOLD = 'an earlier forward waits for its backward', True
    ACCUMULATION = 'the accumulation table says eager', True
    NEW_SIGNATURE = 'a signature without recording', True
    NESTED = 'inside another capture', True
    INFERENCE = 'inference mode is on', True
    WATCHED = 'a dispatch mode, a tracer or anomaly mode watches', True
    INPUT = 'an input that capture cannot hold', False
    HOOK = 'a hook that a replay would not run', False
    TOO_MANY = 'more signatures than max_signatures', False
    CHANGED = 'a guard failed', False
    FAILED = 'recording failed', False
    GRADIENT = 'a gradient that the sums do not hold', False

    def __init__(self, text: str, expected: bool) -> None:
        self.text = text
        self.expected = expected


class Routes:
    """Counts of one region's calls, captures and retirements; ``due`` is whether there should have been calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replays = 0
        self.captures = 0
        self.capture_seconds = 0.0
        self.recordings: list[Recorded] = []
        self.eager: Counter[tuple[Reason, str]] = Counter()
        self.eager_backwards: Counter[str] = Counter()  # of replayed calls
        self.retired: Counter[str] = Counter()
        self.slot_taken = False
        self.due = True

    @property
    def calls(self) -> int:
        """Every call through the region."""
        return self.replays + sum(self.eager.values())

    @property
    def num_bytes(self) -> int:
        """What the recordings that are not retired hold."""
        return sum(one.num_bytes for one in self.recordings if not one.retired)

    def count_eager(self, reason: Reason, detail: str = '') -> bool:
        """Count one eager call; True the first time that this reason and detail occur."""
        self.eager[reason, detail] += 1
        return self.eager[reason, detail] == 1

    def count_eager_backward(self, reason: str) -> bool:
        """Count one backward that ran eager after a replayed forward; True the first time for this reason."""
        self.eager_backwards[reason] += 1
        return self.eager_backwards[reason] == 1

    def problems(self) -> list[str]:
        """The unexpected routes, a target that was never called, and one that never replayed."""
        found = [
            f'{self.name}: {count} eager calls, {reason.text}{f" ({detail})" if detail else ""}'
            for (reason, detail), count in self.eager.items()
            if not reason.expected
        ]
        if self.slot_taken:
            found.append(f'{self.name}: module.compile() took its calls in mid-run; compile or capture, not both')
        if self.calls == 0 and self.due:
            found.append(
                f'{self.name}: never called; the model calls another module, `.forward()` or another method of it; '
                f'call it as a function or choose the target that is'
            )
        elif self.calls and self.replays == 0 and all(reason is not Reason.NO_CUDA for reason, _ in self.eager):
            found.append(f'{self.name}: never replayed in {self.calls} calls')
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            'calls': self.calls,
            'replays': self.replays,
            'captures': self.captures,
            'capture_seconds': round(self.capture_seconds, 3),
            'bytes': self.num_bytes,
            'recordings': [
                {
                    'of': one.what,
                    'bytes': one.num_bytes,
                    'seconds': round(one.seconds, 3),
                    'retired': one.retired,
                }
                for one in self.recordings
            ],
            'eager': [
                {'reason': r.name.lower(), 'text': r.text, 'detail': d, 'expected': r.expected, 'calls': n}
                for (r, d), n in self.eager.items()
            ],
            'eager_backwards': dict(self.eager_backwards),
            'retired': dict(self.retired),
            'problems': self.problems(),
        }


class Report:
    """The routes of all regions of a run."""

    def __init__(self, routes: Iterable[Routes] = ()) -> None:
        self.routes = list(routes)

    def problems(self) -> list[str]:
        """What `strict` fails on: unexpected routes of any region."""
        return [problem for routes in self.routes for problem in routes.problems()]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {'regions': {routes.name: routes.as_dict() for routes in self.routes}, 'problems': self.problems()}

    def table(self) -> str:
        """The report as text: one line per region and route."""
        rows = [('region', 'route', 'calls', 'reason')]
        for routes in self.routes:
            if not routes.calls:
                rows.append((routes.name, '-', '0', 'UNEXPECTED: never called' if routes.due else 'was not needed'))
            if routes.replays:
                note = f'{routes.captures} captures, {routes.capture_seconds:.1f} s, {routes.num_bytes / 2**20:.0f} MiB'
                rows.append((routes.name, 'replay', str(routes.replays), note))
            for one in routes.recordings if len(routes.recordings) > 1 else ():
                note = f'{one.what}: +{one.num_bytes / 2**20:.0f} MiB, {one.seconds:.1f} s'
                note += ', retired' if one.retired else ''
                rows.append((routes.name, 'recording', '', note))
            for (reason, detail), count in routes.eager.most_common():
                text = f'{reason.text}: {detail}' if detail else reason.text
                rows.append((routes.name, 'eager', str(count), text if reason.expected else f'UNEXPECTED: {text}'))
            for text, count in routes.eager_backwards.items():
                rows.append((routes.name, 'backward', str(count), f'eager: {text}'))
            for change, count in routes.retired.items():
                rows.append((routes.name, 'retired', str(count), change))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return '\n'.join(f'{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}'.rstrip() for a, b, c, d in rows)
