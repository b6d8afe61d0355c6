"""Counts of Weisfeiler-Lehman colours in a graph.

Legend
    k_v, k_wv    kinds of a node and of an edge from w to v: integers, equal for equal kinds
    E            edges of positive weight, from nodes of positive mass; those to such nodes are counted
    μ            the measure of the nodes, of mass 1 in each graph, on N nodes of positive mass
    g            a colour, of depth t = 0 ... `depth`

    c_0(v) = #(k_v),   c_t+1(v) = #(Σ_(w,v)∈E #(k_wv, c_t(w)), c_t(v))    integers modulo 2^64
    e_t(w, v) = #(#(k_wv, c_t(w)), c_t(v))     the colour of an edge
    count        n_g = N ∫ 1[c_t(v) = g] dμ(v),  with equal weights the number of nodes of this colour, or the number of
                 edges with e_t(w, v) = g;   features √n_g

# is the mixing of SplitMix64 (Steele, Lea and Flood, 2014), a permutation of 64 bits that looks random, and of a pair
#(a, b) = #(3 #(a) + b), where 3 makes it asymmetric. The sum distinguishes multisets independently of the order of
edges, and colours are the same on every machine. Among m colours two collide with a probability of about m² / 2^65, or
3e-8 for a million. It is not secure against adversarial graphs, as the permutation is known.

Source: Shervashidze et al., Weisfeiler-Lehman graph kernels (2011), whose kernel Σ_g n_g n'_g is the inner product of
counts. Deviations: they number colours in order of appearance, without kinds or colours of edges; the root, which
stabilises the variance of a count (Bartlett, 1936), is between presence and count; only the colours of most training
graphs are counted.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm.domains import Graph
from fredholm.encoders.graph import GraphBatch

Coloured = Literal["nodes", "edges"]
"""What has colours."""
_NONE = torch.iinfo(torch.int64).max
"""Filler of unused entries of the colours."""


@final
class Occurrences(NamedTuple):
    """The colours of nodes of positive mass, or of edges, for each depth.

    Args:
        colour: int64 `(depth + 1, n)`.
        owner: int64 `(n,)`, the graph of each.
        mass: `(n,)`, of a node N times its share in its graph's mass, 1 with equal weights; 1 of an edge.
    """

    colour: Tensor
    owner: Tensor
    mass: Tensor


@final
class ColourCounts(nn.Module):
    """Roots of the counts of the most frequent colours of the training graphs.

    Args:
        num_colours: most colours.
        depth: radius of a colour in edges.
        of: what is counted.

    Attributes:
        known: int64 `(num_colours,)`, the colours, sorted; only fillers before `choose`.
    """

    known: Tensor

    def __init__(self, num_colours: int, depth: int, *, of: Coloured = "nodes") -> None:
        super().__init__()
        self.depth = depth
        self.of: Coloured = of
        self.register_buffer("known", torch.full((num_colours,), _NONE))

    def choose(self, graphs: Iterable[tuple[GraphBatch, Graph]]) -> None:
        """Chooses the colours that occur in most of these graphs; ties prefer smaller depths."""
        found: list[list[Tensor]] = [[] for _ in range(self.depth + 1)]
        for inputs, domain in graphs:
            colour, owner, _ = occurrences(inputs, domain, self.depth, self.of)
            for own, at in zip(found, colour, strict=True):
                own.append(torch.stack([owner, at]).unique(dim=1)[1])
        per_depth = [torch.cat(own).unique(return_counts=True) for own in found]
        colours, counts = (torch.cat(parts) for parts in zip(*per_depth, strict=True))
        most = counts.argsort(descending=True, stable=True)[: len(self.known)]
        self.known.fill_(_NONE)
        self.known[: len(most)] = colours[most].sort().values

    def forward(self, inputs: GraphBatch, domain: Graph, dtype: torch.dtype) -> Tensor:
        """Returns √n of a batch with the domain of its nodes, `(B, num_colours)`.

        Raises:
            ValueError: on inputs that `occurrences` refuses.
        """
        batch, num_colours = len(inputs.features), len(self.known)
        colour, owner, mass = occurrences(inputs, domain, self.depth, self.of)
        place = torch.searchsorted(self.known, colour).clamp_max(num_colours - 1)
        is_known = self.known[place] == colour
        cell = (owner * num_colours + place)[is_known]
        masses = mass.to(dtype).expand(colour.shape)[is_known]
        return masses.new_zeros(batch * num_colours).index_add(0, cell, masses).view(batch, num_colours).sqrt()


def occurrences(inputs: GraphBatch, domain: Graph, depth: int, of: Coloured) -> Occurrences:
    """Computes the colours of a batch; without kinds all nodes, or all edges, count as of one kind.

    Args:
        inputs: the graphs.
        domain: domain of their nodes.
        depth: largest depth.
        of: what is coloured.

    Raises:
        ValueError: kinds of another shape or dtype.
    """
    batch, size = inputs.features.shape[:2]
    kinds = _kinds("kinds", inputs.kinds, inputs.features[..., 0]).flatten()
    exists = (inputs.edge_index >= 0).all(1)
    edge_kinds = _kinds("edge_kinds", inputs.edge_kinds, inputs.edge_index[:, 0])[exists]
    joins = domain.edge_counts.flatten() > 0
    source, target, edge_kinds = domain.source[joins], domain.target[joins], edge_kinds[joins]
    found = colours(kinds, source, target, edge_kinds, depth)
    weights = domain.weights.expand(batch, size)
    numbers = weights.count_nonzero(1)
    weighs = (weights > 0).flatten()
    if of == "edges":
        ends, owner = _paired(_paired(edge_kinds, found[:, source]), found[:, target]), target // size
        counts = weighs[target]
        return Occurrences(ends[:, counts], owner[counts], weights.new_ones(len(owner))[counts])
    mass = weights / (weights.sum(1) / numbers.clamp_min(1))[:, None]
    owner = torch.arange(batch, device=kinds.device).repeat_interleave(size)
    return Occurrences(found[:, weighs], owner[weighs], mass.flatten()[weighs])


def colours(kinds: Tensor, source: Tensor, target: Tensor, edge_kinds: Tensor, depth: int) -> Tensor:
    """Computes c_0 to c_depth of n nodes, int64 `(depth + 1, n)`.

    Args:
        kinds: int64 `(n,)`.
        source, target: int64 `(E,)`, the ends of edges.
        edge_kinds: int64 `(E,)`.
        depth: largest depth.
    """
    found = [_mixed(kinds)]
    for _ in range(depth):
        around = torch.zeros_like(kinds).index_add(0, target, _paired(edge_kinds, found[-1][source]))
        found.append(_paired(around, found[-1]))
    return torch.stack(found)


def kinds_of(rows: Tensor) -> Tensor:
    """Hashes each row of float32 `(n, F)` to int64 `(n,)`: equal rows have equal hashes."""
    bits = (rows + 0.0).view(torch.int32).long()  # -0 becomes 0
    found = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    for column in bits.unbind(1):
        found = _paired(found, column)
    return found


def _kinds(name: str, kinds: Tensor | None, like: Tensor) -> Tensor:
    if kinds is None:
        return torch.zeros(like.shape, dtype=torch.int64, device=like.device)
    if kinds.shape != like.shape or kinds.dtype != torch.int64:
        raise ValueError(
            f"models.NeighbourhoodBank: {name} must be int64 {tuple(like.shape)}; got {tuple(kinds.shape)}, "
            f"{kinds.dtype}"
        )
    return kinds


def _paired(a: Tensor, b: Tensor) -> Tensor:
    return _mixed(3 * _mixed(a) + b)


def _mixed(x: Tensor) -> Tensor:
    """The next number of SplitMix64 after each state; products are modulo 2^64."""
    x = x - 0x61C8864680B583EB  # + 0x9E3779B97F4A7C15, as a signed number
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical right shift."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
