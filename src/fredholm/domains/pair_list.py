"""A measure that differs from query to query, as a list of pairs: the points of each query, and their weights."""

from typing import NamedTuple, Self, final

import torch
from torch import Tensor


@final
class PairGroup(NamedTuple):
    """A group of queries, with K points each.

    Queries and points are numbered across the batch: point j of entry b is b N + j, query i is b Nq + i.

    Attributes:
        queries: `(n,)` int64, no query twice in all groups of a list.
        points: `(n, K)` int64, of the query's own entry; the same point twice counts twice.
        weights: m_ij, `(n, K)` >= 0: the point weighs ω_j m_ij; 0 where the row is padding.
        features: further features of each pair that the kernel reads, `(n, K, c)`; None: none.
    """

    queries: Tensor
    points: Tensor
    weights: Tensor
    features: Tensor | None = None


@final
class PairList(NamedTuple):
    """All pairs of a measure, in groups of queries with equal numbers of points; a query in no group has no points.

    Attributes:
        groups: any number of groups.
        batch: number of entries with pairs of their own; 1: all entries have the same.
        num_queries: Nq.
        num_points: N.
    """

    groups: tuple[PairGroup, ...]
    batch: int
    num_queries: int
    num_points: int

    @classmethod
    def of_index(cls, index: Tensor, weights: Tensor, num_points: int) -> Self:
        """A list with K points for every query: indices within their entry and weights, `(1 or B, Nq, K)` each."""
        batch, num_queries, _ = index.shape
        first = torch.arange(batch, device=index.device)[:, None, None] * num_points
        queries = torch.arange(batch * num_queries, device=index.device)
        group = PairGroup(queries, (index + first).flatten(0, 1), weights.flatten(0, 1))
        return cls((group,), batch, num_queries, num_points)

    @property
    def num_pairs(self) -> int:
        """Number of pairs of all entries that have pairs of their own, padding included."""
        return sum(group.points.numel() for group in self.groups)

    @property
    def has_features(self) -> bool:
        """Whether pairs have features of their own."""
        return any(group.features is not None for group in self.groups)

    def to(self, device: torch.device | str) -> Self:
        """The same list on another device."""
        moved = (PairGroup(*(None if t is None else t.to(device) for t in group)) for group in self.groups)  # pyright: ignore[reportArgumentType]
        return self._replace(groups=tuple(moved))

    def repeated(self, batch: int) -> Self:
        """A list that all entries share, repeated for each of `batch` entries; unchanged if it already has as many."""
        if self.batch == batch:
            return self
        groups = []
        entry = torch.arange(batch, device=self.groups[0].queries.device if self.groups else None)
        for queries, points, weights, features in self.groups:
            groups.append(
                PairGroup(
                    (queries + entry[:, None] * self.num_queries).flatten(),
                    (points + entry[:, None, None] * self.num_points).flatten(0, 1),
                    weights.repeat(batch, 1),
                    None if features is None else features.repeat(batch, 1, 1),
                )
            )
        return self._replace(groups=tuple(groups), batch=batch)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """m at every pair, `(batch, 1, Nq, N)`: for small N."""
        device = self.groups[0].weights.device if self.groups else None
        total = torch.zeros(self.batch * self.num_queries * self.num_points, dtype=dtype, device=device)
        for queries, points, weights, _ in self.groups:
            within = points - queries[:, None] // self.num_queries * self.num_points
            at = queries[:, None] * self.num_points + within
            total = total.index_add(0, at.flatten(), weights.to(dtype).flatten())
        return total.view(self.batch, 1, self.num_queries, self.num_points)
