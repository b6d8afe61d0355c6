"""Systems of linear equations, alone or one after another."""

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

BATCHED = 64
"""Up to this size systems are solved together anywhere."""


def solve(matrices: Tensor, right: Tensor) -> Tensor:
    """X with matrices · X = right, `(..., N, N)` and `(..., N, M)`."""
    if unpack_dual(matrices).tangent is None and unpack_dual(right).tangent is None:
        return torch.linalg.solve(matrices, right)
    # the tangent that `solve` gives takes its factors for constants (torch 2.13), and so has a wrong gradient
    return torch.linalg.lu_solve(*torch.linalg.lu_factor(matrices), right)


def solve_each(matrices: Tensor, right: Tensor) -> Tensor:
    """X with matrices · X = right, `(..., N, N)` and `(..., N, M)`: one by one where larger ones are on a CPU.

    There torch 2.13 with MKL was seen to report errors and to stall on batches of 200 x 200 systems in two threads.
    """
    if torch.compiler.is_exporting() or matrices.device.type != "cpu":
        return solve(matrices, right)
    size, count = matrices.shape[-1], matrices.shape[:-2].numel()
    if size <= BATCHED or count <= 1:
        return solve(matrices, right)
    pairs = zip(matrices.flatten(0, -3), right.flatten(0, -3), strict=True)
    return torch.stack([solve(*pair) for pair in pairs]).view(right.shape)
