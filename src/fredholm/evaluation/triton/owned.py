"""The gradients that queries own, or keys. Legend: `launch.py`."""

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.perceptron.tiles import PairInputs
from fredholm.evaluation.triton.gradients import gradients_kernel
from fredholm.evaluation.triton.problem import Problem, padded
from fredholm.evaluation.triton.tiles import choose_tile, launch

OWNERS_PER_PROGRAM = 8
"""Queries whose gradients of the first layer's weights one program sums in registers."""


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
