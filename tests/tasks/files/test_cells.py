import math

import pytest

from fredholm.tasks.files.cells import is_date, parse_number, parse_time, parse_value
from tests.refusals import refused


@pytest.mark.parametrize("text", ["", " ", "?", "NaN", "nan", "NA", "n/a", "null", "None"])
def test_what_stands_for_a_missing_value(text: str) -> None:
    assert math.isnan(parse_value(text))


def test_numbers() -> None:
    assert [parse_value(text) for text in ("1", " -2.5 ", "3e-2", "+.5")] == [1, -2.5, 0.03, 0.5]


@pytest.mark.parametrize("text", ["abc", "1,5", "inf", "-Infinity", "1e999", "1_000", "0x1"])
def test_text_among_numbers(text: str) -> None:
    with refused(ValueError, f"{text!r} is no finite number"):
        parse_value(text)


def test_a_number_may_be_infinite_or_none_and_is_written_as_in_other_programs() -> None:
    assert [parse_number(text) for text in (" 1", "-2.5e3", "inf")] == [1, -2500, math.inf]
    assert math.isnan(parse_number("nan"))
    for text in ("", "x", "1_0", "_1", "1,5"):
        with refused(ValueError, f"{text!r} is no number; write one"):
            parse_number(text)


def test_a_number_is_no_date() -> None:
    assert [is_date(text) for text in ("2026-01-31", "5", "1e3", "1970-01-02_00:00")] == [True, False, False, True]


def test_dates_are_seconds() -> None:
    assert parse_time("12.5") == 12.5
    assert parse_time("1970-01-02") == 86400
    assert parse_time(" 1970-01-01 00:01:30.5") == 90.5
    assert parse_time("1970-01-01T02:00:00+02:00") == 0
    assert parse_time("1970-01-02_00:00") == 86400


@pytest.mark.parametrize("text", ["", "noon", "nan", "inf", "31.12.2025", "1_0"])
def test_what_is_no_time(text: str) -> None:
    with refused(ValueError, f"{text!r} is no time; expected"):
        parse_time(text)
