"""Kernels of a few features of the displacement, on any points, a strip of queries at a time.

Legend
    x_i, y_j   queries and keys                 φ_k, M_k   features and their matrices, k = 1 ... w
    ω_j, m_ij  mass of a key, and of a pair

    v_i = Σ_j ω_j m_ij κ(x_i, y_j) u_j = Σ_k M_k S_ik,    S_ik = Σ_j m_ij φ_k(x_i - y_j) ω_j u_j
"""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain, whole_grid
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.recomputed import recomputed
from fredholm.evaluation.strips import Reach, Strip, reach_of, strips
from fredholm.evaluation.transforms import at_least_float32
from fredholm.kernels import FeatureFilter


@final
@dataclasses.dataclass(frozen=True)
class FeatureTiled(Route[FeatureFilter]):
    """For `FeatureFilter` kernels on any points: matrices after the integral, features computed anew backward.

    A pair costs its features, once for all batch entries that share their positions, and 2w d_in flops an entry:
    d_out times fewer than κ u needs. Memory is O(N d) and that of one strip, in which some queries meet the keys that
    they can see: keys after them all, for a causal kernel, and keys beyond the horizon are passed over. Sums are in
    float32 at least. Under the compiler, which knows no positions, no key is passed over.

    Args:
        strip_elements: entries of φ in a strip, about; None: 2^20 on a CPU, 2^25 elsewhere. What computes them needs
            several times as much.
    """

    marker = FeatureFilter
    weighs_pairs = True
    strip_elements: int | None = None

    def refusals(self, integral: Integral[FeatureFilter]) -> list[str]:
        """Refuses pairs that weigh differently from head to head, because these kernels have no heads."""
        domain = integral.domain
        if domain.pair_bias is not None and domain.pair_bias.shape[1] > 1:
            return ["pairs weigh differently from head to head, and this kernel has no heads"]
        return []

    def compute(self, integral: Integral[FeatureFilter]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain, asked = integral.kernel, integral.u, integral.domain, integral.query_domain
        elements = self.strip_elements or (1 << 20 if u.device.type == "cpu" else 1 << 25)
        with torch.autocast(u.device.type, enabled=False):
            values = at_least_float32(u)
            values = values * kernel.measure(domain).to(values.dtype)[..., None]
            weight = kernel.feature_weight().to(values.dtype)
            reach = reach_of(kernel, domain, asked)
            sums = FeatureSums(kernel, domain, asked, reach)
            values = sums.by_position(values)
            per_pair, per_query = len(values) * len(weight), len(weight) * values[:, :1].numel()
            rows = [
                sums.integral(strip, values, weight)
                for strip in strips(asked.num_points, domain.num_points, reach, per_pair, per_query, elements)
            ]
            out = sums.by_query(torch.cat(rows, dim=1))
        return out.to(u.dtype)


@final
class FeatureSums:
    """One integral: its points in the order of their reach, and how a strip of it is computed.

    Batch entries that share all positions are computed together: P distinct sets of positions with E entries each.
    """

    def __init__(self, kernel: FeatureFilter, domain: Domain, asked: Domain, reach: Reach | None) -> None:
        self.kernel, self.domain, self.keys = kernel, domain, whole_grid(domain)
        self.key_order, self.query_order = (None, None) if reach is None else (reach.key_order, reach.query_order)
        self.query_pos, self.key_pos = _ordered(asked.pos, self.query_order), _ordered(domain.pos, self.key_order)
        self.pairs = domain.pair_weights
        if self.pairs is not None:
            self.pairs = _ordered(_ordered(self.pairs[:, 0], self.query_order).mT, self.key_order).mT
        distinct = [side.ndim == 3 and len(side) > 1 for side in (self.query_pos, self.key_pos)]
        self.is_shared = not any(distinct) and (self.pairs is None or len(self.pairs) == 1)

    def by_position(self, values: Tensor) -> Tensor:
        """`(B, N, d)` as `(P, N, E, d)`, in the keys' order."""
        values = _ordered(values, self.key_order)
        return values.transpose(0, 1)[None] if self.is_shared else values[:, :, None]

    def by_query(self, out: Tensor) -> Tensor:
        """`(P, Nq, E, d)` as `(B, Nq, d)`, in the order that was asked for."""
        out = out.transpose(1, 2).flatten(0, 1)
        return out if self.query_order is None else _ordered(out, self.query_order.argsort(dim=-1))

    def integral(self, strip: Strip, values: Tensor, weight: Tensor) -> Tensor:
        """v at the queries of a strip, `(P, nq, E, d_out)`; only its inputs are kept for the backward pass."""
        return recomputed(self.kernel, self._integral, strip, values, weight)

    def _integral(self, strip: Strip, values: Tensor, weight: Tensor) -> Tensor:
        features = self._features(strip).to(values.dtype)  # (P, nq, nk, w)
        by_query = features.transpose(-1, -2).flatten(1, 2)  # (P, nq·w, nk)
        sums = by_query @ values[:, strip.keys].flatten(2)  # S: (P, nq·w, E·d_in)
        groups = self.kernel.groups
        blocks = sums.unflatten(2, (values.shape[2], groups, -1)).unflatten(1, (-1, len(weight)))
        matrices = weight.unflatten(1, (groups, -1))
        return torch.einsum("pqkegi,kgoi->pqego", blocks, matrices).flatten(3)

    def _features(self, strip: Strip) -> Tensor:
        """m φ, `(P, nq, nk, w)`."""
        queries, keys = self.query_pos[..., strip.queries, :], self.key_pos[..., strip.keys, :]
        displacement = self.domain.wrap(queries[..., :, None, :] - keys[..., None, :, :])
        features = self.kernel.features_on(displacement, self.keys)
        features = features if features.ndim == 4 else features[None]
        if self.pairs is None:
            return features
        return features * self.pairs[:, strip.queries, strip.keys, None].to(features.dtype)


def _ordered(values: Tensor, order: Tensor | None) -> Tensor:
    """Points, `(N, d)` or `(B', N, d)`, in another order, `(B' or 1, N)`; one batch size 1 if both are shared."""
    if order is None:
        return values
    values = values if values.ndim == 3 else values[None]
    batch = max(len(values), len(order))
    index = order.expand(batch, -1)[..., None].expand(-1, -1, values.shape[-1])
    return values.expand(batch, -1, -1).gather(1, index)
