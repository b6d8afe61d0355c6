"""γ, the discount of a hop in a series of hops: fixed, or learned and still below 1.

    γ = sigmoid(ρ),   ρ learned, one a head

Source: InfSA (Infinite Self-Attention), section 3.2, which names the sigmoid.
"""

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Self, final

import torch
from torch import Tensor, nn

CLOSEST = 1e-6
"""How close to 0 and 1 a learned γ may come: at 1 a series need not converge."""


@final
class Discount(nn.Module):
    """γ in (0, 1), one a head.

    Fixed, it is no parameter and not in the state dict: it stays the float64 numbers it was made from, whatever dtype
    the module is moved to. Learned, it is the sigmoid of parameters, in at least float32, held 1e-6 away from 0 and 1.

    Args:
        gamma: γ, or where it starts; a number for all heads, or one for each.
        num_heads: heads H.
        learned: whether it is a parameter.

    Attributes:
        raw: ρ, `(H,)`, where γ is learned; else None.

    Raises:
        ValueError: unless every number is in (0, 1) and there is one for all heads or for each.
        TypeError: on a gamma that is no number and no sequence of them.
    """

    value: Tensor | None

    def __init__(self, gamma: float | Sequence[float], num_heads: int, learned: bool = False) -> None:
        super().__init__()
        listed = gamma if isinstance(gamma, Sequence) and not isinstance(gamma, str) else [gamma]
        if not all(isinstance(g, Real) for g in listed):
            raise TypeError(f"kernels.Discount: gamma must be a number, or one for each head; got {gamma!r}")
        numbers = [float(g) for g in listed] * (1 if listed is gamma else num_heads)
        if len(numbers) != num_heads:
            raise ValueError(
                f"kernels.Discount: gamma must be a number, or one for each of {num_heads} heads; got {len(numbers)}"
            )
        if not all(0 < g < 1 for g in numbers):
            raise ValueError(f"kernels.Discount: gamma must be in (0, 1), so that the series converges; got {gamma}")
        self.gamma, self.learned = tuple(numbers), learned
        start = self._numbers()
        self.raw = nn.Parameter(torch.logit(start).to(torch.get_default_dtype())) if learned else None
        self.register_buffer("value", None if learned else start, persistent=False)

    def forward(self) -> Tensor:
        """γ, `(H,)`."""
        if self.raw is None:
            assert self.value is not None
            return self.value
        raw = self.raw.to(torch.promote_types(self.raw.dtype, torch.float32))
        return torch.sigmoid(raw).clamp(CLOSEST, 1 - CLOSEST)

    def _numbers(self, device: torch.device | None = None) -> Tensor:
        return torch.tensor(self.gamma, dtype=torch.float64, device=device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # a fixed γ follows the device only: not a rounded dtype, nor the empty memory of `to_empty`
        super()._apply(fn, recurse)
        if self.value is not None:
            self.value = self._numbers(self.value.device)
        return self

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        same = len(set(self.gamma)) == 1
        shown = f"{self.gamma[0]:.4g}" if same else "(" + ", ".join(f"{g:.4g}" for g in self.gamma) + ")"
        return f"gamma={shown}, learned={self.learned}"
