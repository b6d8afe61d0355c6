"""The exponential of matrices, with gradients that keep their digits whatever the size of what comes in.

    exp(M + E) = exp(M) + L(M, E) + …,   exp([[M, E], [0, M]]) = [[exp(M), L(M, E)], [0, exp(M)]]

The gradient is L(Mᵀ, G), linear in G. PyTorch (2.13) takes the exponential of the block as it stands, which its series
divides by the size of the whole: beside a G of size 1e10 four digits of M are left, and beside 1e16 none. Here G has
norm 1 in the block. So it has where nothing is differentiated in forward mode, of which PyTorch's own rule is kept.

The series of PyTorch for one matrix has a wrong coefficient, 2e-5 in float32
(https://github.com/pytorch/pytorch/issues/196592); that for several has not.
"""

from typing import Any, final

import torch
from torch import Tensor
from torch.autograd import forward_ad


def matrix_exponential(matrices: Tensor) -> Tensor:
    """exp of each of `(..., n, n)`."""
    if forward_ad._current_level >= 0:  # a level of forward mode is open
        return _exponential(matrices)
    return _Exponential.apply(matrices)  # pyright: ignore[reportReturnType]


def _exponential(matrices: Tensor) -> Tensor:
    if matrices.shape[:-2].numel() == 1:
        return torch.linalg.matrix_exp(torch.stack([matrices, matrices])).select(0, 0)
    return torch.linalg.matrix_exp(matrices)


@final
class _Exponential(torch.autograd.Function):
    """See the top of the file."""

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
        """All at once."""
        return matrix_exponential(args[0].movedim(in_dims[0], 0)), 0
