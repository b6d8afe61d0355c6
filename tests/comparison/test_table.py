"""The table of a comparison, and its conclusion."""

import dataclasses
from pathlib import Path

from fredholm.comparison import BaselineRow
from fredholm.comparison.table import conclusion, markdown_table, text_table
from fredholm.tasks.objective import Objective
from tests.comparison.build import found


def test_the_best_row_comes_first_and_lines_fit_a_terminal() -> None:
    lines = text_table(found(BaselineRow(name="nearest neighbours", valid=0.1, test=0.2)))
    assert [line.split()[0] for line in lines[3:7]] == ["infinite-factorised", "mlp", "lstm", "nearest"]
    assert lines[3].split()[1:3] == ["91.00±1.41", "90.00±1.41"]
    assert [line.split()[-1] for line in lines[3:7]] == ["best", "yes", "-", "-"]
    assert max(map(len, lines)) <= 100
    assert lines[-2:] == ["lstm: diverged", "mamba: left out: needs an order"]


def test_markdown_has_the_same_cells() -> None:
    lines = markdown_table(found())
    assert lines[2] == ("| infinite-factorised | 91.00±1.41 | 90.00±1.41 | 12,345,678 | 1,234 | 1,234 | 51 | best |")


def test_lower_is_better_where_the_metric_says_so() -> None:
    comparison = found(objective=Objective("loss", maximise=False))
    assert comparison.best == "mlp"
    lines = text_table(comparison)
    assert lines[3].split()[:2] == ["mlp", "0.5100±0.0141"]


def test_the_conclusion_names_the_best_run_and_how_to_continue_it() -> None:
    lines = list(conclusion(found(), Path("here")))
    assert lines == [
        "best on validation data: infinite-factorised; its best run is here/run/seed-1",
        "to continue its training, for as long as suits the data: fredholm train images pictures --init "
        "here/run/seed-1 --run-dir runs/infinite-factorised",
    ]


def test_the_command_to_continue_keeps_the_options_of_data_and_leaves_out_those_of_the_model() -> None:
    words = "compare images pictures --task.model.depth 2 --task.target number --seeds 2 --task.columns a b --resume"
    line = list(conclusion(dataclasses.replace(found(), command_line=tuple(words.split())), Path("here")))[1]
    assert "fredholm train images pictures --task.target number --task.columns a b --init here/run/seed-1 --run" in line


def test_a_better_baseline_is_named() -> None:
    values = {"near": 0.9, "linear": 0.95, "commonest": (0.90 + 0.92) / 2}
    rows = [BaselineRow(name=name, valid=value, test=0.5) for name, value in values.items()]
    lines = list(conclusion(found(*rows), Path("here")))
    assert lines[2:] == [
        "linear does better on validation data, 95.00 % against 91.00 %: no network of these is needed here",
        "commonest does as well on validation data, 91.00 %: no network of these is needed here, or another metric "
        "separates them",
    ]
