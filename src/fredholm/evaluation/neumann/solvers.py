"""The equation of a series of hops on some heads, and four ways to solve it.

Legend (g heads of a batch in a row)
    S            a hop before its norm: scores times masses of pairs        B = γ S / c     one discounted hop
    y = B (v + y)          the series, v the values                         λ = g + Bᵀ λ    its adjoint

A solver is a frozen dataclass with the numbers of a method. `System` defines B.
"""

import abc
import dataclasses
import math
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm._settings import refuse_idle
from fredholm.domains import is_ordered_by_index
from fredholm.domains.checks import has_values, is_open
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.pair_tiles import PairTiles, Rows
from fredholm.kernels import FrobeniusNorm, Neumann
from fredholm.kernels.attention.scored import Numbered
from fredholm.kernels.kernel import divided


def weigh(scores: Tensor, mass: Tensor) -> Tensor:
    """Scores times masses of pairs; exactly 0 where the mass is 0, also for infinite scores."""
    return torch.where(mass == 0, 0.0, scores * mass)


def hop_tile(tiles: PairTiles, rows: Rows, columns: slice) -> Tensor:
    """S on a tile, `(g, r, c)`, in memory that the next tile overwrites."""
    (scores, _), mass = tiles.scores(rows, columns), tiles.pair_mass(rows, columns)
    return scores if mass is None else weigh(scores, mass)


@final
class System:
    """The operator B of some heads.

    Args:
        tiles: scores among the points; rows are the last of these, where a chunk continues a sequence.
        heads: the heads.
        weight: γ / c, `(g, n, 1)`.
    """

    def __init__(self, tiles: PairTiles, heads: slice, weight: Tensor) -> None:
        self.tiles, self.heads, self.weight = tiles, heads, weight

    def apply(self, signal: Tensor, *, adjoint: bool = False) -> Tensor:
        """B f `(g, n, c)` from a signal `(g, N, c)`, or Bᵀ f `(g, N, c)` from `(g, n, c)`."""
        tiles = self.tiles
        if adjoint:
            signal = self.weight * signal
            out = signal.new_zeros(signal.shape[0], tiles.num_keys, signal.shape[-1])
            for rows in tiles.rows_of(self.heads):
                for columns in tiles.columns_of(rows):
                    out[:, columns].baddbmm_(hop_tile(tiles, rows, columns).mT, signal[:, rows.rows])
            return out
        return self.weight * hop(tiles, signal, self.heads)

    def mass(self) -> Tensor | None:
        """ω of the points, `(g or 1, N, 1)`; None: all 1."""
        tiles = self.tiles
        if tiles.mass is None:
            return None
        index = torch.arange(self.heads.start, self.heads.stop, device=tiles.query.device)
        return tiles.mass[(index // tiles.num_heads) % tiles.mass.shape[0]][..., None]


def hop(tiles: PairTiles, signal: Tensor, heads: slice) -> Tensor:
    """S f, `(g, Nq, c)`, from a signal `(g, N, c)` on some heads."""
    out = signal.new_zeros(signal.shape[0], tiles.num_queries, signal.shape[-1])
    for rows in tiles.rows_of(heads):
        for columns in tiles.columns_of(rows):
            out[:, rows.rows].baddbmm_(hop_tile(tiles, rows, columns), signal[:, columns])
    return out


class Solver(Numbered, abc.ABC):
    """A way to solve x = B f + B x, and its adjoint.

    Attributes:
        carries_state: whether a sequence may be processed chunk by chunk.
        keeps_factors: whether it factorises B, N x N per head, for both directions.
    """

    carries_state: ClassVar[bool] = False
    keeps_factors: ClassVar[bool] = False

    @abc.abstractmethod
    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Reasons why this solver cannot solve the series, a sentence each."""

    def numbers(self, dtype: torch.dtype) -> list[float]:
        """The numbers of `solve` for a signal of this dtype."""
        return []

    @final
    def options(self, dtype: torch.dtype) -> list[float]:
        """The solver as numbers for a PyTorch operator."""
        return [float(self._place), *self.numbers(dtype)]

    @staticmethod
    @abc.abstractmethod
    def solve(
        system: System, signal: Tensor, numbers: list[float], factors: "Factors | None", *, adjoint: bool
    ) -> Tensor:
        """x, `(g, n, c)`; for the adjoint x = Bᵀ f + Bᵀ x, `(g, N, c)`. `factors` are those of B, where kept."""

    @staticmethod
    def of(options: list[float]) -> "type[Solver]":
        """The class of the solver with these `options`."""
        return Numbered._classes[int(options[0])]


@final
@dataclasses.dataclass(frozen=True)
class Substitution(Solver):
    """For causal series: exact, block of rows after block, at the cost of two hops.

    The system is triangular, so that y at a point depends only on earlier v + y. The backward pass substitutes from the
    last point to the first.
    """

    BLOCK: ClassVar[int] = 64
    """Number of rows solved together by a triangular solve; earlier rows are one product."""
    carries_state = True

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses kernels that look ahead, and points that share a time."""
        if not integral.kernel.is_causal:
            return ["the kernel looks ahead (is_causal is off)"]
        return [] if is_ordered_by_index(integral.domain) else ["points that share a time see each other"]

    @staticmethod
    def solve(
        system: System, signal: Tensor, numbers: list[float], factors: "Factors | None", *, adjoint: bool
    ) -> Tensor:
        """See `Solver.solve`; rows are the last points, and the signal of the earlier points is already v + y."""
        return _substituted_back(system, signal) if adjoint else _substituted(system, signal)


def _substituted(system: System, signal: Tensor) -> Tensor:
    tiles, start = system.tiles, system.tiles.num_keys - system.tiles.num_queries
    reached = signal.clone()  # v + y, as far as it is computed
    out = signal.new_zeros(signal.shape[0], tiles.num_queries, signal.shape[-1])
    for rows in tiles.rows_of(system.heads, Substitution.BLOCK):
        weight, own = system.weight[:, rows.rows], slice(start + rows.rows.start, start + rows.rows.stop)
        right = torch.zeros_like(out[:, rows.rows])
        for columns in tiles.columns_of(rows, own.start):
            right.baddbmm_(hop_tile(tiles, rows, columns), reached[:, columns])
        triangle = hop_tile(tiles, rows, own)
        right = weight * right.baddbmm_(triangle, signal[:, own])
        found = torch.linalg.solve_triangular(_unit(triangle, -weight), right, upper=False)
        out[:, rows.rows] = found
        reached[:, own] += found
    return out


def _substituted_back(system: System, signal: Tensor) -> Tensor:
    tiles, start = system.tiles, system.tiles.num_keys - system.tiles.num_queries
    out = signal.new_zeros(signal.shape[0], tiles.num_keys, signal.shape[-1])  # Bᵀ λ
    for rows in reversed(list(tiles.rows_of(system.heads, Substitution.BLOCK))):
        weight, own = system.weight[:, rows.rows], slice(start + rows.rows.start, start + rows.rows.stop)
        triangle = hop_tile(tiles, rows, own)
        received = signal[:, rows.rows] + out[:, own]
        weighed = weight * torch.linalg.solve_triangular(_unit(triangle, -weight).mT, received, upper=True)
        out[:, own].baddbmm_(triangle.mT, weighed)
        for columns in tiles.columns_of(rows, own.start):
            out[:, columns].baddbmm_(hop_tile(tiles, rows, columns).mT, weighed)
    return out


def _unit(triangle: Tensor, factor: Tensor) -> Tensor:
    """I + factor · triangle."""
    matrix = factor * triangle
    matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return matrix


@final
@dataclasses.dataclass(frozen=True)
class Factorisation(Solver):
    """LU factors of I - γA, N x N per head, kept only for the backward pass.

    Cost per head 2/3 N³ flops and two hops; the backward pass solves the transposed system with the same factors.
    Factors are in float32 at least.

    Args:
        max_bytes: refuses when the factors of all heads would need more memory than this.
        max_points: refuses more points than this, for which iteration is faster.
    """

    keeps_factors = True
    max_bytes: int = 1 << 30
    max_points: int = 2048

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses factors that are too large."""
        u, points, reasons = integral.u, integral.domain.num_points, []
        size = u.shape[0] * integral.kernel.num_heads * points**2 * max(4, u.element_size())
        if is_open(size):
            return []  # sizes are still symbolic
        if size > self.max_bytes:
            reasons.append(
                f"I - γA would need {size / 2**30:.2f} GiB, above max_bytes = {self.max_bytes / 2**30:.2f} GiB"
            )
        if points > self.max_points:
            reasons.append(f"a factorisation of {points} points takes longer than iteration above {self.max_points}")
        return reasons

    @staticmethod
    def solve(
        system: System, signal: Tensor, numbers: list[float], factors: "Factors | None", *, adjoint: bool
    ) -> Tensor:
        """See `Solver.solve`."""
        return (Factors.fresh(system) if factors is None else factors).solve(system, signal, adjoint=adjoint)


@final
class Factors:
    """The factors of I - B of some heads, for both directions.

    The series at a point without mass is not needed, so its row of B is left out: before the first mass the norm of a
    causal row may be nearly 0, and the row so large that the factors lose all others.

    Args:
        memory: `(g, N, N)`, which holds their transpose, so that the factorisation needs no copy.
        pivots: `(g, N)`, int32.
    """

    def __init__(self, memory: Tensor, pivots: Tensor) -> None:
        self._matrix, self._pivots = memory.mT, pivots

    @classmethod
    def fresh(cls, system: System) -> "Factors":
        """The factors of a system, in new memory."""
        count, points = system.heads.stop - system.heads.start, system.tiles.num_keys
        memory = system.tiles.key.new_empty(count, points, points)
        return cls.within(memory, torch.empty(count, points, dtype=torch.int32, device=memory.device), system)

    @classmethod
    def within(cls, memory: Tensor, pivots: Tensor, system: System) -> "Factors":
        """The factors of a system, in given memory."""
        tiles, matrix, nobody_reads = system.tiles, memory.mT, _without_mass(system)
        memory.zero_()
        for rows in tiles.rows_of(system.heads):
            weight = -system.weight[:, rows.rows]
            if nobody_reads is not None:
                weight = weight.where(~nobody_reads[:, rows.rows], 0.0)
            for columns in tiles.columns_of(rows):
                matrix[:, rows.rows, columns] = weight * hop_tile(tiles, rows, columns)
        matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
        # one by one, since a batch in several threads may stall on a CPU (`solve_each`)
        for head in range(matrix.shape[0]):
            factors = matrix[head], pivots[head], pivots.new_empty(())
            torch.linalg.lu_factor_ex(matrix[head], out=factors)
        return cls(memory, pivots)

    def solve(self, system: System, signal: Tensor, *, adjoint: bool = False) -> Tensor:
        """Solves x = B f + B x, or with Bᵀ, `(g, N, c)`."""
        nobody_reads = _without_mass(system) if adjoint else None
        if nobody_reads is not None:  # adds what these rows contribute to the others, as the factors leave them out
            signal = signal + system.apply(signal.where(nobody_reads, 0.0), adjoint=True)
        reached = torch.linalg.lu_solve(self._matrix, self._pivots, signal, adjoint=adjoint)
        # one more hop, since subtracting f from the solution would cost the accuracy of a small x
        return system.apply(reached, adjoint=adjoint)


def _without_mass(system: System) -> Tensor | None:
    """Mask of points without mass, `(g or 1, N, 1)`; None: there are none."""
    mass = system.mass()
    return None if mass is None or (has_values(mass) and bool((mass > 0).all())) else mass == 0


@final
@dataclasses.dataclass(frozen=True)
class Truncation(Solver):
    """The first T powers, an approximation with a bound; T hops. Never chosen automatically.

    The error is at most γ^{T+1} / (1 - γ) times the values v: in L²(μ) under the Frobenius norm, and in the maximum
    norm of a channel under row norms, where hops have norm 1 at most. Gradients are those of the whole series with its
    adjoint truncated likewise.

    Args:
        tolerance: largest error relative to v, in (0, 1); T is the smallest number that meets it.
        terms: T, >= 1, in place of the tolerance.

    Raises:
        ValueError: on numbers out of range.
    """

    tolerance: float = 1e-6
    terms: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"Truncation: tolerance must be in (0, 1); got {self.tolerance}")
        if self.terms is not None and self.terms < 1:
            raise ValueError(f"Truncation: terms must be at least 1; got {self.terms}")
        if self.terms is not None:
            refuse_idle(
                "Truncation", Truncation, f"terms={self.terms}", "give the tolerance alone", tolerance=self.tolerance
            )

    def num_terms(self, gamma: float) -> int:
        """T for the largest discount γ of all heads: the smallest T >= 1 with γ^{T+1} / (1 - γ) <= tolerance."""
        return _num_terms(gamma, self.tolerance) if self.terms is None else self.terms

    def bound(self, gamma: float) -> float:
        """γ^{T+1} / (1 - γ): bound of the error relative to v."""
        return gamma ** (self.num_terms(gamma) + 1) / (1 - gamma)

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses series that the bound does not cover."""
        if integral.kernel.is_causal and isinstance(integral.kernel.norm, FrobeniusNorm):
            return ["the bound needs hops of norm 1 at most, and rows that grow by the norm so far exceed it"]
        return []

    def numbers(self, dtype: torch.dtype) -> list[float]:
        """The tolerance, and T, or 0 if T follows from the tolerance."""
        return [self.tolerance, float(self.terms or 0)]

    @staticmethod
    def solve(
        system: System, signal: Tensor, numbers: list[float], factors: "Factors | None", *, adjoint: bool
    ) -> Tensor:
        """See `Solver.solve`; the last number is T."""
        x = torch.zeros_like(signal)
        for _ in range(int(numbers[1])):
            x = system.apply(signal + x, adjoint=adjoint)
        return x

    @staticmethod
    def settled(options: list[float], gamma: Tensor) -> list[float]:
        """The numbers of `solve`, with T for these discounts.

        Raises:
            ValueError: on discounts without values, from which T cannot be computed.
        """
        if Solver.of(options) is not Truncation or options[2]:
            return options
        if not has_values(gamma):
            raise ValueError(
                f"Truncation: how many terms a tolerance of {options[1]:.2g} takes depends on gamma, whose value a "
                f"tensor on {gamma.device} does not hold; give terms"
            )
        return [*options[:2], float(_num_terms(float(gamma.max()), options[1]))]


def _num_terms(gamma: float, tolerance: float) -> int:
    return max(1, math.ceil(math.log(tolerance * (1 - gamma)) / math.log(gamma) - 1 - 1e-9))


@final
@dataclasses.dataclass(frozen=True)
class Iteration(Solver):
    """GMRES, some heads at a time, in memory O(N·d) for any number of hops.

    Every hop adds a direction, and the sum Σ_t B^t f is replaced by the combination of directions with the smallest
    residual in L²(μ). Each of a few outlying eigenvalues (a hop of scores >= 0 has one) then costs one hop, whereas the
    plain series converges at the rate of the largest. A head stops when its residual is small enough.

    Source: Saad and Schultz 1986, with restarts. Deviation: the channels of a head are one vector.

    Args:
        tolerance: residual relative to y or γAv, whichever is larger; None: 1e-6, and 1e-12 for float64.
        max_hops: largest number of hops.
        restart: number of directions kept, >= 1; each is as large as the values of the active heads.

    Raises:
        ValueError: on numbers out of range; in `integrate`, when the tolerance is not reached.
    """

    tolerance: float | None = None
    max_hops: int = 500
    restart: int = 8

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ValueError(f"Iteration: tolerance must be in (0, 1); got {self.tolerance}")
        if self.max_hops < 1 or self.restart < 1:
            raise ValueError(
                f"Iteration: max_hops and restart must be at least 1; got {self.max_hops} and {self.restart}"
            )

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses nothing."""
        return []

    def numbers(self, dtype: torch.dtype) -> list[float]:
        """Tolerance, hops and restart."""
        tolerance = self.tolerance
        if tolerance is None:
            tolerance = 1e-12 if dtype == torch.float64 else 1e-6
        return [tolerance, float(self.max_hops), float(self.restart)]

    @staticmethod
    def solve(
        system: System, signal: Tensor, numbers: list[float], factors: "Factors | None", *, adjoint: bool
    ) -> Tensor:
        """See `Solver.solve`.

        Raises:
            ValueError: when the limit is reached before the tolerance.
        """
        tolerance, limit, restart = numbers[0], int(numbers[1]), int(numbers[2])
        weight = _residual_weight(system, adjoint)
        residual = _weighed_part(system.apply(signal, adjoint=adjoint), weight)
        scale = _norm(residual, weight)  # (g,)
        x, hops = torch.zeros_like(residual), 1
        unsolved = scale > 0
        while True:
            x, taken = _cycle(system, x, residual, scale, unsolved, weight, adjoint, tolerance, restart)
            # one more hop measures the residual, and gives x at points without mass from the others
            following = system.apply(signal + x, adjoint=adjoint)
            residual = _weighed_part(torch.sub(following, x, out=residual), weight)
            hops += taken + 1
            left = divided(_norm(residual, weight), torch.maximum(scale, _norm(following, weight)))
            unsolved = left > tolerance
            if not has_values(unsolved) or not bool(unsolved.any()):
                return following
            if hops >= limit:
                raise ValueError(
                    f"Iteration: after {hops} hops a relative residual of {left.max().item():.2g} is left, above "
                    f"tolerance = {tolerance:.2g}; allow more hops, a larger tolerance or a smaller gamma, or use "
                    "Factorisation"
                )


def _cycle(
    system: System,
    x: Tensor,
    residual: Tensor,
    scale: Tensor,
    unsolved: Tensor,
    weight: Tensor | None,
    adjoint: bool,
    tolerance: float,
    restart: int,
) -> tuple[Tensor, int]:
    """Improves x in place by up to `restart` directions; returns the number of hops. Overwrites `residual`.

    A head that is solved, `(g,)`, before or during the cycle, gets no more directions: its residual is rounding,
    which a division by its norm would amplify.
    """
    start = _norm(residual, weight)
    basis = [residual.mul_(_inverse(start, unsolved, x.dtype))]
    upper = torch.zeros(x.shape[0], restart + 1, restart, dtype=torch.float64, device=x.device)
    target = torch.zeros(x.shape[0], restart + 1, 1, dtype=torch.float64, device=x.device)
    target[:, 0, 0] = start
    shares = torch.zeros(x.shape[0], restart, dtype=torch.float64, device=x.device)
    while True:
        k = len(basis) - 1
        fresh = system.apply(basis[k], adjoint=adjoint).neg_().add_(basis[k])
        fresh = _weighed_part(fresh, weight)
        for i, direction in enumerate(basis):
            upper[:, i, k] = share = _inner(direction, fresh, weight)
            fresh.addcmul_(direction, share.to(x.dtype)[:, None, None], value=-1)
        upper[:, k + 1, k] = length = _norm(fresh, weight)
        found, left = _least_squares(upper[:, : k + 2, : k + 1], target[:, : k + 2])
        shares[:, : k + 1] = torch.where(unsolved[:, None], found, shares[:, : k + 1])
        unsolved = unsolved & (left > 0.5 * tolerance * scale)
        if k + 1 == restart or (has_values(unsolved) and not bool(unsolved.any())):
            break
        basis.append(fresh.mul_(_inverse(length, unsolved, x.dtype)))
    for i, direction in enumerate(basis):
        x.addcmul_(direction, shares[:, i].to(x.dtype)[:, None, None])
    return x, len(basis)


def _residual_weight(system: System, adjoint: bool) -> Tensor | None:
    """Weights of the squared norm of residuals, that of L²(μ) or of its dual."""
    mass = system.mass()
    return mass if mass is None or not adjoint else divided(1.0, mass)


def _inner(a: Tensor, b: Tensor, weight: Tensor | None) -> Tensor:
    """⟨a, b⟩ of every head, `(g,)` in float64."""
    by_point = torch.linalg.vecdot(a, b).double()
    return by_point.sum(-1) if weight is None else (by_point * weight[..., 0]).sum(-1)


def _norm(a: Tensor, weight: Tensor | None) -> Tensor:
    return _inner(a, a, weight).sqrt()


def _weighed_part(signal: Tensor, weight: Tensor | None) -> Tensor:
    """Sets the signal to 0 in place at points without mass, where a direction could grow unseen by the norm."""
    return signal if weight is None else signal.masked_fill_(weight == 0, 0.0)


def _inverse(length: Tensor, unsolved: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / length, expanded to `(g, N, c)`; 0 for length 0, and for solved heads."""
    return divided(1.0, torch.where(unsolved & (length > 0), length, 0.0)).to(dtype)[:, None, None]


def _least_squares(upper: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """z that minimises ‖target - upper z‖, `(g, k)`, and the minimum, `(g,)`; unused directions get 0."""
    # a NaN head stays NaN by its directions; the decomposition would fail for all heads
    shares = torch.linalg.pinv(upper.nan_to_num(), rtol=1e-14) @ target.nan_to_num()
    return shares[..., 0], torch.linalg.vector_norm(target - upper @ shares, dim=(-2, -1))
