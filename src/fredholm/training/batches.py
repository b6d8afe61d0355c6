"""Training batches as functions of (seed, epoch, batch) alone: their order and their examples."""

import contextlib
import math
import multiprocessing
import multiprocessing.process
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Generator, Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from fredholm.distributed.processes import ALONE, Processes
from fredholm.tasks.task import Batch, EpochTask, Task

from .interruption import STOPPING, without_signals
from .random_state import derived_generator

POOL = 16
"""Batches in a pool whose examples are sorted by length: larger pools need less padding, but mix examples less."""
OPEN = 16
"""Number of shards whose examples are mixed: more are closer to a full shuffle, but read more of the disk at a time."""


@final
class OrderedBatches:
    """Examples in an order, cut into batches.

    Args:
        order: indices of the examples, int64 `(n,)`.
        batch_size: examples per batch; the last batch may be smaller.
        places: order of the batches, int64 `(m,)`; None: as the examples are ordered.
    """

    def __init__(self, order: Tensor, batch_size: int, places: Tensor | None = None) -> None:
        self._order, self._size, self._places = order, batch_size, places

    def __len__(self) -> int:
        """The number of batches."""
        return math.ceil(len(self._order) / self._size)

    def __getitem__(self, number: int) -> Tensor:
        """The examples of a batch, counted from 0."""
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        place = number if self._places is None else int(self._places[number])
        return self._order[place * self._size : (place + 1) * self._size]

    def __iter__(self) -> Iterator[Tensor]:
        """The batches."""
        return (self[number] for number in range(len(self)))


def epoch_batches(
    num_examples: int, batch_size: int, seed: int, epoch: int, shards: Tensor | None = None
) -> OrderedBatches:
    """Shuffles all examples and cuts them into batches; the last batch may be smaller.

    Args:
        num_examples: number of examples.
        batch_size: examples per batch.
        seed: seed of the run.
        epoch: counted from 0.
        shards: see `shuffled`.
    """
    return OrderedBatches(shuffled(num_examples, derived_generator(seed, epoch), shards), batch_size)


def bucketed_batches(
    lengths: Tensor, batch_size: int, seed: int, epoch: int, shards: Tensor | None = None
) -> OrderedBatches:
    """Shuffles like `epoch_batches`, into batches of examples of similar lengths.

    The shuffled order is cut into pools of `POOL` batches. Each pool is sorted by length (stable) and cut into batches.
    The batches of all pools then come in random order, so the smaller one may be at any place. With shards, only the
    batches of `OPEN` successive pools are shuffled together.

    Args:
        lengths: length of each example.
        batch_size, seed, epoch, shards: see `epoch_batches`.
    """
    generator = derived_generator(seed, epoch)
    pools = shuffled(len(lengths), generator, shards).split(POOL * batch_size)
    order = torch.cat([pool[lengths[pool].argsort(stable=True)] for pool in pools])
    batches = torch.arange(math.ceil(len(lengths) / batch_size))
    groups = batches.split(len(batches) if shards is None else OPEN * POOL)
    return OrderedBatches(
        order, batch_size, torch.cat([own[torch.randperm(len(own), generator=generator)] for own in groups])
    )


def shuffled(num_examples: int, generator: torch.Generator, shards: Tensor | None = None) -> Tensor:
    """Returns all examples in random order, int64 `(num_examples,)`.

    Without shards every order is equally likely. With shards, groups of about `OPEN` shards come in random order and
    the examples of a group are mixed, so only that many contiguous stretches of the disk are read at a time.

    Args:
        num_examples: n.
        generator: the only source of randomness.
        shards: int64 `(m,)`, sizes of the runs of examples that are stored contiguously, each at least 1, with sum n.
            None: the examples can be read in any order at equal cost.
    """
    if shards is None:
        return torch.randperm(num_examples, generator=generator)
    starts, found = shards.cumsum(0) - shards, list[Tensor]()
    groups = math.ceil(len(shards) / OPEN)  # groups of similar sizes, so that none has little to mix
    for group in torch.randperm(len(shards), generator=generator).tensor_split(groups):
        stretches = zip(starts[group].tolist(), shards[group].tolist(), strict=True)
        together = torch.cat([torch.arange(start, start + size) for start, size in stretches])
        found.append(together[torch.randperm(len(together), generator=generator)])
    return torch.cat(found)


class Share(NamedTuple):
    """The part of a batch that one process computes."""

    rows: Batch
    """Examples of this process; a placeholder that does not count where a batch has fewer examples than processes."""
    counts: bool
    """Whether the rows count."""
    num_examples: int
    """Number of examples in the whole batch."""


@final
class EpochBatches(Dataset[Share]):
    """The batches of one epoch by number; each item is the part of a batch that one process computes.

    Args:
        task: source of the examples.
        batch_size: examples per batch, over all processes.
        seed: seed of the run.
        epoch: counted from 0.
        processes: processes that share each batch.
    """

    def __init__(self, task: Task, batch_size: int, seed: int, epoch: int, processes: Processes = ALONE) -> None:
        # Four key numbers, since the permutation's stream has two and a batch's has three.
        is_cut_anew = isinstance(task, EpochTask)
        self._task = task.for_epoch(derived_generator(seed, epoch, 0, 0)) if is_cut_anew else task
        self._key, self._processes = (seed, epoch), processes
        lengths, shards = self._task.train_lengths, self._task.train_shards
        self.indices = (
            epoch_batches(task.num_train, batch_size, seed, epoch, shards)
            if lengths is None
            else bucketed_batches(lengths, batch_size, seed, epoch, shards)
        )
        """Indices of the examples of each batch."""

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> Share:
        indices = self.indices[number]
        rows = self._processes.rows(len(indices))
        counts = rows.start < rows.stop
        own = self._task.train_batch_rows(indices, rows if counts else slice(0, 1), self._draws(number))
        return Share(own, counts, len(indices))

    def whole(self, number: int) -> Batch:
        """Returns a batch with the examples of all processes."""
        return self._task.train_batch(self.indices[number], self._draws(number))

    def _draws(self, number: int) -> torch.Generator:
        # A third key number: the augmentation's stream is neither the permutation's nor another batch's.
        return derived_generator(*self._key, number)


@final
class LostWorkerError(Exception):
    """A process that makes batches has ended unexpectedly."""


def iterate(batches: EpochBatches, start: int, *, num_workers: int, pin_memory: bool) -> Generator[Share, None, None]:
    """Yields the batches from number ``start`` on, prepared ahead by ``num_workers`` processes (0: by this one).

    The batches do not depend on ``num_workers``, and nothing is drawn from the global generators. Workers ignore the
    signals that stop a run, and have ended once this generator is closed.

    Raises:
        LostWorkerError: between two batches, when one of the processes was killed.
    """
    loader = DataLoader(
        _Caught(batches),
        batch_size=None,
        sampler=range(start, len(batches)),
        num_workers=num_workers,
        pin_memory=pin_memory,
        worker_init_fn=_prepare_worker,
        generator=torch.Generator(),
    )
    if not num_workers:
        yield from map(_made, loader)
        return
    others = set(multiprocessing.active_children())
    with without_signals():
        made = iter(loader)
    workers = set(multiprocessing.active_children()) - others
    lost = None
    with _unheard(signal.SIGCHLD):
        try:
            yield from map(_made, made)
        except RuntimeError:
            lost = next((worker for worker in workers if worker.exitcode), None)
            if lost is None:
                raise
        finally:
            del made  # ends the workers, unless the traceback of an error refers to it
            for worker in workers:
                worker.kill()
                worker.join()  # so that torch finds no killed worker once the traceback is gone
    if lost is not None:
        raise LostWorkerError(f"a process that makes batches was lost (process {lost.pid}: {exit_reason(lost)})")


def _prepare_worker(worker: int) -> None:
    """Makes a worker ignore the signals that stop a run, and end with its run."""
    # Blocked again here, for workers that are not forked.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    # A run that stops while it receives a tensor closes the connection; Python's serving thread would print an error.
    sys.excepthook = _report_but_hanging_up
    # torch's own watchdog does not run while a worker waits for a lock, which a killed run may have held.
    if (run := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_after, args=(run,), daemon=True).start()


def _end_after(run: multiprocessing.process.BaseProcess) -> None:
    run.join()
    os._exit(1)


def _report_but_hanging_up(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def _made(share: Share | Exception) -> Share:
    if isinstance(share, Exception):
        raise share
    return share


def exit_reason(process: multiprocessing.process.BaseProcess) -> str:
    """Describes how a process ended: its signal or its exit code."""
    code = process.exitcode or 0
    return f"{signal.strsignal(-code)}" if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def _unheard(number: signal.Signals) -> Iterator[None]:
    """Gives a signal its default action while entered; torch would raise for a lost worker in the middle of a step."""
    before = signal.getsignal(number)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


@final
class _Caught(Dataset[Share | Exception]):
    """Batches, or the errors raised while making them; torch would put the tracebacks into the error messages."""

    def __init__(self, batches: EpochBatches) -> None:
        self._batches = batches

    def __getitem__(self, number: int) -> Share | Exception:
        try:
            return self._batches[number]
        except Exception as error:
            if get_worker_info() is not None:
                error.add_note(traceback.format_exc())
            return error
