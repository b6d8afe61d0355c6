"""Stateful kernels: `step` and `scan` give the results of the whole sequence, or refuse."""

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
from tests.contracts.test_properties import mismatch, wrong_in

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
    """Factors of the cells in which a scan is tested."""
    return {
        "variant": [variant for variant in ROWS[name].variants if stateful(name, variant)],
        "domain": [domain for domain, kind in KINDS.items() if kind.pos_dim == 1],
        "mask": list(MASKS),
        "weights": list(WEIGHTS),
        "pairs": list(PAIRS),
        "route": [
            name_of for name_of, route in BY_NAME.items() if not isinstance(route, Route) or _serves(route, name)
        ],
        "chunks": list(CHUNKS),
        "reset": list(RESETS),
    }


def _serves(route: Route, name: str) -> bool:
    return any(route.is_made_for(table_kernel(name, variant, 1)) for variant in ROWS[name].variants)


def cell_of(name: str, chosen: Chosen) -> Cell:
    """The cell of a row of `state_factors`."""
    return Cell.of(name, {k: v for k, v in chosen.items() if k not in ("route", "chunks", "reset")})


def is_well_defined(name: str, chosen: Chosen) -> bool:
    """Whether a scan is well defined: each chunk, and each run after a reset, must itself be a sequence."""
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
def test_scan_gives_the_results_of_the_whole_sequence_or_refuses(name: str, stride: int) -> None:
    """Cells with every pair of classes of levels, or half of them."""
    computed = set[str]()

    def wrong() -> Iterator[Wrong]:
        def allowed(chosen: Chosen) -> bool:
            return is_well_defined(name, chosen)

        factors = possible(state_factors(name), allowed)
        # the cache of all points refuses most masks, weights, pair weights and resets
        sequences = [domain for domain in factors["domain"] if KINDS[domain].prefix]
        bare = {
            "pairs": ["all pairs"],
            "weights": ["even"],
            "mask": ["all"],
            "reset": ["no reset"],
            "domain": sequences,
        }
        plain = {"pairs": ["all pairs"], "weights": ["even"], "mask": ["all", "padding"]}
        rows = all_pairs(factors | bare, allowed)
        rows = all_pairs(factors | plain, allowed, alike=alike, given=rows)
        for chosen in all_pairs(factors, allowed, alike=alike, given=rows)[::stride]:
            label = f"scan, {chosen['route']}, {chosen['chunks']}, {chosen['reset']}"
            yield from wrong_in(cell_of(name, chosen), label, scan_mismatch, name, chosen, computed)

    assert report(wrong()) == ""
    assert computed == set(CHUNKS), "some way of cutting a sequence is refused throughout"


def scan_mismatch(name: str, chosen: Chosen, computed: set[str]) -> str:
    """Differences of a scan from the definition on each run; empty where there are none, or the scan is refused.

    A scan that is not refused adds the name of its chunks to `computed`.
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
            resets = reset[:, first:stop] if reset.any() else None
            out, state = operator.scan(case.u[:, first:stop], domain, state=state, reset=resets)
            outs.append(out)
        return torch.cat(outs, dim=1)

    try:
        got = results(case, scan)
    except REFUSED:
        return ""
    computed.add(chosen["chunks"])
    expected = results(case, by_definition if not reset.any() else lambda case: by_runs(case, reset))
    return mismatch(_comparable(got, reset), _comparable(expected, reset))


def _comparable(found: Results, reset: Tensor) -> Results:
    """All results; with resets without gradients by the measure, which each run has separately."""
    return found if not reset.any() else {n: v for n, v in found.items() if not n.startswith("d/d key")}


def by_runs(case: Case, reset: Tensor) -> Tensor:
    """The definition on each run between two resets."""
    rows = []
    for index in range(len(case.u)):
        starts = sorted({0, *reset[index].nonzero()[:, 0].tolist()})
        entry = dataclasses.replace(case, u=case.u[index : index + 1], place=case.place.entry(index))
        outs = []
        for first, stop in zip(starts, [*starts[1:], case.u.shape[1]], strict=True):
            run = dataclasses.replace(entry, u=entry.u[:, first:stop], place=entry.place.part(first, stop))
            outs.append(present(by_definition(run), run.place.domain()))
        rows.append(torch.cat(outs, dim=1))
    return torch.cat(rows)


@pytest.mark.parametrize("name", STATEFUL)
def test_steps_give_the_results_of_the_whole_sequence(name: str) -> None:
    def wrong() -> Iterator[Wrong]:
        for variant in ROWS[name].variants:
            for domain, kind in KINDS.items():
                cell = Cell(name, variant, domain)
                if stateful(name, variant) and kind.prefix and fits(cell):
                    yield from wrong_in(cell, "step", step_mismatch, case_of(cell))

    assert report(wrong()) == ""


def step_mismatch(case: Case) -> str:
    """Differences of single steps from the definition; empty where there are none, or the steps are refused."""

    def steps(case: Case) -> Tensor:
        operator = IntegralOperator(case.kernel, residual=False, bias=False, output_projection=False)
        domain, state, outs = case.place.domain(), operator.initial_state(len(case.u)), []
        # steps of a convolution without times have the spacing of training, which need not be that of these points
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
    return mismatch(got, results(case, by_definition))


def test_every_stateful_route_is_scanned() -> None:
    scanned = {
        name_of
        for name in STATEFUL
        for variant in state_factors(name)["variant"]
        for name_of, route in BY_NAME.items()
        if isinstance(route, Route) and route.is_made_for(table_kernel(name, variant, 1))
    }
    assert scanned == {route.name for route in ROUTES if isinstance(route, StatefulRoute)}
