"""The Yat kernels equal their formulas, and refuse bad settings."""

from typing import Any

import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Points, Sequence
from fredholm.evaluation import Dense, Integral
from fredholm.kernels import Attention, Rotary, Softermax, SoftSigmoid, Yat, YatAttention
from fredholm.kernels.attention.scored import scores_of
from tests.refusals import refused


def literal(q: torch.Tensor, k: torch.Tensor, b: torch.Tensor | float, epsilon: float) -> torch.Tensor:
    """(q·k + b)² / (‖q - k‖² + ε) by differences: `(..., n, d)` and `(..., m, d)` to `(..., n, m)`."""
    return (q @ k.mT + b).square() / ((q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) + epsilon)


@pytest.mark.parametrize("reads_bias", [False, True])
@pytest.mark.parametrize("num_units", [None, 6])
def test_an_integral_over_prototypes_is_a_yat_layer_and_a_linear_map(reads_bias, num_units):
    kernel = Yat(4, 3, reads_bias=reads_bias, num_units=num_units, epsilon=0.2).double()
    w, b, v = torch.randn(6, 4), torch.randn(6, 1), torch.randn(6, 3)
    u = torch.cat([w, b, v] if reads_bias else [w, v], dim=-1).double()[None]
    x = torch.randn(1, 5, 4, dtype=torch.float64)
    out = Dense().integrate(Integral(kernel, u, Points(torch.zeros(6, 1)), x, Sequence(5)))
    scale = 1.0 if num_units is None else 6 / torch.log(torch.tensor(7.0, dtype=torch.float64))
    expected = scale * literal(x[0], w.double(), b.double().mT if reads_bias else 0.0, 0.2) @ v.double()
    torch.testing.assert_close(out[0], expected)


@pytest.mark.parametrize("normaliser", [None, Softermax(2.0, 0.1), SoftSigmoid()], ids=str)
def test_attention_equals_its_formula(normaliser):
    torch.manual_seed(0)
    kernel = YatAttention(6, 2, normaliser=normaliser, epsilon=0.3).double()
    u, projections = torch.randn(1, 4, 6, dtype=torch.float64), kernel.projections
    parts = []
    for rows in (slice(0, 3), slice(3, 6)):
        q, k, v = (
            u[0] @ w[rows].mT for w in (projections.query_weight, projections.key_weight, projections.value_weight)
        )
        s = literal(q, k, 0.0, 0.3)
        match normaliser:
            case None:
                share = s.softmax(-1)
            case Softermax():
                share = s**2 / (0.1 + (s**2).sum(-1, keepdim=True))
            case _:
                share = s / (1 + s)
        parts.append(share @ v)
    torch.testing.assert_close(Dense().integrate(Integral(kernel, u, Sequence(4)))[0], torch.cat(parts, -1))


def test_reduces_to_attention_for_large_epsilon():
    # ε far above all distances: scores are (q·k)²/ε, the softmax attention of outer products
    kernel = YatAttention(4, 1, epsilon=1e6).double()
    with torch.no_grad():
        kernel.projections.query_weight.mul_(20)
        kernel.projections.key_weight.mul_(20)
    u, projections = torch.randn(1, 5, 4, dtype=torch.float64), kernel.projections
    q, k = (u @ w.mT for w in (projections.query_weight, projections.key_weight))
    outer = [(t[..., :, None] * t[..., None, :]).flatten(-2) for t in (q, k)]
    share = torch.softmax(outer[0] @ outer[1].mT / 1e6, -1)
    torch.testing.assert_close(
        Dense().integrate(Integral(kernel, u, Sequence(5))),
        share @ (u @ projections.value_weight.mT),
        rtol=1e-2,
        atol=1e-3,
    )


def test_a_sum_with_attention_starts_from_both():
    kernels = YatAttention(4, 2), Attention(4, 2, bias=False)
    kernel = kernels[0] + kernels[1]
    u = torch.randn(1, 5, 4)
    operator = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
    parts = [IntegralOperator(k, residual=False, bias=False, output_projection=False)(u) for k in kernels]
    torch.testing.assert_close(operator(u), parts[0] + parts[1])


def test_scores_start_at_the_stated_size_in_any_dimension():
    torch.manual_seed(0)
    for dim in (32, 512):
        kernel = YatAttention(dim, 2, score_gain=0.5)
        u = torch.randn(4, 50, dim)
        form = kernel.score_form(u, Sequence(50), torch.randn(4, 50, dim), Sequence(50))
        mean = scores_of(kernel.score, form).mean()
        assert abs(mean - 0.25) < 0.03


def test_rotation_keeps_length_and_sees_differences():
    x, y = torch.randn(2, 1, 1, 5, 6, dtype=torch.float64)
    place = torch.tensor([[0.0, 1.0, 2.0, 5.0, 1e6]], dtype=torch.float64)
    turned = Rotary(100.0).rotate(x, place)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[..., 0, :], x[..., 0, :])
    unshifted, shifted = (
        (Rotary(100.0).rotate(x, place + s) * Rotary(100.0).rotate(y, place + s + 3)).sum(-1) for s in (0.0, 11.0)
    )
    torch.testing.assert_close(unshifted, shifted)
    assert Rotary(100.0).rotate(x.bfloat16(), place).dtype == torch.bfloat16


def test_step_uses_the_given_time():
    kernel = YatAttention(4, 1, rotary=Rotary(10.0), is_causal=True).double()
    u, times = torch.randn(1, 3, 4, dtype=torch.float64), torch.tensor([0.0, 0.7, 2.5], dtype=torch.float64)
    whole = Dense().integrate(Integral(kernel, u, Sequence(times=times)))
    state, rows = kernel.initial_state(1), []
    for t in range(3):
        out, state = kernel.step(u[:, t], state, times[t : t + 1])
        rows.append(out)
    torch.testing.assert_close(torch.stack(rows, 1), whole)


def test_refusals():
    with refused(ValueError, "num_heads must divide embed_dim"):
        YatAttention(8, 3)
    with refused(ValueError, "epsilon must be finite and above 0", "0"):
        YatAttention(8, 2, epsilon=0.0)
    with refused(ValueError, "epsilon", "-1"):
        Yat(3, 2, epsilon=-1.0)
    with refused(ValueError, "kernels.Yat: dim must be at least 1; got 0"):
        Yat(0, 2)
    with refused(ValueError, "base must be above 1", "1"):
        YatAttention(8, 2, rotary=Rotary(1.0))
    with refused(ValueError, "turn pairs of channels", "heads of 3"):
        YatAttention(6, 2, rotary=Rotary(10.0))
    with refused(ValueError, "score_gain", "0"):
        YatAttention(8, 2, score_gain=0)
    with refused(ValueError, "1"):
        IntegralOperator(YatAttention(4, 2, rotary=Rotary(10.0)))(torch.randn(1, 4, 4), Points(torch.rand(4, 2)))


@pytest.mark.parametrize(("normaliser", "got"), [("softmax", "str"), (Softermax, "the class Softermax")])
def test_a_normaliser_of_another_type_is_refused(normaliser: Any, got: str) -> None:
    with refused(TypeError, f"kernels.YatAttention: normaliser must be of type kernels.Normaliser; got {got}"):
        YatAttention(8, 2, normaliser=normaliser)
