"""Processes for what the host does beside the device: masks, NMS of rotated boxes, pictures."""

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import cv2
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

ORPHAN_CHECK = 5.0
"""Seconds from one look of a process at its parent to the next."""


class HostWorkers:
    """``map`` in other processes, in order: the results do not depend on their number; and ``submit`` of single calls.

    Processes, not threads: this work is Python's, and would take the interpreter's lock from whoever launches kernels.
    They start at the first use, in the way of the data loader's workers (``multiprocessing``'s start method), and leave
    an interrupt, and a SIGTERM that others sent, to the main process. Tensors in results come back as tensors of the
    caller's own.

    Args:
        number: Of processes.
        purpose: What they are for, in the error when one dies.
        remedy: What to do then.

    Raises:
        ValueError: There are none.
    """

    def __init__(
        self,
        number: int,
        *,
        purpose: str = 'predictions',
        remedy: str = 'lower num_workers of the loop (val_cfg, test_cfg), or set it to 0',
    ) -> None:
        if number < 1:
            raise ValueError(f'{number} processes do no work; use 1 or more')
        self.number = number
        self.purpose = purpose
        self.remedy = remedy
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[..., Any], *iterables: Iterable[Any]) -> Iterator[Any]:
        """The results of ``function``, in order; the work on all of them begins now.

        Args:
            function: At the top level of a module, as are its arguments' classes.
            *iterables: As long as each other; of arrays and plain values.

        Returns:
            An iterator, to be used once. It raises what ``function`` raised, and RuntimeError where a process died;
            what was not begun by the time that it is closed, is not done.
        """
        return self._results([self.submit(function, *items) for items in zip(*iterables, strict=True)])

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin one call.

        Args:
            function: At the top level of a module, as are its arguments' classes.
            *arguments: Arrays and plain values.

        Returns:
            What ``result`` takes; ``done`` says whether it would wait.

        Raises:
            RuntimeError: A process died since the last use.
        """
        if self._pool is None:
            context = multiprocessing.get_context()
            self._pool = ProcessPoolExecutor(
                self.number, mp_context=context, initializer=_begin, initargs=(os.getpid(),)
            )
        try:
            with _termination_waits():
                return self._pool.submit(_call, function, arguments)
        except BrokenProcessPool as error:
            raise self._died() from error

    def result(self, future: Future[Any]) -> Any:
        """What a call returned, waited for; it raises what the call raised, and RuntimeError where a process died."""
        try:
            return tree_map_only(_Sent, _Sent.tensor, future.result())
        except BrokenProcessPool as error:
            raise self._died() from error

    def close(self) -> None:
        """End the processes; a second call does nothing, and a further ``map`` starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _results(self, futures: list[Future[Any]]) -> Iterator[Any]:
        try:
            for future in futures:
                yield self.result(future)
        finally:
            for future in futures:
                future.cancel()

    def _died(self) -> RuntimeError:
        self.close()
        which = 'the process' if self.number == 1 else f'one of {self.number} processes'
        return RuntimeError(f'{which} for {self.purpose} died, for want of memory perhaps; {self.remedy}')


class _Sent:
    """A tensor on its way as an array: tensors would travel in shared memory, a file each."""

    def __init__(self, tensor: Tensor) -> None:
        self._array = tensor.numpy()

    def tensor(self) -> Tensor:
        return torch.from_numpy(self._array)


@contextmanager
def _termination_waits() -> Iterator[None]:
    """Processes that start here have SIGTERM blocked from their first thread on: those of libraries would take it."""
    kept = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, kept)


def _call(function: Callable[..., Any], items: tuple[Any, ...]) -> Any:
    return tree_map_only(Tensor, _Sent, function(*items))


def _begin(main: int) -> None:
    """Prepare a process: one thread, signals left to process ``main``, and an end when that is gone or says so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A SIGTERM to the whole group is the main process's too; one from it alone ends this one. Not by a handler: a fork
    # has that of the main process, which may only ask a training to stop.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # What a fork has of the main process may hold the device's memory, which must not be freed here.
    gc.freeze()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    threading.Thread(target=_end_with, args=(main, os.getppid()), daemon=True).start()


def _end_with(main: int, parent: int) -> None:
    started_by = multiprocessing.parent_process()  # it may have gone before ``parent`` was looked at
    while os.getppid() == parent and (started_by is None or started_by.is_alive()):
        received = signal.sigtimedwait({signal.SIGTERM}, ORPHAN_CHECK)
        if received is not None and received.si_pid == main:
            break
    os._exit(1)
