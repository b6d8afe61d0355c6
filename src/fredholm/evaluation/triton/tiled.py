"""The fused integral of a pairwise perceptron kernel: the route, and its operator."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains import GridBlock
from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.evaluation import Integral
from fredholm.evaluation.perceptron.all_pairs import by_parts, plain_integral, with_relative
from fredholm.evaluation.perceptron.sums import PerceptronOutputs
from fredholm.evaluation.perceptron.tiled import common_grid, integrate_pairwise
from fredholm.evaluation.perceptron.tiles import Block, PerceptronInputs
from fredholm.evaluation.triton.machine import LARGEST_DIM, FusedRoute
from fredholm.kernels import PairwiseMLP


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
        table: where queries and keys hold the same grid, what depends on x - y is read from a table, as in `Toeplitz`;
            False computes it by parts everywhere, as in `Tiled`.
    """

    marker = PairwiseMLP
    table: bool = True

    def unfused(self, integral: Integral[PairwiseMLP]) -> list[str]:
        """Hidden layers, large heads, and displacements that wrap round beside a table; see `FusedRoute.unfused`."""
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
        return integrate_pairwise(integral, _fused, self._blocks(integral), reverses=False)

    def _blocks(self, integral: Integral[PairwiseMLP]) -> tuple[GridBlock, GridBlock] | None:
        if not (self.table and integral.kernel.reads_displacement(integral.domain)):
            return None
        return integral.once(common_grid)


EDGE_BYTES = 1 << 28
"""What R of the pairs with points beside a grid may fill, to be read from a table as R within the grid is."""


def _whole_table(inputs: PerceptronInputs, block: Block) -> PerceptronInputs:
    """With R of all pairs in the table, `(G, w, entries)`, as `Places` has it, and nothing else to find it from.

    Without a grid, or with too many points beside it, inputs without a table.
    """
    t, num_queries, num_keys = inputs, inputs.query.shape[2], inputs.key.shape[2]
    if t.table is None:
        return t
    keys_beside, queries_beside = num_keys - block.size, num_queries - block.size
    kernels, width = t.table.shape[:2]
    beside = keys_beside * num_queries + queries_beside * num_keys
    if beside and (len(t.key_bias) > 1 or beside * kernels * width * t.table.element_size() > EDGE_BYTES):
        return t._replace(table=None)
    parts = [t.table.flatten(2)]
    if beside:
        keys, queries = _beside(num_keys, block.key_start, block), _beside(num_queries, block.query_start, block)
        of_keys = by_parts(_selected(t, "key", keys)).expand(1, kernels, num_queries, keys_beside, width)
        of_queries = by_parts(_selected(t, "query", queries)).expand(1, kernels, queries_beside, num_keys, width)
        parts += [of_keys[0].permute(0, 3, 2, 1).flatten(2), of_queries[0].permute(0, 3, 1, 2).flatten(2)]
    return t._replace(table=torch.cat(parts, dim=2), **dict.fromkeys(_RELATIVE))


_RELATIVE = ("sin_weight", "cos_weight", "query_phase", "key_phase", "distance_weight", "wrapped_weight", "frequencies")
"""What R is computed from where no table has it."""


def _beside(num_points: int, start: int, block: Block) -> list[slice]:
    """The points before the block that starts there, and behind it."""
    return [slice(0, start), slice(start + block.size, num_points)]


def _selected(t: PerceptronInputs, side: str, runs: list[slice]) -> PerceptronInputs:
    """What positions tell of some points of one side."""
    found = {name: getattr(t, name) for name in (f"{side}_phase", f"{side}_pos")}
    chosen = {
        name: None if value is None else torch.cat([value[:, run] for run in runs], dim=1)
        for name, value in found.items()
    }
    return t._replace(**chosen)


def _fused(inputs: PerceptronInputs, block: Block, activation: str) -> Tensor:
    inputs = _whole_table(inputs, block)
    return mlp_integral_triton(inputs, (Block() if inputs.table is None else block).numbers, activation).out


def _plain(inputs: PerceptronInputs, block: list[int], activation: str) -> tuple[Tensor]:
    """See `plain_integral`; R is read from the whole table."""
    if inputs.table is None:
        return plain_integral(inputs, block, activation)
    # the library can be imported without triton
    from fredholm.evaluation.triton.perceptron import places_of

    places = places_of(Block.of(block), inputs.query.shape[2], inputs.key.shape[2], inputs.query.device)
    return with_relative(inputs, inputs.table[:, :, places.rows].movedim(1, -1)[None], activation)


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
"""As `mlp_integral`, in 32 or 16 bits but for positions (float32) and `seen` (int64), without hidden layers."""
