"""Scores of hops, tile by tile.

Legend
    φ_ij = φ(q_i·k_j)         scores                S_ij = φ_ij P_ij       the hop before its norm
    P_ij = ω_j m_ij           masses of pairs, 0 where hidden
"""

from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.neumann.inputs import ACTIVATIONS
from fredholm.kernels.neumann.neumann import HopActivation, activate_hop, normal_distribution


class Rows(NamedTuple):
    """Some queries of some heads, and the points that any of them may see."""

    heads: slice
    rows: slice
    seen: int  # no query sees a point from here on
    seen_by_all: int  # every query sees the points before this one, as far as causality goes


@final
class HopTiles:
    """The heads of a batch in a row, in the working dtype, cut into tiles.

    Args:
        query, key: `(B, H, Nq, d)`, `(B, H, N, d)`.
        mass, pairs, order: as in `HopInputs`, empty where all ones.
        activation: place in `ACTIVATIONS`.
        elements: pairs in a tile, about; None: 2^17 a thread on a CPU, 2^24 elsewhere.
    """

    ROWS = 256

    def __init__(
        self, query: Tensor, key: Tensor, mass: Tensor, pairs: Tensor, order: Tensor, activation: int,
        elements: int | None,
    ) -> None:  # fmt: skip
        if elements is None:
            elements = torch.get_num_threads() << 17 if query.device.type == "cpu" else 1 << 24
        self.dtype = torch.promote_types(query.dtype, torch.float32)
        self.batch, self.num_heads, self.num_queries, _ = query.shape
        self.num_keys = key.shape[2]
        self.query, self.key = (t.flatten(0, 1).to(self.dtype).contiguous() for t in (query, key))
        self.mass = mass.to(self.dtype) if mass.numel() else None
        self.pairs = pairs if pairs.numel() else None
        self.order = order if order.numel() else None
        # fewest and most points that each query sees in some batch entry, read from the device once
        self.seen: list[list[int]] = [] if self.order is None else torch.stack(self.order.aminmax(dim=0)).tolist()
        self.activation: HopActivation = ACTIVATIONS[activation]
        self.rows = max(1, min(self.ROWS, self.num_queries))
        self.columns = max(1, min(elements // self.rows, self.num_keys))
        self.group = max(1, min(len(self.query), elements // (self.rows * self.columns)))

    def groups(self) -> Iterator[slice]:
        """Every head once, as many together as fill a tile."""
        for head in range(0, len(self.query), self.group):
            yield slice(head, min(head + self.group, len(self.query)))

    def rows_of(self, heads: slice, size: int | None = None) -> Iterator[Rows]:
        """Every query of these heads once, `size` together or as many as a tile has."""
        size = self.rows if size is None else size
        for start in range(0, self.num_queries, size):
            stop = min(start + size, self.num_queries)
            seen = seen_by_all = self.num_keys
            if self.seen:
                fewest, most = self.seen
                seen, seen_by_all = max(most[start:stop]), min(fewest[start:stop])
            yield Rows(heads, slice(start, stop), seen, seen_by_all)

    def columns_of(self, rows: Rows, stop: int | None = None) -> Iterator[slice]:
        """The points that some of the rows may see, or those before `stop`, a tile at a time."""
        stop = rows.seen if stop is None else stop
        for start in range(0, stop, self.columns):
            yield slice(start, min(start + self.columns, stop))

    def raw(self, rows: Rows, columns: slice) -> Tensor:
        """q·k, `(g, r, c)`."""
        return self.query[rows.heads, rows.rows] @ self.key[rows.heads, columns].mT

    def activated(self, raw: Tensor) -> Tensor:
        """φ of them."""
        return activate_hop(raw, self.activation)

    def slope(self, raw: Tensor) -> Tensor:
        """φ' of them; 0 where φ has a corner, at 0."""
        if self.activation == "relu":
            return (raw > 0).to(raw.dtype)
        if self.activation == "abs":
            return raw.sign()
        if self.activation == "identity":
            return torch.ones_like(raw)
        density = torch.exp(-0.5 * raw.square()) * (2 * torch.pi) ** -0.5
        return normal_distribution(raw) + raw * density

    def hop(self, rows: Rows, columns: slice) -> Tensor:
        """S, `(g, r, c)`."""
        scores, mass = self.activated(self.raw(rows, columns)), self.pair_mass(rows, columns)
        return scores if mass is None else weigh(scores, mass)

    def pair_mass(self, rows: Rows, columns: slice) -> Tensor | None:
        """P, broadcastable to `(g, r, c)`; None where all is 1."""
        kept = self.density(rows, columns)
        if self.mass is None:
            return kept
        mass = self.mass_of(rows, columns)
        return mass if kept is None else mass * kept

    def density(self, rows: Rows, columns: slice) -> Tensor | None:
        """m_ij, 0 where the order or its mass hides a point, broadcastable to `(g, r, c)`; None where all is 1."""
        kept = None
        if self.pairs is not None:
            batch, head = self.places(rows, self.pairs.shape[0], self.pairs.shape[1])
            kept = self.pairs[batch, head, rows.rows, columns].to(self.dtype)
        if self.order is not None and columns.stop > rows.seen_by_all:
            place = torch.arange(columns.start, columns.stop, device=self.order.device)
            before = (place < self._of_batch(self.order, rows)[:, rows.rows, None]).to(self.dtype)
            kept = before if kept is None else kept * before
        if self.mass is not None:
            there = (self.mass_of(rows, columns) > 0).to(self.dtype)
            kept = there if kept is None else kept * there
        return kept

    def mass_of(self, rows: Rows, columns: slice) -> Tensor:
        """ω_j, `(g or 1, 1, c)`."""
        assert self.mass is not None
        return self._of_batch(self.mass, rows)[:, None, columns]

    def _of_batch(self, tensor: Tensor, rows: Rows) -> Tensor:
        return tensor if len(tensor) == 1 else tensor[self.places(rows, len(tensor), 1)[0]]

    def places(self, rows: Rows, batch: int, heads: int) -> tuple[Tensor, Tensor]:
        """Batch entry and head of each of the tile's heads in a tensor that has `batch` and `heads` of them."""
        index = torch.arange(rows.heads.start, rows.heads.stop, device=self.query.device)
        return (index // self.num_heads) % batch, (index % self.num_heads) % heads


def weigh(scores: Tensor, mass: Tensor) -> Tensor:
    """Scores times masses of pairs; exactly 0 without mass, whatever the score."""
    return torch.where(mass == 0, 0.0, scores * mass)
