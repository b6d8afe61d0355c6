"""Every kernel, in every variant, on every domain, by every route that does not refuse: the literal integral.

A failure names its cells; `python -m tests.contracts.instances "CELL"` prints one again. `FREDHOLM_DRAWS=10000` sets
how many cells beyond the table are drawn.
"""

import inspect
import os
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fredholm import kernels
from fredholm.evaluation import Route
from fredholm.kernels import Kernel
from tests.contracts.covering import random_rows
from tests.contracts.instances import (
    ALL_ROUTES,
    PRECISIONS,
    QUERIES,
    ROWS,
    Cell,
    Wrong,
    asking_cells,
    case_of,
    covering_cells,
    disagreements,
    factors,
    fits,
    quick_cells,
    refusals,
)
from tests.contracts.places import KINDS, MASKS, PAIRS, WEIGHTS

DRAWS = int(os.environ.get("FREDHOLM_DRAWS", "100"))
SAMPLE = 100
"""Cells a kernel of the long sample."""
EACH = 6
"""Of so many cells one runs always: with more, kernels would meet fewer of their routes."""
NOT_ON_EVERY_MACHINE = {"TritonTiled", "TritonFeatureSum", "TritonYat"}


def report(found: Iterable[Wrong]) -> str:
    """A line for everything that is wrong, and how many there are; empty where nothing is."""
    lines = [str(wrong) for wrong in found]
    return "\n".join([f"{len(lines)} disagreements", *lines]) if lines else ""


@pytest.mark.parametrize("name", ROWS)
def test_all_routes_give_the_literal_integral(name: str) -> None:
    """One in `EACH` of the cells in which every pair of classes of levels occurs; of empty ones a third as many."""
    asking = asking_cells(name)
    empty = set(quick_cells(name)).difference(asking)
    cells = asking[::EACH] + sorted(empty, key=str)[:: 3 * EACH]
    assert report(wrong for cell in cells for wrong in disagreements(cell)) == ""


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_all_routes_give_the_literal_integral_at_every_pair_of_levels(name: str) -> None:
    assert report(wrong for cell in covering_cells(name) for wrong in disagreements(cell)) == ""


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_all_routes_give_the_literal_integral_anywhere_in_the_table(name: str) -> None:
    rows = random_rows(factors(name), lambda chosen: fits(Cell.of(name, chosen)), SAMPLE, seed=1)
    assert report(wrong for chosen in rows for wrong in disagreements(Cell.of(name, chosen))) == ""


def test_every_public_kernel_has_a_row() -> None:
    public = [getattr(kernels, name) for name in kernels.__all__]
    concrete = {
        k.__name__ for k in public if inspect.isclass(k) and issubclass(k, Kernel) and not inspect.isabstract(k)
    }
    assert concrete == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_every_variant_is_built_and_has_cells(name: str) -> None:
    for variant in ROWS[name].variants:
        assert any(fits(Cell(name, variant, domain, query=query)) for domain in KINDS for query in QUERIES), variant


@pytest.mark.slow
def test_every_route_is_exercised() -> None:
    """By the cells that run always."""
    of_one_process = {route.name for route in ALL_ROUTES if not (isinstance(route, Route) and route.needs_processes)}
    missing = of_one_process - NOT_ON_EVERY_MACHINE  # of the others see test_shared_signals.py
    for name in ROWS:
        for cell in asking_cells(name)[::EACH]:
            asked = case_of(cell).asked()
            missing -= {r.name for r in ALL_ROUTES if r.name in missing and not refusals(r, asked)}
            if not missing:
                return
    assert not missing


FOUND = (
    "FactorisedInfiniteAttention / causal, one kv head / spaced sequence / shared mask / even / pairs kept, a row empty"
    " / no query / float32 of 100",
    "FactorisedInfiniteAttention / causal / points on a line / mask per entry / even / all pairs / u / float32 of 100",
    "FactorisedInfiniteAttention / plain / one point / shared mask / even / all pairs / u at the domain"
    " / float32 of 100",
    "InfiniteAttention / plain + gelu / grid / mask per entry / weights / all pairs / one point / float32 / batch=3"
    " / shape=(2, 1) / seed=32096",
    "ContinuousConvolution / plain + causal / tied times / all / weights / pairs kept, a row empty / one point"
    " / float64 of 30 / shape=(1,) / seed=53436",
    "InfiniteAttention / causal, gelu / sequence / an entry with nothing / weights / all pairs / other values"
    " / float64 of 30",
    "LinearInfiniteAttention / learned gamma / points per entry / padding / weights per entry, some 0 / all pairs"
    " / u at the domain / bfloat16",
)
"""Cells that were wrong once, and that the table need not have."""


@pytest.mark.parametrize("cell", FOUND)
def test_what_draws_found_once_stays_right(cell: str) -> None:
    assert report(disagreements(Cell.parse(cell))) == ""


@st.composite
def drawn_cells(draw: st.DrawFn) -> Cell:
    """A cell beyond the table: of other sizes and values, with the options of up to three variants at once."""
    name = draw(st.sampled_from(list(ROWS)))
    variants = draw(st.lists(st.sampled_from(list(ROWS[name].variants)), min_size=1, max_size=3, unique=True))
    domain = draw(st.sampled_from(list(KINDS)))
    shape = tuple(draw(st.integers(1, 12 if len(KINDS[domain].shape) == 1 else 5)) for _ in KINDS[domain].shape)
    levels = {
        factor: draw(st.sampled_from(list(table)))
        for factor, table in {
            "mask": MASKS, "weights": WEIGHTS, "pairs": PAIRS, "query": QUERIES, "precision": PRECISIONS,
        }.items()
    }  # fmt: skip
    sizes = {"batch": draw(st.integers(1, 3)), "seed": draw(st.integers(0, 2**16))}
    where = {"variant": " + ".join(variants), "domain": domain, "shape": None if domain == "no point" else shape}
    return Cell.of(name, where | levels | sizes)


@settings(max_examples=DRAWS, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(drawn_cells().filter(fits))
def test_all_routes_give_the_literal_integral_beyond_the_table(cell: Cell) -> None:
    assert report(disagreements(cell)) == ""
