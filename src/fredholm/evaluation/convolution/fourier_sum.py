"""Kernels that are Fourier series of the displacement, on any points, by the moments of the signal.

Legend
    c_k, s_k   ∫ cos(2πk·y / P) u dμ and ∫ sin(2πk·y / P) u dμ        A_k, B_k   the series' matrices

    v(x) = Σ_k [cos(2πk·x / P) (A_k c_k - B_k s_k) + sin(2πk·x / P) (A_k s_k + B_k c_k)]

On a grid e^{-2πik·y / P} is a product over the axes, and both sums are taken one axis after the other.
"""

import abc
import dataclasses
import math
from typing import final

import torch
from torch import Tensor

from fredholm._precision import at_least_float32, without_autocast
from fredholm.domains import Domain, GridBlock, whole_grid
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.kernels import FourierFilter


@final
@dataclasses.dataclass(frozen=True)
class FourierSum(Route[FourierFilter]):
    """For `FourierFilter` kernels on any points: one sum per wave over all points, one over the waves at each query.

    O(N M d + M d²) for M waves, without pairs of points. On a grid the sums are taken axis by axis, which costs
    O(N K d) for K waves along the first axis, and less for the others: a discrete Fourier transform of so few waves
    that a fast one gains nothing. Below float32, and under autocast, it computes in float32.
    """

    marker = FourierFilter
    spans_processes = True

    def refusals(self, integral: Integral[FourierFilter]) -> list[str]:
        """Refuses waves that are not periodic on the torus, where displacements wrap round."""
        if integral.domain.is_periodic:
            for period in integral.kernel.period:
                if abs(1 / period - round(1 / period)) > 1e-9:
                    return [f"waves of period {period} are not periodic on a torus of length 1"]
        return []

    def compute(self, integral: Integral[FourierFilter]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        with without_autocast(u):
            values = at_least_float32(u)
            values = values * kernel.measure(domain).to(values.dtype)[..., None]
            at_keys, at_queries = (_waves_at(side, kernel, values.dtype) for side in (domain, integral.query_domain))
            moments = domain.total(at_keys.moments(values)).unflatten(-1, (kernel.groups, -1))  # (B, 2, M, g, d_in / g)
            a, b = (part.to(values.dtype).unflatten(1, (kernel.groups, -1)) for part in kernel.wave_weight())
            by_a, by_b = (torch.einsum("bpmgi,mgoi->pbmgo", moments, part).flatten(3) for part in (a, b))
            sums = torch.stack([by_a[0] - by_b[1], by_a[1] + by_b[0]], dim=1)  # (B, 2, M, d_out)
            return at_queries.series(sums).to(u.dtype)


class _Waves(abc.ABC):
    """The waves of a filter at the points of a domain."""

    @abc.abstractmethod
    def moments(self, values: Tensor) -> Tensor:
        """c and s of values times masses, `(B, N, d)`: `(B, 2, M, d)`."""

    @abc.abstractmethod
    def series(self, sums: Tensor) -> Tensor:
        """Σ_k cos · first + sin · second at the points: `(B, 2, M, d)` to `(B, N, d)`."""


@final
class _AtPoints(_Waves):
    """Waves at any points: all waves at each point."""

    def __init__(self, domain: Domain, kernel: FourierFilter, dtype: torch.dtype) -> None:
        self.waves = torch.cat(kernel.waves(domain.pos, dtype), dim=-1)  # (N, 2M) or (B, N, 2M)

    def moments(self, values: Tensor) -> Tensor:
        return (self.waves.mT @ values).unflatten(1, (2, -1))

    def series(self, sums: Tensor) -> Tensor:
        return self.waves @ sums.flatten(1, 2)


@final
class _OnGrid(_Waves):
    """Waves on a grid: along each axis at its cells, with the index of each wave vector among their products."""

    def __init__(self, grid: GridBlock, kernel: FourierFilter, dtype: torch.dtype) -> None:
        vectors = kernel.wave_vectors
        self.shape = grid.shape
        place = vectors.new_zeros(vectors.shape[0], dtype=torch.int64)
        self.angles: list[Tensor] = []  # one (K_i, n_i) per axis
        for axis, (n, spacing, origin, period) in enumerate(
            zip(grid.shape, grid.spacing, grid.origin, kernel.period, strict=True)
        ):
            reach = kernel.reach[axis]
            waves = torch.arange(reach[0], reach[1] + 1, device=vectors.device, dtype=torch.float64)
            pos = origin + spacing * torch.arange(n, device=vectors.device, dtype=torch.float64)
            turns = waves[:, None] * (pos / period)
            self.angles.append((2 * math.pi * (turns - turns.round())).to(dtype))
            place = place * waves.shape[0] + (vectors[:, axis].to(torch.int64) - reach[0])
        self.place = place
        self.num_products = math.prod([angle.shape[0] for angle in self.angles])

    def moments(self, values: Tensor) -> Tensor:
        first, *others = self.angles
        part = values.unflatten(1, (self.shape[0], -1)).flatten(2)  # (B, n_1, the rest)
        # Σ u e^{-iθ}, the real part before the imaginary one
        part = torch.cat([first.cos(), -first.sin()]) @ part
        part = part.unflatten(1, (2, -1)).movedim(1, 2)  # (B, K, 2, the rest)
        for angle in others:
            part = part.unflatten(-1, (angle.shape[1], -1)).flatten(2, 3)  # (B, K, 2 n, the rest)
            part = (_rotation(-angle) @ part).unflatten(2, (2, -1)).movedim(2, 3).flatten(1, 2)
        real, imaginary = part.index_select(1, self.place).unbind(2)
        return torch.stack([real, -imaginary], dim=1)

    def series(self, sums: Tensor) -> Tensor:
        first, *others = self.angles
        cosines, sines = sums.unbind(1)
        box = sums.new_zeros(sums.shape[0], self.num_products, 2, sums.shape[-1])
        part = box.index_copy(1, self.place, torch.stack([cosines, -sines], dim=2))
        for angle in reversed(others):
            part = part.unflatten(1, (-1, angle.shape[0])).movedim(2, 3).flatten(2, 3)  # (B, K, 2 K_i, the rest)
            part = (_rotation(angle.mT) @ part).unflatten(2, (2, -1)).flatten(3)
        part = torch.cat([first.cos(), -first.sin()]).mT @ part.movedim(1, 2).flatten(1, 2)
        return part.unflatten(-1, (-1, sums.shape[-1])).flatten(1, 2)


def _rotation(angle: Tensor) -> Tensor:
    """e^{i angle} on pairs of real and imaginary parts: `(m, n)` to `(2m, 2n)`."""
    cosine, sine = angle.cos(), angle.sin()
    return torch.cat([torch.cat([cosine, -sine], dim=1), torch.cat([sine, cosine], dim=1)])


def _waves_at(domain: Domain, kernel: FourierFilter, dtype: torch.dtype) -> _Waves:
    grid = whole_grid(domain)
    return _AtPoints(domain, kernel, dtype) if grid is None else _OnGrid(grid, kernel, dtype)
