"""Values of an integral's κ at as many pairs of points as fit in memory.

Legend
    κ_ij    (d_out, d_in) matrix at a query x_i and a point x_j, times the pair weight m_ij where pairs are weighed

A pairwise kernel is read at some of the queries. A causal one is read at the first points, which later points do not
change; points of one time stay together. A filter on a grid is read at the cells of a window in its middle. Any
other kernel is read at all points, or refused if that is too large.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.domains import Domain, Grid, Points
from fredholm.domains.domain import GridBlock
from fredholm.domains.grid import whole_grid
from fredholm.domains.points import subset
from fredholm.evaluation import Integral
from fredholm.evaluation.integral import order_read
from fredholm.kernels import Kernel, MultiHead, Stationary, ValueMixing
from fredholm.kernels.heads import weigh_by_head
from fredholm.operators import IntegralOperator

MOST_ENTRIES = 2**25
"""Most entries of κ that are computed at a time."""


def integral_of(
    name: str, operator: IntegralOperator | Kernel | Integral[Kernel], u: Tensor | None, domain: Domain | None
) -> Integral[Kernel]:
    """Returns the integral to be analysed.

    Args:
        name: function named in the error messages.
        operator: an operator or kernel with its signal, or an integral, which has both.
        u: the signal, `(B, N, d_in)`.
        domain: domain of the signal; None: `Sequence(N)`.
    """
    if isinstance(operator, Integral):
        if u is not None or domain is not None:
            raise ValueError(f"analysis.{name}: an integral has its own signal and domain; leave u and domain out")
        return operator
    if not isinstance(operator, IntegralOperator | Kernel):
        raise TypeError(
            f"analysis.{name}: needs an IntegralOperator, a kernel or an integral; got {type(operator).__name__}"
        )
    if u is None:
        raise ValueError(f"analysis.{name}: needs u, the signal (batch, points, channels) at which κ is read")
    if isinstance(operator, Kernel):
        operator = IntegralOperator(operator, residual=False, bias=False, output_projection=False)
    with torch.no_grad():
        return operator.prepare(u, domain)


def num_heads(kernel: Kernel) -> int:
    """Number of heads, each with its share of the output channels."""
    return kernel.num_heads if isinstance(kernel, MultiHead | ValueMixing) else 1


class Values(NamedTuple):
    """κ at some queries."""

    kappa: Tensor
    """`(B, Nq, N, d_out, d_in)`, without the column of a bias."""
    domain: Domain
    """Its N points."""
    query_domain: Domain
    """Its Nq queries."""


@torch.no_grad()
def values_at(name: str, integral: Integral[Kernel], queries: int, points: int | None = None) -> Values:
    """κ of an integral at some queries, evenly spaced.

    Args:
        name: function named in the error messages.
        integral: the integral.
        queries: most queries, at least 1.
        points: most points; None: all that fit. For a pairwise κ they are evenly spaced with the same total mass, for a
            causal one they are the first ones, and for a filter they are a window in its grid's middle.

    Raises:
        ValueError: κ is not pairwise, and too large to be read whole.
    """
    kernel, domain = integral.kernel, integral.domain
    weighs_pairs = domain.pair_bias is not None or domain.pair_list is not None
    per_pair = len(integral.u) * kernel.out_dim * (kernel.in_dim + kernel.is_affine)
    n, n_q = domain.num_points, integral.num_queries
    wanted_points = n if points is None else min(points, n)
    if wanted_points == n and n_q <= queries and per_pair * n * n_q <= MOST_ENTRIES:
        return _values(integral)
    is_free = kernel.is_pairwise and not kernel.is_causal and not weighs_pairs
    if is_free and integral.own_queries:
        integral = _of_points(integral, _spaced(n, wanted_points)) if wanted_points < n else integral
        room = max(1, MOST_ENTRIES // (per_pair * integral.domain.num_points))
        return _values(_at_queries(integral, _spaced(integral.domain.num_points, min(queries, room))))
    if kernel.is_causal and integral.own_queries and not weighs_pairs:
        room = max(1, int((MOST_ENTRIES / per_pair) ** 0.5))
        if count := _whole_past(domain, min(wanted_points, max(queries, 1), room)):
            return _values(Integral(kernel, integral.u[:, :count], _first(domain, count)))
    grid = whole_grid(domain) if isinstance(kernel, Stationary) and not weighs_pairs else None
    if per_pair * n * n_q <= MOST_ENTRIES and (grid is None or wanted_points == n):
        return _values(integral)
    if grid is not None:
        side = int(min(MOST_ENTRIES / per_pair, float(wanted_points) ** 2) ** (0.5 / len(grid.shape)) + 1e-9)
        return _values(_of_window(integral, grid, side))
    raise ValueError(
        f"analysis.{name}: κ of {type(kernel).__name__} is of more than pairs of points, and has "
        f"{per_pair * n * n_q:.2g} entries here; pass a signal at fewer points"
    )


def _spaced(size: int, count: int) -> Tensor:
    """`count` indices below `size`, evenly spaced, each in the middle of its share."""
    count = min(count, size)
    return ((torch.arange(count, dtype=torch.float64) + 0.5) * size / count).long()


def _values(integral: Integral[Kernel]) -> Values:
    kernel, domain = integral.kernel, integral.domain.with_dense_pairs()
    kappa = kernel.matrix(integral.u, domain, *integral.arguments[2:])[..., : kernel.in_dim]
    if domain.pair_weights is not None and not kernel.holds_pair_weights:
        kappa = weigh_by_head(kappa, domain.pair_weights)
    return Values(kappa, integral.domain, integral.query_domain)


def _whole_past(domain: Domain, count: int) -> int:
    """The largest number of first points, at most `count`, that splits no group of equal times; 0 if there is none."""
    if domain.times is None or count >= domain.num_points:
        return count
    times = torch.atleast_2d(domain.times)
    with_mass = torch.where(torch.atleast_2d(domain.weights) > 0, times, torch.inf)
    next_times = with_mass.flip(-1).cummin(-1).values.flip(-1)[:, 1:]
    is_whole = (times[:, :-1] < next_times).all(0)[:count]
    return int(is_whole.nonzero().amax()) + 1 if bool(is_whole.any()) else 0


def _first(domain: Domain, count: int) -> Domain:
    """The first points with their own mass, as a causal kernel sees them among all."""
    part = slice(count)
    times = None if domain.times is None else domain.times[..., part]
    features = None if domain.features is None else domain.features[:, part]
    first = Points.derived(
        domain,
        domain.pos[..., part, :],
        domain.weights[..., part],
        times,
        counts_per_mass=domain.counts_per_mass,
        features=features,
    )
    first.mask = None if domain.mask is None else domain.mask[..., part]
    first.has_index_order = domain.has_index_order
    if domain.is_uniform:
        first.uniform_parts = ((count, 1.0),)
    grid = whole_grid(domain)
    if grid is not None and len(grid.shape) == 1:
        first.grid_blocks = (grid._replace(shape=(count,)),)
    return first


def _of_points(integral: Integral[Kernel], index: Tensor) -> Integral[Kernel]:
    """The integral of a pairwise κ over a subset of points, evaluated at them; they get the total mass of all."""
    kernel, u, domain = integral.kernel, integral.u, integral.domain
    index = index.to(u.device)
    weights = domain.weights[..., index]
    weights = weights * (domain.weights.sum(-1, keepdim=True) / weights.sum(-1, keepdim=True).clamp(min=1e-30))
    times = order_read(kernel, domain, domain)[0]
    if times is not None and len(times) == 1:
        times = times[0]
    rows = index if weights.ndim == 1 else index.expand(len(weights), -1)
    return Integral(kernel, u[:, index], subset(domain, rows, weights, times))


def _of_window(integral: Integral[Kernel], grid: GridBlock, side: int) -> Integral[Kernel]:
    """The integral on a window in the middle of its grid, with at most `side` cells (at least one) along each axis."""
    kernel, domain = integral.kernel, integral.domain
    shape = tuple(max(1, min(side, size)) for size in grid.shape)
    first = [(size - own) // 2 for size, own in zip(grid.shape, shape, strict=True)]
    cells = torch.arange(domain.num_points, device=integral.u.device).view(grid.shape)
    for axis, (start, own) in enumerate(zip(first, shape, strict=True)):
        cells = cells.narrow(axis, start, own)
    index = cells.flatten()
    window = Grid(
        *shape,
        spacing=grid.spacing,
        origin=tuple(at + step * start for at, step, start in zip(grid.origin, grid.spacing, first, strict=True)),
        weights=None if domain.is_uniform else domain.weights[..., index],
        mask=None if domain.mask is None else domain.mask[..., index],
    ).to(index.device)
    if not domain.is_uniform:
        window.given_counts_per_mass = domain.counts_per_mass  # so that a cell counts as it does among all
    return Integral(kernel, integral.u[:, index], window, None, kernel.output_domain(window))


def _at_queries(integral: Integral[Kernel], index: Tensor) -> Integral[Kernel]:
    """The integral evaluated at some of its points."""
    kernel, u, domain = integral.kernel, integral.u, integral.domain
    index = index.to(u.device)
    weights = domain.weights[..., index]
    times = order_read(kernel, domain, domain)[0]
    rows = index if weights.ndim == 1 else index.expand(len(weights), -1)
    if times is not None:
        domain = domain.as_met_by(slice(None), times)  # keeps each point's place in the order of all points
    return Integral(kernel, u, domain, u[:, index], subset(domain, rows, weights, times))


def by_head(kernel: Kernel, kappa: Tensor) -> Tensor:
    """κ `(..., d_out, d_in)` as the rows of each head `(..., H, d_out / H, d_in)`."""
    return kappa.unflatten(-2, (num_heads(kernel), -1))
