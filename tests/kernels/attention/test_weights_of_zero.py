"""Attention ignores a point of weight 0: its gradient is 0, and the other weights keep their true gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, kernels
from fredholm.domains import Sequence
from fredholm.evaluation import AUTO, Dense

KERNELS: dict[str, Any] = {
    "softmax": kernels.Attention,
    "linear": kernels.LinearAttention,
    "unnormalised": kernels.UnnormalisedAttention,
    "yat": kernels.YatAttention,
    "infinite": kernels.InfiniteAttention,
    "infinite, rows": lambda *sizes: kernels.InfiniteAttention(*sizes, normaliser="rows"),
    "one hop": lambda *sizes: kernels.InfiniteAttention(*sizes, form="hop"),
    "factorised infinite": kernels.FactorisedInfiniteAttention,
    "linear infinite": kernels.LinearInfiniteAttention,
}


@pytest.mark.parametrize("evaluation", [AUTO, Dense()], ids=["auto", "dense"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_weight_of_zero_is_skipped(name: str, evaluation: Any) -> None:
    torch.manual_seed(0)
    op = IntegralOperator(KERNELS[name](4, 2), residual=False, evaluation=evaluation).double()
    u = torch.randn(1, 4, 4, dtype=torch.float64)
    weights = torch.tensor([0.0, 1.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True)

    def compute(w: Tensor) -> Tensor:
        return op(u, Sequence(4, weights=w)).sin().sum()

    (grad,) = torch.autograd.grad(compute(weights), weights)
    assert grad[0] == 0
    step = 1e-6 * torch.eye(4, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([(compute(weights + step[i]) - compute(weights - step[i])) / 2e-6 for i in (1, 2, 3)])
    torch.testing.assert_close(grad[1:], expected, rtol=1e-6, atol=1e-7)
