"""The series that a run of forecasts learns from and is measured on."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from fredholm.tasks.files.terminal_text import counted

from .base import Base, learn_base
from .calendar import NO_CALENDAR, Calendar
from .clock import Clock
from .effect import Effect, learn_effect
from .known_ahead import check_known
from .long_series import LongSeries, observed_before
from .windows import Ranges, WindowSet

Opened = tuple[list[LongSeries], Clock, tuple[str, ...]]
"""Series, their clock, and the names of their channels."""
LEAST_PEAK = 0.3
"""The smallest autocorrelation at a season."""


@final
class Shape(NamedTuple):
    """Context, horizon and season, in samples."""

    context: int
    horizon: int
    season: int


@final
class History:
    """Series, their predicted and known channels, and their splits by time.

    With channels that are known ahead, a series ends with the last observed sample of a predicted channel.

    Args:
        opened: the series.
        where: the name of the data in messages.
        predicted: the predicted channels; (): all that are not known ahead.
        known: the channels that are known ahead.
        reads_calendar: whether the calendar may be used.
        test_fraction, valid_fraction: the shares of every series for the test part, its last samples, and for the
            validation part, the samples before them.

    Raises:
        ValueError: a name is not that of a channel, or is both predicted and known; a fraction is out of range; a
            known channel lacks a value where another is observed; a series has no value of a predicted channel.
    """

    def __init__(
        self,
        opened: Opened,
        where: str,
        *,
        predicted: Sequence[str],
        known: tuple[str, ...],
        reads_calendar: bool,
        test_fraction: float,
        valid_fraction: float,
    ) -> None:
        series, self.clock, self.channels = opened
        self.where = where
        for name in (*predicted, *known):
            if name not in self.channels:
                raise ValueError(f"{where} has no channel {name!r}; the channels are {', '.join(self.channels)}")
        if (twice := next((name for name in known if known.count(name) > 1), None)) is not None:
            raise ValueError(f"known names {twice!r} twice; name it once")
        if both := [name for name in known if name in predicted]:
            raise ValueError(f"{both[0]!r} is predicted and known ahead; take it out of channels or of known")
        self.predicted = tuple(predicted) or tuple(name for name in self.channels if name not in known)
        self.known = tuple(known)
        if not self.predicted:
            raise ValueError(f"all channels of {where} are known ahead: {', '.join(known)}; leave one to be predicted")
        self.columns = [self.channels.index(name) for name in self.predicted]
        ahead = {name: self.channels.index(name) for name in known}
        self.known_columns = tuple(ahead.values())
        if known:
            series = [each.until(each.last_observed(self.columns)) for each in series]
            if empty := [each.name for each in series if not len(each)]:
                what = f"{where}: {empty[0]} has no value of {', '.join(self.predicted)}"
                raise ValueError(f"{what}; take it out, or fill some")
            for each in series:
                check_known(each, ~each.values[:, self.columns].isnan().all(1), ahead, self.clock, where)
        self.series = series
        self._effects = dict[tuple[int, int], Effect | None]()
        self._bases = dict[tuple[int, int], Base | None]()
        self._fractions = {"test_fraction": test_fraction, "valid_fraction": valid_fraction}
        self._reads_calendar = reads_calendar

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """Ends of the training part and of the validation part of each series, in samples."""
        for name, share in self._fractions.items():
            if not 0 <= share < 1:
                raise ValueError(f"{name} is {share}; expected a share from 0 to below 1")
        found = []
        for each in self.series:
            held = [math.ceil(round(share * len(each), 9)) for share in self._fractions.values()]
            end = len(each) - held[0]
            found.append((max(0, end - held[1]), end))
        return found

    @cached_property
    def values(self) -> list[Tensor]:
        """See `observed_before`."""
        return observed_before(self.series)

    def with_calendar(self, effect: Effect | None) -> tuple[list[Tensor], tuple[int, ...]]:
        """The values, then `Effect.calendar_terms`, and the indices of the columns that are known ahead."""
        if effect is None or not effect.num_calendar:
            return self.values, self.known_columns
        clock, count = self.clock, len(self.channels)
        values = [effect.with_calendar(v, s.start, clock) for v, s in zip(self.values, self.series, strict=True)]
        return values, (*self.known_columns, *range(count, count + effect.num_calendar))

    @cached_property
    def truth(self) -> list[Tensor]:
        """The predicted channels of each series, `(T, F)`, NaN where missing."""
        return [each.values[:, self.columns] for each in self.series]

    def deviation(self, effect: Effect | None) -> tuple[float, ...]:
        """The deviation in training of each column of `with_calendar`, over all series; 1 for one that is constant.

        Raises:
            ValueError: a channel is never observed there.
        """
        known = torch.cat([each.values[:end] for each, (end, _) in zip(self.series, self.ends, strict=True)])
        for c in known.isnan().all(0).nonzero()[:1, 0].tolist():
            raise ValueError(f"channel {self.channels[c]!r} has no observed value in training; take it out")
        values, _ = self.with_calendar(effect)
        terms = [each[:end, len(self.channels) :] for each, (end, _) in zip(values, self.ends, strict=True)]
        known = torch.cat([known, torch.cat(terms)], 1)
        centred = known - known.nanmean(0)
        found = centred.square().nanmean(0).sqrt()
        return tuple(torch.where(found > 1e-12 * known.nanmean(0).abs(), found, 1.0).tolist())

    def shape(self, context: int | None, horizon: int | None, season: int | None) -> Shape:
        """The shape, as given or by rule.

        Raises:
            ValueError: the training part of a series is too short for it.
        """
        season, shortest, train = season or self._season(), self._by_length[0], min(self.ends)[0]
        context, horizon = self._reach(shortest, context, horizon, season)
        if train < context + horizon:
            instead = "make one of them shorter" if context * horizon > 1 else "give it more samples, or leave it out"
            samples = counted(len(self.series[shortest]), "sample")
            raise ValueError(
                f"{self.where}: the training part of {self._called(shortest)} has {train} of its {samples}; expected "
                f"context={context} and horizon={horizon} together at least; {instead}"
            )
        return Shape(context, horizon, season)

    def note_on_shortest(self, context: int | None, horizon: int | None, season: int) -> str | None:
        """A note if one short series halves the context or the horizon of all others; None: no series does.

        Args:
            context, horizon: as given; None: by rule.
            season: see `Shape`.
        """
        shortest, middle = self._by_length[0], self._by_length[len(self.series) // 2]
        found, usual = (self._reach(i, context, horizon, season) for i in (shortest, middle))
        if all(2 * here > there for here, there in zip(found, usual, strict=True)):
            return None
        samples, steps = counted(len(self.series[shortest]), "sample"), counted(found[1], "sample")
        return (
            f"{self._called(shortest)} has {samples}, so that every series is predicted {steps} ahead from {found[0]}; "
            f"without the short ones, which can be left out, it would be {usual[1]} ahead from {usual[0]}"
        )

    @cached_property
    def _by_length(self) -> list[int]:
        """The indices of the series, the shortest first."""
        return sorted(range(len(self.series)), key=lambda i: len(self.series[i]))

    def _called(self, i: int) -> str:
        return "the series" if len(self.series) == 1 else f"the series {self.series[i].name!r}"

    def _reach(self, i: int, context: int | None, horizon: int | None, season: int) -> tuple[int, int]:
        """Context and horizon, as given or by the rule for series as long as this one."""
        size, (train, end) = len(self.series[i]), self.ends[i]
        if horizon is None:
            horizon = max(1, min(season if season > 1 else 10, (size - end or size) // 2))
            horizon = max(1, min(horizon, self.longest_observed))
        return context or max(1, min(3 * max(season, horizon), train // 3)), horizon

    @property
    def longest_observed(self) -> int:
        """The longest run of samples observed in all predicted channels, in the part where it is shortest.

        Parts are those for training, validation and testing; a part without an observed sample does not count, except
        for that of training.
        """
        found = [0, 0, 0]
        for each, ends in zip(self.truth, self.ends, strict=True):
            for i, part in enumerate(each.tensor_split(ends)):
                missing = torch.nn.functional.pad(part.isnan().any(1), (1, 1), value=True)
                found[i] = max(found[i], int(missing.nonzero()[:, 0].diff().max()) - 1)
        train, *held_out = found
        return min([train, *(longest for longest in held_out if longest)])

    def _season(self) -> int:
        """The season of the clock, or else by autocorrelation of the training part."""
        if self.clock.season is not None:
            return self.clock.season
        return find_season([each[:end] for each, (end, _) in zip(self.values, self.ends, strict=True)])

    def windows(
        self,
        split: Literal["train", "valid", "test"],
        *,
        context: int,
        horizon: int,
        least: int,
        most: int,
        effect: Effect | None,
    ) -> WindowSet:
        """Windows whose answers lie within a split, see `WindowSet.within`; in training after `least` samples."""
        bounds = {
            "train": lambda _, train, __: Ranges(least, train),
            "valid": lambda _, train, valid: Ranges(train, valid),
            "test": lambda size, _, valid: Ranges(valid, size),
        }[split]
        values, ahead = self.with_calendar(effect)
        return WindowSet.within(
            values,
            self.truth,
            [bounds(len(each), *end) for each, end in zip(self.series, self.ends, strict=True)],
            context=context,
            horizon=horizon,
            most=most,
            ahead=ahead,
        )

    def effect(self, season: int, reach: int) -> Effect | None:
        """The effect of the known channels and the calendar in the training part, see `learn_effect`."""
        ends = [end for end, _ in self.ends]
        calendar = Calendar.candidates(self.clock, max(ends)) if self._reads_calendar else NO_CALENDAR
        if not (self.known_columns or calendar.groups):
            return None
        if (season, reach) not in self._effects:
            self._effects[season, reach] = learn_effect(
                self.values,
                self.truth,
                ends,
                self.columns,
                self.known_columns,
                season=season,
                reach=reach,
                calendar=calendar,
                starts=[each.start for each in self.series],
                clock=self.clock,
            )
        return self._effects[season, reach]

    def base(self, horizon: int, season: int, effect: Effect | None) -> Base | None:
        """The base forecast from the training part less the effect, see `learn_base`."""
        if (horizon, season) not in self._bases:
            values, ahead = self.with_calendar(effect)
            self._bases[horizon, season] = learn_base(
                values,
                self.truth,
                [end for end, _ in self.ends],
                self.columns,
                horizon=horizon,
                season=season,
                effect=effect,
                ahead=ahead,
            )
        return self._bases[horizon, season]


def find_season(series: Sequence[Tensor]) -> int:
    """The season of series `(T, C)` without gaps, in samples, for data without a calendar; 1: no season.

    Let d_t be the first differences of a series, standardised, which removes a trend, and r_k = Σ_t d_t d_{t+k} /
    Σ_t d_t² its autocorrelation, averaged over series and channels, each with all its samples. The season is the k from
    2 to a third of the shortest series with the largest r_k that is above LEAST_PEAK and above its neighbours.
    """
    most = min(len(each) for each in series) // 3
    if most < 3:
        return 1
    found = torch.zeros(most + 2, dtype=torch.float64)
    count = 0
    for each in series:
        d = each.diff(dim=0)
        d = d - d.mean(0)
        power = d.square().sum(0)
        for c in power.nonzero()[:, 0].tolist():
            wide = torch.fft.rfft(d[:, c], n=2 * len(d))
            found += torch.fft.irfft(wide * wide.conj(), n=2 * len(d))[: most + 2] / power[c]
            count += 1
    if not count:
        return 1
    r = found / count
    peaks = [k for k in range(2, most + 1) if r[k] > LEAST_PEAK and r[k] >= r[k - 1] and r[k] >= r[k + 1]]
    return max(peaks, key=lambda k: float(r[k]), default=1)
