"""Linear solves and matrix exponentials, in place of torch.linalg where its gradients are inaccurate or it stalls.

Exponential. exp(M + E) = exp(M) + L(M, E) + …,   exp([[M, E], [0, M]]) = [[exp(M), L(M, E)], [0, exp(M)]]

The gradient is L(Mᵀ, G), linear in G. PyTorch (2.13) computes the exponential of the unscaled block, which its series
divides by the norm of the whole: with a G of size 1e10 four digits of M are left, and with 1e16 none. Here G is scaled
to norm 1 in the block, except in forward mode, where PyTorch's own rule is used.

PyTorch's series for a single matrix has a wrong coefficient, with an error of 2e-5 in float32
(https://github.com/pytorch/pytorch/issues/196592); that for a batch is correct.
"""

from typing import Any, final

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual

BATCHED = 64
"""Largest size of systems that are solved as a batch on every device."""


def solve(matrices: Tensor, right: Tensor) -> Tensor:
    """X with matrices · X = right, `(..., N, N)` and `(..., N, M)`."""
    if unpack_dual(matrices).tangent is None and unpack_dual(right).tangent is None:
        return torch.linalg.solve(matrices, right)
    # the tangent of torch.linalg.solve treats its factors as constants (torch 2.13), so its gradient is wrong
    return torch.linalg.lu_solve(*torch.linalg.lu_factor(matrices), right)


def solve_each(matrices: Tensor, right: Tensor) -> Tensor:
    """X with matrices · X = right, `(..., N, N)` and `(..., N, M)`; one by one for larger systems on a CPU.

    There torch 2.13 with MKL reported errors and stalled on batches of 200 x 200 systems in two threads.
    """
    if torch.compiler.is_exporting() or matrices.device.type != "cpu":
        return solve(matrices, right)
    size, count = matrices.shape[-1], matrices.shape[:-2].numel()
    if size <= BATCHED or count <= 1:
        return solve(matrices, right)
    pairs = zip(matrices.flatten(0, -3), right.flatten(0, -3), strict=True)
    return torch.stack([solve(*pair) for pair in pairs]).view(right.shape)


def matrix_exponential(matrices: Tensor) -> Tensor:
    """exp of each of `(..., n, n)`."""
    if forward_ad._current_level >= 0:  # inside forward-mode differentiation
        return _exponential(matrices)
    return _Exponential.apply(matrices)  # pyright: ignore[reportReturnType]


def _exponential(matrices: Tensor) -> Tensor:
    if matrices.shape[:-2].numel() == 1:
        return torch.linalg.matrix_exp(torch.stack([matrices, matrices])).select(0, 0)
    return torch.linalg.matrix_exp(matrices)


@final
class _Exponential(torch.autograd.Function):
    """See the head of the file."""

    @staticmethod
    def forward(matrices: Tensor) -> Tensor:
        """exp(M)."""
        return _exponential(matrices)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keeps M."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """L(Mᵀ, G), the adjoint of E ↦ L(M, E)."""
        (matrices,), (grad,) = ctx.saved_tensors, grads
        n = matrices.shape[-1]
        with torch.no_grad():  # L does not depend on it
            size = grad.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
            size = torch.where(size > 0, size, 1.0)
        above = torch.cat([matrices.mT, grad / size], dim=-1)
        below = torch.cat([torch.zeros_like(matrices), matrices.mT], dim=-1)
        return size * matrix_exponential(torch.cat([above, below], dim=-2))[..., :n, n:]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, ...], *args: Tensor) -> tuple[Tensor, int]:
        """Treats the mapped axis as a batch axis."""
        return matrix_exponential(args[0].movedim(in_dims[0], 0)), 0
