"""The order of the training data and its batches, functions of (seed, epoch, batch) alone."""

import signal
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fredholm.tasks.task import Batch, EpochTask, Task
from fredholm.training.random_state import derived_generator


def epoch_order(num_examples: int, seed: int, epoch: int) -> Tensor:
    """A permutation (num_examples,) of the training examples."""
    return torch.randperm(num_examples, generator=derived_generator(seed, epoch))


@final
class EpochBatches(Dataset[Batch]):
    """One epoch's batches by number; the last may be smaller.

    Args:
        task: gives the examples.
        batch_size: examples a batch.
        seed: the run's.
        epoch: counted from 0.
    """

    def __init__(self, task: Task, batch_size: int, seed: int, epoch: int) -> None:
        # Four key numbers: neither the permutation's stream, which has two, nor a batch's, which has three.
        is_cut_anew = isinstance(task, EpochTask)
        self._task = task.for_epoch(derived_generator(seed, epoch, 0, 0)) if is_cut_anew else task
        self._key = (seed, epoch)
        self.indices = epoch_order(task.num_train, seed, epoch).split(batch_size)
        """The examples of each batch."""

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> Batch:
        # A third key number: the augmentation's stream is neither the permutation's nor another batch's.
        return self._task.train_batch(self.indices[number], derived_generator(*self._key, number))


def iterate(batches: EpochBatches, start: int, *, num_workers: int, pin_memory: bool) -> Iterator[Batch]:
    """The batches from number ``start`` on, made ahead by ``num_workers`` processes (0: in this one).

    The batches do not depend on ``num_workers``, and nothing is drawn from the global generators.
    """
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=range(start, len(batches)),
        num_workers=num_workers,
        pin_memory=pin_memory,
        worker_init_fn=_leave_signals,
        generator=torch.Generator(),
    )
    return iter(loader)


def _leave_signals(worker: int) -> None:
    # Ctrl-C reaches the whole process group; the run must be able to finish its step before the workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
