"""What the layers of Yat units share: how their prototypes start, and the dtype that they answer in."""

import math

import torch
from torch import Tensor, nn

from fredholm.kernels.attention.yat import working_dtype


def start_prototypes(weight: Tensor, num_units: int, *, scaled: bool) -> None:
    """Draws prototypes `(n, …)` from N(0, 1 / max(s - 1, 1)), s = n / log(1 + n), or 1 unless `scaled`.

    A response is about (s/d) ‖x‖² ‖w‖² / (‖x‖² + ‖w‖²) times the square of a standard normal number. At ‖x‖² = d,
    coordinates of order 1, its mean is 1 (1/2 without the scale and in layers of at most three units). In a wide layer
    ‖w‖² is of order 1, far below d, so that longer points answer alike, and points of length 1 about s/d.

    The square of such a response has the mean 3, and torch's linear layers start with variance 1/3n: the map that
    follows keeps the size of a signal. Through such pairs of layers gradients grow by 2/√3 each, and two signals tend
    to a correlation of 1/2, never to 1.
    """
    s = num_units / math.log1p(num_units) if scaled else 1.0
    nn.init.normal_(weight, std=max(s - 1, 1.0) ** -0.5)


def answering_dtype(name: str, x: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of operands and output: that of autocast where it is on, else that of `weight`.

    Raises:
        TypeError: for float16, and for a signal of another dtype than the prototypes'; `name` says who asks.
    """
    kind = x.device.type
    autocast = torch.is_autocast_enabled(kind)
    if not autocast and x.dtype != weight.dtype:
        raise TypeError(f"{name}: the signal is {x.dtype} and the prototypes are {weight.dtype}; convert one of them")
    dtype = torch.get_autocast_dtype(kind) if autocast and weight.dtype != torch.float64 else weight.dtype
    working_dtype(name, dtype)
    return dtype


def backward_may_come(*tensors: Tensor | None) -> bool:
    """Whether autograd records what happens to any of these."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
