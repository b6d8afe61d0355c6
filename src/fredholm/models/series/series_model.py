"""What the models of series have in common: how they are built."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, final

from torch import nn


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SeriesSampling:
    """What the series of a training set look like.

    Args:
        channels: C, those of the series.
        spacing: time between two samples, on the average where it changes; above 0.
        extent: longest time between two samples of one series, in the same unit; above 0.
        observation: the channels of which the last ones say, by 1 and 0, where they were observed.
    """

    channels: int
    spacing: float
    extent: float
    observation: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.channels < 1 or not 0 < self.spacing < float("inf") or not 0 < self.extent < float("inf"):
            raise ValueError(
                "models.SeriesSampling: expected channels of at least 1, and a finite spacing and extent above 0; got "
                f"channels={self.channels}, spacing={self.spacing}, extent={self.extent}"
            )
        values = self.channels - len(self.observation)
        if self.observation and not 0 <= min(self.observation) <= max(self.observation) < values:
            raise ValueError(
                f"models.SeriesSampling: observation must name some of the first {values} of {self.channels} channels; "
                f"got {self.observation}"
            )

    @property
    def longest(self) -> int:
        """Samples of the longest series at this spacing."""
        return round(self.extent / self.spacing) + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeriesModelConfig(abc.ABC):
    """A model that takes a `SeriesBatch` and gives one vector a series."""

    learns_by_steps: ClassVar[bool] = True
    """Whether training goes on in steps, so that something is chosen by a validation split."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises a ValueError where the model answers at every sample, and one answer is wanted of a series."""

    @abc.abstractmethod
    def build(self, sampling: SeriesSampling, num_outputs: int) -> nn.Module:
        """A new model, from the global torch seed.

        Args:
            sampling: of the training series.
            num_outputs: such as one logit a class.
        """
