import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from fredholm.domains import Neighbours, nearest, neighbours
from tests.refusals import refused

KINDS = ("uniform", "clustered", "duplicates", "lattice", "line", "far away", "heavy tails")


def scattered(kind: str, batch: tuple[int, ...], n: int, dims: int, seed: int) -> Tensor:
    """Float64 points of several distributions, most of them in the unit box."""
    generator = torch.Generator().manual_seed(seed)
    pos = torch.rand(*batch, n, dims, generator=generator, dtype=torch.float64)
    part = torch.randint(4, (*batch, n, 1), generator=generator)
    if kind == "clustered":
        return torch.where(part == 0, pos, 0.3 + pos * 10.0 ** (-2.0 * part))
    if kind == "duplicates":
        return torch.where(part == 0, pos, (pos * 2).floor() / 2)
    if kind == "lattice":
        return (pos * 7).floor() / 7
    if kind == "line":
        return 0.1 + pos[..., :1] * torch.linspace(0.5, 1, dims, dtype=torch.float64)
    if kind == "far away":
        return torch.where(part == 0, pos * 1e9, pos)
    return torch.tan(3.1 * (pos - 0.5)) if kind == "heavy tails" else pos


def distances(pos: Tensor, query: Tensor, *, periodic: bool) -> Tensor:
    difference = query[..., :, None, :] - pos[..., None, :, :]
    if periodic:
        difference = difference - (difference + 0.5).floor()
    return difference.square().sum(-1)


def check(found: Neighbours, pos: Tensor, query: Tensor, rtol: float = 1e-12, **settings: Any) -> None:
    """Compares with the sorted distances of all pairs; among equally distant points any may be found."""
    k, radius, mask, visible = (settings.get(name) for name in ("k", "radius", "mask", "visible"))
    squared = distances(pos, query, periodic=settings.get("periodic", False))
    hidden = torch.zeros(squared.shape[-1], dtype=torch.bool)
    if mask is not None:
        hidden = hidden | ~mask[..., None, :]
    if visible is not None:
        hidden = hidden | (torch.arange(squared.shape[-1]) >= visible[..., None])
    squared, hidden = torch.broadcast_tensors(squared, hidden)
    if radius is not None:
        hidden = hidden | (
            squared
            > (radius + 1e-14 * radius + (1e-15 * (query.abs().amax(-1, keepdim=True) + 1)).clamp_max(radius / 100))
            ** 2
        )
    squared = squared.masked_fill(hidden, torch.inf)
    most = squared.shape[-1] if k is None else min(k, squared.shape[-1])
    if radius is not None and squared.numel():
        most = min(most, max(1, int((squared < torch.inf).sum(-1).max())))
    assert found.points.shape == found.squared.shape == (*squared.shape[:-1], most)
    torch.testing.assert_close(found.squared, squared.sort(-1).values[..., :most], rtol=rtol, atol=1e-30)
    is_near = found.squared < torch.inf
    at = squared.gather(-1, found.points)
    torch.testing.assert_close(at[is_near], found.squared[is_near], rtol=rtol, atol=1e-30)
    ordered = torch.where(is_near, found.points, -1 - torch.arange(most)).sort(-1).values
    assert (ordered.diff(dim=-1) != 0).all()  # no point occurs twice


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    dims, seed, batch = draw(st.integers(1, 8)), draw(st.integers(0, 99)), draw(st.sampled_from([(), (3,)]))
    n, kind, periodic = draw(st.integers(0, 150)), draw(st.sampled_from(KINDS)), draw(st.booleans())
    pos = scattered(kind, batch, n, dims, seed)
    query, count = pos, n
    if draw(st.booleans()):
        count = draw(st.integers(0, 60))
        query = scattered(draw(st.sampled_from(KINDS)), draw(st.sampled_from([(), batch])), count, dims, seed + 1)
    both = draw(st.integers(0, 2))
    generator = torch.Generator().manual_seed(seed)
    entries = draw(st.sampled_from([(), (3,)]))
    mask = torch.rand(*(entries if batch else ()), n, generator=generator) < draw(st.sampled_from([0.0, 0.5, 0.9]))
    visible = torch.randint(n + 1, (*entries, count), generator=generator)
    return {
        "pos": pos,
        "query_pos": query,
        "k": draw(st.integers(1, 20)) if both != 1 else None,
        "radius": draw(st.sampled_from([1e-4, 0.1, 0.35, 3.0])) if both else None,
        "mask": mask if draw(st.booleans()) else None,
        "visible": visible if draw(st.booleans()) else None,
        "periodic": periodic,
    }


@given(searches(), st.sampled_from([1, 300, 1 << 19]), st.sampled_from([0.01, 1.0]), st.sampled_from([0, 8]))
@pytest.mark.parametrize("cells", [False, True], ids=["all pairs", "cells"])
def test_neighbours_equal_those_of_sorting_all_distances(
    cells: bool, settings: dict[str, Any], at_once: int, spare: float, crowded: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "COMPARED_WHOLE", 0 if cells else math.inf)
        patch.setattr(neighbours, "SPARE", spare)
        patch.setattr(neighbours, "CROWDED", crowded)
        patch.setattr(neighbours, "CELL_PAIRS", at_once)
        patch.setattr(neighbours, "SEARCHED_PAIRS", at_once)
        found = nearest(**settings)
    query = settings.pop("query_pos")
    check(found, settings.pop("pos"), query, **settings)


@pytest.mark.pairs
@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{"k": 9}, {"radius": 0.02}, {"k": 5, "radius": 0.01}, {"k": 1}])
@pytest.mark.parametrize("spare", [0.01, 1.0], ids=["cells too small at first", "cells large enough"])
@pytest.mark.parametrize("dims", [1, 3])
def test_hundreds_of_points(
    kind: str, settings: dict[str, Any], periodic: bool, spare: float, dims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "COMPARED_WHOLE", 0)
    monkeypatch.setattr(neighbours, "SPARE", spare)
    pos, query = scattered(kind, (2,), 500, dims, 1), scattered(kind, (2,), 100, dims, 2)
    check(nearest(pos, query, periodic=periodic, **settings), pos, query, periodic=periodic, **settings)


def test_few_pairs_are_compared_for_any_density_of_points(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, compare = [], neighbours._Cells._compare

    def note(self: Any, rows: Tensor, start: Tensor, count: Tensor) -> Tensor:
        compared.append(rows.numel() * int(count.sum(-1).max()))
        return compare(self, rows, start, count)

    monkeypatch.setattr(neighbours._Cells, "_compare", note)
    n = 8000
    order, within = torch.arange(1, n + 1), 0.025
    cases: list[tuple[str, int, dict[str, Any], int]] = [
        ("uniform", 1, {"k": 16}, 100),
        ("uniform", 2, {"k": 16}, 150),
        ("uniform", 3, {"k": 16}, 500),
        ("clustered", 2, {"k": 16}, 600),
        ("duplicates", 2, {"k": 16}, 300),
        ("heavy tails", 2, {"k": 16}, 1000),
        ("uniform", 2, {"k": 16, "visible": order}, 800),
        ("uniform", 2, {"radius": within}, 90),
        ("uniform", 2, {"radius": within, "periodic": True}, 90),
        ("uniform", 2, {"radius": within, "k": 99}, 130),
    ]
    for kind, dims, settings, per_query in cases:
        compared.clear()
        nearest(scattered(kind, (), n, dims, 0), **settings)
        assert 15 * n < sum(compared) < per_query * n, (kind, dims, settings, sum(compared) / n)


def test_a_point_is_its_own_first_neighbour_and_all_ties_are_found() -> None:
    side = torch.arange(60, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side) / 60
    found = nearest(grid, k=9, periodic=True)
    assert torch.equal(found.points[:, 0], torch.arange(3600))
    within = nearest(grid, radius=1 / 60, periodic=True)
    assert within.points.shape == (3600, 5)
    assert (within.squared < torch.inf).all()
    assert (nearest(grid, radius=2**0.5 / 60, periodic=True).squared < torch.inf).sum() == 3600 * 9


def test_half_precision_is_compared_in_float32() -> None:
    pos = torch.rand(2000, 2).bfloat16()
    found = nearest(pos, k=4)
    assert found.squared.dtype == torch.float32
    check(Neighbours(found.points, found.squared.double()), pos.double(), pos.double(), rtol=1e-6, k=4)


@pytest.mark.parametrize("settings", [{"k": 3}, {"radius": 0.5}])
def test_a_batch_without_entries_has_no_neighbours(settings: dict[str, Any]) -> None:
    found = nearest(torch.zeros(0, 5, 2), torch.rand(4, 2), **settings)
    shape = (0, 4, settings.get("k", 1))
    assert (found.points.shape, found.squared.shape, found.points.dtype) == (shape, shape, torch.int64)
    assert nearest(torch.rand(5, 2), torch.zeros(0, 4, 2), **settings).squared.shape == shape


@pytest.mark.parametrize("settings", [{"k": 3}, {"radius": 0.5}, {"k": 3, "radius": 0.5}])
@pytest.mark.parametrize("batch", [(), (0,), (2,)])
def test_no_points_and_no_queries(batch: tuple[int, ...], settings: dict[str, Any]) -> None:
    none, some = torch.zeros(*batch, 0, 2), torch.rand(*batch, 5, 2)
    assert nearest(none, **settings).points.shape == (*batch, 0, 0)
    assert nearest(none, some, **settings).points.shape == (*batch, 5, 0)
    assert nearest(some, none, **settings).points.shape == (*batch, 0, 1 if "radius" in settings else 3)


def test_no_gradient_and_unchanged_arguments() -> None:
    pos = torch.rand(2000, 2, requires_grad=True)
    before = pos.detach().clone()
    assert not nearest(pos, k=2).squared.requires_grad
    assert torch.equal(pos, before)


def test_vmap_and_compile(fresh_compiler: None) -> None:
    pos = torch.rand(3, 40, 2, dtype=torch.float64)
    found = torch.func.vmap(lambda p: nearest(p, k=4, radius=0.2))(pos)
    check(nearest(pos, k=4), pos, pos, k=4)
    assert torch.equal(found.squared, nearest(pos, k=4, radius=0.2).squared)
    compiled = torch.compile(lambda p: nearest(p, k=4).squared, fullgraph=True, backend="eager")
    assert torch.equal(compiled(pos), nearest(pos, k=4).squared)


POS = torch.rand(5, 2)
MISTAKES: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (ValueError, "give k, a radius, or both", lambda: nearest(POS)),
    (ValueError, "k must be at least 1; got 0", lambda: nearest(POS, k=0)),
    (ValueError, "radius must be > 0 and finite; got inf", lambda: nearest(POS, radius=math.inf)),
    (ValueError, "query_pos must have 2 coordinates", lambda: nearest(POS, torch.rand(5, 3), k=1)),
    (ValueError, "pos must be float, (N, s) or (B, N, s)", lambda: nearest(torch.zeros(3, 2).long(), k=1)),
    (TypeError, "query_pos must be a tensor; got list", lambda: nearest(POS, [0.0], k=1)),  # pyright: ignore[reportArgumentType]
    (TypeError, "mask must be bool", lambda: nearest(POS, k=1, mask=torch.ones(5))),
    (
        ValueError,
        "visible must be int64 with one entry for each of the 5 queries",
        lambda: nearest(POS, k=1, visible=torch.ones(4).long()),
    ),
    (
        ValueError,
        "batch sizes must be one and the same; got pos 2, query_pos 3",
        lambda: nearest(torch.rand(2, 5, 2), torch.rand(3, 5, 2), k=1),
    ),
    (ValueError, "NaN or infinite", lambda: nearest(torch.tensor([[0.0], [math.nan]]), k=1)),
]


@pytest.mark.parametrize(("error", "message", "call"), MISTAKES, ids=[message for _, message, _ in MISTAKES])
def test_mistakes_are_named(error: type[Exception], message: str, call: Callable[[], Any]) -> None:
    with refused(error, "nearest: ", message):
        call()


def test_points_that_do_not_exist_may_have_any_position() -> None:
    pos = torch.rand(3000, 2, dtype=torch.float64)
    mask = torch.rand(3000) < 0.7
    found = nearest(torch.where(mask[:, None], pos, torch.nan), pos[:900], k=3, mask=mask)
    check(found, pos, pos[:900], k=3, mask=mask)
