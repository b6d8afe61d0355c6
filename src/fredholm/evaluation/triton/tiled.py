"""The fused integral of a pairwise perceptron kernel: the route, and its operator."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains import GridBlock
from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.perceptron.all_pairs import plain_integral, with_relative
from fredholm.evaluation.perceptron.sums import PerceptronOutputs
from fredholm.evaluation.perceptron.tiled import between_cells, common_grid, integrate_pairwise
from fredholm.evaluation.perceptron.tiles import Block, PerceptronInputs
from fredholm.evaluation.triton.machine import LARGEST_DIM, FusedRoute
from fredholm.kernels import PairwiseMLP
from fredholm.kernels.perceptron.mlp import norm


@final
@dataclasses.dataclass(frozen=True)
class TritonTiled(FusedRoute[PairwiseMLP]):
    """For `PairwiseMLP` kernels on a GPU: `Tiled` and `Toeplitz` in one fused pass, sums in registers.

    For float32, bfloat16 and float16, on NVIDIA GPUs of compute capability 8.0 or more. Sums are kept in float32; the
    backward pass uses no atomic operations, so that two runs are identical. float32 products follow
    `torch.set_float32_matmul_precision`. float16 ends at 65504: hidden units beyond it, and gradients, become infinite,
    as in `Tiled`; S and its product with the last layer are in float32. With TRITON_INTERPRET=1, set before the library
    is imported, float32 and float16 run in Triton's interpreter on a CPU: a slow check of the kernels.

    Args:
        table: whether to read the relative part from a table, as in `Toeplitz`, where queries and keys hold the same
            grid; False computes it by parts everywhere, as in `Tiled`.
    """

    marker = PairwiseMLP
    table: bool = True

    def unfused(self, integral: Integral[PairwiseMLP]) -> list[str]:
        """Refuses hidden layers, large heads, and periodic displacements without a table; see `FusedRoute.unfused`."""
        kernel, domain, reasons = integral.kernel, integral.domain, []
        dim = kernel.in_dim // kernel.num_heads
        if kernel.depth > 2:
            reasons.append(f"the kernel has {kernel.depth} layers, and only 2 are fused")
        if dim > LARGEST_DIM:
            reasons.append(f"a head has {dim} channels, above {LARGEST_DIM}")
        if kernel.num_frequencies > LARGEST_DIM:
            reasons.append(f"the kernel has {kernel.num_frequencies} frequencies, above {LARGEST_DIM}")
        if domain.is_periodic and kernel.reads_displacement(domain) and self._blocks(integral) is None:
            reasons.append("displacements on a periodic domain are read from a table, and there is none")
        return reasons

    def compute(self, integral: Integral[PairwiseMLP]) -> Tensor:
        """See `Route.compute`."""
        blocks = self._blocks(integral)
        table = None if blocks is None else _table_of_all_pairs(integral, *blocks)
        return integrate_pairwise(integral, _fused, None if table is None else blocks, table)

    def _blocks(self, integral: Integral[PairwiseMLP]) -> tuple[GridBlock, GridBlock] | None:
        if not (self.table and integral.kernel.reads_displacement(integral.domain)):
            return None
        return integral.cached(common_grid)


EDGE_BYTES = 1 << 28
"""Largest memory of R, and γ, of the pairs with points off a grid, for which R is read from a table."""


def _table_of_all_pairs(integral: Integral[PairwiseMLP], queries: GridBlock, keys: GridBlock) -> Tensor | None:
    """R, `(G, entries, w)`, in the order of `Places`, for a grid among queries and keys and the points off the grid.

    None where these are too many, or differ within the batch.
    """
    kernel, domain = integral.kernel, integral.domain
    query_domain = domain if integral.own_positions else integral.query_domain
    keys_beside, queries_beside = domain.num_points - keys.num_points, query_domain.num_points - queries.num_points
    pairs = keys_beside * query_domain.num_points + queries_beside * domain.num_points
    if pairs:
        kernels = 1 if kernel.head_shared else kernel.num_heads
        entry = kernels * kernel.width * integral.working_dtype.itemsize
        features = 2 * kernel.num_frequencies * torch.float32.itemsize
        if pairs * (entry + features) > EDGE_BYTES or any(
            side.pos.shape[:-2].numel() > 1 for side in (query_domain, domain)
        ):
            return None

    def found() -> tuple[Tensor, Tensor]:
        displacement, distance = between_cells(keys, domain)
        if not pairs:
            return displacement, distance
        x, y = (side.pos.to(displacement.dtype).flatten(0, -2) for side in (query_domain, domain))
        of_keys, of_queries = x - _beside(y, keys)[:, None], _beside(x, queries)[:, None] - y
        beside = domain.wrap(torch.cat([of_keys.flatten(0, 1), of_queries.flatten(0, 1)]))
        return torch.cat([displacement, beside]), torch.cat([distance, norm(beside)])

    # not for differentiable positions: activation checkpointing expects R inside the layer, which it runs twice
    is_shared = query_domain is domain and not domain.pos.requires_grad
    between = domain.cached((_table_of_all_pairs, queries, keys), found) if is_shared else found()
    return kernel.relative_part(*between, is_periodic=domain.is_periodic)


def _beside(pos: Tensor, block: GridBlock) -> Tensor:
    """The positions before the block, and after it."""
    return torch.cat([pos[: block.start], pos[block.start + block.num_points :]])


def _fused(inputs: PerceptronInputs, block: Block, activation: str) -> Tensor:
    return mlp_integral_triton(inputs, block.numbers, activation).out


def _plain(inputs: PerceptronInputs, block: list[int], activation: str) -> tuple[Tensor]:
    """See `plain_integral`; R is read from the whole table."""
    if inputs.table is None:
        return plain_integral(inputs, block, activation)
    # the library can be imported without triton
    from fredholm.evaluation.triton.perceptron import places_of

    places = places_of(Block.of(block), inputs.query.shape[2], inputs.key.shape[2], inputs.query.device)
    return with_relative(inputs, inputs.table[:, places.rows][None], activation)


def _forward(inputs: PerceptronInputs, block: list[int], activation: str) -> PerceptronOutputs:
    # the library can be imported without triton
    from fredholm.evaluation.triton.perceptron import integral

    # kernels are launched on the current device
    with torch.cuda.device_of(inputs.query):
        return PerceptronOutputs(integral(inputs, Block.of(block), activation))


def _like(inputs: PerceptronInputs, block: list[int], activation: str) -> PerceptronOutputs:
    batch, kernels, queries, _ = inputs.query.shape
    out = inputs.query.new_empty(kernels, batch, queries, inputs.output_weight.shape[-1])
    return PerceptronOutputs(out.transpose(0, 1))


def _backward(
    inputs: PerceptronInputs,
    outputs: PerceptronOutputs,
    grads: PerceptronOutputs,
    wanted: frozenset[str],
    block: list[int],
    activation: str,
) -> dict[str, Tensor]:
    # the library can be imported without triton
    from fredholm.evaluation.triton.perceptron import Gradients, Problem

    with torch.cuda.device_of(inputs.query):
        return Gradients(Problem(inputs, Block.of(block), activation), grads.out, wanted).run()


mlp_integral_triton = Operator(
    "mlp_integral_triton",
    PerceptronInputs,
    PerceptronOutputs,
    _forward,
    _like,
    _backward,
    plain=_plain,
    is_counted=False,
)
"""`mlp_integral`, in 32 or 16 bits but for positions (float32) and `seen` (int64), without hidden layers.

A table has R of all pairs, `(G, entries, w)`; see `Places`.
"""
