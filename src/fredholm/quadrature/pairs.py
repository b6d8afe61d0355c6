"""Pairs of a query and a point: their contributions, and the loss of a proposal. Legend: `quadrature.py`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fredholm.domains import Points, preceding_counts
from fredholm.evaluation import Evaluation, Integral, share
from fredholm.evaluation.integral import ordered_queries


class Learning(NamedTuple):
    """Settings of a proposal's loss: its weight λ relative to the task's loss, and the number of queries it samples."""

    loss_weight: float
    num_targets: int


def take(values: Tensor, index: Tensor) -> Tensor:
    """Gathers entries of `(1 or B, N, ...)` along N by an index `(B, *shape)`: `(B, *shape, ...)`."""
    if values.shape[0] == 1:
        return values[0][index]
    first = torch.arange(index.shape[0], device=index.device) * values.shape[1]
    return values.flatten(0, 1)[index + first.view(-1, *[1] * (index.ndim - 1))]


def batched(values: Tensor) -> Tensor:
    """Positions with a batch axis, `(1 or B, N, s)`."""
    return values if values.ndim == 3 else values[None]


class Past(NamedTuple):
    """The points that a causal kernel sees."""

    order: Tensor | None
    """Indices of the points from the first to the last, `(1 or B, N)`; None: already in order."""
    counts: Tensor
    """Number of leading points that each query sees, `(1 or B, Nq)`."""

    def places(self, num_points: int) -> Tensor:
        """Rank of each point in the order, `(1 or B, N)`."""
        if self.order is None:
            return torch.arange(num_points, device=self.counts.device)[None]
        return self.order.argsort(-1)


def past_of(integral: Integral[Any]) -> Past | None:
    """The past of each query; None: κ sees all points, or vanishes by itself on half of a torus."""
    kernel, domain, query_domain = integral.kernel, integral.domain, integral.query_domain
    if not kernel.is_causal:
        return None
    if not kernel.reads_past_by_position:
        return Past(None, preceding_counts(query_domain, domain))
    if domain.is_periodic:
        return None
    pos, queries = (batched(each.pos.detach())[..., 0] for each in (domain, query_domain))
    exists = torch.atleast_2d(domain.weights) > 0
    batch = max(pos.shape[0], exists.shape[0])
    # points that do not exist may have any position
    ordered, order = torch.where(exists, pos, torch.inf).expand(batch, -1).sort(dim=-1, stable=True)
    batch = max(batch, queries.shape[0])
    # points at the same position, to rounding, see each other
    queries = queries + 4 * torch.finfo(queries.dtype).eps * (1 + queries.abs())
    counts = torch.searchsorted(
        ordered.expand(batch, -1).contiguous(), queries.to(ordered.dtype).expand(batch, -1).contiguous(), right=True
    )
    return Past(order, counts)


def pair_norms(
    evaluation: Evaluation, integral: Integral[Any], index: Tensor, rows: Tensor, head: int = 0, num_heads: int = 1
) -> Tensor:
    """‖κ_ij u_j‖ of one head at the queries `rows` `(q,)` and the points `index` `(B, q, M)` of each: `(B, q, M)`.

    Every pair is computed as an integral over one point of mass 1. 0 where a causal kernel is 0 or no query exists.
    """
    domain, (query_domain, times) = integral.domain, ordered_queries(integral)
    batch, _, samples = index.shape

    def at_points(values: Tensor) -> Tensor:
        return take(values, index).flatten(0, 2)[:, None]

    def at_queries(values: Tensor) -> Tensor:
        chosen = values[:, rows].expand(batch, *[-1] * (values.ndim - 1))
        return chosen[:, :, None].expand(-1, -1, samples, *[-1] * (values.ndim - 2)).flatten(0, 2)[:, None]

    ones = domain.weights.new_ones(index.numel(), 1)
    point = Points.derived(domain, at_points(batched(domain.pos)), ones, None if times is None else at_points(times))
    query_times = None if times is None or query_domain.times is None else at_queries(query_domain.times)
    past = None if query_domain.given_past_mass is None else at_queries(query_domain.given_past_mass)
    queries = Points.derived(query_domain, at_queries(batched(query_domain.pos)), ones, query_times, past)
    query = at_queries(share(integral.query, head, num_heads)) if integral.has_query_signal else None
    kernel = integral.kernel if num_heads == 1 else integral.head(head).kernel
    pair = Integral(kernel, at_points(share(integral.u, head, num_heads)), point, query, queries)
    value = evaluation.integrate(pair)
    norms = torch.linalg.vector_norm(value.float(), dim=-1).view(index.shape)
    mask = integral.query_domain.mask
    return norms if mask is None else norms * torch.atleast_2d(mask)[:, rows, None]


def cross_entropy(target: Tensor, log_probability: Tensor) -> Tensor:
    """-Σ_m p*_m log p_m with p* ∝ target, `(..., M)` both, over the nodes m that were drawn from p; a mean over rows.

    Deviation from ITNet, eq. 14, which weighs the nodes by the target alone. They come from p, so that the sum would
    then be an estimate of the integral of p · target · log p, whose gradient drives p to a point mass at the largest
    target. Dividing by p makes it the cross-entropy with p*. Rows without any target count 0.
    """
    importance = target / log_probability.detach().exp()
    total = importance.sum(-1, keepdim=True)
    importance = importance / torch.where(total > 0, total, 1.0)
    return -(importance * log_probability).sum(-1).mean()
