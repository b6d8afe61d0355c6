"""A kernel on the edges of a graph, plus λ times the kernel between all nodes.

Legend
    w_xy     weight of an edge from y to x (`domains.Graph`), 0 where there is none, summed over parallel edges
    c_y      mass of a node where points are counted (`Domain.counts`): 1 each unless weights were given
    d_x      degree Σ_y w_xy c_y
    a_xy     weight of the edge in the sum at x                λ ≥ 0    weight of all pairs, one number per kernel

    ∫ κ_G u dμ = Σ_{y → x} a_xy κ(x, y, u_x, u_y) u_y + λ ∫ κ u dμ

    "mean"         a = w c / d_x          so that the neighbours of a node have total mass 1
    "sum"          a = w c
    "symmetric"    a = w c / √(d_x d_y)
    "measure"      a = w dμ               so that κ_G = (1[(x, y) ∈ E] + λ) κ

Source: ITNet (arXiv 2606.19538), J.1, eq. 263, which is "measure": with dμ = 1/N the sum over edges vanishes as a graph
grows, unlike for the other three. A kernel that is normalised by a sum over all points, as attention is, sums over the
neighbours in the first term and over all nodes in the second. Features of edges are read in the first term; in the
second they are 0.
"""

import math
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from fredholm._settings import check_number
from fredholm.domains import Domain, Graph, Points
from fredholm.kernels.kernel import Kernel, divided

EdgeMass = Literal["mean", "sum", "symmetric", "measure"]
"""Weight of an edge; see the top of the file."""


@final
class OnEdges(Kernel):
    """κ along the edges of a `domains.Graph`, and λ κ between all nodes.

    Args:
        kernel: κ, of two points alone (`Kernel.is_pairwise`) and not causal.
        long_range: λ at the start, above 0, learned as softplus of a number; None: edges alone, λ = 0.
        edge_mass: weight of an edge.

    Attributes:
        kernel: κ.
        raw_long_range: softplus⁻¹(λ), `(1,)`; None without λ.

    Raises:
        ValueError, TypeError: on a kernel that does not fit, or a λ that is not above 0.
    """

    is_causal = False
    is_pairwise = False
    no_weight_decay = frozenset({"raw_long_range"})

    def __init__(self, kernel: Kernel, *, long_range: float | None = 0.1, edge_mass: EdgeMass = "mean") -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernels.OnEdges: kernel must be a fredholm kernel; got {type(kernel).__name__}")
        if not kernel.is_pairwise or kernel.is_causal:
            what = "looks back only" if kernel.is_causal else "needs more than the two points of a pair"
            raise ValueError(
                f"kernels.OnEdges: {type(kernel).__name__} {what}, and edges join any two nodes; take another kernel"
            )
        if edge_mass not in get_args(EdgeMass):
            raise ValueError(f"kernels.OnEdges: edge_mass must be one of {get_args(EdgeMass)}; got {edge_mass!r}")
        if long_range is not None:
            check_number("kernels.OnEdges", "long_range", long_range)
        if long_range is not None and not 0 < long_range < float("inf"):
            raise ValueError(
                f"kernels.OnEdges: long_range must be finite and above 0, or None for edges alone; got {long_range}"
            )
        self.kernel = kernel
        self.edge_mass: EdgeMass = edge_mass
        self.raw_long_range = None
        if long_range is not None:
            # log(exp(λ) - 1), which neither overflows nor cancels
            self.raw_long_range = nn.Parameter(torch.tensor([long_range + math.log(-math.expm1(-long_range))]))
        self.in_dim, self.out_dim, self.pos_dim = kernel.in_dim, kernel.out_dim, kernel.pos_dim
        self.signal_range = kernel.signal_range
        self.reads_query, self.is_affine, self.edge_dim = kernel.reads_query, kernel.is_affine, kernel.edge_dim
        self.counts_points = kernel.counts_points

    @property
    def query_dim(self) -> int:
        """Channels of u(x)."""
        return self.kernel.query_dim

    @property
    def long_range(self) -> Tensor | None:
        """λ, a differentiable scalar; None where λ = 0."""
        return None if self.raw_long_range is None else nn.functional.softplus(self.raw_long_range[0])

    def on_edges(self, domain: Domain) -> Graph:
        """A graph with its edges as the pairs that the first term sums over (`Domain.list_pairs`).

        Raises:
            ValueError: for a domain that is no graph, or whose edges have other features than κ reads.
        """
        if not isinstance(domain, Graph):
            raise ValueError(f"kernels.OnEdges: needs edges, domains.Graph(edge_index, num_nodes); got {domain!r}")
        edge_dim = 0 if domain.edge_features is None else domain.edge_features.shape[-1]
        if self.edge_dim not in (0, edge_dim):
            raise ValueError(
                f"kernels.OnEdges: the kernel reads edge_dim={self.edge_dim} features of an edge; the graph's edges "
                f"have {edge_dim or 'none'}"
            )
        return domain.list_pairs(domain.edge_pairs(self._density(domain)))

    def _density(self, graph: Graph) -> Tensor:
        """a over the mass of the source in κ's measure: `(E,)`, or `(B, E)` where batch entries weigh one graph."""
        per_mass = graph.counts_per_mass
        if graph.edges_batch > 1:
            per_mass = per_mass.expand(graph.edges_batch, 1)[graph.source // graph.num_points, 0]
        scale = 1.0 if self.counts_points else per_mass
        own = torch.ones_like(graph.node_counts[..., graph.source])
        own = own if graph.edge_weights is None else own * graph.edge_weights.to(own.dtype)
        if self.edge_mass == "measure":
            return own
        if self.edge_mass == "sum":
            return own * scale
        degree = graph.degrees
        if self.edge_mass == "mean":
            return divided(own * scale, degree[..., graph.target])
        # not sqrt(0), whose gradient is infinite; one root per degree, since the product of two may leave the range
        root = torch.where(degree > 0, degree, 1.0).sqrt() * (degree > 0)
        return divided(own * scale, root[..., graph.target] * root[..., graph.source])

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ_G with respect to the measure of κ; see `Kernel.matrix`.

        Raises:
            ValueError: for queries that are not the nodes, and what `on_edges` refuses.
        """
        if query_domain is not None and not query_domain.has_points_of(domain):
            raise ValueError(f"kernels.OnEdges gives its result at the nodes; got other queries, {query_domain!r}")
        listed = self.on_edges(domain)
        if self.edge_dim:
            kappa = self._edge_by_edge(u, listed, u if query is None else query)
        else:
            dense = listed.with_dense_pairs()
            assert dense.pair_weights is not None
            kappa = self.kernel.matrix(u, dense, query) * dense.pair_weights.to(u.dtype).movedim(1, -1)[..., None]
        if self.long_range is not None:
            kappa = kappa + self.long_range.to(kappa.dtype) * self.kernel.matrix(u, domain, query)
        return kappa

    def _edge_by_edge(self, u: Tensor, listed: Graph, query: Tensor) -> Tensor:
        """κ at the two ends of every edge, computed as a batch of single pairs and summed over parallel edges."""
        assert listed.pair_list is not None
        n, pairs = listed.num_points, listed.pair_list.repeated(u.shape[0])
        pos = (listed.pos if listed.pos.ndim == 3 else listed.pos[None]).expand(u.shape[0], -1, -1).flatten(0, 1)
        total = u.new_zeros(u.shape[0] * n * n, self.out_dim, self.in_dim + self.is_affine)
        for queries, points, weights, features in pairs.groups:
            y, x = points.flatten(), queries[:, None].expand_as(points).flatten()
            ones = listed.weights.new_ones(y.shape[0], 1)
            source_features = None if features is None else features.flatten(0, 1)[:, None]
            source = Points.derived(listed, pos[y][:, None], ones, counts_per_mass=ones, features=source_features)
            target = Points.derived(listed, pos[x][:, None], ones, counts_per_mass=ones)
            kappa = self.kernel.matrix(u.flatten(0, 1)[y][:, None], source, query.flatten(0, 1)[x][:, None], target)
            kappa = kappa[:, 0, 0] * weights.flatten()[:, None, None].to(kappa.dtype)
            total = total.index_add(0, x * n + y % n, kappa)
        return total.view(u.shape[0], n, n, *total.shape[1:])

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"edge_mass={self.edge_mass!r}"
