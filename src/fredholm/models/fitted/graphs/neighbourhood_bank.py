"""The distribution of neighbourhoods in a graph, by random waves and exact colours, and a linear head in closed form.

Legend
    h_v (F,)     features of node v              a_wv > 0   weight of the edge from w to v, times the mass of w
    e_wv (c,)    features of the edge            H          `hops`
    μ            the measure of the nodes, of mass 1 in each graph
    τ            the scale; the one of SCALES with the smallest left-out errors of the head

    (A f)(v) = Σ_w a_wv f(w) / Σ_w a_wv, 0 where no edge ends at v; likewise for features of edges
    u = [h, A e]        z_v = [u, A u, ..., A^H u](v)  in R^M
    waves       ψ_k(z) = cos(τ w_k·z / √M + β_k),   w_k ~ N(0, I),  β_k uniform in [0, 2π)
    features    m_k = ∫ ψ_k(z_v) dμ(v),  s_k = (∫ (ψ_k(z_v) - m_k)² dμ(v))^½,  and the roots of the counts of colours of
                depth up to H (`weisfeiler_lehman.py`), three blocks;   logits from `RidgeHead`

2/K Σ_k m_k m'_k tends to ∫∫ exp(-τ² |z_v - z'_w|² / 2M) dμ(v) dμ'(w), so that a linear function of all m is any smooth
functional of the distribution of neighbourhoods: a kernel mean (Smola et al., A Hilbert space embedding for
distributions, 2007) by random features (Rahimi and Recht, 2007). The averages along edges, without learned weights, are
the features of Wu et al. (arXiv 1902.07153). Deviations: their A is symmetric and includes the node itself, and they
use A^H u alone; s_k, the shares of blocks, and τ from left-out errors are this library's.

Averages along edges lose the pairing of neighbours and edges. Where nodes are of few kinds, a Weisfeiler-Lehman colour
is the indicator of one exact neighbourhood, and its count an integral like m_k. Counts are not divided by their
deviations, as rare colours would get all the weight. τ and the share of s are chosen without colours, then the share of
the colours.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fredholm._precision import at_least_float32, without_autocast
from fredholm._settings import check_count
from fredholm.domains import Graph
from fredholm.encoders.graph import Graph as GraphEncoder
from fredholm.encoders.graph import GraphBatch
from fredholm.models.fitted.example_weights import some_of
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.graphs.weisfeiler_lehman import ColourCounts
from fredholm.models.fitted.ridge_head import SHARES, FeatureBlock, Regressand, RidgeHead, shares_of, some_drawn
from fredholm.models.graphs.graph_model import GraphModelConfig, GraphReading

SCALES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Candidates of τ."""
CHOSEN_BY = 1000
"""Most graphs by which τ and the head's shares are chosen."""

_WAVES_AT_ONCE = 256
_NOTHING = 1e-10
"""Variance up to which a feature counts as constant despite rounding in float32."""


@final
class NeighbourhoodBank(FittedModel[GraphBatch]):
    """A ridge regression on random waves of the neighbourhoods of nodes and on counts of exact neighbourhoods.

    Takes graphs of any size, with features, kinds and weights of nodes and of edges. Positions are not read.

    Args:
        reading: description of the graphs.
        num_outputs: number of outputs, such as classes.
        config: numbers and reach of waves and colours.

    Attributes:
        scale: τ of the last fit, a scalar; 1 before one.
    """

    directions: Tensor
    phases: Tensor
    scale: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(GraphModelConfig):
        """Numbers and reach of waves and colours."""

        learns_by_steps: ClassVar[bool] = False

        hops: int = 2
        """Radius of a neighbourhood in edges; 0: the node itself."""
        num_waves: int = 2048
        """Number of waves, each of which gives two features."""
        num_colours: int = 2048
        """Most exact neighbourhoods that are counted: those in the most training graphs."""

        def __post_init__(self) -> None:
            for name, least in (("hops", 0), ("num_waves", 1), ("num_colours", 0)):
                check_count("models.NeighbourhoodBank", name, getattr(self, name), least)

        def check(self) -> None:
            """See `GraphModelConfig.check`: there is nothing to check, as there is one output per graph."""

        def build(self, reading: GraphReading, num_outputs: int) -> "NeighbourhoodBank":
            """See `GraphModelConfig.build`."""
            return NeighbourhoodBank(reading, num_outputs, self)

    def __init__(self, reading: GraphReading, num_outputs: int, config: Config) -> None:
        super().__init__()
        self.config, self.reading = config, reading
        self.encoder = GraphEncoder(reading.features, None, reading.pos_dim, edge_dim=reading.edge_dim)
        size = (config.hops + 1) * (reading.features + reading.edge_dim)
        self.register_buffer("directions", torch.randn(size, config.num_waves))
        self.register_buffer("phases", 2 * math.pi * torch.rand(config.num_waves))
        self.register_buffer("scale", torch.ones(()))
        further = [FeatureBlock(config.num_waves)]
        self.colours = ColourCounts(config.num_colours, config.hops) if config.num_colours else None
        if config.num_colours:
            further.append(FeatureBlock(config.num_colours, standardised=False))
        self.head = RidgeHead(2 * config.num_waves + config.num_colours, num_outputs, further=further)

    def forward(self, inputs: GraphBatch) -> Tensor:
        """Maps a batch to outputs `(B, num_outputs)`, which are all equal before a fit.

        Raises:
            ValueError, TypeError: on inputs that `encoders.Graph` refuses, or features whose waves overflow.
        """
        return self.head(self.features(inputs))

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[GraphBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Chooses colours, then τ and shares on some graphs, and fits the head to all; see `FittedModel.fit`."""
        targets = torch.cat([targets for _, targets in batches]) if batches else torch.zeros(0)
        if not len(targets):
            raise ValueError("models.NeighbourhoodBank: there is no graph to fit to")
        if self.colours is not None:
            self.colours.choose((batch, read_graphs(self.encoder, batch)[1]) for batch, _ in batches)
        some = some_drawn(len(targets), groups, CHOSEN_BY).to(targets.device)
        batch_sizes = [len(targets) for _, targets in batches]
        chosen = [
            GraphBatch(*(None if part is None else part[own] for part in batch))  # pyright: ignore[reportArgumentType]
            for (batch, _), own in zip(batches, some.split(batch_sizes), strict=True)
            if bool(own.any())
        ]
        known, own = None if groups is None else groups[some], some_of(weights, some)
        colourless = (0.0,) * (len(self.head.blocks) - 2)
        best: tuple[float, float, Tensor, list[float]] | None = None
        for scale in SCALES:
            self.scale.fill_(scale)
            found = torch.cat([self.features(batch) for batch in chosen])
            tried = [(*shares, *colourless) for shares in shares_of(2)]
            self.head.fit(found, targets[some], regressand, groups=known, weights=own, shares=tried)
            if best is None or float(self.head.error) < best[0]:
                best = float(self.head.error), scale, found, self.head.shares.tolist()
        assert best is not None
        _, scale, found, shares = best
        if self.colours is not None:
            tried = [(*((1 - share) * of_waves for of_waves in shares[:2]), share) for share in SHARES]
            self.head.fit(found, targets[some], regressand, groups=known, weights=own, shares=tried)
            shares = self.head.shares.tolist()
        self.scale.fill_(scale)
        found = torch.cat([self.features(batch) for batch, _ in batches])
        return self.head.fit(found, targets, regressand, groups=groups, weights=weights, shares=[tuple(shares)])

    def features(self, inputs: GraphBatch) -> Tensor:
        """Returns the features for the head, `(B, 2 num_waves + num_colours)`: m, s, and the roots of counts."""
        u, domain = read_graphs(self.encoder, inputs)
        with without_autocast(u):
            found = self._waves(u.to(self.directions.dtype), domain)
            if self.colours is None:
                return found
            return torch.cat([found, self.colours(inputs, domain, found.dtype)], 1)

    def _waves(self, u: Tensor, domain: Graph) -> Tensor:
        """Returns m and s, `(B, 2 num_waves)`, of features `(B, N, F)`."""
        batch, z = u.shape[0], neighbourhoods(u, domain, self.config.hops)
        weights = domain.weights.to(z.dtype).expand(u.shape[:2]).flatten()
        counts = weights > 0  # nodes without mass, such as padding, contribute to no integral
        weights, z = weights[counts], z[counts]
        owner = torch.arange(batch, device=z.device).repeat_interleave(u.shape[1])[counts]

        def integral(values: Tensor) -> Tensor:
            start = values.new_zeros(batch, values.shape[1])
            return start.index_add(0, owner, weights[:, None] * values)

        mass = integral(torch.ones_like(weights)[:, None])
        means, deviations = list[Tensor](), list[Tensor]()
        for at in torch.arange(self.config.num_waves, device=z.device).split(_WAVES_AT_ONCE):
            angles = self.scale / math.sqrt(z.shape[1]) * (z @ self.directions[:, at]) + self.phases[at]
            if not bool(angles.isfinite().all()):
                raise ValueError(
                    "models.NeighbourhoodBank: features are too large for float32; scale them, or look for gross "
                    "errors among them"
                )
            waves = angles.cos()
            means.append(integral(waves) / mass)
            variance = integral((waves - means[-1][owner]).square()) / mass
            varies = variance > _NOTHING
            # the root of 0 has no gradient
            deviations.append(torch.where(varies, torch.where(varies, variance, 1.0).sqrt(), 0.0))
        return torch.cat([*means, *deviations], 1)


def read_graphs(encoder: GraphEncoder, inputs: GraphBatch) -> tuple[Tensor, Graph]:
    """Features of nodes and their domain, with all numbers in float32 at least; see `encoders.Graph`."""

    def widened(tensor: Tensor) -> Tensor:
        return at_least_float32(tensor) if tensor.is_floating_point() else tensor

    u, domain = encoder(tree_map_only(Tensor, widened, inputs))
    assert isinstance(domain, Graph)
    return u, domain


def neighbourhoods(u: Tensor, domain: Graph, hops: int) -> Tensor:
    """Computes z of all nodes, `(B N, M)`, from features `(B, N, F)`; see the legend."""
    found = [u.flatten(0, 1)]
    if domain.edge_features is not None:
        found = [torch.cat([*found, _averaged(domain.edge_features.to(u.dtype), domain)], 1)]
    for _ in range(hops):
        found.append(means_around(found[-1], domain))
    return torch.cat(found, 1)


def means_around(values: Tensor, domain: Graph) -> Tensor:
    """Computes A f for values f at all nodes of a batch, `(B N, F)`."""
    return _averaged(values[domain.source], domain)


def _averaged(of_edges: Tensor, domain: Graph) -> Tensor:
    """Weighted mean of edge values `(E, ...)` at the target nodes, `(B N, ...)`."""
    mass, degrees = domain.edge_counts.to(of_edges.dtype).flatten(), domain.degrees.to(of_edges.dtype).flatten()
    share = mass / torch.where(degrees > 0, degrees, 1.0)[domain.target]
    start = of_edges.new_zeros(degrees.shape[0], of_edges.shape[1])
    return start.index_add(0, domain.target, share[:, None] * of_edges)
