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

    max_bytes: int = 4 << 30

    def unsupported_reasons(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> list[str]:
        """Refuses only for size; see `Evaluation.unsupported_reasons`."""
        num_queries = (domain if query_domain is None else query_domain).num_points
        size = u.shape[0] * num_queries * domain.num_points * kernel.out_dim * kernel.in_dim * u.element_size()
        if size > self.max_bytes:
            return [f"κ would need {size / 2**30:.1f} GiB, above max_bytes = {self.max_bytes / 2**30:.1f} GiB"]
        return []

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        kappa = kernel.matrix(u, domain, query, query_domain)
        mass = domain.weights.to(u.dtype).expand(u.shape[0], domain.num_points)
        return torch.einsum("bqkoi,bki->bqo", kappa, (u * mass[..., None]).to(kappa.dtype))
