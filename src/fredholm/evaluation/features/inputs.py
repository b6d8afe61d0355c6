"""What the features of one side are computed from.

Legend of this folder (kernel g of G, G = 1 or H; batch entry b; point j; hidden unit k; see `kernels.PointFeatures`)
    p_j   P γ_j + R u_j + c              h_j   [φ(p_j); 1], w + 1 features
    S     Σ_j ω_j h_j ⊗ v_j, (w + 1, d)  T     a table (w + 1, n), so that h_i T is n numbers a point

Points go by in chunks. Nothing of a point's w features outlives its chunk, and the backward pass computes them again:
memory is O(N·C) beside a chunk. Inside a chunk arrays are (H, b, c, …), so that heads are the batch of matrix products.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.evaluation.tiling import ranges


class FeatureInputs(NamedTuple):
    """All tensors of the features of one side, in one dtype; an input that is not read has no entries. B' is 1 or B."""

    lifted: Tensor  # γ: (B', N, f)
    content: Tensor  # u: (B, N, H, e)
    position_weight: Tensor  # P: (G, w, f)
    content_weight: Tensor  # R: (G, w, e)
    bias: Tensor  # c: (G, w)


class Chunk(NamedTuple):
    """Batch entries and points that are treated at once: some of the points of one entry, or all of several."""

    batch: slice
    points: slice


def chunks(batch: int, num_points: int, numbers: int, elements: int) -> list[Chunk]:
    """Chunks of at most `elements` entries where a point has `numbers`, the batch innermost; at least a point each."""
    size = max(1, elements // numbers)
    entries = max(1, size // max(1, num_points))
    return [Chunk(b, points) for points in ranges(num_points, size) for b in ranges(batch, entries)]


def accumulator(t: Tensor) -> torch.dtype:
    """The dtype of sums: at least float32."""
    return torch.promote_types(t.dtype, torch.float32)


def by_head(value: Tensor, at: Chunk) -> Tensor:
    """A chunk of `(B, N, H, d)` as `(H, b, c, d)`."""
    return value[at.batch, at.points].permute(2, 0, 1, 3)


def by_point(value: Tensor) -> Tensor:
    """`(H, b, c, d)` as `(b, c, H, d)`."""
    return value.permute(1, 2, 0, 3)


def stacked(value: Tensor) -> Tensor:
    """`(H, b, c, d)` as one stack of matrices `(H·b, c, d)`."""
    return value.flatten(0, 1)
