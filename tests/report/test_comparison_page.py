"""The page of a comparison: its table, rows without a result, the cost of each metric, and the best run."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from fredholm.comparison import Comparison, compare, read_comparison
from fredholm.comparison.comparison import BaselineRow, write_comparison
from fredholm.report import build_page, page
from fredholm.report.blocks import Figure, Gallery, Note, Plot, Table
from fredholm.report.comparison_page import _front, _price, comparison_tab, run_folders
from fredholm.tasks import Objective
from tests.command_line import call
from tests.comparison.build import request, stripes
from tests.report.test_page import Outline, blocks_of, notes_of

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")
pytest.importorskip("sklearn")
KERNELS = ("low-rank", "attention", "mamba")
pytestmark = pytest.mark.usefixtures("few_rates")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete comparison; Mamba is left out, since images have no order."""
    folder = tmp_path_factory.mktemp("page") / "comparison"
    compare(request(stripes(folder.parent), *KERNELS), folder, processes=1)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def changed(folder: Path, **values: object) -> Comparison:
    """Changes entries of the comparison in a folder."""
    found = dataclasses.replace(read_comparison(folder), **values)  # pyright: ignore
    write_comparison(folder, found)
    return found


@pytest.mark.slow
def test_the_page_shows_the_results(whole: Path) -> None:
    found, got = read_comparison(whole), build_page([whole])
    assert [tab.name for tab in got.tabs] == ["Comparison", "Training", "Predictions", "Examples", "Kernels"]
    tables = {block.title: block for block in blocks_of(got, Table) if isinstance(block, Table)}
    table = tables["Kernels under one budget"]
    names = [str(row[0]) for row in table.rows]
    assert sorted(names[:2]) == sorted(row.title for row in found.rows)
    assert len(names) == 2 + len(found.baselines)
    by_name = {row.title: row for row in found.rows}
    for cells in table.rows[:2]:
        row = by_name[str(cells[0])]
        assert cells[3] == row.parameters
        assert cells[2] == (
            f"{found.objective.format(row.test_mean or 0)} ± {found.objective.format(row.test_deviation or 0)}"
        )
    assert [row[0] for row in tables["Left out"].rows] == [each.name for each in found.left_out]
    assert len(tables["The search of learning rates"].rows) == sum(len(row.tried) for row in found.rows)
    best = found.row(str(found.best))
    figure = next(block for block in blocks_of(got, Figure) if isinstance(block, Figure))
    assert figure.name.startswith(best.title)
    plots = {block.title: block for block in blocks_of(got, Plot) if isinstance(block, Plot)}
    assert {"Accuracy against ms a step", "Accuracy against parameters"} <= plots.keys()
    assert len(plots["Accuracy against parameters"].spec["data"]["values"]) == 2
    for plot in (plots["Accuracy against parameters"], plots["Accuracy against ms a step"]):
        assert all(0 <= row["low"] <= row["value"] <= row["high"] <= 1 for row in plot.spec["data"]["values"])
    assert len({row["run"] for row in plots["Loss"].spec["data"]["values"]}) == 4
    assert len({row["group"] for row in plots["Loss"].spec["data"]["values"]}) == 2
    assert blocks_of(got, Gallery)
    assert Outline(page.rendered(got)).open == []


def test_the_command_writes_the_page(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "report", whole)
    assert (code, out.split(":")[0]) == (0, str(whole / "report.html"))
    assert (whole / "report.html").stat().st_size < 5e6
    code, _, err = call(capsys, "report", whole, whole)
    assert code == 2
    assert "a page of its own" in err


def test_an_incomplete_comparison_says_what_is_missing(copy: Path) -> None:
    found = read_comparison(copy)
    first, second = found.rows
    open_row = dataclasses.replace(second.with_runs(second.runs[:1]), differs_from_best=None)
    changed(copy, rows=(first, open_row), best=None, is_complete=False)
    got = build_page([copy])
    assert "3 of 4 runs are there" in notes_of(got)
    assert [tab.name for tab in got.tabs] == ["Comparison", "Training"], "test data are left alone"


def test_removed_runs_leave_the_table(copy: Path) -> None:
    for path in copy.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    found = build_page([copy])
    assert blocks_of(found, Table)
    assert "no log of the training" in notes_of(found)


def test_a_kernel_without_a_result_shows_its_reason(copy: Path) -> None:
    first, second = read_comparison(copy).rows
    failed = dataclasses.replace(second.with_runs(()), reason="it ran out of <memory>")
    changed(copy, rows=(first, failed), best=first.name)
    tables = {block.title: block for block in blocks_of(build_page([copy]), Table) if isinstance(block, Table)}
    assert tables["Without a result"].rows == ((second.name, "it ran out of <memory>"),)
    assert "<memory>" not in page.rendered(build_page([copy]))


def test_a_baseline_that_does_better_is_reported(copy: Path) -> None:
    value = read_comparison(copy).row(str(read_comparison(copy).best)).valid_mean
    rows = BaselineRow(name="guess", valid=2.0, test=2.0), BaselineRow(name="mean", valid=value, test=0.0)
    blocks = comparison_tab(changed(copy, baselines=rows), copy).sections[0].blocks
    notes = [block.text for block in blocks if isinstance(block, Note)]
    assert notes[0].startswith("Guess does better on validation data, 200.00 % against ")
    assert notes[1].startswith("Mean does as well on validation data, ")


def test_a_comparison_without_any_result_says_so(copy: Path) -> None:
    rows = tuple(dataclasses.replace(row.with_runs(()), reason="it diverged") for row in read_comparison(copy).rows)
    changed(copy, rows=rows, best=None)
    assert "No kernel has a result; the reasons are below." in notes_of(build_page([copy]))


def test_folders_outside_the_comparison_are_not_read(copy: Path) -> None:
    found = read_comparison(copy)
    first, second = found.rows
    runs = (dataclasses.replace(first.runs[0], folder="../elsewhere"), *first.runs[1:])
    (copy.parent / "elsewhere").mkdir()
    assert len(run_folders(found, copy)) == 4
    moved = dataclasses.replace(found, rows=(first.with_runs(runs), second))
    assert len(run_folders(moved, copy)) == 3


def test_a_damaged_comparison_is_one_clear_error(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "comparison.json").write_text("{}")
    code, _, err = call(capsys, "report", copy)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "comparison.json" in err


def test_the_line_joins_points_that_no_cheaper_one_beats() -> None:
    points = [{"ms": cost, "value": value} for cost, value in ((3, 0.7), (1, 0.5), (2, 0.4), (2, 0.6), (4, 0.7))]
    front = _front(points, "ms", Objective(metric="accuracy"))
    assert [(point["ms"], point["value"]) for point in front] == [(1, 0.5), (2, 0.6), (3, 0.7)]
    front = _front(points, "ms", Objective(metric="loss", maximise=False))
    assert [(point["ms"], point["value"]) for point in front] == [(1, 0.5), (2, 0.4)]


def test_all_kernels_have_different_marks() -> None:
    points = [{"kernel": str(k), "ms": k, "value": 0.5, "low": 0.4, "high": 0.6} for k in range(13)]
    plot = _price(points, "ms", "ms a step", "accuracy", Objective(metric="accuracy"))
    assert plot.note == "", "the line has a single kernel"
    marks = plot.spec["layer"][0]["encoding"]
    looks = list(zip(marks["color"]["scale"]["range"], marks["shape"]["scale"]["range"], strict=True))
    assert len(looks) == len(set(looks)) == 13
