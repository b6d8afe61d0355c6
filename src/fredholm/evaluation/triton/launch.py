"""The integral of a pairwise perceptron kernel on a GPU, forward and backward.

Legend (beside that of `pairwise/inputs.py`)
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

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.perceptron.tiles import PairInputs
from fredholm.evaluation.triton.problem import Problem, padded
from fredholm.evaluation.triton.sums import sums_kernel
from fredholm.evaluation.triton.tiles import choose_tile, launch


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
