"""Work that the main thread need not wait for: done by one other thread, in the order in which it was given."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """A thread that does one job at a time.

    A job that fails is the last: those behind it are left out, as they would be in the main thread, which gets the
    error from the next ``check`` or ``finish``. The thread starts with the first job and ends with ``finish``; the
    interpreter does not exit before it has done all.

    A fork at any time is safe if jobs take no locks but those that Python and the C library set free in the child
    (imports, logging, memory): the child has no such thread, and its copy of the object must not be used.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._error: BaseException | None = None

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Have a job done after all those before it.

        Args:
            job: Called in the thread.

        Returns:
            Done when the job is, or was left out; never has an error, ``check`` has.
        """
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        return self._executor.submit(self._run, job)

    def check(self) -> None:
        """Raise the error of a job that has failed, the very exception, if one has by now."""
        if self._error is not None:
            self.finish()

    def finish(self) -> None:
        """Wait until all jobs are done, end the thread, and raise the error of the one that failed, once.

        An interrupt ends the waiting only: the thread goes on, and a second call waits again.
        """
        if self._executor is not None:
            # Not by a join: Python before 3.13 takes a thread for ended when its join is interrupted, and exits under
            # it, in the middle of a file.
            self._executor.submit(_nothing).result()
            executor, self._executor = self._executor, None
            executor.shutdown()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        if self._error is not None:
            return
        try:
            job()
        except BaseException as error:  # noqa: BLE001 (raised in the main thread)
            self._error = error


def _nothing() -> None: ...
