"""Filters that are Fourier series of the displacement, as in Fourier neural operators.

Legend
    x, y     query and key position, s coordinates       k      whole-number wave vector, |k_i| <= K; one of each ±k
    P        period, one per axis                        A_k, B_k   d_out x d_in matrices, block-diagonal in groups

    κ(x, y) = Σ_k [A_k cos(2πk·(x - y) / P) + B_k sin(2πk·(x - y) / P)],    for k = 0 the cosine alone

so that, with the sums over the points taken first,

    ∫ κ u dμ = Σ_k [cos(2πk·x / P) (A_k c_k - B_k s_k) + sin(2πk·x / P) (A_k s_k + B_k c_k)]
    c_k = ∫ cos(2πk·y / P) u(y) dμ(y),    s_k = ∫ sin(2πk·y / P) u(y) dμ(y)

Source: Z. Li et al., "Fourier Neural Operator for Parametric Partial Differential Equations", ICLR 2021, eq. 4. There
the integral is a discrete Fourier transform on a grid; here it is over the measure of any points.
"""

import itertools
import math
from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive
from fredholm.kernels.convolution.basis_filter import BasisFilter
from fredholm.kernels.convolution.stationary import check_channels
from fredholm.kernels.fourier_features import phases


class FourierFilter(BasisFilter):
    """Marker: a `BasisFilter` whose basis is the cosines, then the sines of waves, without the sine of the wave 0.

    Attributes:
        wave_vectors: k, whole numbers, `(M, s)`, 0 first.
        reach: the least and the largest k_i along each axis.
        period: P, one per axis.
    """

    wave_vectors: Tensor
    reach: tuple[tuple[int, int], ...]
    period: tuple[float, ...]
    horizon = None
    is_causal = False
    counts_points = False

    @final
    def basis(self, displacement: Tensor) -> Tensor:
        """See `BasisFilter.basis`."""
        cosines, sines = self.waves(displacement)
        return torch.cat([cosines, sines[..., 1:]], dim=-1)

    @final
    def waves(self, pos: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """cos and sin of 2πk·x / P at positions `(..., s)`, `(..., M)` each, in at least float32.

        Args:
            pos: the positions.
            dtype: of the results; None: that of the positions. Whole periods are subtracted first, so that positions
                far from 0 lose no precision.
        """
        phase = phases(pos / pos.new_tensor(self.period), self.wave_vectors) / (2 * math.pi)
        angle = 2 * math.pi * (phase - phase.round()).to(dtype or phase.dtype)
        return angle.cos(), angle.sin()

    @final
    def wave_weight(self) -> tuple[Tensor, Tensor]:
        """A and B, `(M, d_out, d_in / groups)` each; B is 0 for the wave 0."""
        weight = self.basis_weight()
        cosines, sines = weight.split([self.wave_vectors.shape[0], weight.shape[0] - self.wave_vectors.shape[0]])
        return cosines, torch.cat([torch.zeros_like(weight[:1]), sines])


@final
class SpectralConvolution(FourierFilter):
    """The layer of a Fourier neural operator (FNO, eq. 4), on any points: κ is a Fourier series of x - y.

    On a torus, or with P = 1 on the unit box, it is FNO's periodic filter. With P = 2 it does not wrap round the box,
    as in FNO with padding. FNO keeps one more wave at one end of each axis without its conjugate; here waves come in
    pairs, so that results are real and mirrored functions are treated alike.

    Args:
        in_dim, out_dim: channels.
        pos_dim: coordinates s.
        num_waves_per_axis: K >= 0, the highest frequency along an axis, in waves per period.
        period: P > 0, in the unit of positions; one for all axes, or one per axis.
        groups: channel groups that do not mix; divides both.

    Attributes:
        weight: A_0, A_k and B_k, `(2M - 1, out_dim, in_dim / groups)`, M the number of waves. They start as normals of
            variance 1 / (in_dim / groups · (2M - 1)), so that a signal keeps about its size.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        pos_dim: int,
        *,
        num_waves_per_axis: int = 6,
        period: float | tuple[float, ...] = 1.0,
        groups: int = 1,
    ) -> None:
        super().__init__()
        name = "kernels.SpectralConvolution"
        check_channels(name, in_dim, out_dim, groups)
        check_count(name, "pos_dim", pos_dim)
        check_count(name, "num_waves_per_axis", num_waves_per_axis, least=0)
        periods = period if isinstance(period, tuple) else (period,) * pos_dim
        if len(periods) != pos_dim:
            raise ValueError(f"{name}: period is one number, or one for each of {pos_dim} coordinates; got {period}")
        for each in periods:
            check_positive(name, "period", each)
        self.in_dim, self.out_dim, self.pos_dim, self.groups = in_dim, out_dim, pos_dim, groups
        self.num_waves_per_axis, self.period = num_waves_per_axis, periods
        self.register_buffer("wave_vectors", half_lattice(num_waves_per_axis, pos_dim))
        # keeps the one of k and -k whose first entry is not below 0
        self.reach = ((0, num_waves_per_axis), *[(-num_waves_per_axis, num_waves_per_axis)] * (pos_dim - 1))
        self.num_basis = 2 * self.wave_vectors.shape[0] - 1
        self.weight = nn.Parameter(torch.empty(self.num_basis, out_dim, in_dim // groups))
        nn.init.normal_(self.weight, std=(in_dim // groups * self.num_basis) ** -0.5)

    def basis_weight(self) -> Tensor:
        """See `BasisFilter.basis_weight`."""
        return self.weight

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return (
            f"{self.in_dim}, {self.out_dim}, pos_dim={self.pos_dim}, num_waves_per_axis={self.num_waves_per_axis}, "
            f"period={self.period}, groups={self.groups}"
        )


def half_lattice(largest: int, pos_dim: int) -> Tensor:
    """Integer wave vectors of at most `largest` along each axis, one of each pair ±k, 0 first: `(M, s)`."""
    every = itertools.product(range(-largest, largest + 1), repeat=pos_dim)
    # keeps the one of a pair whose first nonzero entry is positive
    half = [k for k in every if next((n for n in k if n), 1) > 0]
    return torch.tensor(
        sorted(half, key=lambda k: (sum(n * n for n in k), k)), dtype=torch.get_default_dtype()
    ).reshape(-1, pos_dim)
