"""Predictions of a data set, with the device always one batch ahead of the host."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, TypeVar

import torch
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map_only

T = TypeVar('T')
R = TypeVar('R')
Run = Callable[..., Iterable[Any]]

END: Any = object()
SEAM = ('prepare', 'infer', 'select', 'place')
ROUND = ('val_step', 'test_step', '_run_forward', 'forward', 'predict')


def has_seam(model: nn.Module) -> bool:
    """Whether a model predicts by ``prepare``, ``infer``, ``select`` and ``place``, and nothing goes round them.

    A subclass may, and who took the calls of this one model: mmengine's ``compile``, or a hook on its forward.
    """
    if any(name in vars(model) for name in ROUND) or model._forward_hooks or model._forward_pre_hooks:
        return False
    kind = type(model)
    if not isinstance(model, BaseModel) or not all(callable(getattr(kind, name, None)) for name in SEAM):
        return False
    seam = min(_place(kind, name) for name in SEAM)
    return all(_place(kind, name) >= seam for name in ROUND if hasattr(kind, name))


def _place(kind: type, name: str) -> int:
    """How far up the bases of a class a method is defined."""
    return next(i for i, base in enumerate(kind.__mro__) if name in vars(base))


class Predictor:
    """A model's predictions of batches, in two parts: ``launch`` for the device, and for the host what it returns.

    Nothing in ``launch`` waits for the device. The second part reads it on a stream of its own, so that it waits for
    its own batch and not for those that were launched since; the rows of a batch come in one transfer per path, into
    pinned memory.

    Args:
        model: One that ``has_seam``.
        run: What works on the images one by one, see ``place`` of the model.
        fill: Images of a full batch. One with fewer is filled up with black ones, so that kernels are chosen, and
            graphs recorded, for one shape; they are dropped before anything is selected. Only a model that says what
            their part of ``infer`` is, by ``first(inferred, count)``, is given any, and none that normalises by the
            batch. None fills no batch.
    """

    def __init__(self, model: Any, *, run: Run = map, fill: int | None = None) -> None:
        self._model, self._run = model, run
        kind = type(model)
        # A subclass with an ``infer`` of its own says by a ``first`` of its own that it may be cut.
        cuts = callable(getattr(kind, 'first', None)) and _place(kind, 'first') <= _place(kind, 'infer')
        self._fill = fill if cuts and not any(map(_looks_at_batch, model.modules())) else None

    @torch.no_grad()
    def launch(self, data: Any) -> Callable[[], Iterator[dict[str, Any]]]:
        """Prepare a batch and start its inference; returns what gives its predictions, as an iterator."""
        prepared = self._model.prepare(data)
        images = prepared['inputs']
        device, count = images.device, len(images)
        fill = self._fill if self._fill is not None and 0 < count < self._fill else None
        with torch.autocast(device.type, enabled=False):
            inferred = self._model.infer(images if fill is None else _filled(images, fill))
        if fill is not None:
            inferred = self._model.first(inferred, count)
        event = torch.cuda.current_stream(device).record_event() if device.type == 'cuda' else None
        return partial(self._finish, inferred, prepared['metas'], device, event)

    @torch.no_grad()
    def _finish(self, inferred: Any, metas: Any, device: torch.device, event: Any) -> Iterator[dict[str, Any]]:
        if event is None:
            selected = tree_map_only(Tensor, Tensor.cpu, self._model.select(inferred))  # no copy of what is there
        else:
            stream = _reading_stream(device)
            with torch.cuda.stream(stream):
                stream.wait_event(event)
                # Into pinned memory; what is copied stays alive until the stream has been waited for.
                rows = self._model.select(inferred)
                selected = tree_map_only(Tensor, lambda tensor: tensor.to('cpu', non_blocking=True), rows)
            stream.synchronize()
            del rows
        assert all(leaf.device.type == 'cpu' for leaf in tree_leaves(selected) if isinstance(leaf, Tensor))
        found: Iterator[dict[str, Any]] = self._model.place(selected, metas, run=self._run)
        return found


def _looks_at_batch(module: nn.Module) -> bool:
    """Whether an image's result depends on the others of its batch: statistics are those of the batch."""
    return isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)


def _filled(images: Tensor, size: int) -> Tensor:
    """Images and black ones behind them, with the strides of a batch of ``size``, of which a recording may be."""
    # Dense, not the stride that is there: of a single image it says nothing, and may be one by which images overlap.
    strides = (images[0].numel(), *images.stride()[1:])
    filled = images.new_empty_strided((size, *images.shape[1:]), strides)
    filled[: len(images)].copy_(images)
    filled[len(images) :].zero_()
    return filled


@cache
def _reading_stream(device: torch.device) -> Any:
    """The stream on which predictions are read; one for all, because memory that a stream has freed stays its own."""
    return torch.cuda.Stream(device)


def behind(items: Iterable[T], start: Callable[[T], Callable[[], R]], *, depth: int) -> Iterator[tuple[T, R]]:
    """Start each item, and finish it when ``depth`` later ones have been started; in order.

    If ``items`` or ``start`` raises, what was started before is finished first, as it would have been one by one; not
    after an interrupt.
    """
    waiting: deque[tuple[T, Callable[[], R]]] = deque()
    iterator, failure = iter(items), None
    while True:
        try:
            item = next(iterator, END)
            if item is END:
                break
            waiting.append((item, start(item)))
        except Exception as error:  # noqa: BLE001 (raised below)
            failure = error
            break
        if len(waiting) > depth:
            done, finish = waiting.popleft()
            yield done, finish()
    while waiting:
        done, finish = waiting.popleft()
        yield done, finish()
    if failure is not None:
        raise failure


def ahead(
    items: Iterable[T], launch: Callable[[T], Callable[[], Iterator[Any]]], *, in_processes: bool
) -> Iterator[tuple[T, list[Any]]]:
    """Each item with its predictions, in order, as a ``Predictor`` gives them; the device is one item ahead.

    Where other processes work on the images (``in_processes``), they are one more: the next item is theirs before this
    one is waited for.
    """
    launched = behind(items, launch, depth=1)
    finished = behind(launched, lambda pair: partial(list[Any], pair[1]), depth=1 if in_processes else 0)
    for (item, _), predictions in finished:
        yield item, predictions
