"""Every route agrees with the definition of the integral: every kernel, every variant, every domain.

A failure names its cells; `python -m tests.contracts.instances "CELL"` prints one again. `FREDHOLM_DRAWS=10000` sets
the number of cells that are drawn beyond the table.
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
    case_of,
    covering_cells,
    disagreements,
    factors,
    fits,
    nonempty_cells,
    quick_cells,
    refusals,
)
from tests.contracts.places import KINDS, MASKS, PAIRS, WEIGHTS

DRAWS = int(os.environ.get("FREDHOLM_DRAWS", "100"))
SAMPLE = 100
"""Number of random cells per kernel in the long tests."""
EACH = 6
"""Stride of the quick cells that always run: with a larger one, kernels would meet fewer of their routes."""
NOT_ON_EVERY_MACHINE = {"TritonTiled", "TritonFeatureSum", "TritonYat"}


def report(found: Iterable[Wrong]) -> str:
    """The number of disagreements, and one line for each; empty if there are none."""
    lines = [str(wrong) for wrong in found]
    return "\n".join([f"{len(lines)} disagreements", *lines]) if lines else ""


@pytest.mark.parametrize("name", ROWS)
def test_all_routes_give_the_literal_integral(name: str) -> None:
    """One in `EACH` of the quick cells, and of the empty ones a third of that share."""
    nonempty = nonempty_cells(name)
    empty = set(quick_cells(name)).difference(nonempty)
    cells = nonempty[::EACH] + sorted(empty, key=str)[:: 3 * EACH]
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
    """The cells that always run reach every route."""
    of_one_process = {route.name for route in ALL_ROUTES if not (isinstance(route, Route) and route.needs_processes)}
    missing = of_one_process - NOT_ON_EVERY_MACHINE  # routes over several processes: test_shared_signals.py
    for name in ROWS:
        for cell in nonempty_cells(name)[::EACH]:
            arguments = case_of(cell).arguments()
            missing -= {r.name for r in ALL_ROUTES if r.name in missing and not refusals(r, arguments)}
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
"""Cells, some of them beyond the table, in which random draws once found an error."""


@pytest.mark.parametrize("cell", FOUND)
def test_cells_that_once_failed_stay_right(cell: str) -> None:
    assert report(disagreements(Cell.parse(cell))) == ""


@st.composite
def drawn_cells(draw: st.DrawFn) -> Cell:
    """A cell beyond the table: other sizes and values, and up to three combined variants."""
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
    place = {"variant": " + ".join(variants), "domain": domain, "shape": None if domain == "no point" else shape}
    return Cell.of(name, place | levels | sizes)


@settings(max_examples=DRAWS, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(drawn_cells().filter(fits))
def test_all_routes_give_the_literal_integral_beyond_the_table(cell: Cell) -> None:
    assert report(disagreements(cell)) == ""
