"""compare_routes: a row for each route, errors relative to the plainest route, and no side effects."""

from typing import final

import pytest
import torch
from torch import Tensor, nn

import fredholm
from fredholm import compare_routes, domains, evaluation, kernels, quadrature
from fredholm.domains import Domain
from fredholm.evaluation import AUTO, Toeplitz
from fredholm.kernels import Kernel
from fredholm.operators import RouteComparison
from tests.operators.build import operator, signal
from tests.refusals import refused

GRID = domains.Grid(3, 5)
N = 15


@final
class OnlyDense(Kernel):
    """The identity between any two points, for which there is no specialised route."""

    is_causal = reads_query = False
    pos_dim = None

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.in_dim = self.out_dim = dim

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        at = domain if query_domain is None else query_domain
        return torch.eye(self.in_dim, dtype=u.dtype).expand(len(u), at.num_points, domain.num_points, -1, -1)


def error(found: RouteComparison, index: int) -> float:
    value = found.rows[index].error
    assert value is not None
    return value


def largest_error(found: RouteComparison) -> float:
    return max(error(found, i) for i, row in enumerate(found.rows) if not row.refusals)


@pytest.mark.parametrize("gradients", [False, True])
def test_every_route_of_the_kernel_has_a_row_and_exact_ones_agree(gradients: bool) -> None:
    found = compare_routes(operator(), signal(N), GRID, gradients=gradients, repeats=1)
    assert [row.route for row in found.rows] == ["TritonTiled", "Toeplitz", "Tiled", "StepLoop", "Dense"]
    assert found.reference == "Dense"
    assert "looks ahead" in found.rows[3].refusals[0]
    for row in (*found.rows[1:3], found.rows[4]):
        assert row.error is not None
        assert row.error <= 1e-10
        assert row.seconds is not None
        assert row.seconds > 0
        assert row.peak_mb is not None
        assert row.peak_mb >= 0
        assert row.nodes == f"all {N} points"
        assert not row.refusals
    assert found.rows[-1].error == 0


def test_a_route_that_refuses_is_shown_with_its_reason_and_not_run() -> None:
    found = compare_routes(operator(), signal(7), domains.Points(torch.rand(7, 2)), repeats=1)
    toeplitz = found.rows[1]
    assert toeplitz.refusals == ("queries and keys do not hold the same regular grid",)
    assert (toeplitz.error, toeplitz.seconds, toeplitz.peak_mb) == (None, None, None)
    assert "Toeplitz refuses: queries and keys do not hold the same regular grid" in str(found)


def test_the_plainest_other_route_is_the_reference_where_dense_is_too_large() -> None:
    found = compare_routes(operator(), signal(N), GRID, dense_bytes=1000, repeats=1)
    assert found.reference == "Tiled"
    assert found.rows[2].error == 0
    assert "above max_bytes" in found.rows[-1].refusals[0]


def test_without_a_reference_costs_are_reported_without_errors() -> None:
    op = fredholm.IntegralOperator(OnlyDense(6)).double()
    found = compare_routes(op, signal(N), GRID, dense_bytes=0, repeats=1)
    assert found.reference is None
    assert [(row.route, row.error) for row in found.rows] == [("Dense", None)]


def test_a_wrong_route_shows_even_beside_a_large_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    op, right = operator(), Toeplitz.compute
    assert op.residual_weight is not None
    with torch.no_grad():
        op.residual_weight.mul_(1e6)
    monkeypatch.setattr(Toeplitz, "compute", lambda *args: 1.01 * right(*args))
    found = compare_routes(op, signal(N), GRID, repeats=1)
    assert found.rows[1].error == pytest.approx(0.01, rel=1e-4)


def test_a_wrong_gradient_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Toeplitz.compute

    def detached(self, integral):
        value = right(self, integral)
        return value.detach() + 0 * value

    monkeypatch.setattr(Toeplitz, "compute", detached)
    assert error(compare_routes(operator(), signal(N), GRID, repeats=1), 1) <= 1e-10
    assert error(compare_routes(operator(), signal(N), GRID, repeats=1, gradients=True), 1) >= 0.1


def test_nan_is_an_infinite_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Toeplitz.compute
    monkeypatch.setattr(Toeplitz, "compute", lambda *args: right(*args) * float("nan"))
    assert compare_routes(operator(), signal(N), GRID, repeats=1).rows[1].error == float("inf")


def test_quadratures_are_shown_with_their_nodes_and_error() -> None:
    op, u = operator(), signal(N)
    quadratures = [quadrature.Anchors(4), quadrature.Neighbourhood(num_neighbours=N), quadrature.Full()]
    found = compare_routes(op, u, GRID, quadratures=quadratures, repeats=1)
    anchors = found.rows[-3]
    assert [row.route for row in found.rows[-3:]] == ["Anchors", "Neighbourhood", "Full"]
    assert anchors.nodes == "4 anchors, means of clusters of 15 points"
    with torch.no_grad():
        exact, nothing = op(u, GRID), op.around(torch.zeros_like(u), u)
        difference = (op.with_quadrature(quadratures[0])(u, GRID) - exact).abs().max()
    assert anchors.error == pytest.approx((difference / (exact - nothing).abs().max()).item(), rel=1e-6)
    assert error(found, -3) > 1e-3
    assert error(found, -2) <= 1e-10
    assert error(found, -1) <= 1e-10
    assert found.reference == "Dense"


def test_quadratures_that_refuse_are_shown_with_their_reason() -> None:
    causal = operator(1, is_causal=True)
    row = compare_routes(causal, signal(9), quadratures=[quadrature.Anchors(4)], repeats=1).rows[-1]
    assert "look ahead" in row.refusals[0]
    lstm = fredholm.IntegralOperator(kernels.LSTM(6, 6)).double()
    row = compare_routes(lstm, signal(9), quadratures=[quadrature.Anchors(4)], repeats=1).rows[-1]
    assert "not a function of two points alone" in row.refusals[0]


def test_the_route_and_nodes_of_the_operator_are_measured_too() -> None:
    route = evaluation.Tiled(tile_elements=64)
    op = operator(evaluation=route).with_quadrature(quadrature.Anchors(4))
    routes = [row.route for row in compare_routes(op, signal(N), GRID, repeats=1).rows]
    assert routes == ["Tiled", "TritonTiled", "Toeplitz", "Tiled", "StepLoop", "Dense", "Anchors"]


def test_masks_and_other_queries_reach_every_route(monkeypatch: pytest.MonkeyPatch) -> None:
    u, mask, right, seen = signal(N), torch.arange(N) < 11, Toeplitz.compute, []

    def looking(self, integral):
        seen.append(integral.domain.mask)
        return right(self, integral)

    monkeypatch.setattr(Toeplitz, "compute", looking)
    found = compare_routes(operator(), u, GRID, key_padding_mask=mask, gradients=True, repeats=1)
    assert largest_error(found) <= 1e-10
    assert all(torch.equal(each, mask) for each in seen)
    at, query = domains.Points(torch.rand(4, 2, dtype=torch.float64)), signal(4, seed=3)
    found = compare_routes(operator(), u, GRID, query=query, query_domain=at, gradients=True, repeats=1)
    assert [row.route for row in found.rows if not row.refusals] == ["Tiled", "Dense"]
    assert largest_error(found) <= 1e-10


def test_one_point_and_no_point() -> None:
    for n in (0, 1):
        found = compare_routes(
            operator(), signal(n), domains.Points(torch.rand(n, 2, dtype=torch.float64)), gradients=True, repeats=1
        )
        assert largest_error(found) <= 1e-10


def test_the_operator_is_left_unchanged() -> None:
    op, u, ran = operator(), signal(N).requires_grad_(), []
    op.register_forward_hook(lambda *_: ran.append(1))
    before = {name: value.clone() for name, value in op.state_dict().items()}
    state = torch.random.get_rng_state()
    compare_routes(op, u, GRID, quadratures=[quadrature.MonteCarlo(4)], gradients=True, repeats=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in op.state_dict().items())
    assert all(parameter.grad is None for parameter in [u, *op.parameters()])
    assert (op.evaluation, op.quadrature, ran, u.requires_grad, op.training) == (AUTO, None, [], True, True)


def test_gradients_that_are_only_rounding_count_as_zero() -> None:
    attention = fredholm.IntegralOperator(
        kernels.Attention(6, 2)
    ).double()  # the key bias shifts all scores by the same amount
    assert largest_error(compare_routes(attention, signal(9), gradients=True, repeats=1)) <= 1e-7


def test_frozen_parameters_are_allowed() -> None:
    op = operator().requires_grad_(False)
    found = compare_routes(op, signal(N), GRID, gradients=True, repeats=1)
    assert error(found, 1) <= 1e-10


@pytest.mark.parametrize(("budget_s", "passes"), [(10.0, 1 + 3 + 1), (1e-9, 1)])
def test_a_pass_that_fills_the_budget_is_measured_once(
    monkeypatch: pytest.MonkeyPatch, budget_s: float, passes: int
) -> None:
    right, ran = Toeplitz.compute, []

    def counted(*args):
        ran.append(1)
        return right(*args)

    monkeypatch.setattr(Toeplitz, "compute", counted)
    compare_routes(operator(), signal(N), GRID, budget_s=budget_s)
    assert len(ran) == passes


def test_it_prints_as_a_table() -> None:
    lines = str(compare_routes(operator(), signal(N), GRID, repeats=1)).splitlines()
    assert lines[0] == "MLP on 15 points, batch 2, forward, cpu"
    assert lines[1].split() == ["route", "error", "seconds", "peak", "MB", "nodes"]
    assert lines[6].split()[:2] == ["Dense", "0.0e+00"]
    assert lines[-2].startswith("TritonTiled refuses: ")
    assert lines[-1].startswith("StepLoop refuses: ")


def test_bad_input_is_named() -> None:
    u = signal(N)
    with refused(TypeError, "compare_routes: operator must be an IntegralOperator; got Linear"):
        compare_routes(nn.Linear(6, 6), u)  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "quadratures[1] must be a fredholm quadrature; got int"):
        compare_routes(operator(), u, GRID, quadratures=[quadrature.Full(), 128])  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "repeats must be at least 1", "got 0"):
        compare_routes(operator(), u, GRID, repeats=0)
    with refused(ValueError, "budget_s above 0", "-1"):
        compare_routes(operator(), u, GRID, budget_s=-1.0)
    with refused(ValueError, "u has 15 points but its domain", "has 9"):
        compare_routes(operator(), u, domains.Grid(3, 3))


def test_a_route_that_refuses_while_it_runs_has_its_reason_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("the points have no times")

    monkeypatch.setattr(Toeplitz, "compute", refuse)
    found = compare_routes(operator(), signal(N), GRID, repeats=1)
    assert found.rows[1].refusals == ("the points have no times",)
    assert error(found, 2) <= 1e-10
