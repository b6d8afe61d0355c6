"""Standardising series and filling their gaps."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self, final

import torch
from torch import Tensor

from fredholm.encoders.series import interpolated, nearest_observed

from .series_set import Series

Fill = Literal["mean", "last", "linear"]
"""The value in place of a missing one: the mean of its channel; the last observed value, the mean before any; or linear
interpolation between the observed samples before and after it, the nearest one at the ends."""


@final
@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Standardises each channel, fills missing values, and adds channels that mark observed values.

    Args:
        mean: mean of the observed training values of each channel.
        deviation: their deviation; 1 for a constant channel.
        observation: channels with missing training values; for each a further channel is 1 where its value is observed,
            else 0. Where all channels are always missing together, only the first is listed, and one channel marks all
            (CKConv, section 5).
        limit: largest absolute standardised value, at which values are clipped; above 0. None: no limit.
        fill: the value in place of a missing one. The paper's networks read 0, the mean.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    observation: tuple[int, ...] = ()
    limit: float | None = None
    fill: Fill = "mean"

    @classmethod
    def learn(cls, train: Series, limit: float | None = None, fill: Fill = "mean") -> Self:
        """The preparation for a training set.

        Raises:
            ValueError: a channel is never observed.
        """
        count, width = 0, len(train.channels)
        counts, sums, squares = (torch.zeros(width, dtype=torch.float64) for _ in range(3))
        together = True
        for values, observed in _samples(train):
            count, counts = count + len(values), counts + observed.sum(0)
            sums = sums + values.nan_to_num(0.0).sum(0)
            together = together and bool((observed == observed[:, :1]).all())
        for c in (counts == 0).nonzero()[:1, 0].tolist():
            raise ValueError(f"channel {train.channels[c]!r} has no observed value in training; take it out")
        mean = sums / counts
        for values, _ in _samples(train):
            squares = squares + (values - mean).nan_to_num(0.0).square().sum(0)
        deviation = (squares / counts).sqrt()
        is_constant = deviation <= 1e-12 * mean.abs()  # rounding of the sums
        missing = (counts < count).nonzero()[:, 0].tolist()
        return cls(
            mean=tuple(mean.tolist()),
            deviation=tuple(torch.where(is_constant, 1.0, deviation).tolist()),
            observation=tuple(missing[:1] if together else missing),
            limit=limit,
            fill=fill,
        )

    @property
    def num_channels(self) -> int:
        """Number of channels that `apply` returns."""
        return len(self.mean) + len(self.observation)

    def apply(self, values: Tensor) -> Tensor:
        """Prepares values `(..., T, C)`, NaN where missing; returns finite ones `(..., T, num_channels)`, float32."""
        mean, deviation = (
            torch.tensor(each, dtype=torch.float64, device=values.device) for each in (self.mean, self.deviation)
        )
        observed = ~values.isnan()
        standard = ((values.double() - mean) / deviation).nan_to_num(0.0)
        if self.fill == "last":
            standard = _carried(standard, observed)
        elif self.fill == "linear":
            standard = interpolated(standard, observed)
        if self.limit is not None:
            standard = standard.clamp(-self.limit, self.limit)
        return torch.cat([standard, observed[..., list(self.observation)].double()], dim=-1).float()

    def warn_of_gaps(self, series: Series) -> None:
        """Warns where values are missing in channels that were complete in training."""
        if self.observation:
            return
        gaps = torch.zeros(len(series.channels), dtype=torch.bool)
        for some in series.chunks():
            gaps |= (some.values.isnan() & some.exists[..., None]).any(0).any(0)
        if names := [name for name, has_gaps in zip(series.channels, gaps.tolist(), strict=True) if has_gaps]:
            warnings.warn(
                f"values are missing in {', '.join(names)}, but none were in training; "
                f"they are replaced as fill={self.fill} says",
                stacklevel=2,
            )


def _samples(series: Series) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields all samples, float64 `(k, C)`, and the mask of their observed values, some series at a time."""
    for some in series.chunks():
        values = some.values[some.exists].double()
        yield values, ~values.isnan()


def _carried(values: Tensor, observed: Tensor) -> Tensor:
    """Values `(..., T, C)`, which are 0 where not observed, with the last observed one in place of such 0, if any."""
    before, _ = nearest_observed(observed)
    return values.gather(-2, before.clamp_min(0))
