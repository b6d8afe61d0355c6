"""Tiles of a perceptron kernel equal the definition under pair weights and periodic displacements."""

import pytest
import torch

from fredholm.domains import Domain, Grid, Points
from fredholm.evaluation import Dense, Evaluation, Integral, Tiled, Toeplitz
from fredholm.kernels import MLP, KernelInputs
from tests.contracts.routes import check_route, compare, randomise
from tests.contracts.small_perceptron import small_perceptron

pytestmark = pytest.mark.usefixtures("poisoned_memory")
BATCH, HEADS, CHANNELS = 2, 2, 4
ONLY_DISTANCE = KernelInputs(relative_position=False)
NO_DISTANCE = KernelInputs(distance=False)


def make(**options) -> MLP:
    return randomise(MLP(CHANNELS, HEADS, 2, **small_perceptron(**options)).double())


def signal(points: int) -> torch.Tensor:
    return torch.randn(BATCH, points, CHANNELS, dtype=torch.float64)


@pytest.mark.pairs
@pytest.mark.parametrize("elements", [7, 100, None])
@pytest.mark.parametrize("shape", [(), (BATCH,), (1, HEADS), (BATCH, HEADS), (BATCH, 1)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"head_shared": True}, {"is_causal": True}, {"is_causal": True, "head_shared": True}, {"depth": 3}],
    ids=str,
)
@pytest.mark.parametrize("grid", [False, True])
def test_pair_weights_and_their_gradient(options, shape, elements, grid) -> None:
    where: Domain = Grid(2, 3) if grid else Points(torch.rand(6, 2, dtype=torch.float64))
    route: Evaluation = Toeplitz(elements) if grid else Tiled(elements)
    kernel, u = make(**options), signal(6)
    bias = torch.randn(*shape, 6, 6, dtype=torch.float64).masked_fill(torch.rand(6, 6) > 0.8, -torch.inf)
    bias.requires_grad_()
    found = {}
    for by in (Dense(), route):
        out = by.integrate(Integral(kernel, u, where.weigh_pairs(bias)))
        (grad,) = torch.autograd.grad(out.sin().sum(), bias)
        found[by.name] = {"integral": out.detach(), "d/d bias": grad}
    compare(found[route.name], found["Dense"], 1e-10)
    check_route(route, Integral(kernel, u, where.weigh_pairs(bias.detach())))


def test_pair_weights_of_other_heads_are_refused() -> None:
    where = Grid(2, 3).weigh_pairs(torch.zeros(1, 4, 6, 6))
    for route in (Tiled(), Toeplitz()):
        (reason,) = route.unsupported_reasons(Integral(make(), signal(6), where))
        assert reason == "pairs are weighed for 4 heads, and the kernel has 2"


@pytest.mark.pairs
@pytest.mark.parametrize("elements", [7, 100, None])
@pytest.mark.parametrize("batch", [(), (BATCH,)], ids=["one set of points", "a set each"])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"num_frequencies": 0}, {"inputs": ONLY_DISTANCE}, {"inputs": NO_DISTANCE}, {"head_shared": True},
        {"inputs": NO_DISTANCE, "num_frequencies": 0},
    ],
    ids=str,
)  # fmt: skip
def test_periodic_displacements(options, batch, elements) -> None:
    kernel = make(**options)
    here, there = (Points(torch.rand(*batch, n, 2, dtype=torch.float64), periodic=True) for n in (7, 5))
    check_route(Tiled(elements), Integral(kernel, signal(7), here, signal(5), there))


def test_positions_of_periodic_points_stay_precise() -> None:
    kernel = make(sigma=3.0).float()
    pos = torch.rand(7, 2, dtype=torch.float64) + 1000
    check_route(Tiled(), Integral(kernel, signal(7).float(), Points(pos, periodic=True)))


def test_equal_queries_are_lifted_once_and_separate_positions_have_separate_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, u, lifted = make(), signal(6), []
    lift = type(kernel).lift_positions
    monkeypatch.setattr(MLP, "lift_positions", lambda self, pos: (lifted.append(pos), lift(self, pos))[1])
    Tiled().integrate(Integral(kernel, u, Grid(2, 3), None, Grid(2, 3)))
    assert len(lifted) == 1
    pos = [torch.rand(6, 2, dtype=torch.float64).requires_grad_()]
    pos.append(pos[0].detach().clone().requires_grad_())
    gradients = []
    for route in (Dense(), Tiled()):
        out = route.integrate(Integral(kernel, u, *(Points(pos[0]), None, Points(pos[1]))))
        gradients.append(torch.autograd.grad(out.sin().sum(), pos))
    for ours, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, expected)
