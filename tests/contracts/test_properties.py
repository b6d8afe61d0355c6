"""Properties of every kernel and variant: prefixes, padding, batches, order of points, repetition, empty rows."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pytest
import torch
from torch import Tensor

from fredholm import kernels
from fredholm.kernels import Kernel, PairwiseMLP
from tests.contracts.instances import (
    ROWS,
    Case,
    Cell,
    Results,
    RouteQuota,
    Wrong,
    accepted,
    by_definition,
    by_operator,
    case_of,
    cotangent,
    errors,
    fits,
    massless_queries,
    results,
    size,
    table_kernel,
)
from tests.contracts.places import KINDS, Place
from tests.contracts.test_instances import report

Levels = Mapping[str, str]
METHODS = {"definition": by_definition, "operator": by_operator}
EXACT = 1e-9


EACH = pytest.mark.parametrize("each", [1, pytest.param(2, marks=pytest.mark.long)])
"""Number of domains per variant."""


def cells_of(name: str, domains: Iterable[str], choices: Sequence[Levels], each: int = 1) -> Iterator[Cell]:
    """Cells of every variant of a kernel on some of the domains that it fits.

    Domains and choices of levels are taken in turn, so that every choice meets every variant and every domain, though
    not every pair of them.

    Args:
        name: name of the kernel.
        domains: names of domains.
        choices: levels of the other factors.
        each: number of domains per variant, more where there are few variants.
    """
    variants, turn = ROWS[name].variants, itertools.cycle(choices)
    places = [place for place in domains if any(fits(Cell(name, variant, place)) for variant in variants)]
    each = min(len(places), max(each, math.ceil(len(places) / len(variants))))
    places = itertools.cycle(places)
    for variant in variants:
        for domain in itertools.islice(places, each):
            for _ in choices:
                cell = Cell.of(name, {"variant": variant, "domain": domain, **next(turn)})
                if fits(cell):
                    yield cell
                    break


def levels(*rows: tuple[str, ...], of: tuple[str, ...]) -> list[Levels]:
    """Choices of levels, one per row, for the factors `of`."""
    return [dict(zip(of, row, strict=True)) for row in rows]


def wrong_in(cell: Cell, route: str, check: Callable[..., str], *arguments: object) -> Iterator[Wrong]:
    """The mismatch that a check returns, if it is not empty, or the error that it raises."""
    try:
        found = check(*arguments)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if found:
        yield Wrong(cell, route, found)


def mismatch(got: Results, expected: Results, tolerance: float = EXACT) -> str:
    """The differences of two results, relative to the largest value of each entry; empty where they agree."""
    largest = max(map(size, expected.values()), default=0.0)
    return "; ".join(
        f"{name} differs by {error:.1e} of {size(expected[name]):.1e}"
        for name, error in errors(got, expected).items()
        if not error <= tolerance * max(size(expected[name]), 1e-3 * largest)
    )


def prefix_mismatch(long: Results, short: Results) -> str:
    """Differences of the results on more points from those on the first ones; gradients by the rest must be 0."""
    head, found = {}, []
    largest = max(map(size, short.values()), default=0.0)
    for name, value in short.items():
        more = long[name]
        for axis, (n, m) in enumerate(zip(value.shape, more.shape, strict=True)):
            if n != m:
                more, rest = more.split([n, m - n], dim=axis)
                if not size(rest) <= 1e-12 * largest:
                    found.append(f"{name} of the added points is not 0 but up to {size(rest):.1e}")
        head[name] = more
    return "; ".join([*filter(None, [mismatch(head, short)]), *found])


# ---------------------------------------------------------------------------------------------------------------------
# Later points, and points that do not exist.

LONG, SHORT = 11, 7


@EACH
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("method", METHODS)
def test_appended_points_leave_the_results_of_a_causal_kernel_unchanged(name: str, method: str, each: int) -> None:
    def wrong() -> Iterator[Wrong]:
        ordered = [domain for domain, kind in KINDS.items() if kind.prefix]
        choices = levels(("all", "even"), ("mask per entry", "even"), ("all", "weights"), of=("mask", "weights"))
        for cell in cells_of(name, ordered, choices, each):
            if keeps_prefixes(table_kernel(name, cell.variant, 1)):
                long = case_of(dataclasses.replace(cell, shape=(LONG,)))
                yield from wrong_in(cell, method, extension_mismatch, prefix(long), long, METHODS[method])

    assert report(wrong()) == ""


def extension_mismatch(case: Case, longer: Case, compute: Callable[[Case], Tensor]) -> str:
    """Differences of the first results of a longer case from those of a case."""
    short = results(case, compute)
    return prefix_mismatch(results(longer, compute, short["integral"].shape[1]), short)


def keeps_prefixes(kernel: Kernel) -> bool:
    """Whether a kernel is causal and does not normalise by later points."""
    return kernel.is_causal and not (isinstance(kernel, PairwiseMLP) and not kernel.averages_past)


def prefix(case: Case) -> Case:
    """The first points of a sequence."""
    query = None if case.query is None else case.query[:, :SHORT].clone()
    return dataclasses.replace(case, u=case.u[:, :SHORT].clone(), place=case.place.part(0, SHORT), query=query)


CANNOT_GROW = ("union", "union of points", "periodic grid", "no point")
"""Domains to which no points can be appended without moving others."""


@EACH
@pytest.mark.parametrize("name", ROWS)
def test_padding_behind_a_mask_changes_nothing(name: str, each: int) -> None:
    def wrong() -> Iterator[Wrong]:
        choices = levels(
            ("padding", "even", "no query"),
            ("all", "even", "other values"),
            ("mask per entry", "weights", "other points"),
            ("all", "even", "no query"),
            of=("mask", "weights", "query"),
        )
        for cell in cells_of(name, [domain for domain in KINDS if domain not in CANNOT_GROW], choices, each):
            case = case_of(cell)
            if may_be_padded(case):
                yield from wrong_in(cell, "operator", extension_mismatch, case, padded(case), by_operator)

    assert report(wrong()) == ""


def may_be_padded(case: Case) -> bool:
    """Whether points that do not exist can be appended without changing the meaning of a case.

    They cannot where the signal is extended beyond its grid by other values than zeros, and where causal queries at
    other points are ordered by index from the end.
    """
    kernel = case.kernel
    if isinstance(kernel, kernels.Convolution) and kernel.padding_mode != "zeros":
        return False
    by_index = isinstance(case.at, Place) and not KINDS[case.place.kind].has_times
    return not (by_index and kernel.is_causal) or kernel.reads_past_by_position


def padded(case: Case) -> Case:
    """The case with additional points that do not exist, whose signal and positions are NaN."""
    place = case.place
    count = 5 * place.num_points // place.shape[0]
    n = place.num_points
    exists = torch.ones(n, dtype=torch.bool) if place.mask is None else place.mask
    shape, lattice = (place.shape[0] + 5, *place.shape[1:]), place.lattice
    if KINDS[place.kind].is_lattice:
        (block,) = place.domain().grid_blocks
        lattice = block.spacing, block.origin
    axis = -1 if KINDS[place.kind].has_times else -2
    longer = dataclasses.replace(
        place,
        shape=shape,
        lattice=lattice,
        coordinates=None if place.coordinates is None else appended(place.coordinates, count, torch.nan, axis),
        weights=None if place.weights is None else appended(place.weights, count, 3.0, -1),
        mask=appended(exists, count, False, -1),
    )
    query = case.query
    if query is not None and not isinstance(case.at, Place):
        query = appended(query, count, torch.nan, 1)
    return dataclasses.replace(case, u=appended(case.u, count, torch.nan, 1), place=longer, query=query)


def appended(t: Tensor, count: int, value: float | bool, axis: int) -> Tensor:
    """A tensor with constant entries appended along an axis."""
    shape = list(t.shape)
    shape[axis] = count
    return torch.cat([t.detach(), t.new_full(shape, value)], dim=axis)


# ---------------------------------------------------------------------------------------------------------------------
# Batches and orders.


@EACH
@pytest.mark.parametrize("name", ROWS)
def test_a_batch_of_two_is_two_singles(name: str, each: int) -> None:
    def wrong() -> Iterator[Wrong]:
        choices = levels(
            ("all", "even", "all pairs", "no query"),
            ("mask per entry", "weights per entry, some 0", "all pairs", "other values"),
            ("padding", "even", "pairs kept per entry", "other values at the domain"),
            ("an entry with nothing", "even", "all pairs", "other points"),
            of=("mask", "weights", "pairs", "query"),
        )
        for cell in cells_of(name, [kind for kind in KINDS if "one point" not in kind], choices, each):
            yield from wrong_in(cell, "operator", batch_mismatch, case_of(cell))

    assert report(wrong()) == ""


def batch_mismatch(case: Case) -> str:
    """Differences of the integral and its gradients by the signals between a batch and its entries one by one."""
    read = [name for name in ("integral", "d/d u", "d/d query") if name != "d/d query" or case.query is not None]
    leaves = [leaf for leaf in (case.u, case.query) if leaf is not None]
    for leaf in leaves:
        leaf.requires_grad_()
    out = by_operator(case)
    weights = torch.linspace(-1, 1, max(out[0].numel(), 1), dtype=out.dtype)[: out[0].numel()].view(out[0].shape)
    grads = torch.autograd.grad(out, leaves, weights.expand_as(out), allow_unused=True, materialize_grads=True)
    together = dict(zip(read, (out.detach(), *grads), strict=True))
    singles = []
    for index in range(len(case.u)):
        entry = case.entry(index)
        leaves_of_entry = [leaf.requires_grad_() for leaf in (entry.u, entry.query) if leaf is not None]
        out = by_operator(entry)
        grads = torch.autograd.grad(out, leaves_of_entry, weights[None], allow_unused=True, materialize_grads=True)
        singles.append((out.detach(), *grads))
    alone = {name: torch.cat(parts) for name, parts in zip(read, zip(*singles, strict=True), strict=True)}
    return mismatch(together, alone)


@EACH
@pytest.mark.parametrize("name", ROWS)
def test_the_order_of_scattered_points_does_not_matter(name: str, each: int) -> None:
    def wrong() -> Iterator[Wrong]:
        scattered = [domain for domain, kind in KINDS.items() if kind.is_scattered]
        choices = levels(
            ("all", "even", "all pairs", "no query"),
            ("mask per entry", "weights", "pairs weighed", "other values"),
            ("mask per entry", "even", "all pairs", "other points"),
            of=("mask", "weights", "pairs", "query"),
        )
        for cell in cells_of(name, scattered, choices, each):
            case = case_of(cell)
            if not case.kernel.is_causal:
                yield from wrong_in(cell, "operator", order_mismatch, case)

    assert report(wrong()) == ""


def order_mismatch(case: Case) -> str:
    """Differences of the results when the points are permuted."""
    n, at_points = case.place.num_points, not isinstance(case.at, Place)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    query = case.query[:, order] if at_points and case.query is not None else case.query
    permuted = dataclasses.replace(case, u=case.u[:, order], place=case.place.permuted(order, at_points), query=query)
    expected, got = by_operator(case), by_operator(permuted)
    return mismatch({"integral": got}, {"integral": expected[:, order] if at_points else expected})


# ---------------------------------------------------------------------------------------------------------------------
# Repetition, rows without mass, queries at the points.


@pytest.mark.parametrize("name", ROWS)
def test_a_call_repeated_gives_the_same_bits(name: str) -> None:
    """Each route computes as many cells as there are choices of levels."""
    quota = RouteQuota(3)

    def wrong() -> Iterator[Wrong]:
        choices = levels(("float32", "other values"), ("bfloat16", "no query"), of=("precision", "query"))
        choices += levels(("float32", "other points", "mask per entry"), of=("precision", "query", "mask"))
        for cell in cells_of(name, ["sequence", "points per entry", "times"], choices):
            case = case_of(cell)
            for route, compute in accepted(case, quota):
                yield from wrong_in(cell, route, repetition_mismatch, case, compute)

    assert report(wrong()) == ""


def repetition_mismatch(case: Case, compute: Callable[[Case], Tensor]) -> str:
    """The names of results that differ when they are computed twice."""
    first, second = results(case, compute), results(case, compute)
    return "; ".join(f"{name} differs" for name, value in first.items() if not torch.equal(value, second[name]))


@EACH
@pytest.mark.parametrize("name", ROWS)
def test_a_query_without_mass_has_result_0_and_no_gradient(name: str, each: int) -> None:
    """Each route computes as many cells as there are choices of levels, in the long tests all cells."""
    quota = RouteQuota(3) if each == 1 else None

    def wrong() -> Iterator[Wrong]:
        choices = levels(
            ("an entry with nothing", "all pairs", "other points", "float64"),
            ("mask per entry", "pairs kept, a row empty", "no query", "float32"),
            ("all", "pairs weighed per head, a row empty", "other values at the domain", "float64"),
            of=("mask", "pairs", "query", "precision"),
        )
        for cell in cells_of(name, ["points", "grid", "sequence", "tied times", "union", "one point"], choices, each):
            case = case_of(cell)
            for route, compute in accepted(case, quota):
                yield from wrong_in(cell, route, nonzero_without_mass, case, compute)

    assert report(wrong()) == ""


def nonzero_without_mass(case: Case, compute: Callable[[Case], Tensor]) -> str:
    """Results of queries without mass, and gradients of these results, that are not 0."""
    leaves = {name: leaf.requires_grad_() for name, leaf in case.leaves().items()}
    empty = massless_queries(case)
    out = compute(case)[empty]
    found = ["the integral is not 0"] if out.any() else []
    if out.numel() and out.requires_grad:
        weights = cotangent(out)
        grads = torch.autograd.grad(out, list(leaves.values()), weights, allow_unused=True, materialize_grads=True)
        found += [f"d/d {n} is up to {size(g):.1e}, not 0" for n, g in zip(leaves, grads, strict=True) if g.any()]
    return "; ".join(found)


@EACH
@pytest.mark.parametrize("name", ROWS)
def test_the_signal_as_its_own_query_changes_nothing(name: str, each: int) -> None:
    def wrong() -> Iterator[Wrong]:
        choices = levels(("all", "even"), ("mask per entry", "weights"), of=("mask", "weights"))
        for cell in cells_of(name, ["points per entry", "grid", "sequence", "tied times", "union"], choices, each):
            case = case_of(cell)
            if case.kernel.output_domain(domain := case.place.domain()) is domain:
                yield from wrong_in(cell, "operator", own_query_mismatch, case)

    assert report(wrong()) == ""


def own_query_mismatch(case: Case) -> str:
    """Differences where the signal is also passed as the query: as the same tensor, and as an equal one."""
    plain = results(case, by_operator)
    one = results(dataclasses.replace(case, signal="u"), by_operator)
    two = results(dataclasses.replace(case, query=case.u.detach().clone(), signal="other"), by_operator)
    two["d/d u"] = two["d/d u"] + two.pop("d/d query")
    return mismatch(one, plain) or mismatch(two, plain)
