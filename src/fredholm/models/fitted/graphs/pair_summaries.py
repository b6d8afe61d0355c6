"""Numeric summaries of pairs of nodes of one graph, as features for link prediction.

Legend
    A (N, N)    adjacency matrix;  U = max(A, Aᵀ), equal to A in an undirected graph
    d           row sums of U, o and i those of A and of Aᵀ, at least 1 as divisors;  D the diagonal matrix of d
    m, V        mean and sum of d
    W_k         U (D⁻¹ U)^{k-1}: walks of k steps between two nodes, over the product of the degrees of inner nodes
    μ, x, y     singular values and vectors of (diag o + τI)^-½ A (diag i + τI)^-½, τ the mean of o, or eigenvalues of
                either sign where A = Aᵀ, by decreasing size;  x and y are multiplied by (o + τ)^-½ and (i + τ)^-½
    H, h_a      centred features of all nodes, and of a;  P = D⁻¹ U means over neighbours
    G, g_a      H, or with more than MOST_OWN features their projections on at most MOST_DIRECTIONS directions
    M           the matrix that minimises ‖A - G M Gᵀ‖² + ε‖·‖², with a constant column added to G

    walks       log(1 + ·) of [U²]_ab, [U³]_ab, Σ_c U_ac U_cb / log d_c (Adamic and Adar, 2003), m W_k, and
                V W_k / (d_a d_b), which for W_2, ..., W_5 and W_8
    nearness    [U²]_ab over the number of neighbours of either, and the length of the shortest of these walks
    degrees     log(1 + d_a) + log(1 + d_b), and the smaller of both; in directed graphs log(1 + ·) of o and i of both
    low rank    for r of RANKS Σ_{k <= r} μ_k x_ak y_bk, the same with μ_k³, its cosine, and that of x_a and x_b
    directions  log(1 + m ·) of the paths a → c → b, a → c ← b, a ← c → b, a ← c ← b and a → c ← e → b over the degrees
                of inner nodes, and whether an edge leads from b to a
    features    g_aᵀ M g_b, cosines of h_a and h_b, and of these with means over neighbours (of both directions in a
                directed graph); products and differences of the entries of g, of directions the first COMPARED;
                absolute differences in an undirected graph

W_2 is resource allocation (Zhou, Lü and Zhang, 2009); DeepWalk factorises V W_k / (d_a d_b) (Qiu et al., arXiv
1710.02971). Low-rank sums detect groups, with negative eigenvalues groups with edges between them. M is a bilinear
model in closed form, which detects pairs of associated, but different features.

A pair that is an edge must be summarised in a graph without it: otherwise U², W_3 and the low-rank sums reveal it.
"""

import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models.fitted.graphs.graph_positions import krylov

RANKS = (4, 8, 16, 64)
STEPS = (2, 3, 4, 5, 8)
"""Lengths k of the walks."""
MOST_OWN, MOST_DIRECTIONS, COMPARED = 64, 64, 16
CELLS, BLOCKS = 2**18, (16, 512)
"""Walk counts held at a time, few enough for the cache, and bounds of the number of their start nodes."""
DENSE, EXTRA, PRODUCTS = 512, 8, 6
"""Most nodes for exact vectors; extra columns of the Krylov space of larger graphs, and products with the matrix."""
_RIDGE = 1e-3
"""ε, relative to the mean square of G's columns."""
_NOTHING = 1e-6
"""|μ| relative to the largest, below which it counts as 0."""


def num_of_pair(num_features: int, *, is_directed: bool) -> int:
    """Number of summaries of `PairSummaries` for nodes with `num_features` features."""
    of_graph = 3 + 2 * len(STEPS) + 2 + 2 + 4 * len(RANKS) + (10 if is_directed else 0)
    of_features = (6 if is_directed else 4) + 2 * _num_compared(num_features) if num_features else 0
    return of_graph + of_features


def _num_compared(num_features: int) -> int:
    """Number of entries of g whose products and differences are summaries."""
    return num_features if num_features <= MOST_OWN else COMPARED


@final
class PairSummaries:
    """Summaries of pairs of nodes, computed from the matrices of a graph with features.

    Args:
        edges: sources and targets `(2, E)`, without loops, each directed edge once or each undirected one in both
            directions.
        features: features of the nodes, `(N, F)`.
        directions: directions of the features `(F, MOST_DIRECTIONS)`, used if there are more than MOST_OWN.
        is_directed: whether edges have directions.
    """

    def __init__(self, edges: Tensor, features: Tensor, directions: Tensor, *, is_directed: bool) -> None:
        self.size, self.is_directed, self._read = len(features), is_directed, (edges, features, directions.clone())
        size, both = self.size, edges
        if is_directed:
            both = torch.cat([edges, edges.flip(0)], 1)
            codes = (both[0] * size + both[1]).unique()
            both = torch.stack([codes // size, codes % size])
        self.leaving, self.ending = _matrix(edges, size), _matrix(edges.flip(0), size)
        """A and Aᵀ."""
        self.joined = _matrix(both, size) if is_directed else self.leaving
        """U."""
        self.num_joined, self.num_leaving, self.num_ending = (
            ends.bincount(minlength=size).double() for ends in (both[0], edges[0], edges[1])
        )
        """d, o and i."""
        self.single = tuple(each.float() for each in (self.joined, self.leaving, self.ending))
        """U, A and Aᵀ in float32, in which walks are followed."""

    def are_of(self, edges: Tensor, features: Tensor, directions: Tensor) -> bool:
        """Whether the summaries belong to this graph."""
        read = zip(self._read, (edges, features, directions), strict=True)
        return all(own.device == other.device and torch.equal(own, other) for own, other in read)

    @torch.no_grad()
    def of(self, pairs: Tensor) -> Tensor:
        """Computes the summaries of pairs of nodes (a, b), `(P, 2)`, to float32 `(P, num_of_pair(F))`."""
        found = [*self.walks(pairs), *self.degrees(pairs), *self.of_low_rank(pairs)]
        if self._read[1].shape[1]:
            found += self.of_features(pairs)
        return torch.stack([each.float() for each in found], 1)

    def walks(self, pairs: Tensor) -> Iterator[Tensor]:
        """Yields summaries of walks, nearness and directions."""
        counts, lengths = self._counted(pairs), range(len(STEPS))
        degrees = self.num_joined
        a, b = pairs.T
        mean, total = degrees.mean().clamp_min(1.0), degrees.sum()
        common, longer, rare, *rest = counts.unbind(1)
        yield from (each.log1p() for each in (common, longer, rare))
        chance = (degrees[a] * degrees[b]).clamp_min(1.0)
        for each in rest[: len(STEPS)]:
            yield (mean * each).log1p()
            yield (total * each / chance).log1p()
        yield common / (degrees[a] + degrees[b] - common).clamp_min(1.0)
        steps = torch.full_like(common, STEPS[-1] + 1)
        for k in reversed(lengths):
            steps = torch.where(rest[k] > 0, float(STEPS[k]), steps)
        yield steps
        yield from ((mean * each).log1p() for each in rest[len(STEPS) :])

    def _counted(self, pairs: Tensor) -> Tensor:
        """[U²], [U³], the sum of Adamic and Adar, W_k and directed paths of pairs, float32 `(P, ...)`."""
        width = 3 + len(STEPS) + (6 if self.is_directed else 0)
        found = torch.empty(len(pairs), width, device=pairs.device)
        starts, own = pairs[:, 0].unique(return_inverse=True)
        order = own.argsort(stable=True)
        first = own.bincount(minlength=len(starts)).cumsum(0)
        block = min(max(BLOCKS[0], CELLS // self.size // BLOCKS[0] * BLOCKS[0]), BLOCKS[1])
        for start in range(0, len(starts), block):
            end = min(start + block, len(starts))
            rows = order[0 if start == 0 else int(first[start - 1]) : int(first[end - 1])]
            column, ends = own[rows] - start, pairs[rows, 1]
            for k, reached in enumerate(self._reached(starts[start:end], block)):
                found[rows, k] = reached[ends, column]
        return found

    def _reached(self, starts: Tensor, width: int) -> Iterator[Tensor]:
        """Yields the numbers of `_counted` from start nodes a, at most `width`, to all nodes, `(N, width)` each."""
        # a fixed number of columns, since it may change the rounding of sums
        here = torch.zeros(self.size, width, device=starts.device)
        here[starts, torch.arange(len(starts), device=starts.device)] = 1.0
        mean, out, into = (
            1 / each.float().clamp_min(1.0)[:, None] for each in (self.num_joined, self.num_leaving, self.num_ending)
        )
        joined, leaving, ending = self.single
        once = joined @ here
        twice = joined @ once
        yield twice
        yield joined @ twice
        yield joined @ (once / self.num_joined.float().clamp_min(2.0).log()[:, None])
        reached = once
        for k in range(2, STEPS[-1] + 1):
            reached = joined @ (mean * reached)
            if k in STEPS:
                yield reached
        if self.is_directed:
            after, before = ending @ here, leaving @ here
            yield ending @ (mean * after)
            towards = leaving @ (into * after)
            yield towards
            yield ending @ (out * before)
            yield leaving @ (mean * before)
            yield ending @ (out * towards)
            yield before

    def degrees(self, pairs: Tensor) -> Iterator[Tensor]:
        """Yields summaries of the degrees of both nodes."""
        first, second = self.num_joined.log1p()[pairs].unbind(1)
        yield first + second
        yield torch.minimum(first, second)
        if self.is_directed:
            for number in (self.num_leaving, self.num_ending):
                yield from number.log1p()[pairs].unbind(1)

    def of_low_rank(self, pairs: Tensor) -> Iterator[Tensor]:
        """Yields sums over singular vectors, or eigenvectors, and cosines."""
        left, values, right = self._decomposed
        source, target = left[pairs[:, 0]], right[pairs[:, 1]]
        terms, size = source * values * target, values.abs().sqrt()
        source, target, other = size * source, size * target, size * left[pairs[:, 1]]
        for rank in RANKS:
            yield terms[:, :rank].sum(1)
            yield (values.square() * terms)[:, :rank].sum(1)
            signed = source[:, :rank] * values[:rank].sign()
            yield F.cosine_similarity(signed, target[:, :rank], dim=1)
            yield F.cosine_similarity(source[:, :rank], other[:, :rank], dim=1)

    @cached_property
    def _decomposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns x `(N, K)`, μ `(K,)` and y `(N, K)`, K = RANKS[-1] or N."""
        count = RANKS[-1]
        mean = self.num_leaving.mean().clamp_min(1.0)
        out, into = ((each + mean).rsqrt()[:, None] for each in (self.num_leaving, self.num_ending))

        def forth(columns: Tensor) -> Tensor:
            return into * (self.ending @ (out * columns))

        def back(columns: Tensor) -> Tensor:
            return out * (self.leaving @ (into * columns))

        def step(columns: Tensor) -> Tensor:
            return forth(back(columns)) if self.is_directed else back(columns)

        if self.size <= DENSE:
            values, vectors = torch.linalg.eigh(step(torch.eye(self.size, dtype=out.dtype, device=out.device)))
        else:
            values, vectors = krylov(step, out[:, 0], min(count + EXTRA, self.size // PRODUCTS), PRODUCTS)
        order = values.abs().argsort(descending=True, stable=True)[:count]
        values, right = values[order], vectors[:, order]
        if not self.is_directed:
            values = torch.where(values.abs() > _NOTHING * values.abs().amax(), values, 0.0)
            return right / out, values, right / out
        values = values.clamp_min(0).sqrt()
        kept = values > _NOTHING * values.amax()
        left = torch.where(kept, back(right) / torch.where(kept, values, 1.0), 0.0)
        return left / out, torch.where(kept, values, 0.0), right / into

    def of_features(self, pairs: Tensor) -> Iterator[Tensor]:
        """Yields summaries of the features H and G."""
        wide, fitted, compared = self._spread
        a, b = pairs.T
        yield (fitted[a] * wide[b]).sum(1)
        for each in compared:
            yield _cosine(*each, pairs)
        if not self.is_directed:
            (own, _), (near, _) = compared
            yield _cosine(near, own, pairs) + _cosine(own, near, pairs)
        for column in wide[:, :-1][:, : _num_compared(self._read[1].shape[1])].T:
            yield column[a] * column[b]
            difference = column[a] - column[b]
            yield difference if self.is_directed else difference.abs()

    @cached_property
    def _spread(self) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """G with a constant column, G M, and the pairs of node features or means whose cosines are summaries."""
        _, features, directions = self._read
        own = features.double()
        own = own - own.mean(0)
        some = own @ directions.double() if features.shape[1] > MOST_OWN else own
        wide = torch.cat([some, torch.ones_like(some[:, :1])], 1)
        inner = wide.T @ wide
        inner.diagonal().add_(_RIDGE * inner.diagonal().mean())
        factor = torch.linalg.cholesky(inner)
        bilinear = torch.cholesky_solve(wide.T @ (self.leaving @ wide), factor)
        bilinear = torch.cholesky_solve(bilinear.T, factor).T
        near = self.joined @ own / self.num_joined.clamp_min(1.0)[:, None]
        compared = [(own, own), (near, near)]
        if self.is_directed:
            after = self.leaving @ own / self.num_leaving.clamp_min(1.0)[:, None]
            before = self.ending @ own / self.num_ending.clamp_min(1.0)[:, None]
            compared += [(after, own), (own, before), (after, before)]
        return wide, wide @ bilinear, compared


def _matrix(edges: Tensor, size: int) -> Tensor:
    ones = torch.ones(edges.shape[1], dtype=torch.float64, device=edges.device)
    whole = torch.sparse_coo_tensor(edges, ones, (size, size), check_invariants=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        return whole.coalesce().to_sparse_csr()


def _cosine(one: Tensor, other: Tensor, pairs: Tensor) -> Tensor:
    return F.cosine_similarity(one[pairs[:, 0]], other[pairs[:, 1]], dim=1)
