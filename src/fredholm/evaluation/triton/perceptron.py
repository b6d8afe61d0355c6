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

from fredholm.evaluation.perceptron.tiles import Block, PairInputs
from fredholm.evaluation.triton.machine import Tile, activation_for, choose_tile, launch, padded, precision
from fredholm.evaluation.triton.perceptron_kernels import (
    gather_table_kernel,
    gradients_kernel,
    relative_gradient_kernel,
    sums_kernel,
)

WORKSPACE_BYTES = 1 << 26
"""What S, Y or T of the owners that are launched at once may fill: more than a launch needs to fill a GPU, little
enough to stay in its cache."""


OWNERS_PER_PROGRAM = 8
"""Queries whose gradients of the first layer's weights one program sums in registers."""


@final
class Problem:
    """One integral's tensors, contiguous and by role, and the constants of its kernels."""

    def __init__(self, inputs: PairInputs, block: list[int], activation: str) -> None:
        self.t: Any = PairInputs(*(inputs.query.new_empty(0) if t is None else t.contiguous() for t in inputs))
        t = self.t
        self.block = Block(block[0], block[1], tuple(block[2:]))
        self.batch, self.kernels, self.num_queries, self.dim = t.query.shape
        self.num_keys, self.width, self.out_dim = t.key.shape[2], t.key_bias.shape[-1], t.output_weight.shape[-1]
        self.values = (t.key * t.weights[:, None, :, None]).contiguous()
        self.table = t.table.flatten(2).mT.contiguous() if self.block.size else t.table
        self.entry, self.cell = entries_of(self.block.shape, t.query.device)
        self.geometry = int(t.key_bias.shape[0] > 1)
        self.shared = {
            "seen": t.seen,
            "product": t.product_weight,
            "table": self.table,
            "entry": self.entry,
            "kernels": self.kernels,
            "geometry": self.geometry,
            "seen_geometry": int(t.seen.ndim == 2 and t.seen.shape[0] > 1),
            "block": self.block.size,
            "entries": self.table.shape[1] if self.block.size else 0,
            "ACTIVATION": activation_for(activation, t.query.dtype),
            "PRECISION": precision(),
            "CAUSAL": t.seen.numel() > 0,
            "PRODUCT": t.product_weight.numel() > 0,
            "WIDTH": self.width,
            "DIM": self.dim,
            "D": padded(self.dim),
        }
        beside = self.block.size < max(self.num_queries, self.num_keys)
        frequencies = t.sin_weight.shape[-1] if beside and t.sin_weight.numel() else 0
        self.relative = {
            "sin_weight": t.sin_weight,
            "cos_weight": t.cos_weight,
            "distance_weight": t.distance_weight,
            "TABLE": self.block.size > 0,
            "BESIDE": beside,
            "DISTANCE": beside and t.distance_weight.numel() > 0,
            "FREQUENCIES": frequencies,
            "DIMENSIONS": t.key_pos.shape[-1],
            "L": padded(frequencies),
            "S": padded(t.key_pos.shape[-1], at_least=2),
        }

    def content(self, *, own_queries: bool) -> dict[str, Any]:
        """Arguments that tell what the owners, queries or else keys, and the points that they meet, contain."""
        t = self.t
        queries = {"u": t.query, "bias": t.query_bias, "weight": t.query_weight, "num": self.num_queries}
        keys = {"u": t.key, "bias": t.key_bias, "weight": t.key_weight, "num": self.num_keys}
        queries["start"], keys["start"] = self.block.query_start, self.block.key_start
        own, other = (queries, keys) if own_queries else (keys, queries)
        # the other points' features meet the weights of the other points
        named = {f"own_{name}": value for name, value in own.items()} | other
        return {**named, "OWN_WEIGHT": own["weight"].numel() > 0, "WEIGHT": other["weight"].numel() > 0}

    def positions(self, *, own_queries: bool) -> dict[str, Any]:
        """Arguments that tell where the owners and the other points lie."""
        t = self.t
        queries, keys = {"phase": t.query_phase, "pos": t.query_pos}, {"phase": t.key_phase, "pos": t.key_pos}
        own, other = (queries, keys) if own_queries else (keys, queries)
        return {**{f"own_{name}": value for name, value in own.items()}, **other}

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


def integral(inputs: PairInputs, block: list[int], activation: str) -> Tensor:
    """The integral, `(B, G, Nq, d_out)`; arguments as in `mlp_integral_triton`."""
    problem = Problem(inputs, block, activation)
    t, kernels, width, dim = problem.t, problem.kernels, problem.width, problem.dim
    total = problem.batch * problem.num_queries
    out = t.query.new_empty(kernels, total, problem.out_dim)
    last = t.output_weight.flatten(1, 2)  # (G, w·d, d_out)
    d = padded(dim)
    tile = choose_tile(width, d, 2 * d + 2 * problem.relative["FREQUENCIES"], t.query.dtype)
    step = problem.owners_at_once(kernels * width * dim * t.query.element_size())
    arguments: dict[str, Any] = {
        **problem.shared,
        **problem.relative,
        **problem.content(own_queries=True),
        **problem.positions(own_queries=True),
        "value": problem.values,
    }
    for first in range(0, total, step):
        count = min(step, total - first)
        sums = t.query.new_empty(kernels, count, width * dim)
        chunk = {"sums": sums, "first": first, "count": count}
        launch(sums_kernel, (count, tile.blocks(width), kernels), tile, {**arguments, **chunk})
        out[:, first : first + count] = torch.bmm(sums, last)
    return problem.by_batch(out, problem.num_queries)


@final
class Gradients:
    """Sums the gradients of all tensors in float32; those of phases and positions are 0 where they are not `wanted`."""

    def __init__(self, problem: Problem, grad: Tensor, wanted: frozenset[str]) -> None:
        self.problem, self.t, self.wanted = problem, problem.t, wanted
        self.grad = grad.contiguous()
        device = grad.device
        zeros = (torch.zeros(t.shape, dtype=torch.float32, device=device) for t in self.t[:-1])
        self.sums: Any = PairInputs._make([*zeros, self.t.seen])

    def run(self) -> dict[str, Tensor]:
        """All gradients."""
        self._of_queries()
        self._of_keys()
        if self.problem.block.size:
            self._of_table()
        return self.sums._asdict()

    def _of_queries(self) -> None:
        """What queries own: themselves, the weights of P, of the rotation and of the distance."""
        problem, t, sums = self.problem, self.t, self.sums
        grads = problem.by_kernel(self.grad)  # (G, B·Nq, d_out)
        last = t.output_weight.flatten(1, 2)
        owned = Owned(problem, self.wanted, own_queries=True)
        for first, count in owned.chunks():
            grad_sums = torch.bmm(grads[:, first : first + count], last.mT)
            for name, partial in owned.launch(first, count, grad_sums, problem.values).items():
                getattr(sums, name).add_(partial.sum(1).view_as(getattr(sums, name)))
        owned.add_to(sums)

    def _of_keys(self) -> None:
        """What keys own: themselves, their weights in the measure, and the last layer, by way of T."""
        problem, t, sums = self.problem, self.t, self.sums
        values = problem.by_kernel(problem.values)  # (G, B·N, d)
        width, out_dim = problem.width, problem.out_dim
        last = t.output_weight  # (G, w, d, d_out)
        grad_values = torch.empty_like(values)
        owned = Owned(problem, self.wanted, own_queries=False)
        for first, count in owned.chunks():
            here = values[:, first : first + count]
            grads = torch.bmm(here, last.transpose(1, 2).flatten(2))
            turned = torch.empty_like(grads)  # T, (G, count, w·d_out)
            owned.launch(first, count, grads, self.grad, turned)
            grad_values[:, first : first + count] = torch.bmm(turned, last.transpose(2, 3).flatten(1, 2))
            grad_last = torch.bmm(here.mT, turned).unflatten(-1, (width, out_dim))
            sums.output_weight.add_(grad_last.transpose(1, 2))
        owned.add_to(sums)
        by_batch = problem.by_batch(grad_values, problem.num_keys).float()
        sums.key.add_(by_batch * t.weights[:, None, :, None])
        sums.weights.add_((by_batch * t.key).sum((1, 3)).sum_to_size(t.weights.shape))

    def _of_table(self) -> None:
        """The gradient of R, for as many queries at a time as the workspace holds, gathered by displacement."""
        problem, t, size = self.problem, self.t, self.problem.block.size
        kernels, batch, width, dim = problem.kernels, problem.batch, problem.width, problem.dim
        start = problem.block.query_start
        grads = self.grad[:, :, start : start + size].permute(1, 2, 0, 3)  # (G, block, B, d_out)
        last = t.output_weight.flatten(1, 2)
        total = torch.zeros(problem.table.shape, dtype=torch.float32, device=self.grad.device)
        # the first layer's weights stay in registers, for another A at each batch entry
        tile = choose_tile(width, 4 * padded(dim), 2 * padded(dim), t.query.dtype)
        step = problem.owners_at_once(kernels * width * (batch * dim * t.query.element_size() + 4 * size))
        by_entry = Tile(tile.units, 16, 4, 1)
        shared = {**problem.shared, **problem.content(own_queries=True), "value": problem.values, "batch": batch}
        gather = {"entry": problem.entry, "cell": problem.cell, "grad_table": total, "block": size, "WIDTH": width}
        entries = gather["entries"] = problem.table.shape[1]
        for first in range(0, size, step):
            count = min(step, size - first)
            grad_sums = torch.bmm(grads[:, first : first + count].flatten(1, 2), last.mT)
            relative = torch.empty(kernels, count, size, width, dtype=torch.float32, device=self.grad.device)
            chunk = {"relative": relative, "first": first, "count": count}
            grid = (count * -(-size // tile.points), tile.blocks(width), kernels)
            launch(relative_gradient_kernel, grid, tile, {**shared, **chunk, "grads": grad_sums})
            grid = (-(-entries // by_entry.points), tile.blocks(width), kernels)
            launch(gather_table_kernel, grid, by_entry, {**gather, **chunk})
        self.sums.table.copy_(total.mT.view_as(self.sums.table))


@final
class Owned:
    """Launches the backward kernel for all owners of one kind, some at a time, and adds up what it leaves.

    `wanted` names those whose gradients somebody wants.
    """

    def __init__(self, problem: Problem, wanted: frozenset[str], *, own_queries: bool) -> None:
        self.problem, self.own_queries = problem, own_queries
        self.side = "query" if own_queries else "key"
        self.points = problem.num_queries if own_queries else problem.num_keys
        self.total = problem.batch * self.points
        self.value_dim = problem.dim if own_queries else problem.out_dim
        frequencies = problem.relative["FREQUENCIES"]
        phase = frequencies > 0 and f"{self.side}_phase" in wanted
        pos = problem.relative["DISTANCE"] and f"{self.side}_pos" in wanted
        d, e = padded(problem.dim), padded(self.value_dim)
        summed = 2 * d + 4 * frequencies if own_queries else d + e + (2 * frequencies if phase else 0)
        self.tile = choose_tile(problem.width, summed, d + e + 2 * frequencies, problem.t.query.dtype)
        self.blocks = self.tile.blocks(problem.width)
        self.bias = self._empty(self.total, problem.width)
        self.u = self._empty(self.blocks, self.total, problem.dim)
        self.phase = self._empty(self.blocks, self.total, 2 * frequencies if phase else 0)
        self.pos = self._empty(self.blocks, self.total, problem.relative["DIMENSIONS"] if pos else 0)
        self.arguments = {
            **problem.shared,
            **problem.relative,
            **problem.content(own_queries=own_queries),
            **problem.positions(own_queries=own_queries),
            "grad_bias": self.bias,
            "grad_u": self.u,
            "grad_phase": self.phase,
            "grad_pos": self.pos,
            "total": self.total,
            "SIGN": 1 if own_queries else -1,
            "PHASE": phase,
            "POS": pos,
            "VALUE_DIM": self.value_dim,
            "E": e,
        }

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(self.problem.kernels, *shape, dtype=torch.float32, device=self.problem.t.query.device)

    def _by_batch(self, value: Tensor) -> Tensor:
        return self.problem.by_batch(value, self.points)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """The first owner of each chunk, and how many there are."""
        problem = self.problem
        per_owner = problem.kernels * problem.width * self.value_dim * problem.t.query.element_size()
        step = problem.owners_at_once(per_owner)
        for first in range(0, self.total, step):
            yield first, min(step, self.total - first)

    def launch(
        self, first: int, count: int, grads: Tensor, value: Tensor, sums: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Runs one chunk; queries leave the gradients of weights, `(G, programs, w, ...)`, keys leave T in `sums`."""
        problem, relative = self.problem, self.problem.relative
        owners = OWNERS_PER_PROGRAM if self.own_queries else 1
        programs = -(-count // owners)
        columns = {
            "product": problem.dim if problem.shared["PRODUCT"] else 0,
            "sin": relative["FREQUENCIES"],
            "cos": relative["FREQUENCIES"],
            "distance": 1 if relative["DISTANCE"] else 0,
        }
        kept = programs if self.own_queries else 0
        partial = {name: self._empty(kept, problem.width, size) for name, size in columns.items()}
        chunk = {
            "grads": grads,
            "value": value,
            "sums": self._empty(0) if sums is None else sums,
            "first": first,
            "count": count,
            "owners": owners,
        }
        named = {f"grad_{name}": value for name, value in partial.items()}
        grid = (programs, self.blocks, problem.kernels)
        launch(gradients_kernel, grid, self.tile, {**self.arguments, **chunk, **named})
        return {f"{name}_weight": value for name, value in partial.items() if value.numel()}

    def add_to(self, sums: PairInputs) -> None:
        """Adds what all chunks left to the gradients of this side's tensors."""
        problem, side = self.problem, self.side
        named = sums._asdict()
        named[f"{side}_bias"].add_(self._by_batch(self.bias).sum_to_size(named[f"{side}_bias"].shape))
        named[side].add_(self._by_batch(self.u.sum(1)))
        weight = named[f"{side}_weight"]
        if weight.numel():
            u = problem.by_kernel(getattr(problem.t, side)).float()
            weight.add_(torch.bmm(self.bias.mT, u))
        for name, value in (("phase", self.phase), ("pos", self.pos)):
            if value.shape[-1]:
                total = value.sum((0, 1)).unflatten(0, (problem.batch, self.points))
                named[f"{side}_{name}"].add_(total.sum_to_size(named[f"{side}_{name}"].shape))
