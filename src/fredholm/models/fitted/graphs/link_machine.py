"""Predictions for pairs of nodes of one graph, such as missing edges, by a linear model and boosted trees.

Legend
    v           summaries of a pair of nodes (`pair_summaries.py`), in the graph without the pair's own edge
    f, g        a `RidgeHead` and `BoostedTrees` on v

    outputs     (1 - a) f + a g, after one readout of both; a is the one of SHARES with the smallest mean square of
                left-out errors

Edges are divided into PARTS by a hash of their ends. A pair that is an edge is summarised in the graph without the
edges of its part; any other pair in the whole graph. In a fit pairs that are no edges are divided in the same way, so
that both kinds of pairs are summarised in graphs with about as many edges.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fredholm._precision import without_autocast
from fredholm._settings import check_count
from fredholm.domains.checks import values_can_be_read
from fredholm.models.fitted.boosted_trees import BoostedTrees
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.graphs.pair_summaries import MOST_DIRECTIONS, MOST_OWN, PairSummaries, num_of_pair
from fredholm.models.fitted.ridge_head import Regressand, RidgeHead, ScoreRecorder
from fredholm.models.fitted.table_machine import SHARES
from fredholm.models.node_model import NodeModelConfig

PARTS = 8


@final
class GraphPairs(NamedTuple):
    """A graph, and pairs of its nodes.

    `edge_index (2, E)`, int64, holds sources and targets, each directed edge once or each undirected one in both
    directions. `features (N, F)` are floats of the nodes; F may be 0. `pairs (P, 2)`, int64, are sources and targets.
    """

    edge_index: Tensor
    features: Tensor
    pairs: Tensor


@final
class LinkMachine(FittedModel[GraphPairs]):
    """Predicts for pairs of nodes, from their connections and features, by a linear model and trees.

    Args:
        num_features: F.
        num_outputs: number of outputs, such as classes.
        is_directed: whether edges have directions.
        config: sizes.

    Attributes:
        gain: `(2, num_outputs)`, factors of the outputs of both parts.
        shift: `(num_outputs,)`, added to the outputs.

    Raises:
        ValueError: on sizes out of range.
    """

    directions: Tensor
    gain: Tensor
    shift: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(NodeModelConfig):
        """Sizes."""

        learns_by_steps: ClassVar[bool] = False

        num_trees: int = 100
        """Most trees of each fold; 0: no trees."""

        def __post_init__(self) -> None:
            check_count("models.LinkMachine", "num_trees", self.num_trees, least=0)

        def check_nodes(self) -> None:
            """See `NodeModelConfig.check_nodes`: there is nothing to check, as outputs are for pairs of nodes."""

        def build(self, num_features: int, num_outputs: int, *, is_directed: bool) -> "LinkMachine":
            """Builds a model, with random numbers from the global torch seed."""
            return LinkMachine(num_features, num_outputs, self, is_directed=is_directed)

    def __init__(self, num_features: int, num_outputs: int, config: Config, *, is_directed: bool) -> None:
        super().__init__()
        check_count("models.LinkMachine", "num_features", num_features, least=0)
        check_count("models.LinkMachine", "num_outputs", num_outputs)
        self.config, self.num_features, self.is_directed = config, num_features, is_directed
        num_directions = MOST_DIRECTIONS if num_features > MOST_OWN else 0
        self.register_buffer("directions", torch.zeros(num_features, num_directions))
        count = num_of_pair(num_features, is_directed=is_directed)
        self.linear = RidgeHead(count, num_outputs)
        self.trees = BoostedTrees(count, num_outputs, config.num_trees) if config.num_trees else None
        self.register_buffer("gain", torch.tensor([[1.0], [0.0]]).repeat(1, num_outputs))
        self.register_buffer("shift", torch.zeros(num_outputs))

    def forward(self, inputs: GraphPairs) -> Tensor:
        """Maps pairs to outputs `(P, num_outputs)`, which are all equal before a fit.

        Raises:
            ValueError: features of another number, or ends that are no nodes.
        """
        self._check(inputs)
        edges, pairs = inputs.edge_index, inputs.pairs
        size = len(inputs.features)
        are_edges = torch.isin(pairs[:, 0] * size + pairs[:, 1], edges[0] * size + edges[1])
        return self._outputs(self._numbers(inputs, torch.where(are_edges, self._parts(inputs.pairs), PARTS)))

    def _outputs(self, numbers: Tensor) -> Tensor:
        with without_autocast(numbers):
            outputs = self.gain[0] * self.linear(numbers.to(self.linear.weight)) + self.shift
            return outputs if self.trees is None else outputs + self.gain[1] * self.trees(numbers)

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[GraphPairs, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits both parts to pairs of one graph, edges and other pairs, in a single batch; see `FittedModel.fit`."""
        if weights is not None:
            raise ValueError("models.LinkMachine: it takes no weights of examples; leave them out")
        if len(batches) != 1 or len(batches[0][1]) < 2:
            raise ValueError("models.LinkMachine: expected one graph with at least 2 pairs of nodes to fit to")
        [(inputs, targets)] = batches
        self._check(inputs)
        if len(targets) != len(inputs.pairs):
            raise ValueError(f"models.LinkMachine: there are {len(targets)} targets of {len(inputs.pairs)} pairs")
        self._learn_directions(inputs.features)
        numbers = self._numbers(inputs, self._parts(inputs.pairs))
        of_linear, of_trees = ScoreRecorder(regressand), ScoreRecorder(regressand)
        self.linear.fit(numbers, targets, of_linear, groups=groups)
        share, scores = 0.0, of_linear.scores
        if self.trees is not None:
            self.trees.fit(numbers, targets, of_trees, groups=groups)
            wanted = regressand.columns(targets)
            tried = [torch.lerp(of_linear.scores, of_trees.scores, each) for each in SHARES]
            best = int(torch.stack([(wanted - each).square().mean() for each in tried]).argmin())
            share, scores = SHARES[best], tried[best]
        readout = regressand.readout(scores, targets)
        self.gain.copy_(torch.stack([(1 - share) * readout.gain, share * readout.gain]))
        self.shift.copy_(readout.shift)
        return readout(scores)

    def _check(self, inputs: GraphPairs) -> None:
        edges, features, pairs = inputs
        if features.ndim != 2 or features.shape[1] != self.num_features:
            raise ValueError(
                f"models.LinkMachine: features are {tuple(features.shape)}; expected (nodes, {self.num_features})"
            )
        if edges.ndim != 2 or len(edges) != 2 or pairs.ndim != 2 or pairs.shape[1] != 2:
            raise ValueError(
                f"models.LinkMachine: edges are {tuple(edges.shape)} and pairs {tuple(pairs.shape)}; expected (2, E) "
                "and (P, 2)"
            )
        if not values_can_be_read(*inputs):
            raise ValueError(
                "models.LinkMachine: the edges that are left out depend on the pairs, whose values torch.compile, "
                "torch.export, vmap and meta tensors do not have; call the model eagerly"
            )
        for what, ends in (("edges", edges), ("pairs", pairs)):
            if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < len(features):
                raise ValueError(
                    f"models.LinkMachine: {what} name nodes from {int(ends.min())} to {int(ends.max())}; expected 0 to "
                    f"{len(features) - 1}"
                )

    def _parts(self, ends: Tensor) -> Tensor:
        """The part of each pair `(n, 2)`, int64 `(n,)` from 0; undirected pairs get the same part in both orders."""
        low, high = (ends if self.is_directed else ends.sort(1).values).unbind(1)
        mixed = low * 0x9E3779B1 + high * 0x85EBCA77
        return (mixed ^ (mixed >> 15)) % PARTS

    @torch.no_grad()
    def _numbers(self, inputs: GraphPairs, without: Tensor) -> Tensor:
        """v `(P, numbers)`, each in the graph without the edges of the part `(P,)`; PARTS: in the whole graph."""
        # undirected pairs in one order, since rounding could put the two orders on different sides of a split
        pairs = inputs.pairs if self.is_directed else inputs.pairs.sort(1).values
        found = torch.empty(len(pairs), self.linear.weight.shape[1], device=pairs.device)
        with without_autocast(found):
            for k in without.unique().tolist():
                own = (without == k).nonzero()[:, 0]
                found[own] = self._summaries(inputs, k).of(pairs[own])
        return found

    def _summaries(self, inputs: GraphPairs, without: int) -> PairSummaries:
        """Summaries in the graph without the edges of a part; those of the last whole graph are cached."""
        edges, features, directions = inputs.edge_index, inputs.features, self.directions
        if without < PARTS:
            edges = edges[:, self._parts(edges.T) != without]
            return PairSummaries(edges, features, directions, is_directed=self.is_directed)
        kept = _LAST_SUMMARIES.get(self)
        if kept is None or not kept.are_of(edges, features, directions):
            kept = _LAST_SUMMARIES[self] = PairSummaries(edges, features, directions, is_directed=self.is_directed)
        return kept

    def _learn_directions(self, features: Tensor) -> None:
        if self.directions.shape[1]:
            centred = (features - features.mean(0)).double()
            _, _, vectors = torch.svd_lowrank(centred, q=min(self.directions.shape[1], *centred.shape), niter=4)
            self.directions.zero_()
            self.directions[:, : vectors.shape[1]] = vectors


_LAST_SUMMARIES = WeakKeyDictionary[LinkMachine, PairSummaries]()
"""Cached summaries of the last whole graph of each machine; not an attribute, so that it is not copied or saved."""
