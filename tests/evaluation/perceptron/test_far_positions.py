"""Perceptron kernels far from the origin, such as at seconds since 1970: differences stay precise in float32."""

import pytest
import torch

from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import AUTO, Dense, Evaluation, Integral, Tiled, Toeplitz
from fredholm.kernels import MLP, KernelInputs
from fredholm.operators import IntegralOperator
from fredholm.quadrature import Neighbourhood
from tests.contracts.routes import check_route, randomise
from tests.contracts.small_perceptron import small_perceptron

OFFSET = 1.7e9
RELATIVE = KernelInputs(query_position=False, key_position=False)
KERNELS = {
    "everything between two points": {"inputs": RELATIVE},
    "raw coordinates": {"inputs": RELATIVE, "num_frequencies": 0},
    "distance": {"inputs": KernelInputs(query_position=False, key_position=False, relative_position=False)},
}


def far(shape: tuple[int, ...] = (), n: int = 7) -> torch.Tensor:
    return OFFSET + torch.rand(*shape, n, 2, dtype=torch.float64)


def problem(options: dict[str, object], domain: Domain, queries: Domain | None = None) -> Integral:
    kernel = randomise(MLP(4, 2, domain.pos_dim, **small_perceptron(**options)))
    u = torch.randn(2, domain.num_points, 4)
    u = u if domain.mask is None else torch.where(domain.mask[..., None], u, 0.0)
    query = None if queries is None else torch.randn(2, queries.num_points, 4)
    return Integral(kernel, u, domain, query, queries)


@pytest.mark.parametrize("options", KERNELS)
def test_differences_stay_precise(options: str) -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
    times = Sequence(times=OFFSET + torch.rand(7, dtype=torch.float64).sort().values)
    cases: list[tuple[Evaluation, Domain, Domain | None]] = [
        (Tiled(20), Points(far()), None),
        (Tiled(20), Points(far((2,))), None),
        (Tiled(20), Points(far(), mask=mask), None),
        (Tiled(20), Points(far((2,)), mask=mask), None),
        (Tiled(20), Points(far()), Points(far(n=3))),
        (Tiled(20), Points(far(n=2)), None),
        (Tiled(20), times, None),
        (Toeplitz(20), Union(Points(far(n=1)), Grid(2, 3, origin=(OFFSET, OFFSET))), None),
    ]
    for route, domain, queries in cases:
        made = problem(KERNELS[options], domain, queries)
        check_route(route, made)
        check_route(Tiled(20), made)


@pytest.mark.parametrize("options", KERNELS)
def test_differences_to_nodes_of_a_neighbourhood_stay_precise(options: str) -> None:
    torch.manual_seed(0)
    kernel = randomise(MLP(4, 2, 2, **small_perceptron(**KERNELS[options])))
    u, domain = torch.randn(2, 7, 4), Points(far())
    dense, op = (
        IntegralOperator(kernel, quadrature=Neighbourhood(num_neighbours=3), residual=False, evaluation=evaluation)
        for evaluation in (Dense(), AUTO)
    )
    op.load_state_dict(dense.state_dict())
    torch.testing.assert_close(op(u, domain), dense(u, domain), rtol=1e-5, atol=1e-5)


def test_the_centre_is_that_of_the_existing_points() -> None:
    pos = torch.tensor([[1.0, 2.0], [3.0, 6.0], [8.0, 1.0]], dtype=torch.float64)
    keep = torch.tensor([True, True, False])
    assert Points(pos).middle.tolist() == [[4.0, 3.0]]
    assert Points(pos, mask=keep).middle.tolist() == [[2.0, 4.0]]
    assert Points(pos, mask=torch.stack([keep, keep & False])).middle.tolist() == [[2.0, 4.0]]
    both = Points(torch.stack([pos, pos + 1]), mask=torch.stack([keep, ~keep]))
    assert both.middle.tolist() == [[[2.0, 4.0]], [[9.0, 2.0]]]
    assert Points(pos[:0]).middle.tolist() == [[0.0, 0.0]]
    assert not Points(pos.clone().requires_grad_()).middle.requires_grad
    assert Points(torch.full((9, 2), 60_000.0, dtype=torch.float16)).middle.tolist() == [[60_000.0, 60_000.0]]
