"""Integrals over listed pairs, where chunks are computed twice: what is drawn in one is drawn again."""

import pytest
import torch

from fredholm import IntegralOperator, kernels
from fredholm.domains import PairList, Points
from fredholm.evaluation import EachQuery


@pytest.mark.parametrize("elements", [1 << 22, 1500, 40])
def test_weight_dropout_is_drawn_once_for_both_passes(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr("fredholm.evaluation.listed.CHUNK_ELEMENTS", elements)
    kernel = kernels.ContinuousConvolution(2, 3, pos_dim=2, width=8, omega_0=3.0, weight_dropout=0.5)
    op = IntegralOperator(kernel, evaluation=EachQuery(), residual=False).double().train()
    points = Points(torch.rand(6, 2, dtype=torch.float64))
    listed = points.list_pairs(PairList.of_index(torch.randint(6, (1, 6, 3)), torch.ones(1, 6, 3), 6))
    u = torch.randn(1, 6, 2, dtype=torch.float64, requires_grad=True)

    def value(signal: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(4)
        return op(signal, listed).square().sum()

    torch.manual_seed(4)
    out = value(u)
    after = torch.get_rng_state()
    (grad,) = torch.autograd.grad(out, u)
    assert torch.equal(torch.get_rng_state(), after)
    along, step = torch.randn_like(u), 1e-6
    with torch.no_grad():
        slope = (value(u + step * along) - value(u - step * along)) / (2 * step)
    torch.testing.assert_close((grad * along).sum(), slope, rtol=1e-6, atol=1e-8)
