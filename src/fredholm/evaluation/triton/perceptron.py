"""The integral of a pairwise perceptron kernel on a GPU, forward and backward.

Legend (beside that of `perceptron/tiles.py`)
    owner o   the point that a program works for: a query, or in half of the backward pass a key
    x         a point that the owner is paired with, in tiles of `points`
    A_o       (w, d): K + P ⊙ u_i for a query, Q + P ⊙ u_j for a key, so that in p one matrix product has all units:
              p_ij = R_ij + α_i + K u_j + (P ⊙ u_i) u_j + Q u_i, and the owner's own part of it is a bias
    S_i       Σ_j h_ij ⊗ ω_j u_j, (w, d);  out_i = W S_i
    T_j       Σ_i h_ij ⊗ g_i, (w, d_out), g the gradient of the integral: both the gradient of ω_j u_j, W T_j, and that
              of W, Σ_j ω_j u_j ⊗ T_j, follow from it
    Y_j       W ω_j u_j, (w, d_out), so that the gradient of h_ij is Y_j g_i = (W g_i) ω_j u_j

A forward program accumulates S_i in registers over tiles of keys; W is one matrix product for many queries. Backward,
every tile is built twice: by the query's program, which accumulates all that belongs to the query, and by the key's,
which accumulates all that belongs to the key. So each sum has one owner and one order: no atomic operations, and two
runs are identical. Seven matrix products of a pair's w·d against the forward pass's two; a table of displacements, the
sums of which no point owns, costs two more.
"""

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from fredholm.evaluation.perceptron.tiles import Block, PerceptronInputs
from fredholm.evaluation.triton.machine import activation_for, padded, precision
from fredholm.evaluation.triton.perceptron_kernels import (
    Extent,
    Layer,
    Plan,
    Received,
    Side,
    gather_table_kernel,
    gradients_kernel,
    relative_gradient_kernel,
    sums_kernel,
)
from fredholm.evaluation.triton.tuning import Room, Tile, choose_tile, launch, split, tuned_tile

WORKSPACE_BYTES = 1 << 26
"""What S, Y or T of the owners that are launched at once may fill: more than a launch needs to fill a GPU, little
enough to stay in its cache."""
OWNERS_PER_PROGRAM = 8
"""Queries whose gradients of the first layer's weights one program sums in registers."""
WEIGHTS = ("product_weight", "sin_weight", "cos_weight", "distance_weight")
"""Weights of the first layer that belong to neither side."""


@final
class Problem:
    """One integral's tensors, contiguous and by role, and what its kernels are compiled for."""

    def __init__(self, inputs: PerceptronInputs, block: Block, activation: str) -> None:
        nothing = inputs.query.new_empty(0)
        self.t = t = {name: nothing if x is None else x.contiguous() for name, x in inputs._asdict().items()}
        self.has = frozenset(name for name, x in inputs._asdict().items() if x is not None)
        self.block = block
        self.batch, self.kernels, self.num_queries, self.dim = inputs.query.shape
        self.num_keys, self.width, self.out_dim = inputs.key.shape[2], *inputs.output_weight.shape[1::2]
        self.dtype, self.activation = inputs.query.dtype, activation
        self.values = (t["key"] * t["weights"][:, None, :, None]).contiguous()
        self.table = t["table"].flatten(2).mT.contiguous() if self.block.size else nothing
        self.entry, self.cell = entries_of(self.block.shape, nothing.device)
        self.beside = self.block.size < max(self.num_queries, self.num_keys)
        self.frequencies = t["sin_weight"].shape[-1] if self.beside and "sin_weight" in self.has else 0
        self.reads_distance = self.beside and "distance_weight" in self.has
        self.last = t["output_weight"]  # (G, w, d, d_out)

    def side(self, name: str) -> Side:
        """The queries, or the keys."""
        parts = {what: self.t[f"{name}_{what}"] for what in ("bias", "phase", "pos", "weight")}
        return Side(u=self.t[name], num=self.t[name].shape[2], **parts)

    def arguments(self, own: str, other: str) -> dict[str, Any]:
        """What every kernel is given whose owners are of one side, and meet the other."""
        t, starts = self.t, {"query": self.block.query_start, "key": self.block.key_start}
        weights = {name: t[name] for name in WEIGHTS}
        seen_geometry = int("seen" in self.has and len(t["seen"]) > 1)
        entries = self.table.shape[1] if self.block.size else 0
        return {
            "own": self.side(own),
            "other": self.side(other),
            "layer": Layer(table=self.table, entry=self.entry, **weights),
            "extent": Extent(self.kernels, int(len(t["key_bias"]) > 1), seen_geometry, self.block.size, entries),
            "seen": t["seen"],
            "own_start": starts[own],
            "start": starts[other],
        }

    def plan(self, own: str, other: str, value_dim: int, *, phase: bool = False, pos: bool = False) -> Plan:
        """What a kernel is compiled for, whose values have `value_dim` channels; `phase` and `pos` as in `Plan`."""
        sign, dimensions = (1 if own == "query" else -1), self.t["key_pos"].shape[-1]
        return Plan(
            ACTIVATION=activation_for(self.activation, self.dtype),
            PRECISION=precision(),
            SIGN=sign,
            TABLE=self.block.size > 0,
            BESIDE=self.beside,
            CAUSAL="seen" in self.has,
            # the other points' features meet the weights of the other points
            OWN_WEIGHT=f"{own}_weight" in self.has,
            WEIGHT=f"{other}_weight" in self.has,
            PRODUCT="product_weight" in self.has,
            READS=bool(self.has & {f"{other}_weight", "product_weight"}),
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
        """How many owners fill the workspace."""
        return max(1, WORKSPACE_BYTES // max(1, bytes_per_owner))


def entries_of(shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Where cells lie in a table of displacements, and the inverse, -1 where no cell does.

    Query i, counted backwards through the grid, and key j are entry_i + entry_j apart.
    """
    if not shape:
        return torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    entry = torch.zeros((), dtype=torch.int64, device=device)
    for extent in shape:
        entry = (entry * (2 * extent - 1))[..., None] + torch.arange(extent, device=device)
    entry = entry.flatten()
    size = 1
    for extent in shape:
        size *= 2 * extent - 1
    cell = torch.full((size,), -1, dtype=torch.int64, device=device)
    cell[entry] = torch.arange(len(entry), device=device)
    return entry, cell


def integral(inputs: PerceptronInputs, block: Block, activation: str) -> Tensor:
    """The integral, `(B, G, Nq, d_out)`; arguments as in `mlp_integral_triton`."""
    problem = Problem(inputs, block, activation)
    kernels, width, dim = problem.kernels, problem.width, problem.dim
    total, d = problem.batch * problem.num_queries, padded(problem.dim)
    out = inputs.query.new_empty(kernels, total, problem.out_dim)
    last = problem.last.flatten(1, 2)  # (G, w·d, d_out)
    tile = choose_tile(sums_kernel, Room(width, d, 2 * d + 2 * problem.frequencies, problem.dtype))
    step = problem.owners_at_once(kernels * width * dim * inputs.query.element_size())
    shared = problem.arguments("query", "key") | {"value": problem.values, "PLAN": problem.plan("query", "key", dim)}
    for first in range(0, total, step):
        count = min(step, total - first)
        parts, run = split(problem.num_keys, tile, count * tile.blocks(width) * kernels, out.device)
        dtype = torch.float32 if parts > 1 else problem.dtype
        sums = torch.empty(kernels, count, parts, width * dim, dtype=dtype, device=out.device)
        chunk = {"sums": sums, "first": first, "count": count, "parts": parts, "run": run}
        launch(sums_kernel, (count * parts, tile.blocks(width), kernels), tile, {**shared, **chunk})
        whole = sums.sum(2).to(problem.dtype) if parts > 1 else sums.squeeze(2)
        out[:, first : first + count] = torch.bmm(whole, last)
    return problem.by_batch(out, problem.num_queries)


@final
class Gradients:
    """Sums the gradients of all tensors in float32; those of phases and positions are 0 where they are not `wanted`."""

    def __init__(self, problem: Problem, grad: Tensor, wanted: frozenset[str]) -> None:
        self.problem, self.t, self.wanted, self.grad = problem, problem.t, wanted, grad.contiguous()
        self.sums = {
            name: torch.zeros(problem.t[name].shape, dtype=torch.float32, device=grad.device)
            for name in problem.has - {"seen"}
        }

    def run(self) -> dict[str, Tensor]:
        """All gradients."""
        self._of_queries()
        self._of_keys()
        if self.problem.block.size:
            self._of_table()
        return self.sums

    def _of_queries(self) -> None:
        """What queries own: themselves, the weights of P, of the rotation and of the distance."""
        problem = self.problem
        grads = problem.by_kernel(self.grad)  # (G, B·Nq, d_out)
        last = problem.last.flatten(1, 2)
        owned = Owned(problem, self.wanted, "query", "key", problem.values)
        for first, count in owned.chunks():
            for name, partial in owned.launch(
                first, count, torch.bmm(grads[:, first : first + count], last.mT)
            ).items():
                self.sums[name].add_(partial.sum(1).view_as(self.sums[name]))
        owned.add_to(self.sums)

    def _of_keys(self) -> None:
        """What keys own: themselves, their weights in the measure, and the last layer, by way of T."""
        problem, t, sums, last = self.problem, self.t, self.sums, self.problem.last
        values = problem.by_kernel(problem.values)  # (G, B·N, d)
        grad_values = torch.empty_like(values)
        owned = Owned(problem, self.wanted, "key", "query", self.grad)
        for first, count in owned.chunks():
            here = values[:, first : first + count]
            grads = torch.bmm(here, last.transpose(1, 2).flatten(2))
            turned = torch.empty_like(grads)  # T, (G, count, w·d_out)
            owned.launch(first, count, grads, turned)
            grad_values[:, first : first + count] = torch.bmm(turned, last.transpose(2, 3).flatten(1, 2))
            grad_last = torch.bmm(here.mT, turned).unflatten(-1, (problem.width, problem.out_dim))
            sums["output_weight"].add_(grad_last.transpose(1, 2))
        owned.add_to(sums)
        by_batch = problem.by_batch(grad_values, problem.num_keys).float()
        sums["key"].add_(by_batch * t["weights"][:, None, :, None])
        sums["weights"].add_((by_batch * t["key"]).sum((1, 3)).sum_to_size(t["weights"].shape))

    def _of_table(self) -> None:
        """The gradient of R, for as many queries at a time as the workspace holds, gathered by displacement."""
        problem, size = self.problem, self.problem.block.size
        kernels, batch, width, dim = problem.kernels, problem.batch, problem.width, problem.dim
        start, device = problem.block.query_start, self.grad.device
        grads = self.grad[:, :, start : start + size].permute(1, 2, 0, 3)  # (G, block, B, d_out)
        last = problem.last.flatten(1, 2)
        total = torch.zeros(problem.table.shape, dtype=torch.float32, device=device)
        # the first layer's weights stay in registers, for another A at each batch entry
        tile = choose_tile(relative_gradient_kernel, Room(width, 4 * padded(dim), 2 * padded(dim), problem.dtype))
        step = problem.owners_at_once(kernels * width * (batch * dim * problem.dtype.itemsize + 4 * size))
        by_entry = tuned_tile(gather_table_kernel, Room(width, 1, 1, torch.float32), Tile(tile.units, 16, 4, 1))
        shared = problem.arguments("query", "key") | {"value": problem.values, "batch": batch}
        shared["PLAN"] = problem.plan("query", "key", dim)
        gather = {"entry": problem.entry, "cell": problem.cell, "grad_table": total, "block": size, "WIDTH": width}
        entries = gather["entries"] = problem.table.shape[1]
        for first in range(0, size, step):
            count = min(step, size - first)
            grad_sums = torch.bmm(grads[:, first : first + count].flatten(1, 2), last.mT)
            relative = torch.empty(kernels, count, size, width, dtype=torch.float32, device=device)
            chunk = {"relative": relative, "first": first, "count": count}
            grid = (count * -(-size // tile.points), tile.blocks(width), kernels)
            launch(relative_gradient_kernel, grid, tile, {**shared, **chunk, "grads": grad_sums})
            grid = (-(-entries // by_entry.points), by_entry.blocks(width), kernels)
            launch(gather_table_kernel, grid, by_entry, {**gather, **chunk})
        self.sums["table"].copy_(total.mT.view_as(self.sums["table"]))


@final
class Owned:
    """Launches the backward kernel for all owners of one side, some at a time, and adds up what it leaves.

    `wanted` names those whose gradients somebody wants, `value` is what the owners meet.
    """

    def __init__(self, problem: Problem, wanted: frozenset[str], own: str, other: str, value: Tensor) -> None:
        self.problem, self.own, self.own_queries = problem, own, own == "query"
        self.points, self.value_dim = problem.t[own].shape[2], value.shape[-1]
        self.total = problem.batch * self.points
        frequencies = problem.frequencies
        phase = frequencies > 0 and f"{own}_phase" in wanted
        pos = problem.reads_distance and f"{own}_pos" in wanted
        d, e = padded(problem.dim), padded(self.value_dim)
        summed = 2 * d + 4 * frequencies if self.own_queries else d + e + (2 * frequencies if phase else 0)
        self.tile = choose_tile(gradients_kernel, Room(problem.width, summed, d + e + 2 * frequencies, problem.dtype))
        self.blocks = self.tile.blocks(problem.width)
        plan = problem.plan(own, other, self.value_dim, phase=phase, pos=pos)
        self.bias = self._empty(self.total, problem.width)
        self.u = self._empty(self.blocks, self.total, problem.dim)
        self.phase = self._empty(self.blocks, self.total, 2 * frequencies if phase else 0)
        self.pos = self._empty(self.blocks, self.total, plan.DIMENSIONS if pos else 0)
        self.arguments = problem.arguments(own, other) | {"value": value, "total": self.total, "PLAN": plan}
        columns = plan.DIM if plan.PRODUCT else 0, frequencies, frequencies, 1 if plan.DISTANCE else 0
        # parameters are left to the queries
        self.parameters = dict(zip(WEIGHTS, columns if self.own_queries else (0,) * 4, strict=True))

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(self.problem.kernels, *shape, dtype=torch.float32, device=self.problem.values.device)

    def _by_batch(self, value: Tensor) -> Tensor:
        return self.problem.by_batch(value, self.points)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """The first owner of each chunk, and how many there are."""
        problem = self.problem
        per_owner = problem.kernels * problem.width * self.value_dim * problem.dtype.itemsize
        step = problem.owners_at_once(per_owner)
        for first in range(0, self.total, step):
            yield first, min(step, self.total - first)

    def launch(self, first: int, count: int, grads: Tensor, sums: Tensor | None = None) -> dict[str, Tensor]:
        """Runs one chunk; queries leave the gradients of weights, `(G, programs, w, ...)`, keys leave T in `sums`."""
        problem, owners = self.problem, OWNERS_PER_PROGRAM if self.own_queries else 1
        programs = -(-count // owners)
        partial = {name: self._empty(programs, problem.width, size) for name, size in self.parameters.items()}
        chunk = {
            "grads": grads,
            "sums": self._empty(0) if sums is None else sums,
            "received": Received(self.bias, self.u, self.phase, self.pos, **partial),
            "first": first,
            "count": count,
            "owners": owners,
        }
        launch(gradients_kernel, (programs, self.blocks, problem.kernels), self.tile, {**self.arguments, **chunk})
        return {name: value for name, value in partial.items() if value.numel()}

    def add_to(self, sums: dict[str, Tensor]) -> None:
        """Adds what all chunks left to the gradients of this side's tensors."""
        problem, own = self.problem, self.own
        sums[f"{own}_bias"].add_(self._by_batch(self.bias).sum_to_size(sums[f"{own}_bias"].shape))
        sums[own].add_(self._by_batch(self.u.sum(1)))
        if f"{own}_weight" in sums:
            u = problem.by_kernel(problem.t[own]).float()
            sums[f"{own}_weight"].add_(torch.bmm(self.bias.mT, u))
        for name, value in ((f"{own}_phase", self.phase), (f"{own}_pos", self.pos)):
            if value.shape[-1]:
                total = value.sum((0, 1)).unflatten(0, (problem.batch, self.points))
                sums[name].add_(total.sum_to_size(sums[name].shape))
