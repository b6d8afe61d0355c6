"""The oracle: κ in full, then a sum."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation.evaluation import Evaluation
from fredholm.kernels import Kernel
from fredholm.kernels.head_blocks import weigh_by_head


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
        if domain.pair_weights is not None and not kernel.holds_pair_weights:
            kappa = weigh_by_head(kappa, domain.pair_weights)
        return torch.einsum("bqkoi,bki->bqo", kappa, (kernel.multiplicand(u) * mass[..., None]).to(kappa.dtype))
