"""One matrix for all pairs.

κ(x, y) = W, so that the integral is W ∫ u dμ: the mean of the signal, mapped.
"""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.domains import Domain
from fredholm.kernels.kernel import Kernel


@final
class Constant(Kernel):
    """κ = W for every pair of points: a mean, and on the edges of a graph (`kernels.OnEdges`) a graph convolution.

    Args:
        in_dim, out_dim: channels in and out, each >= 1.

    Raises:
        ValueError: on sizes below 1.
    """

    pos_dim = None
    is_causal = False
    reads_query = False

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        for name, size in (("in_dim", in_dim), ("out_dim", out_dim)):
            check_count("kernels.Constant", name, size)
        self.in_dim, self.out_dim = in_dim, out_dim
        self.weight = nn.Parameter(torch.empty(out_dim, in_dim))
        nn.init.xavier_uniform_(self.weight)

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """W at every pair, `(B, Nq, N, out_dim, in_dim)`; see `Kernel.matrix`."""
        queries = domain.num_points if query_domain is None else query_domain.num_points
        return self.weight.to(u.dtype).expand(u.shape[0], queries, domain.num_points, -1, -1)
