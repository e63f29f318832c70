"""Which training iterations a fault lies in, and how to say so."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mmengine.dist import all_gather_object, get_world_size

REMEDY = (
    'Lower optim_wrapper.optimizer.lr or lengthen the warm-up, and check these images and their boxes; --resume goes '
    'on from the last checkpoint with the changed options'
)


class Iteration(NamedTuple):
    """What the host knows of a training iteration.

    iter:   counted from 0 over the whole run
    files:  the images of the batch
    bad:    names of the log variables that are not finite, if a loss is among them
    ended:  a window ended here
    failed: and it failed, see ``OptimWrapper``
    """

    iter: int
    files: list[str]
    bad: tuple[str, ...]
    ended: bool
    failed: bool


def split_windows(iterations: Iterable[Iteration]) -> tuple[list[list[Iteration]], list[Iteration]]:
    """Return the windows that failed, and the iterations of the one that has not ended."""
    failed: list[list[Iteration]] = []
    window: list[Iteration] = []
    for iteration in iterations:
        window.append(iteration)
        if iteration.ended:
            if iteration.failed:
                failed.append(window)
            window = []
    return failed, window


def joined(windows: list[list[Iteration]]) -> list[list[Iteration]]:
    """Return the failed windows with the iterations of all processes; every process calls it, with as many windows."""
    if get_world_size() == 1 or not windows:
        return windows
    processes: list[list[list[Iteration]]] = all_gather_object(windows)
    return [[iteration for part in parts for iteration in part] for parts in zip(*processes, strict=True)]


def describe(window: Sequence[Iteration], *, max_iters: int, epoch: int) -> str:
    """Say what is not finite in a window: the iterations with a bad loss, or all of them if no loss is bad.

    Args:
        window: Its iterations, those of other processes too.
        max_iters: Of the run.
        epoch: Counted from 1.

    Returns:
        A sentence without its end.
    """
    culprits = [iteration for iteration in window if iteration.bad] or list(window)
    names = ', '.join(dict.fromkeys(name for each in culprits for name in each.bad)) or 'gradients, but no loss,'
    numbers = sorted({iteration.iter + 1 for iteration in culprits})
    where = f'iteration {numbers[0]}' if len(numbers) == 1 else f'iterations {", ".join(map(str, numbers))}'
    files = ', '.join(file for each in culprits for file in each.files)
    return f'{names} not finite in {where} of {max_iters} (epoch {epoch}), images {files or "unknown"}'
