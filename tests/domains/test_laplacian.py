import sys
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from fredholm.domains import laplacian, laplacian_positions, undirected
from tests.refusals import refused


def path(n: int) -> Tensor:
    return undirected(torch.stack([torch.arange(n - 1), torch.arange(1, n)]))


def grid(side: int, *, periodic: bool = False) -> Tensor:
    index = torch.arange(side * side).view(side, side)
    pairs = [(index[:-1], index[1:]), (index[:, :-1], index[:, 1:])]
    if periodic:
        pairs += [(index[-1], index[0]), (index[:, -1], index[:, 0])]
    return undirected(torch.cat([torch.stack([a.flatten(), b.flatten()]) for a, b in pairs], 1))


def connected(n: int, more: int, seed: int = 0) -> Tensor:
    """A random tree with `more` random edges."""
    generator = torch.Generator().manual_seed(seed)
    above = (torch.rand(n - 1, generator=generator) * torch.arange(1, n)).long()
    tree = torch.stack([above, torch.arange(1, n)])
    return undirected(torch.cat([tree, torch.randint(n, (2, more), generator=generator)], 1))


def literal(edge_index: Tensor, n: int) -> Tensor:
    adjacency = torch.zeros(n, n, dtype=torch.float64)
    for a, b in edge_index.T.tolist():
        if a != b:
            adjacency[a, b] = 1.0
    root = adjacency.sum(1).clamp_min(1.0).rsqrt()
    return torch.diag((adjacency.sum(1) > 0).double()) - root[:, None] * adjacency * root


def check_eigenvectors(x: Tensor, edge_index: Tensor, values: Tensor | None = None, atol: float = 1e-8) -> None:
    """Asserts orthogonal eigenvectors of the Laplacian with mean square 1, and with the given eigenvalues."""
    n, s = x.shape
    torch.testing.assert_close(x.T @ x / n, torch.eye(s, dtype=x.dtype), atol=1e-9, rtol=0)
    a, b = edge_index[:, edge_index[0] != edge_index[1]].unique(dim=1)
    degree = torch.bincount(a, minlength=n).double()
    moved = x - torch.zeros_like(x).index_add(0, a, x[b] / (degree[a] * degree[b]).sqrt()[:, None])
    found = (x * moved).mean(0)
    torch.testing.assert_close(moved, found * x, atol=atol, rtol=0)
    if values is not None:
        torch.testing.assert_close(found, values, atol=1e-12, rtol=1e-7)


@given(st.integers(2, 30), st.integers(0, 20), st.integers(1, 12), st.integers(0, 5))
def test_positions_equal_dense_eigenvectors_of_the_literal_laplacian(n: int, more: int, s: int, seed: int) -> None:
    edges = connected(n, more, seed)
    values, vectors = torch.linalg.eigh(literal(edges, n))
    x, count = laplacian_positions(edges, n, s), min(s, n - 1)
    assert x.shape == (n, s)
    assert x.dtype == torch.float64
    check_eigenvectors(x[:, :count], edges, values[1 : 1 + count])
    assert (x[:, count:] == 0).all()
    for i in range(count):
        if (values - values[1 + i]).abs().lt(1e-6).sum() == 1:  # a simple eigenvalue
            assert abs(float(x[:, i] @ vectors[:, 1 + i])) == pytest.approx(n**0.5)


@pytest.mark.parametrize("limit", [0, 1e300], ids=["multiplied", "factorised"])
@pytest.mark.parametrize(
    ("edges", "n"), [(connected(700, 900), 700), (connected(600, 0), 600), (grid(26, periodic=True), 676)]
)
def test_large_components_by_both_sparse_solvers(
    edges: Tensor, n: int, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laplacian, "FACTORISED_FLOPS", limit - 1)
    values = torch.linalg.eigvalsh(literal(edges, n))
    check_eigenvectors(laplacian_positions(edges, n), edges, values[1:9])


@pytest.mark.slow
def test_a_long_path_and_a_large_grid() -> None:
    n = 20_000
    angle = torch.pi * torch.arange(1, 9, dtype=torch.float64) / (n - 1)
    check_eigenvectors(laplacian_positions(path(n), n), path(n), 1 - angle.cos())
    large = grid(300)
    check_eigenvectors(laplacian_positions(large, 90_000, 3), large)


def test_without_convergence_the_tolerance_is_relaxed_or_an_error_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = connected(700, 200)
    monkeypatch.setattr(laplacian, "FACTORISED_FLOPS", -1.0)
    monkeypatch.setattr(laplacian, "PRODUCTS", 600)
    monkeypatch.setattr(laplacian, "TOLERANCES", (1e-16, 1e-4))
    check_eigenvectors(laplacian_positions(edges, 700), edges, atol=1e-2)
    monkeypatch.setattr(laplacian, "TOLERANCES", (1e-16, 1e-16))
    with refused(ValueError, "laplacian_positions: the sparse solver finds no 8 eigenvectors", "700 nodes"):
        laplacian_positions(edges, 700)
    monkeypatch.setattr(laplacian, "TOLERANCES", (0.5,))
    with refused(ValueError, "finds no 8 eigenvectors"):
        laplacian_positions(edges, 700)


def test_components_have_separate_positions() -> None:
    sizes = [5, 1, 600, 5, 9, 2, 40]
    parts = [
        connected(n, n // 2, seed) if n > 1 else torch.zeros(2, 0, dtype=torch.int64) for seed, n in enumerate(sizes)
    ]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    together = torch.cat([part + start for part, start in zip(parts, starts, strict=True)], 1)
    mixed = torch.randperm(sum(sizes))
    x = laplacian_positions(mixed[together], sum(sizes), 6)
    for n, part, start in zip(sizes, parts, starts, strict=True):
        got, alone = x[mixed[start : start + n]], laplacian_positions(part, n, 6)
        torch.testing.assert_close(got @ got.T, alone @ alone.T, atol=1e-6, rtol=0)  # for any basis of an eigenspace


@pytest.mark.parametrize("n", [23, 601])
def test_the_numbering_of_nodes_does_not_matter(n: int) -> None:
    edges, order = connected(n, 3 * n), torch.randperm(n)
    x = laplacian_positions(edges, n)
    torch.testing.assert_close(laplacian_positions(order[edges], n)[order], x, atol=1e-7, rtol=0)
    assert (x.pow(3).sum(0) > 0).all()


@pytest.mark.parametrize("n", [30, 601])
def test_duplicates_loops_and_the_order_of_edges_change_nothing(n: int) -> None:
    edges = connected(n, 20)
    more = torch.cat([edges, edges[:, 3:9], torch.full((2, 2), 7), edges[:, :1]], 1)
    more = more[:, torch.randperm(more.shape[1])]
    assert torch.equal(laplacian_positions(more, n), laplacian_positions(edges, n))


@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_graphs_without_edges(nodes: int) -> None:
    none = torch.zeros(2, 0, dtype=torch.int64)
    assert torch.equal(laplacian_positions(none, nodes, 2), torch.zeros(nodes, 2, dtype=torch.float64))
    assert undirected(none).shape == (2, 0)


def test_two_clusters_joined_by_a_thin_bridge_exclude_the_constant_vector() -> None:
    body = undirected(torch.combinations(torch.arange(12)).T)
    edges = torch.cat([body, body + 12, torch.tensor([[0, 12], [12, 0]])], 1)
    degree = torch.bincount(edges[0]).double()
    assert (degree.sqrt() @ laplacian_positions(edges, 24)).abs().max() < 1e-12


def test_undirected_adds_what_is_missing_once() -> None:
    edges = torch.tensor([[2, 0, 1, 0, 3], [0, 2, 0, 1, 3]])
    assert undirected(edges[:, [0, 2, 2, 4]]).tolist() == [[0, 0, 1, 2, 3], [1, 2, 0, 0, 3]]
    assert torch.equal(undirected(edges), undirected(undirected(edges)))


MISTAKES: list[tuple[type[Exception], str, Callable[[], Tensor]]] = [
    (
        ValueError,
        "has the edge (1, 3) without its reverse; domains.undirected(edge_index)",
        lambda: laplacian_positions(torch.tensor([[0, 1, 1], [1, 0, 3]]), 4),
    ),
    (ValueError, "edge_index names node 4 of 4", lambda: laplacian_positions(torch.tensor([[0, 4], [4, 0]]), 4)),
    (ValueError, "edge_index names node -1", lambda: laplacian_positions(torch.tensor([[0, -1], [-1, 0]]), 4)),
    (ValueError, "must have shape (2, E); got (3, 2)", lambda: undirected(torch.zeros(3, 2, dtype=torch.int64))),
    (TypeError, "must be int64; got torch.float32", lambda: undirected(torch.zeros(2, 2))),
    (TypeError, "must be a tensor; got list", lambda: undirected([[0], [1]])),  # pyright: ignore[reportArgumentType]
    (ValueError, "num_vectors must be at least 1; got 0", lambda: laplacian_positions(path(3), 3, 0)),
    (ValueError, "num_nodes must be at least 0; got -1", lambda: laplacian_positions(path(3), -1)),
]


@pytest.mark.parametrize(("error", "message", "call"), MISTAKES, ids=[message for _, message, _ in MISTAKES])
def test_mistakes_are_named(error: type[Exception], message: str, call: Callable[[], Tensor]) -> None:
    with refused(error, message):
        call()


def test_without_scipy_the_error_for_large_components_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    assert laplacian_positions(path(512), 512).shape == (512, 8)
    with refused(ImportError, 'a component of 513 nodes needs scipy; get it with: pip install "fredholm[graph]"'):
        laplacian_positions(path(513), 513)


def test_other_components_do_not_change_the_basis_of_equal_eigenvalues() -> None:
    sizes = (5, 5, 5, 7, 3, 5, 5)

    def star(n: int) -> Tensor:
        return undirected(torch.stack([torch.zeros(n - 1, dtype=torch.int64), torch.arange(1, n)]))

    def ring(n: int) -> Tensor:
        return undirected(torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]))

    for part in (star, ring):
        starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
        joined = torch.cat([part(n) + start for n, start in zip(sizes, starts, strict=False)], 1)
        x = laplacian_positions(joined, starts[-1], 4)
        for n, start in zip(sizes, starts, strict=False):
            torch.testing.assert_close(x[start : start + n], laplacian_positions(part(n), n, 4), atol=1e-9, rtol=0)
