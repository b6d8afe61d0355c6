"""Worker processes that train side by side, one thread each.

They end with the process that started them, and leave all signals to it: on a signal it asks them to stop, and each
saves its run between two steps. A killed worker, as happens when memory runs out, loses only its own run.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, final

import torch

from fredholm._progress import set_lock
from fredholm.tasks import TASKS
from fredholm.tasks.task import Task
from fredholm.training.batches import exit_reason
from fredholm.training.interruption import STOPPING, InterruptedRunError, Interruption, without_signals

from .job import Job, Outcome, carry_out

POLL = 0.2
"""Seconds between two checks for a stop signal."""
GRACE = 60.0
"""Seconds that an idle process is given to end by itself."""
Done = Callable[[int, Outcome], Sequence[tuple[int, Job]]]
"""Receives the number of a job and its outcome, and returns further jobs."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Restricts torch to one thread while entered, so that results do not depend on the number of processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def carry_out_here(jobs: Sequence[tuple[int, Job]], done: Done, tasks: Sequence[type[Task]] = TASKS) -> None:
    """Runs jobs one after the other in this process, and the jobs that follow from them.

    Raises:
        InterruptedRunError: on a signal, once the current run is saved.
    """
    waiting = list(jobs)
    while waiting:
        number, job = waiting.pop(0)
        waiting += done(number, carry_out(job, tasks))


def carry_out_beside(jobs: Sequence[tuple[int, Job]], done: Done, processes: int, log: Path) -> None:
    """Runs jobs in several processes, and the jobs that follow from them.

    Args:
        jobs: numbered jobs in the order of their start.
        done: called in this process with each outcome.
        processes: largest number of processes.
        log: file for the output of the processes.

    Raises:
        InterruptedRunError: on a signal, once all current runs are saved.
        ValueError, OSError: raised by a run; the others are saved.
    """
    waiting, team = list(jobs), list[_Worker]()
    try:
        with Interruption() as interruption:
            while waiting or any(worker.job is not None for worker in team):
                if interruption.signal_number is not None:
                    _stop(team)
                    raise InterruptedRunError(interruption.signal_number, "interrupted")
                _give(waiting, team, processes, log)
                for worker in _ready([worker for worker in team if worker.job is not None]):
                    number, outcome = worker.take()
                    if isinstance(outcome, BaseException):
                        _stop(team)
                        raise outcome
                    if worker.is_lost:
                        team.remove(worker)
                    waiting += done(number, outcome)
    finally:
        for worker in team:
            worker.end()


def _give(waiting: list[tuple[int, Job]], team: "list[_Worker]", processes: int, log: Path) -> None:
    while waiting:
        free = next((worker for worker in team if worker.job is None), None)
        if free is None:
            if len(team) == processes:
                return
            team.append(free := _Worker(log))
        free.give(*waiting.pop(0))


def _ready(busy: "list[_Worker]") -> "list[_Worker]":
    """Returns the workers that have answered or ended, in their order."""
    found = wait([each for worker in busy for each in (worker.connection, worker.process.sentinel)], POLL)
    return [worker for worker in busy if worker.connection in found or worker.process.sentinel in found]


def _stop(team: "list[_Worker]") -> None:
    """Makes all workers save their runs, and waits until they have."""
    busy = [worker for worker in team if worker.job is not None]
    for worker in busy:
        worker.process.terminate()
    for worker in busy:
        worker.take()


@final
class _Worker:
    """A worker process with its current job."""

    def __init__(self, log: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(there, log))
        self.job: int | None = None
        self.is_lost = False
        with without_signals():
            self.process.start()
        there.close()

    def give(self, number: int, job: Job) -> None:
        self.job = number
        with contextlib.suppress(OSError):  # a worker that has ended is noticed in `take`
            self.connection.send(job)

    def take(self) -> tuple[int, Any]:
        """Returns the number of the worker's job, and its outcome or an error."""
        assert self.job is not None
        number, self.job = self.job, None
        try:
            return number, self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            self.is_lost = True
            return number, Outcome(
                reason=f"its process was lost ({exit_reason(self.process)}), as where memory runs out"
            )

    def end(self) -> None:
        if self.job is None:  # an idle worker ends when it receives None
            with contextlib.suppress(OSError):
                self.connection.send(None)
            self.process.join(GRACE)
        self.connection.close()
        self.process.kill()
        self.process.join()


def _work(connection: Connection, log: Path) -> None:
    """Main function of a worker: carries out jobs as they arrive."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    torch.set_num_threads(1)
    # the default is a semaphore of the system, which a killed process leaves behind
    set_lock(threading.RLock())
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        if job is None:
            return
        answer: Outcome | Exception
        try:
            answer = carry_out(job)
        except InterruptedRunError:
            answer = Outcome(reason="interrupted")
        except (ValueError, TypeError, ImportError) as error:
            answer = ValueError(str(error))
        except OSError as error:
            answer = error
        except Exception as error:
            traceback.print_exc()
            answer = RuntimeError(f"{type(error).__name__}: {error}; see {log}")
        connection.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
