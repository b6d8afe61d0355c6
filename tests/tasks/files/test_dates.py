from pathlib import Path

import pytest

from fredholm.tasks.files.dates import (
    DateOrderError,
    are_dates_in_digits,
    is_date,
    learn_day_first,
    learn_order_of_times,
    parse_moment,
)
from fredholm.tasks.series import read_series
from fredholm.tasks.splits.split_marks import marks_of_cells
from tests.refusals import refused


def test_a_number_is_not_a_date() -> None:
    assert [is_date(text) for text in ("2026-01-31", "5", "1e3", "1970-01-02_00:00")] == [True, False, False, True]


def test_dates_are_seconds() -> None:
    assert parse_moment("12.5").time == 12.5
    for text in (
        *("1970-01-02", "1970-01-02_00:00", "1970/1/2", "1970/1/2T0:00", "1970-1-2  12:00 am", "2-Jan-70"),
        *("2 Jan 1970", "2. Jan 1970", "2 Jan. 1970", "January 2, 1970", "January 2 1970"),
    ):
        assert parse_moment(text) == (86400, True, False)
    assert parse_moment("1 Jan 69").time == -365 * 86400
    assert parse_moment(" 1970-01-01 00:01:30.5").time == 90.5
    assert parse_moment("1970-01-01T02:00:00+02:00") == (0, True, True)
    assert parse_moment("1970/01/02 1:00").time == 90000
    assert [parse_moment("2/1/1970", day_first).time for day_first in (True, False)] == [86400, 31 * 86400]


@pytest.mark.parametrize(
    "text",
    [
        *("", "noon", "nan", "inf", "31.13.2025", "1970/13/1", "1_0", "1.2.1970 13:00 pm", "2 Jany 1970"),
        *("1970-1/2", "1970.1.2", "31/1-1970", "01.2.70", "1.02.70"),
    ],
)
def test_texts_that_are_not_times_are_refused(text: str) -> None:
    with refused(ValueError, f"{text!r} is no time; expected"):
        parse_moment(text)


def test_a_date_in_the_other_order_is_not_a_time() -> None:
    with refused(ValueError, "'1/31/1970' is no time; expected"):
        parse_moment("1/31/1970", day_first=True)


@pytest.mark.parametrize(
    ("first", "second", "days"),
    [
        ("1/31/2020 11:00 PM", "2/1/2020 1:00 AM", (18293 - 1 / 24, 18293 + 1 / 24)),
        ("1/2/2020", "13/2/2020", (18293, 18305)),
        ("31-Jan-20", "1-Feb-20", (18292, 18293)),
        ("1.2.2020", "2.2.2020", (18293, 18294)),
    ],
)
def test_series_and_splits_read_the_dates_of_tables(
    first: str, second: str, days: tuple[float, float], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f"time,v\n{first},1\n{second},2\n")
    found = read_series(tmp_path / "a.csv")
    assert (found.is_dated, found.spacing / 86400) == (True, pytest.approx(days[1] - days[0]))
    marks = marks_of_cells({"time": (second, first)}, lambda i, word: f"row {i}, {word}")
    assert marks.times is not None
    assert (marks.times / 86400).tolist() == pytest.approx(days[::-1], abs=1e-6)


@pytest.mark.parametrize(
    ("times", "line", "message"),
    [
        (("1/1/2020", "1/2/2020"), 3, "'1/2/2020' may be 2020-02-01 or 2020-01-02, and the other dates do not show"),
        (("1/31/2020", "13/2/2020"), 2, "'1/31/2020' has its month first, and '13/2/2020' its day; write"),
        (
            ("2/1/2020", "1/31/2020", "13/2/2020"),
            3,
            "'1/31/2020' has its month first, and '13/2/2020' its day; write",
        ),
        (("20/01/15", "20/01/16"), 2, "'20/01/15' may begin or end with its year, and the other dates do not show"),
        (("31/1/2020", "soon"), 3, "'soon' is no time; expected a number or a date such as"),
    ],
)
def test_times_whose_order_is_unknown_are_refused(
    times: tuple[str, str], line: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("time,v\n" + "".join(f"{time},1\n" for time in times))
    with refused(ValueError, f"a.csv, line {line}: column 'time': {message}"):
        read_series(tmp_path / "a.csv")
    with refused(ValueError, f"row {line - 2}, time: {message}"):
        marks_of_cells({"time": times}, lambda i, word: f"row {i}, {word}")


def test_the_order_of_day_and_month_is_inferred_from_the_dates() -> None:
    assert learn_order_of_times(["5", "soon", "31/1/2020", "1/2/2020"]) is True
    assert learn_day_first(["01/13/20", "01/02/21", "01/03/22"]) is False  # 13 is no month, so no year comes first
    for cells, index in (["5", "soon", "1/1/2020", "1/2/2020"], 3), (["2026-01-02", "20/01/15", "20/01/16"], 1):
        with pytest.raises(DateOrderError) as caught:
            learn_order_of_times(cells)
        assert caught.value.index == index


@pytest.mark.parametrize("times", [("20200130", "20200131", "20200201"), ("199911", "199912", "200001")])
def test_dates_written_as_digits_are_not_read_as_numbers(times: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,v\n" + "".join(f"{time},1\n" for time in times))
    date = {"2": "2020-01-30", "1": "1999-11-01"}[times[0][0]]
    with refused(ValueError, f"a.csv, line 2: column 'time': {times[0]} looks like a date", f"; write {date}"):
        read_series(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "times",
    [
        *(("200001", "200002"), ("20200130", "20200132", "20200201"), ("0", "20200101"), ()),
        *(("0", "20200101", "20200201"), ("200001.5", "200101.5")),
    ],
)
def test_numbers_that_are_not_dates(times: tuple[str, ...]) -> None:
    assert not are_dates_in_digits([float(time) for time in times])
