"""Scores of pairs in tiles: masks, masses of pairs, and gradients of queries and keys.

Legend (heads of a batch in a row, G = B·H)
    s_ij         score of a pair, of q_i·k_j and ‖q_i - k_j‖² (`kernels.attention.scored`)
    P_ij         ω_j m_ij, mass of a pair, 0 where hidden
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype
from fredholm.domains import Domain, preceding_counts
from fredholm.domains.checks import has_values
from fredholm.kernels import ValueMixing
from fredholm.kernels.attention.scored import Score, numbers_by_head


class TileInputs(NamedTuple):
    """Inputs of scores; B' and H' are 1, or B and H."""

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, H, N, d)
    key_bias: Tensor | None = None  # b: (B, H, N)
    softening: Tensor | None = None  # ε: ()
    numbers: Tensor | None = None  # further arguments of the score: (m,) or (m, H)
    mass: Tensor | None = None  # ω: (B', N); None: all 1
    pairs: Tensor | None = None  # m: (B', H', Nq, N); None: all 1
    seen: Tensor | None = None  # number of leading keys that each query sees, int64: (B', Nq); None: all


def measured(kernel: ValueMixing, domain: Domain, query_domain: Domain) -> tuple[Tensor | None, ...]:
    """Mass, pair weights and order of an integral, the last fields of `TileInputs`; None where trivial."""
    kernel.check_pair_weights(domain)
    return (
        None if domain.is_even and domain.mask is None else torch.atleast_2d(kernel.measure(domain)),
        domain.pair_weights,
        preceding_counts(query_domain, domain) if kernel.is_causal else None,
    )


class Pairs(NamedTuple):
    """All pairs at once, in differentiable operations and at least float32; masses broadcast to scores."""

    scores: Tensor  # s: (B, H, Nq, N)
    mass: Tensor | None  # P; None: all 1
    density: Tensor | None  # m, 0 where the order or its mass hides a point; None: all 1


def all_pairs(inputs: TileInputs, score: Score) -> Pairs:
    """Scores and masses without tiles: for derivatives that tile operators lack, and for exported graphs."""
    query, key = (t.to(wide_dtype(t)) for t in (inputs.query, inputs.key))
    products = dot = query @ key.mT
    if inputs.key_bias is not None:
        dot = dot + inputs.key_bias.to(dot.dtype)[:, :, None]
    distance = None
    if score.reads_distance:
        square = query.square().sum(-1)[..., None] + key.square().sum(-1)[:, :, None] - 2 * products
        # clamps rounding below 0, without effect on derivatives
        distance = square + (square.clamp_min(0) - square).detach()
        distance = distance if inputs.softening is None else distance + inputs.softening.to(dot.dtype)
    scores = score.value(dot, distance, *numbers_by_head(inputs.numbers, query.shape[1], dot.dtype))
    density = None if inputs.pairs is None else inputs.pairs.to(dot.dtype)
    if inputs.seen is not None:
        before = torch.arange(key.shape[2], device=key.device) < inputs.seen[:, None, :, None]
        density = before.to(dot.dtype) if density is None else torch.where(before, density, 0.0)
    if inputs.mass is None:
        return Pairs(scores, density, density)
    mass = inputs.mass.to(dot.dtype)[:, None, None]
    there = (mass > 0).to(dot.dtype)
    return Pairs(scores, mass if density is None else mass * density, there if density is None else there * density)


class Rows(NamedTuple):
    """A group of queries and heads, and the keys that any of them may see."""

    heads: slice
    rows: slice
    seen: int  # no query sees a key from here on
    seen_by_all: int  # causality hides no key before this one from any query


@final
class PairTiles:
    """Pairs in at least float32, with batch and heads in one axis, cut into tiles.

    Args:
        inputs: see `TileInputs`.
        score: s.
        elements: approximate number of pairs in a tile; None: 2^17 a thread on a CPU, which its cache can hold, 2^24
            elsewhere.
    """

    ROWS = 256

    def __init__(self, inputs: TileInputs, score: Score, elements: int | None) -> None:
        self.inputs, self.score = inputs, score
        if elements is None:
            elements = torch.get_num_threads() << 17 if inputs.query.device.type == "cpu" else 1 << 24
        self.dtype = torch.promote_types(inputs.query.dtype, torch.float32)
        self.batch, self.num_heads, self.num_queries, _ = inputs.query.shape
        self.num_keys = inputs.key.shape[2]
        self.query, self.key = self.flat(inputs.query), self.flat(inputs.key)
        self.bias = None if inputs.key_bias is None else self.flat(inputs.key_bias)[..., None]
        self.mass = None if inputs.mass is None else inputs.mass.to(self.dtype)
        self.pairs, self.order = inputs.pairs, inputs.seen
        self.query_square = self.key_square = self.softening = None
        if score.reads_distance:
            self.query_square, self.key_square = (t.square().sum(-1, keepdim=True) for t in (self.query, self.key))
            if inputs.softening is not None:
                self.softening = inputs.softening.to(self.dtype)
                self.query_square = self.query_square + self.softening
        self.numbers = [t.repeat(self.batch, 1, 1) for t in numbers_by_head(inputs.numbers, self.num_heads, self.dtype)]
        # fewest and most keys that each query sees over the batch, read from the device once
        order = None if self.order is None or not has_values(self.order) else self.order
        self.seen: list[list[int]] = [] if order is None else torch.stack(order.aminmax(dim=0)).tolist()
        self.rows = max(1, min(self.ROWS, self.num_queries))
        self.columns = max(1, min(elements // self.rows, self.num_keys))
        self.group = max(1, min(self.query.shape[0], elements // (self.rows * self.columns)))
        self._scratch: dict[int, Tensor] = {}
        self._shaped: dict[tuple[int, torch.Size], Tensor] = {}
        self._slices: dict[tuple[int, int, int, int], tuple[Tensor, Tensor]] = {}

    def flat(self, tensor: Tensor) -> Tensor:
        """`(B, H, ...)` to `(G, ...)`, in the dtype of scores."""
        return tensor.flatten(0, 1).to(self.dtype).contiguous()

    def at(self, tensor: Tensor, heads: slice, points: slice) -> Tensor:
        """Cached `tensor[heads, points]` of a tensor that outlives these tiles: slicing costs as much as a sum."""
        place = id(tensor), heads.start, points.start, points.stop
        if place not in self._slices:
            # keeps the tensor alive, so that its id stays unique
            self._slices[place] = tensor, tensor[heads, points]
        return self._slices[place][1]

    def scratch(self, place: int, shape: torch.Size) -> Tensor:
        """Memory of one tile, reused for the next: `place` 0 and 1 hold the inputs of a score."""
        if (place, shape) not in self._shaped:
            if place not in self._scratch or self._scratch[place].numel() < shape.numel():
                # a solver's block may be larger than a tile
                size = max(self.group * self.rows * self.columns, shape.numel())
                self._scratch[place] = self.query.new_empty(size)
            self._shaped[place, shape] = self._scratch[place][: shape.numel()].view(shape)
        return self._shaped[place, shape]

    def groups(self) -> Iterator[slice]:
        """Groups of heads, each as many as fill a tile."""
        for head in range(0, self.query.shape[0], self.group):
            yield slice(head, min(head + self.group, self.query.shape[0]))

    def rows_of(self, heads: slice, size: int | None = None) -> Iterator[Rows]:
        """Groups of queries of these heads, `size` each or as many as fit a tile."""
        size = self.rows if size is None else size
        for start in range(0, self.num_queries, size):
            stop = min(start + size, self.num_queries)
            seen = seen_by_all = self.num_keys
            if self.seen:
                fewest, most = self.seen
                seen, seen_by_all = max(most[start:stop]), min(fewest[start:stop])
            yield Rows(heads, slice(start, stop), seen, seen_by_all)

    def all_rows(self) -> Iterator[Rows]:
        """Groups of queries of all heads."""
        for heads in self.groups():
            yield from self.rows_of(heads)

    def columns_of(self, rows: Rows, stop: int | None = None) -> Iterator[slice]:
        """Tiles of the keys that some of the rows may see, or of those before `stop`."""
        stop = rows.seen if stop is None else stop
        for start in range(0, stop, self.columns):
            yield slice(start, min(start + self.columns, stop))

    def scores(self, rows: Rows, columns: slice) -> tuple[Tensor, Any]:
        """s, `(g, r, c)`, and the residuals of `Score.pull`, in memory that the next tile overwrites.

        Recomputation is bit for bit the same: a large score must not exceed its row's reference.
        """
        at, heads = self.at, rows.heads
        query, key = at(self.query, heads, rows.rows), at(self.key, heads, columns)
        shape = torch.Size((query.shape[0], query.shape[1], key.shape[1]))
        dot, distance = torch.bmm(query, key.mT, out=self.scratch(0, shape)), None
        if self.query_square is not None and self.key_square is not None:
            distance = self.scratch(1, shape)
            torch.sub(at(self.key_square, heads, columns).mT, dot, alpha=2, out=distance)
            distance.add_(at(self.query_square, heads, rows.rows))
            distance = distance.clamp_min_(0) if self.softening is None else distance.clamp_min_(self.softening)
        if self.bias is not None:
            dot.add_(at(self.bias, heads, columns).mT)
        return self.score.in_tile(dot, distance, self.numbers_of(rows))

    def numbers_of(self, rows: Rows) -> list[Tensor]:
        """The score's numbers for the heads of a tile, `(g, 1, 1)` each."""
        return [numbers[rows.heads] for numbers in self.numbers]

    def pair_mass(self, rows: Rows, columns: slice) -> Tensor | None:
        """P, broadcastable to `(g, r, c)`; None where all is 1."""
        return self._product(None if self.mass is None else self.mass_of(rows, columns), self._in_order(rows, columns))

    def density(self, rows: Rows, columns: slice) -> Tensor | None:
        """m_ij, 0 where the order or its mass hides a point, broadcastable to `(g, r, c)`; None where all is 1."""
        there = None if self.mass is None else (self.mass_of(rows, columns) > 0).to(self.dtype)
        return self._product(there, self._in_order(rows, columns))

    def _in_order(self, rows: Rows, columns: slice) -> Tensor | None:
        """m_ij, 0 where the order hides a point, broadcastable to `(g, r, c)`; None where all is 1."""
        before = None
        if self.order is not None and columns.stop > rows.seen_by_all:
            place = torch.arange(columns.start, columns.stop, device=self.order.device)
            before = (place < self._of_batch(self.order, rows)[:, rows.rows, None]).to(self.dtype)
        return self._product(None if self.pairs is None else self.pairs_of(rows, columns), before)

    def _product(self, *factors: Tensor | None) -> Tensor | None:
        there = [factor for factor in factors if factor is not None]
        return functools.reduce(torch.mul, there) if there else None

    def mass_of(self, rows: Rows, columns: slice) -> Tensor:
        """ω_j, `(g or 1, 1, c)`."""
        assert self.mass is not None
        return self._of_batch(self.mass, rows)[:, None, columns]

    def pairs_of(self, rows: Rows, columns: slice) -> Tensor:
        """m_ij, `(g, r, c)`."""
        assert self.pairs is not None
        batch, head = self.places(rows, self.pairs.shape[0], self.pairs.shape[1])
        return self.pairs[batch, head, rows.rows, columns].to(self.dtype)

    def _of_batch(self, tensor: Tensor, rows: Rows) -> Tensor:
        return tensor if tensor.shape[0] == 1 else tensor[self.places(rows, tensor.shape[0], 1)[0]]

    def places(self, rows: Rows, batch: int, heads: int) -> tuple[Tensor, Tensor]:
        """Indices of batch entry and head for each of the tile's heads, in a tensor with these `batch` and `heads`."""
        index = torch.arange(rows.heads.start, rows.heads.stop, device=self.query.device)
        return (index // self.num_heads) % batch, (index % self.num_heads) % heads


@final
class PairGradients:
    """Sums over tiles of the gradients of all `TileInputs` but the order.

    Args:
        like: tiles, for the sizes.
        wanted: names of the inputs whose gradients are needed; those of masses and pairs cost extra.
    """

    def __init__(self, like: PairTiles, wanted: frozenset[str]) -> None:
        self.key = torch.zeros_like(like.key)
        self.bias = None if like.bias is None else torch.zeros_like(like.bias)
        self.key_square = None if like.key_square is None else torch.zeros_like(like.key_square)
        self.softening = None if like.softening is None else torch.zeros_like(like.softening)
        self.numbers = [torch.zeros_like(t) for t in like.numbers]
        self.mass = torch.zeros_like(like.mass) if "mass" in wanted and like.mass is not None else None
        self.pairs = None
        if "pairs" in wanted and like.pairs is not None:
            self.pairs = torch.zeros_like(like.pairs, dtype=like.dtype)
        self._num_heads = like.num_heads

    def queries(self, tiles: PairTiles) -> tuple[Tensor, Tensor | None]:
        """Memory in which `add` sums the gradients of some queries: of q, and of ‖q‖²."""
        squares = None if tiles.query_square is None else torch.zeros_like(tiles.query_square)
        return torch.zeros_like(tiles.query), squares

    def add(
        self,
        tiles: PairTiles,
        rows: Rows,
        columns: slice,
        kept: Any,
        by_score: Tensor,
        into: tuple[Tensor, Tensor | None],
    ) -> None:
        """Adds to the gradients of queries, keys and numbers from those of a tile's scores, which are overwritten."""
        at, score, here, there = tiles.at, tiles.score, (rows.heads, rows.rows), (rows.heads, columns)
        by_dot, by_distance, by_numbers = score.pull(kept, by_score, tiles.numbers_of(rows))
        to_query, to_query_square = into
        if self.bias is not None:
            at(self.bias, *there).add_(by_dot.sum(-2)[..., None], alpha=score.dot_gain)
        if by_distance is not None and to_query_square is not None and self.key_square is not None:
            at(to_query_square, *here).add_(by_distance.sum(-1, keepdim=True))
            at(self.key_square, *there).add_(by_distance.sum(-2)[..., None])
            by_dot.add_(by_distance, alpha=-2 * score.distance_gain / score.dot_gain)
        at(to_query, *here).baddbmm_(by_dot, at(tiles.key, *there), alpha=score.dot_gain)
        at(self.key, *there).baddbmm_(by_dot.mT, at(tiles.query, *here), alpha=score.dot_gain)
        for total, by_number in zip(self.numbers, by_numbers, strict=True):
            total[rows.heads] += by_number

    def add_masses(self, tiles: PairTiles, rows: Rows, columns: slice, by_mass: Tensor) -> None:
        """Adds to the gradient of ω from that of each pair's mass, `(g, r, c)`."""
        if self.mass is not None:
            batch, _ = tiles.places(rows, self.mass.shape[0], 1)
            self.mass[:, columns].index_add_(0, batch, by_mass.sum(1))

    def add_pairs(self, tiles: PairTiles, rows: Rows, columns: slice, by_pair: Tensor) -> None:
        """Adds to the gradient of m, `(g, r, c)`."""
        if self.pairs is not None:
            batch, head = tiles.places(rows, self.pairs.shape[0], self.pairs.shape[1])
            self.pairs[:, :, rows.rows, columns].index_put_((batch, head), by_pair, accumulate=True)

    def of_queries(self, tiles: PairTiles, into: tuple[Tensor, Tensor | None]) -> Tensor:
        """The gradient of the queries, `(G, Nq, d)`, after the last tile."""
        query, square = into
        if square is None:
            return query
        gain = tiles.score.distance_gain
        if self.softening is not None:
            self.softening += gain * square.sum()
        return query.addcmul_(tiles.query, square, value=2 * gain)

    def found(self, tiles: PairTiles) -> dict[str, Tensor]:
        """The gradients of all inputs but the queries, by name, after the last tile."""
        if self.key_square is not None:
            self.key.addcmul_(tiles.key, self.key_square, value=2 * tiles.score.distance_gain)
        numbers = None
        if self.numbers:
            numbers = torch.stack([t.view(-1, self._num_heads).sum(0) for t in self.numbers])
            given = tiles.inputs.numbers
            numbers = numbers.sum(1) if given is not None and given.ndim == 1 else numbers
        named = {
            "key": self.key,
            "key_bias": self.bias,
            "softening": self.softening,
            "numbers": numbers,
            "mass": self.mass,
            "pairs": self.pairs,
        }
        return {name: grad for name, grad in named.items() if grad is not None}
