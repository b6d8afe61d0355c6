"""Linear infinite attention: weights of points from central queries, the same for every query.

Legend
    q_j          query and key of a head, W_q u(y_j) + b_q       V        [W_V, b_V], one per head
    a(y)         weight of a point                               e_j      energy ‖q_j‖
    p_jm         share of group m of c in point j; 1 where c = 1 q̄_m      central query of group m

    κ(x, y) = γ a(y) V,   with one group   a(y) = max(q̄·q(y), 0) / ∫ max(q̄·q, 0) dμ,   q̄ = ∫ ‖q‖ q dμ / ∫ ‖q‖ dμ

    p_jm = softmax_m(G_m·q_j / √d)
    q̄_m = ∫ p_m e q dμ / E_m,   E_m = ∫ p_m e dμ,   π_m = E_m / Σ_m E_m
    s_jm = max(q̄_m·q_j, 0),   a_jm = s_jm / ∫ s_m dμ;   each further power step: q̄_m = ∫ a_m q dμ, then s and a anew
    a_j = Σ_m π_m a_jm

Source: InfSA (Infinite Self-Attention), section 3.4, eq. 16-21. Deviations: biases, a measure in all sums, no ε in the
denominators (where a denominator is 0, so is the quotient), power steps and several central queries. A factor of the
scores is left out, since it cancels in a.
"""

import abc
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._precision import wide_dtype, without_autocast
from fredholm._settings import check_count
from fredholm.domains import Domain
from fredholm.kernels.attention.scored import ValueMixing
from fredholm.kernels.heads import check_heads
from fredholm.kernels.kernel import divided
from fredholm.kernels.neumann.infinite_attention import Discount
from fredholm.kernels.perceptron.mlp import norm


class CentralForm(NamedTuple):
    """The pieces of central queries."""

    weight: Tensor  # [W_q, b_q]: (H, d, d_in), or with d_in + 1 columns from an affine kernel
    groups: Tensor | None  # G: (H, c, d); None: one group
    power_steps: int


class CentralQueries(ValueMixing):
    """Marker: κ(x, y) = γ a(y) V, independent of x: the points are pooled once for all queries, head by head.

    Pair weights only multiply a, which is computed from all points, and do not enter it.
    """

    @abc.abstractmethod
    def central_form(self) -> CentralForm:
        """The projections and group directions of the weights."""

    @abc.abstractmethod
    def scale(self) -> Tensor | None:
        """γ, `(H,)`; None: 1."""

    @final
    def given_mass(self, domain: Domain, dtype: torch.dtype) -> Tensor:
        """ω `(B', N)`, without a gradient where it is 0, since such a point is hidden."""
        mass = torch.atleast_2d(self.measure(domain)).to(dtype)
        return torch.where(mass > 0, mass, 0.0)

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """γ a, the same in every row, without pair weights; see `ValueMixing.density`."""
        num_queries = (domain if query_domain is None else query_domain).num_points
        form, wide = self.central_form(), wide_dtype(u)
        q = torch.einsum("bnc,hdc->bhnd", self.multiplicand(u), form.weight.to(u.dtype)).to(wide)
        with without_autocast(u):
            a = central_weights(q, self.given_mass(domain, wide)[:, None], form)
        gamma = self.scale()
        a = a if gamma is None else a * gamma.to(wide)[:, None]
        return a[:, :, None].expand(-1, -1, num_queries, -1).to(u.dtype)


def central_weights(q: Tensor, mass: Tensor, form: CentralForm) -> Tensor:
    """a by its definition, `(B, H, N)`, from q `(B, H, N, d)` and ω `(B', 1, N)`; 0 where ω is."""
    measured = measured_energies(q, mass, form.groups)
    energy = measured.sum(2)  # E: (B, H, c)
    central = divided(measured.mT @ q, energy[..., None])
    weight = _weights(q, central, mass)
    for _ in range(form.power_steps - 1):
        weight = _weights(q, (mass[..., None] * weight).mT @ q, mass)
    share = divided(energy, energy.sum(-1, keepdim=True))
    mixed = (weight @ share[..., None])[..., 0]
    return torch.where(mass > 0, mixed, 0.0)


def measured_energies(q: Tensor, mass: Tensor, groups: Tensor | None) -> Tensor:
    """ω p_m e, `(B, H, N, c)`; arguments as in `central_weights`."""
    energy = (mass * norm(q))[..., None]
    if groups is None:
        return energy
    return energy * torch.softmax(q @ groups.to(q.dtype).mT / q.shape[-1] ** 0.5, dim=-1)


def _weights(q: Tensor, central: Tensor, mass: Tensor) -> Tensor:
    score = torch.relu(q @ central.mT)  # (B, H, N, c)
    return divided(score, (mass[..., None] * score).sum(2, keepdim=True))


@final
class LinearInfiniteAttention(CentralQueries):
    """κ(x, y) = γ a(y) W_V: one pooled context per head, the same at every x, in time linear in the points.

    Queries and keys are one projection. a(y) is one step of the power method for the Perron vector of max(q·qᵀ, 0),
    from the energies ‖q‖. It approximates that vector where queries share a mean direction, but not in general.

    With several central queries, learned directions assign the points softly to groups; each group has its own central
    query and weights, and the weights are averaged by the groups' shares of the energy. In a single q̄ two opposite
    clusters of points cancel; two central queries resolve them.

    Args:
        embed_dim: channels of u(x), and of the integral; a multiple of `num_heads`.
        num_heads: heads H; head h writes channels h·d … (h + 1)·d - 1, d = embed_dim / H.
        num_central: central queries c of a head.
        power_steps: steps of the power method k; the central query of each but the first is ∫ a q dμ.
        bias: whether the projections to queries and values have biases; that of the values makes κ affine.
        gamma: γ in (0, 1), the scale of the context, one for all heads or one for each; None: 1, no scale.
        learn_gamma: whether γ is learned, as a sigmoid, starting at `gamma`.
        is_causal: refused; the weights depend on all points.

    Raises:
        ValueError: on heads that do not divide, sizes below 1, γ outside (0, 1), or `is_causal`.
    """

    pos_dim = None
    is_causal = reads_query = is_pairwise = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        num_central: int = 1,
        power_steps: int = 1,
        bias: bool = True,
        gamma: float | Sequence[float] | None = None,
        learn_gamma: bool = False,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        name = "kernels.LinearInfiniteAttention"
        check_heads(name, embed_dim, num_heads, num_heads)
        for what, size in (("num_central", num_central), ("power_steps", power_steps)):
            check_count(name, what, size)
        if is_causal:
            raise ValueError(
                f"{name}: its weights are made of all points, so it cannot be causal; "
                "use kernels.FactorisedInfiniteAttention(..., is_causal=True), linear in the points as well"
            )
        if gamma is None and learn_gamma:
            raise ValueError(f"{name}: learn_gamma needs a gamma to start from; got gamma=None")
        self.in_dim = self.out_dim = embed_dim
        self.num_heads, self.power_steps, self.is_affine = num_heads, power_steps, bias
        self.query_weight = nn.Parameter(torch.empty(embed_dim, embed_dim))
        self.value_weight = nn.Parameter(torch.empty(embed_dim, embed_dim))
        self.query_bias = nn.Parameter(torch.zeros(embed_dim)) if bias else None
        self.value_bias = nn.Parameter(torch.zeros(embed_dim)) if bias else None
        for weight in (self.query_weight, self.value_weight):
            nn.init.xavier_uniform_(weight)
        many = num_central > 1
        self.groups = nn.Parameter(torch.randn(num_heads, num_central, embed_dim // num_heads)) if many else None
        self.discount = None if gamma is None else Discount(gamma, num_heads, learn_gamma)

    def central_form(self) -> CentralForm:
        """See `CentralQueries.central_form`."""
        return CentralForm(self._by_head(self.query_weight, self.query_bias), self.groups, self.power_steps)

    def scale(self) -> Tensor | None:
        """See `CentralQueries.scale`."""
        return None if self.discount is None else self.discount()

    def value_matrices(self) -> Tensor:
        """See `ValueMixing.value_matrices`."""
        return self._by_head(self.value_weight, self.value_bias)

    def _by_head(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        weight = weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)
        return weight.unflatten(0, (self.num_heads, -1))

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        num_central = 1 if self.groups is None else self.groups.shape[1]
        return f"num_heads={self.num_heads}, num_central={num_central}, power_steps={self.power_steps}"
