"""Samples of functions: the frozen value that every reader returns."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.cells import LARGEST, as_kept, kept_type
from fredholm.tasks.files.limits import check_expansion
from fredholm.tasks.files.mapped import Rows, shards_of_some
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Divisible
from fredholm.tasks.splits.stratified_split import SplitKeys

CHUNK = 1 << 20
"""Number of values that are read together in passes over all values."""


@final
class StoredFunctions:
    """Values of functions that stay in their files, and are read on demand.

    Args:
        rows: arrays with a function per row, of any shape.
        num_samples: N.
        num_channels: m.
        values: maps rows `(B, ...)` to numbers `(B, N, m)`.
        indices: indices of the rows, int64 `(n,)`; None: all.
    """

    def __init__(
        self,
        rows: Rows,
        num_samples: int,
        num_channels: int,
        values: Callable[[np.ndarray], np.ndarray],
        indices: Tensor | None = None,
    ) -> None:
        self._rows, self._values = rows, values
        self._indices = torch.arange(len(rows)) if indices is None else indices
        self.shape = (len(self._indices), num_samples, num_channels)

    def select(self, indices: Tensor) -> "StoredFunctions":
        """Returns the values of some functions, int64 `(B,)`, in this order."""
        return StoredFunctions(self._rows, *self.shape[1:], self._values, self._indices[indices])

    def read(self) -> Tensor:
        """Reads all values, float32 or float64 `(n, N, m)`."""
        return torch.from_numpy(as_kept(self._values(self._rows[self._indices.numpy()])))

    @property
    def shards(self) -> Tensor | None:
        """Sizes of shards of functions that are contiguous on the disk, see `Task.train_shards`."""
        return shards_of_some(self._rows.shards, self._indices)


@final
class Samples:
    """Values of n functions, each at its own points.

    Args:
        pos: float64 `(n, N, s)`, finite; a stride-0 view where all functions have the same points.
        values: float32 or float64 `(n, N, m)`, finite; 0 where a sample is missing. Stored values are read on first
            use, and then kept.
        mask: bool `(n, N)`, True = this sample exists; None: all do.
    """

    def __init__(self, pos: Tensor, values: Tensor | StoredFunctions, mask: Tensor | None) -> None:
        self.pos, self.mask, self._values = pos, mask, values

    @cached_property
    def values(self) -> Tensor:
        """The values, float32 or float64 `(n, N, m)`."""
        return self._values.read() if isinstance(self._values, StoredFunctions) else self._values

    @property
    def stored(self) -> StoredFunctions | None:
        """The stored values, where they are not in memory."""
        return self._values if isinstance(self._values, StoredFunctions) else None

    @property
    def num_channels(self) -> int:
        """Number of channels m."""
        return self._values.shape[-1]

    @property
    def exists(self) -> Tensor:
        """Mask of existing samples, `(n, N)` bool."""
        return torch.ones(self.pos.shape[:2], dtype=torch.bool) if self.mask is None else self.mask

    @property
    def counts(self) -> Tensor:
        """Number of samples of each function, int64 `(n,)`."""
        return torch.full((len(self.pos),), self.pos.shape[1]) if self.mask is None else self.mask.sum(1)

    @property
    def share_places(self) -> bool:
        """Whether all functions have the same points, where samples may be missing."""
        return self.pos.stride(0) == 0 or bool((self.pos == self.pos[:1]).all())

    @property
    def has_gaps(self) -> bool:
        """Whether samples are missing."""
        return self.mask is not None and not bool(self.mask.all())

    @property
    def places(self) -> list[Tensor]:
        """Points of each function's existing samples, `(K, s)` each."""
        if self.mask is None:
            return list(self.pos)
        return [pos[exists] for pos, exists in zip(self.pos, self.mask, strict=True)]

    def select(self, indices: Tensor) -> "Samples":
        """Returns the samples of some functions, int64 `(B,)`, in this order."""
        shared = self.pos.stride(0) == 0 and len(self.pos) > 0
        pos = self.pos[:1].expand(len(indices), -1, -1) if shared else self.pos[indices]
        values = self._values.select(indices) if isinstance(self._values, StoredFunctions) else self._values[indices]
        return Samples(pos, values, None if self.mask is None else self.mask[indices])

    def with_values(self, values: Tensor) -> "Samples":
        """Returns other values at the same points, `(n, N, m')`."""
        return Samples(self.pos, values, self.mask)


@final
@dataclass(frozen=True, kw_only=True)
class FieldSet(Divisible):
    """Pairs of n input functions and n target functions, given by samples.

    Args:
        given: samples of the input functions.
        other_targets: samples of the target functions, at other points or of another kind; None: the inputs are the
            targets.
        coordinates: names of the s coordinates.
        channels: names of the m input channels.
        other_channels: names of the target channels; empty: those of the inputs.
        names: origin of each function, for messages.
        num_steps: T for trajectories: targets are the next T states, at the same points, with the m values of the first
            step before those of the second.
        marks: groups and times of the functions.

    Raises:
        ValueError: shapes or types differ, a function has no sample, or a position or value is not finite. The message
            begins with the function's name.
    """

    shared: ClassVar[tuple[str, ...]] = ("coordinates", "channels", "target_channels")

    given: Samples
    other_targets: Samples | None = None
    coordinates: tuple[str, ...]
    channels: tuple[str, ...]
    other_channels: tuple[str, ...] = ()
    names: tuple[str, ...]
    num_steps: int = 1
    marks: SplitMarks = NO_MARKS

    def __post_init__(self) -> None:
        self._check(self.given, self.channels, "samples")
        self.marks.check(len(self))
        if self.other_targets is not None:
            self._check(self.other_targets, self.other_channels, "target samples")
        elif self.other_channels:
            raise ValueError(f"the target channels are {self.other_channels}, but no target samples are given")
        if self.num_steps > 1 and len(self.target_channels) != self.num_steps * len(self.channels):
            raise ValueError(
                f"expected {self.num_steps} steps of {len(self.channels)} channels; got {len(self.target_channels)}"
            )

    def _check(self, samples: Samples, channels: tuple[str, ...], what: str) -> None:
        # stored values were checked to be finite when they were opened
        pos, mask, values = samples.pos, samples.mask, None if samples.stored else samples.values
        shape, dtype = (
            (samples.stored.shape, torch.float32) if samples.stored else (samples.values.shape, samples.values.dtype)
        )
        n, expected = len(self.names), (len(self.names), shape[1] if len(shape) == 3 else -1)
        if dtype not in (torch.float32, torch.float64) or tuple(shape) != (*expected, len(channels)):
            raise ValueError(
                f"the values of the {what} are {dtype} {tuple(shape)}; pass float32 or float64 "
                f"({n}, N, {len(channels)}) for {n} names and {len(channels)} channels"
            )
        if pos.dtype != torch.float64 or pos.shape != (*expected, len(self.coordinates)):
            raise ValueError(
                f"the positions of the {what} are {pos.dtype} {tuple(pos.shape)}; pass float64 "
                f"{(*expected, len(self.coordinates))}"
            )
        if mask is not None and (mask.dtype != torch.bool or mask.shape != expected):
            raise ValueError(f"the mask of the {what} is {mask.dtype} {tuple(mask.shape)}; pass bool {expected}")
        for i in (samples.counts == 0).nonzero()[:1, 0].tolist():
            raise ValueError(f"{self.names[i]}: has no {what}; expected at least one")
        # positions that all functions share are checked once
        places = pos[:1] if pos.stride(0) == 0 and mask is None else pos
        for name, tensor in (("position", places), ("value", values)):
            if tensor is None:
                continue
            wrong = ~tensor.isfinite().all(-1)
            for i, k in (wrong if mask is None else wrong & mask).nonzero()[:1].tolist():
                found = ", ".join(f"{number:g}" for number in tensor[i, k].tolist())
                raise ValueError(
                    f"{self.names[i]}: the {name} of sample {k} of the {what} is {found}; expected "
                    f"finite numbers of at most {LARGEST:.2g} in size"
                )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def targets(self) -> Samples:
        """Samples of the target functions, which may be the inputs."""
        return self.given if self.other_targets is None else self.other_targets

    @property
    def target_channels(self) -> tuple[str, ...]:
        """Names of the target channels."""
        return self.channels if self.other_targets is None else self.other_channels

    @property
    def keys(self) -> SplitKeys:
        """Names, groups and times of the functions."""
        return self.marks.keys(self.names, [0] * len(self))

    @property
    def shards(self) -> Tensor | None:
        """Sizes of shards of functions that are contiguous on the disk, see `Task.train_shards`."""
        return None if self.given.stored is None else self.given.stored.shards

    def parts(self) -> Iterator[Self]:
        """Yields the functions in parts whose values are read together."""
        samples = (self.given, self.targets)
        size = max(1, sum(each.pos.shape[1] * each.num_channels for each in samples))
        for indices in torch.arange(len(self)).split(max(1, CHUNK // size)):
            yield self.select(indices)

    def states(self) -> Samples:
        """States of trajectories at all times, as functions of their own."""
        times = self.num_steps + 1
        states = torch.cat([self.given.values, self.targets.values], dim=-1)
        states = states.unflatten(-1, (times, -1)).movedim(2, 0).flatten(0, 1)
        mask = None if self.given.mask is None else self.given.mask.repeat(times, 1)
        return Samples(self.given.pos.repeat(times, 1, 1), states, mask)

    def select(self, indices: Tensor) -> Self:
        """Returns some of the functions, int64 `(B,)`, in this order."""
        return type(self)(
            given=self.given.select(indices),
            other_targets=None if self.other_targets is None else self.other_targets.select(indices),
            coordinates=self.coordinates,
            channels=self.channels,
            other_channels=self.other_channels,
            names=tuple(self.names[i] for i in indices.tolist()),
            num_steps=self.num_steps,
            marks=self.marks.select(indices),
        )


def pack(pos: list[Tensor], values: list[Tensor], coordinates: int, channels: int) -> Samples:
    """Joins samples of functions: at the points that functions have in common, else padded to the longest.

    Raises:
        ValueError: the padded arrays would be too large (`check_expansion`).
    """
    if (common := _common_points(pos)) is not None:
        points, index = common
        kept, n = kept_type(*(own.numpy() for own in values)), len(pos)
        every = torch.from_numpy(np.zeros((n, len(points), channels), kept))
        exists = torch.zeros(n, len(points), dtype=torch.bool)
        function = torch.arange(n).repeat_interleave(torch.tensor([len(own) for own in pos]))
        every[function, index] = torch.from_numpy(as_kept(torch.cat(values).numpy(), kept))
        exists[function, index] = True
        return Samples(points.expand(n, -1, -1), every, None if bool(exists.all()) else exists)
    longest = max((len(own) for own in pos), default=0)
    n, kept = len(pos), kept_type(*(own.numpy() for own in values))
    each = 8 * coordinates + np.dtype(kept).itemsize * channels + 1
    check_expansion(
        f"{n:,} functions, padded to the longest of {longest:,} samples,",
        n * longest * each,
        sum(map(len, pos)) * each,
        "thin out the longest ones, or leave them out",
    )
    all_pos = torch.zeros(n, longest, coordinates, dtype=torch.float64)
    all_values = torch.from_numpy(np.zeros((n, longest, channels), kept))
    mask = torch.zeros(n, longest, dtype=torch.bool)
    for i, (own_pos, own_values) in enumerate(zip(pos, values, strict=True)):
        all_pos[i, : len(own_pos)] = own_pos
        all_values[i, : len(own_pos)] = torch.from_numpy(as_kept(own_values.numpy(), kept))
        mask[i, : len(own_pos)] = True
    return Samples(all_pos, all_values, None if bool(mask.all()) else mask)


def _common_points(pos: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Returns points `(K, s)` of which each function has some, and the index of each of its samples among them.

    None where functions have at most half of such points on average, or list theirs in another order than row by row.
    """
    every = torch.cat(pos) if pos else torch.zeros(0, 1)
    if not len(every):
        return None
    step = every.diff(dim=0)
    # sign of the first coordinate that changes; a function's first sample follows on that of another one
    moves = step.gather(1, (step != 0).byte().argmax(1, keepdim=True))[:, 0]
    within = torch.ones(len(step), dtype=torch.bool)
    starts = torch.tensor([len(own) for own in pos]).cumsum(0)[:-1]
    within[starts[(starts > 0) & (starts < len(every))] - 1] = False
    if not bool((moves[within] > 0).all()):
        return None
    points, index = every.unique(dim=0, return_inverse=True)
    return None if len(points) * len(pos) >= 2 * len(every) else (points, index)


def refuse_doubles(samples: Samples, names: Sequence[str], what: str) -> None:
    """Raises a ValueError, with the name of a function, where two of its samples are at one point."""
    is_shared = samples.mask is None and samples.pos.stride(0) == 0
    count = 1 if is_shared else len(samples.pos)
    for i in range(min(count, len(samples.pos))):
        index = torch.arange(samples.pos.shape[1]) if samples.mask is None else samples.mask[i].nonzero()[:, 0]
        pos = samples.pos[i, index]
        place, times = (pos + 0.0).unique(dim=0, return_inverse=True, return_counts=True)[1:]
        twice = (times[place] > 1).nonzero()[:, 0]
        if len(twice):
            pair = [int(index[n]) + 1 for n in (place == place[twice[0]]).nonzero()[:2, 0]]
            raise ValueError(
                f"{names[i]}: {what} {pair[0]} and {pair[1]} lie at one place; a function has one value there"
            )
