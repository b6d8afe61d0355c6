"""A bank of filters, combined with a kernel machine and trees on a series' summaries and means over time intervals.

Legend
    S, t_j, u_j     observed samples of a channel, and their times and values
    n, Δ            number of samples of a series, and the time between two in training
    v_i             a channel read at every Δ, by linear interpolation (`FilterBank.on_grid`);  s² its variance
    P, Q            equal parts of a series' own time, from its first sample to its last
    k               lags 1, 2, 3, 4, 6, 8, 12, .., up to a quarter of the longest series
    W               number of samples over which waves are measured, of j / 2W cycles per sample, j = 1 .. W

    numbers         of each channel the nine summaries (`summary_bank.py`); the means of u_j in the P parts, where empty
                    parts are interpolated linearly, and its deviations in the Q parts; the variogram
                    mean_i (v_{i+k} - v_i)² / 2 s², i.e. 1 minus the autocorrelation at lag k; the shares of the
                    duration at which u_j is first largest and first smallest; skewness and kurtosis; of the power of v
                    the strongest wave, the mean wave, and the logarithms of the shares of half octaves of waves.  Of
                    two channels the product of their means, their correlation, and the lag of -M .. M samples at which
                    it is largest, with its size there.  Of a series log n,  (t_n - t_1) / Δ,  and mean and deviation
                    of log (t_{j+1} - t_j) / Δ
    outputs         combined predictions of both (`second_reading.py`)

Pooled filters lose the time of an event, and a linear model of them has no interactions. The kernel and the trees use
times and interactions, but describe few shapes. Lags and waves are those of the spectrum, which a linear model of
shares above thresholds shows badly: a frequency is no sum of such shares.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm._settings import check_count
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.models.fitted.banks.filter_bank import FilterBank
from fredholm.models.fitted.banks.summary_bank import NUM_SUMMARIES, observations, separated, summarise
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
MOST_LAGS = 24
"""Approximate number of lags of all channels, of half octaves, and of parts in which deviations are measured."""
MOST_SPREADS = 8
"""Most parts of a series in which the deviation of a channel is measured."""
MOST_WAVED = 256
"""Most samples over which waves are measured; of a longer series the power is added over parts of so many samples."""
MOST_PAIRED = 6
"""Most channels for which numbers of two channels are read."""
NUM_OF_PAIR = 4
MOST_SHIFTED = 32
"""Largest lag M between two channels, which is at most a quarter of the longest series."""
_LEAST_POWER = 1e-4
"""Share of the power that is added before a logarithm."""
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
        self.lags = _lags(sampling.longest)[: max(1, MOST_LAGS // channels)]
        self.num_waved = min(sampling.longest, MOST_WAVED)
        spreads = min(MOST_SPREADS, MOST_LAGS // channels, sampling.longest)
        bands = min(MOST_LAGS // channels, 2 * self.num_waved.bit_length() - 5)
        # a single part is the whole series, and a single band all power
        self.num_spreads, self.num_bands = (count if count > 1 else 0 for count in (spreads, bands))
        self.num_shifts = min(MOST_SHIFTED, sampling.longest // 4)
        paired = channels if channels <= MOST_PAIRED else 0
        self.register_buffer("_pairs", torch.triu_indices(paired, paired, 1), persistent=False)
        of_each = NUM_SUMMARIES + self.num_places + self.num_spreads + len(self.lags) + self.num_bands + NUM_OF_COURSE
        count = channels * of_each + NUM_OF_PAIR * self._pairs.shape[1] + NUM_OF_TIMES
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
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits the bank and the machine, and chooses their shares; see `FittedModel.fit`."""
        return self.second.fit(self.bank, self.numbers, batches, regressand, groups=groups, weights=weights)

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
        steady, lengths = self.bank.on_grid(given)
        lies_within = torch.arange(steady.shape[2], device=steady.device) < lengths[:, None]
        evenly = separated(steady.transpose(1, 2), self.sampling, lies_within)
        power = _power(*evenly, self.num_waved)
        found = [
            summaries,
            places.flatten(1),
            _deviations(values, observed, part, self.num_spreads),
            _variogram(*evenly, self.lags),
            _bands(power, self.num_bands),
            _correlations(*evenly, self._pairs, self.num_shifts),
            _extremes(values, observed, part),
            _moments(values, observed),
            _waves(power),
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


def _centred(values: Tensor, observed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values about their mean, 0 where not observed, `(B, N, C)`, and variance and whether they vary `(B, 1, C)`."""
    number = observed.sum(1, keepdim=True).clamp_min(1)
    values = torch.where(observed, values, 0.0).double()
    centred = torch.where(observed, values - values.sum(1, keepdim=True) / number, 0.0)
    variance = centred.square().sum(1, keepdim=True) / number
    return centred, variance, variance.sqrt() > _SAME * values.abs().amax(1, keepdim=True)


def _moments(values: Tensor, observed: Tensor) -> Tensor:
    """Skewness and kurtosis of each channel, `(B, 2 C)`, 0 where it is constant; NaN: no values."""
    centred, variance, varies = _centred(values, observed)
    z = torch.where(varies, centred / torch.where(varies, variance, 1.0).sqrt(), 0.0)
    found = torch.stack([z**3, z**4], 1).sum(2) / observed.sum(1).clamp_min(1)[:, None]
    return torch.where(observed.any(1)[:, None], found, torch.nan).flatten(1)


def _deviations(values: Tensor, observed: Tensor, part: Tensor, count: int) -> Tensor:
    """Deviations of each channel in `count` equal parts of the duration, `(B, count C)`; NaN: no values."""
    if not count:
        return values.new_zeros(values.shape[0], 0)
    at = (part * count).floor().long().clamp(0, count - 1)[..., None].expand(values.shape)
    rounding = _SAME * torch.where(observed, values, 0.0).abs().amax(1, keepdim=True)
    centred = _centred(values, observed)[0]
    nothing = centred.new_zeros(values.shape[0], count, values.shape[2])
    number = nothing.scatter_add(1, at, observed.double())
    mean = nothing.scatter_add(1, at, centred) / number.clamp_min(1)
    squares = torch.where(observed, centred - mean.gather(1, at), 0.0).square()
    found = (nothing.scatter_add(1, at, squares) / number.clamp_min(1)).sqrt()
    return torch.where(number > 0, torch.where(found > rounding, found, 0.0), torch.nan).flatten(1)


def _variogram(values: Tensor, observed: Tensor, lags: Sequence[int]) -> Tensor:
    """Half the mean squared difference of values `lags` samples apart, over the variance, `(B, lags C)`.

    0 where a channel is constant; NaN where no such values are observed.
    """
    centred, variance, varies = _centred(values, observed)
    unit, found = torch.where(varies, 2 * variance, 1.0)[:, 0], list[Tensor]()
    for lag in lags:
        both = observed[:, lag:] & observed[:, :-lag]
        number = both.sum(1)
        squares = torch.where(both, centred[:, lag:] - centred[:, :-lag], 0.0).square().sum(1)
        ratio = torch.where(varies[:, 0], squares / number.clamp_min(1) / unit, 0.0)
        found.append(torch.where(number > 0, ratio, torch.nan))
    return torch.stack(found, 1).flatten(1)


def _correlations(values: Tensor, observed: Tensor, pairs: Tensor, most: int) -> Tensor:
    """Correlation of two channels, its size at the lag of at most `most` samples where it is largest, and that lag.

    `(B, 3 pairs)`, in absolute terms largest; 0 where a channel is constant, NaN where the two are never observed.
    """
    centred, variance, varies = _centred(values, observed)
    scaled = torch.where(varies, centred / torch.where(varies, variance, 1.0).sqrt(), 0.0)
    first, other = scaled[..., pairs[0]], scaled[..., pairs[1]]
    has_first, has_other = observed[..., pairs[0]], observed[..., pairs[1]]
    lags = sorted(range(-most, most + 1), key=abs)  # of equal correlations that of the shortest lag counts
    found, length = list[Tensor](), values.shape[1]
    for lag in lags:
        early, late = slice(0, max(0, length - abs(lag))), slice(min(length, abs(lag)), length)
        own, far = (early, late) if lag >= 0 else (late, early)
        number = (has_first[:, own] & has_other[:, far]).sum(1)
        found.append((first[:, own] * other[:, far]).sum(1) / number.clamp_min(1))
    each = torch.stack(found, -1)
    size = each.abs()
    at = (size >= (1 - _SAME) * size.amax(-1, keepdim=True)).int().argmax(-1, keepdim=True)
    lag = torch.tensor(lags, device=each.device, dtype=each.dtype)[at[..., 0]]
    both = torch.stack([each[..., 0], each.gather(-1, at)[..., 0], lag], 1)
    known = (has_first & has_other).any(1)[:, None]
    return torch.where(known, both, torch.nan).flatten(1)


def _power(values: Tensor, observed: Tensor, width: int) -> Tensor:
    """Shares of waves of j / (2 width) cycles per sample, j = 1 .. width, in the power of each channel `(B, C, width)`.

    All are 0 where it is constant, NaN where it has no values. Power is added over parts of `width` samples.
    """
    centred, _, varies = _centred(values, observed)
    parts = F.pad(centred.transpose(1, 2), (0, -values.shape[1] % width)).unflatten(-1, (-1, width))
    steps = torch.arange(width, device=values.device, dtype=torch.float64)
    angle = math.pi * steps[:, None] * (steps + 1) / width
    power = ((parts @ angle.cos()).square() + (parts @ angle.sin()).square()).sum(-2)
    total = power.sum(-1, keepdim=True)
    share = torch.where(varies.transpose(1, 2) & (total > 0), power / torch.where(total > 0, total, 1.0), 0.0)
    return torch.where(observed.any(1)[..., None], share, torch.nan)


def _bands(power: Tensor, count: int) -> Tensor:
    """Logarithms of the power of waves in half octaves, the fastest first, the last with all others, `(B, count C)`."""
    waves = torch.arange(1, power.shape[-1] + 1, device=power.device)
    octaves = (waves / power.shape[-1]).log2().mul(-2).floor().long().clamp_max(count - 1)
    of_band = octaves == torch.arange(count, device=power.device)[:, None]
    return (power @ of_band.to(power.dtype).T + _LEAST_POWER).log().flatten(1)


def _waves(power: Tensor) -> Tensor:
    """Cycles per sample of the strongest wave, and mean by power, `(B, 2 C)`; 0: constant; NaN: no values."""
    width = power.shape[-1]
    cycles = torch.arange(1, width + 1, device=power.device, dtype=torch.float64) / (2 * width)
    is_strongest = power >= (1 - _SAME) * power.amax(-1, keepdim=True)
    strongest = torch.where(power.amax(-1) > 0, cycles[is_strongest.int().argmax(-1)], 0.0)
    centre = power @ cycles
    return torch.stack([torch.where(centre.isnan(), torch.nan, strongest), centre], 1).flatten(1)


def _lags(longest: int) -> list[int]:
    """Lags 1, 2, 3, 4, 6, 8, 12, .., up to a quarter of the longest series, one at least."""
    octaves = [2**n for n in range(longest.bit_length())]
    lags = sorted({*octaves, *(3 * lag // 2 for lag in octaves)})
    return [lag for lag in lags if lag <= max(1, longest // 4)]


def _gaps(times: Tensor, exists: Tensor) -> Tensor:
    """Gaps between consecutive existing samples, `(B, N - 1)`, 0 after the last, from times `(B, N)`."""
    batch, length = times.shape
    # existing samples are moved to the front, the others to a column that is not read
    place = torch.where(exists, exists.long().cumsum(1) - 1, length)
    kept = times.new_zeros(batch, length + 1).scatter_add(1, place, torch.where(exists, times, 0.0))[:, :length]
    follows = torch.arange(1, length, device=times.device) < exists.sum(1, keepdim=True)
    return torch.where(follows, kept.diff(dim=1), 0.0)
