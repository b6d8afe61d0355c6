"""A pointwise linear map.

κ(x, y) = W 1[x = y], integrated against the measure that counts points: the sifting property of ITNet (arXiv
2606.19538), eq. 41, and its 1 x 1 convolution, eq. 48.
"""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.domains import Domain
from fredholm.kernels.kernel import Kernel


@final
class Pointwise(Kernel):
    """κ = W where x = y, else 0: `torch.nn.Linear` as an integral.

    Args:
        in_dim, out_dim: channels in and out, each >= 1.

    Raises:
        ValueError: on sizes below 1.
    """

    pos_dim = None
    is_causal = True
    reads_query = False
    counts_points = True
    is_pairwise = False

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        for name, size in (("in_dim", in_dim), ("out_dim", out_dim)):
            check_count("kernels.Pointwise", name, size)
        self.in_dim, self.out_dim = in_dim, out_dim
        self.weight = nn.Parameter(torch.empty(out_dim, in_dim))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """W on the diagonal, `(B, N, N, out_dim, in_dim)`; see `Kernel.matrix`.

        Raises:
            ValueError: for queries that are not the points of u.
        """
        if query_domain is not None and not query_domain.has_points_of(domain):
            raise ValueError(
                f"kernels.Pointwise gives its result at the points of the signal; got other queries, {query_domain!r}"
            )
        here = torch.eye(domain.num_points, dtype=u.dtype, device=u.device)
        return (here[..., None, None] * self.weight).expand(u.shape[0], -1, -1, -1, -1)
