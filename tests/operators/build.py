"""Small operators for tests, and their formula."""

from typing import Any

import torch
from torch import Tensor

from fredholm import IntegralOperator, domains, kernels
from fredholm.evaluation import AUTO, Evaluation
from tests.contracts.small_perceptron import small_perceptron

CONTENT_FREE = kernels.KernelInputs(query_content=False, product=False)


def operator(
    pos_dim: int = 2,
    *,
    dtype: torch.dtype = torch.float64,
    evaluation: Evaluation = AUTO,
    residual: bool = True,
    bias: bool = True,
    **kernel: Any,
) -> IntegralOperator:
    """An operator of six channels in two heads with random parameters: initial zeros would hide mistakes."""
    settings = small_perceptron(**kernel)
    op = IntegralOperator(
        kernels.MLP(6, 2, pos_dim, **settings), evaluation=evaluation, residual=residual, bias=bias
    ).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in op.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
        frequencies = op.kernel.get_buffer("frequencies")
        # multiples of 1/4, which are exact in every dtype
        frequencies.copy_((4 * torch.randn(frequencies.shape, generator=generator)).round() / 4)
    return op


def signal(n: int, batch: int = 2, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """A random signal `(batch, n, 6)`."""
    return torch.randn(batch, n, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def formula(
    op: IntegralOperator,
    u: Tensor,
    domain: domains.Domain,
    query: Tensor | None = None,
    query_domain: domains.Domain | None = None,
) -> Tensor:
    """W^O Σ_j ω_j κ_ij u_j + W u_i + b, from the kernel's own matrices."""
    kappa = op.kernel.matrix(u, domain, query, query_domain)
    weights = domain.weights.to(u.dtype).expand(u.shape[0], -1)
    assert op.output_weight is not None
    out = torch.einsum("bqkoi,bk,bki->bqo", kappa, weights, u) @ op.output_weight.T
    if op.residual_weight is not None:
        out = out + (u if query is None else query) @ op.residual_weight.T
    return out if op.bias is None else out + op.bias


def gradients(op: IntegralOperator, *leaves: Tensor) -> dict[str, Tensor]:
    """Gradients of the parameters and of `leaves` after `backward`; zero where there is none."""
    named = dict(op.named_parameters()) | {f"input {i}": leaf for i, leaf in enumerate(leaves)}
    return {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in named.items()}
