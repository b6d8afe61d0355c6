"""Scores that are products of features: the sum over keys first, then the query; causally, by chunks."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.evaluation import Integral, StatefulRoute
from fredholm.evaluation.running_sums import causal_sums, order_refusals, reset_refusals
from fredholm.kernels import FeatureMapped, State
from fredholm.kernels.arithmetic import divided
from fredholm.kernels.attention.unnormalised_attention import Bilinear
from fredholm.kernels.kernel import stateful


@final
@dataclasses.dataclass(frozen=True)
class FeatureMapSum(StatefulRoute[FeatureMapped]):
    """For `FeatureMapped` kernels: O(N) time and memory, Σ_j ω_j ψ_j ⊗ [v_j, 1] being formed once, or chunk by chunk.

    Sums are kept in at least float32.

    Args:
        chunk: points that a causal kernel treats pair by pair at a time.
    """

    marker = FeatureMapped
    chunk: int = 64

    def refusals(self, integral: Integral[FeatureMapped]) -> list[str]:
        """Refuses causal kernels whose i-th query does not see just the first i points."""
        return order_refusals(integral) if integral.kernel.is_causal else []

    def compute(self, integral: Integral[FeatureMapped]) -> Tensor:
        """See `Route.compute`."""
        if integral.kernel.is_causal:
            return self.advance(integral)[0]
        phi, psi, weighed, dtype = _normalised_pieces(integral)
        with torch.autocast(phi.device.type, enabled=False):
            return _mean(phi @ (psi.mT @ weighed)[:, :, None]).to(dtype)

    def run_refusals(self, integral: Integral[FeatureMapped], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses a reset, which a sum by chunks does not see."""
        return reset_refusals(reset)

    def advance(
        self, integral: Integral[FeatureMapped], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        phi, psi, weighed, dtype = _normalised_pieces(integral)
        with torch.autocast(phi.device.type, enabled=False):
            before = None if state is None else torch.cat([state[0], state[1][..., None]], dim=-1).to(psi.dtype)
            out, total = causal_sums(phi, psi, weighed, before, self.chunk)
            kept = stateful(integral.kernel).initial_state(0)[0].dtype
            return _mean(out).to(dtype), (total[..., :-1].to(kept), total[..., -1].to(kept))


def _normalised_pieces(integral: Integral[FeatureMapped]) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    """φ by shared head `(B, H', H / H', Nq, r)`, ψ `(B, H', N, r)`, ω [v, 1] `(B, H', N, d + 1)`, the dtype."""
    kernel, domain = integral.kernel, integral.domain
    form = kernel.feature_map_form(integral.u, integral.query)
    dtype = torch.promote_types(torch.promote_types(form.value.dtype, torch.float32), form.key.dtype)
    phi, psi, value = (part.to(dtype) for part in form)
    mass = kernel.measure(domain).to(dtype)
    mass = (mass if mass.ndim == 2 else mass[None])[:, None, :, None]
    if domain.mask is not None or domain.uniform_parts is None:
        psi = torch.where(mass > 0, psi, 0.0)
    weighed = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1) * mass
    return phi.unflatten(1, (psi.shape[1], -1)), psi, weighed, form.value.dtype


def _mean(sums: Tensor) -> Tensor:
    """`(B, H', H / H', Nq, d + 1)` to `(B, Nq, H·d)`; 0 where the partition function is."""
    numerator, partition = sums[..., :-1], sums[..., -1:]
    out = divided(numerator, partition)
    return out.flatten(1, 2).transpose(1, 2).flatten(2)


@final
@dataclasses.dataclass(frozen=True)
class BilinearSum(StatefulRoute[Bilinear]):
    """For `Bilinear` kernels: O(N) time and memory, Σ_j ω_j ψ_j ⊗ v_j being formed once, or chunk by chunk.

    Sums are kept in at least float32.

    Args:
        chunk: points that a causal kernel treats pair by pair at a time.
    """

    marker = Bilinear
    chunk: int = 64

    def refusals(self, integral: Integral[Bilinear]) -> list[str]:
        """Refuses causal kernels whose i-th query does not see just the first i points."""
        return order_refusals(integral) if integral.kernel.is_causal else []

    def compute(self, integral: Integral[Bilinear]) -> Tensor:
        """See `Route.compute`."""
        if integral.kernel.is_causal:
            return self.advance(integral)[0]
        phi, psi, weighed, dtype = _plain_pieces(integral)
        with torch.autocast(phi.device.type, enabled=False):
            return _by_channel(phi @ (psi.mT @ weighed)).to(dtype)

    def run_refusals(self, integral: Integral[Bilinear], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses a reset, which a sum by chunks does not see."""
        return reset_refusals(reset)

    def advance(
        self, integral: Integral[Bilinear], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        phi, psi, weighed, dtype = _plain_pieces(integral)
        with torch.autocast(phi.device.type, enabled=False):
            before = None if state is None else state[0].to(psi.dtype)
            out, total = causal_sums(phi[:, :, None], psi, weighed, before, self.chunk)
            return _by_channel(out[:, :, 0]).to(dtype), (total,)


def _plain_pieces(integral: Integral[Bilinear]) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    """φ `(B, H, Nq, r)`, ψ `(B, H, N, r)`, ω v `(B, H, N, d)`, in the dtype of sums; and the dtype of the result."""
    kernel = integral.kernel
    form = kernel.bilinear_form(integral.u, integral.query)
    dtype = torch.promote_types(form.value.dtype, torch.float32)
    phi, psi, value = (part.to(dtype) for part in form)
    mass, domain = kernel.mass(integral.domain).to(dtype).mT, integral.domain
    if domain.mask is not None or domain.uniform_parts is None:
        psi = torch.where(mass > 0, psi, 0.0)  # a point without mass is hidden
    return phi, psi, value * mass, form.value.dtype


def _by_channel(heads: Tensor) -> Tensor:
    """`(B, H, Nq, d)` to `(B, Nq, H·d)`."""
    return heads.transpose(1, 2).flatten(2)
