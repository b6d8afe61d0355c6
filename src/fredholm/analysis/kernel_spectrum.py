"""How many directions of a signal a kernel takes hold of: the singular values of its integral.

Legend
    κ_ij[R_h]    rows of head h of κ at a query x_i and a point x_j
    ω_i          mass of a point under the measure that κ is integrated against

    M_h[(i, a), (j, b)] = √ω_i κ_ij[a, b] √ω_j,   a in R_h

The singular values of M_h are those of u -> ∫ κ u dμ, head h, on L²(μ) of the points: √ω is what makes sums of squares
integrals. Where there are too many points, evenly spaced ones stand for all, with the same mass in total (Nyström), or
of a causal kernel the first ones. The entropy of p_k = σ_k² / Σ σ² gives the effective rank exp(-Σ p_k log p_k) (Roy
and Vetterli, 2007).
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
"""Of M, so that its singular values take about a second."""


@final
@dataclass(frozen=True, kw_only=True)
class KernelSpectrum:
    """Of H heads, on the mean over the batch.

    Args:
        values: σ, `(H, K)`, the largest first.
        num_points: at so many points.
    """

    values: Tensor
    num_points: int

    @property
    def effective_rank(self) -> Tensor:
        """`(H,)`; 0 where κ is 0."""
        squares = self.values.square()
        total = squares.sum(-1, keepdim=True)
        shares = squares / total.clamp(min=1e-300)
        rank = torch.exp(-(shares * shares.clamp(min=1e-300).log()).sum(-1))
        return torch.where(total[:, 0] > 0, rank, 0.0)

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draws the values of each head, largest first, on a logarithmic axis.

        Args:
            axes: of matplotlib; None: of a new figure.

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
    """The singular values of a kernel's integral at a signal; see the head of this file.

    Args:
        operator: an operator or kernel, or an integral (`record_integrals`), which has its own signal and domain.
        u: the signal at which κ is read, `(B, N, d_in)`.
        domain: where it lives; None: `Sequence(N)`.
        num_points: at most so many of its points; None: as many as make 1,024 columns.

    Raises:
        TypeError, ValueError: no operator, or a kernel that is too large to be read.
    """
    integral = integral_of(NAME, operator, u, domain)
    most = max(1, MOST_COLUMNS // integral.kernel.in_dim)
    if num_points is not None:
        check_count(f"analysis.{NAME}", "num_points", num_points)
        most = num_points
    kappa, domain, asked = values_at(NAME, integral, most, most)
    root, root_asked = (torch.atleast_2d(integral.kernel.measure(each)).double().sqrt() for each in (domain, asked))
    rows = by_head(integral.kernel, kappa.double())  # (B, Nq, N, H, d_h, d_in)
    rows = rows * root_asked[:, :, None, None, None, None] * root[:, None, :, None, None, None]
    rows = rows.permute(0, 3, 1, 4, 2, 5)
    matrices = rows.flatten(4, 5).flatten(2, 3)
    return KernelSpectrum(values=torch.linalg.svdvals(matrices).mean(0).cpu(), num_points=domain.num_points)
