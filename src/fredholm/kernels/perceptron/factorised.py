"""Kernels that factor through features of one point each.

Legend
    γ            Fourier features with L frequencies, or the identity ("raw coordinates") when L = 0
    w            hidden width
    G            distinct kernels: num_heads, or 1 if head-shared
    h_i, h'_j    features of query and key, w + 1 per head: [φ(P γ(x) + R u_x + c); 1], so that a linear map of them has
                 a constant of its own; each side has its own perceptron (P, R, c)
    M_ab         constant (d, d) matrices, one for each pair of features, stored as each kernel defines

    κ_ij = Σ_ab h_ia h'_jb M_ab,   and with a measure ω, since nothing in M depends on a point,

    Σ_j ω_j κ_ij u_j = h_i T,   T = mix(S),   S = Σ_j ω_j h'_j ⊗ u_j  of (w + 1, d) numbers per head

A causal kernel takes the mean over the past: κ_ij = 1[j ≤ i] Σ_ab h_ia h'_jb M_ab / μ{l ≤ i}. At the last point of a
measure of total mass 1 it equals the value without `is_causal`, and a step does not depend on the number of later
points.
"""

import abc
import dataclasses
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, preceding_counts
from fredholm.kernels.attention.scored import ValueMixing
from fredholm.kernels.fourier_features import Lifting, sample_frequencies
from fredholm.kernels.heads import block_diagonal, split_heads
from fredholm.kernels.kernel import Stateful
from fredholm.kernels.perceptron.mlp import Activation, activate, check_frequencies, check_sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointInputs:
    """Switches for the four inputs of a single point that a kernel reads."""

    query_position: bool = True
    key_position: bool = True
    query_content: bool = True
    key_content: bool = True

    @property
    def has_frequencies(self) -> bool:
        """Whether a position is read through Fourier features."""
        return self.query_position or self.key_position


@final
class PointFeatures(nn.Module):
    """h of one side, query or key.

    Args:
        kernels: G.
        width: w.
        lifted_dim: entries of γ(x); 0: positions are not read.
        content_dim: channels of a head; 0: the signal is not read.
        activation: φ.

    Attributes:
        position_weight: P, `(G, w, lifted_dim)`; starts at N(0, 0.02²), as the first layer of `kernels.MLP`. None where
            positions are not read.
        content_weight: R, `(G, w, content_dim)`; starts like P. None where the signal is not read.
        bias: c, `(G, w)`; starts at 0.
    """

    def __init__(self, kernels: int, width: int, lifted_dim: int, content_dim: int, activation: Activation) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.position_weight, self.content_weight = (
            nn.Parameter(0.02 * torch.randn(kernels, width, columns)) if columns else None
            for columns in (lifted_dim, content_dim)
        )
        self.bias = nn.Parameter(torch.zeros(kernels, width))

    @property
    def reads_position(self) -> bool:
        """Whether positions are read, by P."""
        return self.position_weight is not None

    @property
    def reads_content(self) -> bool:
        """Whether the signal is read, by R."""
        return self.content_weight is not None

    def forward(self, lifted: Tensor, content: Tensor) -> Tensor:
        """h, `(B, H, N, w + 1)`, from γ(x) `(B', N, lifted_dim)`, B' = 1 or B, and u `(B, H, N, content_dim)`."""
        p = self.bias[:, None].expand(*content.shape[:3], -1)
        if self.position_weight is not None:
            p = p + lifted[:, None] @ self.position_weight.mT
        if self.content_weight is not None:
            p = p + content @ self.content_weight.mT
        return nn.functional.pad(activate(p, self.activation), (0, 1), value=1.0)

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        sizes = [0 if weight is None else weight.shape[-1] for weight in (self.position_weight, self.content_weight)]
        return f"width={self.bias.shape[-1]}, lifted_dim={sizes[0]}, content_dim={sizes[1]}"


@final
class FeaturePair(Lifting):
    """The perceptron of the query and that of the key, with the frequencies that both read.

    Args:
        name: of the kernel, for its errors.
        embed_dim: channels of the signal; a multiple of `num_heads`.
        num_heads: heads H.
        pos_dim: coordinates s of a position.
        width: hidden units w.
        activation: exact GELU, its tanh approximation, or ReLU.
        inputs: the inputs of each point.
        num_frequencies: frozen random Fourier frequencies L; 0 reads raw coordinates.
        sigma: standard deviation of the frequencies, in cycles per unit length.
        head_shared: one pair for all heads instead of one per head.

    Raises:
        ValueError: on heads that do not divide the channels, or sizes below 1.
    """

    def __init__(
        self,
        name: str,
        embed_dim: int,
        num_heads: int,
        pos_dim: int,
        width: int,
        activation: Activation,
        inputs: PointInputs,
        num_frequencies: int,
        sigma: float,
        head_shared: bool,
    ) -> None:
        super().__init__()
        check_sizes(name, embed_dim, num_heads, pos_dim, width, num_frequencies, activation)
        kernels = 1 if head_shared else num_heads
        lifted, content = 2 * num_frequencies or pos_dim, embed_dim // num_heads
        self.num_heads, self.num_frequencies = num_heads, num_frequencies
        self.register_buffer("frequencies", sample_frequencies(num_frequencies, pos_dim, sigma))
        self.query = PointFeatures(
            kernels, width, lifted * inputs.query_position, content * inputs.query_content, activation
        )
        self.key = PointFeatures(kernels, width, lifted * inputs.key_position, content * inputs.key_content, activation)

    @property
    def reads_position(self) -> bool:
        """Whether either side reads positions."""
        return self.query.reads_position or self.key.reads_position

    @property
    def lifted_dtype(self) -> torch.dtype:
        """See `Lifting.lifted_dtype`."""
        return self.query.bias.dtype

    def inputs(self, side: PointFeatures, u: Tensor, lifted: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs of one side: γ(x) `(B', N, lifted_dim)` and u by head `(B, H, N, content_dim)`.

        Args:
            side: `self.query` or `self.key`.
            u: the signal, `(B, N, C)`; if the side does not read it, only B is used.
            lifted: the result of `lift`.
        """
        at = lifted if side.reads_position else lifted[..., :0]
        content = (
            split_heads(u, self.num_heads)
            if side.reads_content
            else u.new_empty(u.shape[0], self.num_heads, at.shape[1], 0)
        )
        return at, content


class FeatureFactorised(Stateful):
    """Marker: κ is bilinear in features of x and features of y, so that keys are summed before a query is applied.

    Head h reads and writes channels h·d … (h + 1)·d - 1 of the signal. Where `is_causal`, κ is divided by the mass of
    the past; such a kernel goes step by step, on points with times if it reads positions.

    Attributes:
        num_heads: heads H.
        features: the perceptrons of both sides; they hold G = 1 or H kernels.
    """

    sees_simultaneous = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        pos_dim: int,
        width: int,
        activation: Activation,
        inputs: PointInputs | None,
        num_frequencies: int,
        sigma: float,
        head_shared: bool,
        is_causal: bool,
    ) -> None:
        super().__init__()
        name, inputs = f"kernels.{type(self).__name__}", PointInputs() if inputs is None else inputs
        check_frequencies(name, type(self), inputs.has_frequencies, num_frequencies, sigma)
        self.features = FeaturePair(
            name, embed_dim, num_heads, pos_dim, width, activation, inputs, num_frequencies, sigma, head_shared
        )
        self.in_dim = self.out_dim = embed_dim
        self.num_heads, self.is_causal = num_heads, is_causal
        self.counts_points = self.averages_past = is_causal
        self.reads_time = self.features.reads_position
        self.pos_dim, self.reads_query = (pos_dim if self.reads_time else None), inputs.query_content

    @abc.abstractmethod
    def join(self, query: Tensor, key: Tensor) -> Tensor:
        """Σ_ab h_a h'_b M_ab at every pair, `(B, H, Nq, N, d, d)`, from `(B, H, Nq, w + 1)` and `(B, H, N, w + 1)`."""

    @abc.abstractmethod
    def mix(self, sums: Tensor) -> Tensor:
        """T with T_ao = Σ_bi M_ab[o, i] S_bi: `(B, H, w + 1, d)` to `(B, H, w + 1, d)`, in the dtype of S."""

    @final
    def head_matrices(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ head by head, `(B, H, Nq, N, d, d)`."""
        kappa = self.join(*self.both_sides(u, domain, query, query_domain))
        share = self.share_of_past(domain, query_domain)
        return kappa if share is None else kappa * share[..., None, None].to(kappa.dtype)

    @final
    def both_sides(
        self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> tuple[Tensor, Tensor]:
        """h at the queries `(B, H, Nq, w + 1)` and h' at the points `(B, H, N, w + 1)`; arguments as in `matrix`."""
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        own = self.features
        h = own.query(*own.inputs(own.query, query, own.lift(query_domain)))
        return h, own.key(*own.inputs(own.key, u, own.lift(domain)))

    @final
    def share_of_past(
        self, domain: Domain, query_domain: Domain | None = None, rows: slice = slice(None)
    ) -> Tensor | None:
        """1[j ≤ i] / μ{l ≤ i} at some queries i, `(B', 1, rows, N)`; None unless `is_causal`."""
        share = self.past_share(domain, query_domain)
        if share is None:
            return None
        counts = preceding_counts(domain if query_domain is None else query_domain, domain)[:, rows, None]
        seen = torch.arange(domain.num_points, device=counts.device) < counts
        return (seen * share[:, rows, None])[:, None]

    @final
    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, Nq, N, embed_dim, embed_dim)`, block-diagonal over heads; see `Kernel.matrix`."""
        return block_diagonal(self.head_matrices(u, domain, query, query_domain))

    @final
    def step_features(self, u: Tensor, time: Tensor | None) -> tuple[Tensor, Tensor]:
        """h and h' of one point, `(B, H, w + 1)` each, from `(B, C)` and its time `(B,)`.

        Raises:
            ValueError: without a time, when positions are read.
        """
        own, name = self.features, type(self).__name__
        if time is None and own.reads_position:
            raise ValueError(
                f"kernels.{name}: a step needs the time of its point, because the kernel reads positions; "
                f"give it (Sequence(times=...) for a whole sequence), or switch positions off in inputs="
            )
        lifted = u.new_empty(1, 1, 0) if time is None else own.lift_positions(time[:, None, None])
        h, key = (side(*own.inputs(side, u[:, None], lifted))[:, :, 0] for side in (own.query, own.key))
        return h, key


class LowRankForm(NamedTuple):
    """M_ab = Φ_aᵀ Ψ_b (+ B where a = b = w): κ_ij = Φ_iᵀ Ψ_j + B with Φ_i = Σ_a h_ia Φ_a, Ψ_j = Σ_b h'_jb Ψ_b."""

    query: Tensor  # Φ: (G, r, w + 1, d)
    key: Tensor  # Ψ: (G, r, w + 1, d)
    constant: Tensor | None  # B: (G, d, d)


class LowRank(FeatureFactorised):
    """Marker: κ_ij = Φ_iᵀ Ψ_j + B; a query needs only the r numbers Σ_j ω_j Ψ_j u_j and Σ_j ω_j u_j of the past."""

    @abc.abstractmethod
    def low_rank_form(self) -> LowRankForm:
        """Φ, Ψ and B."""

    @final
    def mix(self, sums: Tensor) -> Tensor:
        """T = Φ (Ψ : S), and B S_w where the features are 1; see `FeatureFactorised.mix`."""
        return low_rank_table(sums.transpose(0, 1), self.low_rank_form()).transpose(0, 1)


def low_rank_table(sums: Tensor, form: LowRankForm) -> Tensor:
    """T of a low-rank kernel, `(H, B, w + 1, d)`, from S of that shape and in its dtype."""
    phi, psi = (weight.to(sums.dtype).flatten(2) for weight in (form.query, form.key))
    # one product for the whole batch, without copies of the weights
    flat = sums.flatten(2)  # (H, B, (w + 1)·d)
    table = flat @ psi.mT @ phi
    if form.constant is not None:
        heads, d = sums.shape[0], sums.shape[-1]
        constant = form.constant.mT.to(sums.dtype).expand(heads, -1, -1)
        table = torch.cat([table[..., :-d], torch.baddbmm(table[..., -d:], flat[..., -d:], constant)], dim=-1)
    return table.view(sums.shape)


class SeparableForm(NamedTuple):
    """M_ab = m_ab V: κ_ij = (h_iᵀ m h'_j) V."""

    scores: Tensor  # m: (G, w + 1, w + 1)
    value: Tensor  # V: (G, d, d)


class Separable(FeatureFactorised, ValueMixing):
    """Marker: κ_ij = (h_iᵀ m h'_j) V, one number per pair; a query needs only S of the past."""

    @abc.abstractmethod
    def separable_form(self) -> SeparableForm:
        """m and V."""

    @final
    def join(self, query: Tensor, key: Tensor) -> Tensor:
        """(h · m h') V; see `FeatureFactorised.join`."""
        m, value = self.separable_form()
        return (query @ m @ key.mT)[..., None, None] * value[:, None, None]

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """h · m h', over the mass of the past where `is_causal`; see `ValueMixing.density`.

        It is not 0 at a point without mass, so that the mass has its true gradient there.
        """
        h, key = self.both_sides(u, domain, query, query_domain)
        scores = h @ self.separable_form().scores @ key.mT
        share = self.share_of_past(domain, query_domain)
        return scores if share is None else scores * share.to(scores.dtype)

    @final
    def value_matrices(self) -> Tensor:
        """V of each head, which reads that head's channels alone, `(H, d, H·d)`; see `ValueMixing.value_matrices`."""
        value, heads = self.separable_form().value, self.num_heads
        # (H, d, d, H): the last one is the head that is read
        apart = torch.diag_embed(value.expand(heads, -1, -1).movedim(0, -1)).movedim(-2, 0)
        return apart.transpose(-1, -2).flatten(-2)
