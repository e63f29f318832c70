"""The way of a detector from raw outputs to predictions, by several paths from one forward."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_map_only

from lucid.models.heads.paths import Head, Metas, Rules, Run
from lucid.models.heads.paths import select as select_rows
from lucid.structures import AnchorGrid, Candidates


class Inferred(NamedTuple):
    """A batch on its way to predictions.

    found: by path, rows or candidates
    maps:  what the rows of an image share, such as prototypes; None where they share nothing
    """

    found: dict[str, Tensor | Candidates]
    maps: Tensor | None


def decode(head: Head, outputs: Any, grid: AnchorGrid, rules: Mapping[str, Rules]) -> Inferred:
    """Raw outputs as far as shapes are fixed, by each path of ``rules``; on the device, no host read."""
    return Inferred({path: head.decode(outputs, grid, rule) for path, rule in rules.items()}, head.maps(outputs))


def first(inferred: Inferred, count: int) -> Inferred:
    """The part of the first ``count`` images: views of tensors, all of which have the images in dimension 0."""
    part: Inferred = tree_map_only(Tensor, lambda tensor_B: tensor_B[:count], inferred)
    return part


def select(inferred: Inferred, rules: Mapping[str, Rules]) -> Inferred:
    """Rows only, on the device: the NMS of upright boxes, for a path that has one, reads it."""
    rows = {path: select_rows(found, rules[path]) for path, found in inferred.found.items()}
    return Inferred({**rows}, inferred.maps)


def place(
    head: Head, selected: Inferred, metas: Metas, rules: Mapping[str, Rules], *, run: Run = map
) -> Iterator[dict[str, Any]]:
    """One prediction per image, in pixels of the original image: of the first path, with those of others inside.

    Args:
        head: of the task.
        selected: of ``select``, on the CPU, where nobody may write it before the last prediction is taken.
        metas: per image, as ``place_rows`` wants them.
        rules: by path.
        run: with ``map`` an image is worked on when its prediction is taken; a pool of processes begins at once.

    Returns:
        In the order of the images, once; tensors are the caller's.
    """
    maps = None if selected.maps is None else selected.maps.numpy()
    by_path: list[tuple[str, Iterable[Any]]] = []
    for path, found in selected.found.items():
        assert isinstance(found, Tensor), 'select makes rows of candidates'
        assert len(found) == len(metas), 'one meta per image'
        by_path.append((path, head.place(found.numpy(), maps, metas, rules=rules[path], run=run)))
    return _together(by_path)


def _together(by_path: Sequence[tuple[str, Iterable[Any]]]) -> Iterator[dict[str, Any]]:
    for found in zip(*(predictions for _, predictions in by_path), strict=True):
        first, *others = ({**one, 'path': path} for (path, _), one in zip(by_path, found, strict=True))
        yield {**first, **{other['path']: other for other in others}}
