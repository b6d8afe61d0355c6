"""Routes of attention written out as in the papers: oracles of whole models, and peers for time."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import linear

from fredholm.evaluation import Integral, Queries, Route
from fredholm.kernels import Attention, LinearInfiniteAttention, ValueMixing


@final
@dataclass(frozen=True)
class WrittenWeights(Route[ValueMixing]):
    """All N x N weights of every head by the kernel's definition, times the values."""

    marker = ValueMixing
    weighs_pairs = True

    def refusals(self, integral: Integral[ValueMixing]) -> list[str]:
        """Refuses nothing; see `Route.refusals`."""
        return []

    def compute(self, integral: Integral[ValueMixing]) -> Tensor:
        """See `Route.compute`."""
        kernel = integral.kernel
        values = kernel.multiplicand(integral.u)[:, None] @ kernel.value_matrices().mT
        return (kernel.coefficients(*integral.arguments) @ values).transpose(1, 2).flatten(2)


@final
@dataclass(frozen=True)
class WrittenSoftmax(Route[Attention]):
    """Plain attention: scores, softmax and weighted sum, with as many heads at a time as fit scores in `max_bytes`."""

    marker = Attention
    queries = Queries.OWN
    max_bytes: int = 1 << 30

    def refusals(self, integral: Integral[Attention]) -> list[str]:
        """Refuses masks and weights; see `Route.refusals`."""
        return [] if integral.domain.is_plain else ["plain attention supports neither masks nor weights"]

    def compute(self, integral: Integral[Attention]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        q, k, v, scale = kernel.dot_product_form(u, domain, u, domain)
        together = max(1, self.max_bytes // max(1, 4 * len(u) * u.shape[1] ** 2))
        groups = zip(*(part.split(together, dim=1) for part in (q, k, v)), strict=True)
        out = [torch.softmax(scale * q @ k.mT, dim=-1) @ v for q, k, v in groups]
        return torch.cat(out, dim=1).transpose(1, 2).flatten(2)


@final
@dataclass(frozen=True)
class WrittenLinear(Route[LinearInfiniteAttention]):
    """Eq. 16-21 of the paper, line by line, without the discount, which the block of InfViT applies."""

    marker = LinearInfiniteAttention
    queries = Queries.OWN

    def refusals(self, integral: Integral[LinearInfiniteAttention]) -> list[str]:
        """Refuses masks and weights; see `Route.refusals`."""
        return [] if integral.domain.is_plain else ["eq. 16-21 support neither masks nor weights"]

    def compute(self, integral: Integral[LinearInfiniteAttention]) -> Tensor:
        """See `Route.compute`."""
        kernel, u = integral.kernel, integral.u
        q, v = (
            linear(u, weight, bias).unflatten(-1, (kernel.num_heads, -1)).transpose(1, 2)
            for weight, bias in ((kernel.query_weight, kernel.query_bias), (kernel.value_weight, kernel.value_bias))
        )
        energy = q.norm(dim=-1, keepdim=True)
        alpha = energy / energy.sum(2, keepdim=True)
        score = (q @ (alpha * q).sum(2)[..., None]).relu()
        context = (score / score.sum(2, keepdim=True) * v).sum(2, keepdim=True)
        return context.expand_as(v).transpose(1, 2).flatten(2)
