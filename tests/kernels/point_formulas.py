"""Reference formulas: features of a single point, and kernels entry by entry."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fredholm.domains import Points
from fredholm.kernels.perceptron.factorised import FeaturePair, PointFeatures


def literal_features(pair: FeaturePair, side: PointFeatures, head: int, x: list[float], u_x: Tensor) -> Tensor:
    """h(x, u_x) of one head: `(w + 1,)`."""
    gamma = list(x)
    if pair.num_frequencies:
        angles = [2 * math.pi * sum(b * c for b, c in zip(row, x, strict=True)) for row in pair.frequencies.tolist()]
        gamma = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    phi = {
        "gelu": lambda p: 0.5 * p * (1 + torch.erf(p / math.sqrt(2))),
        "gelu_tanh": lambda p: 0.5 * p * (1 + torch.tanh(math.sqrt(2 / math.pi) * (p + 0.044715 * p**3))),
        "relu": lambda p: p.clamp_min(0),
    }[side.activation]
    g = head % len(side.bias)
    p = side.bias[g]
    if side.reads_position:
        p = p + side.get_parameter("position_weight")[g] @ torch.tensor(gamma, dtype=u_x.dtype)
    if side.reads_content:
        p = p + side.get_parameter("content_weight")[g] @ u_x
    return torch.cat([phi(p), torch.ones(1, dtype=u_x.dtype)])


def check_entries(kernel: Any, entry: Callable[..., Tensor]) -> None:
    """Asserts that a kernel of 3 heads of 2 channels equals `entry(kernel, head, x, y, u_x, u_y)` at every pair."""
    u, query = torch.randn(2, 4, 6, dtype=torch.float64), torch.randn(2, 3, 6, dtype=torch.float64)
    domain, query_domain = Points(torch.rand(4, 2).double()), Points(torch.rand(2, 3, 2).double())
    kappa = kernel.matrix(u, domain, query, query_domain)
    assert kappa.shape == (2, 3, 4, 6, 6)
    expected = torch.zeros_like(kappa)
    for b, i, j, h in itertools.product(range(2), range(3), range(4), range(3)):
        part = slice(2 * h, 2 * h + 2)
        x, y = query_domain.pos[b, i].tolist(), domain.pos[j].tolist()
        expected[b, i, j, part, part] = entry(kernel, h, x, y, query[b, i, part], u[b, j, part]).detach()
    torch.testing.assert_close(kappa, expected, rtol=1e-12, atol=1e-12)
