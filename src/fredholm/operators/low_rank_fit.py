"""How far a low-rank kernel is from the exact one, beside what limits every kernel of its form.

Legend
    K       the sampled kernel matrix of a head: κ at every pair of m points, (m·d, m·d), singular values σ_1 ≥ σ_2 ≥ …
    r       rank of Φᵀ Ψ; with a constant B the matrix fitted has rank r + d at most

What limits every kernel of rank r on these points is the theorem of Eckart and Young, ‖K - K_r‖_F = (Σ_{i > r} σ_i²)^½.
The bound of ITNet (arXiv 2606.19538), eq. 214, ‖K‖_* / √r, lies above that, and where it exceeds ‖K‖_F it says nothing.
"""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Points
from fredholm.evaluation import AUTO, Integral
from fredholm.kernels import MLP, LowRankMLP
from fredholm.operators.sampled_signals import Signal, draw

_DRAWS = 4
_LARGEST_MATRIX = 2048  # rows of K, so that its singular values take seconds


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRankFit:
    """How good a low-rank kernel is at points that the fit never saw; errors are relative, in the Frobenius norm.

    Attributes:
        rank: r.
        kernel_error: of κ, a head each.
        bound: what no kernel of this form goes below on these points: Eckart-Young at rank r, or r + d with a constant.
        rank_bound: Eckart-Young at rank r, without any constant.
        nuclear_bound: the paper's ‖K‖_* / (√r ‖K‖_F); above 1 it says nothing.
        constant_error: what the best constant matrix alone would leave.
        integral_error: of the integral, over all heads.
    """

    rank: int
    kernel_error: tuple[float, ...]
    bound: tuple[float, ...]
    rank_bound: tuple[float, ...]
    nuclear_bound: tuple[float, ...]
    constant_error: tuple[float, ...]
    integral_error: float

    def __str__(self) -> str:
        lines = [f"rank {self.rank} a head: relative error of the integral {self.integral_error:.2e}"]
        lines += [
            f"  head {h}: error of κ {self.kernel_error[h]:.2e}, none of this form below {self.bound[h]:.2e}, "
            f"of this rank {self.rank_bound[h]:.2e}; the constant alone {self.constant_error[h]:.2e}; "
            f"nuclear bound {self.nuclear_bound[h]:.2e}"
            for h in range(len(self.kernel_error))
        ]
        return "\n".join(lines)


def measured(
    low: LowRankMLP, kernel: MLP, signals: list[Signal], points: int, generator: torch.Generator | None
) -> LowRankFit:
    """The report on points of these signals, `points` at a time at most."""
    carried = low.rank + (0 if low.constant is None else kernel.head_dim)
    size = min(points, max(1, _LARGEST_MATRIX // kernel.head_dim))
    draws = [draw(signals, 1, size, generator) for _ in range(_DRAWS)]
    exact = [kernel.head_matrices(*drawn)[0].double() for drawn in draws]
    fitted = [low.head_matrices(*drawn)[0].double() for drawn in draws]
    mean = torch.cat([k.flatten(1, 2) for k in exact], dim=1).mean(1)[:, None, None]
    sigma = [torch.linalg.svdvals(k.transpose(2, 3).flatten(3).flatten(1, 2)) for k in exact]
    whole = _root_sum([_squared(k) for k in exact])

    def relative(squares: list[Tensor]) -> tuple[float, ...]:
        return tuple((_root_sum(squares) / whole.clamp_min(torch.finfo(whole.dtype).tiny)).tolist())

    return LowRankFit(
        rank=low.rank,
        kernel_error=relative([_squared(a - b) for a, b in zip(exact, fitted, strict=True)]),
        bound=relative([s[:, carried:].square().sum(1) for s in sigma]),
        rank_bound=relative([s[:, low.rank :].square().sum(1) for s in sigma]),
        nuclear_bound=relative([s.sum(1).square() / low.rank for s in sigma]),
        constant_error=relative([_squared(k - mean) for k in exact]),
        integral_error=_integral_error(low, kernel, signals[:_DRAWS], points),
    )


def _integral_error(low: LowRankMLP, kernel: MLP, signals: list[Signal], points: int) -> float:
    """Relative error of the integral over whole signals, at some of the points kept apart."""
    errors, values = [], []
    for signal in signals:
        index = signal.drawn[:points]
        at = Points.derived(signal.domain, signal.domain.pos[:, index], signal.domain.weights[:, index])
        asked = (signal.u, signal.domain, signal.u[:, index], at)
        exact, fitted = (AUTO.integrate(Integral(k, *asked)).double() for k in (kernel, low))
        errors.append((exact - fitted).square().sum())
        values.append(exact.square().sum())
    return (_root_sum(errors) / _root_sum(values).clamp_min(torch.finfo(torch.float64).tiny)).item()


def _squared(matrices: Tensor) -> Tensor:
    return matrices.square().sum((1, 2, 3, 4))


def _root_sum(squares: list[Tensor]) -> Tensor:
    return torch.stack(squares).sum(0).sqrt()
