"""The tab of a comparison of kernels: its result, table, metric against cost, and runs."""

import functools
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fredholm.comparison.comparison import Comparison, Row
from fredholm.comparison.table import better_without_network
from fredholm.tasks.files.terminal_text import counted
from fredholm.tasks.objective import Objective

from .blocks import Block, Cell, Facts, Figure, Note, Plot, Section, Tab, Table, metric_cell
from .charts import HUES, away_from_zero, axis, chart, hint, named_hues

SHAPES = ("circle", "diamond", "square")
"""Shapes of the marks of kernels; the shape changes once all colours are used."""


def comparison_tab(comparison: Comparison, folder: Path) -> Tab:
    """The tab of a comparison, without the training curves of its runs."""
    blocks: list[Block] = [*_result(comparison), _table(comparison)]
    if comparison.left_out:
        rows = tuple((each.name, each.reason) for each in comparison.left_out)
        blocks.append(Table(title="Left out", columns=("kernel", "reason"), rows=rows))
    without = tuple((row.name, row.reason) for row in comparison.rows if row.reason)
    if without:
        blocks.append(Table(title="Without a result", columns=("kernel", "reason"), rows=without))
    blocks += _prices(comparison)
    searched = tuple(
        (
            row.name,
            rate,
            epochs,
            metric_cell(comparison.objective, value),
            "chosen" if rate == row.learning_rate else "",
        )
        for row in comparison.rows
        for rate, epochs, value in row.tried
    )
    if searched:
        columns = ("kernel", "learning rate", "epochs", f"valid {_name(comparison.objective)}", "")
        blocks.append(Table(title="The search of learning rates", columns=columns, rows=searched, is_folded=True))
    sections = (
        Section(title="Which kernel", blocks=tuple(blocks)),
        Section(title="Setting of the comparison", blocks=(Facts(rows=tuple(_facts(comparison, folder))),)),
    )
    return Tab(name="Comparison", sections=sections)


def run_folders(comparison: Comparison, folder: Path) -> list[Path]:
    """Run folders of all seeds inside the folder, in the order of the table."""
    root = folder.resolve()
    found = [folder / run.folder for row in _ordered(comparison) for run in row.runs]
    return [path for path in found if path.is_dir() and path.resolve().is_relative_to(root)]


def best_run(comparison: Comparison, folder: Path) -> Path | None:
    """The folder of the best run of the best kernel; None while no kernel is best yet."""
    if comparison.best is None:
        return None
    sign = 1 if comparison.objective.maximise else -1
    runs = comparison.row(comparison.best).runs
    return folder / max(runs, key=lambda each: sign * (each.valid or 0.0)).folder


def _name(objective: Objective) -> str:
    return objective.metric.replace("_", " ")


def _ordered(comparison: Comparison) -> list[Row]:
    """Rows from best to worst, those without a result last."""
    sign = -1 if comparison.objective.maximise else 1
    return sorted(comparison.rows, key=lambda row: (row.valid_mean is None, sign * (row.valid_mean or 0.0)))


def _spread(objective: Objective, mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "–"
    text = objective.format(mean)
    return text if deviation is None else f"{text} ± {objective.format(deviation)}"


def _result(comparison: Comparison) -> list[Block]:
    blocks, objective = list[Block](), comparison.objective
    if not comparison.is_complete:
        done, wanted = sum(len(row.runs) for row in comparison.rows), sum(map(comparison.num_runs, comparison.rows))
        message = f"The comparison is not complete: {done} of {wanted} runs are there. The same command continues it."
        blocks.append(Note(message, is_warning=True))
    if comparison.best is None:
        none = "No kernel has a result; the reasons are below."
        return [*blocks, Note(none if comparison.is_complete else "Which kernel is best is not known yet.")]
    best = comparison.row(comparison.best)
    by_test = comparison.num_test > 0 and best.test_mean is not None
    value = _spread(objective, best.test_mean, best.test_deviation) if by_test else None
    equal = [row.name for row in comparison.rows if row.differs_from_best is False]
    note = "chosen on validation data"
    if equal:
        note += f"; no difference beyond the spread of seeds: {', '.join(equal)}"
    name = f"{best.title}: {_name(objective)}, {'test' if by_test else 'validation'} data"
    shown = value or _spread(objective, best.valid_mean, best.valid_deviation)
    blocks.insert(0, Figure(value=shown, name=name, note=note))
    return blocks + [
        Note(f"{remark[0].upper()}{remark[1:]}.", is_warning=True) for remark in better_without_network(comparison)
    ]


def _table(comparison: Comparison) -> Table:
    objective, rows = comparison.objective, list[tuple[Cell, ...]]()
    has_test = comparison.num_test > 0
    for row in _ordered(comparison):
        judged = "best" if row.name == comparison.best else {True: "yes", False: "no", None: "–"}[row.differs_from_best]
        rows.append(
            (
                row.title,
                _spread(objective, row.valid_mean, row.valid_deviation),
                *((_spread(objective, row.test_mean, row.test_deviation),) if has_test else ()),
                row.parameters,
                None if row.seconds_per_step is None else 1000 * row.seconds_per_step,
                None if row.memory_bytes is None else row.memory_bytes / 1e6,
                row.examples_per_second,
                judged,
            )
        )
    for baseline in comparison.baselines:
        values = [_spread(objective, value, None) for value in (baseline.valid, baseline.test)[: 1 + has_test]]
        nothing = (None, None, None, None)
        rows.append((f"{baseline.name} (no network)", *values, *nothing, baseline.reason or "–"))
    columns = ("kernel", "valid", *(("test",) if has_test else ()), "parameters", "ms a step", "MB a step")
    count = len(comparison.seeds)
    mean = f"The mean of {_name(objective)} over {count} seeds ± its deviation." if count > 1 else "One seed."
    note = f"{mean} Differs: whether the 95 % interval of the difference to the best (Welch) leaves 0 out."
    title = "Kernels under one budget"
    return Table(title=title, columns=(*columns, "examples a second", "differs"), rows=tuple(rows), note=note)


def _prices(comparison: Comparison) -> list[Block]:
    """Plots of the metric against time per step and against parameters."""
    objective = comparison.objective
    least, most = (0.0, 1.0) if objective.percent else (-math.inf, math.inf)
    points = [
        {
            "kernel": row.name,
            "value": row.valid_mean,
            "low": max(least, row.valid_mean - (row.valid_deviation or 0.0)),
            "high": min(most, row.valid_mean + (row.valid_deviation or 0.0)),
            "ms": None if row.seconds_per_step is None else 1000 * row.seconds_per_step,
            "parameters": row.parameters,
        }
        for row in _ordered(comparison)
        if row.valid_mean is not None
    ]
    found = list[Block]()
    for field, title in (("ms", "ms a step"), ("parameters", "parameters")):
        own = [point for point in points if point[field] is not None]
        if own:
            found.append(_price(own, field, title, f"{_name(objective)}, validation data", objective))
    return found


def _price(points: Sequence[dict[str, Any]], field: str, title: str, metric: str, objective: Objective) -> Plot:
    front = _front(points, field, objective)
    ticks = {"tickMinStep": 1} if field == "parameters" else {}  # whole numbers
    shared = {"x": axis(field, title, scale={"zero": False, "nice": True, "padding": 20}, axis=ticks)}
    names = [point["kernel"] for point in points]
    shapes = [SHAPES[k // len(HUES) % len(SHAPES)] for k in range(len(names))]
    color = named_hues("kernel", names, scale={"domain": names, "range": [*HUES * len(SHAPES)][: len(names)]})
    shape = named_hues("kernel", names, scale={"domain": names, "range": shapes})
    value_axis = functools.partial(away_from_zero, title=metric, percent=objective.percent)
    shares = ("value",) if objective.percent else ()
    tooltip = hint(("kernel", "kernel"), (field, title), ("value", metric), shares=shares)
    dots = {
        "mark": {"type": "point", "filled": True, "size": 90},
        "encoding": {
            **shared,
            "y": value_axis("value"),
            "color": color,
            "shape": shape,
            "tooltip": tooltip,
        },
    }
    spread = {
        "mark": {"type": "rule"},
        "encoding": {**shared, "y": value_axis("low"), "y2": {"field": "high"}, "color": color},
    }
    line = {
        "data": {"values": front},
        "mark": {"type": "line", "interpolate": "step-after", "strokeDash": [4, 4], "color": "var(--muted)"},
        "encoding": {**shared, "y": value_axis("value")},
    }
    on_line = {point["kernel"] for point in front}
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (
            point["kernel"],
            point[field],
            metric_cell(objective, point["value"]),
            "yes" if point["kernel"] in on_line else "no",
        )
        for point in points
    )
    heading = f"{_name(objective).capitalize()} against {title}"
    table = Table(title=heading, columns=("kernel", title, metric, "on the line"), rows=cells, is_folded=True)
    note = "On the dashed line are the kernels that no other beats at a lower price." if len(front) > 1 else ""
    height = 220 + 14 * (len(names) + 1) // 2  # the legend takes the rest
    return Plot(
        title=heading, spec=chart(points, [dots, spread, line], height=height), table=table, note=note, is_half=True
    )


def _front(points: Sequence[dict[str, Any]], field: str, objective: Objective) -> list[dict[str, Any]]:
    """The Pareto front: points that are better than all cheaper ones, the cheapest first."""
    sign, front = -1 if objective.maximise else 1, list[dict[str, Any]]()
    for point in sorted(points, key=lambda each: (each[field], sign * each["value"])):
        if not front or objective.is_better(point["value"], front[-1]["value"]):
            front.append(point)
    return front


def _facts(comparison: Comparison, folder: Path) -> list[tuple[str, tuple[str, ...]]]:
    sizes = (comparison.num_train, comparison.num_valid, comparison.num_test)
    budget = comparison.budget
    minutes = "minute" if budget.minutes == 1 else "minutes"
    planned = f"{budget.minutes:g} {minutes}: " if budget.minutes is not None else ""
    facts = {
        "folder": str(folder),
        "command": shlex.join(["fredholm", *comparison.command_line]),
        "task": comparison.task,
        "data": comparison.data or "-",
        "examples": "{:,} to learn from, {:,} for validation, {:,} for testing".format(*sizes),
        "parameters": f"about {comparison.target_parameters:,} of every network",
        "budget": f"{planned}{counted(budget.epochs, 'epoch')} a run, seeds {', '.join(map(str, comparison.seeds))}",
        "began": comparison.created,
        "machine": ", ".join(comparison.machine.values()),
        "version": comparison.version,
    }
    return [(name, (value,)) for name, value in facts.items()]
