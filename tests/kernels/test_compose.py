import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Grid, Points, Sequence
from fredholm.evaluation import AUTO, Dense, Integral, TermByTerm
from fredholm.kernels import (
    GRU,
    LSTM,
    MLP,
    Attention,
    Convolution,
    LinearAttention,
    Pointwise,
    Scaled,
    Stateful,
    Sum,
)
from tests.contracts.routes import check_route, randomise, results
from tests.refusals import refused


def mlp(**options) -> MLP:
    return MLP(4, 2, 1, width=3, num_frequencies=2, **options)


@pytest.mark.parametrize(
    "domain",
    [
        Sequence(5),
        Sequence(5, mask=torch.tensor([[True] * 5, [True, False, True, True, False]])),
        Points(torch.rand(5, 1).double(), weights=torch.rand(5).double()),
        Sequence(5).weigh_pairs(torch.randn(5, 5).double()),
    ],
    ids=["even", "masked", "weights", "pairs"],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_sum_is_the_sum_of_the_integrals(domain, is_causal):
    terms = [Attention(4, 2, is_causal=is_causal), mlp(is_causal=is_causal), 0.7 * LinearAttention(4, bias=False)]
    kernel = randomise((terms[0] + terms[1] + terms[2]).double())
    assert isinstance(kernel, Sum)
    assert len(kernel.terms) == 3
    u = torch.randn(2, 5, 4, dtype=torch.float64)
    u = u if domain.mask is None else torch.where(domain.mask[..., None], u, 0.0)
    made = Integral(kernel, u, domain)
    check_route(TermByTerm(), made)
    separate = sum(results(Dense(), Integral(term, u, domain))["integral"] for term in kernel.kernels)
    torch.testing.assert_close(results(Dense(), made)["integral"], separate)
    assert isinstance(AUTO.choose(Integral(kernel, u, domain)).route, TermByTerm)


def test_terms_with_other_output_domains_are_refused():
    grid = Grid(8, spacing=(0.1,))
    narrow, wide = Convolution(4, 4, 3, stride=2, padding=1), Convolution(4, 4, 5, stride=2, padding=2)
    assert torch.equal((narrow + wide).output_domain(grid).pos, narrow.output_domain(grid).pos)
    shifted, coarse = Convolution(4, 4, 3, stride=2, padding=((2, 0),)), Convolution(4, 4, 5, stride=4, padding=2)
    assert shifted.output_domain(grid).num_points == 4
    for other in (shifted, coarse, Attention(4)):
        with refused(ValueError, "kernels.Sum: the terms give their results at different points"):
            (narrow + other).output_domain(grid)


def test_a_gate_at_zero_starts_at_the_pretrained_layer_and_learns():
    torch.manual_seed(0)
    attention = Attention(4, 2)
    alone = IntegralOperator(attention)
    both = IntegralOperator(attention + 0.0 * mlp())
    both.load_state_dict({f"{k}": v for k, v in alone.state_dict().items() if "kernel" not in k}, strict=False)
    u = torch.randn(2, 6, 4)
    assert torch.equal(both(u), alone(u))
    both(u).square().sum().backward()
    assert isinstance(both.kernel, Sum)
    scaled = both.kernel.kernels[1]
    assert isinstance(scaled, Scaled)
    gate = scaled.gate
    assert gate.grad is not None
    assert gate.grad.abs() > 0
    with torch.no_grad():
        gate.sub_(0.1 * gate.grad)
    assert not torch.allclose(both(u), alone(u))


def test_refuses_terms_that_do_not_fit():
    with refused(ValueError, "all terms need the same in_dim", "Attention 6", "MLP 4"):
        _ = Attention(6, 2) + mlp()
    with refused(ValueError, "positions of different dimensions, [1, 2]"):
        _ = mlp() + MLP(4, 2, 2, width=3)
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = None * mlp()  # pyright: ignore[reportOperatorIssue]
    with refused(ValueError, "at least one kernel"):
        Sum([])
    with refused(TypeError, "Scaled", "int"):
        Scaled(3)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "Scaled: gate must be finite", "nan"):
        _ = float("nan") * mlp()
    with refused(TypeError, "Scaled: gate must be a number", "None"):
        Scaled(mlp(), None)  # pyright: ignore[reportArgumentType]


def test_causal_only_where_all_terms_are():
    causal = Attention(4, is_causal=True) + LSTM(4, 4)
    assert causal.is_causal
    assert IntegralOperator(causal).explain(torch.randn(1, 4, 4)).startswith("TermByTerm")
    assert not (Attention(4, is_causal=True) + mlp()).is_causal
    assert IntegralOperator(Attention(4) + mlp()).explain(torch.randn(1, 4, 4), Grid(4)).startswith("TermByTerm")


def test_a_sum_has_the_requirements_of_any_of_its_terms():
    small, cache = LSTM(4, 4), Attention(4, 2, is_causal=True)
    timed, early = mlp(is_causal=True), mlp(is_causal=True, causal_measure="total")
    for kernel, growing, simultaneous, time in (
        (small + small, False, False, False),
        (small + LinearAttention(4, is_causal=True), False, True, False),
        (small + 2.0 * cache, True, True, False),
        (0.5 * (small + timed), True, True, True),
    ):
        assert isinstance(kernel, Stateful)
        found = kernel.has_growing_state, kernel.sees_simultaneous, kernel.reads_time
        assert found == (growing, simultaneous, time)
        assert kernel.unsteppable(Sequence(3)) == []
    for kernel in (small + early, 2.0 * early, small + Pointwise(4, 4)):
        assert isinstance(kernel, Stateful)
        assert len(kernel.unsteppable(Sequence(3))) == 1


def test_the_state_of_a_sum_joins_those_of_its_terms():
    terms = [LSTM(4, 4), 2.0 * mlp(is_causal=True), GRU(4, 4), Attention(4, 2, is_causal=True)]
    kernel = Sum(terms)
    parts = kernel.states_of_terms(kernel.initial_state(3))
    assert [len(part) for part in parts] == [2, 2, 1, 2]
    for term, part in zip(kernel.kernels, parts, strict=True):
        assert isinstance(term, Stateful)
        assert [t.shape for t in part] == [t.shape for t in term.initial_state(3)]


def test_a_number_may_stand_on_either_side() -> None:
    kernel = Attention(4, 2)
    for scaled in (kernel * 0.5, 0.5 * kernel):
        assert isinstance(scaled, Scaled)
        assert torch.equal(scaled.gate, torch.tensor([0.5]))
