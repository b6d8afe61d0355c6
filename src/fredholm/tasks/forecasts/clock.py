"""The times of samples: evenly spaced, daily on some weekdays alone, or once in a fixed number of months."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.terminal_text import counted

DAY = 86400.0
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
Numbers = TypeVar("Numbers", np.ndarray, Tensor)
LEAST_SKIPPED = 2
"""Smallest number of days on a weekday, all without samples, for a clock that skips the weekday."""
ROUNDING = 1e-3
"""Seconds by which a time may lie before its whole second."""
_SAME = 1e-3


@final
@dataclass(frozen=True, kw_only=True)
class Clock:
    """The time from one sample to the next.

    Args:
        step: time between two samples, in the unit of the times or in months; above 0.
        in_months: whether the step is a number of months: samples are at one day of the month, or at the last where a
            month is shorter.
        is_dated: whether times are seconds since 1970, written as dates.
        has_zone: whether these dates have a time zone, which is then UTC; None: unknown, or there are no dates.
        weekdays: weekdays with samples, 0 for Monday to 6, ascending; the others are skipped, if the step is a day.
    """

    step: float
    in_months: bool = False
    is_dated: bool = False
    has_zone: bool | None = None
    weekdays: tuple[int, ...] = tuple(range(7))

    @classmethod
    def of(cls, times: Sequence[np.ndarray], *, is_dated: bool, has_zone: bool | None = None) -> "Clock":
        """The clock of some series, with the smallest step between their samples.

        Args:
            times: increasing times of each series, `(samples,)`; at least one series has two samples.
            is_dated: see `Clock`.
            has_zone: see `Clock`; ignored without dates.

        Raises:
            ValueError: times are not evenly spaced.
        """
        has_zone = has_zone if is_dated else None
        steps = np.concatenate([np.diff(each) for each in times])
        if not len(steps):
            raise ValueError("every series has one sample; expected many")
        if is_dated and steps.min() > 27 * DAY and all(_are_monthly(each) for each in times):
            months = np.concatenate([np.diff(_months(each)) for each in times])
            return cls(step=float(np.gcd.reduce(months)), in_months=True, is_dated=True, has_zone=has_zone)
        found = cls(step=float(steps.min()), is_dated=is_dated, has_zone=has_zone)
        places = [int(found.places(each)[-1]) for each in times]
        # the longest series has the smallest rounding error of a step
        i = int(np.argmax(places))
        step = float(times[i][-1] - times[i][0]) / places[i]
        found = replace(found, step=round(step, 6) or step if is_dated else step)
        return replace(found, weekdays=_weekdays_with_samples(times)) if is_dated and found.step == DAY else found

    def may_be(self, other: "Clock") -> bool:
        """Whether both clocks are the same, where an unknown time zone may be any."""
        is_known = None not in (self.has_zone, other.has_zone)
        return self == (other if is_known else replace(other, has_zone=self.has_zone))

    def places(self, times: np.ndarray) -> np.ndarray:
        """Numbers of steps from the first of increasing times, int64.

        Raises:
            ValueError: a time is between two steps, on another day on a clock of months, or on a skipped weekday.
        """
        if self.in_months and not _are_monthly(times):
            raise ValueError(
                f"times from {self.text(float(times[0]))} to {self.text(float(times[-1]))} are not all at one day and "
                f"time of the month; expected steps of {self.step_in_words}: sample the series so"
            )
        passed = (_months(times) - _months(times[:1])) / self.step if self.in_months else (times - times[0]) / self.step
        found = np.rint(passed)
        for i in np.flatnonzero(np.abs(passed - found) > _SAME)[:1].tolist():
            raise ValueError(
                f"times are not evenly spaced: {self.text(float(times[i]))} is {passed[i]:g} steps of "
                f"{self.step_in_words} after {self.text(float(times[0]))}; sample the series evenly, or set bin, a "
                "duration over which samples are averaged"
            )
        if not self.skipped:
            return found.astype(np.int64)
        days = _days(times)
        for i in np.flatnonzero(~np.isin(weekday_of(days), self.weekdays))[:1].tolist():
            raise ValueError(
                f"{self.text(float(times[i]))} is a {WEEKDAYS[int(weekday_of(days[i]))]}, on which the series that the "
                "clock was made for have no samples: leave such days out"
            )
        return (self._number(days) - self._number(days[:1])).astype(np.int64)

    def day(self, times: np.ndarray) -> int:
        """The day of the month of the samples; 31: the last day, 0: the step is not in months."""
        if not self.in_months:
            return 0
        moments = [_moment(time) for time in times.tolist()]
        are_last = all(moment.day == _days_of(_month(moment)) for moment in moments)
        return 31 if are_last else max(moment.day for moment in moments)

    def after(self, time: float, steps: int, day: int = 0) -> float:
        """The time `steps` steps later.

        Args:
            time: time of a sample.
            steps: number of steps, at least 0.
            day: day of the month of the series (see `day`); 0: that of `time`.
        """
        if not self.in_months:
            return float(self.later(torch.tensor(time, dtype=torch.float64), torch.tensor(float(steps))))
        moment = _moment(time)
        month = _month(moment) + round(steps * self.step)
        return moment.replace(
            year=month // 12, month=month % 12 + 1, day=min(day or moment.day, _days_of(month))
        ).timestamp()

    def later(self, times: Tensor, steps: Tensor) -> Tensor:
        """Times some steps after others, or before, float64; on a clock without months.

        Args:
            times: times of samples, float64.
            steps: numbers of steps; both shapes are broadcast.
        """
        if not self.skipped:
            return times + self.step * steps
        days, count = _days(times), len(self.weekdays)
        number = self._number(days) + steps
        week = torch.div(number, count, rounding_mode="floor")
        place = number - count * week
        steps_up = zip(range(1, count), np.diff(self.weekdays).tolist(), strict=True)
        weekday = self.weekdays[0] + sum(up * (place >= k).double() for k, up in steps_up)
        return times + DAY * (7 * week + weekday - 3 - days)

    def _number(self, days: Numbers) -> Numbers:
        """Numbers of days since 1970 among those with samples."""
        place = sum((weekday_of(days) > weekday) * 1.0 for weekday in self.weekdays)
        return len(self.weekdays) * ((days + 3) // 7) + place

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the weekdays that are skipped."""
        return tuple(name for number, name in enumerate(WEEKDAYS) if number not in self.weekdays)

    def text(self, time: float) -> str | float:
        """The time as text: a number, or an ISO 8601 date.

        A date alone for whole days at midnight; with a zone, a time in UTC.
        """
        if not self.is_dated:
            return time
        moment = _moment(time)
        if self.has_zone:
            return moment.isoformat()
        has_days_alone = (self.in_months or self.step % DAY == 0) and time % DAY == 0
        return moment.date().isoformat() if has_days_alone else moment.replace(tzinfo=None).isoformat()

    @property
    def step_in_words(self) -> str:
        """The step with its unit, for messages."""
        if self.in_months:
            return counted(round(self.step), "month")
        if self.skipped:
            return f"a day (no {' or '.join(self.skipped)})"
        return f"{self.step:g} {self.unit}"

    @property
    def unit(self) -> str:
        """The unit of durations, for messages."""
        return "seconds" if self.is_dated else "units of time"

    @property
    def in_words(self) -> str:
        """The step and the kind of the times, for messages."""
        zone = {None: "", True: " with a zone", False: " without a zone"}[self.has_zone]
        return f"{self.step_in_words} from sample to sample, {f'dates{zone}' if self.is_dated else 'numbers as times'}"

    @property
    def season(self) -> int | None:
        """Samples of a day for steps below one, of a week for days, of a year for weeks and months; None: unknown."""
        if self.skipped:
            return len(self.weekdays)
        if self.in_months:
            return max(1, round(12 / self.step))
        if not self.is_dated:
            return None
        if self.step < DAY:
            return max(1, round(DAY / self.step))
        return {1: 7, 7: 52}.get(round(self.step / DAY))

    def span(self, samples: int) -> float:
        """About the time that some samples take, in the unit of the times; on a clock without months."""
        return samples * self.step * 7 / len(self.weekdays)


def _days(times: Numbers) -> Numbers:
    """Whole days since 1970."""
    return (times + ROUNDING) // DAY


def weekday_of(days: Numbers) -> Numbers:
    """From 0 for Monday to 6, of days since 1970, which began on a Thursday."""
    return (days + 3) % 7


def _weekdays_with_samples(times: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Weekdays on which some series has a sample; all seven if another one comes less than LEAST_SKIPPED times."""
    days = [_days(each) for each in times]
    found = tuple(np.unique(np.concatenate([weekday_of(each) for each in days])).astype(int).tolist())
    for weekday in {*range(7)}.difference(found):
        first = 3 - weekday  # as of weeks that begin on the day after it
        if sum(int((each[-1] + first) // 7 - (each[0] + first) // 7) for each in days) < LEAST_SKIPPED:
            return tuple(range(7))
    return found


def _moment(time: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time, tz=datetime.UTC)


def _month(moment: datetime.datetime) -> int:
    """Months since the year 0."""
    return moment.year * 12 + moment.month - 1


def _months(times: np.ndarray) -> np.ndarray:
    return np.array([_month(_moment(time)) for time in times.tolist()], np.int64)


def _days_of(month: int) -> int:
    first = datetime.date(month // 12, month % 12 + 1, 1)
    after = datetime.date((month + 1) // 12, (month + 1) % 12 + 1, 1)
    return (after - first).days


def _are_monthly(times: np.ndarray) -> bool:
    """Whether all times are on one day of the month, or the last day of a shorter one, and at one time of day."""
    moments = [_moment(time) for time in times.tolist()]
    at = {(moment.hour, moment.minute, moment.second) for moment in moments}
    day = max(moment.day for moment in moments)
    return len(at) == 1 and all(moment.day == min(day, _days_of(_month(moment))) for moment in moments)
