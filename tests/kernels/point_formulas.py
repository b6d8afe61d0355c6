"""The features of one point, written out."""

import math

import torch
from torch import Tensor

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
