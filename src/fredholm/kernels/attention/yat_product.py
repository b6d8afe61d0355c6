"""The Yat product: alignment squared over distance squared.

Legend
    x, w     a point and a prototype, d channels
    b        a constant of the prototype; 0 unless given
    ε        softening, > 0: what keeps the response finite where x = w

    yat(x, w) = (x·w + b)² / (‖x - w‖² + ε)

For b = 0 it is a positive definite kernel, symmetric, unchanged by the sign of both arguments, and at most
‖w‖⁴/ε + ‖w‖², at x = (1 + ε/‖w‖²) w.

Source: the Yat product (`yat_nmn`), eq. 1 and section 2.2. Deviation: the paper names ‖w‖⁴/ε, at x = w, as the maximum.


ε, the softening of a Yat kernel: fixed, or learned and still positive.

The scale of a layer of Yat units, by their number.

    s = (n / log(1 + n))^α,   α learned, 1 at the start

Source: the Yat product (`yat_nmn`), section 2.3. Deviation: none.
"""

import math
from collections.abc import Callable
from typing import Self, final

import torch
from torch import Tensor, nn


def yat(x: Tensor, w: Tensor, b: Tensor | None = None, epsilon: float | Tensor = 1e-3) -> Tensor:
    """(x·w + b)² / (‖x - w‖² + ε) for every point and every prototype.

    The distance is ‖x‖² + ‖w‖² - 2 x·w, not below 0. Its rounding error is that of ‖x‖² + ‖w‖², so that an ε far below
    ‖x‖² 10⁻⁷ in float32 says little. Everything is computed in at least float32, under autocast too. NaN gives NaN;
    an infinite x or w gives NaN.

    Args:
        x: points, `(..., d)`.
        w: prototypes, `(n, d)`.
        b: a constant a prototype, `(n,)`, in the same units as x·w.
        epsilon: ε > 0, a number or a 0-dim tensor (which is not checked).

    Returns:
        `(..., n)` in the dtype that x and w promote to.

    Raises:
        ValueError: on shapes that do not fit and numbers ε that are not positive and finite.
        TypeError: for float16, whose range ends below such squares, and for what is not a real floating dtype.
    """
    _check_shapes(x, w, b)
    if not isinstance(epsilon, Tensor):
        check_softening("kernels.yat", epsilon)
    dtype = torch.promote_types(x.dtype, w.dtype)
    working = working_dtype("kernels.yat", dtype)
    with torch.autocast(x.device.type, enabled=False):
        x, w = x.to(working), w.to(working)
        squares = x.square().sum(-1, keepdim=True), w.square().sum(-1)
        return response(x @ w.mT, *squares, None if b is None else b.to(working), epsilon).to(dtype)


def response(
    dot: Tensor, query_square: Tensor, key_square: Tensor, b: Tensor | None, epsilon: float | Tensor
) -> Tensor:
    """(S + b)² / (max(‖q‖² + ‖k‖² - 2 S, 0) + ε) from S = q·k and the squares, in their dtype; all broadcast."""
    distance = query_square + key_square - 2 * dot
    shifted = dot if b is None else dot + b
    return shifted.square() / (distance.clamp_min(0) + epsilon)


def working_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype that Yat responses of `dtype` are computed in: float32, or float64 for float64.

    Raises:
        TypeError: for float16 and for what is not a real floating dtype; `name` says who asks.
    """
    if dtype == torch.float16:
        raise TypeError(
            f"{name}: got float16, which ends at 65504, below the squares of ordinary inputs; use bfloat16 or float32"
        )
    if not dtype.is_floating_point:
        raise TypeError(f"{name}: expected float32, float64 or bfloat16; got {dtype}")
    return torch.promote_types(dtype, torch.float32)


def check_softening(name: str, epsilon: float) -> None:
    """Raises a ValueError unless ε is positive, finite and not lost in float32; `name` says who asks."""
    if not (math.isfinite(epsilon) and epsilon >= torch.finfo(torch.float32).tiny):
        raise ValueError(f"{name}: epsilon must be finite and above 0 (in float32, from 1.2e-38 on); got {epsilon}")


def _check_shapes(x: Tensor, w: Tensor, b: Tensor | None) -> None:
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[-1]:
        raise ValueError(
            f"kernels.yat: expected points (..., d) and prototypes (n, d); got {tuple(x.shape)} and {tuple(w.shape)}"
        )
    if b is not None and b.shape != w.shape[:1]:
        raise ValueError(f"kernels.yat: expected b of shape ({len(w)},), one a prototype; got {tuple(b.shape)}")


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


@final
class UnitScale(nn.Module):
    """s = (n / log(1 + n))^α, > 0, in at least float32.

    Args:
        num_units: n, >= 1.

    Attributes:
        alpha: α, 0-dim.

    Raises:
        ValueError: on a number of units below 1.
    """

    def __init__(self, num_units: int) -> None:
        super().__init__()
        if num_units < 1:
            raise ValueError(f"kernels.UnitScale: num_units must be at least 1; got {num_units}")
        self.num_units = num_units
        self.alpha = nn.Parameter(torch.ones(()))

    def forward(self) -> Tensor:
        """s, 0-dim."""
        base = self.num_units / math.log1p(self.num_units)
        return torch.exp(math.log(base) * self.alpha.to(torch.promote_types(self.alpha.dtype, torch.float32)))

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"num_units={self.num_units}"
