"""Small sampled integrals for tests, and reference sums that they must equal."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fredholm import IntegralOperator, kernels
from fredholm.domains import Domain, Points
from fredholm.kernels import Kernel
from fredholm.quadrature.nodes import NodesPerQuery, SharedNodes
from fredholm.quadrature.quadrature import Quadrature
from tests.contracts.routes import randomise
from tests.contracts.small_perceptron import small_perceptron


def mlp(pos_dim: int = 2, **settings: Any) -> kernels.MLP:
    """A kernel of six channels in two heads with random parameters."""
    return randomise(kernels.MLP(6, 2, pos_dim, **small_perceptron(**settings)).double())


def plain(kernel: Kernel, quadrature: Quadrature | None = None) -> IntegralOperator:
    """The integral without residual, bias and output projection."""
    return IntegralOperator(kernel, quadrature=quadrature, residual=False, bias=False, output_projection=False)


def literal_sum(
    kernel: Kernel,
    nodes: SharedNodes | NodesPerQuery,
    u: Tensor,
    domain: Domain,
    query: Tensor | None = None,
    query_domain: Domain | None = None,
) -> Tensor:
    """Σ_m w_m κ(x_i, y_{j_m}) u(y_{j_m}), node by node, with κ from the full matrix."""
    kappa = kernel.matrix(u, domain, query, query_domain)
    out = kappa.new_zeros(*kappa.shape[:2], kappa.shape[3])
    values = torch.einsum("bqkoi,bki->bqko", kappa, u)
    for b in range(out.shape[0]):
        for q in range(out.shape[1]):
            if isinstance(nodes, NodesPerQuery):
                index, weights = (part.expand(len(u), -1, -1)[b, q] for part in (nodes.index, nodes.weights))
                out[b, q] = weights.to(u.dtype) @ values[b, q, index]
                continue
            heads = nodes.index.shape[1]
            by_head = values[b, q].unflatten(-1, (heads, -1))
            parts = [nodes.weights[b, h].to(u.dtype) @ by_head[nodes.index[b, h], h] for h in range(heads)]
            out[b, q] = torch.cat(parts)
    return out


def scattered(n: int, batch: int | None = None, dims: int = 2, seed: int = 0, **more: Any) -> Points:
    """Random points in the unit box."""
    shape = (n, dims) if batch is None else (batch, n, dims)
    return Points(torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), **more)


def signal(n: int, batch: int = 2, seed: int = 0, channels: int = 6) -> Tensor:
    """A random signal `(batch, n, channels)`."""
    return torch.randn(batch, n, channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check_gradients(got: Tensor, expected: Tensor, leaves: Sequence[Tensor]) -> None:
    """Asserts that two integrals and their gradients for one cotangent agree."""
    torch.testing.assert_close(got, expected)
    cotangent = signal(got.shape[1], seed=5)
    ours, theirs = (torch.autograd.grad(out, leaves, cotangent) for out in (got, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-9)
