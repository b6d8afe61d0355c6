"""Comparison tables as text and Markdown."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from fredholm.tasks.objective import Objective

from .comparison import BaselineRow, Comparison, Row

UNKNOWN = "-"


def text_table(comparison: Comparison) -> list[str]:
    """Returns lines of at most 100 columns, except for reasons; the best row comes first."""
    cells = [_header(comparison), *_cells(comparison)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["", f"{_metric(comparison)} of {comparison.data}, fredholm {comparison.task}"]
    for name, *numbers in cells:
        aligned = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *aligned]).rstrip())
    return [*lines, *_notes(comparison)]


def markdown_table(comparison: Comparison) -> list[str]:
    """Returns the same table in Markdown, with notes below."""
    header = _header(comparison)
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *_cells(comparison)]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), "", *(f"- {note}" for note in _notes(comparison))]


def conclusion(comparison: Comparison, folder: Path) -> Iterator[str]:
    """Yields the best kernel, the place of its run, the command to train it longer, and whether a network is needed.

    Args:
        comparison: a complete comparison.
        folder: its folder.
    """
    if comparison.best is None:
        yield "no kernel has a result; the reasons stand above"
        return
    best, objective = comparison.row(comparison.best), comparison.objective
    sign = 1 if objective.maximise else -1
    run = max(best.runs, key=lambda each: sign * (each.valid or 0.0))
    yield f"best on validation data: {best.name}; its best run is {folder / run.folder}"
    command = ["fredholm", "train", comparison.task, *([comparison.data] if comparison.data else [])]
    command += _options_of_data(comparison.command_line)
    command += ["--init", str(folder / run.folder), "--run-dir", f"runs/{best.name}"]
    yield f"to continue its training, for as long as suits the data: {shlex.join(command)}"
    yield from better_without_network(comparison)


def better_without_network(comparison: Comparison) -> Iterator[str]:
    """Yields a sentence for each baseline that does at least as well on validation data as the best kernel."""
    if comparison.best is None:
        return
    value, objective = comparison.row(comparison.best).valid_mean or 0.0, comparison.objective
    for baseline in comparison.baselines:
        if baseline.valid is not None and objective.is_better(baseline.valid, value):
            yield (
                f"{baseline.name} does better on validation data, {objective.format(baseline.valid)} against "
                f"{objective.format(value)}: no network of these is needed here"
            )
        elif baseline.valid == value:
            yield (
                f"{baseline.name} does as well on validation data, {objective.format(value)}: no network of these is "
                "needed here, or another metric separates them"
            )


def _options_of_data(words: Sequence[str]) -> list[str]:
    """Returns the task's options on a command line, without those of the model, which come from the starting run."""
    found, is_ours = list[str](), False
    for word in words:
        if word.startswith("--"):
            is_ours = word.startswith("--task.") and not word.startswith("--task.model")
        if is_ours:
            found.append(word)
    return found


def _metric(comparison: Comparison) -> str:
    return comparison.objective.metric.replace("_", " ") + (" in %" if comparison.objective.percent else "")


def _header(comparison: Comparison) -> list[str]:
    size = ["parameters", "ms/step", "MB/step", "ex/s"]
    return ["", "valid", *(["test"] if comparison.num_test else []), *size, "differs"]


def _cells(comparison: Comparison) -> Iterator[list[str]]:
    """Yields one line of cells per row, the best first and those without a result last, and then the baselines."""
    objective, with_test = comparison.objective, comparison.num_test > 0
    sign = 1 if objective.maximise else -1

    def order(row: Row) -> tuple[bool, float]:
        return row.valid_mean is None, -sign * (row.valid_mean or 0.0)

    for row in sorted(comparison.rows, key=order):
        differs = {True: "yes", False: "no", None: "best" if row.name == comparison.best else "?"}
        yield [
            row.name,
            _spread(objective, row.valid_mean, row.valid_deviation),
            *([_spread(objective, row.test_mean, row.test_deviation)] if with_test else []),
            f"{row.parameters:,}",
            UNKNOWN if row.seconds_per_step is None else _short(1000 * row.seconds_per_step),
            UNKNOWN if row.memory_bytes is None else _short(row.memory_bytes / 1e6),
            UNKNOWN if row.examples_per_second is None else _short(row.examples_per_second),
            differs[row.differs_from_best] if row.runs else UNKNOWN,
        ]
    for baseline in comparison.baselines:
        yield _baseline_cells(baseline, objective, with_test=with_test)


def _baseline_cells(baseline: BaselineRow, objective: Objective, *, with_test: bool) -> list[str]:
    test = [_spread(objective, baseline.test, None)] if with_test else []
    return [baseline.name, _spread(objective, baseline.valid, None), *test, *[UNKNOWN] * 5]


def _notes(comparison: Comparison) -> list[str]:
    """Notes on the meaning of the table and on missing results."""
    seeds, split = len(comparison.seeds), "test" if comparison.num_test else "validation"
    spread = ["one seed: whether differences are more than those between seeds is not known"]
    if seeds > 1:
        spread = [
            f"±: deviation over {seeds} seeds; networks have {comparison.target_parameters:,} parameters within 5 %",
            f"differs: from the best row on the {split} split by more than seeds do (Welch's interval, 95 %)",
        ]
    reasons = {row.name: row.reason for row in (*comparison.rows, *comparison.baselines) if row.reason}
    reasons |= {each.name: f"left out: {each.reason}" for each in comparison.left_out}
    return [*spread, *(f"{name}: {reason}" for name, reason in reasons.items())]


def _spread(objective: Objective, mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return UNKNOWN
    scale = 100.0 if objective.percent else 1.0
    digits = 2 if abs(scale * mean) >= 10 or objective.percent else 4
    return f"{scale * mean:.{digits}f}" + ("" if deviation is None else f"±{scale * deviation:.{digits}f}")


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"
