"""An ITNet of time series, with any kernel."""

import dataclasses
from typing import final

from fredholm.encoders.series import Series
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import MLPConfig
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling


def _stack() -> ITNet.Config:
    kernel = MLPConfig(width=32, num_frequencies=16)
    return ITNet.Config(embed_dim=64, depth=4, kernel=kernel, pool="mean")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ITNetSeriesConfig(SeriesModelConfig):
    """An ITNet whose points are the samples of a series.

    Positions are times in units of the longest series of training, and a series' samples have mass 1 in all. The
    kernels of the stack may be any: perceptrons, attention, convolutions, the selective state space of Mamba, sums.
    """

    stack: ITNet.Config = dataclasses.field(default_factory=_stack)
    """The blocks, and what the head reads."""

    def check(self) -> None:
        """See `SeriesModelConfig.check`."""
        if self.stack.pool == "none":
            raise ValueError("model.stack.pool is 'none'; leave it out, since a series has one class")

    def build(self, sampling: SeriesSampling, num_outputs: int) -> ITNet:
        """See `SeriesModelConfig.build`."""
        encoder = Series(sampling.channels, self.stack.embed_dim, spacing=sampling.spacing, extent=sampling.extent)
        return ITNet(encoder, num_outputs, self.stack)
