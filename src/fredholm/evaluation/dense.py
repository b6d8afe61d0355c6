"""The oracle: materialises κ, then sums."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.domains.checks import is_open
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.kernels import Kernel
from fredholm.kernels.heads import weigh_by_head


@final
@dataclasses.dataclass(frozen=True)
class Dense(Route[Kernel]):
    """Materialises κ, `(B, Nq, N, d_out, d_in)`, and sums: the definition of the integral, for small N.

    Args:
        max_bytes: refuses when κ alone would need more memory than this.
    """

    weighs_pairs = lists_pairs = True
    max_bytes: int = 4 << 30

    def refusals(self, integral: Integral[Kernel]) -> list[str]:
        """Refuses large integrals, and listed pairs with features, which `matrix` does not read."""
        kernel, u, listed = integral.kernel, integral.u, integral.domain.pair_list
        if listed is not None and listed.has_features:
            return ["listed pairs have features of their own"]
        if kernel.is_recursive and integral.has_open_sizes:
            return ["κ is computed point by point, and the number of points is symbolic in the graph; fix their number"]
        pairs = u.shape[0] * integral.num_queries * integral.domain.num_points
        size = pairs * kernel.out_dim * (kernel.in_dim + kernel.is_affine) * u.element_size()
        if not is_open(size) and size > self.max_bytes:
            return [f"κ would need {size / 2**30:.1f} GiB, above max_bytes = {self.max_bytes / 2**30:.1f} GiB"]
        return []

    def compute(self, integral: Integral[Kernel]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain.with_dense_pairs()
        kappa = kernel.matrix(u, domain, *integral.arguments[2:])
        if not integral.has_open_sizes:
            _check_matrix(kappa, integral)
        mass = kernel.measure(domain).to(u.dtype).expand(u.shape[0], domain.num_points)
        if domain.pair_weights is not None and not kernel.holds_pair_weights:
            kappa = weigh_by_head(kappa, domain.pair_weights)
        return torch.einsum("bqkoi,bki->bqo", kappa, (kernel.multiplicand(u) * mass[..., None]).to(kappa.dtype))


def _check_matrix(kappa: Tensor, integral: Integral[Kernel]) -> None:
    """Raises ValueError for a κ of a wrong shape, which the sum would broadcast."""
    kernel, batch = integral.kernel, integral.u.shape[0]
    columns = kernel.in_dim + kernel.is_affine
    expected = (batch, integral.num_queries, integral.domain.num_points, kernel.out_dim, columns)
    if tuple(kappa.shape) not in (expected, (1, *expected[1:])):
        raise ValueError(
            f"{type(kernel).__name__}.matrix must be (batch, queries, points, out_dim, in_dim), here {expected}; "
            f"got {tuple(kappa.shape)}"
        )
