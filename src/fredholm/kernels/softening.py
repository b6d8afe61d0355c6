"""ε, the softening of a Yat kernel: fixed, or learned and still positive."""

import math
from collections.abc import Callable
from typing import Self, final

import torch
from torch import Tensor, nn

from fredholm.kernels.yat_product import check_softening


@final
class Softening(nn.Module):
    """ε > 0 in the denominator of a Yat kernel, in the units of a squared distance.

    Fixed, it is no parameter and not in the state dict: it stays the float64 number it was made from, whatever dtype
    the module is moved to. Learned, it is softplus(ρ) of one parameter ρ, in at least float32.

    Args:
        epsilon: ε, or where it starts; from 1.2e-38, the least normal float32, on.
        learned: whether it is a parameter.

    Attributes:
        raw: ρ, 0-dim, where ε is learned; else None.

    Raises:
        ValueError: unless `epsilon` is finite and above 0.
    """

    value: Tensor | None

    def __init__(self, epsilon: float, learned: bool = False) -> None:
        super().__init__()
        check_softening("kernels.Softening", epsilon)
        self.epsilon, self.learned = float(epsilon), learned
        # log(exp(ε) - 1), which neither overflows nor cancels
        start = epsilon + math.log(-math.expm1(-epsilon))
        self.raw = nn.Parameter(torch.tensor(start)) if learned else None
        self.register_buffer("value", None if learned else self._number(), persistent=False)

    def forward(self) -> Tensor:
        """ε, 0-dim."""
        if self.raw is None:
            assert self.value is not None
            return self.value
        raw = self.raw.to(torch.promote_types(self.raw.dtype, torch.float32))
        return nn.functional.softplus(raw).clamp_min(torch.finfo(torch.float32).tiny)

    def _number(self, device: torch.device | None = None) -> Tensor:
        return torch.tensor(self.epsilon, dtype=torch.float64, device=device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # a fixed ε follows the device only: not a rounded dtype, nor the empty memory of `to_empty`
        super()._apply(fn, recurse)
        if self.value is not None:
            self.value = self._number(self.value.device)
        return self

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"epsilon={self.epsilon:.4g}, learned={self.learned}"
