"""A bank of filters, combined with a kernel machine and trees on a series' summaries and means over time intervals.

Legend
    S, t_j, u_j     observed samples of a channel, and their times and values
    n, Δ            number of samples of a series, and the time between two in training
    P               `num_places` equal parts of a series' own time, from its first sample to its last

    numbers         of each channel the nine summaries (`summary_bank.py`); the means of u_j in the P parts, where empty
                    parts are interpolated linearly; the shares of the duration at which u_j is first largest and
                    first smallest; skewness and kurtosis; of the power of the P means in waves of 1 .. P/2 cycles the
                    strongest wave and the mean.  Of two channels the product of their means.  Of a series log n,
                    (t_n - t_1) / Δ,  and mean and deviation of log (t_{j+1} - t_j) / Δ
    outputs         combined predictions of both (`second_reading.py`)

Pooled filters lose the time of an event, and a linear model of them has no interactions. The kernel and the trees use
times and interactions, but describe few shapes.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.models.fitted.banks.filter_bank import FilterBank
from fredholm.models.fitted.banks.summary_bank import NUM_SUMMARIES, observations, summarise
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.ridge_head import Regressand
from fredholm.models.fitted.second_reading import SecondReading
from fredholm.models.fitted.table_machine import NumbersMachine
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling

MOST_NUMBERS = 96
"""Approximate number of summaries and means of a series, which limits its time intervals, at least one a channel."""
MOST_CHANNELS = 64
"""Most channels for which a series machine is the default of `fredholm train series`."""
NUM_OF_TIMES = 4
NUM_OF_COURSE = 6
"""Numbers of each channel on extremes, moments and frequencies."""
MOST_PAIRED = 6
"""Most channels for which products of the means of two channels are read."""
_SAME = 1e-6
"""Values that differ by at most this part of the largest magnitude are equal."""


@final
class SeriesMachine(FittedModel[SeriesBatch]):
    """Predicts from a series by a bank of filters, and by a kernel machine and trees on its summaries.

    Args:
        sampling: sampling of the training series.
        num_outputs: number of outputs, such as classes.
        config: sizes.

    Raises:
        ValueError: on sizes below 1.
    """

    _pairs: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SeriesModelConfig):
        """Sizes."""

        learns_by_steps: ClassVar[bool] = False

        bank: FilterBank.Config = dataclasses.field(default_factory=FilterBank.Config)
        """Configuration of the bank of filters."""
        num_places: int = 32
        """Most intervals of a series' time; fewer where series are shorter or have many channels."""
        num_centres: int = 1024
        """Most training series that are centres of the kernel; the fit uses all series."""
        num_trees: int = 100
        """Most trees of each fold; 0: no trees."""

        def __post_init__(self) -> None:
            check_count("models.SeriesMachine", "num_places", self.num_places)
            check_count("models.SeriesMachine", "num_centres", self.num_centres)
            check_count("models.SeriesMachine", "num_trees", self.num_trees, least=0)

        def check(self) -> None:
            """See `SeriesModelConfig.check`: there is nothing to check, as there is one output per series."""

        def build(self, sampling: SeriesSampling, num_outputs: int) -> "SeriesMachine":
            """See `SeriesModelConfig.build`."""
            return SeriesMachine(sampling, num_outputs, self)

    def __init__(self, sampling: SeriesSampling, num_outputs: int, config: Config) -> None:
        super().__init__()
        self.config, self.sampling = config, sampling
        self.bank = config.bank.build(sampling, num_outputs)
        self.encoder = Series(sampling.channels, spacing=sampling.spacing)
        channels = sampling.channels - len(sampling.observation)
        room = MOST_NUMBERS // channels - NUM_SUMMARIES
        self.num_places = max(1, min(config.num_places, sampling.longest, room))
        paired = channels if channels <= MOST_PAIRED else 0
        self.register_buffer("_pairs", torch.triu_indices(paired, paired, 1), persistent=False)
        count = channels * (NUM_SUMMARIES + NUM_OF_COURSE + self.num_places) + self._pairs.shape[1] + NUM_OF_TIMES
        may_miss = tuple(range(count - NUM_OF_TIMES)) if sampling.observation else ()
        machine = NumbersMachine(
            count, num_outputs, may_miss=may_miss, num_centres=config.num_centres, num_trees=config.num_trees
        )
        self.second = SecondReading(machine, num_outputs)

    def forward(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Maps a batch to outputs `(B, num_outputs)`, which are all equal before a fit."""
        return self.second(self.bank(inputs), self.numbers(inputs))

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[SeriesBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
    ) -> Tensor:
        """Fits the bank and the machine, and chooses their shares; see `FittedModel.fit`."""
        return self.second.fit(self.bank, self.numbers, batches, regressand, groups=groups)

    @torch.no_grad()
    def numbers(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Returns summaries, means over time intervals and of gaps, `(B, numbers)`; NaN where one is not defined."""
        given = inputs if isinstance(inputs, SeriesBatch) else SeriesBatch(inputs)
        values, observed, times, exists = observations(self.encoder, self.sampling, given)
        times = times.double() / self.sampling.spacing
        start = torch.where(exists, times, torch.inf).amin(1, keepdim=True)
        end = torch.where(exists, times, -torch.inf).amax(1, keepdim=True)
        lasts = torch.where(exists.any(1, keepdim=True), end - start, 0.0)
        count = exists.sum(1, keepdim=True)
        gap = _gaps(times, exists)
        lies = gap > 0
        number = lies.sum(1, keepdim=True).clamp_min(1)
        logs = torch.where(lies, torch.where(lies, gap, 1.0).log(), 0.0)
        level = logs.sum(1, keepdim=True) / number
        spread = (torch.where(lies, logs - level, 0.0).square().sum(1, keepdim=True) / number).sqrt()
        part = torch.where(exists, times - start, 0.0) / torch.where(lasts > 0, lasts, 1.0)
        place = (part * self.num_places).floor().long().clamp(0, self.num_places - 1)
        places = self._by_place(values, observed, place)
        summaries = summarise(values, observed, times, exists)
        means = summaries.unflatten(1, (-1, NUM_SUMMARIES))[..., 0]
        found = [
            summaries,
            places.flatten(1),
            _extremes(values, observed, part),
            _moments(values, observed),
            _frequencies(places),
            means[:, self._pairs[0]] * means[:, self._pairs[1]],
            torch.cat([count.clamp_min(1).log(), lasts, level, spread], 1),
        ]
        # always float32: quantiles are training values, and rounding would change the ranks of equal values
        return torch.cat([each.float() for each in found], 1)

    def _by_place(self, values: Tensor, observed: Tensor, place: Tensor) -> Tensor:
        """Means of observed values in each part, `(B, C, P)`, interpolated; NaN for a channel without any."""
        most, at = self.num_places, place[..., None].expand(values.shape)
        nothing = values.new_zeros((values.shape[0], most, values.shape[2]), dtype=torch.float64)
        total = nothing.scatter_add(1, at, torch.where(observed, values, 0.0).double()).transpose(1, 2)
        count = nothing.scatter_add(1, at, observed.double()).transpose(1, 2)
        known = count > 0
        mean = total / count.clamp_min(1)
        # the nearest parts with observed values to the left and to the right
        places = torch.arange(most, device=values.device)
        before = torch.where(known[..., None, :] & (places <= places[:, None]), places, -1).amax(-1)
        after = torch.where(known[..., None, :] & (places >= places[:, None]), places, most).amin(-1)
        left = torch.where(before >= 0, before, after).clamp(0, most - 1)
        right = torch.where(after < most, after, before).clamp(0, most - 1)
        share = (places - left) / (right - left).clamp_min(1)
        line = torch.lerp(mean.gather(-1, left), mean.gather(-1, right), share.to(mean.dtype))
        return torch.where(known.any(-1, keepdim=True), line, torch.nan)


def _extremes(values: Tensor, observed: Tensor, part: Tensor) -> Tensor:
    """Shares `part (B, N)` at which each channel is first largest and first smallest, `(B, 2 C)`; NaN: no values."""
    rounding, found = _SAME * torch.where(observed, values, 0.0).abs().amax(1, keepdim=True), list[Tensor]()
    for sign in (1, -1):
        signed = torch.where(observed, sign * values, -torch.inf)
        is_largest = observed & (signed >= signed.amax(1, keepdim=True) - rounding)
        first = is_largest.int().argmax(1, keepdim=True)
        found.append(part[..., None].expand(values.shape).gather(1, first)[:, 0])
    return torch.where(observed.any(1)[:, None], torch.stack(found, 1), torch.nan).flatten(1)


def _moments(values: Tensor, observed: Tensor) -> Tensor:
    """Skewness and kurtosis of each channel, `(B, 2 C)`, 0 where it is constant; NaN: no values."""
    number = observed.sum(1, keepdim=True).clamp_min(1)
    values = values.double()

    def mean(of: Tensor) -> Tensor:
        return torch.where(observed, of, 0.0).sum(1, keepdim=True) / number

    centred = values - mean(values)
    variance = mean(centred.square())
    varies = variance.sqrt() > _SAME * torch.where(observed, values, 0.0).abs().amax(1, keepdim=True)
    z = torch.where(varies, centred / torch.where(varies, variance, 1.0).sqrt(), 0.0)
    found = torch.cat([mean(z**3), mean(z**4)], 1)
    return torch.where(observed.any(1)[:, None], found, torch.nan).flatten(1)


def _frequencies(places: Tensor) -> Tensor:
    """Cycles of the strongest wave, and mean cycles, of means over parts `(B, C, P)`, `(B, 2 C)`; 0: constant."""
    count = places.shape[-1]
    k = torch.arange(1, count // 2 + 1, device=places.device, dtype=torch.float64)
    if not len(k):
        return places.new_zeros(places.shape[0], 2 * places.shape[1])
    centred = places.double() - places.double().mean(-1, keepdim=True)
    varies = centred.abs().amax(-1) > _SAME * places.abs().amax(-1)
    angle = 2 * math.pi * torch.arange(count, device=k.device)[:, None] * k / count
    power = (centred @ angle.cos()).square() + (centred @ angle.sin()).square()
    total = power.sum(-1)
    centre = (power @ k) / torch.where(varies, total, 1.0)
    is_strongest = power >= (1 - _SAME) * power.amax(-1, keepdim=True)
    strongest = k[is_strongest.int().argmax(-1)]
    found = torch.stack([torch.where(varies, strongest, 0.0), torch.where(varies, centre, 0.0)], 1)
    return torch.where(places.isnan().any(-1)[:, None], torch.nan, found).flatten(1)


def _gaps(times: Tensor, exists: Tensor) -> Tensor:
    """Gaps between consecutive existing samples, `(B, N - 1)`, 0 after the last, from times `(B, N)`."""
    batch, length = times.shape
    # existing samples are moved to the front, the others to a column that is not read
    place = torch.where(exists, exists.long().cumsum(1) - 1, length)
    kept = times.new_zeros(batch, length + 1).scatter_add(1, place, torch.where(exists, times, 0.0))[:, :length]
    follows = torch.arange(1, length, device=times.device) < exists.sum(1, keepdim=True)
    return torch.where(follows, kept.diff(dim=1), 0.0)
