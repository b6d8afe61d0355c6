"""Series of hops: what reaches a point along all chains of points.

Legend
    s_ij        score of a pair, q_i·k_j                    φ      relu, gelu or abs
    m_ij, ω_j   pair weight, 0 where hidden, and mass       γ      discount of a hop, in (0, 1)
    c_i         norm (`hop_norms.py`)                       V      value matrix

    a_ij = φ(s_ij) m_ij / c_i,   (A f)_i = Σ_j ω_j a_ij f_j

    one hop:      κ = a V
    the series:   κ = c V  with  Σ_{t ≥ 1} (γA)^t = (I - γA)⁻¹ - I = c Ω,   c = γ a + γ² a Ω a + … = (I - γ a Ω)⁻¹ γ a

At a query x that is no point, c(x, ·) = γ a(x, ·) + γ a(x, ·) Ω c: only the first hop starts there.

Source: InfSA (Infinite Self-Attention), eq. 7, 11 and 12. Deviations: values have a constant, heads may share keys and
values, and there are a measure, masks, pair weights, causality and other queries.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain, preceding_counts
from fredholm.domains.checks import values_can_be_read
from fredholm.kernels.arithmetic import divided
from fredholm.kernels.attention.scored import Score
from fredholm.kernels.attention.value_mixing import ValueMixing
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.neumann.discount import Discount
from fredholm.kernels.neumann.hop_norms import HopNorm, HopScores
from fredholm.kernels.solve_each import solve_each


@final
@dataclasses.dataclass(frozen=True)
class Relu(Score):
    """s = max(q·k, 0)."""

    is_nonnegative = True
    is_homogeneous = True

    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """See `Score.value`."""
        return dot.relu()

    def pull(self, kept: Any, grad: Tensor, numbers: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """See `Score.pull`; 0 at the corner."""
        return grad.masked_fill_(kept[0] <= 0, 0.0), None, []


@final
@dataclasses.dataclass(frozen=True)
class Absolute(Score):
    """s = |q·k|."""

    is_nonnegative = True
    is_homogeneous = True

    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """See `Score.value`."""
        return dot.abs()


@final
@dataclasses.dataclass(frozen=True)
class Gelu(Score):
    """s = q·k Φ(q·k), Φ the normal distribution; scores may be negative."""

    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """See `Score.value`."""
        return dot * normal_distribution(dot)


class HopForm(NamedTuple):
    """s_ij = q_i·k_j, and V ũ_j; keys and values may have fewer heads, each serving several in a row."""

    query: Tensor  # q at the queries, times the scale: (B, H, Nq, d)
    own: Tensor | None  # q at the points themselves: (B, H, N, d); None: the queries are the points
    key: Tensor  # (B, H', N, d)
    value: Tensor  # (B, H', N, d_v)


class Neumann(ValueMixing):
    """Marker: κ is a normalised hop, or the discounted series of all hops, times a value matrix.

    Multiplying the measure by a constant changes nothing. Where a norm is 0 there is no hop: the integral is 0.

    Attributes:
        score: φ of s, of dot products.
        norm: c.
        discount: γ; None: κ is one hop, without it.
    """

    reads_query = True
    is_pairwise = False  # a chain passes through all points
    holds_pair_weights = True
    score: Score
    norm: HopNorm
    discount: Discount | None

    @abc.abstractmethod
    def hop_form(self, u: Tensor, query: Tensor | None) -> HopForm:
        """Queries, keys and values on these signals, `(B, N, d_in)` and `(B, Nq, query_dim)`; None: the points."""

    @final
    def elsewhere(self, domain: Domain, query_domain: Domain | None) -> list[str]:
        """Why a series cannot be taken at these queries, a sentence each; empty when it can. None: at the points."""
        if domain.pair_bias is not None and query_domain is not None and not query_domain.has_points_of(domain):
            return ["pair weights are for other queries than the points, which later hops start from"]
        return []

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """a, or c; see `ValueMixing.density`.

        Raises:
            ValueError: for pair weights at queries that are not the points; when the series diverges.
        """
        for reason in self.elsewhere(domain, query_domain):
            raise ValueError(f"{type(self).__name__}: {reason}; give the queries as points of the signal")
        own_queries = query is None and query_domain is None
        query_domain = domain if query_domain is None else query_domain
        form = self.hop_form(u, None if own_queries else u if query is None else query)
        with torch.autocast(u.device.type, enabled=False):
            dtype = torch.promote_types(torch.promote_types(form.query.dtype, form.value.dtype), torch.float32)
            rows = self._scores(form.query, form.key, domain, query_domain, dtype)
            own = rows if form.own is None else self._scores(form.own, form.key, domain, domain, dtype)
            mass = self.mass(domain).to(dtype)
            seen = preceding_counts(query_domain, domain) if self.is_causal else None
            hop = divided(rows, self.norm.norm(HopScores(rows, own, mass, seen)))
            if self.discount is None:
                return hop.to(form.value.dtype)
            among = hop
            if form.own is not None:
                seen = preceding_counts(domain, domain) if self.is_causal else None
                among = divided(own, self.norm.norm(HopScores(own, own, mass, seen)))
            gamma = self.discount().to(dtype)[:, None, None]
            # nobody reads the series at a point without mass, whose row of a may be next to infinite
            read = (gamma * among).where(mass.mT > 0, 0.0)
            first = gamma * hop
            series = first + (first * mass) @ self._series(read, mass)
            # exactly 0 where no hop leads on, whatever a factorisation leaves there
            series = torch.where((hop != 0).any(-1, keepdim=True), series, 0.0)
            return series.to(form.value.dtype)

    def _series(self, hop: Tensor, mass: Tensor) -> Tensor:
        """(I - h Ω)⁻¹ h of a discounted hop h, `(B, H, N, N)`."""
        step = hop * mass
        if not self.norm.is_contractive:
            check_radius(type(self).__name__, step)
        return solve_each(torch.eye(step.shape[-1], dtype=step.dtype, device=step.device) - step, hop)

    def _scores(self, query: Tensor, key: Tensor, domain: Domain, query_domain: Domain, dtype: torch.dtype) -> Tensor:
        """φ m, `(B, H, Nq, N)`, 0 where hidden."""
        visible = self.visible(domain, query_domain)
        keys = each_query_head(key.to(dtype), query.shape[1])
        scores = self.score.value(query.to(dtype) @ keys.mT, None)
        if domain.pair_weights is not None:
            scores = scores * domain.pair_weights.to(dtype)
        return torch.where(visible, scores, 0.0)


def normal_distribution(x: Tensor) -> Tensor:
    """Φ(x), to the last digits wherever it is not 0; `ndtr` and `gelu` take 1 + erf, which has none left below -5."""
    return 0.5 * torch.special.erfc(x * -(2**-0.5))


def check_radius(name: str, step: Tensor) -> None:
    """Raises ValueError, in the name of a kernel, unless the eigenvalues of γ a Ω `(..., N, N)` are below 1 in size."""
    if step.numel() == 0 or not values_can_be_read(step):
        return
    radius = torch.linalg.eigvals(step.detach()).abs().amax().item()
    if not radius < 1:
        raise ValueError(
            f"{name}: the series of hops diverges, the spectral radius of γA is {radius:.4g} and must be below 1; "
            "divide hops by a larger norm, or take a smaller gamma"
        )
