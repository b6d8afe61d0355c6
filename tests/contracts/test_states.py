"""Stateful kernels: `step` and `scan` give the numbers of the whole sequence, or refuse; never other numbers."""

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, kernels
from fredholm.evaluation import AUTO, ROUTES, Evaluation, Route, StatefulRoute
from fredholm.kernels import Stateful
from tests.contracts.covering import Chosen, all_pairs, possible
from tests.contracts.instances import (
    ROWS,
    Case,
    Cell,
    Results,
    Wrong,
    alike,
    by_definition,
    case_of,
    fits,
    present,
    results,
    table_kernel,
)
from tests.contracts.places import KINDS, MASKS, PAIRS, WEIGHTS
from tests.contracts.test_instances import report
from tests.contracts.test_properties import unlike, wrong_in

STATEFUL = [
    name for name, row in ROWS.items() if any(isinstance(table_kernel(name, v, 1), Stateful) for v in row.variants)
]
REFUSED = (ValueError, TypeError)
BY_NAME: dict[str, Evaluation] = {
    "Auto": AUTO,
    **{route.name: route for route in ROUTES if isinstance(route, StatefulRoute)},
}
CHUNKS: dict[str, tuple[int, ...]] = {"whole": (), "chunks": (3, 4), "one by one": (1, 2, 3, 4, 5, 6)}
RESETS = ("no reset", "resets")


def stateful(name: str, variant: str) -> bool:
    """Whether a variant carries a state."""
    kernel = table_kernel(name, variant, 1)
    return isinstance(kernel, Stateful) and kernel.is_causal


def state_factors(name: str) -> dict[str, list[str]]:
    """What a scan may meet."""
    return {
        "variant": [variant for variant in ROWS[name].variants if stateful(name, variant)],
        "domain": [domain for domain, kind in KINDS.items() if kind.pos_dim == 1],
        "mask": list(MASKS),
        "weights": list(WEIGHTS),
        "pairs": list(PAIRS),
        "route": [route for route, way in BY_NAME.items() if not isinstance(way, Route) or _serves(way, name)],
        "chunks": list(CHUNKS),
        "reset": list(RESETS),
    }


def _serves(route: Route, name: str) -> bool:
    return any(route.is_made_for(table_kernel(name, variant, 1)) for variant in ROWS[name].variants)


def cell_of(name: str, chosen: Chosen) -> Cell:
    """The cell of a row of `state_factors`."""
    return Cell.of(name, {k: v for k, v in chosen.items() if k not in ("route", "chunks", "reset")})


def may_be_asked(name: str, chosen: Chosen) -> bool:
    """Whether a scan has one meaning: a chunk, or what follows a reset, must be a sequence of its own."""
    kind, cell = KINDS[chosen["domain"]], cell_of(name, chosen)
    if not fits(cell):
        return False
    route = BY_NAME[chosen["route"]]
    kernel = table_kernel(name, chosen["variant"], 1)
    if isinstance(route, Route) and not route.is_made_for(kernel):
        return False
    in_parts = chosen["chunks"] != "whole" or chosen["reset"] != "no reset"
    if not in_parts:
        return True
    reads_place = kernel.pos_dim is not None and not kind.has_times
    return kind.prefix and chosen["pairs"] == "all pairs" and not reads_place


@pytest.mark.parametrize("stride", [2, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", STATEFUL)
def test_scan_gives_the_numbers_of_the_whole_sequence_or_refuses(name: str, stride: int) -> None:
    """At every pair of classes of levels, or at half of these cells."""
    answered = set[str]()

    def wrong() -> Iterator[Wrong]:
        def allowed(chosen: Chosen) -> bool:
            return may_be_asked(name, chosen)

        factors = possible(state_factors(name), allowed)
        # a cache of all points refuses most of what is not bare
        kept = [domain for domain in factors["domain"] if KINDS[domain].prefix]
        bare = {"pairs": ["all pairs"], "weights": ["even"], "mask": ["all"], "reset": ["no reset"], "domain": kept}
        plain = {"pairs": ["all pairs"], "weights": ["even"], "mask": ["all", "padding"]}
        rows = all_pairs(factors | bare, allowed)
        rows = all_pairs(factors | plain, allowed, alike=alike, given=rows)
        for chosen in all_pairs(factors, allowed, alike=alike, given=rows)[::stride]:
            how = [chosen["route"], chosen["chunks"], chosen["reset"]]
            yield from wrong_in(cell_of(name, chosen), "scan, " + ", ".join(how), scanned_wrong, name, chosen, answered)

    assert report(wrong()) == ""
    assert answered == set(CHUNKS), "some way of cutting a sequence is refused throughout"


def scanned_wrong(name: str, chosen: Chosen, answered: set[str]) -> str:
    """In what a scan differs from the literal integral of each run; empty where it does not, or is refused.

    What is not refused adds to `answered` how its sequence was cut.
    """
    case = case_of(cell_of(name, chosen))
    batch, n = case.u.shape[:2]
    reset = torch.zeros(batch, n, dtype=torch.bool)
    if chosen["reset"] == "resets" and n > 5:
        reset[0, 2] = reset[-1, 4] = True
    cuts = [0, *(cut for cut in CHUNKS[chosen["chunks"]] if cut < n), n]

    def scan(case: Case) -> Tensor:
        operator = IntegralOperator(
            case.kernel,
            evaluation=BY_NAME[chosen["route"]],
            residual=False,
            bias=False,
            output_projection=False,
        )
        state, outs = None, []
        for first, stop in itertools.pairwise(cuts):
            domain = (case.place if len(cuts) == 2 else case.place.part(first, stop)).domain()
            given = reset[:, first:stop] if reset.any() else None
            out, state = operator.scan(case.u[:, first:stop], domain, state=state, reset=given)
            outs.append(out)
        return torch.cat(outs, dim=1)

    try:
        got = results(case, scan)
    except REFUSED:
        return ""
    answered.add(chosen["chunks"])
    wanted = results(case, by_definition if not reset.any() else lambda case: by_runs(case, reset))
    return unlike(_read(got, reset), _read(wanted, reset))


def _read(found: Results, reset: Tensor) -> Results:
    """All results; of runs, whose measure is not one leaf, the integral and the gradients by signal and parameters."""
    return found if not reset.any() else {n: v for n, v in found.items() if not n.startswith("d/d key")}


def by_runs(case: Case, reset: Tensor) -> Tensor:
    """The literal integral of what lies between two resets, each by itself."""
    rows = []
    for index in range(len(case.u)):
        starts = sorted({0, *reset[index].nonzero()[:, 0].tolist()})
        one = dataclasses.replace(case, u=case.u[index : index + 1], place=case.place.entry(index))
        outs = []
        for first, stop in zip(starts, [*starts[1:], case.u.shape[1]], strict=True):
            run = dataclasses.replace(one, u=one.u[:, first:stop], place=one.place.part(first, stop))
            outs.append(present(by_definition(run), run.place.domain()))
        rows.append(torch.cat(outs, dim=1))
    return torch.cat(rows)


@pytest.mark.parametrize("name", STATEFUL)
def test_step_by_step_gives_the_numbers_of_the_whole_sequence(name: str) -> None:
    def wrong() -> Iterator[Wrong]:
        for variant in ROWS[name].variants:
            for domain, kind in KINDS.items():
                cell = Cell(name, variant, domain)
                if stateful(name, variant) and kind.prefix and fits(cell):
                    yield from wrong_in(cell, "step", stepped_wrong, case_of(cell))

    assert report(wrong()) == ""


def stepped_wrong(case: Case) -> str:
    """In what steps differ from the literal integral; empty where they do not, or are refused."""

    def steps(case: Case) -> Tensor:
        operator = IntegralOperator(case.kernel, residual=False, bias=False, output_projection=False)
        domain, state, outs = case.place.domain(), operator.initial_state(len(case.u)), []
        # of a convolution, steps without a time are as far apart as samples in training, wherever these points are
        times = domain.pos[..., 0] if isinstance(case.kernel, kernels.ContinuousConvolution) else domain.times
        for t in range(case.u.shape[1]):
            time = None if times is None else times[..., t].expand(len(case.u))
            out, state = operator.step(case.u[:, t], state, time)
            outs.append(out)
        return torch.stack(outs, dim=1)

    try:
        got = results(case, steps)
    except REFUSED:
        return ""
    return unlike(got, results(case, by_definition))


def test_every_stateful_route_is_scanned() -> None:
    scanned = {
        route
        for name in STATEFUL
        for variant in state_factors(name)["variant"]
        for route, way in BY_NAME.items()
        if isinstance(way, Route) and way.is_made_for(table_kernel(name, variant, 1))
    }
    assert scanned == {route.name for route in ROUTES if isinstance(route, StatefulRoute)}
