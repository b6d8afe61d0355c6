"""Sequences with gaps and resets as packed runs of points."""

from typing import Self, final

import torch
from torch import Tensor


@final
class Runs:
    """The points that exist, as runs without gaps that each begin in a state of their own.

    Every sequence begins a run, and so does every reset; run k's points are consecutive points of one sequence, those
    between that do not exist left out. Packed, the first points of all runs come first, then all second ones and so on,
    the longest run first among equals: the layout of `torch.nn.utils.rnn.PackedSequence`.

    Attributes:
        source: index of each packed point in the `(B * T)` points, in packed order.
        batch_sizes: number of runs that have a k-th point, for every k; on the CPU.
        order: runs, the longest first.
        rank: place of each run in `order`.
        first, last: index of the run that each sequence begins with and ends in, `(B,)`.
    """

    source: Tensor
    batch_sizes: Tensor
    order: Tensor
    rank: Tensor
    first: Tensor
    last: Tensor

    @classmethod
    def of(cls, mask: Tensor | None, reset: Tensor | None) -> Self | None:
        """The runs of sequences; None where each is one run in which nothing is missing.

        Args:
            mask: `(B, T)` bool, True = this point exists; None = all exist.
            reset: `(B, T)` bool, True = a run begins with this point, or the next one that exists; None = nowhere.
        """
        given = reset if mask is None else mask
        if given is None:
            return None
        exists = torch.ones_like(given) if mask is None else mask
        reset = torch.zeros_like(given) if reset is None else reset
        if bool((exists & ~reset).all()):
            return None
        found = cls()
        batch, length = exists.shape
        begun = reset.flatten().cumsum(0).reshape(batch, length)
        run = begun + torch.arange(batch, device=exists.device)[:, None]
        found.last = run[:, -1]
        found.first = torch.cat([run.new_zeros(1), found.last[:-1] + 1])
        existing = exists.flatten().nonzero().squeeze(-1)
        run = run.flatten()[existing]
        lengths = torch.bincount(run, minlength=int(found.last[-1]) + 1)
        found.order = lengths.argsort(descending=True, stable=True)
        found.rank = torch.empty_like(found.order)
        found.rank[found.order] = torch.arange(len(lengths), device=run.device)
        place = torch.arange(len(existing), device=run.device) - (lengths.cumsum(0) - lengths)[run]
        sizes = torch.bincount(place)
        packed = (sizes.cumsum(0) - sizes)[place] + found.rank[run]
        found.source = torch.empty_like(existing)
        found.source[packed] = existing
        found.batch_sizes = sizes.cpu()
        return found

    def pack(self, u: Tensor) -> Tensor:
        """`(B, T, d)` to the packed points, `(points, d)`."""
        return u.flatten(0, 1).index_select(0, self.source)

    def unpack(self, packed: Tensor, batch: int, length: int) -> Tensor:
        """The packed points, `(points, d)`, to `(B, T, d)`, 0 at points that do not exist."""
        flat = packed.new_zeros(batch * length, packed.shape[-1]).index_copy(0, self.source, packed)
        return flat.reshape(batch, length, -1)

    def begin(self, state: Tensor) -> Tensor:
        """States of sequences, `(B, n)`, to those in which the runs begin, the longest first; 0 after a reset."""
        return state.new_zeros(len(self.order), state.shape[-1]).index_copy(0, self.first, state)[self.order]

    def end(self, begun: Tensor, ended: Tensor) -> Tensor:
        """The state at the end of each sequence, from those in which all runs began and those with points ended."""
        return torch.cat([ended, begun[len(ended) :]])[self.rank[self.last]]
