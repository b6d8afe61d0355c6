"""Scores that are products of features: sums over keys first, then the queries; causal ones by chunks."""

import abc
import dataclasses
from typing import TypeVar, final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype, without_autocast
from fredholm.evaluation.evaluation import StatefulRoute
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.running_sums import causal_sums, order_refusals, reset_refusals
from fredholm.kernels import FeatureMapped, State, ValueMixing
from fredholm.kernels.attention.linear_attention import FeatureMapForm
from fredholm.kernels.attention.unnormalised_attention import Bilinear
from fredholm.kernels.kernel import divided, stateful

Mixing = TypeVar("Mixing", bound=ValueMixing, covariant=True)


@dataclasses.dataclass(frozen=True)
class ProductSum(StatefulRoute[Mixing]):
    """For a_ij = φ_i·ψ_j: Σ_j ω_j ψ_j ⊗ v_j first. A subclass defines `whole`, and `advance` for causal kernels.

    Args:
        chunk: number of points that a causal kernel treats pair by pair at a time.
    """

    spans_processes = True
    chunk: int = 64

    @abc.abstractmethod
    def whole(self, integral: Integral[Mixing]) -> Tensor:
        """`Route.compute` for a kernel that is not causal."""

    @final
    def refusals(self, integral: Integral[Mixing]) -> list[str]:
        """Refuses causal kernels whose i-th query does not see exactly the first i points."""
        if not integral.kernel.is_causal:
            return []
        shared = ["each query has a sum of its own, and other processes hold points before it"]
        return [*(shared if integral.is_shared else []), *order_refusals(integral)]

    @final
    def compute(self, integral: Integral[Mixing]) -> Tensor:
        """See `Route.compute`."""
        return self.advance(integral)[0] if integral.kernel.is_causal else self.whole(integral)

    @final
    def run_refusals(self, integral: Integral[Mixing], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses a reset, which sums by chunks do not support."""
        return reset_refusals(reset)


def _weighed(integral: Integral[ValueMixing], psi: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """ψ `(B, H', N, r)`, 0 where a point has no mass and so is hidden, and ω v, `(B, H', N, d)`."""
    mass, domain = integral.kernel.mass(integral.domain).to(psi.dtype).mT, integral.domain
    if domain.mask is not None or domain.uniform_parts is None:
        psi = torch.where(mass > 0, psi, 0.0)
    return psi, value * mass


@final
@dataclasses.dataclass(frozen=True)
class FeatureMapSum(ProductSum[FeatureMapped]):
    """For `FeatureMapped` kernels: O(N) time and memory, Σ_j ω_j ψ_j ⊗ [v_j, 1] being formed once, or chunk by chunk.

    Sums are kept in at least float32.

    Args:
        chunk: number of points that a causal kernel treats pair by pair at a time.
    """

    marker = FeatureMapped

    def whole(self, integral: Integral[FeatureMapped]) -> Tensor:
        """See `ProductSum.whole`."""
        i = integral
        form = i.kernel.feature_map_form(i.u, i.domain, i.query, i.query_domain)
        phi, psi, weighed, dtype = self._pieces(integral, form)
        with without_autocast(phi):
            sums = integral.domain.total(psi.mT @ weighed)
            return self._mean(phi @ sums[:, :, None]).to(dtype)

    def advance(
        self, integral: Integral[FeatureMapped], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        form = integral.kernel.continued_features(integral.u, integral.domain, integral.query, state)
        phi, psi, weighed, dtype = self._pieces(integral, form)
        with without_autocast(phi):
            carried = None if state is None else torch.cat([state[0], state[1][..., None]], dim=-1).to(psi.dtype)
            out, total = causal_sums(phi, psi, weighed, carried, self.chunk)
            out = self._mean(out).to(dtype)
        fresh = stateful(integral.kernel).initial_state(0)  # without a batch size, which may be symbolic
        before = [each.new_zeros(out.shape[0]) for each in fresh[2:]] if state is None else state[2:]
        counted = (each + integral.domain.num_points for each in before)
        total = total.to(fresh[0].dtype)
        return out, (total[..., :-1], total[..., -1], *counted)

    def _pieces(
        self, integral: Integral[FeatureMapped], form: FeatureMapForm
    ) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
        """φ by shared head `(B, H', H / H', Nq, r)`, ψ, ω [v, 1] `(B, H', N, d + 1)`, and the dtype of the result."""
        dtype = integral.domain.widest(wide_dtype(form.value, form.key))
        phi, psi, value = (part.to(dtype) for part in form)
        psi, weighed = _weighed(integral, psi, torch.cat([value, torch.ones_like(value[..., :1])], dim=-1))
        return phi.unflatten(1, (psi.shape[1], -1)), psi, weighed, form.value.dtype

    def _mean(self, sums: Tensor) -> Tensor:
        """`(B, H', H / H', Nq, d + 1)` to `(B, Nq, H·d)`; 0 where the partition function is."""
        return _by_channel(divided(sums[..., :-1], sums[..., -1:]).flatten(1, 2))


@final
@dataclasses.dataclass(frozen=True)
class BilinearSum(ProductSum[Bilinear]):
    """For `Bilinear` kernels: O(N) time and memory, Σ_j ω_j ψ_j ⊗ v_j being formed once, or chunk by chunk.

    Sums are kept in at least float32.

    Args:
        chunk: number of points that a causal kernel treats pair by pair at a time.
    """

    marker = Bilinear

    def whole(self, integral: Integral[Bilinear]) -> Tensor:
        """See `ProductSum.whole`."""
        phi, psi, weighed, dtype = self._pieces(integral)
        with without_autocast(phi):
            return _by_channel(phi @ integral.domain.total(psi.mT @ weighed)).to(dtype)

    def advance(
        self, integral: Integral[Bilinear], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        phi, psi, weighed, dtype = self._pieces(integral)
        with without_autocast(phi):
            before = None if state is None else state[0].to(psi.dtype)
            out, total = causal_sums(phi[:, :, None], psi, weighed, before, self.chunk)
            return _by_channel(out[:, :, 0]).to(dtype), (total,)

    def _pieces(self, integral: Integral[Bilinear]) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
        """φ `(B, H, Nq, r)`, ψ, ω v, and the dtype of the result."""
        form = integral.kernel.bilinear_form(integral.u, integral.query)
        dtype = wide_dtype(form.value)
        phi, psi, value = (part.to(dtype) for part in form)
        return phi, *_weighed(integral, psi, value), form.value.dtype


def _by_channel(heads: Tensor) -> Tensor:
    """`(B, H, Nq, d)` to `(B, Nq, H·d)`."""
    return heads.transpose(1, 2).flatten(2)
