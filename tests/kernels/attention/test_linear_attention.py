"""The feature map of linear attention."""

from typing import Any

import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Sequence
from fredholm.kernels import FactorisedInfiniteAttention, LinearAttention, Rotary
from fredholm.kernels.attention.linear_attention import elu_plus_one
from tests.refusals import refused


def test_rotary_positions_turn_queries_and_keys_before_the_feature_map():
    kernel = LinearAttention(8, 2, rotary=Rotary(10.0)).double()
    times = torch.tensor([0.0, 0.5, 1.5, 4.0], dtype=torch.float64)
    u, projections = torch.randn(1, 4, 8, dtype=torch.float64), kernel.projections
    theta = 10.0 ** (-torch.arange(2, dtype=torch.float64) / 2)

    def features(projected):  # (1, H, N, 4), of which channels m and m + 2 are the parts of a complex number
        turn = torch.polar(torch.ones(4, 2, dtype=torch.float64), times[:, None] * theta)
        turned = torch.complex(*projected.chunk(2, dim=-1)) * turn
        return torch.nn.functional.elu(torch.cat([turned.real, turned.imag], dim=-1)) + 1

    domain = Sequence(times=times)
    scores = features(projections.queries(u)) @ features(projections.keys(u)).mT * domain.weights
    expected = (scores / scores.sum(-1, keepdim=True)) @ projections.values(u)
    op = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
    torch.testing.assert_close(op(u, domain), expected.transpose(1, 2).flatten(2), rtol=1e-9, atol=1e-12)


def test_elu_plus_one_keeps_its_precision_and_its_slope():
    x = torch.tensor([-30.0, -1.0, 0.0, 2.0], requires_grad=True)
    found = elu_plus_one(x)
    torch.testing.assert_close(found[:2], x[:2].exp(), rtol=1e-6, atol=0)
    torch.testing.assert_close(found[2:], torch.tensor([1.0, 3.0]))
    (slope,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(slope, torch.tensor([1.0, 1.0, 1.0, 1.0]).where(x >= 0, x.exp()), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", [LinearAttention, FactorisedInfiniteAttention])
def test_a_feature_map_that_is_no_function_is_refused(kind: Any) -> None:
    with refused(TypeError, f"kernels.{kind.__name__}: feature_map must be a function of a tensor", "got 'relu'"):
        kind(8, 2, feature_map="relu")
