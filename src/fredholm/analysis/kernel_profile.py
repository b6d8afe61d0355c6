"""Mean profile of a kernel as a function of displacement or distance.

Legend
    κ_ij     (d_out, d_in) matrix at a query x_i and a point x_j;  R_h, the d_h rows of head h
    s_ij     the reading of κ_ij:  size      √(Σ_{a in R_h, b} κ_ij[a, b]² / d_h), which no rotation of channels changes
                                   diagonal  Σ_{a in R_h} κ_ij[a, a] / d_h, which has a sign
                                   (a, b)    κ_ij[a, b], of one entry, and then of one head
    P(δ)     pairs, in all entries of the batch, whose displacement x_i - x_j (or distance) is δ, or in the bin round it

    mean(δ) = Σ_{P(δ)} s_ij / |P(δ)|,   deviation(δ)² = Σ_{P(δ)} (s_ij - mean(δ))² / |P(δ)|

A convolution has deviation 0, and its mean is its stencil. Attention is no function of displacement: its mean is over
pairs, and the deviation measures the dependence on content. The masses of points are not included: κ, times the pair
weights of the measure, is the density that is integrated. Pairs of points without mass are left out.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

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

NAME = "kernel_profile"
Reading = Literal["size", "diagonal"]
Axis = Literal["displacement", "distance"]


@final
@dataclass(frozen=True, kw_only=True)
class KernelProfile:
    """H heads at K displacements or distances, in ascending order.

    Args:
        by: whether places are displacements or distances.
        places: displacements `(K, s)`, or distances `(K, 1)`.
        mean, deviation: mean and standard deviation of the reading, `(H, K)`.
        count: number of pairs at each place, `(K,)`, at least 1.
    """

    by: Axis
    places: Tensor
    mean: Tensor
    deviation: Tensor
    count: Tensor

    def plot(self, axes: "Axes | None" = None, *, head: int | None = None) -> "Axes":
        """Draws the means with their deviations as bands; displacements in the plane as a map of one head.

        Args:
            axes: axes of matplotlib; None: those of a new figure.
            head: index of the head; None: all, or for a map the first.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: displacements in more than two dimensions.
        """
        from .plotting import new_axes

        axes = new_axes(axes)
        if self.places.shape[1] > 2:
            raise ValueError("analysis.KernelProfile: displacements in space cannot be drawn; take by='distance'")
        if self.places.shape[1] == 2:
            shown = axes.scatter(*self.places.T[[1, 0]].numpy(), c=self.mean[head or 0].numpy(), marker="s")
            axes.figure.colorbar(shown, ax=axes)
            axes.set_xlabel("displacement, second axis")
            axes.set_ylabel("displacement, first axis")
            axes.invert_yaxis()
            return axes
        x = self.places[:, 0].numpy()
        for h in range(len(self.mean)) if head is None else (head,):
            mean, spread = self.mean[h].numpy(), self.deviation[h].numpy()
            (line,) = axes.plot(x, mean, label=f"head {h}", marker="." if len(x) <= 64 else "")
            axes.fill_between(x, mean - spread, mean + spread, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set_xlabel(self.by)
        axes.set_ylabel("κ")
        if len(self.mean) > 1 and head is None:
            axes.legend()
        return axes


@torch.no_grad()
def kernel_profile(
    operator: IntegralOperator | Kernel | Integral[Kernel],
    u: Tensor | None = None,
    domain: Domain | None = None,
    *,
    by: Axis = "displacement",
    reading: Reading | tuple[int, int] = "size",
    bins: int = 32,
    num_queries: int = 64,
) -> KernelProfile:
    """Computes the mean of κ over pairs of points by displacement or distance; see the module's docstring.

    Args:
        operator: an operator or kernel, or an integral (`record_integrals`), which has its own signal and domain.
        u: the signal at which κ is read, `(B, N, d_in)`.
        domain: domain of the signal; None: `Sequence(N)`.
        by: displacement, or its Euclidean length.
        reading: the number that is read of each κ_ij: size, diagonal, or one entry (a, b).
        bins: most distinct displacements along an axis, or distances, that are kept unbinned; beyond it bins of equal
            width along each axis, each placed at the mean of its values.
        num_queries: most queries that are read: evenly spaced ones, or for a causal kernel the first points.

    Raises:
        TypeError, ValueError: an argument that is no operator, an entry or a diagonal that κ lacks, or a kernel that
            is too large to be read.
    """
    for name, value in (("bins", bins), ("num_queries", num_queries)):
        check_count(f"analysis.{NAME}", name, value)
    integral = integral_of(NAME, operator, u, domain)
    found = values_at(NAME, integral, num_queries)
    read = _read(integral.kernel, found.kappa, reading)
    query_pos = found.query_domain.pos
    apart = found.domain.displacement(query_pos).double()
    if by == "distance":
        apart = apart.norm(dim=-1, keepdim=True)
    elif by != "displacement":
        raise ValueError(f"analysis.{NAME}: by is {by!r}; expected 'displacement' or 'distance'")
    batch, heads, n_q, n = read.shape
    exists = (torch.atleast_2d(found.query_domain.weights) > 0)[:, :, None]
    exists = (exists & (torch.atleast_2d(found.domain.weights) > 0)[:, None]).expand(batch, n_q, n)
    apart = apart.expand(batch, n_q, n, -1)[exists].cpu()
    values = read.double().movedim(1, -1)[exists].cpu()
    if not len(apart):
        raise ValueError(f"analysis.{NAME}: no pair of points has mass; pass a domain with some")
    places, at = _binned(apart, bins)
    count = at.bincount(minlength=len(places)).double()
    mean = torch.zeros(len(places), heads, dtype=torch.float64).index_add_(0, at, values) / count[:, None]
    squares = torch.zeros_like(mean).index_add_(0, at, (values - mean[at]).square()) / count[:, None]
    return KernelProfile(by=by, places=places, mean=mean.T, deviation=squares.sqrt().T, count=count.long())


def _read(kernel: Kernel, kappa: Tensor, reading: Reading | tuple[int, int]) -> Tensor:
    """s, `(B, H, Nq, N)`."""
    if reading == "size":
        rows = by_head(kernel, kappa)
        return (rows.square().sum((-1, -2)) / rows.shape[-2]).sqrt().movedim(-1, 1)
    if reading == "diagonal":
        if kappa.shape[-1] != kappa.shape[-2]:
            raise ValueError(
                f"analysis.{NAME}: reading='diagonal' needs as many channels out as in; κ maps {kappa.shape[-1]} to "
                f"{kappa.shape[-2]}; take 'size', or an entry"
            )
        diagonal = kappa.diagonal(dim1=-2, dim2=-1)[..., None]
        return by_head(kernel, diagonal).mean((-1, -2)).movedim(-1, 1)
    if not (isinstance(reading, tuple) and len(reading) == 2):
        raise ValueError(f"analysis.{NAME}: reading is {reading!r}; expected 'size', 'diagonal' or an entry (a, b)")
    a, b = reading
    if not (0 <= a < kappa.shape[-2] and 0 <= b < kappa.shape[-1]):
        raise ValueError(f"analysis.{NAME}: there is no entry {reading}; κ is {tuple(kappa.shape[-2:])}")
    return kappa[..., a, b][:, None]


def _binned(values: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Bins values `(P, s)`: returns the places `(K, s)` and the index of each value's place, `(P,)`.

    Values that differ by less than a millionth of their range count as equal.
    """
    low, high = values.amin(0), values.amax(0)
    width = (high - low).clamp(min=1e-12)
    at, columns = torch.zeros(len(values), dtype=torch.long), list[Tensor]()
    for along, least, extent in zip(values.T, low, width, strict=True):
        found, keys = ((along - least) / extent * 1e6).round().long().unique(return_inverse=True)
        if len(found) > 2 * bins:
            found, keys = torch.arange(bins), ((along - least) / extent * bins).long().clamp(max=bins - 1)
        total = torch.zeros(len(found), dtype=torch.float64).index_add_(0, keys, along)
        columns.append((total / keys.bincount(minlength=len(found)))[keys])
        at = (at * len(found) + keys).unique(return_inverse=True)[1]
    places = torch.empty(int(at.max()) + 1, len(columns), dtype=torch.float64)
    places[at] = torch.stack(columns, 1)  # equal wherever `at` is
    return places, at
