"""Inputs of models of graphs: features of nodes and edges, structural features, and positions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Self, final, get_args

import torch
from torch import Tensor

from fredholm._settings import check_count, check_rate, refuse_idle
from fredholm.domains import laplacian_positions, undirected
from fredholm.models.fitted.graphs.graph_summaries import triangles_at
from fredholm.models.fitted.graphs.weisfeiler_lehman import kinds_of
from fredholm.tasks.files.cells import rounding_of

from .graph_set import GraphSet

Positions = Literal["laplacian", "given", "none"]
Scale = Literal["standard", "rows", "none"]
SURROUNDINGS = ("mean degree around", "largest degree around", "neighbours joined")
LEAVING = "leaving degree"
"""Columns of `surroundings`; LEAVING is the last, and only of directed graphs."""
BLOCK = 256
"""Nodes whose walks are computed at a time."""


@final
@dataclass(frozen=True, kw_only=True)
class GraphInputs:
    """Settings of the inputs that are computed from each graph.

    Args:
        scale: how features of nodes are scaled: `standard`, each has mean 0 and deviation 1 over the nodes of the
            training data; `rows`, those of each node are divided by the sum of their sizes, as is usual for bags of
            words; `none`.
        num_walks: further features, the probabilities that a random walk along edges is back at its node after 2, 3,
            ..., num_walks + 1 steps; they depend on no sign and no basis.
        degrees: a further feature, log(1 + edges that end at the node).
        surroundings: further features: the mean and the largest log(1 + neighbours) of a node's neighbours, the share
            of pairs of its neighbours that are joined, and where edges have directions log(1 + edges that begin at the
            node).
        sizes: a further feature, the logarithm of the number of nodes of the graph, which a mean over them hides.
        positions: positions of nodes: `laplacian`, by eigenvectors of the graph (eq. 262); `given`, those of the data;
            `none`, all nodes at one place. None: as the model needs, and else `laplacian`.
        num_positions: the number of eigenvectors; refused with other positions.
        flip_signs: whether training flips the signs of eigenvectors, which are arbitrary, at random for each graph and
            vector; refused with other positions.
        adds_positions: whether a linear map of the positions is added to the input of the network; kernels read them
            anyway. Refused without positions.
        feature_dropout: rate at which features of nodes are left out in training.
    """

    scale: Scale = "standard"
    num_walks: int = 8
    degrees: bool = True
    surroundings: bool = False
    sizes: bool = False
    positions: Positions | None = None
    num_positions: int = 8
    flip_signs: bool = True
    adds_positions: bool = False
    feature_dropout: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed in (("scale", get_args(Scale)), ("positions", get_args(Positions))):
            if getattr(self, name) not in allowed and not (name == "positions" and self.positions is None):
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}")
        check_count("inputs", "num_walks", self.num_walks, least=0)
        check_count("inputs", "num_positions", self.num_positions)
        check_rate("inputs", "feature_dropout", self.feature_dropout)
        if self.placed != "laplacian":
            given = {"num_positions": self.num_positions, "flip_signs": self.flip_signs}
            refuse_idle("", type(self), f"positions={self.positions!r}", "take 'laplacian'", **given)
        if self.positions == "none":
            given = {"adds_positions": self.adds_positions}
            refuse_idle("", type(self), "positions='none'", "take 'laplacian' or 'given'", **given)

    @classmethod
    def of_features(cls, scale: Scale) -> Self:
        """Inputs that are the features of nodes alone."""
        return cls(scale=scale, num_walks=0, degrees=False, positions="none")

    @property
    def placed(self) -> Positions:
        """The kind of positions, `laplacian` where none is set."""
        return self.positions or "laplacian"

    @property
    def turns_signs(self) -> bool:
        """Whether training flips the signs of positions."""
        return self.placed == "laplacian" and self.flip_signs

    @property
    def positions_asked(self) -> bool:
        """Whether a setting of the positions differs from its default, so that a model should read them."""
        default = GraphInputs()
        names = ("positions", "num_positions", "flip_signs", "adds_positions")
        return any(getattr(self, name) != getattr(default, name) for name in names)

    def learn(self, train: GraphSet, *, with_kinds: bool = False, may_have_none: bool = False) -> "Preparation":
        """The preparation of graphs, with means and deviations of the training graphs.

        Args:
            train: the training graphs.
            with_kinds: whether the model also reads the kinds of nodes and edges; see `Kinds`.
            may_have_none: whether the model takes nodes without features.

        Raises:
            ValueError: there is no feature where there must be one, or the data lack the positions of `given`.
        """
        given, further = self._features(train)
        if given.shape[1] + further.shape[1] == 0 and not may_have_none:
            raise ValueError("nodes have no features; pass --task.inputs.num-walks or --task.inputs.degrees")
        mean, deviation = _moments(given)
        if self.scale != "standard":  # structural features are standardised in any case
            mean, deviation = [0.0] * len(mean), [1.0] * len(mean)
        mean, deviation = (own + more for own, more in zip((mean, deviation), _moments(further), strict=True))
        edge_mean, edge_deviation = ((), ()) if train.edge_features is None else _moments(train.edge_features)
        return Preparation(
            features=train.feature_names,
            edge_features=train.edge_feature_names,
            mean=tuple(mean),
            deviation=tuple(deviation),
            edge_mean=tuple(edge_mean),
            edge_deviation=tuple(edge_deviation),
            kinds=Kinds.of(train) if with_kinds else None,
            pos_dim=self._positions(train).shape[1],
            is_directed=train.is_directed,
            is_weighted=train.weights is not None,
            has_edge_weights=train.edge_weights is not None,
        )

    def prepare(self, graphs: GraphSet, preparation: "Preparation") -> GraphSet:
        """The graphs with scaled inputs, positions, and weights that sum to 1 in each graph.

        Raises:
            ValueError: features, positions, directions or weights are not those of the preparation.
        """
        if graphs.is_directed != preparation.is_directed:
            got, known = ("directed" if each.is_directed else "without directions" for each in (graphs, preparation))
            raise ValueError(f"edges are {got}; the model was trained on edges {known}: pass graphs as in training")
        for kind in ("features", "edge_features"):
            got, known = getattr(graphs, f"{kind.removesuffix('s')}_names"), getattr(preparation, kind)
            if got != known:
                raise ValueError(f"the {kind.replace('_', ' ')} are {_short(got)}; the model knows {_short(known)}")
        _check_weights("nodes", graphs.weights is not None, preparation.is_weighted)
        if graphs.edge_index.shape[1]:  # graphs without edges need no weights
            _check_weights("edges", graphs.edge_weights is not None, preparation.has_edge_weights)
        pos = self._positions(graphs)
        if pos.shape[1] != preparation.pos_dim:
            raise ValueError(f"positions have {pos.shape[1]} coordinates; the model knows {preparation.pos_dim}")
        found = torch.cat(self._features(graphs), dim=1)
        if found.shape[1] != preparation.num_inputs:
            raise ValueError(f"nodes have {found.shape[1]} inputs; the model knows {preparation.num_inputs}")
        features = _standardised(found, preparation.mean, preparation.deviation)
        of_edges, weights = graphs.edge_features, graphs.weights
        if of_edges is not None:
            of_edges = _standardised(of_edges, preparation.edge_mean, preparation.edge_deviation)
        if weights is not None:
            owner = torch.arange(len(graphs)).repeat_interleave(graphs.num_nodes)
            total = torch.zeros(len(graphs), dtype=torch.float64).index_add_(0, owner, weights.double())
            weights = (weights / total[owner]).float()
        names = tuple(f"input_{c}" for c in range(features.shape[1]))
        graphs = graphs if preparation.kinds is None else preparation.kinds.added_to(graphs)
        return replace(graphs, features=features, feature_names=names, edge_features=of_edges, pos=pos, weights=weights)

    def draw_signs(self, graphs: int, pos_dim: int, generator: torch.Generator) -> Tensor:
        """Signs of positions, 1 or -1, `(graphs, pos_dim)`."""
        return 2.0 * torch.randint(2, (graphs, pos_dim), generator=generator) - 1.0

    def names(self, preparation: "Preparation") -> tuple[str, ...]:
        """Names of the inputs of a node; " of the graph" is added to a structural feature named like a given one."""
        walks = (f"back after {k} steps" for k in range(2, self.num_walks + 2))
        around = [*SURROUNDINGS, *([LEAVING] if preparation.is_directed else [])] if self.surroundings else []
        found = dict.fromkeys(preparation.features)
        for name in (*walks, *["degree"] * self.degrees, *around, *["size"] * self.sizes):
            unique = name
            while unique in found:
                unique += " of the graph"
            found[unique] = None
        return tuple(found)

    def _features(self, graphs: GraphSet) -> tuple[Tensor, Tensor]:
        """Given and structural features of nodes, not standardised yet, `(nodes, ...)` each."""
        given = graphs.features
        if self.scale == "rows":
            size = given.abs().sum(1, keepdim=True)
            given = given / torch.where(size > 0, size, 1.0)
        further = [walks_back(graphs, self.num_walks) if self.num_walks else torch.zeros(len(given), 0)]
        if self.degrees:
            further.append(torch.log1p(_joined(graphs)[1].bincount(minlength=len(given)).float())[:, None])
        if self.surroundings:
            further.append(surroundings(graphs))
        if self.sizes:
            further.append(graphs.num_nodes.float().log().repeat_interleave(graphs.num_nodes)[:, None])
        return given, torch.cat(further, dim=1)

    def _positions(self, graphs: GraphSet) -> Tensor:
        if self.placed == "none":
            return torch.zeros(len(graphs.features), 1)
        if self.placed == "laplacian":
            edges = _joined(graphs)
            edges = undirected(edges) if graphs.is_directed else edges
            return laplacian_positions(edges, len(graphs.features), self.num_positions).float()
        if graphs.pos is None:
            raise ValueError("the graphs have no positions; expected an array 'pos', or pass --task.inputs.positions")
        return graphs.pos


@final
@dataclass(frozen=True, kw_only=True)
class Kinds:
    """The features whose values, before scaling, define the kinds of nodes and edges: equal values are one kind.

    They are all features, if those have at most √n different rows among n; else the features that are 0 or 1
    everywhere, such as a one-hot atom type, if those have so few; else none, and all nodes are of one kind.

    Args:
        features, edge_features: names of the features.
    """

    features: tuple[str, ...]
    edge_features: tuple[str, ...]

    @classmethod
    def of(cls, train: GraphSet) -> Self:
        """The kinds of the nodes and edges of these graphs."""
        of_edges = train.edge_features
        return cls(
            features=_defining(train.features, train.feature_names),
            edge_features=() if of_edges is None else _defining(of_edges, train.edge_feature_names),
        )

    def added_to(self, graphs: GraphSet) -> GraphSet:
        """The graphs with the kinds of their nodes and edges; values not seen in training are new kinds."""
        of_edges = graphs.edge_features
        edge_kinds = None if of_edges is None else _kinds(of_edges, graphs.edge_feature_names, self.edge_features)
        kinds = _kinds(graphs.features, graphs.feature_names, self.features)
        return replace(graphs, kinds=kinds, edge_kinds=edge_kinds)


@final
@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Facts of the training graphs that inputs are prepared by.

    They are the names of features, the mean and deviation of each input, the kinds, whether edges have directions, and
    whether nodes and edges have weights.
    """

    features: tuple[str, ...]
    edge_features: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    edge_mean: tuple[float, ...]
    edge_deviation: tuple[float, ...]
    pos_dim: int
    is_directed: bool
    is_weighted: bool
    has_edge_weights: bool
    kinds: Kinds | None = None

    @property
    def num_inputs(self) -> int:
        """The number of inputs of a node."""
        return len(self.mean)


def walks_back(graphs: GraphSet, count: int) -> Tensor:
    """Return probabilities of random walks along edges after 2 to count + 1 steps, `(nodes, count)`.

    After one step no walk has returned, as there are no loops. Where edges have weights, an edge is taken in proportion
    to its weight. A walk ends at a node without edges to leave by.
    """
    found = torch.zeros(len(graphs.features), count)
    starts, edge_starts = graphs.node_offsets.tolist(), graphs.edge_offsets.tolist()
    for i, (start, end) in enumerate(pairwise(starts)):
        edges, n = slice(edge_starts[i], edge_starts[i + 1]), end - start
        source, target = graphs.edge_index[:, edges]
        weight = torch.ones(len(source)) if graphs.edge_weights is None else graphs.edge_weights[edges]
        leaving = torch.zeros(n).index_add_(0, source, weight)
        chance = torch.where(weight > 0, weight / torch.where(leaving > 0, leaving, 1.0)[source], 0.0)
        step = torch.sparse_coo_tensor(torch.stack([source, target]), chance, (n, n), check_invariants=False)
        for block in torch.arange(n).split(BLOCK):
            reached = torch.zeros(n, len(block)).index_put_((block, torch.arange(len(block))), torch.ones(()))
            reached = step @ reached
            for k in range(count):
                reached = step @ reached
                found[start + block, k] = reached[block, torch.arange(len(block))]
    return found


def surroundings(graphs: GraphSet) -> Tensor:
    """Features of the neighbourhood of each node, along edges of either direction, float32 `(nodes, 3)`, or 4.

    The columns are SURROUNDINGS, 0 where a node has fewer neighbours than they need, and in directed graphs LEAVING.
    """
    joined, count = _joined(graphs), len(graphs.features)
    ends = joined[:, joined[0] != joined[1]].sort(0).values
    pairs = (ends[0] * count + ends[1]).unique()
    low, high = pairs // count, pairs % count
    near, other = torch.cat([low, high]), torch.cat([high, low])
    number = near.bincount(minlength=count).double()
    size = number.log1p()
    nothing = torch.zeros(count, dtype=torch.float64)
    mean = nothing.index_add(0, near, size[other]) / number.clamp_min(1)
    largest = nothing.scatter_reduce(0, near, size[other], "amax")
    closed = triangles_at(low, high, count) / (number * (number - 1) / 2).clamp_min(1)
    found = [mean, largest, closed]
    if graphs.is_directed:
        found.append(joined[0].bincount(minlength=count).double().log1p())
    return torch.stack(found, 1).float()


def _defining(values: Tensor, names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns whose values define kinds; see `Kinds`."""
    is_mark = ((values == 0) | (values == 1)).all(0).tolist()
    marks = tuple(name for name, is_one in zip(names, is_mark, strict=True) if is_one)
    for some in (names, marks):
        if len(_kinds(values, names, some).unique()) <= math.sqrt(len(values)):
            return some
    return ()


def _kinds(values: Tensor, names: tuple[str, ...], some: tuple[str, ...]) -> Tensor:
    chosen = set(some)
    return kinds_of(values[:, [name in chosen for name in names]].float())


def _joined(graphs: GraphSet) -> Tensor:
    """The edges of all graphs, by indices among the nodes of all graphs, `(2, edges)`."""
    return graphs.edge_index + graphs.node_offsets[:-1].repeat_interleave(graphs.edge_offsets.diff())


def _moments(values: Tensor) -> tuple[list[float], list[float]]:
    """Mean and deviation of each column; a constant one has deviation 1."""
    if values.numel() == 0:
        return [0.0] * values.shape[1], [1.0] * values.shape[1]
    rounding, values = rounding_of(values.dtype), values.double()
    mean, deviation = values.mean(0), values.std(0, correction=0)
    is_constant = deviation <= rounding * mean.abs()
    return mean.tolist(), torch.where(is_constant, 1.0, deviation).tolist()


def _standardised(values: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Standardised values, float32; the mean is subtracted in float64, which large values need."""
    centre, size = (torch.tensor(each, dtype=torch.float64) for each in (mean, deviation))
    return ((values - centre) / size).float()


def _check_weights(what: str, has_weights: bool, expected: bool) -> None:
    if has_weights != expected:
        got, known = ("weights" if each else "no weights" for each in (has_weights, expected))
        instead = "give them weights" if expected else "leave the weights out"
        raise ValueError(f"{what} have {got}; in training they had {known}: {instead}")


def _short(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:6]) or 'none'}{', ...' if len(names) > 6 else ''}"
