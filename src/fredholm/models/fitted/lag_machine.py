"""A linear function of a series' last samples, combined with a kernel machine on them.

Legend
    u_N, u_{N-1}, ..    the samples of a series, the last one first, with C channels each
    L                   number of lags that the kernel reads, of each channel

    f           a bank of filters, by default a ridge regression on u_N, u_{N-1}, ..
    g           a kernel machine on u_{N-k+1} / √k, k = 1 .. L
    outputs     combined predictions of both (`second_reading.py`)

Distances depend most on the last samples; 1 / √k was chosen on generated series, chaotic, thresholded and saturated.
For a linear series left-out errors give g no share.

Source: regression on delayed samples (Takens, Detecting strange attractors in turbulence, 1981; Farmer and Sidorowich,
Predicting chaotic time series, 1987), here by kernel ridge regression, with its share chosen by left-out errors.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.encoders.series import SeriesBatch
from fredholm.models.fitted.banks.filter_bank import FilterBank
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.kernel_machine import KernelMachine
from fredholm.models.fitted.ridge_head import Regressand
from fredholm.models.fitted.second_reading import SecondReading
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling

MOST_LAGS = 1024
"""Default number of lags of the linear function."""
CHOSEN = 500
"""Most training series on which the kernel is chosen."""


def _linear() -> FilterBank.Config:
    return FilterBank.Config(num_thresholds=0, num_groups=0, num_lags=MOST_LAGS)


@final
class LagMachine(FittedModel[SeriesBatch]):
    """Predicts from the last samples of a series by a linear function and a kernel machine.

    Args:
        sampling: sampling of the training series.
        num_outputs: number of outputs, such as the next samples.
        config: sizes.

    Raises:
        ValueError: on sizes below 1.
    """

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SeriesModelConfig):
        """Sizes."""

        learns_by_steps: ClassVar[bool] = False

        bank: FilterBank.Config = dataclasses.field(default_factory=_linear)
        """Configuration of the linear function; thresholds and groups add features of filters."""
        num_coordinates: int = 96
        """Most coordinates of the kernel; each channel has an equal number of lags, at least one."""
        num_centres: int = 1024
        """Most training series that are centres of the kernel; the fit uses all series."""

        def __post_init__(self) -> None:
            check_count("models.LagMachine", "num_coordinates", self.num_coordinates)
            check_count("models.LagMachine", "num_centres", self.num_centres)

        @property
        def proxy(self) -> FilterBank.Config:
            """See `SeriesModelConfig.proxy`: the linear function."""
            return self.bank

        def check(self) -> None:
            """See `SeriesModelConfig.check`: there is nothing to check, as there is one output per series."""

        def build(self, sampling: SeriesSampling, num_outputs: int) -> "LagMachine":
            """See `SeriesModelConfig.build`."""
            return LagMachine(sampling, num_outputs, self)

    def __init__(self, sampling: SeriesSampling, num_outputs: int, config: Config) -> None:
        super().__init__()
        self.config, self.sampling = config, sampling
        self.bank = config.bank.build(sampling, num_outputs)
        self.num_lags = max(1, min(config.num_coordinates // sampling.channels, sampling.longest))
        machine = KernelMachine(
            self.num_lags * sampling.channels, num_outputs, config.num_centres, num_rounds=0, num_chosen=CHOSEN
        )
        self.second = SecondReading(machine, num_outputs)

    def forward(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Maps a batch to outputs `(B, num_outputs)`, which are all equal before a fit."""
        return self.second(self.bank(inputs), self.coordinates(inputs))

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[SeriesBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits both, and chooses their shares; see `FittedModel.fit`."""
        return self.second.fit(self.bank, self.coordinates, batches, regressand, groups=groups, weights=weights)

    @torch.no_grad()
    def coordinates(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Returns u_{N-k+1} / √k of each channel, oldest first, `(B, C * L)`; 0 before a series' first sample."""
        lags = self.bank.lags(inputs, self.num_lags).unflatten(1, (-1, self.num_lags))
        k = torch.arange(self.num_lags, 0, -1, device=lags.device)
        return (lags / k.to(lags.dtype).sqrt()).flatten(1)
