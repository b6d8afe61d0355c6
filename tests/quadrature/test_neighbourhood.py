import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, kernels
from fredholm.domains import Domain, Grid, Points, Sequence, neighbours, preceding_counts
from fredholm.evaluation import Dense, Integral
from fredholm.kernels import Kernel
from fredholm.quadrature.neighbourhood import Neighbourhood
from fredholm.quadrature.nodes import NodesPerQuery
from tests.contracts.routes import randomise
from tests.quadrature.build import check_gradients, mlp, plain, scattered, signal

N = 11
MASK = torch.tensor([[True] * 7 + [False] * 4, [False, True] * 5 + [True]])
WEIGHTS = torch.tensor([0.0, 1.0, 0.2, 3.0, 0.5, 0.5, 0.1, 2.0, 1.0, 0.0, 0.7], dtype=torch.float64)
KINDS: dict[str, dict[str, Any]] = {
    "radius": {"radius": 0.35},
    "nearest": {"num_neighbours": 3},
    "nearest within": {"num_neighbours": 2, "radius": 0.25},
    "local mean": {"radius": 0.35, "normalise": True},
}


def places() -> dict[str, tuple[Domain, Domain | None]]:
    return {
        "points": (scattered(N), None),
        "points of each entry": (scattered(N, batch=2), None),
        "masked": (scattered(N, mask=MASK), None),
        "weighted": (scattered(N, weights=WEIGHTS), None),
        "torus": (scattered(N, periodic=True), None),
        "other queries": (scattered(N), scattered(4, seed=3)),
        "other queries of each entry": (scattered(N, mask=MASK), scattered(4, batch=2, seed=3)),
    }


def oracle(quadrature: Neighbourhood, kernel: Kernel, u: Tensor, domain: Domain, **queries: Any) -> Tensor:
    """The dense route with pair weights that are 0 except for neighbours by a search over all pairs."""
    targets = queries.get("query_domain") or domain
    distance = domain.displacement(targets.pos if targets.pos.ndim == 3 else targets.pos[None]).norm(dim=-1)
    distance = distance.expand(len(u), -1, -1).detach().clone()
    mass = torch.atleast_2d(domain.weights).expand(len(u), -1).detach()
    distance[(mass == 0)[:, None].expand_as(distance)] = torch.inf
    if kernel.is_causal:
        seen = preceding_counts(targets, domain)[..., None]
        distance[(torch.arange(domain.num_points) >= seen).expand_as(distance)] = torch.inf
    near = distance < torch.inf
    if quadrature.radius is not None:
        near &= distance <= quadrature.radius
    if quadrature.num_neighbours is not None:
        rank = distance.argsort(-1).argsort(-1)
        near &= rank < quadrature.num_neighbours
    weights = near.double()
    if quadrature.normalise:
        weights = weights / (weights * mass[:, None]).sum(-1, keepdim=True).clamp_min(1e-300)
    return IntegralOperator(kernel, evaluation=Dense(), residual=False, bias=False, output_projection=False)(
        u, domain.weigh_pairs(weights.log()), **queries
    )


def compare(quadrature: Neighbourhood, kernel: Kernel, where: tuple[Domain, Domain | None]) -> None:
    domain, query_domain = where
    u = signal(domain.num_points)
    u = (u if domain.mask is None else torch.where(domain.mask[..., None], u, 0.0)).requires_grad_()
    queries: dict[str, Any] = {}
    if query_domain is not None:
        queries = {"query": signal(query_domain.num_points, seed=1).requires_grad_(), "query_domain": query_domain}
    leaves = [u, *(p for p in kernel.parameters() if p.numel())]
    leaves += [queries["query"]] if queries else []
    got = plain(kernel, quadrature)(u, domain, **queries)
    expected = oracle(quadrature, kernel, u, domain, **queries)
    check_gradients(got, expected, leaves)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", places())
def test_it_equals_the_exact_operator_restricted_to_neighbours(kind: str, where: str) -> None:
    compare(Neighbourhood(**KINDS[kind]), mlp(), places()[where])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [False, True], ids=["all pairs", "cells"])
def test_small_blocks_of_queries_change_nothing(kind: str, cells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "COMPARED_WHOLE", 0 if cells else math.inf)
    monkeypatch.setattr(neighbours, "SEARCHED_PAIRS", 5 * N)
    monkeypatch.setattr(neighbours, "CELL_PAIRS", 5 * N)
    monkeypatch.setattr("fredholm.evaluation.listed.CHUNK_ELEMENTS", 150)
    for where in list(places())[cells::2]:
        compare(Neighbourhood(**KINDS[kind]), mlp(), places()[where])
    for domain in (Grid(N), Grid(N, mask=MASK)):
        compare(Neighbourhood(**KINDS[kind]), causal(kind), (domain, None))


@pytest.mark.parametrize("settings", [{"num_neighbours": 7}, {"radius": 0.09}, {"num_neighbours": 3, "radius": 0.05}])
def test_cells_find_the_same_neighbours_as_all_pairs(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "COMPARED_WHOLE", 0)
    kernel, domain, targets = mlp(), scattered(300), scattered(83, seed=8)
    nodes = Neighbourhood(**settings).nodes(Integral(kernel, signal(300), domain, signal(83), targets))
    assert isinstance(nodes, NodesPerQuery)
    distance = domain.displacement(targets.pos).norm(dim=-1)
    near = distance <= settings.get("radius", torch.inf)
    near &= distance.argsort(-1).argsort(-1) < settings.get("num_neighbours", 300)
    found = torch.zeros_like(near)
    for i in range(83):
        found[i, nodes.index[0, i][nodes.weights[0, i] > 0]] = True
    assert torch.equal(found, near)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [False, True], ids=["indices", "times"])
def test_causal_kernels_have_neighbours_in_the_past(kind: str, times: bool) -> None:
    domain = Sequence(times=torch.linspace(0, 1, N, dtype=torch.float64).square()) if times else Grid(N)
    compare(Neighbourhood(**KINDS[kind]), causal(kind), (domain, None))


def causal(kind: str) -> Kernel:
    """A causal kernel that is not divided by the mass of the past, since a local sum is already a mean."""
    return mlp(1, is_causal=True, causal_measure="total" if KINDS[kind].get("normalise") else "past")


def test_a_local_mean_is_that_of_the_past_for_any_causal_measure() -> None:
    u, domain = signal(N), Grid(N)
    results = []
    for measure in ("past", "total"):
        torch.manual_seed(0)  # the same frequencies
        kernel = mlp(1, is_causal=True, causal_measure=measure)
        results.append(plain(kernel, Neighbourhood(radius=0.2, normalise=True)).double()(u, domain))
    torch.testing.assert_close(*results)


def test_a_local_mean_of_a_sum_is_that_of_its_terms() -> None:
    past, counting = mlp(1, is_causal=True), kernels.UnnormalisedAttention(6, 2, is_causal=True)
    u, domain, local = signal(N), Grid(N), Neighbourhood(radius=0.2, normalise=True)
    first, second = (plain(kernel, local).double()(u, domain) for kernel in (past, counting))
    torch.testing.assert_close(plain(past + counting, local).double()(u, domain), first + second)
    torch.testing.assert_close(plain(2.0 * past, local).double()(u, domain), 2 * first)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.UnnormalisedAttention(6, 2),
        kernels.YatAttention(6, 2, normaliser=kernels.Unnormalised()),
        kernels.ContinuousConvolution(6, 6, 2, width=5, is_causal=False),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_a_local_mean_does_not_grow_with_points_elsewhere(kernel: Kernel) -> None:
    u, pos = signal(N), scattered(N).pos
    operator = plain(kernel, Neighbourhood(radius=0.3, normalise=True)).double()
    alone = operator(u, Points(pos))
    near = Points(pos).displacement(pos).norm(dim=-1) <= 0.3
    mean = torch.where(near, 1 / near.double().sum(-1, keepdim=True), 0.0)
    everywhere = plain(kernel).double()(u, Points(pos).weigh_pairs(mean.log()))
    torch.testing.assert_close(alone, everywhere)
    beside = operator(torch.cat([u, u], dim=1), Points(torch.cat([pos, pos + 9])))
    torch.testing.assert_close(beside[:, :N], alone)


@pytest.mark.parametrize("kernel", [kernels.Attention(6, 2), kernels.Attention(6, 2, bias=False)])
def test_attention_is_normalised_over_the_neighbours(kernel: Kernel) -> None:
    for where in ("points", "weighted", "masked"):
        compare(Neighbourhood(radius=0.35), randomise(kernel.double()), places()[where])


class Counting(Kernel):
    """κ = I, summed over points without normalisation."""

    pos_dim, is_causal, reads_query, counts_points = None, False, False, True
    in_dim = out_dim = 6

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        pairs = (len(u), (domain if query_domain is None else query_domain).num_points, domain.num_points)
        return torch.eye(6, dtype=u.dtype).expand(*pairs, 6, 6)


def test_sums_without_normalisation_count_the_points_that_nodes_represent() -> None:
    kernel, everything = Counting(), Neighbourhood(num_neighbours=N)
    for domain in (scattered(N), scattered(N, mask=MASK), scattered(N, weights=WEIGHTS)):
        u = signal(N) if domain.mask is None else torch.where(domain.mask[..., None], signal(N), 0.0)
        torch.testing.assert_close(plain(kernel, everything)(u, domain), plain(kernel)(u, domain))


def test_a_point_at_the_radius_is_a_neighbour() -> None:
    grid = Grid(7, 7, periodic=True)
    op = plain(kernels.MLP(1, pos_dim=2, width=2, epsilon=0.0).double(), Neighbourhood(radius=2 / 7))
    ones = torch.ones(1, 49, 1, dtype=torch.float64)
    torch.testing.assert_close(op(ones, grid), 13 / 49 * ones)  # a disc of 13 cells, and κ = 1


def test_a_query_without_neighbours_gets_zero_with_zero_gradient() -> None:
    pos = torch.tensor([[0.0, 0.0], [0.1, 0.0], [1.0, 1.0]], dtype=torch.float64)
    u = signal(3).requires_grad_()
    far = Points(torch.tensor([[0.0, 0.05], [5.0, 5.0]], dtype=torch.float64))
    for settings in KINDS.values():
        if "radius" not in settings:
            continue
        out = plain(mlp(), Neighbourhood(**settings))(u, Points(pos), query=signal(2), query_domain=far)
        assert (out[:, 1] == 0).all()
        assert (out[:, 0] != 0).all()
        (grad,) = torch.autograd.grad(out[:, 1].sum(), u)
        assert (grad == 0).all()
    alone = plain(mlp(), Neighbourhood(radius=0.01))(u, Points(pos), query=signal(1), query_domain=Points(far.pos[1:]))
    assert (alone == 0).all()


@pytest.mark.parametrize("num_points", [0, 1])
def test_no_points_and_a_single_one(num_points: int) -> None:
    u, domain = signal(num_points), scattered(num_points)
    for settings in KINDS.values():
        op = plain(mlp(), Neighbourhood(**settings))
        assert op(u, domain).shape == (2, num_points, 6)
        out = op(u, domain, query=signal(2), query_domain=Points(domain.pos.new_full((2, 2), 9.0)))
        assert out.isfinite().all()
    assert plain(mlp(), Neighbourhood(radius=1.0))(u, domain, query=u[:, :0], query_domain=scattered(0)).shape[1] == 0


def test_the_order_of_points_does_not_matter() -> None:
    domain, u, order = scattered(N), signal(N), torch.randperm(N)
    op = plain(mlp(), Neighbourhood(num_neighbours=4))
    torch.testing.assert_close(op(u, domain)[:, order], op(u[:, order], Points(domain.pos[order])))


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="give a radius, num_neighbours, or both"):
        Neighbourhood()
    with pytest.raises(ValueError, match="radius must be > 0 and finite; got -1"):
        Neighbourhood(radius=-1.0)
    with pytest.raises(ValueError, match="num_neighbours must be at least 1; got 0"):
        Neighbourhood(num_neighbours=0)
    with pytest.raises(TypeError, match="radius must be a number; got 'far'"):
        Neighbourhood(radius="far")  # pyright: ignore[reportArgumentType]
