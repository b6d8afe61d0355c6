"""Coordinates of times by the calendar, which are known ahead.

Legend
    d, w, j      the day of a time, in whole days since 1970, its weekday from 0 for Monday, and the day of its month
    h            the hour of the day, with its fraction
    s            the time in seconds since 1970

    weekdays             1[w = k], k = 0 .. 5
    hours                sin and cos of 2π k h / 24, k = 1 .. HOUR_HARMONICS
    hours of weekends    these, k = 1 .. WEEKDAY_HARMONICS, times 1[w = 5], and times 1[w = 6]
    hours of weekdays    these, times 1[w = k], k = 0 .. 5
    ends of months       1 on the first two days, the fifteenth, the last two days, the first and the last working day
    year                 sin and cos of 2π k s / YEAR, k = 1 .. YEAR_HARMONICS

Dates with a time zone are those in UTC. A group is only of use for some steps, and in data that span it several times.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from .clock import DAY, ROUNDING, Clock, weekday_of

Group = Literal["weekdays", "hours", "hours of weekends", "hours of weekdays", "ends of months", "year"]
"""Coordinates that are used together."""
HOUR_HARMONICS, WEEKDAY_HARMONICS, YEAR_HARMONICS = 6, 4, 3
"""Numbers of harmonics."""
YEAR = 365.2425 * DAY
WEEK = 7 * DAY


@final
@dataclass(frozen=True, kw_only=True)
class Calendar:
    """Some groups of coordinates.

    Args:
        groups: their names.
    """

    groups: tuple[Group, ...]

    @classmethod
    def candidates(cls, clock: Clock, samples: int) -> "Calendar":
        """The groups that may matter for series of that many samples on a clock."""
        if not clock.is_dated or clock.in_months:
            return cls(groups=())
        span = clock.span(samples)
        return cls(groups=tuple(name for name, group in _GROUPS.items() if group.suits(clock.step, span)))

    def __len__(self) -> int:
        """K."""
        return sum(_GROUPS[name].size for name in self.groups)

    def columns_of(self, groups: Sequence[Group]) -> list[int]:
        """The columns of some of the groups."""
        sizes = [_GROUPS[name].size for name in self.groups]
        starts = dict(zip(self.groups, itertools.accumulate(sizes, initial=0), strict=False))
        return [k for name in groups for k in range(starts[name], starts[name] + _GROUPS[name].size)]

    def of(self, times: Tensor) -> Tensor:
        """The coordinates of times in seconds since 1970, float64 `(*,)`, `(*, K)`."""
        if not self.groups:
            return times.new_zeros(*times.shape, 0)
        return torch.cat([_GROUPS[name].columns(times + ROUNDING) for name in self.groups], -1)


NO_CALENDAR = Calendar(groups=())


def _days(times: Tensor) -> Tensor:
    return times.div(DAY, rounding_mode="floor").long()


def _is_weekday(times: Tensor, which: range) -> Tensor:
    weekday = weekday_of(_days(times))
    return torch.stack([weekday == k for k in which], -1).double()


def _harmonics(times: Tensor, period: float, count: int) -> Tensor:
    turn = 2 * math.pi * torch.remainder(times, period) / period
    return torch.stack([of(k * turn) for k in range(1, count + 1) for of in (torch.sin, torch.cos)], -1)


def _weekdays(times: Tensor) -> Tensor:
    return _is_weekday(times, range(6))


def _hours(times: Tensor) -> Tensor:
    return _harmonics(times, DAY, HOUR_HARMONICS)


def _hours_of(times: Tensor, which: range) -> Tensor:
    harmonics = _harmonics(times, DAY, WEEKDAY_HARMONICS)
    return (_is_weekday(times, which)[..., None] * harmonics[..., None, :]).flatten(-2)


def _hours_of_weekends(times: Tensor) -> Tensor:
    return _hours_of(times, range(5, 7))


def _hours_of_weekdays(times: Tensor) -> Tensor:
    return _hours_of(times, range(6))


def _year(times: Tensor) -> Tensor:
    return _harmonics(times, YEAR, YEAR_HARMONICS)


def _day_of_month(days: Tensor) -> Tensor:
    """The day of the month of days since 1970, counted in years from March (Hinnant, date algorithms, 2013)."""

    def whole(number: Tensor, by: int) -> Tensor:
        return number.div(by, rounding_mode="floor")

    in_era = (days + 719468) % 146097
    year = whole(in_era - whole(in_era, 1460) + whole(in_era, 36524) - whole(in_era, 146096), 365)
    in_year = in_era - (365 * year + whole(year, 4) - whole(year, 100))
    month = whole(5 * in_year + 2, 153)
    return in_year - whole(153 * month + 2, 5) + 1


def _ends_of_months(times: Tensor) -> Tensor:
    days = _days(times)
    weekday, day = weekday_of(days), _day_of_month(days)
    left = [_day_of_month(days + k) == 1 for k in (1, 2, 3)]
    first = (weekday < 5) & ((day == 1) | ((weekday == 0) & (day <= 3)))
    last = (left[0] & (weekday < 5)) | ((weekday == 4) & (left[1] | left[2]))
    return torch.stack([day == 1, day == 2, day == 15, left[1], left[0], first, last], -1).double()


@final
@dataclass(frozen=True, kw_only=True)
class _Group:
    """The coordinates of a group, where steps are shorter than `below`, and data span `span` at least, in seconds."""

    size: int
    columns: Callable[[Tensor], Tensor]
    below: float
    span: float

    def suits(self, step: float, span: float) -> bool:
        return step < self.below and span >= self.span


_UP_TO_A_DAY, _BELOW_A_DAY = 1.01 * DAY, 0.99 * DAY
_GROUPS: dict[Group, _Group] = {
    "weekdays": _Group(size=6, columns=_weekdays, below=_UP_TO_A_DAY, span=2 * WEEK),
    "hours": _Group(size=2 * HOUR_HARMONICS, columns=_hours, below=_BELOW_A_DAY, span=3 * DAY),
    "hours of weekends": _Group(
        size=4 * WEEKDAY_HARMONICS, columns=_hours_of_weekends, below=_BELOW_A_DAY, span=2 * WEEK
    ),
    "hours of weekdays": _Group(
        size=12 * WEEKDAY_HARMONICS, columns=_hours_of_weekdays, below=_BELOW_A_DAY, span=4 * WEEK
    ),
    "ends of months": _Group(size=7, columns=_ends_of_months, below=_UP_TO_A_DAY, span=YEAR / 4),
    "year": _Group(size=2 * YEAR_HARMONICS, columns=_year, below=27 * DAY, span=YEAR),
}
