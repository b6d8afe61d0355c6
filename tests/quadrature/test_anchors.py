import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import kernels
from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.quadrature.anchors import Anchors, clusters
from tests.contracts.routes import randomise
from tests.quadrature.build import check_gradients, mlp, plain, scattered, signal

MASK = torch.tensor([[True] * 9 + [False] * 4, [False, True] * 6 + [True]])
WEIGHTS = torch.tensor([0.0, 1.0, 0.2, 3.0, 0.5, 0.5, 0.1, 2.0, 1.0, 0.0, 0.7, 0.3, 1.0], dtype=torch.float64)
N = 13

DOMAINS: dict[str, Domain] = {
    "points": scattered(N),
    "points of each entry": scattered(N, batch=2),
    "masked": scattered(N, mask=MASK),
    "weighted": scattered(N, weights=WEIGHTS),
    "grid and token": Union(scattered(1), Grid(4, 3)),
    "torus": scattered(N, periodic=True),
}


def literal(quadrature: Anchors, u: Tensor, domain: Domain, kernel: Any, **queries: Any) -> Tensor:
    """The integral as a sum over the means of clusters, cluster by cluster."""
    pos, mass = (x if x.ndim == n else x[None] for x, n in ((domain.pos, 3), (domain.weights, 2)))
    batch = len(u)
    pos, mass = pos.expand(batch, -1, -1), mass.expand(batch, -1)
    owner = clusters(pos, mass, quadrature.num_nodes, quadrature.iterations, domain)
    means = [torch.zeros(batch, quadrature.num_nodes, size, dtype=u.dtype) for size in (pos.shape[-1], u.shape[-1])]
    total = torch.zeros(batch, quadrature.num_nodes, dtype=u.dtype)
    for b in range(batch):
        for c in range(quadrature.num_nodes):
            own = (owner[b] == c) & (mass[b] > 0)
            if not own.any():
                continue
            share = mass[b, own] / mass[b, own].sum()
            start = pos[b, own][0]
            means[0][b, c] = start + share @ domain.wrap(pos[b, own] - start)
            means[1][b, c] = share @ u[b, own]
            total[b, c] = mass[b, own].sum()
    nodes = Points(means[0], weights=total, periodic=domain.is_periodic)
    asking = {"query": u, "query_domain": domain} | queries
    return plain(kernel)(means[1], nodes, **asking)


@pytest.mark.parametrize("where", DOMAINS)
@pytest.mark.parametrize("others", [False, True], ids=["own points", "other queries"])
def test_the_sum_and_its_gradients_are_those_over_cluster_means(where: str, others: bool) -> None:
    kernel, domain, quadrature = mlp(), DOMAINS[where], Anchors(4)
    u = signal(N)
    u = (u if domain.mask is None else torch.where(domain.mask[..., None], u, 0.0)).requires_grad_()
    queries = {"query": signal(3, seed=1), "query_domain": scattered(3, seed=2)} if others else {}
    leaves = [u, *(p for p in kernel.parameters() if p.numel())]
    got = plain(kernel, quadrature)(u, domain, **queries)
    expected = literal(quadrature, u, domain, kernel, **queries)
    check_gradients(got, expected, leaves)


def test_gradients_reach_positions_and_masses() -> None:
    domain = scattered(N, weights=WEIGHTS)
    leaves = [domain.pos.requires_grad_(), domain.weights.requires_grad_()]
    out = plain(mlp(), Anchors(4))(signal(N), domain)
    for grad in torch.autograd.grad(out.square().sum(), leaves):
        assert grad.abs().max() > 1e-3


@pytest.mark.parametrize("periodic", [False, True])
def test_no_iteration_of_k_means_makes_clusters_worse(periodic: bool) -> None:
    domain = scattered(200, periodic=periodic)
    pos, mass = domain.pos[None], torch.rand(1, 200, dtype=torch.float64)
    costs = []
    for iterations in (0, 1, 2, 5, 20):
        owner = clusters(pos, mass, 7, iterations, domain)
        cost = 0.0
        for c in range(7):
            own = owner[0] == c
            start = pos[0, own][0]
            offset = domain.wrap(pos[0, own] - start)
            centre = (mass[0, own] / mass[0, own].sum()) @ offset
            cost += float((mass[0, own] * domain.wrap(offset - centre).square().sum(-1)).sum())
        costs.append(cost)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(costs)), costs
    assert costs[-1] < 0.9 * costs[0]


def test_separate_clusters_are_found_also_across_a_periodic_boundary() -> None:
    generator = torch.Generator().manual_seed(0)
    heaps = torch.tensor([[0.0, 0.5], [0.5, 0.0], [0.5, 0.5]], dtype=torch.float64)
    pos = (heaps.repeat_interleave(10, 0) + 0.02 * torch.randn(30, 2, generator=generator, dtype=torch.float64)) % 1
    mass = torch.ones(1, 30, dtype=torch.float64)
    owner = clusters(pos[None], mass, 3, 10, Points(pos, periodic=True))[0].view(3, 10)
    assert (owner == owner[:, :1]).all()
    assert owner[:, 0].unique().numel() == 3


def test_points_of_mass_zero_change_nothing() -> None:
    domain, kernel, u = scattered(N), mlp(), signal(N)
    mask = torch.arange(N) < 9
    few = plain(kernel, Anchors(4))(u[:, :9], Points(domain.pos[:9]))
    masked = plain(kernel, Anchors(4))(u, Points(domain.pos, mask=mask))
    torch.testing.assert_close(masked[:, :9], few)


def test_the_error_falls_as_m_to_the_minus_two_over_s() -> None:
    kernel = randomise(
        kernels.MLP(2, 1, 2, width=8, num_frequencies=0, inputs=kernels.KernelInputs(distance=False)).double(), 0.7
    ).requires_grad_(False)
    grid = Grid(32, 32)
    u = torch.stack([(3 * grid.pos[:, 0]).sin(), grid.pos.square().sum(-1)], -1)[None]
    queries = {"query": u[:, ::37], "query_domain": Points(grid.pos[::37])}
    exact = plain(kernel)(u, grid, **queries)
    errors = [float((plain(kernel, Anchors(m))(u, grid, **queries) - exact).norm()) for m in (4, 16, 64)]
    rates = [a / b for a, b in itertools.pairwise(errors)]
    assert all(rate > 2.5 for rate in rates), errors  # the rate is 4 = 4^(2/2) for square clusters


def test_few_points_are_summed_exactly_and_coinciding_ones_share_a_cluster() -> None:
    kernel, u, domain = mlp(), signal(N), scattered(N)
    for m in (N, 3 * N):
        op = plain(kernel, Anchors(m))
        torch.testing.assert_close(op(u, domain), plain(kernel)(u, domain))
        assert "no fewer" in op.explain(u, domain)
    at_one_place = Points(torch.full((N, 2), 0.5, dtype=torch.float64))
    out = plain(kernel, Anchors(4))(u, at_one_place)
    assert out.isfinite().all()
    mean = u.mean(1, keepdim=True)
    alone = plain(kernel)(mean, Points(at_one_place.pos[:1]), query=u, query_domain=at_one_place)
    torch.testing.assert_close(out, alone)


def test_no_existing_points_give_zero() -> None:
    u = signal(N).requires_grad_()
    out = plain(mlp(), Anchors(4))(u, scattered(N, mask=torch.zeros(N, dtype=torch.bool)))
    out.sum().backward()
    assert (out == 0).all()
    assert u.grad is not None
    assert (u.grad == 0).all()


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="num_nodes must be at least 1"):
        Anchors(0)
    with pytest.raises(ValueError, match="iterations must be at least 0; got -1"):
        Anchors(4, iterations=-1)
    with pytest.raises(TypeError, match=r"num_nodes must be a whole number; got 2\.5"):
        Anchors(2.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="would let a causal kernel look ahead"):
        plain(mlp(1, is_causal=True), Anchors(4))(signal(N), Sequence(N))
    with pytest.raises(ValueError, match="no place in the order"):
        plain(kernels.Attention(6, rotary=kernels.Rotary(10.0)).double(), Anchors(4))(signal(N), Sequence(N))
