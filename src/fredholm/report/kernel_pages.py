"""The section on a model's kernels: profiles, receptive fields, weights, spectra, symmetries and costs."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, final

import torch
from torch import Tensor, nn

from fredholm import analysis
from fredholm.domains import Domain
from fredholm.domains.grid import whole_grid
from fredholm.evaluation import Integral
from fredholm.kernels import Kernel, Scaled, Sum, ValueMixing
from fredholm.models.blended import Blended
from fredholm.operators import IntegralOperator
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.task import Task
from fredholm.tasks.views import FieldView, Line, PointsView, SeriesView, ShownExample, View
from fredholm.training.device import move

from .blocks import Block, Card, Cell, Gallery, Note, Plot, Section, Table
from .charts import Row, away_from_zero, axis, bars, chart, hint, named_hues
from .drawing import drawn

MOST_OPERATORS = 6
"""Most operators whose kernels are shown: the first, the last, and some between."""
MOST_INPUTS = 30
"""Most columns in the plot of input relevances; the table lists all."""
MOST_HEADS = 8
MOST_MAP = 2**20
"""Most weights of a head that are computed for a map."""
MOST_CELLS = 30
"""Most displacements along each axis that a map shows without bins."""
MOST_READ = 1024
"""Most displacements along each axis at which κ is read to find where it is not 0."""
MOST_POINTS = 300
"""Most points of a signal on which symmetry is measured."""
SECONDS = 5.0
"""Seconds after which no further analysis is begun."""
Found = TypeVar("Found")
REFUSALS = (ValueError, TypeError, RuntimeError, NotImplementedError)
"""Errors of an analysis that does not apply to a kernel, or for which memory is short."""


@final
@dataclass
class _Readings:
    """Runs analyses until a deadline and collects the reasons for missing ones."""

    end: float
    missing: dict[str, list[str]]

    def of(self, what: str, name: str, read: Callable[[], Found]) -> Found | None:
        """Result of an analysis; None where it does not apply or the time is over."""
        if time.monotonic() > self.end:
            self.missing.setdefault("there was no time left", []).append(f"{what} of {name}")
            return None
        try:
            return read()
        except REFUSALS as error:
            self.missing.setdefault(str(error), []).append(f"{what} of {name}")
            return None


def input_section(counts: Mapping[str, float]) -> Section:
    """The section on the relevance of each input column, the most relevant first."""
    found = sorted(counts.items(), key=lambda each: -each[1])
    table = Table(title="Relevance of columns", columns=("column", "relevance"), rows=tuple(found))
    rows: list[Row] = [{"column": name, "relevance": count} for name, count in found[:MOST_INPUTS]]
    spec = bars(rows, ("relevance", "relevance"), ("column", ""), height=40 + 18 * len(rows))
    note = (
        "How much the model relies on a column, from 0 (not at all) to 1 (as much as on any other). "
        "Information that two columns share may be attributed to either."
    )
    plot = Plot(title="Relevance of columns", spec=spec, table=table, note=note)
    return Section(title="Inputs of the model", blocks=(plot,))


def kernel_section(task: Task, model: nn.Module, split: HeldOut, device: torch.device) -> Section:
    """The section of all kernel analyses at the first example of a split; of a blended model, of its network.

    Raises:
        ValueError, OSError, ImportError: the data cannot be read, or torchmetrics is not installed.
    """
    first = torch.tensor([0])
    model = model.network if isinstance(model, Blended) else model

    def run() -> None:
        if isinstance(task, TargetTask):  # its metrics are not needed and take seconds to import
            task.outputs_and_targets(model, split, first)
        else:
            batch = move(task.held_out_batch(split, first), device)
            task.score(model, batch, {name: metric.to(device) for name, metric in task.metrics().items()})

    title = "Kernels at one example"
    operators = {name: module for name, module in model.named_modules() if isinstance(module, IntegralOperator)}
    with torch.no_grad(), analysis.record_integrals(model) as integrals:
        run()
    if not integrals:
        message = "The model has no integral operators, or they run step by step: there are no kernels to show."
        return Section(title=title, blocks=(Note(message),))
    readings = _Readings(time.monotonic() + SECONDS, {})
    chosen = _some(list(integrals))
    terms = {name: term for each in chosen for name, term in _terms(each, integrals[each]).items()}
    blocks: list[Block] = []
    if (costs := readings.of("routes", "all", lambda: analysis.operator_costs(operators, integrals))) is not None:
        blocks += _costs(integrals, costs)
    for name, integral in terms.items():
        blocks += _profiles(readings, name, integral)
    blocks += _fields(readings, model, run, integrals)
    for name in dict.fromkeys((next(iter(terms)), list(terms)[-1])):
        blocks += _maps(readings, name, terms[name])
    blocks += _symmetry(readings, {name: operators[name] for name in chosen}, integrals)
    blocks += _spectra(readings, terms)
    for why, what in readings.missing.items():
        blocks.append(Note(f"Not shown: {'; '.join(what[:4])}{', ...' if len(what) > 4 else ''} ({why})."))
    return Section(title=title, blocks=tuple(blocks))


def _some(names: list[str]) -> list[str]:
    """At most MOST_OPERATORS of the names, with the first and the last among them."""
    if len(names) <= MOST_OPERATORS:
        return names
    places = torch.linspace(0, len(names) - 1, MOST_OPERATORS).round().long().tolist()
    return [names[place] for place in places]


def _terms(name: str, integral: Integral[Kernel]) -> dict[str, Integral[Kernel]]:
    """The summands of an operator's kernel, each with its own integral."""
    kernel = integral.kernel
    if isinstance(kernel, Scaled):
        return _terms(name, integral.of(kernel.kernel))
    if not isinstance(kernel, Sum):
        return {f"{name or 'operator'} ({type(kernel).__name__})": integral}
    found: dict[str, Integral[Kernel]] = {}
    for term in kernel.kernels:
        for own, part in _terms(name, integral.of(term)).items():
            found[own if own not in found else f"{own} {len(found) + 1}"] = part
    return found


def _costs(integrals: dict[str, Integral[Kernel]], costs: dict[str, analysis.OperatorCost]) -> list[Block]:
    rows = tuple(
        (
            name or "operator",
            type(integrals[name].kernel).__name__,
            integrals[name].domain.num_points,
            cost.route.split("\n")[0],
            1000 * cost.seconds,
            cost.megabytes,
        )
        for name, cost in costs.items()
    )
    columns = ("operator", "kernel", "points", "route", "ms", "MB")
    note = (
        "Forward pass at this example on the machine that wrote the page, each operator by itself: the median time of "
        "three calls, and the peak memory of a call above the memory in use before it."
    )
    reasons = tuple((name or "operator", line) for name, cost in costs.items() for line in cost.route.split("\n")[1:])
    why = Table(title="Reasons against other routes", columns=("operator", "reason"), rows=reasons, is_folded=True)
    return [Table(title="Routes and costs", columns=columns, rows=rows, note=note), *([why] if reasons else [])]


def _profiles(readings: _Readings, name: str, integral: Integral[Kernel]) -> list[Block]:
    """Plots of κ by displacement along a line, else by distance and, in the plane, as a map."""
    is_line = integral.domain.pos_dim == 1
    profile = readings.of(
        "the profile",
        name,
        lambda: analysis.kernel_profile(integral, by="displacement" if is_line else "distance"),
    )
    if profile is None:
        return []
    rows = [
        {
            "at": place,
            "mean": mean,
            "low": max(0.0, mean - spread),  # no size is negative
            "high": mean + spread,
            "head": f"head {h}",
            "pairs": pairs,
        }
        for h in range(min(len(profile.mean), MOST_HEADS))
        for place, mean, spread, pairs in zip(
            profile.places[:, 0].tolist(),
            profile.mean[h].tolist(),
            profile.deviation[h].tolist(),
            profile.count.tolist(),
            strict=True,
        )
    ]
    blocks: list[Block] = [_profile_plot(name, profile.by, rows)]
    if integral.domain.pos_dim == 2 and whole_grid(integral.domain) is not None:
        flat = readings.of("the map of displacements", name, lambda: flat_profile(integral))
        if flat is not None:
            blocks.append(_map_plot(name, flat))
    return blocks


def flat_profile(integral: Integral[Kernel]) -> analysis.KernelProfile:
    """Profile of κ by displacement in the plane, cut to where κ is not 0 and a margin; binned if that is too large."""
    profile = analysis.kernel_profile(integral, bins=MOST_READ // 2)
    size = profile.mean.mean(0)
    is_held = torch.ones(len(size), dtype=torch.bool)
    for along in profile.places.T:
        steps = along.unique(return_inverse=True)[1]
        held = steps[size > 1e-6 * size.max()]
        if not len(held) or held.max() - held.min() >= MOST_CELLS:
            return analysis.kernel_profile(integral, bins=MOST_CELLS // 2)
        is_held &= (steps >= held.min() - 1) & (steps <= held.max() + 1)
    return dataclasses.replace(
        profile,
        places=profile.places[is_held],
        mean=profile.mean[:, is_held],
        deviation=profile.deviation[:, is_held],
        count=profile.count[is_held],
    )


def _profile_plot(name: str, by: str, rows: list[Row]) -> Plot:
    shared = {"x": axis("at", by, scale={"zero": False}), "color": axis("head", "", "nominal", sort=None)}
    tooltip = hint(("head", "head"), ("at", by), ("mean", "mean"), ("pairs", "pairs"))
    band = {
        "mark": {"type": "area", "opacity": 0.15},
        "encoding": {**shared, "y": away_from_zero("low", "size of κ"), "y2": {"field": "high"}},
    }
    line = {
        "mark": {"type": "line", "point": {"size": 14}},
        "encoding": {**shared, "y": away_from_zero("mean", "size of κ"), "tooltip": tooltip},
    }
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (row["head"], row["at"], row["mean"], row["high"] - row["mean"], row["pairs"]) for row in rows
    )
    title = f"{name}: κ by {by}"
    columns = ("head", by, "mean", "deviation", "pairs")
    note = (
        "Root mean square over a head's outputs of the norms of κ, its mean over pairs of points; the band is the "
        "deviation over them, which is 0 where κ depends on nothing else."
    )
    table = Table(title=title, columns=columns, rows=cells, is_folded=True)
    return Plot(title=title, spec=chart(rows, [line, band]), table=table, note=note, is_half=True)


def _map_plot(name: str, profile: analysis.KernelProfile) -> Plot:
    mean = profile.mean.mean(0)
    least, spread = float(mean.min()), float(mean.max() - mean.min()) or 1.0
    rows = [
        {"down": f"{down:.3g}", "right": f"{right:.3g}", "size": size, "share": (size - least) / spread}
        for (down, right), size in zip(profile.places.tolist(), mean.tolist(), strict=True)
    ]
    hidden = {"labels": False, "ticks": False}
    square = {
        "mark": {"type": "rect", "fill": "var(--hue-0)"},
        "encoding": {
            "x": axis("right", "displacement to the right", "ordinal", sort=None, axis=hidden),
            "y": axis("down", "displacement down", "ordinal", sort=None, axis=hidden),
            "fillOpacity": axis("share", "", scale={"domain": [0, 1], "range": [0.03, 1]}, legend=None),
            "tooltip": hint(("down", "down"), ("right", "right"), ("size", "size of κ")),
        },
    }
    title = f"{name}: κ by displacement"
    order = sorted(rows, key=lambda row: -row["size"])[:40]
    cells = tuple((row["down"], row["right"], row["size"]) for row in order)
    table = Table(title=title, columns=("down", "right", "size of κ"), rows=cells, is_folded=True)
    note = (
        "The mean over heads and pairs; darker is larger. Where it is 0 at the edge, it is 0 beyond. Both "
        "displacements are 0 for a point with itself."
    )
    return Plot(title=title, spec=chart(rows, [square], height=240), table=table, note=note, is_half=True)


def _spectra(readings: _Readings, terms: dict[str, Integral[Kernel]]) -> list[Block]:
    rows, cells = list[Row](), list[tuple[Cell, ...]]()
    spectra = {  # the last operators first: spectra take the longest, and kernels near the input are the largest
        name: readings.of("the spectrum", name, lambda integral=integral: analysis.kernel_spectrum(integral))
        for name, integral in reversed(terms.items())
    }
    for name in terms:
        if (found := spectra[name]) is None:
            continue
        mean = found.values.mean(0)
        rows += [
            {"number": k + 1, "value": value, "kernel": name} for k, value in enumerate(mean[:64].tolist()) if value > 0
        ]
        for h, rank in enumerate(found.effective_rank.tolist()):
            cells.append((name, h, float(found.values[h, 0]), rank, found.values.shape[1], found.num_points))
    if not rows:
        return []
    line = {
        "mark": {"type": "line"},
        "encoding": {
            "x": axis("number", "number"),
            "y": axis("value", "singular value", scale={"type": "log"}),
            "color": named_hues("kernel", terms),
            "tooltip": hint(("kernel", "kernel"), ("number", "number"), ("value", "singular value")),
        },
    }
    columns = ("kernel", "head", "largest", "effective rank", "of", "points")
    table = Table(title="Singular values", columns=columns, rows=tuple(cells), is_folded=True)
    note = (
        "Singular values of the integral on L² of the points, the mean over heads. They fall steeply for a kernel of "
        "low rank; the table has the effective rank of each head."
    )
    return [Plot(title="Singular values", spec=chart(rows, [line]), table=table, note=note)]


def _over(domain: Domain, values: Tensor, title: str) -> View:
    """A view of values at the points of a domain: a field, a curve or coloured points."""
    pos = (domain.pos if domain.pos.ndim == 2 else domain.pos[0]).cpu()
    grid = whole_grid(domain)
    if grid is not None and len(grid.shape) == 2:
        return FieldView(title=title, values=values.view(grid.shape), unit=title)
    if pos.shape[1] == 1:
        order = pos[:, 0].argsort()
        return SeriesView(title=title, lines=(Line(title, "answer", pos[order, 0], values[order]),))
    return PointsView(title=title, pos=pos[:, :3], values=values)


def _fields(
    readings: _Readings, model: nn.Module, run: Callable[[], None], integrals: dict[str, Integral[Kernel]]
) -> list[Block]:
    """Receptive fields: gradients of the last operator's output at some points, by the input of the first operator."""
    first = next(iter(integrals))
    several = [integral.num_queries for integral in integrals.values() if integral.num_queries > 1]
    n, cards = several[-1] if several else 1, list[Card]()
    for index in dict.fromkeys((n // 2, n // 4, (3 * n) // 4)):
        generator = torch.Generator().manual_seed(0)
        found = readings.of(
            "the receptive field",
            f"point {index}",
            lambda index=index, generator=generator: analysis.model_receptive_field(
                model, run, index=index, generator=generator
            ),
        )
        if found is None:
            break
        view = _over(found.domain, found.field[0].float(), f"gradient of the output at point {index}")
        shares = found.field[0].square() / found.field[0].square().sum().clamp(min=1e-30)
        half = int((shares.sort(descending=True).values.cumsum(0) < 0.5).sum()) + 1
        line = f"half of it comes from {half} of {len(shares)} points"
        cards.append(
            Card(
                title=f"point {index} of {n}",
                drawings=drawn(ShownExample(name=f"point {index}", views=(view,))),
                lines=(line,),
            )
        )
    if not cards:
        return []
    note = (
        f"Sensitivity of the last operator's output at one point to the input of {first or 'the first'} at every "
        "point: the norm of the gradient, estimated by 16 vectors of random signs."
    )
    return [Gallery(title="Receptive fields", cards=tuple(cards), note=note)]


def _maps(readings: _Readings, name: str, integral: Integral[Kernel]) -> list[Block]:
    """Attention weights of a kernel: of all queries on a line, otherwise of the point in the middle."""
    kernel, n = integral.kernel, integral.domain.num_points
    if not isinstance(kernel, ValueMixing):
        return []
    if n * integral.num_queries > MOST_MAP:
        readings.missing.setdefault("there are too many points", []).append(f"weights of {name}")
        return []
    u, domain, query, query_domain = integral.arguments
    weights = readings.of(
        "the weights",
        name,
        lambda: analysis.attention_weights(kernel, u, domain, query=query, query_domain=query_domain),
    )
    if weights is None:
        return []
    own, middle = weights[0].detach().float().cpu(), integral.num_queries // 2
    is_line = domain.pos_dim == 1 and integral.num_queries > 1
    cards = []
    for h, head in enumerate(own[:4]):
        view = FieldView(values=head, unit="weight") if is_line else _over(domain, head[middle], "weight")
        entropy = float(-(head[middle].clamp(min=1e-30).log() * head[middle]).sum())
        drawing = drawn(ShownExample(name=f"head {h} of {name}", views=(view,)))
        line = f"point {middle} spreads over about {math.exp(entropy):.1f} points"
        is_share = bool((head[middle] >= 0).all()) and abs(float(head[middle].sum()) - 1) < 1e-3
        cards.append(Card(title=f"head {h}", drawings=drawing, lines=(line,) if is_share else ()))
    where = "rows are queries, columns are points" if is_line else f"weights of all points at the query {middle}"
    return [Gallery(title=f"{name}: weights", cards=tuple(cards), note=f"The weights include the measure: {where}.")]


def _symmetry(
    readings: _Readings, operators: dict[str, IntegralOperator], integrals: dict[str, Integral[Kernel]]
) -> list[Block]:
    rows, refused = list[tuple[Cell, ...]](), dict[str, list[str]]()
    groups = ("translations", "rotations", "permutations")
    for name, operator in operators.items():
        integral = integrals[name]
        if not integral.own_queries or integral.domain.num_points > MOST_POINTS:
            why = "its queries are not its points, or there are too many of them"
            readings.missing.setdefault(why, []).append(f"symmetry of {name or 'the operator'}")
            continue
        found = readings.of(
            "symmetry",
            name or "the operator",
            lambda operator=operator, integral=integral: analysis.symmetry(
                operator, integral.u, integral.domain, num_moves=2
            ),
        )
        if found is None:
            continue
        for why in set(found.refused.values()):
            refused.setdefault(why, []).append(name or "the operator")
        if found.errors:
            rows.append((name or "operator", *(found.errors.get(group) for group in groups)))
    for why, names in refused.items():
        readings.missing.setdefault(why, []).append(f"symmetry of {', '.join(names)}")
    if not rows:
        return []
    note = (
        "Equivariance error of an operator when its points are moved or reordered, relative to the norm of its output: "
        "0 is exact, 1 is as large as the output itself. Points are treated as scattered, without grid or times."
    )
    return [Table(title="Symmetry, measured", columns=("operator", *groups), rows=tuple(rows), note=note)]
