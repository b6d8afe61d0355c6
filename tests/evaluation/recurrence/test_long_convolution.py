import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Grid, Sequence
from fredholm.evaluation import Dense, Integral, LongConvolution, Scan
from fredholm.evaluation.recurrence.long_convolution import impulse_response
from fredholm.kernels import DiagonalStateSpace, LinearRNN, SelectiveStateSpace
from fredholm.kernels.recurrence.semi_separable import DiagonalForm
from tests.contracts.routes import TOLERANCE, changed, check_route, compare, randomise, results


def make(length: int, dtype: torch.dtype = torch.float64, **options) -> Integral:
    kernel = randomise(DiagonalStateSpace(3, 6, **options), 0.4).to(dtype)
    return Integral(kernel, torch.randn(2, length, 3, dtype=dtype), Sequence(length))


@pytest.mark.parametrize("length", [0, 1, 3, 37, 64, 65])
@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_equals_dense_forward_and_in_every_gradient(rule, length):
    check_route(LongConvolution(), make(length, rule=rule))


@pytest.mark.parametrize("weights", [torch.rand(9).double(), torch.rand(2, 9).double()], ids=["shared", "per entry"])
def test_equals_dense_with_weights(weights):
    problem = make(9, feedthrough=False)
    problem = changed(problem, domain=Sequence(9, weights=weights))
    check_route(LongConvolution(), problem)


def test_equals_the_recurrence_on_a_long_sequence():
    problem = make(1501)
    compare(results(LongConvolution(), problem), results(Scan(), problem), 1e-10)


def test_a_held_input_enters_with_its_gain():
    rates, steps = -torch.rand(2, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    ones = torch.ones_like(rates)
    form = DiagonalForm(rates, steps, None, ones, ones, None, holds_input=True)
    expected = torch.stack([((k * steps * rates).exp() * torch.expm1(steps * rates) / rates).sum(0) for k in range(7)])
    assert torch.allclose(impulse_response(form, 7), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_stays_near_the_float64_oracle(dtype):
    problem = make(67)
    expected = results(Dense(), problem)
    problem.kernel.float()
    problem = changed(problem, u=problem.u.detach().float())
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        compare(results(LongConvolution(), problem), expected, TOLERANCE[dtype])


def test_refusals():
    kernel, u, route = DiagonalStateSpace(3, 2), torch.randn(1, 6, 3), LongConvolution()
    masked = Sequence(6, mask=torch.tensor([True] * 5 + [False]))
    assert "not marked" in route.unsupported_reasons(Integral(LinearRNN(3, 2), u, Sequence(6)))[0]
    assert "varies" in route.unsupported_reasons(Integral(SelectiveStateSpace(3, 2), u, Sequence(6)))[0]
    assert "do not exist" in route.unsupported_reasons(Integral(kernel, u, masked))[0]
    assert "queries" in route.unsupported_reasons(Integral(kernel, u, Sequence(6), None, Sequence(3)))[0]
    assert "order" in route.unsupported_reasons(Integral(kernel, u, Grid(2, 3)))[0]


def test_is_chosen_for_whole_sequences_and_the_scan_for_the_rest():
    operator = IntegralOperator(DiagonalStateSpace(3, 2))
    u = torch.randn(2, 6, 3)
    assert operator.explain(u).startswith("LongConvolution:")
    assert operator.explain(u, key_padding_mask=torch.tensor([True] * 5 + [False])).startswith("Scan:")


@pytest.mark.long
def test_compiles_in_one_graph_for_any_length():
    torch.compiler.reset()
    operator = IntegralOperator(DiagonalStateSpace(3, 2), evaluation=LongConvolution())
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    for length in (5, 9):
        u = torch.randn(2, length, 3)
        assert torch.allclose(compiled(u), operator(u), atol=1e-6)
