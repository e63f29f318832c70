"""Validation and test, which leave the model as they found it, however they end."""

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.evaluator import Evaluator
from mmengine.runner import Runner
from mmengine.runner import TestLoop as BaseTestLoop
from mmengine.runner import ValLoop as BaseValLoop
from torch import nn
from torch.utils.data import DataLoader

from lucid.engine.distributed import unwrapped
from lucid.engine.host_workers import HostWorkers
from lucid.engine.pass_stream import PassStream, repeats
from lucid.engine.predictions import Predictor, ahead, has_seam
from lucid.registry import LOOPS


@LOOPS.register_module()
class ValLoop(BaseValLoop):
    """mmengine's validation, after which hooks undo what ``before_val`` did even if it failed.

    Hooks may define ``undo_val(runner)``; it is called last, once, after ``after_val`` or instead of it.
    It runs in the model's own precision, float32, whatever precision training has: it is not under autocast.
    Where metrics have ``paths``, the model's are set to them for the time of the run; one that the model does not know
    is a ValueError when the loop is built.

    A model that predicts in parts, as lucid's do, is given a batch before the host works on the one before it:
    ``before_val_iter`` of a batch comes before ``after_val_iter`` of the batch before. Predictions, their order and
    where errors surface are those of one batch after the other. On a card a partial last batch behind full ones is
    filled up, see ``Predictor``.

    Attributes: ``follows``, whether another validation comes, which a training loop may set for the time of its run.
    Where it does, and ``dataloader`` ``repeats``, workers make the first batches of the next validation ahead, see
    ``PassStream``; they end with ``close``.

    Args:
        runner: Whose model is evaluated.
        dataloader: Or its config.
        evaluator: Or its config, or that of its metrics.
        num_workers: Processes for what the host does with predictions, and for metrics that have a ``run``, no more
            than there are processors; 0 does it here. It pays for masks, rotated boxes, and thousands of images.

    Raises:
        ValueError: A metric's path is unknown, or ``num_workers`` is negative.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict[str, Any],
        evaluator: Evaluator | dict | list,
        *,
        num_workers: int = 0,
    ) -> None:
        super().__init__(runner, dataloader, evaluator)
        check_paths(runner, self.evaluator)
        self.workers = _workers(self, num_workers)
        self.follows: Callable[[], bool] | None = None
        self._stream: PassStream | None = None

    def run(self) -> dict[str, Any]:
        """Validate once and return the metrics by name."""
        try:
            with predicting(self.runner, self.evaluator):
                in_parts = type(self).run_iter is BaseValLoop.run_iter and has_seam(unwrapped(self.runner.model))
                return _run_ahead(self, 'val', self._batches()) if in_parts else super().run()
        finally:
            self.runner.call_hook('undo_val')

    def close(self) -> None:
        """End workers that are ahead; a later run starts new ones."""
        if self._stream is not None:
            self._stream.close()

    def _batches(self) -> Iterable[Any]:
        if self.follows is None or not repeats(self.dataloader):
            return self.dataloader
        if self._stream is None or self._stream.loader is not self.dataloader:  # a hook may have put another one here
            self.close()
            self._stream = PassStream(self.dataloader)
        return self._stream.batches(follows=self.follows)


@LOOPS.register_module()
class TestLoop(BaseTestLoop):
    """mmengine's test, after which hooks undo what ``before_test`` did even if it failed (``undo_test``).

    Where metrics have ``paths``, the model's are set to them for the time of the run; one that the model does not know
    is a ValueError when the loop is built. Batches overlap as in ``ValLoop``, whose arguments it has.
    """

    __test__ = False  # pytest collects classes whose name begins like this

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict[str, Any],
        evaluator: Evaluator | dict | list,
        *,
        num_workers: int = 0,
    ) -> None:
        super().__init__(runner, dataloader, evaluator)
        check_paths(runner, self.evaluator)
        self.workers = _workers(self, num_workers)

    def run(self) -> dict[str, Any]:
        """Test once and return the metrics by name."""
        try:
            with predicting(self.runner, self.evaluator):
                in_parts = type(self).run_iter is BaseTestLoop.run_iter and has_seam(unwrapped(self.runner.model))
                return _run_ahead(self, 'test', self.dataloader) if in_parts else super().run()
        finally:
            self.runner.call_hook('undo_test')


def _workers(loop: Any, number: int) -> HostWorkers | None:
    """Processes for a loop and its metrics, as long as it lives."""
    if number < 0:
        raise ValueError(f'num_workers={number} of {type(loop).__name__}; use 0 or more')
    if not number:
        return None
    # Results do not depend on it, so a config may ask for more than this machine has, as of the data loader.
    workers = HostWorkers(min(number, len(os.sched_getaffinity(0))))
    weakref.finalize(loop, workers.close)
    for metric in loop.evaluator.metrics:
        if hasattr(metric, 'run'):
            metric.run = workers.map
    return workers


def _run_ahead(loop: Any, mode: str, batches: Iterable[Any]) -> dict[str, Any]:
    """The run of a loop of mmengine's, with the device one batch ahead of the host, and workers one more."""
    runner, workers = loop.runner, loop.workers
    runner.call_hook(f'before_{mode}')
    runner.call_hook(f'before_{mode}_epoch')
    runner.model.eval()
    model, loader = unwrapped(runner.model), loop.dataloader
    # Not on a CPU, where black images cost what others do and nothing is chosen by shape.
    fill = loader.batch_size if _on_card(model) and len(loader) > 1 else None
    predictor = Predictor(model, run=map if workers is None else workers.map, fill=fill)

    def launch(batch: tuple[int, Any]) -> Any:
        runner.call_hook(f'before_{mode}_iter', batch_idx=batch[0], data_batch=batch[1])
        return predictor.launch(batch[1])

    finished = ahead(enumerate(batches), launch, in_processes=workers is not None)
    try:
        for (index, data), outputs in finished:
            loop.evaluator.process(data_samples=outputs, data_batch=data)
            runner.call_hook(f'after_{mode}_iter', batch_idx=index, data_batch=data, outputs=outputs)
        metrics: dict[str, Any] = loop.evaluator.evaluate(len(loop.dataloader.dataset))
    except BaseException:
        if workers is not None:
            workers.close()  # what they have begun is for nobody
        raise
    runner.call_hook(f'after_{mode}_epoch', metrics=metrics)
    runner.call_hook(f'after_{mode}')
    return metrics


def _on_card(model: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in model.parameters())


def wanted_paths(evaluator: Evaluator) -> tuple[str, ...]:
    """The paths that the metrics evaluate, each once, in their order; none where no metric says."""
    return tuple(dict.fromkeys(path for metric in evaluator.metrics for path in getattr(metric, 'paths', ())))


def check_paths(runner: Runner, evaluator: Evaluator) -> None:
    """Refuse a metric's path that the model does not know, before anything runs."""
    wanted = wanted_paths(evaluator)
    if not wanted:
        return
    model = unwrapped(runner.model)
    known = getattr(model, 'known_paths', ('one_to_one',))
    if unknown := [path for path in wanted if path not in known]:
        raise ValueError(
            f'a metric evaluates the path {unknown[0]!r}, but {type(model).__name__} predicts by {", ".join(known)} '
            f"only; set the metric's paths={known!r}"
        )


@contextmanager
def predicting(runner: Runner, evaluator: Evaluator) -> Iterator[None]:
    """Let the model predict by the paths of the metrics, and afterwards by its own again."""
    model: Any = unwrapped(runner.model)
    wanted = wanted_paths(evaluator)
    if not wanted or not hasattr(model, 'paths'):
        yield
        return
    before, model.paths = model.paths, wanted
    try:
        yield
    finally:
        model.paths = before
