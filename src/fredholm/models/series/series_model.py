"""The common interface of models of series."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar, Self, final

from fredholm._settings import class_name
from fredholm.models.saved_model import SavedModel


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SeriesSampling:
    """Description of the series of a training set.

    Args:
        channels: number C of channels.
        spacing: time between two samples, the mean where it varies; above 0.
        extent: longest time between two samples of one series, in the same unit; above 0.
        observation: indices of the channels whose observed samples the last channels mark by 1 and 0.
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
        """Number of samples of the longest series at this spacing."""
        return round(self.extent / self.spacing) + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeriesModelConfig(abc.ABC):
    """Configuration of a model from a `SeriesBatch` to one output vector per series, or per sample."""

    learns_by_steps: ClassVar[bool] = True
    """Whether the model is trained in steps, so that a validation split is needed to choose the best one."""

    @property
    def proxy(self) -> SeriesModelConfig:
        """A model that is faster to fit, by whose errors the context of forecasts is chosen; by default this one."""
        return self

    @abc.abstractmethod
    def check(self) -> None:
        """Raises a ValueError if the model has an output at every sample where one output per series is needed."""

    def answering_everywhere(self) -> Self:
        """Returns the settings with one output at every sample.

        Raises:
            ValueError: there is no such model, or another pooling was set.
        """
        raise ValueError(
            f"model is {class_name(self)}, which has one output for a whole series, but each sample is to be "
            "classified; take sample-machine, sample-pyramid, ckcnn or itnet-series"
        )

    def window_of_answers(self, window: int | None) -> int | None:
        """Most samples that the model reads at a time to answer, where it was trained on up to `window`; None: all."""
        return window

    @abc.abstractmethod
    def build(self, sampling: SeriesSampling, num_outputs: int) -> SavedModel:
        """Builds a model, with random numbers from the global torch seed.

        Args:
            sampling: sampling of the training series.
            num_outputs: number of outputs, such as one logit per class.
        """
