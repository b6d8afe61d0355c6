"""Training curves from the logs of one or several runs."""

from collections.abc import Iterator, Sequence

import torch

from fredholm.models.blended import Blended
from fredholm.tasks.objective import Objective

from .blocks import Block, Cell, Note, Plot, Section, Tab, Table, metric_cell
from .charts import HUES, Row, away_from_zero, axis, chart, hint, named_hues
from .run_record import RunRecord

MOST = 400
"""Most points of a curve; of a longer one every k-th and the last point are drawn."""
STROKES = ([1, 0], [6, 3], [2, 2])
"""Dash patterns that distinguish lines of one colour; the first is solid."""
LOG = 20
"""Ratio of the largest to the smallest value above which an axis is logarithmic."""
LOSS = Objective(metric="loss", maximise=False)


def training_tab(records: Sequence[RunRecord]) -> Tab:
    """The tab of losses, objective, learning rate and speed over steps, with one colour per run."""
    blocks = list[Block]()
    for curve in (_losses(records), *_objectives(records), *_details(records)) if records else ():
        if curve is not None:
            blocks.append(curve)
    if not blocks:
        has_log = any(record.lines for record in records)
        why = "Each number was logged only once" if has_log else "There is no log of the training"
        blocks.append(Note(f"{why}, so that there are no curves.", is_warning=not has_log))
    return Tab(name="Training", sections=(Section(title="How training went", blocks=tuple(blocks)),))


def _curve(record: RunRecord, kind: str, metric: str, what: str, most: int = MOST) -> list[Row]:
    """Rows of the log lines that have the metric, at most `most`."""
    labels = {"run": record.name, "group": record.group, "split": what}
    found = [
        {"step": line["step"], "epoch": line.get("epoch"), "value": line[metric], **labels}
        for line in record.of_kind(kind)
        if metric in line
    ]
    return _few(found, most)


def _best(records: Sequence[RunRecord], rows: list[Row]) -> list[Row]:
    """The step of the chosen weights of each run."""
    ends = {row["run"]: row["step"] for row in rows}
    return [
        {"step": record.best_step, "run": record.name, "mark": "chosen"}
        for record in records
        if record.best_step is not None and record.name in ends
    ]


def _plot(
    records: Sequence[RunRecord],
    rows: list[Row],
    title: str,
    y: str,
    note: str,
    objective: Objective = LOSS,
    *,
    log: bool = False,
) -> Plot | None:
    """A plot of curves; None where no curve has two points. An objective in percent has axis and numbers in percent."""
    if len({(row["run"], row["split"]) for row in rows}) == len(rows):
        return None
    groups = list(dict.fromkeys(row["group"] for row in rows))
    is_crowded = len(groups) > len(HUES)
    if is_crowded and any(row["split"] == "validation" for row in rows):
        rows = [row for row in rows if row["split"] == "validation"]
        note = f"On validation data. {note}".strip()
    values = [row["value"] for row in rows]
    is_log = log and min(values) > 0 and max(values) > LOG * min(values)
    splits = list(dict.fromkeys(row["split"] for row in rows))
    one, shares = len(records) == 1, ("value",) if objective.percent else ()
    by = "split" if one else "group"
    linear = away_from_zero("value", y, percent=objective.percent)
    shown = (("run", "run"), ("split", "split"), ("step", "step"), ("epoch", "epoch"), ("value", y))
    marks = {
        "x": axis("step", "step"),
        "y": axis("value", y, scale={"type": "log"}) if is_log else linear,
        "color": {"value": HUES[0]} if one and len(splits) == 1 else named_hues(by, {row[by] for row in rows}),
        "tooltip": hint(*shown, shares=shares),
    }
    if len({record.group for record in records}) < len(records):
        marks["detail"] = {"field": "run"}
    if is_crowded:  # colours repeat, with other dash patterns
        strokes = [STROKES[k // len(HUES) % len(STROKES)] for k in range(len(groups))]
        hues = [HUES[k % len(HUES)] for k in range(len(groups))]
        marks["color"] = named_hues("group", groups, scale={"domain": groups, "range": hues})
        marks["strokeDash"] = named_hues("group", groups, scale={"domain": groups, "range": strokes})
    elif not one and len(splits) > 1:
        marks["strokeDash"] = axis("split", "", "nominal", sort=None)
    few = max(sum(row["run"] == record.name for row in rows) for record in records) <= 60
    layers = [{"mark": {"type": "line", "point": {"size": 22} if few else False}, "encoding": marks}]
    if best := _best(records, rows):
        layers.append(
            {
                "data": {"values": best},
                "mark": {"type": "rule", "strokeDash": [4, 4], "color": "var(--muted)"},
                "encoding": {"x": axis("step", "step"), "tooltip": hint(("run", "run"), ("step", "chosen step"))},
            }
        )
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (row["run"], row["split"], row["step"], metric_cell(objective, row["value"])) for row in _few(rows, 40)
    )
    table = Table(title=title, columns=("run", "split", "step", y), rows=cells, is_folded=True)
    height = 240 + (14 * len(groups) // 2 if is_crowded else 0)  # room for the legend
    spec = chart(rows, layers, height=height)
    return Plot(title=title, spec=spec, table=table, note=note, is_half=not is_crowded)


def _few(rows: list[Row], most: int) -> list[Row]:
    step = -(-len(rows) // most)
    return rows if step <= 1 else [*rows[:-1:step], rows[-1]]


def _losses(records: Sequence[RunRecord]) -> Plot | None:
    kinds, most = (("train", "training"), ("valid", "validation")), max(20, MOST // len(records))
    rows = [row for record in records for kind, what in kinds for row in _curve(record, kind, "loss", what, most)]
    has_valid = any(row["split"] == "validation" for row in rows)
    why = "were chosen on validation data" if has_valid else "are used"
    note = f"The dashed line marks the step whose weights {why}."
    if rows and any(map(_is_blended, records)):
        note += " The loss of training is that of the network alone, without the model in closed form beside it."
    return _plot(records, rows, "Loss", "loss", note, log=True)


def _is_blended(record: RunRecord) -> bool:
    """Whether the model has a closed-form part besides its network; False where the model cannot be built."""
    if record.run is None:
        return False
    try:
        with torch.random.fork_rng(devices=[]):
            return isinstance(record.run.task.model(), Blended)
    except (ValueError, OSError, ImportError):
        return False


def _objectives(records: Sequence[RunRecord]) -> Iterator[Plot | None]:
    """Plots of the objective of each run, one plot for all runs that share it."""
    found: dict[str, tuple[Objective, list[RunRecord]]] = {}
    for record in records:
        if record.run is not None:
            objective = record.run.task.objective
            found.setdefault(objective.metric, (objective, []))[1].append(record)
    for name, (objective, own) in found.items():
        most = max(20, MOST // len(own))
        rows = [row for record in own for row in _curve(record, "valid", name, "validation", most)]
        if name != "loss":
            best = "Higher is better." if objective.maximise else "Lower is better."
            y = name.replace("_", " ")
            yield _plot(own, rows, f"{y.capitalize()} on validation data", y, best, objective)


def _details(records: Sequence[RunRecord]) -> Iterator[Plot | None]:
    for metric, title, note in (
        ("learning_rate", "Learning rate", ""),
        ("gradient_norm", "Norm of the gradient", "Before it is clipped."),
        ("examples_per_second", "Examples a second", ""),
    ):
        most = max(20, MOST // len(records))
        rows = [row for record in records for row in _curve(record, "train", metric, "training", most)]
        yield _plot(records, rows, title, title.lower(), note)
