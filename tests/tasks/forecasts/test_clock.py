"""Clocks of series: even steps, working days, months, gaps."""

import datetime

import numpy as np
import pytest
import torch

from fredholm.tasks.forecasts import Clock
from tests.refusals import refused

DAY = 86400.0


def dates(*texts: str) -> np.ndarray:
    return np.array([datetime.datetime.fromisoformat(f"{text}+00:00").timestamp() for text in texts])


def test_even_times_with_gaps() -> None:
    clock = Clock.of([np.array([3.0, 3.5, 5.0]), np.array([7.0])], is_dated=False)
    assert clock == Clock(step=0.5)
    assert clock.places(np.array([3.0, 3.5, 5.0])).tolist() == [0, 1, 4]
    assert (clock.after(5.0, 3), clock.text(6.5), clock.season) == (6.5, 6.5, None)
    with refused(ValueError, "times are not evenly spaced: 2.7 is 1.7 steps of 1 units of time after 1"):
        Clock.of([np.array([1.0, 2.7, 3.7])], is_dated=False)
    with refused(ValueError, "every series has one sample"):
        Clock.of([np.array([1.0])], is_dated=False)


@pytest.mark.parametrize(
    ("texts", "step", "season", "after"),
    [
        (("2025-12-01", "2026-01-01", "2026-03-01"), 1.0, 12, "2026-04-01"),
        (("2025-12-31", "2026-01-31", "2026-02-28"), 1.0, 12, "2026-03-31"),
        (("2024-01-15", "2024-04-15", "2024-10-15"), 3.0, 4, "2025-01-15"),
        (("2023-05-01", "2024-05-01", "2025-05-01"), 12.0, 1, "2026-05-01"),
        (("2026-01-28", "2026-02-28"), 1.0, 12, "2026-03-28"),
        (("2026-02-28", "2026-03-28"), 1.0, 12, "2026-04-28"),
        (("2026-03-30", "2026-04-30"), 1.0, 12, "2026-05-30"),
        (("2026-01-30", "2026-02-28", "2026-03-30"), 1.0, 12, "2026-04-30"),
        (("2025-11-30", "2025-12-30", "2026-01-30"), 1.0, 12, "2026-02-28"),
        (("2024-01-29", "2024-02-29"), 1.0, 12, "2024-03-29"),
        (("2026-02-28", "2026-04-30"), 2.0, 6, "2026-06-30"),
    ],
)
def test_months(texts: tuple[str, ...], step: float, season: int, after: str) -> None:
    times = dates(*texts)
    clock = Clock.of([times], is_dated=True)
    assert clock == Clock(step=step, in_months=True, is_dated=True)
    assert clock.season == season
    day = clock.day(times)
    assert clock.text(clock.after(float(times[-1]), 1, day)) == after
    places = clock.places(times).tolist()
    assert [clock.after(float(times[0]), place, day) for place in places] == times.tolist()
    assert clock.text(clock.after(float(times[0]), places[-1] + 1, day)) == after
    with refused(ValueError, f"from {texts[0]} to", f"; expected steps of {step:g} month"):
        clock.places(np.append(times, times[-1] + DAY))


def test_days_and_hours() -> None:
    week = Clock.of([dates("2026-01-01", "2026-01-08", "2026-01-29")], is_dated=True)
    assert (week.step, week.in_months, week.season) == (7 * DAY, False, 52)
    assert Clock(step=DAY, is_dated=True).season == 7
    assert Clock(step=3600.0, is_dated=True).season == 24
    assert Clock(step=2 * DAY, is_dated=True).season is None
    hours = Clock(step=3600.0, is_dated=True)
    evening = float(dates("2026-01-01T22:00")[0])
    found = [hours.text(hours.after(evening, k)) for k in (1, 2, 3)]
    assert found == ["2026-01-01T23:00:00", "2026-01-02T00:00:00", "2026-01-02T01:00:00"]  # in one form
    noon = Clock(step=DAY, is_dated=True)
    assert noon.text(evening) == "2026-01-01T22:00:00"
    assert noon.text(evening + 7200) == "2026-01-02"
    old = Clock(step=DAY, is_dated=True)  # as stored by runs that did not record whether dates had a zone
    for has_zone in (True, False, None):
        assert Clock(step=DAY, is_dated=True, has_zone=has_zone).may_be(old)
        assert old.may_be(Clock(step=DAY, is_dated=True, has_zone=has_zone))
    assert not Clock(step=DAY, is_dated=True, has_zone=True).may_be(Clock(step=DAY, is_dated=True, has_zone=False))
    assert not Clock(step=2 * DAY, is_dated=True, has_zone=True).may_be(old)
    zoned = Clock(step=DAY, is_dated=True, has_zone=True)
    assert zoned.text(evening + 7200) == "2026-01-02T00:00:00+00:00"
    assert Clock.of([dates("2026-01-01", "2026-01-02")], is_dated=True, has_zone=True) == zoned
    assert hours.day(dates("2026-01-01T22:00")) == 0
    with refused(
        ValueError,
        "times are not evenly spaced: 2026-01-03T00:00:00 is 6.85714 steps of 25200 seconds after 2026-01-01T00:00",
    ):
        Clock.of([dates("2026-01-01", "2026-01-03", "2026-01-05", "2026-01-05T07:00")], is_dated=True)


def test_fractions_of_seconds_do_not_drift() -> None:
    start = float(dates("2026-01-01T00:00")[0])
    tenths = np.array([start + k / 10 for k in range(90)])  # float64 has steps of 2.4e-7 s there
    clock = Clock.of([tenths[:5], tenths], is_dated=True)
    assert clock.step == 0.1
    assert clock.text(clock.after(float(tenths[0]), 90)) == "2026-01-01T00:00:09"
    assert clock.text(clock.after(float(tenths[0]), 91)) == "2026-01-01T00:00:09.100000"


WORKING = tuple(range(5))


@pytest.mark.parametrize("weekdays", [WORKING, (0, 1, 2, 3, 4, 5), (1, 2, 4, 5, 6), (5, 6)])
def test_days_without_some_weekdays(weekdays: tuple[int, ...]) -> None:
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(t) for t in range(40)]  # from a Thursday on
    times = dates(*(str(day) for day in days if day.weekday() in weekdays)) + 9.5 * 3600
    clock = Clock.of([np.delete(times, [3, 7]), times[4:7]], is_dated=True)  # without two holidays
    assert clock == Clock(step=DAY, is_dated=True, weekdays=weekdays)
    assert (clock.season, clock.span(50)) == (len(weekdays), pytest.approx(350 * DAY / len(weekdays)))
    assert clock.places(np.delete(times, [3, 7])).tolist() == [k for k in range(len(times)) if k not in (3, 7)]
    assert [clock.after(float(times[1]), k) for k in range(len(times) - 1)] == times[1:].tolist()
    every = torch.from_numpy(times)
    steps = torch.arange(len(times)).double()
    for k in (0, 7, len(times) - 1):
        torch.testing.assert_close(clock.later(every[k], steps - k), every, rtol=0, atol=0)


def test_weekdays_are_skipped_only_if_they_have_no_sample() -> None:
    worked = dates(*(f"2026-01-{day:02}" for day in range(1, 31) if day % 7 not in (3, 4))) + 9.5 * 3600
    clock, every_day = Clock(step=DAY, is_dated=True, weekdays=WORKING), Clock(step=DAY, is_dated=True)
    assert (clock.skipped, every_day.skipped) == (("Saturday", "Sunday"), ())
    assert clock.step_in_words == "a day (no Saturday or Sunday)"
    assert clock.text(clock.after(float(worked[1]), 1)) == "2026-01-05T09:30:00"
    with refused(ValueError, "2026-01-10T09:30:00 is a Saturday, on which", "leave such days out"):
        clock.places(dates("2026-01-09", "2026-01-10") + 9.5 * 3600)
    with refused(
        ValueError, "not evenly spaced: 2026-01-09T09:30:00 is 1.5 steps of a day (no Saturday or Sunday) after"
    ):
        clock.places(dates("2026-01-08", "2026-01-09") + np.array([-2.5, 9.5]) * 3600)
    assert Clock.of([worked], is_dated=True) == clock
    assert Clock.of([worked[:6]], is_dated=True) == every_day  # a single weekend may be missing by chance
    assert Clock.of([worked[:6], worked[3:8]], is_dated=True) == clock  # one in each series
    # Wednesdays alone are missing twice, Saturdays and Sundays once
    assert Clock.of([np.delete(worked, [4, 9])[:8]], is_dated=True) == every_day
    with_saturday = np.sort(np.append(worked, worked[1] + DAY))
    assert Clock.of([with_saturday], is_dated=True).weekdays == (*WORKING, 5)
    assert Clock.of([worked], is_dated=False).weekdays == every_day.weekdays
