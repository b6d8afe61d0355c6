"""The sum converges to the integral as the grid is refined, at the expected order."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator
from fredholm.domains import Domain, Grid, Points, Sequence, trapezoid_weights
from fredholm.evaluation import Tiled
from fredholm.kernels import KernelInputs
from tests.operators.build import operator

SMOOTH = KernelInputs(distance=False)
SIZES = (8, 16, 32)
QUERIES = Points(torch.rand(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


def smooth(pos: Tensor) -> Tensor:
    """A smooth signal that is not periodic: `(N, s)` to `(1, N, 6)`."""
    k = torch.arange(1, 7, dtype=pos.dtype)
    return torch.cos(0.7 * k * pos[:, :1] + 0.3 * k * k * pos[:, -1:].square() + k)[None]


def waves(pos: Tensor) -> Tensor:
    """A smooth signal of period 1: `(N, s)` to `(1, N, 6)`."""
    k = torch.arange(6, dtype=pos.dtype)
    return torch.exp(
        0.4 * torch.sin(2 * math.pi * (pos[:, :1] + k / 6)) * torch.cos(2 * math.pi * (pos[:, -1:] - k / 5))
    )[None]


def at(op: IntegralOperator, domain: Domain, f: Callable[[Tensor], Tensor], queries: Domain = QUERIES) -> Tensor:
    with torch.no_grad():
        return op(f(domain.pos), domain, query=f(queries.pos), query_domain=queries)


def orders(errors: list[float]) -> list[float]:
    return [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]


@pytest.mark.parametrize("settings", [{"num_frequencies": 0}, {"sigma": 0.5}], ids=["raw coordinates", "slow features"])
def test_on_a_grid_the_order_is_the_midpoint_rules(settings: dict[str, Any]) -> None:
    op = operator(**settings)
    reference = at(op, Grid(128, 128), smooth)
    errors = [(at(op, Grid(n, n), smooth) - reference).abs().max().item() for n in SIZES]
    assert errors[0] > 1e-4  # the error is large enough to measure
    slope = torch.tensor(errors).log2().diff().mean().item()
    assert 1.8 < -slope < 2.2
    assert all(1.7 < order < 2.3 for order in orders(errors)), errors


def test_convergence_at_the_cells_of_the_grid() -> None:
    """Centres of a coarse grid are centres of one with three times as many cells."""
    op = operator(num_frequencies=0)
    coarse = Grid(4, 4)
    found = {n: at(op, Grid(n, n), smooth, coarse) for n in (4, 12, 36, 108)}
    shared = op(smooth(coarse.pos), coarse)  # by the route with a table of displacements
    torch.testing.assert_close(shared, found[4])
    coarser, finer = ((found[n] - found[108]).abs().max().item() for n in (12, 36))
    assert 1.8 < math.log(coarser / finer, 3) < 2.4


def test_queries_do_not_affect_each_other() -> None:
    """The result at a point is the same among coarse, fine or no other queries."""
    op, domain = operator(num_frequencies=0), Grid(6, 6)
    fine, coarse = Grid(12, 12), Grid(4, 4)
    middle = [(3 * i + 1) * 12 + 3 * j + 1 for i in range(4) for j in range(4)]
    torch.testing.assert_close(fine.pos[middle], coarse.pos)
    at_fine, at_coarse = at(op, domain, smooth, fine), at(op, domain, smooth, coarse)
    torch.testing.assert_close(at_fine[:, middle], at_coarse)
    torch.testing.assert_close(at_coarse[:, 5:6], at(op, domain, smooth, Points(coarse.pos[5:6])))
    torch.testing.assert_close(at(op, domain, smooth, domain), op(smooth(domain.pos), domain))


def test_convergence_on_the_torus_is_much_faster() -> None:
    op = operator(inputs=SMOOTH)
    with torch.no_grad():  # a kernel that is smooth and of period 1: whole frequencies
        op.kernel.get_buffer("frequencies").copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]))
        op.kernel.get_parameter("input_weight").mul_(0.3)
    reference = at(op, Grid(48, 48, periodic=True), waves)
    errors = [(at(op, Grid(n, n, periodic=True), waves) - reference).abs().max().item() for n in SIZES[:2]]
    assert errors[0] < 1e-4
    assert errors[1] < 1e-9 * reference.abs().max().item()
    plain = operator(inputs=SMOOTH, evaluation=Tiled())
    plain.load_state_dict(op.state_dict())
    torch.testing.assert_close(at(plain, Grid(8, 8), waves), at(op, Grid(8, 8, periodic=True), waves))


def test_irregular_times_converge_with_trapezoid_weights_only() -> None:
    op, queries = operator(1, num_frequencies=0), Points(torch.tensor([[0.2], [0.7]], dtype=torch.float64))

    def times(n: int) -> Tensor:
        return torch.linspace(0, 1, n, dtype=torch.float64).square()  # crowded near 0

    reference = at(op, Grid(4000), smooth, queries)
    weighted = [
        (at(op, Sequence(times=t, weights=trapezoid_weights(t)), smooth, queries) - reference).abs().max().item()
        for t in map(times, (64, 128, 256))
    ]
    assert all(1.7 < order < 2.4 for order in orders(weighted)), weighted
    uniform = (at(op, Sequence(times=times(256)), smooth, queries) - reference).abs().max().item()
    assert uniform > 50 * weighted[-1]
