"""Systems of linear equations, one after another."""

import torch
from torch import Tensor

BATCHED = 64
"""Up to this size systems are solved together anywhere."""


def solve_each(matrices: Tensor, right: Tensor) -> Tensor:
    """X with matrices · X = right, `(..., N, N)` and `(..., N, M)`: one by one where larger ones are on a CPU.

    There torch 2.13 with MKL was seen to report errors and to stall on batches of 200 x 200 systems in two threads.
    """
    size, count = matrices.shape[-1], matrices.shape[:-2].numel()
    if matrices.device.type != "cpu" or size <= BATCHED or count <= 1:
        return torch.linalg.solve(matrices, right)
    pairs = zip(matrices.flatten(0, -3), right.flatten(0, -3), strict=True)
    return torch.stack([torch.linalg.solve(*pair) for pair in pairs]).view(right.shape)
