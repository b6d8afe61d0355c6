"""An ITNet of time series with any kernel."""

import dataclasses
from typing import Self, final

from fredholm.encoders.series import Series
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import MLPConfig
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling
from fredholm.models.stack import Stack, stack_of


def _stack() -> ITNet.Config:
    kernel = MLPConfig(width=32, num_frequencies=16)
    return ITNet.Config(embed_dim=64, depth=4, kernel=kernel, pool="mean")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ITNetSeriesConfig(SeriesModelConfig):
    """An ITNet whose points are the samples of a series.

    Positions are times in units of the longest training series, and a series' samples have total mass 1. The
    kernels of the stack may be any: perceptrons, attention, convolutions, the selective state space of Mamba, sums.
    """

    stack: ITNet.Config = dataclasses.field(default_factory=_stack)
    """The blocks and the pooling."""

    def check(self) -> None:
        """See `SeriesModelConfig.check`."""
        if self.stack.pool == "none":
            raise ValueError("model.stack.pool is 'none'; leave it out, since a series has one class")

    def answering_everywhere(self) -> Self:
        """See `SeriesModelConfig.answering_everywhere`."""
        if self.stack.pool not in ("none", _stack().pool, ITNet.Config().pool):
            raise ValueError(f"model.stack.pool is {self.stack.pool!r}, but each sample needs an output; leave it out")
        return dataclasses.replace(self, stack=dataclasses.replace(self.stack, pool="none"))

    def build(self, sampling: SeriesSampling, num_outputs: int) -> ITNet:
        """See `SeriesModelConfig.build`."""
        encoder = Series(sampling.channels, self.stack.embed_dim, spacing=sampling.spacing, extent=sampling.extent)
        return ITNet(encoder, num_outputs, self.stack)


def series_stack(model: SeriesModelConfig) -> Stack:
    """The stack of an ITNet of series; the default stack for a fitted model, which has none.

    Raises:
        ValueError: another network.
    """
    if isinstance(model, ITNetSeriesConfig):
        return model.stack
    return stack_of(model) if model.learns_by_steps else ITNetSeriesConfig().stack


def with_series_stack(model: SeriesModelConfig, stack: Stack) -> ITNetSeriesConfig:
    """The ITNet of series with another stack."""
    assert isinstance(stack, ITNet.Config)
    whole = model if isinstance(model, ITNetSeriesConfig) else ITNetSeriesConfig()
    return dataclasses.replace(whole, stack=stack)
