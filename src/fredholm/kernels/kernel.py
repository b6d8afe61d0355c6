"""The abstract kernel, and the markers by which evaluations recognise what a kernel can do."""

import abc
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, GridBlock, past_mass


class Kernel(nn.Module, abc.ABC):
    """κ(x, y, u(x), u(y)): what is integrated, with values in the d_out x d_in matrices.

    `matrix` is the definition; a kernel that also carries a marker class below gives an evaluation what its fast route
    needs, with the same result.

    Attributes:
        in_dim, out_dim: channels d_in of u(y) and d_out of the integral.
        pos_dim: number of coordinates that positions must have; None when positions are not read.
        is_causal: κ = 0 unless y comes before x or is x (`domains.preceding_counts` says what that means).
        reads_query: whether κ depends on u(x).
        is_affine: whether κ multiplies [u(y); 1] instead of u(y), one column more for a constant.
        counts_points: whether the measure defaults to one a point instead of total mass 1 (`Domain.counts`): a stencil
            or a recurrence sums over samples, however many there are.
        averages_past: whether κ is divided by the mass of the past, μ{y ≤ x}: then the integral is a mean over what a
            causal kernel sees, and what comes later changes nothing.
        is_pairwise: whether κ(x, y, u(x), u(y)) needs the two points and nothing else, so that it may be integrated
            over other nodes; a stencil needs its grid, a recurrence all points between the two.
        holds_pair_weights: whether κ has the pair weights of a measure (`Domain.weigh_pairs`) in it, as a sum over
            chains of pairs must; else the integral multiplies κ by them.
        no_weight_decay: local names of parameters that an optimiser should not decay.
    """

    in_dim: int
    out_dim: int
    pos_dim: int | None
    is_causal: bool
    reads_query: bool
    is_affine: bool = False
    counts_points: bool = False
    averages_past: bool = False
    is_pairwise: bool = True
    holds_pair_weights: bool = False
    no_weight_decay: frozenset[str] = frozenset()

    @property
    def query_dim(self) -> int:
        """Channels of u(x); those of u(y) unless a kernel says otherwise."""
        return self.in_dim

    @abc.abstractmethod
    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ itself at every pair of points, for small N.

        Args:
            u: the signal at the keys, `(B, N, d_in)`.
            domain: where u lives, N points.
            query: the signal at the queries, `(B, Nq, d_in)`; None: `u`.
            query_domain: where the queries lie, Nq points; None: `domain`.

        Returns:
            `(B, Nq, N, d_out, d_in)`, or with d_in + 1 columns from an affine kernel.
        """

    @final
    def measure(self, domain: Domain) -> Tensor:
        """Mass of each point under the measure that this kernel is integrated against, `(N,)` or `(B, N)`."""
        return domain.counts if self.counts_points else domain.weights

    @final
    def past_share(self, domain: Domain, query_domain: Domain | None = None) -> Tensor | None:
        """1 / μ{y ≤ x} at each query, `(1 or B, Nq)`, 0 where nothing comes before it; None unless `averages_past`."""
        if not self.averages_past:
            return None
        mass = past_mass(domain if query_domain is None else query_domain, domain)
        if self.counts_points:
            mass = mass * domain.counts_per_mass
        return torch.where(mass > 0, 1 / torch.where(mass > 0, mass, 1.0), 0.0)

    @final
    def multiplicand(self, u: Tensor) -> Tensor:
        """What κ multiplies: u, or [u; 1] for an affine kernel."""
        return torch.cat([u, u.new_ones(*u.shape[:-1], 1)], dim=-1) if self.is_affine else u

    @final
    def __add__(self, other: "Kernel") -> "Kernel":
        """κ + κ'; see `kernels.Sum`."""
        from fredholm.kernels.compose import Sum  # a sum is a kernel, so its file imports this one

        return Sum([self, other])

    @final
    def __rmul__(self, gate: float) -> "Kernel":
        """g κ with a learned scalar that starts at `gate`; see `kernels.Scaled`."""
        from fredholm.kernels.compose import Scaled  # a multiple is a kernel, so its file imports this one

        if not isinstance(gate, int | float):
            return NotImplemented
        return Scaled(self, gate)

    def output_domain(self, domain: Domain) -> Domain:
        """Where the result lives when nobody asks for other queries: the points of u itself, unless overridden."""
        return domain


State = tuple[Tensor, ...]
"""What a stateful kernel remembers of the points so far: tensors with the batch first."""


class Stateful(Kernel):
    """Marker: a causal kernel whose integral can be carried along a sequence in a state of bounded or growing size.

    Its result lives at the points of u. A class whose causality is an option is stateful where `is_causal` is set.

    Attributes:
        has_growing_state: whether a state holds something of every point, as a cache of keys does.
        sees_simultaneous: whether points at one time see each other (`domains.preceding_counts`), so that the order of
            indices is not the order of the integral where times coincide.
        reads_time: whether a step must be told when its point is.
    """

    has_growing_state: bool = False
    sees_simultaneous: bool = False
    reads_time: bool = False

    @abc.abstractmethod
    def initial_state(self, batch_size: int) -> State:
        """The state before the first point, in the parameters' dtype and device."""

    def unsteppable(self, domain: Domain) -> list[str]:
        """Why a sequence on such points cannot be gone through step by step, a sentence each; empty when it can."""
        return []

    @abc.abstractmethod
    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """The integral at the next point, and the state after it.

        Args:
            u: the signal there, `(B, d_in)`.
            state: the state before it.
            time: when, `(B,)`, which kernels in continuous time compare with the time before; None: a unit step later.

        Returns:
            `(B, d_out)`, and the new state.
        """


class PairwiseForm(NamedTuple):
    """The pieces of a multilayer-perceptron kernel whose first layer splits over the two points of a pair.

    For G distinct kernels, each on `d` channels, with hidden width w and the pre-activation of pair (i, j), unit k

        p_ijk = query_bias_ik + key_bias_jk + Q_k·u_i + (K_k + P_k ⊙ u_i)·u_j
                + s_k·sin(θ_i - θ_j) + c_k·cos(θ_i - θ_j) + r_k ‖x_i - x_j‖,

    the kernel is vec κ_ij = W φ(M_m … φ(M_1 φ(p_ij) + b_1) … + b_m) + b. A part that a kernel lacks is None.
    Positions may be shared by the batch: B' is 1 or B.
    """

    query_bias: Tensor  # (B', G, Nq, w)
    key_bias: Tensor  # (B', G, N, w)
    query_weight: Tensor | None  # Q: (G, w, d)
    key_weight: Tensor | None  # K: (G, w, d)
    product_weight: Tensor | None  # P: (G, w, d)
    sin_weight: Tensor | None  # s: (G, w, L)
    cos_weight: Tensor | None  # c: (G, w, L)
    query_phase: Tensor | None  # [sin θ_i, cos θ_i]: (B', Nq, 2L)
    key_phase: Tensor | None  # (B', N, 2L)
    distance_weight: Tensor | None  # r: (G, w)
    query_pos: Tensor  # (B', Nq, s)
    key_pos: Tensor  # (B', N, s)
    hidden_weight: Tensor | None  # M: (m, G, w, w)
    hidden_bias: Tensor | None  # (m, G, w)
    output_weight: Tensor  # W: (G, w, d, d_out)
    output_bias: Tensor  # b: (G, d_out, d)


class PairwiseMLP(Kernel):
    """Marker: κ is a perceptron of two points whose first layer splits as in `PairwiseForm`, in `num_heads` heads.

    Head h reads and writes channels h·d … (h + 1)·d - 1 of the signal, d = in_dim / num_heads. With `head_shared` all
    heads have the one kernel (G = 1), else each has its own (G = num_heads).

    Attributes:
        width: hidden units w.
        depth: number of linear layers, 2 without hidden layers between first and last.
        num_frequencies: Fourier frequencies L of the displacement; 0 without them.
    """

    num_heads: int
    head_shared: bool
    activation: str
    width: int
    depth: int
    num_frequencies: int

    @abc.abstractmethod
    def pairwise_form(self, domain: Domain, query_domain: Domain) -> PairwiseForm:
        """The pieces of the kernel on these points, in the parameters' dtype."""

    @abc.abstractmethod
    def relative_table(self, block: GridBlock) -> Tensor:
        """The part of p that depends on x - y alone, at every displacement within a grid block.

        Returns:
            `(G, w, 2 n_1 - 1, ..., 2 n_s - 1)`; entry `[g, k, j_1 - i_1 + n_1 - 1, ...]` belongs to query cell i and
            key cell j.
        """

    @abc.abstractmethod
    def reads_displacement(self, domain: Domain) -> bool:
        """Whether p on this domain depends on displacement or distance beyond what splits over the two points."""
