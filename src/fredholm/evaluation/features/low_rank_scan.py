"""Low-rank kernels with a separate sum for every query, of a few numbers per point. Legend: `features.py`."""

import dataclasses
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from fredholm._precision import wide_dtype, without_autocast
from fredholm.domains import preceding_counts
from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.evaluation import StatefulRoute
from fredholm.evaluation.features.features import (
    Chunk,
    FeatureInputs,
    FeatureOutputs,
    Features,
    by_head,
    by_point,
    chunk_elements,
    feature_inputs,
    plain_features,
)
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.recomputed import recomputed
from fredholm.evaluation.running_sums import reset_refusals, state_refusals
from fredholm.evaluation.tiling import pair_refusals, ranges
from fredholm.kernels import State
from fredholm.kernels.kernel import divided
from fredholm.kernels.perceptron.factorised import LowRank


class MapInputs(NamedTuple):
    """Inputs of A_j v_j: `FeatureInputs`, v and A."""

    lifted: Tensor
    content: Tensor
    position_weight: Tensor
    content_weight: Tensor
    bias: Tensor
    value: Tensor  # v: (B, N, H, m), which may be more precise than the features
    matrices: Tensor  # A_a: (G, w + 1, n, m), in the dtype of the features


@final
@dataclasses.dataclass(frozen=True)
class LowRankScan(StatefulRoute[LowRank]):
    """For `LowRank` kernels, causal or with pair weights: sums of Ψ_j u_j and u_j, then Φ_iᵀ and B at every query.

    O(N·r·w·d) time, r the rank: every query has a sum of its own, so that Φ and Ψ are needed at every point; they are
    computed chunk by chunk, and again in the backward pass, so that memory is O(N·(r·H + C)). Sums and the mass of the
    past are kept in at least float32. Queries may be any points. A causal kernel uses running sums; pair weights m
    multiply the terms, some queries at a time, r + d numbers per head and pair.

    Args:
        chunk_elements: entries of Φ, Ψ or m that exist at one time; None: 2^19 on a CPU, 2^26 elsewhere.
    """

    marker = LowRank
    weighs_pairs = True
    chunk_elements: int | None = None

    def refusals(self, integral: Integral[LowRank]) -> list[str]:
        """Refuses kernels that look ahead without pair weights, and pair weights for other heads."""
        if integral.domain.pair_bias is not None:
            return pair_refusals(integral)
        return [] if integral.kernel.is_causal else ["the kernel looks ahead (is_causal is off)"]

    def compute(self, integral: Integral[LowRank]) -> Tensor:
        """See `Route.compute`."""
        return self.advance(integral)[0] if integral.domain.pair_bias is None else self._weighed(integral)

    def run_refusals(self, integral: Integral[LowRank], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses a reset, and a state where positions restart with every chunk."""
        return reset_refusals(reset) + state_refusals(integral, state)

    def advance(
        self, integral: Integral[LowRank], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        kernel, domain, query_domain = integral.kernel, integral.domain, integral.query_domain
        lifted = kernel.features.lift(domain)
        sums, mass = (pad(part.cumsum(1), (0, 0) * (part.ndim - 2) + (1, 0)) for part in self._terms(integral, lifted))
        if state is not None:
            sums, mass = sums + state[0][:, None].to(sums.dtype), mass + state[1][:, None].to(mass.dtype)
        end = sums[:, -1], mass[:, -1].expand(integral.u.shape[0])
        if integral.at_points and domain.times is None:
            sums, mass = sums[:, 1:], mass[:, 1:]
        else:
            counts = preceding_counts(query_domain, domain)
            sums, mass = _at(sums, counts), _at(mass, counts)
        if query_domain.given_past_mass is not None and (share := kernel.past_share(domain, query_domain)) is not None:
            return self._read(integral, lifted, sums * share[..., None, None].to(sums.dtype)), end
        return self._read(integral, lifted, divided(sums, mass[..., None, None])), end

    def _weighed(self, integral: Integral[LowRank]) -> Tensor:
        """The integral under pair weights; for a causal kernel also where points share a time."""
        kernel, domain = integral.kernel, integral.domain
        lifted = kernel.features.lift(domain)
        terms, _ = self._terms(integral, lifted)
        size = (self.chunk_elements or chunk_elements(integral.u)) // max(1, terms[..., 0].numel())
        rows = ranges(integral.num_queries, max(1, size))
        sums = torch.cat([recomputed(None, _pair_sums, integral, terms, run) for run in rows], dim=1)
        return self._read(integral, lifted, sums)

    def _terms(self, integral: Integral[LowRank], lifted: Tensor) -> tuple[Tensor, Tensor]:
        """ω_j [Ψ_j u_j; u_j] `(B, N, H, r + d)`, without B only r, and ω_j `(B', N)`."""
        kernel, u, dtype = integral.kernel, integral.u, integral.working_dtype
        own, form = kernel.features, kernel.low_rank_form()
        mass = torch.atleast_2d(kernel.measure(integral.domain)).to(torch.promote_types(dtype, torch.float32))
        value = u.unflatten(-1, (kernel.num_heads, -1)).to(mass.dtype) * mass[..., None, None]
        side, matrices = feature_inputs(own, own.key, u, lifted).to(dtype), form.key.transpose(1, 2).to(dtype)
        read = self._mapped(MapInputs(*side, value, matrices), own.key.activation)
        return read if form.constant is None else torch.cat([read, value], dim=-1), mass

    def _read(self, integral: Integral[LowRank], lifted: Tensor, mean: Tensor) -> Tensor:
        """Applies Φᵀ and B to the sums of each query, or their mean; `lifted` is that of the points."""
        lifted = lifted if integral.own_positions else integral.kernel.features.lift(integral.query_domain)
        own, form, query = integral.kernel.features, integral.kernel.low_rank_form(), integral.query
        rank, dtype = form.query.shape[1], integral.working_dtype
        side, matrices = (
            feature_inputs(own, own.query, query, lifted).to(dtype),
            form.query.permute(0, 2, 3, 1).to(dtype),
        )
        out = self._mapped(MapInputs(*side, mean[..., :rank].contiguous(), matrices), own.query.activation)
        if form.constant is not None:
            with without_autocast(query):
                through = mean[..., rank:].transpose(1, 2) @ form.constant.mT.to(mean.dtype)
                out = out + through.transpose(1, 2)
        return out.to(dtype).flatten(2)

    def _mapped(self, inputs: MapInputs, activation: str) -> Tensor:
        return feature_maps(inputs, activation, self.chunk_elements or chunk_elements(inputs.content)).out


def _pair_sums(integral: Integral[LowRank], terms: Tensor, rows: slice) -> Tensor:
    """Σ_j m_ij t_j of the terms t at some queries, over the mass of the past where causal: `(B, rows, H, r + d)`."""
    weights = integral.domain.as_met_by(rows, None).pair_weights
    assert weights is not None
    weights = weights.to(terms.dtype)
    share = integral.kernel.share_of_past(integral.domain, integral.query_domain, rows)
    if share is not None:
        weights = weights * share.to(terms.dtype)
    with without_autocast(terms):
        return torch.einsum("bhqn,bnhc->bqhc", weights, terms)


def _at(running: Tensor, counts: Tensor) -> Tensor:
    """Running sums `(B', N + 1, …)` at each query, `(B', Nq, …)`; counts are `(1 or B, Nq)`."""
    batch = max(running.shape[0], counts.shape[0])
    running, counts = running.expand(batch, *running.shape[1:]), counts.expand(batch, -1)
    index = counts.reshape(*counts.shape, *(1,) * (running.ndim - 2)).expand(-1, -1, *running.shape[2:])
    return running.gather(1, index)


@final
class Maps:
    """A_j v_j; the matrices exist only chunk by chunk.

    Args:
        inputs: its tensors.
        activation: φ.
        elements: entries of A_j in a chunk, or of p where that has more.
    """

    def __init__(self, inputs: MapInputs, activation: str, elements: int) -> None:
        self.matrices, self.value = inputs.matrices, inputs.value
        self.features = Features(FeatureInputs(*inputs[:5]), activation)
        self.chunks = self.features.chunks(elements, self.matrices.shape[2] * self.matrices.shape[3])
        self.dtype = wide_dtype(self.value)

    def forward(self) -> Tensor:
        """A_j v_j, `(B, N, H, n)`, in at least float32."""
        own = self.features
        shape = (own.batch, own.num_points, own.heads, self.matrices.shape[2])
        out = self.value.new_empty(shape, dtype=self.dtype)
        for at in self.chunks:
            p = own.pre_activation(at)
            a = self._matrices(own.activated(p, out=p))
            out[at.batch, at.points] = by_point((a * self._value(at)).sum(-1))
        return out

    def backward(self, grad: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Gradients of all inputs from that of the result; those of points only where `wanted`."""
        own, width = self.features, self.features.width
        own.begin_gradients(wanted)
        to_matrices = self.matrices.new_zeros(self.matrices.shape, dtype=self.dtype)
        to_value = self.value.new_zeros(self.value.shape)
        flat_weights = self.matrices[:, :width].flatten(2)  # (G, w, n·m)
        for at in self.chunks:
            p = own.pre_activation(at)
            h = own.activated(p)
            received = by_head(grad, at)[..., None]
            if "value" in wanted:
                to_value[at.batch, at.points] = by_point((self._matrices(h) * received).sum(-2)).to(to_value.dtype)
            outer = (received * self._value(at)).to(h.dtype).reshape(own.kernels, -1, flat_weights.shape[-1])
            flat = h.view(own.kernels, -1, width)
            to_matrices[:, :width] += (flat.mT @ outer).view(to_matrices[:, :width].shape)
            to_matrices[:, width] += outer.sum(1, dtype=self.dtype).view(to_matrices[:, width].shape)
            own.collect(at, p, (outer @ flat_weights.mT).view(h.shape))
        return {**own.results(), "matrices": to_matrices, "value": to_value}

    def _value(self, at: Chunk) -> Tensor:
        """v, `(H, b, c, 1, m)`."""
        return by_head(self.value, at).to(self.dtype)[..., None, :]

    def _matrices(self, h: Tensor) -> Tensor:
        """A_j, `(H, b, c, n, m)`."""
        kernels, width = self.features.kernels, self.features.width
        weight = self.matrices.flatten(2)
        a = torch.baddbmm(weight[:, width:], h.view(kernels, -1, width), weight[:, :width])
        return a.view(*h.shape[:3], *self.matrices.shape[2:])


def _forward(inputs: MapInputs, activation: str, elements: int) -> FeatureOutputs:
    return FeatureOutputs(Maps(inputs, activation, elements).forward())


def _like(inputs: MapInputs, activation: str, elements: int) -> FeatureOutputs:
    shape = *inputs.content.shape[:3], inputs.matrices.shape[2]
    return FeatureOutputs(inputs.value.new_empty(shape, dtype=wide_dtype(inputs.value)))


def _plain(inputs: MapInputs, activation: str, elements: int) -> FeatureOutputs:
    """A_j v_j in differentiable operations, with the matrices of all points at one time."""
    by_kernel, dtype = (len(inputs.matrices), -1), wide_dtype(inputs.value)
    h = plain_features(FeatureInputs(*inputs[:5]), activation).to(dtype).unflatten(2, by_kernel)
    each = torch.einsum("bngkw,gwij->bngkij", h, inputs.matrices.to(dtype))
    value = inputs.value.to(dtype).unflatten(2, by_kernel)
    return FeatureOutputs(torch.einsum("bngkij,bngkj->bngki", each, value).flatten(2, 3))


feature_maps = Operator(
    "feature_maps",
    MapInputs,
    FeatureOutputs,
    _forward,
    _like,
    lambda inputs, _, grads, wanted, *options: Maps(inputs, *options).backward(grads.out, wanted),
    plain=_plain,
)
"""A_j v_j; options as in `Maps`."""
