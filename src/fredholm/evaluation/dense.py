"""The oracle: κ in full, then a sum."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation.evaluation import Evaluation
from fredholm.kernels import Kernel


@final
@dataclasses.dataclass(frozen=True)
class Dense(Evaluation):
    """Materialises κ, `(B, Nq, N, d_out, d_in)`, and sums: the definition of the integral, for small N.

    Args:
        max_bytes: refuses when κ alone would need more memory than this.
    """

    weighs_pairs = True
    max_bytes: int = 4 << 30

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses only for size; see `Evaluation.unsupported_reasons`."""
        num_queries = (domain if query_domain is None else query_domain).num_points
        pairs = u.shape[0] * num_queries * domain.num_points
        size = pairs * kernel.out_dim * (kernel.in_dim + kernel.is_affine) * u.element_size()
        if size > self.max_bytes:
            return [f"κ would need {size / 2**30:.1f} GiB, above max_bytes = {self.max_bytes / 2**30:.1f} GiB"]
        return []

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        kappa = kernel.matrix(u, domain, query, query_domain)
        mass = kernel.measure(domain).to(u.dtype).expand(u.shape[0], domain.num_points)
        if domain.pair_weights is not None:
            kappa = _weighted(kappa, domain.pair_weights)
        return torch.einsum("bqkoi,bki->bqo", kappa, (kernel.multiplicand(u) * mass[..., None]).to(kappa.dtype))


def _weighted(kappa: Tensor, pair_weights: Tensor) -> Tensor:
    """κ times m, `(B', H', Nq, N)`; of the output channels each head has its share, in a row."""
    heads = pair_weights.shape[1]
    if kappa.shape[-2] % heads:
        raise ValueError(
            f"Dense: pair weights for {heads} heads do not fit a kernel with {kappa.shape[-2]} output channels"
        )
    by_head = kappa.unflatten(-2, (heads, -1)) * pair_weights.movedim(1, -1)[..., None, None].to(kappa.dtype)
    return by_head.flatten(-3, -2)
