"""The marker of kernels whose weights come from central queries, so that they are the same for every query.

Legend
    q_j          W_q u(y_j) + b_q, d channels of a head; keys are queries        e_j      energy ‖q_j‖
    p_jm         share of group m of c in point j; 1 where c = 1                 q̄_m      central query of group m

    p_jm = softmax_m(G_m·q_j / √d)
    q̄_m = ∫ p_m e q dμ / E_m,   E_m = ∫ p_m e dμ,   π_m = E_m / Σ_m E_m
    s_jm = max(q̄_m·q_j, 0),   a_jm = s_jm / ∫ s_m dμ;   each further power step: q̄_m = ∫ a_m q dμ, then s and a anew
    a_j = Σ_m π_m a_jm

Where an integral in a denominator is 0, so is the quotient.
"""

import abc
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels.value_mixing import ValueMixing


class CentralForm(NamedTuple):
    """What central queries are made of."""

    weight: Tensor  # [W_q, b_q]: (H, d, d_in), or with d_in + 1 columns from an affine kernel
    groups: Tensor | None  # G: (H, c, d); None: one group
    power_steps: int


class CentralQueries(ValueMixing):
    """Marker: κ(x, y) = γ a(y) V, whatever x: the points are pooled once for all queries, head by head."""

    @abc.abstractmethod
    def central_form(self) -> CentralForm:
        """The pieces that the weights are made of."""

    @abc.abstractmethod
    def scale(self) -> Tensor | None:
        """γ, `(H,)`; None: 1."""

    @final
    def given_mass(self, domain: Domain, dtype: torch.dtype) -> Tensor:
        """ω `(B', N)`; without a gradient where it is 0, since such a point is hidden."""
        mass = torch.atleast_2d(self.measure(domain)).to(dtype)
        return torch.where(mass > 0, mass, 0.0)

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """γ a, the same in every row; see `ValueMixing.density`.

        Raises:
            ValueError: on pair weights.
        """
        if domain.pair_bias is not None:
            raise ValueError(
                f"{type(self).__name__}: the weights of points are the same for all queries, and the domain weighs "
                "pairs (Domain.weigh_pairs); hide points by a mask, or use kernels.InfiniteAttention"
            )
        num_queries = (domain if query_domain is None else query_domain).num_points
        form, wide = self.central_form(), torch.promote_types(u.dtype, torch.float32)
        q = torch.einsum("bnc,hdc->bhnd", self.multiplicand(u), form.weight.to(u.dtype)).to(wide)
        a = central_weights(q, self.given_mass(domain, wide)[:, None], form)
        gamma = self.scale()
        a = a if gamma is None else a * gamma.to(wide)[:, None]
        return a[:, :, None].expand(-1, -1, num_queries, -1).to(u.dtype)


def central_weights(q: Tensor, mass: Tensor, form: CentralForm) -> Tensor:
    """a by its definition, `(B, H, N)`, from q `(B, H, N, d)` and ω `(B', 1, N)`; 0 where ω is."""
    measured = measured_energies(q, mass, form.groups)
    energy = measured.sum(2)  # E: (B, H, c)
    central = quotient(measured.mT @ q, energy[..., None])
    weight = _weights(q, central, mass)
    for _ in range(form.power_steps - 1):
        weight = _weights(q, (mass[..., None] * weight).mT @ q, mass)
    share = quotient(energy, energy.sum(-1, keepdim=True))
    mixed = (weight @ share[..., None])[..., 0]
    return torch.where(mass > 0, mixed, 0.0)


def measured_energies(q: Tensor, mass: Tensor, groups: Tensor | None) -> Tensor:
    """ω p_m e, `(B, H, N, c)`; arguments as in `central_weights`."""
    energy = (mass * torch.linalg.vector_norm(q, dim=-1))[..., None]
    if groups is None:
        return energy
    return energy * torch.softmax(q @ groups.to(q.dtype).mT / q.shape[-1] ** 0.5, dim=-1)


def _weights(q: Tensor, central: Tensor, mass: Tensor) -> Tensor:
    score = torch.relu(q @ central.mT)  # (B, H, N, c)
    return quotient(score, (mass[..., None] * score).sum(2, keepdim=True))


def quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Their quotient; 0, with gradient 0, where the denominator is 0."""
    # not `denominator > 0`: NaN stays NaN
    return torch.where(denominator == 0, 0.0, numerator / torch.where(denominator == 0, 1.0, denominator))
