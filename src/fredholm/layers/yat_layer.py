"""Base class of the layers of Yat units: parameters, their initialisation, and the dtype of the output."""

import math
from abc import ABC
from typing import final

import torch
from torch import Tensor, nn

from fredholm._precision import autocast_dtype, product_dtype
from fredholm.kernels.attention.yat import Softening, UnitScale, check_range


class YatLayer(nn.Module, ABC):
    """Parameters of Yat units: prototypes `(n, …)`, a constant for each, ε, and a scale that depends on n.

    Args:
        shape: shape of the prototypes, n first.
        bias, epsilon, learn_epsilon, scale: as in `YatDense`.

    Raises:
        ValueError: on an ε that is not positive and finite.
    """

    def __init__(self, shape: tuple[int, ...], *, bias: bool, epsilon: float, learn_epsilon: bool, scale: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(shape[0])) if bias else None
        self.softening = Softening(epsilon, learn_epsilon)
        self.scale = UnitScale(shape[0]) if scale else None
        self.reset_parameters()

    @final
    def reset_parameters(self) -> None:
        """Draws the prototypes anew and sets b to 0; ε and α stay.

        Prototypes are drawn from N(0, 1 / max(s - 1, 1)), s = n / log(1 + n), or 1 without a scale. A response is about
        (s/d) ‖x‖² ‖w‖² / (‖x‖² + ‖w‖²) times the square of a standard normal number. At ‖x‖² = d, coordinates of order
        1, its mean is 1 (1/2 without the scale and in layers of at most three units). In a wide layer ‖w‖² is of order
        1, far below d, so that longer points give similar responses, and points of length 1 about s/d.

        The square of such a response has the mean 3, and torch's linear layers start with variance 1/3n: the map that
        follows keeps the size of a signal. Through such pairs of layers gradients grow by 2/√3 each, and two signals
        tend to a correlation of 1/2, never to 1.
        """
        units = self.weight.shape[0]
        s = 1.0 if self.scale is None else units / math.log1p(units)
        nn.init.normal_(self.weight, std=max(s - 1, 1.0) ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @final
    def _check_tensor(self, x: object) -> None:
        """Raises TypeError for a signal that is no tensor."""
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{type(self).__name__}: expected a tensor; got {type(x).__name__}; torch.as_tensor makes one"
            )

    @final
    def _answering_dtype(self, x: Tensor) -> torch.dtype:
        """The dtype of operands and output: that of autocast where it is on, else that of the prototypes.

        Raises:
            TypeError: for float16, and for a signal of another dtype than the prototypes'.
        """
        name, own, cast = type(self).__name__, self.weight.dtype, autocast_dtype(x)
        if cast is None and x.dtype != own:
            raise TypeError(f"{name}: the signal is {x.dtype} and the prototypes are {own}; convert one of them")
        dtype = product_dtype(self.weight)
        check_range(name, dtype)
        return dtype


def is_recorded(*tensors: Tensor | None) -> bool:
    """Whether autograd records operations on any of these tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
