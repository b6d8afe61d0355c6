"""The integral of a pairwise perceptron kernel on a GPU, forward and backward.

Legend (beside that of `perceptron/tiles.py`)
    owner o   the point that a program works for: a query, or in half of the backward pass a key
    x         a point that the owner is paired with, in tiles of `points`
    A_o       (w, d): K + P ⊙ u_i for a query, Q + P ⊙ u_j for a key, so that in p one matrix product has all units:
              p_ij = R_ij + α_i + K u_j + (P ⊙ u_i) u_j + Q u_i, and the owner's own part of it is a bias
    table     where a grid is among queries and among keys, R of all pairs, `(G, entries, w)`: one row per displacement
              of the grid, and one row per pair with a point off the grid (`Places`)
    S_i       Σ_j h_ij ⊗ ω_j u_j, (w, d);  out_i = W S_i
    T_j       Σ_i h_ij ⊗ g_i, (w, d_out), g the gradient of the integral: both the gradient of ω_j u_j, W T_j, and that
              of W, Σ_j ω_j u_j ⊗ T_j, follow from it
    Y_j       W ω_j u_j, (w, d_out), so that the gradient of h_ij is Y_j g_i = (W g_i) ω_j u_j

A forward program accumulates S_i in registers over tiles of keys; W is one matrix product for many queries. Backward,
every tile is built twice: by the query's program, which accumulates all that belongs to the query, and by the key's,
which accumulates all that belongs to the key. So each sum has one owner and one order: no atomic operations, and two
runs are identical. Seven matrix products of a pair's w·d against the forward pass's two; a table, whose rows belong to
no point, costs two more.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.perceptron.tiles import Block, PerceptronInputs, length, split_at_block
from fredholm.evaluation.triton.machine import activation_for, mass_unit, padded, precision, scale_for
from fredholm.evaluation.triton.perceptron_kernels import (
    Extent,
    GradientSums,
    Layer,
    Plan,
    Side,
    gather_table_kernel,
    gradients_kernel,
    relative_gradient_kernel,
    sums_kernel,
)
from fredholm.evaluation.triton.tuning import Room, Tile, choose_tile, launch, multiprocessors, split, tuned_tile

WORKSPACE_BYTES = 1 << 28
"""Largest memory of S, Y or T of the owners of one launch: more memory means fewer launches and larger matrix
products."""
TOGETHER, PROGRAMS_LEFT = 8, 8
"""Batch entries per program of the backward pass, as long as a multiprocessor has this many programs."""
WEIGHTS = ("product_weight", "sin_weight", "cos_weight", "distance_weight")
"""Weights of the first layer that belong to neither side."""
FIRST = ("first_batch", "first")
"""The first owner of a launch: batch entry, and point in it."""
FIRST_LAYER = (*WEIGHTS, "query_weight", "key_weight", "query_bias", "key_bias", "table")
"""Tensors that p is linear in: biases, and the weights of features, sines and distances."""


@final
class Problem:
    """One integral's tensors, contiguous and by role, and the compile options of its kernels."""

    def __init__(self, inputs: PerceptronInputs, block: Block, activation: str) -> None:
        nothing = inputs.query.new_empty(0)
        self.dtype, self.activation = inputs.query.dtype, activation_for(activation, inputs.query.dtype)
        self.scale = scale_for(self.activation)
        given = {name: x for name, x in inputs._asdict().items() if x is not None}
        if self.scale != 1.0:
            scaled = [name for name in FIRST_LAYER if name in given]
            # in one launch, like multi-tensor optimisers
            given |= zip(scaled, torch.ops.aten._foreach_mul([given[name] for name in scaled], self.scale), strict=True)
        self.t = t = dict.fromkeys(inputs._fields, nothing) | {name: x.contiguous() for name, x in given.items()}
        self.has = frozenset(given)
        self.block = block
        self.batch, self.kernels, self.num_queries, self.dim = inputs.query.shape
        self.num_keys, self.width, self.out_dim = inputs.key.shape[2], *inputs.output_weight.shape[1::2]
        self.unit = mass_unit(t["weights"], self.dtype)
        mass = t["weights"] if self.unit is None else t["weights"] / self.unit
        self.values = (t["key"] * mass[:, None, :, None]).contiguous()
        self.places = places_of(block, self.num_queries, self.num_keys, nothing.device) if "table" in given else None
        self.frequencies = t["sin_weight"].shape[-1] if "sin_weight" in self.has else 0
        self.reads_distance = "distance_weight" in self.has
        self.last = t["output_weight"]  # (G, w, d, d_out)
        # float16 ends at 65504: S may overflow where the integral does not
        self.sums_dtype = torch.float32 if self.dtype == torch.float16 else self.dtype

    def weighed(self, value: Tensor) -> Tensor:
        """Rescales a result that is linear in `values` to ω in units of 1."""
        return value if self.unit is None else value * self.unit

    def varies(self, side: str) -> bool:
        """Whether the biases of a side in p differ from point to point."""
        return self.t[f"{side}_bias"].shape[2] > 1

    def has_rest(self, met: str) -> bool:
        """Whether p has terms of pairs, or of the other side's points, that are read from memory."""
        return self.places is not None or self.varies(met)

    def side(self, name: str, met: str | None) -> Side:
        """The queries or the keys as a `Side`; with `met`, as owners of sums over it, with their part of p."""
        t, num = self.t, self.t[name].shape[2]
        nothing = t[name].new_empty(0)
        part = nothing
        if met is not None:
            part = t[f"{name}_bias"] if self.varies(met) else t[f"{name}_bias"] + t[f"{met}_bias"]
            part = part.expand(self.batch, -1, num, -1)
            if f"{name}_weight" in self.has:
                part = part + t[name] @ t[f"{name}_weight"].mT
        entry = getattr(self.places, name) if self.places else torch.empty(0, dtype=torch.int32, device=nothing.device)
        return Side(t[name], part.contiguous(), t[f"{name}_bias"], t[f"{name}_phase"], t[f"{name}_pos"], entry, num)

    def arguments(self, own: str, other: str) -> dict[str, Any]:
        """The common arguments of all kernels with owners of one side, paired with the other."""
        t = self.t
        weights = {name: t[name] for name in WEIGHTS}
        geometry = len(t["key_bias"]) > 1
        seen_geometry = int("seen" in self.has and len(t["seen"]) > 1)
        entries, displacements = (t["table"].shape[1], self.places.displacements) if self.places else (0, 0)
        return {
            "own": self.side(own, other),
            "other": self.side(other, None),
            "layer": Layer(weight=t[f"{other}_weight"], table=t["table"], **weights),
            "extent": Extent(self.kernels, int(geometry), seen_geometry, entries, displacements),
            "seen": t["seen"],
        }

    def plan(self, own: str, other: str, value_dim: int, *, phase: bool = False, pos: bool = False) -> Plan:
        """Compile options of a kernel whose values have `value_dim` channels; `phase` and `pos` as in `Plan`."""
        sign, dimensions = (1 if own == "query" else -1), self.t["key_pos"].shape[-1]
        return Plan(
            ACTIVATION=self.activation,
            PRECISION=precision(),
            SIGN=sign,
            TABLE=self.places is not None,
            BIAS=self.varies(other),
            CAUSAL="seen" in self.has,
            # features of the other side are multiplied by the other side's weights
            WEIGHT=f"{other}_weight" in self.has,
            PRODUCT="product_weight" in self.has,
            DISTANCE=self.reads_distance,
            PHASE=phase,
            POS=pos,
            ROTATION=self.frequencies > 0 and (phase or sign == 1),
            WIDTH=self.width,
            DIM=self.dim,
            VALUE_DIM=value_dim,
            FREQUENCIES=self.frequencies,
            DIMENSIONS=dimensions,
            D=padded(self.dim),
            E=padded(value_dim),
            L=padded(self.frequencies),
            S=padded(dimensions, at_least=2),
        )

    def by_kernel(self, value: Tensor) -> Tensor:
        """`(B, G, N, c)` to `(G, B·N, c)`, the order in which owners are numbered."""
        return value.transpose(0, 1).flatten(1, 2)

    def by_batch(self, value: Tensor, points: int) -> Tensor:
        """`(G, B·N, c)` to `(B, G, N, c)`."""
        return value.unflatten(1, (self.batch, points)).transpose(0, 1)

    def owners_at_once(self, bytes_per_owner: int) -> int:
        """Number of owners that fill the workspace."""
        return max(1, WORKSPACE_BYTES // max(1, bytes_per_owner))


@final
class Places(NamedTuple):
    """Indices of points into the table of R, int32; see `_rows_of`.

    First come the `displacements` of the grid: query i and key j have the row entry_i + entry_j, where entry_i is that
    of the cell as far from the last as i is from the first. Then, for each key off the grid, one row per query; then,
    for each query off the grid, one row per key.
    """

    query: Tensor  # (Nq,)
    key: Tensor  # (N,)
    cell: Tensor  # the cell of each entry, -1 where there is none: (displacements,)
    keys_beside: Tensor  # int64
    displacements: int
    start: int
    """The first query of the grid."""
    size: int
    """Cells of the grid."""

    @property
    def rows(self) -> Tensor:
        """The row of every pair, `(Nq, N)`."""
        query, key = self.query[:, None], self.key
        i, j = (torch.arange(len(side), device=side.device) for side in (self.query, self.key))
        own = query + torch.where(query >= self.displacements, j, key)
        return torch.where(key >= self.displacements, key + i[:, None], own)

    def beside(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of `(G, entries, w)` of keys off the grid, by query, and of queries off the grid, by key."""
        queries, keys = len(self.query), len(self.key)
        of_keys = len(self.keys_beside) * queries
        rest = rows[:, self.displacements :]
        by_query = rest[:, :of_keys].unflatten(1, (-1, queries))
        return by_query, rest[:, of_keys:].unflatten(1, (queries - self.size, keys))

    def numbers_beside(self, queries: slice) -> slice:
        """Indices among the queries off the grid, for a slice of queries before or after the grid."""
        shift = self.size if queries.start > self.start else 0
        return slice(queries.start - shift, queries.stop - shift)


def places_of(block: Block, num_queries: int, num_keys: int, device: torch.device) -> Places:
    """The `Places` of the points of an integral with a grid as its block."""
    # tensors made while a CUDA graph is captured belong to that graph
    is_captured = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return (_places.__wrapped__ if is_captured else _places)(block, num_queries, num_keys, device)


@functools.lru_cache(maxsize=64)
def _places(block: Block, num_queries: int, num_keys: int, device: torch.device) -> Places:
    numbers = functools.partial(torch.arange, device=device, dtype=torch.int32)
    entry = torch.zeros((), dtype=torch.int32, device=device)
    for extent in block.shape:
        entry = (entry * (2 * extent - 1))[..., None] + numbers(extent)
    entry = entry.flatten()
    displacements = math.prod(2 * extent - 1 for extent in block.shape)
    cell = torch.full((displacements,), -1, dtype=torch.int32, device=device)
    cell[entry.long()] = numbers(block.size)
    keys_beside, queries_beside = num_keys - block.size, num_queries - block.size
    of_keys = displacements + num_queries * numbers(keys_beside)
    of_queries = displacements + num_queries * keys_beside + num_keys * numbers(queries_beside)
    first, last = block.key_start, block.key_start + block.size
    every = torch.arange(num_keys, device=device)
    return Places(
        query=torch.cat([of_queries[: block.query_start], entry.flip(0), of_queries[block.query_start :]]),
        key=torch.cat([of_keys[:first], entry, of_keys[first:]]),
        cell=cell,
        keys_beside=torch.cat([every[:first], every[last:]]),
        displacements=displacements,
        start=block.query_start,
        size=block.size,
    )


def integral(inputs: PerceptronInputs, block: Block, activation: str) -> Tensor:
    """The integral, `(B, G, Nq, d_out)`; arguments as in `mlp_integral_triton`."""
    problem = Problem(inputs, block, activation)
    kernels, width, dim = problem.kernels, problem.width, problem.dim
    total, d = problem.batch * problem.num_queries, padded(problem.dim)
    out = inputs.query.new_empty(kernels, total, problem.out_dim)
    last = problem.weighed(problem.last.to(problem.sums_dtype)).flatten(1, 2)  # (G, w·d, d_out)
    loaded, has_rest = 2 * d + 2 * problem.frequencies, problem.has_rest("key")
    tile = choose_tile(sums_kernel, Room(width, d, loaded, problem.dtype, has_rest=has_rest))
    step = problem.owners_at_once(kernels * width * dim * problem.sums_dtype.itemsize)
    shared = problem.arguments("query", "key") | {"value": problem.values, "PLAN": problem.plan("query", "key", dim)}
    for first in range(0, total, step):
        count = min(step, total - first)
        parts, run = split(problem.num_keys, tile, count * tile.blocks(width) * kernels, out.device)
        dtype = torch.float32 if parts > 1 else problem.sums_dtype
        sums = torch.empty(kernels, count, parts, width * dim, dtype=dtype, device=out.device)
        at = dict(zip(FIRST, divmod(first, problem.num_queries), strict=True))
        chunk = {"sums": sums, "others": problem.num_keys, **at, "count": count, "parts": parts, "run": run}
        launch(sums_kernel, (count * parts, tile.blocks(width), kernels), tile, {**shared, **chunk})
        whole = sums.sum(2).to(last.dtype) if parts > 1 else sums.squeeze(2)
        out[:, first : first + count] = torch.bmm(whole, last)
    return problem.by_batch(out, problem.num_queries)


def grouped(count: int, points: int, blocks: int, device: torch.device) -> tuple[int, int]:
    """Number of owners per program, of `count` owners with `points` per batch entry, and number of programs."""
    entries = -(-count // points)
    together = max(1, min(TOGETHER, entries, count * blocks // (PROGRAMS_LEFT * multiprocessors(device))))
    return together, min(count, -(-entries // together) * points)


def zeros_apart(shapes: dict[str, torch.Size], device: torch.device) -> dict[str, Tensor]:
    """Zeros for sums in float32, one tensor each, which are returned without a conversion."""
    return {name: torch.zeros(shape, dtype=torch.float32, device=device) for name, shape in shapes.items()}


def zeros_together(shapes: dict[str, torch.Size], device: torch.device) -> dict[str, Tensor]:
    """Zeros for sums in one piece of memory and one launch; they are copied when converted to 16 bits."""
    # kernels are compiled for addresses divisible by 16 bytes
    sizes = [-(-shape.numel() // 4) * 4 for shape in shapes.values()]
    pieces = torch.zeros(sum(sizes), dtype=torch.float32, device=device).split(sizes)
    return {
        name: piece[: shape.numel()].view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


@final
class Gradients:
    """Sums the gradients of all tensors in float32; those of phases and positions are 0 where they are not `wanted`."""

    def __init__(self, problem: Problem, grad: Tensor, wanted: frozenset[str]) -> None:
        self.problem, self.t, self.wanted, self.grad = problem, problem.t, wanted, grad.contiguous()
        shapes = {name: problem.t[name].shape for name in problem.has - {"seen"}}
        self.sums = (zeros_together if grad.dtype.itemsize == 2 else zeros_apart)(shapes, grad.device)

    def run(self) -> dict[str, Tensor]:
        """All gradients."""
        self._of_queries()
        self._of_keys()
        if self.problem.places is not None:
            self._of_table(self.problem.places)
        if self.problem.scale != 1.0:
            torch.ops.aten._foreach_mul_(
                [self.sums[name] for name in FIRST_LAYER if name in self.sums], self.problem.scale
            )
        return self.sums

    def _of_queries(self) -> None:
        """Gradients owned by queries: of themselves, and of the weights of P, of the rotation and of the distance."""
        problem = self.problem
        grads = problem.by_kernel(self.grad)  # (G, B·Nq, d_out)
        last = problem.last.flatten(1, 2)
        owned = OwnerGradients(problem, self.wanted, "query", "key", problem.values)
        for first, count in owned.chunks():
            for name, partial in owned.launch(
                first, count, torch.bmm(grads[:, first : first + count], last.mT)
            ).items():
                self.sums[name].add_(partial.view_as(self.sums[name]))
        owned.add_to(self.sums)

    def _of_keys(self) -> None:
        """Gradients owned by keys: of themselves, of their masses, and of the last layer, from T."""
        problem, t, sums, last = self.problem, self.t, self.sums, self.problem.last
        values = problem.by_kernel(problem.values)  # (G, B·N, d)
        grad_values = torch.empty_like(values)
        owned = OwnerGradients(problem, self.wanted, "key", "query", self.grad)
        for first, count in owned.chunks():
            here = values[:, first : first + count]
            grads = torch.bmm(here, last.transpose(1, 2).flatten(2))
            turned = torch.empty_like(grads)  # T, (G, count, w·d_out)
            owned.launch(first, count, grads, turned)
            grad_values[:, first : first + count] = torch.bmm(turned, last.transpose(2, 3).flatten(1, 2))
            grad_last = torch.bmm(problem.weighed(here).mT, turned).unflatten(-1, (problem.width, problem.out_dim))
            sums["output_weight"].add_(grad_last.transpose(1, 2))
        owned.add_to(sums)
        by_batch = problem.by_batch(grad_values, problem.num_keys).float()
        sums["key"].add_(by_batch * t["weights"][:, None, :, None])
        sums["weights"].add_((by_batch * t["key"]).sum((1, 3)).sum_to_size(t["weights"].shape))

    def _of_table(self, places: Places) -> None:
        """The gradient of R, for as many queries at a time as the workspace holds, gathered by displacement."""
        problem, block, num_keys = self.problem, self.problem.block, self.problem.num_keys
        kernels, batch, width, dim = problem.kernels, problem.batch, problem.width, problem.dim
        last, device = problem.last.flatten(1, 2), self.grad.device
        total = self.sums["table"]
        # the first layer's weights stay in registers; A differs for each batch entry
        tile = choose_tile(relative_gradient_kernel, Room(width, 4 * padded(dim), 2 * padded(dim), problem.dtype))
        step = problem.owners_at_once(kernels * width * (batch * dim * problem.dtype.itemsize + 4 * num_keys))
        shared = problem.arguments("query", "key") | {"value": problem.values, "batch": batch}
        shared["PLAN"] = problem.plan("query", "key", dim)
        by_entry = tuned_tile(gather_table_kernel, Room(width, 1, 1, torch.float32), Tile(tile.units, 16, 4, 1))
        gather = {"entry": places.query, "cell": places.cell, "grad_table": total, "keys": num_keys, "WIDTH": width}
        gather |= {"own_start": block.query_start, "start": block.key_start, "entries": total.shape[1]}
        gather["displacements"] = places.displacements
        for queries, inside in split_at_block(problem.num_queries, step, block.query_start, block):
            first, count = queries.start, length(queries)
            grads = self.grad[:, :, queries].permute(1, 2, 0, 3).flatten(1, 2)  # (G, count·B, d_out)
            relative = torch.empty(kernels, count, num_keys, width, dtype=torch.float32, device=device)
            chunk = {"relative": relative, "count": count}
            grid = (count * -(-num_keys // tile.points), tile.blocks(width), kernels)
            grad_sums = torch.bmm(grads, last.mT)
            launch(relative_gradient_kernel, grid, tile, {**shared, **chunk, "first": first, "grads": grad_sums})
            if inside:
                grid = (-(-places.displacements // by_entry.points), by_entry.blocks(width), kernels)
                launch(gather_table_kernel, grid, by_entry, {**gather, **chunk, "first": first - block.query_start})
            self._add_beside(total, relative, places, queries, inside)
        if problem.unit is not None:
            total.mul_(problem.unit)

    def _add_beside(self, total: Tensor, relative: Tensor, places: Places, queries: slice, inside: bool) -> None:
        """Adds the gradients of the table's rows that belong to one pair each."""
        of_keys, of_queries = places.beside(total)
        beside = places.keys_beside
        if len(beside):
            of_keys[:, :, queries].copy_(relative[:, :, beside].transpose(1, 2))
        if not inside:
            rows = of_queries[:, places.numbers_beside(queries)]
            rows.copy_(relative)
            rows.index_fill_(2, beside, 0.0)


@final
class OwnerGradients:
    """Launches the backward kernel for all owners of one side, some at a time, and adds up the results.

    `wanted` has the names of the requested gradients; `value` is that of the other side.
    """

    def __init__(self, problem: Problem, wanted: frozenset[str], own: str, other: str, value: Tensor) -> None:
        self.problem, self.own, self.own_queries = problem, own, own == "query"
        self.points, self.others = problem.t[own].shape[2], problem.t[other].shape[2]
        self.value_dim = value.shape[-1]
        self.total = problem.batch * self.points
        frequencies = problem.frequencies
        phase = frequencies > 0 and f"{own}_phase" in wanted
        pos = problem.reads_distance and f"{own}_pos" in wanted
        d, e = padded(problem.dim), padded(self.value_dim)
        summed = 2 * d + 4 * frequencies if self.own_queries else d + e + (2 * frequencies if phase else 0)
        loaded, has_rest = d + e + 2 * frequencies, problem.has_rest(other)
        room = Room(problem.width, summed, loaded, problem.dtype, has_rest=has_rest, is_crowded=True)
        self.tile = choose_tile(gradients_kernel, room)
        self.blocks = self.tile.blocks(problem.width)
        plan = problem.plan(own, other, self.value_dim, phase=phase, pos=pos)
        self.bias = self._empty(self.total, problem.width)
        self.u = self._empty(self.blocks, self.total, problem.dim if plan.PRODUCT else 0)
        self.phase = self._empty(self.blocks, self.total, 2 * frequencies if phase else 0)
        self.pos = self._empty(self.blocks, self.total, plan.DIMENSIONS if pos else 0)
        self.arguments = problem.arguments(own, other) | {"value": value, "total": self.total, "PLAN": plan}
        columns = plan.DIM if plan.PRODUCT else 0, frequencies, frequencies, 1 if plan.DISTANCE else 0
        # gradients of parameters are computed with the queries
        self.parameters = dict(zip(WEIGHTS, columns if self.own_queries else (0,) * 4, strict=True))

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(self.problem.kernels, *shape, dtype=torch.float32, device=self.problem.values.device)

    def _by_batch(self, value: Tensor) -> Tensor:
        return self.problem.by_batch(value, self.points)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """The first owner of each chunk, and the number of owners."""
        problem = self.problem
        per_owner = problem.kernels * problem.width * self.value_dim * problem.dtype.itemsize
        step = problem.owners_at_once(per_owner)
        for first in range(0, self.total, step):
            yield first, min(step, self.total - first)

    def launch(self, first: int, count: int, grads: Tensor, sums: Tensor | None = None) -> dict[str, Tensor]:
        """Runs one chunk; for queries returns the gradients of weights, `(G, w, ...)`, for keys writes T to `sums`."""
        problem = self.problem
        together, programs = grouped(count, self.points, self.blocks * problem.kernels, grads.device)
        partial = {name: self._empty(programs, problem.width, size) for name, size in self.parameters.items()}
        chunk = {
            "grads": grads,
            "sums": self._empty(0) if sums is None else sums,
            "others": self.others,
            "received": GradientSums(self.bias, self.u, self.phase, self.pos, **partial),
            **dict(zip(FIRST, divmod(first, self.points), strict=True)),
            "count": count,
            "together": together,
            "before": first,
        }
        launch(gradients_kernel, (programs, self.blocks, problem.kernels), self.tile, {**self.arguments, **chunk})
        return {name: problem.weighed(value.sum(1)) for name, value in partial.items() if value.numel()}

    def add_to(self, sums: dict[str, Tensor]) -> None:
        """Adds the results of all chunks to the gradients of this side's tensors."""
        problem, own = self.problem, self.own
        by_bias = problem.weighed(self.bias)
        sums[f"{own}_bias"].add_(self._by_batch(by_bias).sum_to_size(sums[f"{own}_bias"].shape))
        if self.u.shape[-1]:
            sums[own].add_(self._by_batch(problem.weighed(self.u.sum(1))))
        if f"{own}_weight" in sums:
            bias = by_bias.to(problem.dtype)
            sums[f"{own}_weight"].add_(torch.bmm(bias.mT, problem.by_kernel(problem.t[own])))
            sums[own].add_(self._by_batch(torch.bmm(bias, problem.t[f"{own}_weight"])))
        for name, value in ((f"{own}_phase", self.phase), (f"{own}_pos", self.pos)):
            if value.shape[-1]:
                total = problem.weighed(value.sum((0, 1))).unflatten(0, (problem.batch, self.points))
                sums[name].add_(total.sum_to_size(sums[name].shape))
