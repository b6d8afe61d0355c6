"""Comparison of an operator's routes and quadratures: error, time and memory of each."""

import dataclasses
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation import AUTO, ROUTES, Dense, Integral, Route
from fredholm.kernels import Kernel
from fredholm.operators.cost import PeakMemory, synchronize
from fredholm.operators.integral import IntegralOperator
from fredholm.quadrature.quadrature import Quadrature


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RouteCost:
    """Cost of one route or quadrature, or the reasons why it refuses.

    Attributes:
        route: its name.
        nodes: the nodes that are summed, in words.
        error: the largest difference from the reference over the largest value of the integral; with gradients the
            largest error of the output and of every gradient. 0 for the reference itself, None without a reference.
        seconds: median time of one pass; None where it refuses, like `peak_mb`.
        peak_mb: memory above what existed before the pass, in 1e6 bytes.
        refusals: the reasons why it refuses, a sentence each; empty where it was run.
    """

    route: str
    nodes: str
    error: float | None = None
    seconds: float | None = None
    peak_mb: float | None = None
    refusals: tuple[str, ...] = ()


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RouteComparison:
    """The rows of `compare_routes`, in the order of the routes; prints as a table.

    Attributes:
        rows: one for each route or quadrature.
        reference: the route that errors are measured from; None where every exact route refuses.
        title: kernel, sizes, direction and device, in one line.
    """

    rows: tuple[RouteCost, ...]
    reference: str | None
    title: str

    def __str__(self) -> str:
        header = ("route", "error", "seconds", "peak MB", "nodes")
        lines = [header, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
        measured = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[-1]]) for line in lines
        ]
        refused = [f"{row.route} refuses: {'; '.join(row.refusals)}" for row in self.rows if row.refusals]
        return "\n".join([self.title, *measured, *refused])


def _cells(row: RouteCost) -> tuple[str, ...]:
    if row.seconds is None or row.peak_mb is None:
        return (row.route, "-", "-", "-", "refuses, see below")
    error = "-" if row.error is None else f"{row.error:.1e}"
    return (row.route, error, f"{row.seconds:.3g}", f"{row.peak_mb:.1f}", row.nodes)


def compare_routes(
    operator: IntegralOperator,
    u: Tensor,
    domain: Domain | None = None,
    *,
    query: Tensor | None = None,
    query_domain: Domain | None = None,
    key_padding_mask: Tensor | None = None,
    quadratures: Sequence[Quadrature] = (),
    gradients: bool = False,
    repeats: int = 3,
    budget_s: float = 10.0,
    dense_bytes: int = 1 << 30,
) -> RouteComparison:
    """Runs an operator by every route of its kernel and at the nodes of every given quadrature.

    The reference is the plainest exact route that accepts: `Dense` for few points, else the last such route before it
    in `evaluation.ROUTES`. The operator's own route and quadrature are measured too. The operator, its gradients and
    torch's random state stay as they are, and hooks on it do not run. Quadratures act by their mode, `train()` or
    `eval()`.

    Args:
        operator: on the device of u.
        u, domain, query, query_domain, key_padding_mask: as in `IntegralOperator.forward`.
        quadratures: other nodes to try; a sum at them takes the fastest route.
        gradients: time forward and backward, and compare the gradients of u, of the queries and of all parameters; else
            forward alone, without a graph.
        repeats: timed passes, >= 1, after one that warms up.
        budget_s: a pass that takes more than half of these seconds is measured once.
        dense_bytes: `Dense` takes part only where κ needs at most this many bytes.

    Returns:
        a `RouteComparison`. Memory is the allocator's on CUDA; on a CPU the growth of the process's resident set, which
        other threads disturb.

    Raises:
        TypeError, ValueError: on arguments of the wrong type or range, or that the operator refuses.
    """
    _check(operator, quadratures, repeats, budget_s)
    u = u.detach().requires_grad_(gradients)
    query = None if query is None else query.detach().requires_grad_(gradients)
    given = functools.partial(operator.prepare, u, domain, query, query_domain, key_padding_mask)
    trial = _Trial(operator, given, [u] if query is None else [u, query], gradients)
    candidates = [*_exact(operator, trial.prepared, dense_bytes), *_sampled(operator, trial.prepared, quadratures)]
    gc.collect()
    with torch.random.fork_rng(devices=[u.device] if u.device.type == "cuda" else []):
        measured = [_measure(candidate, trial, repeats, budget_s) for candidate in candidates]
    results = [result for _, result in measured]
    # routes are ordered from the fastest to the plainest
    exact = [i for i, candidate in enumerate(candidates) if candidate.is_exact and results[i]]
    rows = [cost for cost, _ in measured]
    if exact:
        integral = trial.integral_scale(results[exact[-1]][0])
        rows = [
            dataclasses.replace(row, error=_distance(result, results[exact[-1]], integral)) if result else row
            for row, result in measured
        ]
    direction = "forward and backward" if gradients else "forward"
    points = trial.prepared.domain.num_points
    return RouteComparison(
        rows=tuple(rows),
        reference=rows[exact[-1]].route if exact else None,
        title=f"{type(operator.kernel).__name__} on {points} points, batch {u.shape[0]}, {direction}, {u.device}",
    )


def _check(operator: IntegralOperator, quadratures: Sequence[Quadrature], repeats: int, budget_s: float) -> None:
    if not isinstance(operator, IntegralOperator):
        raise TypeError(f"compare_routes: operator must be an IntegralOperator; got {type(operator).__name__}")
    for index, quadrature in enumerate(quadratures):
        if not isinstance(quadrature, Quadrature):
            raise TypeError(
                f"compare_routes: quadratures[{index}] must be a fredholm quadrature; got {type(quadrature).__name__}"
            )
    if repeats < 1 or not budget_s > 0:
        raise ValueError(
            f"compare_routes: repeats must be at least 1 and budget_s above 0; got {repeats} and {budget_s}"
        )


class _Candidate(NamedTuple):
    """An operator with the same weights and a fixed route, or the route's reasons to refuse."""

    route: str
    nodes: str
    operator: IntegralOperator | None
    refusals: tuple[str, ...]
    is_exact: bool


def _exact(operator: IntegralOperator, prepared: Integral[Kernel], dense_bytes: int) -> Iterator[_Candidate]:
    """Candidates for every route of the kernel, after the operator's own route if it is not in `ROUTES`."""
    routes = [Dense(max_bytes=dense_bytes) if isinstance(route, Dense) else route for route in ROUTES]
    own = operator.evaluation
    if isinstance(own, Route) and own not in ROUTES:
        routes.insert(0, own)
    nodes = f"all {prepared.domain.num_points} points"
    for route in routes:
        if route.is_meant_for(prepared):
            refusals = tuple(route.unsupported_reasons(prepared))
            other = operator.with_quadrature(None)
            other.evaluation = route
            yield _Candidate(route.name, nodes, None if refusals else other, refusals, True)


def _sampled(
    operator: IntegralOperator, prepared: Integral[Kernel], quadratures: Sequence[Quadrature]
) -> Iterator[_Candidate]:
    """Candidates for the quadratures, the operator's own first."""
    own = operator.quadrature
    given = [*([] if own is None or own in quadratures else [own]), *quadratures]
    for quadrature in given:
        nodes = quadrature.describe(prepared.domain.num_points)
        try:
            other = operator.with_quadrature(quadrature)
        except ValueError as refusal:
            yield _Candidate(quadrature.name, nodes, None, (str(refusal),), False)
        else:
            other.evaluation = AUTO
            yield _Candidate(quadrature.name, nodes, other, (), False)


@final
class _Trial:
    """One forward (and backward) pass of a candidate on a fresh integral.

    Args:
        operator: the operator that is compared.
        given: returns a new integral for each pass, which then has a graph of its own.
        signals: the tensors that the integral is made of.
        gradients: whether to compute gradients.
    """

    def __init__(
        self, operator: IntegralOperator, given: Callable[[], Integral[Kernel]], signals: list[Tensor], gradients: bool
    ) -> None:
        self.operator, self.given, self.gradients = operator, given, gradients
        with torch.no_grad():
            self.prepared = given()
        parameters = [*signals, *operator.kernel.parameters(), *operator.parameters(recurse=False)]
        self.leaves = [p for p in parameters if p.requires_grad and p.numel()]

    def run(self, operator: IntegralOperator) -> list[Tensor]:
        """The output; with `gradients` also the gradients of all leaves for a fixed cotangent."""
        with torch.set_grad_enabled(self.gradients):
            out = operator.answer(self.given())
            if not self.gradients:
                return [out]
            generator = torch.Generator().manual_seed(0)
            cotangent = torch.randn(out.shape, generator=generator).to(out)
            found = torch.autograd.grad(out, self.leaves, cotangent, allow_unused=True, materialize_grads=True)
        return [out.detach(), *found]

    @torch.no_grad()
    def integral_scale(self, out: Tensor) -> float:
        """Largest value of W^O ∫ κ u dμ in an output, without residual and bias, which would make errors look small."""
        rest, mask = self.operator.around(torch.zeros_like(out), self.prepared.query), self.prepared.query_domain.mask
        return _largest(out - (rest if mask is None else torch.where(mask[..., None], rest, 0.0)))


def _measure(candidate: _Candidate, trial: _Trial, repeats: int, budget_s: float) -> tuple[RouteCost, list[Tensor]]:
    """The cost, still without its error, and the result; an empty result where the candidate refuses."""
    row = RouteCost(route=candidate.route, nodes=candidate.nodes, refusals=candidate.refusals)
    operator, device = candidate.operator, trial.prepared.u.device
    if operator is None:
        return row, []
    peak, run = PeakMemory(device), functools.partial(trial.run, operator)
    try:
        with peak:
            result, first = _timed(run, device)
    except ValueError as refusal:
        return dataclasses.replace(row, refusals=(str(refusal),)), []
    if 2 * first > budget_s:
        seconds = [first]
    else:
        seconds = [_timed(run, device)[1] for _ in range(repeats)]
        with peak:  # measured again, because the first pass also loads code
            run()
    return dataclasses.replace(row, seconds=statistics.median(seconds), peak_mb=peak.megabytes), result


def _timed(run: Callable[[], list[Tensor]], device: torch.device) -> tuple[list[Tensor], float]:
    synchronize(device)
    start = time.perf_counter()
    result = run()
    synchronize(device)
    return result, time.perf_counter() - start


def _distance(result: list[Tensor], reference: list[Tensor], integral: float) -> float:
    """Largest error of all parts, each relative to the largest value of its reference (the output: of the integral).

    A gradient that is 0 up to rounding has no scale of its own; a small share of the largest gradient is used instead.
    """
    scales = [integral, *map(_largest, reference[1:])]
    floor = max(scales[1:], default=0.0) * torch.finfo(reference[0].dtype).eps ** 0.5
    worst = 0.0
    for index, (actual, expected) in enumerate(zip(result, reference, strict=True)):
        difference, scale = _largest(actual - expected), max(scales[index], floor if index else 0.0)
        error = difference / scale if scale > 0 else difference
        worst = max(worst, error if error == error else float("inf"))
    return worst


def _largest(values: Tensor) -> float:
    return values.double().abs().max().item() if values.numel() else 0.0
