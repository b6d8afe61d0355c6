"""A perceptron that reads no content is evaluated once for the whole batch."""

import pytest
import torch

from fredholm.domains import Domain, Grid, Points, Sequence
from fredholm.evaluation import Integral, StatefulRoute, Tiled, Toeplitz
from fredholm.evaluation.perceptron import sums
from fredholm.kernels import MLP, KernelInputs
from tests.contracts.routes import check_route, randomise

POSITIONS = KernelInputs(query_content=False, key_content=False, product=False)
ROUTES = [Tiled(), Tiled(60), Toeplitz(), Toeplitz(60)]
WEIGHED = Grid(3, 4, weights=torch.rand(5, 12), mask=torch.rand(5, 12) > 0.3)


def perceptron(pos_dim: int, **options) -> MLP:
    options = {"inputs": POSITIONS, "width": 6, "num_frequencies": 3, "sigma": 1.0} | options
    return randomise(MLP(6, 3, pos_dim, **options).double())


def signal(domain: Domain, batch: int) -> torch.Tensor:
    u = torch.randn(batch, domain.num_points, 6, dtype=torch.float64)
    return u if domain.mask is None else u * domain.mask[..., None]


@pytest.mark.pairs
@pytest.mark.parametrize("route", ROUTES, ids=str)
@pytest.mark.parametrize("batch", [2, 5])
@pytest.mark.parametrize(
    ("domain", "options"),
    [
        (Grid(3, 4), {}),
        (Grid(3, 4), {"head_shared": True}),
        (Grid(3, 4), {"depth": 4, "activation": "relu"}),
        (Grid(3, 4, periodic=True), {"activation": "gelu_tanh"}),
        (Sequence(9), {"is_causal": True}),
        (Sequence(9), {"is_causal": True, "causal_measure": "total", "head_shared": True}),
        (Grid(3, 4).weigh_pairs(torch.rand(12, 12)), {}),
        (Grid(3, 4).weigh_pairs(torch.rand(1, 3, 12, 12)), {}),
        (Grid(3, 4).weigh_pairs(torch.rand(1, 3, 12, 12)), {"head_shared": True}),
    ],
    ids=str,
)
def test_one_kernel_for_the_batch_equals_dense(route: StatefulRoute[MLP], batch: int, domain: Domain, options):
    check_route(route, Integral(perceptron(domain.pos_dim, **options), signal(domain, batch), domain), 1e-9)


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_measures_may_differ_within_the_batch(route: StatefulRoute[MLP]):
    check_route(route, Integral(perceptron(2), signal(WEIGHED, 5), WEIGHED), 1e-9)


@pytest.mark.parametrize("elements", [None, 60])
@pytest.mark.parametrize("batch", [2, 5])
def test_positions_have_gradients(elements: int | None, batch: int):
    domain, queries = (Points(torch.rand(n, 2, dtype=torch.float64)) for n in (11, 4))
    check_route(Tiled(elements), Integral(perceptron(2), signal(domain, batch), domain, None, queries), 1e-9)


@pytest.mark.parametrize(
    ("batch", "options", "is_before"), [(2, {}, False), (5, {}, True), (2, {"head_shared": True}, True)]
)
def test_the_last_layer_is_applied_before_or_after_the_sum_by_cost(monkeypatch, batch, options, is_before):
    opened = set()
    for kind in (sums.LastLayerAfterSum, sums.LastLayerBeforeSum):
        original = kind.open
        monkeypatch.setattr(kind, "open", lambda self, *args, by=original: (opened.add(type(self)), by(self, *args)))
    domain = Grid(3, 4)
    Tiled().integrate(Integral(perceptron(2, **options), signal(domain, batch), domain))
    assert opened == {sums.LastLayerBeforeSum if is_before else sums.LastLayerAfterSum}


@pytest.mark.parametrize(
    ("domain", "inputs", "is_once"),
    [
        (Grid(3, 4), POSITIONS, True),
        (Grid(3, 4), KernelInputs(query_content=False, product=False), False),
        (Points(torch.rand(8, 12, 2, dtype=torch.float64)), POSITIONS, False),
        (Grid(3, 4).weigh_pairs(torch.rand(8, 1, 12, 12)), POSITIONS, False),
    ],
    ids=["positions", "content", "other points for each", "other pairs for each"],
)
def test_a_kernel_shared_by_the_batch_is_evaluated_once(monkeypatch, domain, inputs, is_once):
    entries, original = 0, sums.activate_into

    def counted(p, out, activation):
        nonlocal entries
        entries += p.numel()
        return original(p, out, activation)

    monkeypatch.setattr(sums, "activate_into", counted)
    Tiled().integrate(Integral(perceptron(2, inputs=inputs), signal(domain, 8), domain))
    assert entries == (1 if is_once else 8) * 3 * 6 * 12 * 12
