"""The integral of a hop, or of a series of hops."""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.evaluation.neumann.direct import Factors
from fredholm.evaluation.neumann.hops import hop, measured_hop, row_measures
from fredholm.evaluation.neumann.problem import Problem
from fredholm.evaluation.neumann.solvers import DIRECT, solve
from fredholm.evaluation.neumann.tiles import HopTiles


class Found(NamedTuple):
    """The integral, and what the backward pass needs beside the inputs; what is not there is empty. G = B·H."""

    out: Tensor  # (G, Nq, c)
    norm: Tensor  # c of the queries, (G, Nq)
    inner: Tensor  # the series at the points, where the queries are others: (G, N, c)
    inner_norm: Tensor  # c of the points, likewise: (G, N)
    rows: Tensor  # r of `norms.py`: (G, n) in float64
    factors: Tensor  # of I - B, transposed: (G, N, N)
    pivots: Tensor  # (G, N), int32


def forward(problem: Problem, *, keep: bool) -> Found:
    """See `Found`; factors are kept on demand."""
    asked, points, dtype = problem.asked, problem.points, problem.dtype
    reached, inner, inner_norm = problem.value, problem.value.new_empty(0), problem.value.new_empty(0)
    factors, pivots = problem.value.new_empty(0), problem.value.new_empty(0, dtype=torch.int32)
    rows = None
    if problem.gamma is not None:
        rows = row_measures(points, problem.plan.has_one_norm)
        inner_norm = _norm(problem, points, rows).to(dtype)
        factors, pivots = _memory(problem, keep)
        inner = _series(problem, problem.weight(inner_norm), factors, pivots)
        if not problem.is_elsewhere:
            nothing = problem.value.new_empty(0), problem.value.new_empty(0)
            return Found(inner, inner_norm, *nothing, _kept(problem, rows), factors, pivots)
        reached = reached + inner
    elif problem.is_elsewhere and problem.plan.has_one_norm:
        rows = row_measures(points, squares=True)
    if rows is not None and problem.plan.has_one_norm:
        out = problem.value.new_zeros(problem.num_heads, asked.num_queries, reached.shape[-1])
        for heads in asked.groups():
            out[heads] = hop(asked, reached[heads], heads)
        norm = _norm(problem, asked, rows).to(dtype)
    else:
        out, rows = _measured(problem, reached)
        norm = _norm(problem, asked, rows).to(dtype)
    return Found(out * problem.weight(norm), norm, inner, inner_norm, _kept(problem, rows), factors, pivots)


def _norm(problem: Problem, tiles: HopTiles, rows: Tensor) -> Tensor:
    """c at the queries of some tiles: from rows of the points, or from their own."""
    if not problem.plan.has_one_norm:
        return rows
    return problem.norm(rows).at(tiles.num_queries, problem.order(tiles))


def _kept(problem: Problem, rows: Tensor) -> Tensor:
    return rows if problem.plan.has_one_norm else rows.new_empty(0)


def _measured(problem: Problem, signal: Tensor) -> tuple[Tensor, Tensor]:
    """S f at the queries, and what is measured of their rows."""
    asked = problem.asked
    out = signal.new_zeros(problem.num_heads, asked.num_queries, signal.shape[-1])
    rows = torch.zeros(out.shape[:2], dtype=torch.float64, device=out.device)
    for heads in asked.groups():
        out[heads], rows[heads] = measured_hop(asked, signal[heads], heads, problem.plan.has_one_norm)
    return out, rows


def _memory(problem: Problem, keep: bool) -> tuple[Tensor, Tensor]:
    """Where factors go that are kept."""
    size = (problem.num_heads, problem.points.num_keys) if keep and problem.plan.solver == DIRECT else (0, 0)
    like = problem.value
    if not size[1]:
        return like.new_empty(0), like.new_empty(0, dtype=torch.int32)
    return like.new_empty(*size, size[1]), like.new_empty(size, dtype=torch.int32)


def _series(problem: Problem, weight: Tensor, factors: Tensor, pivots: Tensor) -> Tensor:
    """y at the points; factors are left in their memory, if there is some."""
    points, value = problem.points, problem.value
    out = value.new_zeros(problem.num_heads, points.num_queries, value.shape[-1])
    for heads in points.groups():
        system = problem.system(heads, weight)
        made = Factors.within(factors[heads], pivots[heads], system) if pivots.numel() else None
        out[heads] = solve(problem.plan, system, value[heads], made)
    return out
