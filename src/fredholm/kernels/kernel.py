"""The abstract kernel, and the markers by which evaluations recognise what a kernel can do."""

import abc
from typing import NamedTuple

from torch import Tensor, nn

from fredholm.domains import Domain, GridBlock


class Kernel(nn.Module, abc.ABC):
    """κ(x, y, u(x), u(y)): what is integrated, with values in the d_out x d_in matrices.

    `matrix` is the definition; a kernel that also carries a marker class below gives an evaluation what its fast route
    needs, with the same result.

    Attributes:
        in_dim, out_dim: channels d_in of u(y) and d_out of the integral.
        pos_dim: number of coordinates that positions must have; None when positions are not read.
        is_causal: κ = 0 unless y comes before x or is x (`domains.preceding_counts` says what that means).
        reads_query: whether κ depends on u(x).
        no_weight_decay: local names of parameters that an optimiser should not decay.
    """

    in_dim: int
    out_dim: int
    pos_dim: int | None
    is_causal: bool
    reads_query: bool
    no_weight_decay: frozenset[str] = frozenset()

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
            `(B, Nq, N, d_out, d_in)`.
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
    hidden_weight: Tensor  # M: (m, G, w, w)
    hidden_bias: Tensor  # (m, G, w)
    output_weight: Tensor  # W: (G, w, d, d_out)
    output_bias: Tensor  # b: (G, d_out, d)


class PairwiseMLP(Kernel):
    """Marker: κ is a perceptron of two points whose first layer splits as in `PairwiseForm`, in `num_heads` heads.

    Head h reads and writes channels h·d … (h + 1)·d - 1 of the signal, d = in_dim / num_heads. With `head_shared` all
    heads have the one kernel (G = 1), else each has its own (G = num_heads).
    """

    num_heads: int
    head_shared: bool
    activation: str

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
