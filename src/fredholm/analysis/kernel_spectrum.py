"""Singular values and effective rank of a kernel's integral.

Legend
    κ_ij[R_h]    rows of head h of κ at a query x_i and a point x_j, times the pair weight
    ω_i          mass of a point under the measure that κ is integrated against

    M_h[(i, a), (j, b)] = √ω_i κ_ij[a, b] √ω_j,   a in R_h

The singular values of M_h are those of u -> ∫ κ u dμ, head h, on L²(μ) of the points: √ω turns sums of squares into
integrals. Where there are too many points, evenly spaced ones represent all, with the same mass in total (Nyström); for
a causal kernel the first ones, and for a filter on a grid those of a window in its middle. The entropy of
p_k = σ_k² / Σ σ² gives the effective rank exp(-Σ p_k log p_k) (Roy and Vetterli, 2007).

Channels that no κ_ij connects form blocks of M with singular values of their own. Weights that all channels share, and
depthwise filters, have one block per channel. Separate blocks take less time, so that more points fit.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.domains import Domain
from fredholm.evaluation import Integral
from fredholm.kernels import Kernel
from fredholm.operators import IntegralOperator

from .kernel_values import by_head, integral_of, values_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "kernel_spectrum"
MOST_COLUMNS = 1024
"""Most columns of a block of M, whose singular values then take about a second."""


@final
@dataclass(frozen=True, kw_only=True)
class KernelSpectrum:
    """Singular values of H heads, averaged over the batch.

    Args:
        values: σ, `(H, K)`, in descending order.
        num_points: number of points at which κ was read.
    """

    values: Tensor
    num_points: int

    @property
    def effective_rank(self) -> Tensor:
        """Effective rank of each head, `(H,)`; 0 where κ is 0."""
        squares = self.values.square()
        total = squares.sum(-1, keepdim=True)
        shares = squares / total.clamp(min=1e-300)
        rank = torch.exp(-(shares * shares.clamp(min=1e-300).log()).sum(-1))
        return torch.where(total[:, 0] > 0, rank, 0.0)

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draws the values of each head, largest first, on a logarithmic axis.

        Args:
            axes: axes of matplotlib; None: those of a new figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from .plotting import new_axes

        axes = new_axes(axes)
        for h, own in enumerate(self.values):
            axes.semilogy(range(1, len(own) + 1), own.clamp(min=1e-12).numpy(), label=f"head {h}")
        axes.set_xlabel("number")
        axes.set_ylabel("singular value")
        if len(self.values) > 1:
            axes.legend()
        return axes


@torch.no_grad()
def kernel_spectrum(
    operator: IntegralOperator | Kernel | Integral[Kernel],
    u: Tensor | None = None,
    domain: Domain | None = None,
    *,
    num_points: int | None = None,
) -> KernelSpectrum:
    """Computes the singular values of a kernel's integral at a signal; see the module's docstring.

    Args:
        operator: an operator or kernel, or an integral (`record_integrals`), which has its own signal and domain.
        u: the signal at which κ is read, `(B, N, d_in)`.
        domain: domain of the signal; None: `Sequence(N)`.
        num_points: most points at which κ is read; None: as many as give a block 1,024 columns.

    Raises:
        TypeError, ValueError: an argument that is no operator, or a kernel that is too large to be read.
    """
    integral = integral_of(NAME, operator, u, domain)
    if num_points is not None:
        check_count(f"analysis.{NAME}", "num_points", num_points)
        return _spectrum(*_matrices(integral, num_points))
    most = max(1, MOST_COLUMNS // integral.kernel.in_dim)
    matrices, points = _matrices(integral, most)
    width = _widest(matrices)
    if (room := MOST_COLUMNS // max(1, width)) > most and points < integral.domain.num_points:
        wider, more_points = _matrices(integral, room)
        if _widest(wider) <= width:
            matrices, points = wider, more_points
    if (columns := _widest(matrices) * points) > 2 * MOST_COLUMNS:
        raise ValueError(
            f"analysis.{NAME}: κ of {type(integral.kernel).__name__} makes a matrix of {columns:,} columns here, which "
            f"takes long; pass a signal at fewer points, or num_points={points} to wait for it"
        )
    return _spectrum(matrices, points)


def _matrices(integral: Integral[Kernel], most: int) -> tuple[Tensor, int]:
    """M, `(B, H, d_h, d_in, Nq, N)`, and N, which is at most `most` where κ may be read at a subset of points."""
    kappa, domain, query_domain = values_at(NAME, integral, most, most)
    root, query_root = (
        torch.atleast_2d(integral.kernel.measure(each)).double().sqrt() for each in (domain, query_domain)
    )
    rows = by_head(integral.kernel, kappa.double())  # (B, Nq, N, H, d_h, d_in)
    rows = rows * query_root[:, :, None, None, None, None] * root[:, None, :, None, None, None]
    return rows.permute(0, 3, 4, 5, 1, 2), domain.num_points


def _blocks(leads: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Connected groups of outputs and input channels; `leads`, bool `(d_h, d_in)`, marks the connected pairs."""
    steps = leads.double()
    reach = (steps @ steps.T > 0) | torch.eye(len(leads), dtype=torch.bool, device=leads.device)
    while not torch.equal(further := reach.double() @ reach.double() > 0, reach):
        reach = further
    firsts = reach.int().argmax(-1)  # the first output in the group of each output
    groups = [(firsts == first).nonzero()[:, 0] for first in firsts.unique()]
    return [(rows, leads[rows].any(0).nonzero()[:, 0]) for rows in groups]


def _leads(matrices: Tensor) -> Tensor:
    """Mask of the outputs and channels that κ connects at any pair of points, bool `(H, d_h, d_in)`."""
    return (matrices != 0).flatten(-2).any(-1).any(0)


def _widest(matrices: Tensor) -> int:
    """Channels of the largest block."""
    return max((len(columns) for own in _leads(matrices) for _, columns in _blocks(own)), default=0)


def _spectrum(matrices: Tensor, num_points: int) -> KernelSpectrum:
    """Singular values of M: the values of its blocks, padded by zeros; blocks of one shape are computed together."""
    _, heads, d_h, d_in, n_q, n = matrices.shape
    values = matrices.new_zeros(heads, min(d_h * n_q, d_in * n))
    for own, leads, found in zip(matrices.unbind(1), _leads(matrices), values, strict=True):
        by_shape = dict[tuple[int, int], list[Tensor]]()
        for rows, columns in _blocks(leads):
            block = own[:, rows][:, :, columns].transpose(2, 3).flatten(3, 4).flatten(1, 2)
            by_shape.setdefault((len(rows), len(columns)), []).append(block)
        of_blocks = [torch.linalg.svdvals(torch.stack(blocks, 1)).flatten(1) for blocks in by_shape.values()]
        largest = torch.cat(of_blocks, -1).sort(-1, descending=True).values[:, : values.shape[1]].mean(0)
        found[: len(largest)] = largest
    return KernelSpectrum(values=values.cpu(), num_points=num_points)
