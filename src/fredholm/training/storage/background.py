"""Work beside that of the process: one job at a time."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final


@final
class Background:
    """A thread for a job, after which it ends; the process ends only after it."""

    def __init__(self) -> None:
        self._running: Future[None] | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the job has ended with an error, which `wait` raises."""
        running = self._running
        return running is not None and running.done() and running.exception() is not None

    def start(self, job: Callable[[], None]) -> None:
        """Begins a job once the one before has ended; errors as of `wait`."""
        self.wait()
        executor = ThreadPoolExecutor(1, thread_name_prefix="fredholm-background")
        self._running = executor.submit(job)
        executor.shutdown(wait=False)

    def wait(self) -> None:
        """Returns once the job has ended, and raises its error, once."""
        running = self._running
        if running is not None:
            running.exception()  # the job is forgotten after it has ended, not if Ctrl-C ends the waiting
            self._running = None
            running.result()
