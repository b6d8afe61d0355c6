"""The examples of each batch of an epoch, a function of the seed and the number of the epoch alone."""

import math
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from .random_state import derived_generator

POOL = 16
"""Batches whose examples are sorted by length together: more leave less padding, and less chance to who meets whom."""
OPEN = 16
"""Shards whose examples are mixed: more are more like chance alone, and more of the disk that is read at a time."""


@final
class Cut:
    """Examples in an order, cut into batches.

    Args:
        order: their numbers, int64 `(n,)`.
        batch_size: examples a batch; the last cut may be smaller.
        places: in which order the batches come, int64 `(m,)`; None: in that of the examples.
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


def epoch_batches(num_examples: int, batch_size: int, seed: int, epoch: int, shards: Tensor | None = None) -> Cut:
    """An order of all examples, cut; the last batch may be smaller.

    Args:
        num_examples: there are.
        batch_size: examples a batch.
        seed: the run's.
        epoch: counted from 0.
        shards: see `shuffled`.
    """
    return Cut(shuffled(num_examples, derived_generator(seed, epoch), shards), batch_size)


def bucketed_batches(lengths: Tensor, batch_size: int, seed: int, epoch: int, shards: Tensor | None = None) -> Cut:
    """Likewise, but batches are of about one length each.

    The order is cut into pools of `POOL` batches; each is sorted by length, examples of one length staying in their
    order, and cut. The batches of all pools then come in an order of chance, so any one may be the smaller one; where
    there are shards those of `OPEN` pools do, one after the other.

    Args:
        lengths: of each example.
        batch_size, seed, epoch, shards: see `epoch_batches`.
    """
    generator = derived_generator(seed, epoch)
    pools = shuffled(len(lengths), generator, shards).split(POOL * batch_size)
    order = torch.cat([pool[lengths[pool].argsort(stable=True)] for pool in pools])
    batches = torch.arange(math.ceil(len(lengths) / batch_size))
    groups = batches.split(len(batches) if shards is None else OPEN * POOL)
    return Cut(order, batch_size, torch.cat([own[torch.randperm(len(own), generator=generator)] for own in groups]))


def shuffled(num_examples: int, generator: torch.Generator, shards: Tensor | None = None) -> Tensor:
    """All examples in an order of chance, int64 `(num_examples,)`.

    Without shards every order is as likely. With shards these come in an order of chance, `OPEN` at a time, whose
    examples are mixed: what is read of the disk at a time is so many stretches of it.

    Args:
        num_examples: n.
        generator: all chance is from it.
        shards: int64 `(m,)`, examples that lie one after the other each, at least 1; their sum is n. None: examples are
            read in any order alike.
    """
    if shards is None:
        return torch.randperm(num_examples, generator=generator)
    starts, found = shards.cumsum(0) - shards, list[Tensor]()
    groups = math.ceil(len(shards) / OPEN)  # of like size, so that none is left with little to mix
    for group in torch.randperm(len(shards), generator=generator).tensor_split(groups):
        stretches = zip(starts[group].tolist(), shards[group].tolist(), strict=True)
        together = torch.cat([torch.arange(start, start + size) for start, size in stretches])
        found.append(together[torch.randperm(len(together), generator=generator)])
    return torch.cat(found)
