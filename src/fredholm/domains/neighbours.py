"""Points near a query: the nearest ones, or all within a radius, without comparing all pairs.

Points are sorted along a Morton curve of small cubes, so that the cubes of every size 2^l are runs of one order. A
query is compared with the points of the 3^a cubes round its own. Whatever lies outside these is at least as far away as
their border: a query is settled once it has its k neighbours within that. It starts at the size that the number of
points round it suggests, and goes on to cubes twice as long until it is settled, so that a density that varies by
orders of magnitude costs little.

Legend of this file
    E, N, Nq   entries that have points of their own, points of each, queries
    s, a       coordinates of a position, and the axes along which cubes divide space: the a <= 3 of widest extent.
               Distances along some axes bound the true ones from below
    size       l of cubes 2^l times as long as the finest ones
"""

import bisect
import math
import operator
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._settings import check_count, check_number
from fredholm.domains.checks import is_open, values_can_be_read
from fredholm.domains.domain import check_mask, check_tensor, wrapped

SEARCHED_PAIRS = 1 << 22
"""Number of pairs of query and point whose distances are held at once where all pairs are compared."""
CELL_PAIRS = 1 << 19
"""Number of pairs whose distances are held at once where cells are compared: they fit into a processor's cache."""
COMPARED_WHOLE = 1 << 21
"""Largest number of pairs for which all are compared on a CPU; 64 times as many on devices with costly launches."""
CROWDED = 8
"""Points of a cell, in multiples of k, above which those that share a place are distinguished."""
RUN = 8
"""Queries of one cell that are compared with its surroundings together."""
SLACK = 1.00001
"""Safety factor of distances against rounding."""
SPARE = 1.0
"""Factor by which the average number of points in a query's surroundings exceeds the number needed."""


@final
class Neighbours(NamedTuple):
    """Points near each query, nearest first.

    Attributes:
        points: their indices, int64 `(Nq, K)` or `(B, Nq, K)`.
        squared: ‖x - y‖² of each, of the same shape, at least float32; infinite where a query has fewer than K
            neighbours, where the index is arbitrary.
    """

    points: Tensor
    squared: Tensor


@torch.no_grad()
def nearest(
    pos: Tensor,
    query_pos: Tensor | None = None,
    *,
    k: int | None = None,
    radius: float | None = None,
    mask: Tensor | None = None,
    visible: Tensor | None = None,
    periodic: bool = False,
) -> Neighbours:
    """The k points nearest to each query, all points within a radius, or the k nearest within it; exact.

    A query at a point has that point as its first neighbour. Of equally distant points any may be the last. Time is
    about that of sorting the points, and of comparing each query with a hundred of them, wherever points fill at most
    three dimensions; else more, up to all pairs. Where values cannot be read (under the compiler and
    `torch.func.vmap`) all pairs are compared.

    Args:
        pos: `(N, s)` or `(B, N, s)`, float; finite where points exist.
        query_pos: `(Nq, s)` or `(B, Nq, s)`; None: the points themselves.
        k: at least 1; with a radius as well: the k nearest within it.
        radius: above 0; a point at this distance, to the rounding of positions, is a neighbour.
        mask: `(N,)` or `(B, N)` bool, True = this point exists; others are nobody's neighbours.
        visible: how many leading points a query may have as neighbours, `(Nq,)` or `(B, Nq)` int64; None: all.
        periodic: distances wrap round the unit box.

    Returns:
        `Neighbours` with a batch axis where any argument has one, without gradients. K is the smaller of k and N;
        with a radius it is the largest number of neighbours of a query, at least 1 where there is a point to name,
        unless values cannot be read.

    Raises:
        ValueError: on neither k nor radius, numbers out of range, shapes that do not fit, NaN or infinite positions.
        TypeError: on arguments that are no tensor or number, and a mask that is not bool.
    """
    _check(k, radius)
    query_pos = pos if query_pos is None else query_pos
    _check_points(pos, query_pos, mask, visible)
    has_batch = max(pos.ndim, query_pos.ndim) == 3 or any(t is not None and t.ndim == 2 for t in (mask, visible))
    search = _Search(pos, query_pos, k, radius, mask, visible, periodic)
    if 0 in (search.pos.shape[0], search.query.shape[0]):  # a batch without entries
        nothing = search.query.new_zeros(0, search.num_queries, search.most if radius is None else min(1, search.most))
        return Neighbours(nothing.long(), nothing)
    found = search.by_cells() if search.prefers_cells() else search.of_all_pairs()
    return found if has_batch else Neighbours(found.points[0], found.squared[0])


def _check(k: int | None, radius: float | None) -> None:
    if k is None and radius is None:
        raise ValueError("nearest: give k, a radius, or both")
    if k is not None:
        check_count("nearest", "k", k)
    if radius is not None:
        check_number("nearest", "radius", radius)
        if not 0 < radius < math.inf:
            raise ValueError(f"nearest: radius must be > 0 and finite; got {radius}")


def _check_points(pos: Tensor, query_pos: Tensor, mask: Tensor | None, visible: Tensor | None) -> None:
    for name, value in (("pos", pos), ("query_pos", query_pos)):
        check_tensor("nearest", name, value)
        if value.ndim not in (2, 3) or not value.dtype.is_floating_point or value.shape[-1] == 0:
            raise ValueError(
                f"nearest: {name} must be float, (N, s) or (B, N, s) with s >= 1; "
                f"got {tuple(value.shape)}, {value.dtype}"
            )
    if pos.shape[-1] != query_pos.shape[-1]:
        raise ValueError(
            f"nearest: query_pos must have {pos.shape[-1]} coordinates as pos has; got shape {tuple(query_pos.shape)}"
        )
    check_mask("nearest", mask, pos)
    if visible is not None and (visible.shape[-1:] != query_pos.shape[-2:-1] or visible.dtype != torch.int64):
        raise ValueError(
            f"nearest: visible must be int64 with one entry for each of the {query_pos.shape[-2]} queries; "
            f"got {tuple(visible.shape)}, {visible.dtype}"
        )
    shapes = {"pos": pos.shape[:-2], "query_pos": query_pos.shape[:-2]}
    shapes |= {name: t.shape[:-1] for name, t in (("mask", mask), ("visible", visible)) if t is not None}
    batches = [shape[0] for shape in shapes.values() if shape and shape[0] != 1]
    if any(batch != batches[0] for batch in batches[1:]):
        sizes = ", ".join(f"{name} {shape[0]}" for name, shape in shapes.items() if shape)
        raise ValueError(f"nearest: batch sizes must be one and the same; got {sizes}")
    if values_can_be_read(pos, query_pos, mask):
        bad = ~pos.isfinite().all(-1)
        if bool((bad if mask is None else bad & mask).any()) or not bool(query_pos.isfinite().all()):
            raise ValueError("nearest: positions hold NaN or infinite values where points exist; remove or mask them")


@final
class _Search:
    """A checked search: positions, queries and limits, all with a batch axis."""

    def __init__(
        self,
        pos: Tensor,
        query_pos: Tensor,
        k: int | None,
        radius: float | None,
        mask: Tensor | None,
        visible: Tensor | None,
        periodic: bool,
    ) -> None:
        given = torch.promote_types(pos.dtype, query_pos.dtype)
        dtype = torch.promote_types(given, torch.float32)
        self.pos = (pos if pos.ndim == 3 else pos[None]).to(dtype)
        self.query = (query_pos if query_pos.ndim == 3 else query_pos[None]).to(dtype)
        self.mask = None if mask is None else torch.atleast_2d(mask)
        self.visible = None if visible is None else torch.atleast_2d(visible)
        self.num_points, self.num_queries = self.pos.shape[1], self.query.shape[1]
        self.most = self.num_points if k is None else min(k, self.num_points)
        self.k, self.periodic = k, periodic
        self.edge = None  # the radius, plus the rounding error of a distance, (1 or B, Nq)
        if radius is not None:
            eps, size = torch.finfo(given).eps, self.query.abs().amax(-1).clamp_min(1.0 if periodic else 0.0)
            self.edge = radius * (1 + 8 * eps) + (4 * eps * size).clamp_max(radius / 100)
        self.entries = max(self.pos.shape[0], 1 if self.mask is None else self.mask.shape[0])
        self.batch = max(self.entries, self.query.shape[0], 1 if self.visible is None else self.visible.shape[0])

    def prefers_cells(self) -> bool:
        """Whether values can be read and the search by cells is faster than comparing all pairs."""
        if not values_can_be_read(self.pos, self.query, self.mask, self.visible):
            return False
        most = COMPARED_WHOLE * (1 if self.pos.device.type == "cpu" else 64)
        return self.batch * self.num_queries * self.num_points > most

    def of_all_pairs(self) -> Neighbours:
        """Every query compared with every point."""
        points = torch.arange(self.num_points, device=self.pos.device)
        parts = []
        for rows in self._rows():
            # by differences, because the expansion of the square loses near points
            squared = torch.zeros((), dtype=self.pos.dtype, device=self.pos.device)
            for x, y in zip(self.query[:, rows].unbind(-1), self.pos.unbind(-1), strict=True):
                difference = x[:, :, None] - y[:, None]
                squared = squared + (wrapped(difference) if self.periodic else difference).square()
            squared = squared.expand(self.batch, -1, -1)
            if self.mask is not None:
                squared = torch.where(self.mask[:, None], squared, torch.inf)
            if self.visible is not None:
                squared = torch.where(points < self.visible[:, rows, None], squared, torch.inf)
            parts.append(self.select(squared, None if self.edge is None else self.edge[:, rows]))
        most = max([squared.shape[-1] for _, squared in parts])
        index, squared = (
            torch.cat([torch.nn.functional.pad(part, (0, most - part.shape[-1]), value=fill) for part in some], dim=1)
            for some, fill in zip(zip(*parts, strict=True), (0, torch.inf), strict=True)
        )
        return Neighbours(index, squared)

    def _rows(self) -> list[slice]:
        """Slices of the queries that are compared at a time; a single slice where sizes are symbolic."""
        if any(map(is_open, (self.batch, self.num_points, self.num_queries))):
            return [slice(None)]
        size = max(1, SEARCHED_PAIRS // max(1, self.batch * self.num_points))
        return [slice(start, start + size) for start in range(0, max(self.num_queries, 1), size)]

    def select(self, squared: Tensor, edge: Tensor | None) -> tuple[Tensor, Tensor]:
        """Indices along the last axis of the neighbours among some points, and their squared distances."""
        most = min(self.most, squared.shape[-1])
        if edge is not None:
            squared = torch.where(squared <= edge.square()[..., None], squared, torch.inf)
            if values_can_be_read(squared):
                found = (squared < torch.inf).sum(-1)
                most = min(most, max(1, int(found.max()) if found.numel() else 0))
        distance, place = squared.topk(most, -1, largest=False)
        return place, distance

    def by_cells(self) -> Neighbours:
        """Every query compared with the points of the cells round it."""
        return _Cells(self).search()


@final
class _Sorted:
    """Points of all entries in the order of their finest cells.

    Attributes:
        order: index of each point, numbered across the entries, `(P,)`.
        entry: its batch entry, `(P,)`.
        unit: its position in units of finest cells, from the corner of its entry's box, `(a, P)` float64.
        cell: its cell, `(a, P)` int64.
        code: number of that cell along the curve, ascending, `(P,)`.
        at: coordinates, `(s, P)`.
    """

    def __init__(self, pos: Tensor, entry: Tensor, box: "_Box", exists: Tensor | None = None) -> None:
        flat, a = pos.reshape(-1, pos.shape[-1]), len(box.axes)
        rows = torch.arange(len(flat), device=pos.device) if exists is None else exists.flatten().nonzero()[:, 0]
        entry = entry[:, None].expand(pos.shape[:2]).flatten()[rows]
        unit = []
        for i, axis in enumerate(box.axes):
            x = flat[rows, axis].double()
            unit.append(((x - x.floor() if box.periodic else x) - box.low[entry, i]) / box.length[entry])
        self.unit = torch.stack(unit)
        self.cell = self.unit.floor().clamp(0, box.num - 1).long()
        code = entry << (a * box.bits)
        for axis in range(a):
            code |= spread_bits(self.cell[axis], a, box.bits) << axis
        self.code, order = code.sort(stable=True)
        self.order, self.entry = rows[order], entry[order]
        self.unit, self.cell = self.unit[:, order], self.cell[:, order]
        self.at = flat[self.order].T.contiguous()

    def __len__(self) -> int:
        return len(self.code)

    def without_surplus(self, k: int) -> "_Sorted":
        """The points without those at the same position as k others with lower indices, which no query needs."""
        _, counts = torch.unique_consecutive(self.code, return_counts=True)
        crowded = (counts > CROWDED * k).repeat_interleave(counts).nonzero()[:, 0]
        if len(crowded) == 0:
            return self
        places = torch.cat([self.entry[None].double(), self.at.double()])[:, crowded]
        _, place, together = torch.unique(places, dim=1, return_inverse=True, return_counts=True)
        rank = torch.empty_like(place)
        first = together.cumsum(0) - together
        order = place.argsort(stable=True)
        rank[order] = torch.arange(len(place), device=place.device) - first[place[order]]
        is_needed = torch.ones_like(self.code, dtype=torch.bool)
        is_needed[crowded] = rank < k
        kept = _Sorted.__new__(_Sorted)
        for name, value in vars(self).items():
            vars(kept)[name] = value[..., is_needed]
        return kept


@final
class _Box:
    """The cubes that divide space: `num` along each axis of an entry's box, of `length` (E,), from `low` (E, a) on.

    Points beyond the box belong to the cubes at its border, so that a few far away do not make all others share one.
    """

    def __init__(self, search: _Search) -> None:
        s = search
        self.periodic = s.periodic
        low = s.pos.new_zeros(s.entries, s.pos.shape[-1], dtype=torch.float64)
        low, extent = (low, low + 1.0) if s.periodic else _most_of(s)
        self.axes: list[int] = extent.mean(0).topk(min(3, s.pos.shape[-1])).indices.tolist()
        self.bits = min(50, (62 - s.entries.bit_length()) // len(self.axes))
        self.num = 1 << self.bits
        side = extent[:, self.axes].amax(-1)
        self.low, self.length = low[:, self.axes], torch.where(side > 0, side, 1.0) / self.num
        if s.k is None:
            assert s.edge is not None
            # one size of cells is enough, so long that no neighbour is beyond an adjacent cell
            reach = SLACK * float(s.edge.max())
            self.length = self.length.clamp_min(reach)
            if s.periodic:
                self.num = max(1, min(self.num, int(1 / reach)))
                self.length = torch.full_like(self.length, 1 / self.num)


def _most_of(search: _Search) -> tuple[Tensor, Tensor]:
    """Lower corner and extent of a box that holds nearly all points of an entry, `(E, s)` float64 each."""
    every = max(1, search.num_points // 1024)
    some = search.pos[:, ::every].expand(search.entries, -1, -1).double()
    if search.mask is not None:
        some = torch.where(search.mask[:, ::every, None], some, torch.nan)
    low, high = torch.nanquantile(some, some.new_tensor([0.01, 0.99]), dim=1).nan_to_num(0.0)
    return low - 0.05 * (high - low), 1.1 * (high - low)


@final
class _Cells:
    """A search that compares each query with the points of the cells round it."""

    def __init__(self, search: _Search) -> None:
        s = self.of = search
        self.box = _Box(s)
        entry = torch.arange(s.entries, device=s.pos.device)
        exists = None if s.mask is None else s.mask.expand(s.entries, -1)
        self.points = _Sorted(s.pos.expand(s.entries, -1, -1), entry, self.box, exists)
        if s.k is not None:
            self.points = self.points.without_surplus(s.k)
        query = s.query.expand(s.batch, -1, -1)
        self.queries = _Sorted(query, entry.expand(s.batch), self.box)
        order = self.queries.order
        self.visible = None if s.visible is None else s.visible.expand(s.batch, -1).flatten()[order]
        self.edge = None if s.edge is None else s.edge.expand(s.batch, -1).flatten()[order]

        most = 1 if s.k is None else s.most
        self.index = torch.zeros(len(self.queries), most, dtype=torch.int64, device=s.pos.device)
        self.squared = torch.full((len(self.queries), most), torch.inf, dtype=s.pos.dtype, device=s.pos.device)

    def search(self) -> Neighbours:
        """Searches size by size; queries that are not settled at one size go on to the next."""
        if len(self.points):
            start = self._start()
            pending = start.new_zeros(0)
            for size in range(self.box.bits + 1):
                rows = torch.cat([pending, (start == size).nonzero()[:, 0]]).sort().values
                pending = self._at(size, rows) if len(rows) else rows
        if self.edge is not None:
            most = max(1, int((self.squared < torch.inf).sum(-1).max()))
            self.index, self.squared = self.index[:, :most], self.squared[:, :most]
        shape = (self.of.batch, self.of.num_queries, self.index.shape[1])
        return Neighbours(self.index.reshape(shape), self.squared.reshape(shape))

    def _start(self) -> Tensor:
        """The first cell size of each query, at which its surroundings hold about enough points."""
        s, box, queries = self.of, self.box, self.queries
        if s.k is None:
            return torch.zeros_like(queries.code)
        a = len(box.axes)
        enough = SPARE * 2**a * s.k / (2.0, math.pi, 4 * math.pi / 3)[a - 1]
        size = torch.full_like(queries.code, box.bits)
        rows = torch.arange(len(queries), device=size.device)
        for finer in reversed(range(box.bits)):
            cells, counts = torch.unique_consecutive(self.points.code >> (a * (finer + 1)), return_counts=True)
            code = queries.code[rows] >> (a * (finer + 1))
            at = torch.searchsorted(cells, code).clamp_max(len(cells) - 1)
            count = torch.where(cells[at] == code, counts[at], 0)
            if self.visible is not None:
                count = count * (self.visible[rows] / s.num_points)
            rows = rows[count >= enough]
            if len(rows) == 0:
                break
            size[rows] = finer
        if self.edge is not None:
            # cells as long as the radius are large enough for all
            largest = (SLACK * self.edge / box.length[queries.entry]).log2().ceil().clamp(0, box.bits).long()
            size = torch.minimum(size, largest)
        return size

    def _at(self, size: int, rows: Tensor) -> Tensor:
        """Compares some queries with the cells round them; returns the queries that this does not settle."""
        a = len(self.box.axes)
        code = self.queries.code[rows] >> (a * size)
        _, asking = torch.unique_consecutive(code, return_counts=True)
        first = asking.cumsum(0) - asking
        start, count = self._around(size, rows[first])
        total = count.sum(-1)
        reach = self._reach(size, rows)
        settled = torch.ones_like(rows, dtype=torch.bool)
        runs = (asking + (RUN - 1)) // RUN
        cell = torch.arange(len(runs), device=rows.device).repeat_interleave(runs)
        place = RUN * (torch.arange(len(cell), device=rows.device) - (runs.cumsum(0) - runs)[cell])
        length = (asking[cell] - place).clamp_max(RUN)
        for together in length.unique().tolist():
            of = (length == together).nonzero()[:, 0]
            of = of[total[cell[of]].argsort(descending=True, stable=True)]
            most, done = total[cell[of]].tolist(), 0
            while done < len(of):
                end = done + max(1, CELL_PAIRS // max(1, together * most[done]))
                # those with a third fewer points would be padding for the most part
                few = of[done : min(end, bisect.bisect_right(most, -2 * most[done] / 3, key=operator.neg))]
                done += len(few)
                at = (first[cell[few]] + place[few])[:, None] + torch.arange(together, device=rows.device)
                limit = self._compare(rows[at], start[cell[few]], count[cell[few]])
                settled[at] = SLACK * limit <= reach[at]
        return rows[~settled]

    def _around(self, size: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The cells round those of some queries: first point and number of points of each, `(n, 3^a)` each."""
        a, box = len(self.box.axes), self.box
        num = max(1, box.num >> size)
        offsets = torch.arange(-1, 2, device=rows.device)
        if box.periodic and num < 3:
            offsets = offsets[1 : 1 + num]
        code = (self.queries.entry[rows] << (a * (box.bits - size)))[:, None]
        exists = torch.ones_like(code, dtype=torch.bool)
        for axis in range(a):
            near = (self.queries.cell[axis, rows] >> size)[:, None] + offsets
            inside = (near >= 0) & (near < num)
            near = near % num if box.periodic else torch.where(inside, near, 0)
            code = (code[:, :, None] + (spread_bits(near, a, box.bits - size) << axis)[:, None]).flatten(1)
            exists = (exists[:, :, None] & (inside | box.periodic)[:, None]).flatten(1)
        cells, counts = torch.unique_consecutive(self.points.code >> (a * size), return_counts=True)
        at = torch.searchsorted(cells, code).clamp_max(len(cells) - 1)
        count = torch.where(exists & (cells[at] == code), counts[at], 0)
        return (counts.cumsum(0) - counts)[at], count

    def _reach(self, size: int, rows: Tensor) -> Tensor:
        """Lower bound of the distance to points outside the cells round each query, `(n,)` float64."""
        num = max(1, self.box.num >> size)
        reach = torch.full_like(rows, torch.inf, dtype=torch.float64)
        if self.box.periodic and num <= 3:
            return reach
        for unit, cell in zip(self.queries.unit, self.queries.cell, strict=True):
            where, own = unit[rows] / 2**size, cell[rows] >> size
            below, above = where - (own - 1), (own + 2) - where
            if not self.box.periodic:
                below, above = torch.where(own > 1, below, torch.inf), torch.where(own + 2 < num, above, torch.inf)
            reach = torch.minimum(reach, torch.minimum(below, above))
        return reach * self.box.length[self.queries.entry[rows]] * 2**size

    def _compare(self, rows: Tensor, start: Tensor, count: Tensor) -> Tensor:
        """Compares queries `(m, q)` with the points of cells `(m, J)`; returns the distance left, `(m, q)`."""
        last = count.cumsum(-1)
        slot = torch.arange(int(last[:, -1].max()), device=rows.device).expand(len(rows), -1).contiguous()
        cell = torch.searchsorted(last, slot, right=True).clamp_max(last.shape[-1] - 1)
        point = slot + (start - last + count).gather(-1, cell)
        beyond = slot >= last[:, -1:]
        point = point.masked_fill_(beyond, 0)
        squared = torch.zeros((), dtype=self.of.pos.dtype, device=rows.device)
        for x, y in zip(self.queries.at, self.points.at, strict=True):
            difference = _take(x, rows)[:, :, None] - _take(y, point)[:, None]
            squared = squared + (wrapped(difference) if self.of.periodic else difference).square_()
        squared = squared.masked_fill_(beyond[:, None], torch.inf)
        number = _take(self.points.order, point) % max(1, self.of.num_points)
        if self.visible is not None:
            squared = squared.masked_fill_(number[:, None] >= self.visible[rows][:, :, None], torch.inf)
        edge = None if self.edge is None else _take(self.edge, rows)
        place, distance = self.of.select(squared, edge)
        most = place.shape[-1]
        if most > self.index.shape[1]:
            more = most - self.index.shape[1]
            self.index = torch.nn.functional.pad(self.index, (0, more))
            self.squared = torch.nn.functional.pad(self.squared, (0, more), value=torch.inf)
        at = self.queries.order[rows]
        self.index[at, :most] = number[:, None].expand(-1, rows.shape[1], -1).gather(-1, place)
        self.squared[at, :most] = distance
        limit = torch.full_like(rows, torch.inf, dtype=torch.float64)
        if self.of.k is not None and most == self.of.k:
            limit = distance[..., -1].double().sqrt()
        return limit if edge is None else torch.minimum(limit, edge.double())


def _take(values: Tensor, index: Tensor) -> Tensor:
    return values.index_select(0, index.flatten()).view(index.shape)


def spread_bits(values: Tensor, apart: int, num_bits: int) -> Tensor:
    """Spreads the bits of int64 `values` so that neighbouring bits are `apart` places apart."""
    if apart == 1:
        return values
    spread = torch.zeros_like(values)
    for bit in range(num_bits):
        spread |= ((values >> bit) & 1) << (apart * bit)
    return spread
