"""Tables: kinds of columns, how they are read, what is refused, and the commands from training to export."""

import csv
import datetime
import decimal
import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.models import FilterBank, ImageBank, NGramBank, TableMachine
from fredholm.models.fitted import boosted_trees
from fredholm.tasks import TableLearning
from fredholm.tasks.series.open import read_series_alone
from fredholm.tasks.tables import Column, learn_columns, open_table, read_rows_of, table_learning
from fredholm.tasks.text import Tokens
from fredholm.training import Run, TrainingConfig, train
from tests.command_line import call
from tests.refusals import refused


def place(i: int, name: str) -> str:
    return f"row {i} of {name!r}"


def kinds(**columns: Sequence[str]) -> dict[str, str]:
    learnt = learn_columns({name: list(cells) for name, cells in columns.items()}, place)
    return {column.name: column.kind for column in learnt.columns}


def one(name: str, *cells: str, **settings: tuple[str, ...]) -> Column:
    (column,) = learn_columns({name: list(cells)}, place, **settings).columns
    return column


def test_kinds_of_columns() -> None:
    words = ["red", "blue", "green", "red", "blue", "green"]
    found = kinds(
        whole=["1", "2", "3", "", "5", "6"],
        fraction=["1.5", "-2e3", "?", "4", "0", "NA"],
        day=["2026-01-31", "2026-02-01T12:30", "", "2026-02-03", "2026-02-04", "2026-02-05"],
        colour=words,
        mixed=["1", "2", "x", "1", "2", "x"],
        names=["ann", "bob", "cid", "dan", "eve", "fay"],
        notes=["a cat sat on it", "no dog was here", "a cat sat on it", "it was so late", "we all went home", "well"],
    )
    assert found == {
        **dict.fromkeys(("whole", "fraction"), "number"),
        "day": "date",
        **dict.fromkeys(("colour", "mixed"), "category"),
        **dict.fromkeys(("names", "notes"), "text"),
    }


def test_uninformative_columns_are_left_out() -> None:
    cells = {"id": ["1", "2", "3"], "x": ["5", "", "7"], "same": ["a", "a", "a"], "none": ["", "?", "NaN"]}
    learnt = learn_columns(cells, place)
    assert [column.name for column in learnt.columns] == ["x"]
    assert learnt.left_out == {
        "id": "counts the rows",
        "same": "is the same in all training rows",
        "none": "has no texts or numbers in the training rows",
    }
    assert [c.name for c in learn_columns({"id": ["1", "1", "3"]}, place).columns] == ["id"]  # not unique
    with refused(ValueError, "no column is left to learn from", "same is the same in all training rows"):
        learn_columns({"same": ["a", "a"]}, place)


def test_doubtful_kinds_of_columns_are_reported() -> None:
    cells = {"x": [*(str(i) for i in range(40)), "6x"], "code": [f"c{i // 2}" for i in range(600)]}
    learnt = learn_columns(cells, place)
    assert [column.kind for column in learnt.columns] == ["text", "category"]
    assert learnt.doubtful == {
        "x": "is no column of numbers, since 1 of 41 cells are none (row 40 of 'x': '6x')",
        "code": "has 300 categories; the 256 most frequent are distinguished",
    }
    days = {"day": [*(f"2026-01-{i + 1:02}" for i in range(20)), "soon"]}
    assert "is no column of dates, since 1 of 21 cells are none (row 20" in learn_columns(days, place).doubtful["day"]


@pytest.mark.parametrize(
    ("cells", "day_first"),
    [
        (["31/01/2026", "3/2/2026", "", "2026-02-04"], True),
        (["01/31/2026", "2/3/2026 9:30", "2/4/2026 0:00", "2/5/2026 0:00"], False),
        (["1.2.2026", "3.2.2026", "4.2.2026"], True),
        (["1.2.2026", "01/02/2026"], True),
        (["2026/1/31", "2026/02/03 9:30"], None),
        (["1/31/26 7:25 PM", "2/3/26, 12:00:30 AM", "2026-02-04 1:30 p.m."], False),
        (["31.01.26", "03.02.26", "04.02.2026 09:30"], True),
        (["31-Jan-2026", "3 February 26", "Feb. 4, 2026 9:30"], None),
    ],
)
def test_dates_that_do_not_start_with_the_year(cells: list[str], day_first: bool | None) -> None:
    column = one("day", *cells)
    assert (column.kind, column.day_first) == ("date", day_first)
    iso = {True: "2026-02-03", False: "2026-02-03", None: "2026-02-03T09:30"}[day_first]
    written = {True: "3/2/2026", False: "02/03/2026", None: "2026/2/3 9:30"}[day_first]
    assert column.numbers([written], place).tolist() == column.numbers([iso], place).tolist()
    example = {True: "31/1/2026", False: "1/31/2026", None: "2026-01-31"}[day_first]
    with refused(ValueError, f"row 0 of 'day': '31/31/2026' is no date; write one such as {example} or leave it empty"):
        column.numbers(["31/31/2026"], place)


@pytest.mark.parametrize(("form", "bare"), [("{}%", "7"), ("$ {}", "7"), ("{} €", "7")])
def test_amounts_and_percentages_are_predicted(form: str, bare: str) -> None:
    learnt = learn_columns({"x": ["1", *(form.format(i) for i in range(7, 20))]}, place)
    assert learnt.columns[0].kind == "text"
    assert learnt.doubtful["x"].endswith(f"({form.format(7)!r}); write {bare}")


@pytest.mark.parametrize(
    ("written", "iso"),
    [
        ("12/31/99 12:05 am", "1999-12-31T00:05"),
        ("12/31/68 12:05pm", "2068-12-31T12:05"),
        ("1/2/26 11:59:59 P.M.", "2026-01-02T23:59:59"),
        ("2026-1-2 1:05 PM", "2026-01-02T13:05"),
        ("2 sept 2026", "2026-09-02"),
        ("September 2, 2026", "2026-09-02"),
    ],
)
def test_formats_of_dates(written: str, iso: str) -> None:
    found = one("day", written, "1/13/26").numbers([written, iso], place)
    assert one("day", written, "1/13/26").kind == "date"
    assert found[0].tolist() == found[1].tolist()


@pytest.mark.parametrize("cell", ["1/13/26 13:05 PM", "1/13/26 0:05 AM", "1.2.10", "1-2-10", "2 Foo 2026", "2 Ja 2026"])
def test_cells_that_are_no_dates(cell: str) -> None:
    assert one("day", cell, "2026-01-02").kind == "text"


def test_two_digit_years_must_come_last() -> None:
    days = [f"{day:02}/0{month}/2{year}" for day in range(1, 14) for month in (1, 2) for year in range(3)]
    assert one("day", *days).numbers(["03/02/21", "2021-02-03"], place)[:, 0].std() == 0
    with refused(ValueError, "row 0 of 'day': '20/01/01' may begin or end with its year", "write dates as 2026-01-31"):
        one("day", *("/".join(reversed(day.split("/"))) for day in days))


def test_times_of_a_day_are_predicted() -> None:
    learnt = learn_columns({"at": ["9:30", "10:15 PM", "11:00:01"]}, place)
    assert learnt.doubtful["at"].startswith("is no column of numbers, since cells are times ('9:30'); write them in")


def test_dates_of_unknown_order_are_refused() -> None:
    message = "row 1 of 'day': '1/2/2026' may be 2026-02-01 or 2026-01-02, and the other dates do not show"
    with refused(ValueError, message, "write dates as 2026-01-31, or list the column under categories or texts"):
        one("day", "1/1/2026", "1/2/2026", "3/4/2026")
    assert one("day", "1/2/2026", "3/4/2026", texts=("day",)).kind == "text"
    learnt = learn_columns({"day": ["31/1/2026", "1/31/2026"]}, place)
    assert learnt.doubtful["day"].startswith("is no column of dates, since days come first in some of its cells")


@pytest.mark.parametrize("cells", [["1-1-2026", "02-02-2026"], ["1/1/2026", "2026-02-02"], ["2026-02-02", "2026/1/1"]])
def test_dates_that_read_the_same_in_either_order_do_not_decide_the_order(cells: list[str]) -> None:
    """They used to be read with the day first, and so were others of unknown order."""
    column = one("day", *cells)
    assert (column.kind, column.day_first) == ("date", None)
    of_order = [["3/3/2026", "2026-03-03"], ["31/1/2026", "2026-01-31"], ["1/31/2026", "2026-01-31"]]
    for written, iso in [*of_order, ["1.2.2026", "2026-02-01"]]:
        assert column.numbers([written], place).tolist() == column.numbers([iso], place).tolist()
    with refused(ValueError, "row 1 of 'day': '1/2/2026' may be 2026-02-01 or 2026-01-02, and the other dates do"):
        column.numbers(["3/3/2026", "1/2/2026"], place)
    with refused(ValueError, "row 0 of 'day': '31/31/2026' is no date; write one such as 2026-01-31"):
        column.numbers(["31/31/2026"], place)


def test_names_of_images_are_recognised_by_their_suffix() -> None:
    names = ["a.png", "b.JPG", "c.tiff", ""]
    assert kinds(photo=names, file=["a.png", "b.txt", "c.png", ""]) == {"photo": "image", "file": "text"}
    column = one("photo", *names)
    assert column.may_miss
    assert one("photo", *names, texts=("photo",)).kind == "text"
    assert not one("photo", *names[:3]).may_miss


def test_texts_keep_their_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    words = [("good", "bad")[i % 3 // 2] for i in range(60)]
    rows = [f"{word} number {i},other {i * i} words {i * 37} times {i * 91},{word}" for i, word in enumerate(words)]
    (tmp_path / "t.csv").write_text("\n".join(["one,two,label", *rows]))
    task = TableLearning.Config(data=str(tmp_path / "t.csv")).build()
    batch = task.held_out_batch("test", torch.arange(task.num_held_out("test")))
    assert task.tokenizer is not None
    for i, row in enumerate(batch["tokens"]):
        for column, name in enumerate(("one", "two")):
            laid = task.tokenizer.lay_out(task.held_out("test").rows.cells[name][i], None, 64).tokens
            assert row[column][: len(laid)].tolist() == laid.tolist()
    monkeypatch.setattr(table_learning, "LONGEST", 5)
    with pytest.warns(UserWarning, match=r"^train texts of more than 5 tokens, .* are cut at the end: \d+ of 96$"):
        task.train_batch(torch.arange(2), torch.Generator())


def test_banks_have_room_for_the_n_grams_of_every_text_column(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    words = ["cat", "dog", "mouse", "horse", "sparrow", "trout"]
    draw, sizes = random.Random(0), dict[str, int]()
    rows = [(f"good number {i}", " ".join(draw.choices(words, k=30))) for i in range(60)]
    for name, ignored in (("both", ()), ("one", ("two",)), ("two", ("one",))):
        lines = [f"{one},{two},{i % 2}" for i, (one, two) in enumerate(rows)]
        (tmp_path / "t.csv").write_text("\n".join(["one,two,label", *lines]))
        tokens = Tokens(kind="bytes")
        config = TableLearning.Config(data=str(tmp_path / "t.csv"), tokens=tokens, ignore=ignored)
        sizes[name] = TableLearning(config).recommended_texts().num_grams
    assert max(sizes["one"], sizes["two"]) < sizes["both"] < sizes["one"] + sizes["two"]


def test_numbers_are_standardised_by_the_training_rows() -> None:
    column = one("x", "1", "", "3", "5")
    assert (column.mean, column.may_miss) == ((3.0,), True)
    assert column.deviation == pytest.approx((math.sqrt(8 / 3),))
    found = column.numbers(["3", "na", "7"], place)
    np.testing.assert_allclose(found[:, 0], [0, np.nan, 4 / math.sqrt(8 / 3)], rtol=1e-6)
    far = one("seconds", "1700000000", "1700000001", "1700000002")
    np.testing.assert_allclose(far.numbers(["1700000002"], place)[0], [math.sqrt(1.5)], rtol=1e-6)


@pytest.mark.parametrize(("start", "step"), [(9007199254740000, 1), (0, 1e-310), (1e30, 1e16), (-3e38, 3e37)])
def test_numbers_far_from_0_or_very_close_together_stay_distinct(start: float, step: float) -> None:
    cells = [repr(start + i * step) for i in range(5)]
    found = one("x", *cells).numbers(cells, place)
    np.testing.assert_allclose(found[:, 0], [-math.sqrt(2), -math.sqrt(0.5), 0, math.sqrt(0.5), math.sqrt(2)], atol=0.1)
    same = one("x", "0.1", "0.1", "0.10")  # its mean is rounded
    assert (same.mean, same.deviation) == ((0.1,), (1.0,))


def test_a_date_becomes_its_seconds_and_the_parts_that_vary() -> None:
    column = one("day", "2026-01-05", "2026-03-06", "")
    assert column.parts == ("seconds since 1970", "month", "weekday")
    assert column.may_miss
    np.testing.assert_allclose(column.numbers(["2026-02-06", ""], place)[0, 1:], [0, 1])
    at = one("at", "2026-01-05T03:00", "2026-01-05T09:00+06:00")
    assert (at.parts, at.mean[0] % 86400, at.mean[1]) == (("seconds since 1970", "hour"), 3 * 3600, 6)


def test_categories_are_those_of_training() -> None:
    column = one("town", "b", "a", "b", "a", "a", "")
    assert column.levels == ("a", "b")
    assert column.categories(["b", "c", "", "a"]).tolist() == [1, -1, -1, 0]
    many = one("code", *(str(i) for i in range(400)), "399", categories=("code",))
    assert len(many.levels) == 256
    assert "399" in many.levels  # the most frequent one
    assert one("word", "a", "b", "a", "b", texts=("word",)).kind == "text"
    # pandas writes whole numbers with decimals where a cell of the column is missing
    codes = one("code", "4000", "4000.0", "5000.00", "007", "1.5", categories=("code",))
    assert codes.levels == ("007", "1.5", "4000", "5000")
    assert codes.categories(["4000.0", "4000", "5000", "7", "1.50"]).tolist() == [2, 2, 3, -1, -1]


def test_invalid_cells_are_refused() -> None:
    number, date = one("x", "1", "2"), one("day", "2026-01-05", "2026-03-06")
    with refused(ValueError, "row 1 of 'x'", "'two' is no finite number"):
        number.numbers(["1", "two"], place)
    with refused(ValueError, "row 0 of 'x'", "too far from the training rows"):
        one("x", "1", "1.0000001").numbers(["3e38"], place)
    with refused(ValueError, "row 0 of 'day'", "'soon' is no date"):
        date.numbers(["soon"], place)
    with refused(
        ValueError,
        "row 1 of 'x'",
        "'1,5' looks like a number with a decimal comma; write points, or name the decimal mark of a .csv file",
    ):
        learn_columns({"x": ["2", "1,5", "3"]}, place)
    for cell in ("4,321", "1,234,567.5"):
        with refused(ValueError, f"{cell!r} looks like", "leave commas between thousands out"):
            learn_columns({"x": ["2", cell, "3"]}, place)
    with refused(
        ValueError,
        "row 0 of 'x'",
        "'1.234,5' looks like a number with a decimal comma; write points, or name the decimal mark of a .csv file",
    ):
        learn_columns({"x": ["1.234,5", "12,25"]}, place)


def shop(folder: Path, n: int = 120, name: str = "shop.csv", seed: int = 0) -> Path:
    """Flats whose price depends on the area, the town and the description."""
    drawn = random.Random(seed)
    path = folder / name
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["Id", "sold", "rooms", "area", "town", "note", "price"])
        for i in range(n):
            area, town, fine = drawn.randint(30, 200), drawn.choice(["Bern", "Chur"]), drawn.random() < 0.5
            note = f"{'A bright' if fine else 'A damp'} flat, number {drawn.randint(1, 999)}, {drawn.random():.3f}"
            price = area * (7 if town == "Bern" else 4) * (1.3 if fine else 0.8)
            day = f"2026-{drawn.randint(1, 12):02}-{drawn.randint(1, 28):02}"
            rows.writerow([i, day, drawn.choice(["", 1, 2, 3]), area, town, note, round(price)])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("shop")
    data = shop(folder, 400)
    from fredholm import cli

    arguments = ["train", "table", str(data), "--run-dir", str(folder / "run"), "--task.label-columns", "price"]
    assert cli.main([*arguments, "--training.no-tensorboard"]) == 0
    return folder / "run"


def test_the_command_reports_kinds_of_columns_and_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    data = shop(tmp_path, 60)
    code, out, err = call(capsys, "train", "table", data, "--task.label-columns", "price", "--dry-run")
    assert (code, err) == (0, "")
    assert "to predict: price; numbers: rooms, area; dates: sold; categories: town; texts: note" in out
    assert "left out: Id, which counts the rows" in out
    assert "48 examples to learn from, 0 for validation and 12 for testing" in out
    assert "fitted in closed form" in out


@pytest.mark.slow
def test_the_learnt_prices_are_right(run: Path) -> None:
    found = Run(run).evaluate("test")
    assert found["r2"] > 0.9
    task = Run(run).task
    assert isinstance(task, TableLearning)
    assert task.target.kind == "number"  # more than twenty different whole numbers
    numbers = task.held_out("test").answers.values
    assert float((numbers - numbers.mean(0)).abs().mean()) > 4 * found["mean_absolute_error"]


def test_outputs_of_every_part_are_named(run: Path) -> None:
    opened = Run(run)
    task = opened.task
    assert isinstance(task, TableLearning)
    found = task.entry_names(opened.model())
    axes = {"machine.dual": 1, "machine.bias": 0, "logistic.weight": 0, "logistic.bias": 0}
    axes |= {"trees.leaves": 3, "trees.bias": 0}
    assert found == {name: {axis: task.target.output_names} for name, axis in axes.items()}


def test_many_outputs_have_fewer_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TableLearning.Config(data=str(shop(tmp_path)), label_columns=("town",))

    def num_trees(config: TableLearning.Config) -> int:
        recommended = config.recommended("small")[0]
        assert isinstance(recommended, TableLearning.Config)
        return recommended.model.num_trees

    assert num_trees(config) == 300
    monkeypatch.setattr(boosted_trees, "MOST_BOXES", 100)
    assert num_trees(config) == 100 // len(config.build().target.names)
    assert num_trees(replace(config, model=TableMachine.Config(num_trees=5))) == 5


def test_the_importance_of_columns_is_reported_and_drawn(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Run(run)
    counts = opened.task.input_importance(opened.model())
    assert counts.keys() == {"sold", "rooms", "area", "town", "note"}
    assert all(0 <= count <= 1 for count in counts.values())
    assert min(counts[name] for name in ("area", "town", "note")) > 2 * max(counts["sold"], counts["rooms"])
    assert call(capsys, "report", run, "--output", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "Relevance of columns" in page
    assert "of step" not in page
    assert "after step" not in page


def test_predictions_need_no_labels_and_no_order_of_columns(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shop(tmp_path, 20, seed=5)
    with data.open() as file:
        rows = list(csv.DictReader(file))
    names = ["note", "town", "area", "rooms", "sold"]
    with (tmp_path / "asked.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    predicted = Run(run).predict([data])
    assert [each["line"] for each in predicted] == list(range(2, 22))
    again = Run(run).predict([tmp_path / "asked.csv"])
    assert [each["price"] for each in again] == [each["price"] for each in predicted]
    prices = torch.tensor([float(row["price"]) for row in rows])
    errors = torch.tensor([float(each["price"]) for each in predicted]) - prices
    assert float(errors.square().mean()) < 0.1 * float(prices.var())


def test_errors_in_rows_name_the_line(run: Path, tmp_path: Path) -> None:
    header = "sold,rooms,area,town,note"
    for row, words in (
        ("2026-01-01,two,50,Bern,x", "asked.csv, line 2: column 'rooms': 'two' is no finite number"),
        ("2026-13-01,2,50,Bern,x", "asked.csv, line 2: column 'sold': '2026-13-01' is no date"),
    ):
        (tmp_path / "asked.csv").write_text(f"{header}\n{row}\n")
        with pytest.raises(ValueError, match=re.escape(words)):
            Run(run).predict([tmp_path / "asked.csv"])
    (tmp_path / "asked.csv").write_text("sold,rooms,area,town\n2026-01-01,2,50,Bern\n")
    with pytest.raises(ValueError, match=r"no column 'note' in .*asked\.csv"):
        Run(run).predict([tmp_path / "asked.csv"])
    (tmp_path / "asked.jsonl").write_text('{"area": 50, "town": "Bern", "rooms": 2, "sold": "2026-01-01"}\n')
    with pytest.raises(ValueError, match=r"no column 'note' in .*asked\.jsonl"):
        Run(run).predict([tmp_path / "asked.jsonl"])


def test_new_categories_count_as_missing_and_are_reported(run: Path, tmp_path: Path) -> None:
    header = "sold,rooms,area,town,note"
    (tmp_path / "new.csv").write_text(f"{header}\n2026-01-01,2,50,Rome,A bright flat\n2026-01-01,2,50,,A bright flat\n")
    with pytest.warns(UserWarning, match=r"column 'town': 1 of 2 cells are not among the categories .* such as 'Rome'"):
        new, missing = Run(run).predict([tmp_path / "new.csv"])
    assert float(new["price"]) == pytest.approx(float(missing["price"]), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("with_texts", [False, True])
def test_an_export_predicts_the_same_or_says_why_it_is_impossible(
    with_texts: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    data, more = shop(tmp_path), [] if with_texts else ["--task.ignore", "note"]
    arguments = ["train", "table", data, "--run-dir", tmp_path / "run", "--task.label-columns", "price", *more]
    assert call(capsys, *arguments, "--training.no-tensorboard")[0] == 0
    code, out, err = call(capsys, "export", tmp_path / "run", "--format", "onnx", "--output", tmp_path / "m.onnx")
    if with_texts:
        assert code == 2
        assert "the number of n-grams depends on the tokens" in err
        return
    assert (code, err) == (0, "")
    assert (tmp_path / "m.onnx.columns.json").exists()
    assert "differs from the model by at most" in out


def test_a_test_split_is_read_like_the_training_split(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("\n".join(["x,label", *(f"{i},{'ab'[i % 2]}" for i in range(8))]))
    (tmp_path / "test.csv").write_text("x,label\n1,b\n1,b\n")
    splits = open_table(tmp_path)
    assert splits.test is not None
    assert (splits.test.answer_names, splits.test.answers.values.tolist()) == (("a", "b"), [1, 1])
    assert len(set(splits.test.keys.names)) == 2  # though both rows are equal
    (tmp_path / "test.csv").write_text("x,label\n1,c\n")
    with refused(ValueError, "test.csv, line 2: column 'label': class 'c' is none of a, b"):
        open_table(tmp_path)


def test_whole_numbers_are_classes_if_they_are_few(tmp_path: Path) -> None:
    rows = [f"{i % 7},{i % 3},{i * 7 % 40},{i / 8}" for i in range(50)]
    (tmp_path / "t.csv").write_text("\n".join(["x,few,many,fraction", *rows]))
    for label, kind in (("few", "class"), ("many", "number"), ("fraction", "number")):
        assert open_table(tmp_path / "t.csv", label_columns=(label,)).train.answers.kind == kind
    assert open_table(tmp_path / "t.csv", label_columns=("many",), kind="class").train.answers.kind == "class"
    assert open_table(tmp_path / "t.csv", label_columns=("few", "many")).train.answers.names == ("few", "many")


def test_split_columns_divide_rows_and_are_no_inputs(tmp_path: Path) -> None:
    rows = [f"{i},{i % 2},{('train', 'test')[i % 5 == 0]},g{i % 5},{2000 + i}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["x,label,Split,group,time", *rows]))
    splits = open_table(tmp_path / "t.csv")
    assert set(splits.train.rows.cells) == {"x"}
    assert splits.test is not None
    assert splits.test.rows.cells["x"] == [str(i) for i in range(0, 30, 5)]
    assert splits.train.marks.groups is not None
    fitted = TableLearning.Config(data=str(tmp_path / "t.csv")).build()
    torch.manual_seed(0)
    model = fitted.model()
    fitted.initialise(model, torch.device("cpu"))  # with groups left out
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_files_of_all_kinds_give_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b,label\n1.5,"x, y",0\n,z,1\n2,true,0\n')
    (tmp_path / "t.tsv").write_text("a\tb\tlabel\n1.5\tx, y\t0\n\tz\t1\n2\ttrue\t0\n")
    (tmp_path / "t.jsonl").write_text(
        '{"b": "x, y", "label": 0, "a": 1.5}\n{"b": "z", "label": 1, "a": null}\n{"label": 0, "b": true, "a": 2}\n'
    )
    found = [open_table(tmp_path / f"t.{kind}").train.rows.cells for kind in ("csv", "tsv", "jsonl")]
    assert all(dict(each) == {"a": ["1.5", "", "2"], "b": ["x, y", "z", "true"]} for each in found)
    assert read_rows_of(tmp_path / "t.csv", ["b"]).cells == {"b": ["x, y", "z", "true"]}


def test_columns_of_json_lines_are_the_union_over_rows(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": null, "label": 0}\n{"a": 2, "later": "x", "label": 1}\n')
    assert dict(open_table(tmp_path / "t.jsonl").train.rows.cells) == {"a": ["", "2"], "later": ["", "x"]}
    (tmp_path / "one.jsonl").write_text('{"a": null}\n')
    assert read_rows_of(tmp_path / "one.jsonl", ["a"]).cells == {"a": [""]}


def test_the_error_for_half_a_surrogate_pair_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": "x", "label": 0}\n{"a": "\\ud800", "label": 1}\n')
    with refused(ValueError, "t.jsonl, line 2: column 'a': the text is no UTF-8 at character 0; convert it"):
        open_table(tmp_path / "t.jsonl")
    (tmp_path / "t.jsonl").write_text('{"\\ud800": "x", "label": 0}\n{"\\ud800": "y", "label": 1}\n')
    with refused(ValueError, "t.jsonl, line 1: column '\\ud800': the text is no UTF-8 at character 0"):
        open_table(tmp_path / "t.jsonl")


def test_dates_durations_and_whole_numbers_of_parquet_are_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    days = [datetime.date(2026, 1, 1 + i) for i in range(3)]
    moments = [datetime.datetime(2026, 1, 1, i) for i in range(3)]
    amounts = [decimal.Decimal(f"{i}.50") for i in range(3)]
    columns = {"day": days, "at": moments, "amount": amounts, "label": [0, 1, 0]}
    columns["opens"] = [datetime.time(9, 30), datetime.time(10, 0, 0, 500_000), None]
    columns["lasts"] = [datetime.timedelta(days=-1), datetime.timedelta(minutes=2), None]
    columns["zip"] = [4000.0, 8000.0, None]  # integers of pandas, one missing
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    found = open_table(tmp_path / "t.parquet").train.rows.cells
    assert found["day"] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert found["at"][1] == "2026-01-01T01:00:00"
    assert found["amount"] == ["0.50", "1.50", "2.50"]
    assert found["opens"] == ["34200", "36000.5", ""]
    assert found["lasts"] == ["-86400", "120", ""]
    assert found["zip"] == ["4000", "8000", ""]


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["x,y,label", *(f"{i},{i % 3},{i % 2}" for i in range(20))]))
    data = str(tmp_path / "t.csv")
    for settings, words in (
        ({"label_columns": ("lable",)}, "no column 'lable' to predict (label_columns=); did you mean 'label'?"),
        ({"ignore": ("z",)}, "no column 'z' to ignore (ignore=)"),
        ({"ignore": ("label",)}, "column 'label' is both to be predicted and ignored"),
        ({"categories": ("z",)}, "categories names 'z', and no such column is read; the columns are x, y"),
        ({"categories": ("x",), "texts": ("x",)}, "column 'x' is listed in both categories and texts"),
        ({"valid_fraction": 0.3}, "valid_fraction=0.3 has no effect"),
        (
            {"model": TableMachine.Config(texts=NGramBank.Config(order=1))},
            "order=1 has no effect with no column of texts",
        ),
        ({"ignore": ("x", "y")}, "no column is left to read beside what to predict (label)"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            TableLearning.Config(data=data, **settings).build()  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "no table is given"):
        TableLearning.Config().build()
    (tmp_path / "h.csv").write_text("172.5,Bern\n99,Basel\n")
    with refused(
        ValueError, "no column 'price' to predict", "172.5, Bern: if the file has no header, name all columns"
    ):
        open_table(tmp_path / "h.csv", label_columns=("price",))
    (tmp_path / "l.csv").write_text("a,line\n1,2\n")
    with refused(ValueError, "predictions have a column 'line' for the row's place; rename this column"):
        open_table(tmp_path / "l.csv", label_columns=("line",))
    (tmp_path / "u.csv").write_text("a,b\n1,2\n")
    with refused(ValueError, "u.csv: no column has a usual name of what to predict", "the columns are a, b"):
        open_table(tmp_path / "u.csv")


def photographed(folder: Path, n: int = 160, seed: int = 0) -> Path:
    """Flats with a photo, some without; bright rooms raise the price if the flat is large."""
    pytest.importorskip("PIL")
    from PIL import Image

    drawn = np.random.default_rng(seed)
    (folder / "photos").mkdir(parents=True)
    rows = ["photo,area,noise,price"]
    for i in range(n):
        bright, area, name = drawn.random() < 0.5, drawn.normal(), f"photos/{i}.png"
        pixels = drawn.normal(100, 20, (14, 12, 3)) + (np.linspace(0, 90, 12)[:, None] if bright else 0)
        if i % 9:
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name)
        rows.append(f"{name if i % 9 else ''},{area:.4f},{drawn.normal():.4f},{3 * bright * (i % 9 > 0) + area:.4f}")
    (folder / "flats.csv").write_text("\n".join(rows))
    return folder / "flats.csv"


IMAGES = ("--task.label-columns", "price", "--task.model.num-trees", "20", "--task.model.images.num-filters", "16")


@pytest.fixture(scope="module")
def with_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos") / "data"
    from fredholm import cli

    arguments = ["train", "table", str(photographed(folder)), "--run-dir", str(folder / "run"), *IMAGES]
    assert cli.main([*arguments, "--training.no-tensorboard"]) == 0
    return folder / "run"


@pytest.mark.slow
def test_photos_are_read_along_with_numbers(
    with_photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(with_photos)
    code, _, err = call(capsys, "evaluate", with_photos)
    assert (code, err) == (0, "")  # not a single file that the run did not read
    assert run.evaluate("test")["r2"] > 0.85
    counts = run.task.input_importance(run.model())
    assert counts.keys() == {"photo", "area", "noise"}
    assert counts["noise"] < 0.5 * min(counts["photo"], counts["area"])
    new_data = photographed(tmp_path / "new", 20, seed=3)
    predicted = run.predict([new_data])
    expected = [float(line.rsplit(",", 1)[1]) for line in new_data.read_text().splitlines()[1:]]
    assert np.corrcoef(expected, [float(each["price"]) for each in predicted])[0, 1] > 0.9
    task = run.task
    assert isinstance(task, TableLearning)
    shown = [task.shown_example("test", i) for i in range(task.num_held_out("test"))]
    assert {len(each.views) for each in shown} == {1, 2}
    assert call(capsys, "report", with_photos, "--output", tmp_path / "page.html")[0] == 0
    assert "photo" in (tmp_path / "page.html").read_text()
    read = (with_photos / "data.json").read_text()
    assert "photos/1.png" in read
    assert call(capsys, "train", "table", new_data, *IMAGES, "--dry-run")[1].startswith(
        "to predict: price; numbers: area, noise; images: photo"
    )


def test_a_tensor_form_takes_pixels_and_a_flag_for_missing_images(with_photos: Path) -> None:
    run = Run(with_photos)
    task, model = run.task, run.model()
    assert isinstance(task, TableLearning)
    part = task.held_out("test")
    form, batch = task.tensor_form(model), task.held_out_batch("test", torch.arange(len(part)))
    assert [slot.name for slot in form.inputs] == ["numbers", "images", "has_image"]
    numbers = torch.tensor([[float(part.rows.cells[name][i]) for name in ("area", "noise")] for i in range(len(part))])
    answers = form.module()(numbers.double(), batch["images"], batch["has_image"])
    expected = task.target.answers(task.outputs(model, part.rows, torch.device("cpu")))
    torch.testing.assert_close(answers, expected, rtol=1e-4, atol=1e-4)
    assert not bool(batch["has_image"].all())
    assert "photo" in form.files["columns.json"]


def test_images_are_scaled_to_a_size(tmp_path: Path) -> None:
    data = photographed(tmp_path / "data", 20)
    config = TableLearning.Config(data=str(data), label_columns=("price",), image_size=(6, 8))
    task = config.build()
    batch = task.train_batch(torch.arange(4), torch.Generator())
    assert batch["images"].shape == (4, 1, 3, 6, 8)
    assert batch["images"].dtype == torch.uint8
    assert batch["has_image"].shape == (4, 1)
    assert (task.facts.channels, task.facts.image_size) == (3, (6, 8))
    assert replace(config, image_size=None).build().facts.image_size == (14, 12)


def test_errors_for_missing_images_name_the_line(with_photos: Path, tmp_path: Path) -> None:
    (tmp_path / "asked.csv").write_text("photo,area,noise\n,1,2\nnone.png,1,2\n")
    with refused(ValueError, "asked.csv, line 3: column 'photo': there is no file", "leave the cell empty, or ignore"):
        Run(with_photos).predict([tmp_path / "asked.csv"])
    (tmp_path / "none.png").write_text("no image")
    with refused(ValueError, "none.png: not a PNG, JPEG"):
        Run(with_photos).predict([tmp_path / "asked.csv"])
    rows = "\n".join(f"{i}.png,{i % 2}" for i in range(20))
    (tmp_path / "t.csv").write_text(f"photo,label\n{rows}")
    with refused(ValueError, "t.csv, line 2: column 'photo': there is no file"):
        TableLearning.Config(data=str(tmp_path / "t.csv")).build()


def test_image_settings_need_an_image_column(tmp_path: Path) -> None:
    data = str(shop(tmp_path))
    config = TableLearning.Config(data=data, label_columns=("price",))
    with refused(ValueError, "no column of images"):
        replace(config, image_size=(4, 4)).build()
    with refused(ValueError, "no column of images"):
        replace(config, model=TableMachine.Config(images=ImageBank.Config(num_filters=4))).build()


def test_notes_report_cropped_images_and_large_ones_are_scaled_down(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rows = ["photo,label"]
    for i in range(20):
        image.new("L", (90, 120) if i < 12 else (10, 12)).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,{i % 2}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    config = TableLearning.Config(data=str(tmp_path / "t.csv"))
    found = config.recommended("small")
    assert isinstance(found.config, TableLearning.Config)
    assert found.config.image_size == (64, 48)
    assert found.notes[-1] == "images of 12 x 10 to 120 x 90 pixels are scaled and cut to 64 x 48; " + (
        "image_size chooses another size"
    )
    given = replace(config, image_size=(100, 70)).recommended("small")
    assert isinstance(given.config, TableLearning.Config)
    assert given.config.image_size == (100, 70)
    assert len(given.notes) == 1


def recorded_machines(folder: Path, n: int = 120, seed: int = 0) -> Path:
    """Machines with a recording of their vibration, some without; fast ones wear out, and so do loaded ones."""
    drawn = np.random.default_rng(seed)
    (folder / "rec").mkdir(parents=True)
    rows = ["recording,load,noise,wear"]
    for i in range(n):
        fast, load, length = drawn.random() < 0.5, drawn.normal(), int(drawn.integers(30, 41))
        values = np.sin(2 * np.pi * (np.arange(length) / (4 if fast else 9) + drawn.random()))
        values += 0.3 * drawn.normal(size=length)
        name = f"rec/{i}.{'csv' if i % 2 else 'npy'}" if i % 9 else ""
        if name.endswith("csv"):
            (folder / name).write_text("\n".join(["time,value", *(f"{k},{v}" for k, v in enumerate(values))]))
        elif name:
            np.save(folder / name, values)
        rows.append(f"{name},{load:.4f},{drawn.normal():.4f},{3 * fast * bool(name) + load:.4f}")
    (folder / "machines.csv").write_text("\n".join(rows))
    return folder / "machines.csv"


def series_config(data: Path) -> TableLearning.Config:
    bank = FilterBank.Config(num_thresholds=4, num_groups=2)
    return TableLearning.Config(
        data=str(data), label_columns=("wear",), model=TableMachine.Config(num_trees=10, series=bank)
    )


@pytest.fixture(scope="module")
def with_recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = recorded_machines(tmp_path_factory.mktemp("recordings") / "data")
    train(
        Run.Config(task=series_config(data), training=TrainingConfig(epochs=0, tensorboard=False)), data.parent / "run"
    )
    return data.parent / "run"


@pytest.mark.slow
def test_recordings_are_read_along_with_numbers(with_recordings: Path, tmp_path: Path) -> None:
    run = Run(with_recordings)
    task = run.task
    assert isinstance(task, TableLearning)
    assert run.evaluate("test")["r2"] > 0.85
    counts = run.task.input_importance(run.model())
    assert counts.keys() == {"recording", "load", "noise"}
    assert counts["noise"] < 0.5 * min(counts["recording"], counts["load"])
    new_data = recorded_machines(tmp_path / "new", 20, seed=3)
    expected = [float(line.rsplit(",", 1)[1]) for line in new_data.read_text().splitlines()[1:]]
    assert np.corrcoef(expected, [float(each["wear"]) for each in run.predict([new_data])])[0, 1] > 0.9
    shown = [task.shown_example("test", i) for i in range(task.num_held_out("test"))]
    assert {tuple(type(view).__name__ for view in each.views) for each in shown} == {
        ("TextView", "SeriesView"),
        ("TextView",),
    }
    assert "rec/1.csv" in (with_recordings / "data.json").read_text()
    assert series_config(new_data).build().notes[0] == "to predict: wear; numbers: load, noise; series: recording"


def test_a_tensor_form_takes_series_and_a_mask_of_samples(with_recordings: Path) -> None:
    run = Run(with_recordings)
    task, model = run.task, run.model()
    assert isinstance(task, TableLearning)
    part = task.held_out("test")
    form, batch = task.tensor_form(model), task.held_out_batch("test", torch.arange(len(part)))
    assert [slot.name for slot in form.inputs] == ["numbers", "series", "has_sample"]
    numbers = torch.tensor([[float(part.rows.cells[name][i]) for name in ("load", "noise")] for i in range(len(part))])
    exists = ~batch["series_times"].isnan()
    answers = form.module()(numbers.double(), torch.where(exists[..., None], batch["series"], 0.0), exists)
    expected = task.target.answers(task.outputs(model, part.rows, torch.device("cpu")))
    torch.testing.assert_close(answers, expected, rtol=1e-4, atol=1e-4)
    assert '"spacing": 1.0' in form.files["columns.json"]


def test_bad_series_are_refused(with_recordings: Path, tmp_path: Path) -> None:
    def predict(name: str) -> None:
        (tmp_path / "asked.csv").write_text(f"recording,load,noise\n,1,2\n{name},1,2\n")
        Run(with_recordings).predict([tmp_path / "asked.csv"])

    with refused(ValueError, "asked.csv, line 3: column 'recording': there is no file", "leave the cell empty"):
        predict("none.csv")
    (tmp_path / "other.csv").write_text("time,speed\n0,1\n1,2")
    with refused(ValueError, "other.csv", "value"):
        predict("other.csv")
    (tmp_path / "empty.csv").write_text("time,value\n")
    with refused(ValueError, "empty.csv"):
        predict("empty.csv")
    np.save(tmp_path / "wide.npy", np.zeros((5, 3)))
    with refused(ValueError, "wide.npy", "3"):
        predict("wide.npy")
    (tmp_path / "two.csv").write_text("series,time,value\na,0,1\nb,0,2")
    with refused(ValueError, "two.csv: has 2 series; expected one"):
        predict("two.csv")
    with refused(ValueError, "no column of series"):
        data = str(shop(tmp_path))
        TableLearning.Config(
            data=data, model=TableMachine.Config(series=FilterBank.Config(num_groups=1)), label_columns=("price",)
        ).build()


def test_irregular_series_are_read_and_the_export_says_why_it_is_impossible(tmp_path: Path) -> None:
    rows = ["recording,label"]
    for i in range(24):
        steps = "\n".join(f"{k + 0.1 * (k % 3)},{k * (i % 2)}" for k in range(12 + i % 3))
        (tmp_path / f"{i}.csv").write_text(f"time,value\n{steps}")
        rows.append(f"{i}.csv,{i % 2}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    bank = FilterBank.Config(num_thresholds=4, num_groups=2)
    task = TableLearning.Config(
        data=str(tmp_path / "t.csv"), model=TableMachine.Config(num_trees=0, series=bank)
    ).build()
    torch.manual_seed(0)
    model = task.model()
    task.initialise(model, torch.device("cpu"))
    part = task.held_out("test")
    assert torch.equal(task.outputs(model, part.rows, torch.device("cpu")).argmax(1), part.answers.values)
    with refused(ValueError, "series of the column 'recording' have irregular times", "at one spacing"):
        task.tensor_form(model)


def test_an_array_is_read_as_one_series(tmp_path: Path) -> None:
    values = np.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "b.npz", values=values[:2], times=np.array([0.0, 4.0]))
    found = read_series_alone([tmp_path / "a.npy", tmp_path / "b.npz"])
    assert found.lengths.tolist() == [3, 2]
    assert torch.equal(found.values[0], torch.from_numpy(values))
    assert torch.equal(found.sample_times[1, :2], torch.tensor([0.0, 4.0], dtype=torch.float64))
