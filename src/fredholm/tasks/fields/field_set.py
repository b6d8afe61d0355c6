"""Samples of functions: the frozen value that every reader gives."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor

from fredholm.tasks.files.limits import check_expansion
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Divisible
from fredholm.tasks.splits.stratified_split import SplitKeys


class Samples(NamedTuple):
    """Values of n functions, each at points of its own."""

    pos: Tensor
    """float64 `(n, N, s)`, finite; the same memory n times where all functions have the same points."""
    values: Tensor
    """float32 `(n, N, m)`, finite; 0 where no sample is."""
    mask: Tensor | None
    """bool `(n, N)`, True = this sample exists; None: all do."""

    @property
    def exists(self) -> Tensor:
        """Which samples are there, `(n, N)` bool."""
        return torch.ones(self.pos.shape[:2], dtype=torch.bool) if self.mask is None else self.mask

    def select(self, indices: Tensor) -> "Samples":
        """Those of some functions, int64 `(B,)`, in this order."""
        return Samples(self.pos[indices], self.values[indices], None if self.mask is None else self.mask[indices])


@final
@dataclass(frozen=True, kw_only=True)
class FieldSet(Divisible):
    """n functions, by samples that are given and samples of what is wanted.

    Args:
        given: of each function.
        wanted: of what is to be told of it, elsewhere or of another kind; None: what is given.
        coordinates: names of the s coordinates.
        channels: names of the m given values.
        wanted_channels: names of the wanted values; empty: those of the given ones.
        names: where each function came from, for messages.
        num_steps: of a trajectory T: what is wanted is what is given T steps on, at the same points, the m values of
            the first step before those of the second.
        marks: the groups and times of functions.

    Raises:
        ValueError: shapes or types do not agree, a function has no sample, a position or value is NaN or infinite. The
            message begins with the function's name.
    """

    shared: ClassVar[tuple[str, ...]] = ("coordinates", "channels", "target_channels")

    given: Samples
    wanted: Samples | None = None
    coordinates: tuple[str, ...]
    channels: tuple[str, ...]
    wanted_channels: tuple[str, ...] = ()
    names: tuple[str, ...]
    num_steps: int = 1
    marks: SplitMarks = NO_MARKS

    def __post_init__(self) -> None:
        self._check(self.given, self.channels, "samples")
        self.marks.check(len(self))
        if self.wanted is not None:
            self._check(self.wanted, self.wanted_channels, "wanted samples")
        elif self.wanted_channels:
            raise ValueError(f"the wanted channels are {self.wanted_channels}, but no wanted samples are given")
        if self.num_steps > 1 and len(self.target_channels) != self.num_steps * len(self.channels):
            raise ValueError(
                f"{self.num_steps} steps of {len(self.channels)} channels are wanted; {len(self.target_channels)} came"
            )

    def _check(self, samples: Samples, channels: tuple[str, ...], what: str) -> None:
        pos, values, mask = samples
        n, expected = len(self.names), (len(self.names), values.shape[1] if values.ndim == 3 else -1)
        if values.dtype != torch.float32 or values.shape != (*expected, len(channels)):
            raise ValueError(
                f"the values of the {what} are {values.dtype} {tuple(values.shape)}; pass float32 ({n}, N, "
                f"{len(channels)}) for {n} names and {len(channels)} channels"
            )
        if pos.dtype != torch.float64 or pos.shape != (*expected, len(self.coordinates)):
            raise ValueError(
                f"the positions of the {what} are {pos.dtype} {tuple(pos.shape)}; pass float64 "
                f"{(*expected, len(self.coordinates))}"
            )
        if mask is not None and (mask.dtype != torch.bool or mask.shape != expected):
            raise ValueError(f"the mask of the {what} is {mask.dtype} {tuple(mask.shape)}; pass bool {expected}")
        exists = torch.ones(expected, dtype=torch.bool) if mask is None else mask
        for i in (~exists.any(1)).nonzero()[:1, 0].tolist():
            raise ValueError(f"{self.names[i]}: has no {what}; expected at least one")
        # positions that all functions share are looked at once
        places = pos[:1] if pos.stride(0) == 0 else pos
        for name, tensor in (("position", places), ("value", values)):
            for i, k in (~tensor.isfinite().all(-1) & exists).nonzero()[:1].tolist():
                found = ", ".join(f"{number:g}" for number in tensor[i, k].tolist())
                raise ValueError(
                    f"{self.names[i]}: the {name} of sample {k + 1} of the {what} is {found}; expected finite numbers"
                )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def targets(self) -> Samples:
        """What is wanted of each function, be it what is given."""
        return self.given if self.wanted is None else self.wanted

    @property
    def target_channels(self) -> tuple[str, ...]:
        """The names of the targets' values."""
        return self.channels if self.wanted is None else self.wanted_channels

    @property
    def keys(self) -> SplitKeys:
        """Names, groups and times."""
        return self.marks.keys(self.names, [0] * len(self))

    def select(self, indices: Tensor) -> Self:
        """Some of the functions, int64 `(B,)`, in this order."""
        return type(self)(
            given=self.given.select(indices),
            wanted=None if self.wanted is None else self.wanted.select(indices),
            coordinates=self.coordinates,
            channels=self.channels,
            wanted_channels=self.wanted_channels,
            names=tuple(self.names[i] for i in indices.tolist()),
            num_steps=self.num_steps,
            marks=self.marks.select(indices),
        )


def pack(pos: list[Tensor], values: list[Tensor], coordinates: int, channels: int) -> Samples:
    """Samples of functions that have numbers of their own, padded to the longest.

    Raises:
        ValueError: padded they would become too large (`check_expansion`).
    """
    longest = max((len(own) for own in pos), default=0)
    n = len(pos)
    each = 8 * coordinates + 4 * channels + 1
    check_expansion(
        f"{n:,} functions, padded to the longest of {longest:,} samples,",
        n * longest * each,
        sum(map(len, pos)) * each,
        "thin out the longest ones, or leave them out",
    )
    all_pos, all_values = torch.zeros(n, longest, coordinates, dtype=torch.float64), torch.zeros(n, longest, channels)
    mask = torch.zeros(n, longest, dtype=torch.bool)
    for i, (own_pos, own_values) in enumerate(zip(pos, values, strict=True)):
        all_pos[i, : len(own_pos)], all_values[i, : len(own_pos)] = own_pos, own_values
        mask[i, : len(own_pos)] = True
    return Samples(all_pos, all_values, None if bool(mask.all()) else mask)
