"""The section on a model's predictions: the metric with its interval, and the errors by kind of target."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fredholm.tasks.element_labels import LabelsElements
from fredholm.tasks.files.terminal_text import counted, first_few
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets.labels import LabelTarget
from fredholm.tasks.targets.numbers import NumberTarget
from fredholm.tasks.task import Task

from .blocks import Block, Cell, Figure, Note, Plot, Section, Share, Table
from .charts import Row, away_from_zero, axis, chart, heat, hint, share_axis
from .examination import Examination
from .statistics import BINS, ClassScores, confusion

MOST_CLASSES = 16
"""Most classes in the plot of a confusion matrix, chosen by their number of errors."""
MOST_ROWS = 200
"""Most rows in a table of classes or labels."""
HISTOGRAM_BINS = 24
MOST_DOTS = 1000
"""Most points in a scatter plot."""


def prediction_section(task: Task, found: Examination, logged: float | None) -> Section:
    """The section on the quality of a run's predictions.

    Args:
        task: the run's task.
        found: the examination of its model.
        logged: the objective on the whole split from the run's log; None where the log has none.
    """
    blocks: list[Block] = [_headline(task, found, logged)]
    if found.split == "valid":
        message = (
            "These numbers are of the validation data, on which the step was chosen. Test data are read at the end."
        )
        blocks.append(Note(message, is_warning=True))
    if isinstance(task, LabelsElements) and found.counts is not None:
        blocks += _classes(found, task.element_names)
    if isinstance(task, TargetTask):
        target = task.target
        if found.counts is not None:
            blocks += _classes(found, target.names)
        elif isinstance(target, LabelTarget) and found.outputs is not None and found.targets is not None:
            blocks += _labels(target, found.outputs, found.targets)
        elif isinstance(target, NumberTarget) and found.outputs is not None and found.targets is not None:
            blocks += _numbers(target, found.outputs, found.targets)
    blocks.append(_loss_plot(found))
    return Section(title="Quality of the predictions", blocks=tuple(blocks))


def _headline(task: Task, found: Examination, logged: float | None) -> Figure:
    objective, count = task.objective, len(found.indices)
    split = {"test": "test", "valid": "validation"}[found.split]
    is_whole = count == found.total
    value = found.value if is_whole or logged is None else logged
    examples = counted(count, "example") if is_whole else f"{count:,} of {found.total:,} examples, drawn at random"
    if found.interval is None:
        note = f"of {examples}; no interval can be computed from them"
    else:
        low, high, how = found.interval
        note = f"{how}: {objective.format(low)} to {objective.format(high)}, from {examples}"
    if logged is not None and is_whole and not math.isclose(logged, found.value, rel_tol=1e-3, abs_tol=1e-3):
        note += f"; the log has {objective.format(logged)}, so that data or machine are no longer as they were"
    return Figure(value=objective.format(value), name=f"{objective.metric.replace('_', ' ')}, {split} data", note=note)


def _classes(found: Examination, names: tuple[str, ...]) -> Iterator[Block]:
    counts = found.counts
    assert counts is not None
    scores, what = ClassScores.of(counts), "examples" if found.outputs is not None else "elements"
    if int((scores.support > 0).sum()) < 2:
        yield Note("All targets are of one class, so that there is nothing to distinguish here.", is_warning=True)
    yield _confusion(counts, names, what)
    if found.reliability is not None:
        yield _reliability(found, what)
    order = list(range(len(names)))
    if len(names) > MOST_ROWS:
        order = sorted(order, key=lambda k: (-int(scores.support[k]), names[k]))[:MOST_ROWS]
    rows = tuple(
        (
            names[k],
            _share(scores.precision[k]),
            _share(scores.recall[k]),
            _share(scores.f1[k]),
            int(scores.support[k]),
        )
        for k in order
    )
    note = (
        f"Precision: share of this class among the {what} predicted as it. Recall: share of this class that is "
        f"predicted as it. F1: their harmonic mean. Support: number of {what}."
    )
    if len(names) > MOST_ROWS:
        note += f" The {MOST_ROWS} most frequent of {len(names):,} classes."
    lone = [names[k] for k in range(len(names)) if int(scores.support[k]) == 1]
    if lone and what == "examples":
        lone_names = first_few(lone)
        yield Note(f"Classes with a single example: {lone_names}. Their scores mean next to nothing.", is_warning=True)
    columns = ("class", "precision", "recall", "F1", "support")
    yield Table(title="Class by class", columns=columns, rows=rows, note=note)


def _share(value: Tensor) -> Share | None:
    return Share(float(value)) if bool(value.isfinite()) else None


def _confusion(counts: Tensor, names: tuple[str, ...], what: str) -> Plot:
    wrong = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    size = counts.sum(1)
    if len(names) > MOST_CLASSES:
        chosen = sorted(sorted(range(len(names)), key=lambda k: (-int(wrong[k]), -int(size[k])))[:MOST_CLASSES])
        note = f"The {MOST_CLASSES} of {len(names)} classes with the most errors."
    else:
        chosen, note = list(range(len(names))), ""
    rows = [
        {
            "truth": names[a],
            "predicted": names[b],
            "count": int(counts[a, b]),
            "share": float(counts[a, b]) / max(int(size[a]), 1),
        }
        for a in chosen
        for b in chosen
    ]
    pairs = [(int(counts[a, b]), a, b) for a, b in (counts - counts.diagonal().diag()).nonzero().tolist()]
    worst = sorted(pairs, key=lambda each: (-each[0], each[1:]))[:20]
    cells: tuple[tuple[Cell, ...], ...] = tuple((names[a], names[b], count) for count, a, b in worst)
    table = Table(title="Most frequent confusions", columns=("true", "predicted", what), rows=cells, is_folded=True)
    note = f"Shades are shares of a row. {note}".strip()
    height = max(160, min(520, 26 * len(chosen) + 90))
    spec = heat(rows, ("predicted", "predicted"), ("truth", "true"), ("count", what), height=height)
    return Plot(title="Confusion matrix", spec=spec, table=table, note=note, is_half=len(chosen) <= 12)


def _reliability(found: Examination, what: str) -> Plot:
    reliability = found.reliability
    assert reliability is not None
    rows = [
        {
            "from": k / BINS,
            "to": (k + 1) / BINS,
            "sure": float(reliability.sure[k] / reliability.count[k]),
            "right": float(reliability.right[k] / reliability.count[k]),
            "count": int(reliability.count[k]),
        }
        for k in range(BINS)
        if reliability.count[k] > 0
    ]
    share = {"domain": [0, 1]}
    names = (("sure", "mean probability"), ("right", "share correct"), ("count", what))
    tooltip = hint(*names, shares=("sure", "right"))
    layers = [
        {
            "mark": {"type": "rect", "fill": "var(--hue-0)", "fillOpacity": 0.55},
            "encoding": {
                "x": share_axis("from", "predicted probability", scale=share),
                "x2": {"field": "to"},
                "y": share_axis("right", "share correct", scale=share),
                "y2": {"datum": 0},
                "tooltip": tooltip,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "color": "var(--ink)", "size": 40},
            "encoding": {"x": axis("sure", ""), "y": axis("right", ""), "tooltip": tooltip},
        },
        {
            "data": {"values": [{"a": 0}, {"a": 1}]},
            "mark": {"type": "line", "strokeDash": [4, 4], "color": "var(--muted)"},
            "encoding": {"x": axis("a", ""), "y": axis("a", "")},
        },
    ]
    cells = tuple(
        (f"{100 * row['from']:.0f} to {100 * row['to']:.0f} %", Share(row["sure"]), Share(row["right"]), row["count"])
        for row in rows
    )
    columns = ("probability", "mean probability", "share correct", what)
    note = (
        f"Expected calibration error {100 * reliability.error:.1f} %: the mean gap between the probability of "
        "predictions and the share that is correct. On the dashed line both are equal; below it the model is "
        "overconfident."
    )
    table = Table(title="Reliability", columns=columns, rows=cells, is_folded=True)
    return Plot(title="Reliability", spec=chart(rows, layers), table=table, note=note, is_half=True)


def _labels(target: LabelTarget, outputs: Tensor, targets: Tensor) -> Iterator[Block]:
    predicted, has = target.predictions(outputs) >= 0.5, targets > 0.5
    rows, support = list[tuple[Cell, ...]](), has.sum(0).tolist()
    for k in sorted(range(len(support)), key=lambda k: -support[k])[:MOST_ROWS]:
        scores = ClassScores.of(confusion(predicted[:, k].long(), has[:, k].long(), 2))
        own = (scores.precision[1], scores.recall[1], scores.f1[1])
        rows.append((target.names[k], *map(_share, own), support[k], int(predicted[:, k].sum())))
    columns = ("label", "precision", "recall", "F1", "support", "predicted")
    note = "A label is predicted where its probability is at least one half. Support: the examples that have it."
    exact = float((predicted == has).all(1).float().mean())
    yield Note(f"All labels of an example are right in {100 * exact:.1f} % of {len(outputs):,} examples.")
    yield Table(title="Label by label", columns=columns, rows=tuple(rows), note=note)


def _numbers(target: NumberTarget, outputs: Tensor, targets: Tensor) -> Iterator[Block]:
    levels = target.levels_of(outputs.double())
    number = target.number_of(levels)
    mean, deviation = (outputs.new_tensor(each).double() for each in (target.mean, target.deviation))
    truth = targets.double() * deviation + mean
    step = -(-len(number) // MOST_DOTS)
    for k, name in enumerate(target.names[:6]):
        rows = [
            {"truth": a, "predicted": b, "error": b - a}
            for a, b in zip(truth[::step, k].tolist(), number[::step, k].tolist(), strict=True)
        ]
        yield _scatter(rows, name, float((number[:, k] - truth[:, k]).abs().mean()))
        yield _residuals((number - truth)[:, k], name)
    if target.quantiles:
        below = (truth[..., None] <= levels).double().mean(0)
        cells = tuple(
            (f"{name} at {tau:g}", Share(tau), Share(float(below[k, q])))
            for k, name in enumerate(target.names)
            for q, tau in enumerate(target.quantiles)
        )
        note = "The share of true numbers at or below each predicted quantile, which should be its level."
        yield Table(title="Coverage of the quantiles", columns=("quantile", "level", "covered"), rows=cells, note=note)


def _scatter(rows: list[Row], name: str, error: float) -> Plot:
    ends = [min(row["truth"] for row in rows), max(row["truth"] for row in rows)]
    layers = [
        {
            "mark": {"type": "circle", "color": "var(--hue-0)", "opacity": 0.55, "size": 28},
            "encoding": {
                "x": away_from_zero("truth", f"true {name}"),
                "y": away_from_zero("predicted", f"predicted {name}"),
                "tooltip": hint(("truth", "true"), ("predicted", "predicted")),
            },
        },
        {
            "data": {"values": [{"a": end} for end in ends]},
            "mark": {"type": "line", "strokeDash": [4, 4], "color": "var(--muted)"},
            "encoding": {"x": axis("a", ""), "y": axis("a", "")},
        },
    ]
    cells = tuple((row["truth"], row["predicted"], row["error"]) for row in rows[:40])
    table = Table(
        title=f"{name}: predicted and true", columns=("true", "predicted", "error"), rows=cells, is_folded=True
    )
    note = f"Mean absolute error {error:.4g}. On the dashed line both are equal."
    return Plot(title=f"{name}: predicted and true", spec=chart(rows, layers), table=table, note=note, is_half=True)


def _histogram(values: Tensor) -> list[Row]:
    """Counts of finite values in intervals of equal width."""
    low, high = float(values.min()), float(values.max())
    if high <= low:
        low, high = low - 0.5, high + 0.5
    counts = values.double().histc(HISTOGRAM_BINS, low, high).long().tolist()
    width = (high - low) / HISTOGRAM_BINS
    return [{"from": low + k * width, "to": low + (k + 1) * width, "count": n} for k, n in enumerate(counts)]


def _histogram_plot(rows: list[Row], title: str, x: str, note: str) -> Plot:
    mark = {
        "mark": {"type": "rect", "fill": "var(--hue-0)"},
        "encoding": {
            "x": axis("from", x, scale={"zero": False, "nice": False}),
            "x2": {"field": "to"},
            "y": axis("count", "examples", axis={"tickMinStep": 1}),
            "y2": {"datum": 0},
            "tooltip": hint(("from", "from"), ("to", "to"), ("count", "examples")),
        },
    }
    cells = tuple((row["from"], row["to"], row["count"]) for row in rows)
    table = Table(title=title, columns=("from", "to", "examples"), rows=cells, is_folded=True)
    return Plot(title=title, spec=chart(rows, [mark]), table=table, note=note, is_half=True)


def _residuals(errors: Tensor, name: str) -> Plot:
    mean, deviation = float(errors.mean()), float(errors.std(0, correction=0))
    note = f"Predicted less true: mean {mean:.4g}, deviation {deviation:.4g}."
    return _histogram_plot(_histogram(errors), f"{name}: errors", "error", note)


def _loss_plot(found: Examination) -> Plot:
    losses = torch.where(found.losses.isfinite(), found.losses, 0.0)
    high = float(losses.quantile(0.5)) if len(losses) else 0.0
    note = f"Half of the examples have a loss of at most {high:.4g}; the highest losses are shown under Examples."
    return _histogram_plot(_histogram(losses), "Loss of single examples", "loss", note)
