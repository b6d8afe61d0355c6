"""Tiles of pairs: their sizes, what is hidden in them, and their scores in memory that stays in a processor's cache."""

import functools
from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.attention.sums.inputs import YatInputs


class Rows(NamedTuple):
    """Some queries of some heads, and the keys that any of them may see."""

    heads: slice
    rows: slice
    seen: int  # no query sees a key from here on
    seen_by_all: int  # every query sees the keys before this one, as far as causality goes


@final
class Views:
    """Parts of tensors `(G, N, ...)`, kept for the next tile that asks: taking one costs as much as an operation."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int, int], Tensor] = {}

    def __call__(self, tensor: Tensor, heads: slice, points: slice) -> Tensor:
        """`tensor[heads, points]`, of a tensor that lives as long as these views."""
        place = id(tensor), heads.start, points.start, points.stop
        if place not in self._kept:
            self._kept[place] = tensor[heads, points]
        return self._kept[place]


@final
class Tiles:
    """The heads of a batch in a row, in the working dtype, cut into tiles.

    Args:
        tensors: the fields of `YatInputs`.
        elements: pairs in a tile, about; None: see `YatTiled`.
    """

    ROWS = 256

    def __init__(self, tensors: list[Tensor], elements: int | None) -> None:
        own = YatInputs(*tensors)
        if elements is None:
            elements = torch.get_num_threads() << 17 if own.query.device.type == "cpu" else 1 << 24
        self.dtype = own.working_dtype
        self.batch, self.num_heads, self.num_queries, _ = own.query.shape
        self.num_keys = own.key.shape[2]
        self.query, self.key, self.value = (self._flat(t) for t in (own.query, own.key, own.value))
        self.epsilon = own.epsilon.to(self.dtype)
        self.bias = self._flat(own.key_bias)[..., None] if own.key_bias.numel() else None
        self.mass = own.mass.to(self.dtype) if own.mass.numel() else None
        self.pairs = own.pairs if own.pairs.numel() else None
        self.order = own.seen if own.seen.numel() else None
        self.query_square = self.query.square().sum(-1, keepdim=True) + self.epsilon  # (G, Nq, 1), ε included
        self.key_square = self.key.square().sum(-1, keepdim=True)  # (G, N, 1)
        self.rows = max(1, min(self.ROWS, self.num_queries))
        self.columns = max(1, min(elements // self.rows, self.num_keys))
        self.group = max(1, min(len(self.query), elements // (self.rows * self.columns)))
        size = self.group * self.rows * self.columns
        self._scratch = [self.query.new_empty(size) for _ in range(2)]
        self._shaped: dict[tuple[int, torch.Size], Tensor] = {}
        self.at = Views()

    def _flat(self, tensor: Tensor) -> Tensor:
        return tensor.flatten(0, 1).to(self.dtype).contiguous()

    def scratch(self, place: int, shape: torch.Size) -> Tensor:
        """Memory of one tile, used again for the next: `place` 0 and 1 hold what `scores` returns."""
        if (place, shape) not in self._shaped:
            while len(self._scratch) <= place:
                self._scratch.append(torch.empty_like(self._scratch[0]))
            self._shaped[place, shape] = self._scratch[place][: shape.numel()].view(shape)
        return self._shaped[place, shape]

    def all_rows(self) -> Iterator[Rows]:
        """Every query of every head once."""
        starts = range(0, self.num_queries, self.rows)
        limits = [(self.num_keys, self.num_keys)] * len(starts)
        if self.order is not None:
            most, least = self.order.amax(0), self.order.amin(0)
            limits = [
                (int(most[s : s + self.rows].max()), int(least[s : s + self.rows].min())) for s in starts
            ]  # one transfer a tile of rows, on a GPU
        for head in range(0, len(self.query), self.group):
            for start, (seen, seen_by_all) in zip(starts, limits, strict=True):
                stop = min(start + self.rows, self.num_queries)
                heads = slice(head, min(head + self.group, len(self.query)))
                yield Rows(heads, slice(start, stop), seen, seen_by_all)

    def columns_of(self, rows: Rows) -> Iterator[slice]:
        """The keys that some of the rows may see, a tile at a time."""
        for start in range(0, rows.seen, self.columns):
            yield slice(start, min(start + self.columns, rows.seen))

    def scores(self, rows: Rows, columns: slice) -> tuple[Tensor, Tensor]:
        """s = T²/D and r = T/D with T = q·k + b and D = ‖q - k‖² + ε, `(g, r, c)` each, to the bit the same each time.

        That is needed where scores are large: none may lie above its row's reference.
        """
        at, heads = self.at, rows.heads
        query, key = at(self.query, heads, rows.rows), at(self.key, heads, columns)
        shape = torch.Size((len(query), query.shape[1], key.shape[1]))
        dot, distance = self.scratch(0, shape), self.scratch(1, shape)
        torch.bmm(query, key.mT, out=dot)
        torch.sub(at(self.key_square, heads, columns).mT, dot, alpha=2, out=distance)
        distance.add_(at(self.query_square, heads, rows.rows))
        torch.maximum(distance, self.epsilon, out=distance)
        if self.bias is not None:
            dot.add_(at(self.bias, heads, columns).mT)
        ratio = torch.div(dot, distance, out=distance)
        return dot.mul_(ratio), ratio

    def pair_mass(self, rows: Rows, columns: slice) -> Tensor | None:
        """ω_j m_ij, 0 where causality hides a pair, broadcastable to `(g, r, c)`; None where all is 1."""
        factors = []
        if self.mass is not None:
            factors.append(self.mass_of(rows, columns))
        if self.pairs is not None:
            factors.append(self.pairs_of(rows, columns))
        if self.order is not None and columns.stop > rows.seen_by_all:
            factors.append(self.preceding(rows, columns))
        return functools.reduce(torch.mul, factors) if factors else None

    def mass_of(self, rows: Rows, columns: slice) -> Tensor:
        """ω_j, `(g or 1, 1, c)`."""
        assert self.mass is not None
        return self._of_batch(self.mass, rows)[:, None, columns]

    def pairs_of(self, rows: Rows, columns: slice) -> Tensor:
        """m_ij, `(g, r, c)`."""
        assert self.pairs is not None
        batch, head = self.places(rows, self.pairs.shape[0], self.pairs.shape[1])
        return self.pairs[batch, head, rows.rows, columns].to(self.dtype)

    def preceding(self, rows: Rows, columns: slice) -> Tensor:
        """1 where causality lets a query see a key, else 0, `(g or 1, r, c)`."""
        assert self.order is not None
        place = torch.arange(columns.start, columns.stop, device=self.order.device)
        return (place < self._of_batch(self.order, rows)[:, rows.rows, None]).to(self.dtype)

    def _of_batch(self, tensor: Tensor, rows: Rows) -> Tensor:
        return tensor if len(tensor) == 1 else tensor[self.places(rows, len(tensor), 1)[0]]

    def places(self, rows: Rows, batch: int, heads: int) -> tuple[Tensor, Tensor]:
        """Batch entry and head of each of the tile's heads in a tensor that has `batch` and `heads` of them."""
        index = torch.arange(rows.heads.start, rows.heads.stop, device=self.query.device)
        return (index // self.num_heads) % batch, (index % self.num_heads) % heads
