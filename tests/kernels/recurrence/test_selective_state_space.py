from typing import Any

import pytest
import torch
from torch.nn.functional import linear, softplus

from fredholm import IntegralOperator
from fredholm.domains import Sequence
from fredholm.evaluation import Dense, Integral, Scan
from fredholm.kernels import SelectiveStateSpace
from tests.contracts.routes import randomise
from tests.refusals import refused


def recurrence(kernel: SelectiveStateSpace, u: torch.Tensor) -> torch.Tensor:
    """Mamba's Algorithm 2: discretise every point, then step."""
    rank, n = kernel.rank, kernel.state_dim
    content = linear(u, kernel.content_weight)
    step = softplus(linear(content[..., :rank], kernel.step_weight, kernel.step_bias))[..., None]  # (B, T, d, 1)
    read_in, read_out = content[..., None, rank : rank + n], content[..., None, rank + n :]
    A = -kernel.log_a.exp()
    decay = (step * A).exp()
    gain = step if kernel.input_rule == "euler" else (decay - 1) / A
    assert kernel.feedthrough is not None
    h, rows = torch.zeros(len(u), *A.shape, dtype=u.dtype), []
    for t in range(u.shape[1]):
        h = decay[:, t] * h + gain[:, t] * read_in[:, t] * u[:, t, :, None]
        rows.append((h * read_out[:, t]).sum(-1) + kernel.feedthrough * u[:, t])
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("input_rule", ["euler", "zoh"])
def test_equals_the_recurrence_of_the_paper(input_rule):
    kernel = SelectiveStateSpace(5, 3, rank=2, input_rule=input_rule).double()
    randomise(kernel)
    u = torch.randn(2, 9, 5, dtype=torch.float64)
    expected = recurrence(kernel, u)
    for route in (Dense(), Scan()):
        assert torch.allclose(route.integrate(Integral(kernel, u, Sequence(9))), expected, rtol=1e-11, atol=1e-12)


def test_the_two_input_rules_agree_for_short_steps_only():
    u = torch.randn(1, 9, 4, dtype=torch.float64)

    def gap(bias: float) -> float:
        out = []
        for input_rule in ("euler", "zoh"):
            torch.manual_seed(0)
            kernel = SelectiveStateSpace(4, 2, input_rule=input_rule, feedthrough=False).double()
            with torch.no_grad():
                kernel.step_bias.fill_(bias)
                kernel.step_weight.zero_()
            out.append(Scan().integrate(Integral(kernel, u, Sequence(9))))
        return ((out[0] - out[1]).abs().max() / out[1].abs().max()).item()

    assert gap(-7.0) < 2e-3
    assert gap(1.0) > 0.2


def test_initialisation_is_mambas():
    kernel = SelectiveStateSpace(300, 16)
    assert kernel.rank == 19
    assert torch.allclose(kernel.rates(), -torch.arange(1.0, 17.0)[:, None].expand(16, 300))
    steps = softplus(kernel.step_bias)
    assert 1e-3 * 0.999 <= steps.min() < 1.2e-3
    assert 0.09 < steps.max() <= 0.1 * 1.001
    assert kernel.feedthrough is not None
    assert torch.equal(kernel.feedthrough, torch.ones(300))
    assert kernel.no_weight_decay <= dict(kernel.named_parameters()).keys()


def test_weights_scale_the_signal_but_not_the_parameters_computed_from_it():
    kernel = randomise(SelectiveStateSpace(3, 2)).double()
    u, weights = torch.randn(1, 6, 3, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    operator = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
    kappa = kernel.matrix(u, Sequence(6))
    expected = torch.einsum("btsoi,bsi,s->bto", kappa, u, weights)
    assert torch.allclose(operator(u, Sequence(6, weights=weights)), expected, atol=1e-12)


def test_bad_input_is_refused():
    cases: list[tuple[dict[str, Any], str]] = [
        ({"in_dim": 0}, "in_dim must be at least 1; got 0"),
        ({"input_rule": "bilinear"}, "'euler' or 'zoh'"),
        ({"max_step": float("inf")}, "min_step <= max_step"),
    ]
    for options, message in cases:
        with refused(ValueError, "SelectiveStateSpace", message):
            SelectiveStateSpace(**{"in_dim": 4, **options})
