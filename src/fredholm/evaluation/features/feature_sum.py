"""Kernels that factor through features of one point: one sum over the keys, then one table for all queries.

Legend: `features.py`.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype, without_autocast
from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.features.features import (
    Chunk,
    FeatureInputs,
    FeatureOutputs,
    Features,
    apart,
    by_head,
    by_point,
    chunk_elements,
    feature_inputs,
    plain_features,
    stacked,
)
from fredholm.evaluation.integral import Integral
from fredholm.kernels import FeatureFactorised


@final
@dataclasses.dataclass(frozen=True)
class FeatureSum(Route[FeatureFactorised]):
    """For `FeatureFactorised` kernels: O(N·w·d) time; S = Σ_j ω_j h_j ⊗ u_j and T = mix(S) once, h_i T at every query.

    Features are computed chunk by chunk, and again in the backward pass: memory is O(N·C) for any rank. In low
    precision features are rounded, and sums are kept in float32.

    Args:
        chunk_elements: number of features that exist at one time; None: 2^19 on a CPU, 2^26 elsewhere.
    """

    marker = FeatureFactorised
    spans_processes = True
    chunk_elements: int | None = None

    def refusals(self, integral: Integral[FeatureFactorised]) -> list[str]:
        """Refuses causal kernels; see `Route.refusals`."""
        return ["the kernel is causal, so that every query has a sum of its own"] if integral.kernel.is_causal else []

    def compute(self, integral: Integral[FeatureFactorised]) -> Tensor:
        """See `Route.compute`."""
        elements = self.chunk_elements or chunk_elements(integral.u)

        def read(queries: FeatureInputs, sums: Tensor, activation: str, dtype: torch.dtype) -> Tensor:
            inputs = TableInputs(*queries, mixed(integral.kernel, sums))
            return feature_tables(inputs, activation, dtype, elements).out

        def sums_of(inputs: SumInputs, activation: str, dtype: torch.dtype) -> Tensor:
            return feature_sums(inputs, activation, dtype, elements).out

        return integrate_features(integral, sums_of, read)


class SumInputs(NamedTuple):
    """Inputs of S: `FeatureInputs`, and ω. v is all of u, whether or not features read it."""

    lifted: Tensor
    content: Tensor  # u: (B, N, H, d)
    position_weight: Tensor
    content_weight: Tensor
    bias: Tensor
    weights: Tensor  # ω: (B', N)


class TableInputs(NamedTuple):
    """Inputs of h_i T: `FeatureInputs` and T."""

    lifted: Tensor
    content: Tensor
    position_weight: Tensor
    content_weight: Tensor
    bias: Tensor
    table: Tensor  # T: (H, B, w + 1, n)


def integrate_features(
    integral: Integral[FeatureFactorised],
    sums_of: Callable[[SumInputs, str, torch.dtype], Tensor],
    read: Callable[[FeatureInputs, Tensor, str, torch.dtype], Tensor],
) -> Tensor:
    """Computes the integral from sums and tables of features.

    Args:
        integral: of a kernel that is not causal.
        sums_of: S at the keys, `(H, B, w + 1, d)`, from its tensors, the activation and the dtype of features.
        read: h_i T at the queries, `(B, Nq, H, d)`, from the tensors of their features, S, activation and dtype.
    """
    kernel, u, domain = integral.kernel, integral.u, integral.domain
    own, dtype = kernel.features, integral.working_dtype
    lifted = own.lift(domain)
    at, _, *weights = feature_inputs(own, own.key, u, lifted)
    keys = SumInputs(at, apart(u, kernel.num_heads), *weights, weights=torch.atleast_2d(kernel.measure(domain)))
    sums = domain.total(sums_of(keys, own.key.activation, dtype))
    lifted = lifted if integral.own_positions else own.lift(integral.query_domain)
    queries = feature_inputs(own, own.query, integral.query, lifted)
    return read(queries, sums, own.query.activation, dtype).flatten(2)


def mixed(kernel: FeatureFactorised, sums: Tensor) -> Tensor:
    """T, `(H, B, w + 1, d)`, from S."""
    with without_autocast(sums):
        return kernel.mix(sums.transpose(0, 1)).transpose(0, 1)


@final
class Sums:
    """S = Σ_j ω_j h_j ⊗ v_j.

    Args:
        inputs: its tensors.
        activation: φ.
        dtype: of the features; sums are kept in at least float32.
        elements: number of entries of p in a chunk.
    """

    def __init__(self, inputs: SumInputs, activation: str, dtype: torch.dtype, elements: int) -> None:
        own = FeatureInputs(*inputs[:5]).to(dtype)
        self.value, self.dtype = own.content, wide_dtype(own.content)
        self.weights = inputs.weights.to(self.dtype)
        self.features = Features(own, activation)
        self.chunks = self.features.chunks(elements)

    def forward(self) -> Tensor:
        """S, `(H, B, w + 1, d)`, in at least float32."""
        own, width = self.features, self.features.width
        sums = self.value.new_zeros(own.heads, own.batch, width + 1, self.value.shape[-1], dtype=self.dtype)
        for at in self.chunks:
            p = own.pre_activation(at)
            h = own.activated(p, out=p)
            value = by_head(self.value, at) * self._weights(at)
            total = sums[:, at.batch]
            total[:, :, :width] += (stacked(h).mT @ stacked(value.to(h.dtype))).view(*h.shape[:2], width, -1)
            total[:, :, width] += value.sum(2)
        return sums

    def backward(self, grad: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Gradients of all inputs from that of S; those of points only where `wanted`."""
        own, width = self.features, self.features.width
        own.begin_gradients(wanted)
        to_value, to_weights = self.value.new_zeros(self.value.shape), self.weights.new_zeros(self.weights.shape)
        grad = grad.to(self.value.dtype)
        for at in self.chunks:
            p = own.pre_activation(at)
            h = own.activated(p)
            value, table = by_head(self.value, at), grad[:, at.batch]
            learned, constant = stacked(table[:, :, :width]), table[:, :, width:]
            to_h = (stacked(value) @ learned.mT).view(h.shape)
            if "weights" in wanted:
                each = (h * to_h).sum((0, 3), dtype=self.dtype) + (value * constant).sum((0, 3), dtype=self.dtype)
                if self.weights.shape[0] == 1:
                    to_weights[:, at.points] += each.sum(0)
                else:
                    to_weights[at.batch, at.points] = each
            weights = self._weights(at).to(h.dtype)
            if "content" in wanted:
                read = (stacked(h) @ learned).view(*h.shape[:3], -1).add_(constant).mul_(weights)
                to_value[at.batch, at.points] = by_point(read)
            own.collect(at, p, to_h.mul_(weights))
        found = {**own.results(), "weights": to_weights}
        return found | {"content": own.to_content.to(self.dtype) + to_value} if "content" in wanted else found

    def _weights(self, at: Chunk) -> Tensor:
        """ω, `(b or 1, c, 1)`."""
        entries = slice(None) if self.weights.shape[0] == 1 else at.batch
        return self.weights[entries, at.points, None]


@final
class Tables:
    """h_i T.

    Args:
        inputs: its tensors.
        activation: φ.
        dtype: of the features and the result.
        elements: number of entries of p in a chunk.
    """

    def __init__(self, inputs: TableInputs, activation: str, dtype: torch.dtype, elements: int) -> None:
        self.table = inputs.table
        self.features = Features(FeatureInputs(*inputs[:5]).to(dtype), activation)
        self.chunks = self.features.chunks(elements)
        self.rounded = self.table.to(dtype)

    def forward(self) -> Tensor:
        """h_i T, `(B, N, H, n)`, in the dtype of the features."""
        own, width = self.features, self.features.width
        out = self.rounded.new_empty(own.batch, own.num_points, own.heads, self.table.shape[-1])
        for at in self.chunks:
            p = own.pre_activation(at)
            h = own.activated(p, out=p)
            table = stacked(self.rounded[:, at.batch])
            value = torch.baddbmm(table[:, width:], stacked(h), table[:, :width])
            out[at.batch, at.points] = by_point(value.view(*h.shape[:3], -1))
        return out

    def backward(self, grad: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Gradients of all inputs from that of the result; those of points only where `wanted`."""
        own, width = self.features, self.features.width
        own.begin_gradients(wanted)
        to_table = self.table.new_zeros(self.table.shape)
        for at in self.chunks:
            p = own.pre_activation(at)
            h = own.activated(p)
            received = by_head(grad, at)
            table, total = stacked(self.rounded[:, at.batch]), to_table[:, at.batch]
            total[:, :, :width] += (stacked(h).mT @ stacked(received)).view(*h.shape[:2], width, -1)
            total[:, :, width] += received.sum(2, dtype=total.dtype)
            own.collect(at, p, (stacked(received) @ table[:, :width].mT).view(h.shape))
        return {**own.results(), "table": to_table}


def plain_sums(inputs: SumInputs, activation: str, dtype: torch.dtype, *_: int) -> FeatureOutputs:
    """S in differentiable operations, with the features of all points at one time."""
    own = FeatureInputs(*inputs[:5]).to(dtype)
    h = plain_features(own, activation).to(wide_dtype(own.content))
    value = own.content.to(h.dtype) * inputs.weights[..., None, None].to(h.dtype)
    return FeatureOutputs(torch.einsum("bnhw,bnhd->hbwd", h, value))


def plain_tables(inputs: TableInputs, activation: str, dtype: torch.dtype, *_: int) -> FeatureOutputs:
    """h_i T in differentiable operations, with the features of all points at one time."""
    h = plain_features(FeatureInputs(*inputs[:5]).to(dtype), activation)
    return FeatureOutputs(torch.einsum("bnhw,hbwd->bnhd", h, inputs.table.to(dtype)))


def sums_like(inputs: SumInputs, activation: str, dtype: torch.dtype, *_: int) -> FeatureOutputs:
    """Uninitialised S."""
    sizes = inputs.content.shape
    shape = sizes[2], sizes[0], inputs.bias.shape[1] + 1, sizes[3]
    return FeatureOutputs(inputs.content.new_empty(shape, dtype=torch.promote_types(dtype, torch.float32)))


def tables_like(inputs: TableInputs, activation: str, dtype: torch.dtype, *_: int) -> FeatureOutputs:
    """Uninitialised h_i T."""
    shape = (*inputs.content.shape[:3], inputs.table.shape[-1])
    return FeatureOutputs(inputs.content.new_empty(shape, dtype=dtype))


def _sums(inputs: SumInputs, activation: str, dtype: torch.dtype, elements: int) -> FeatureOutputs:
    return FeatureOutputs(Sums(inputs, activation, dtype, elements).forward())


def _tables(inputs: TableInputs, activation: str, dtype: torch.dtype, elements: int) -> FeatureOutputs:
    return FeatureOutputs(Tables(inputs, activation, dtype, elements).forward())


feature_sums = Operator(
    "feature_sums",
    SumInputs,
    FeatureOutputs,
    _sums,
    sums_like,
    lambda inputs, _, grads, wanted, *options: Sums(inputs, *options).backward(grads.out, wanted),
    plain=plain_sums,
)
"""S; options as in `Sums`."""

feature_tables = Operator(
    "feature_tables",
    TableInputs,
    FeatureOutputs,
    _tables,
    tables_like,
    lambda inputs, _, grads, wanted, *options: Tables(inputs, *options).backward(grads.out, wanted),
    plain=plain_tables,
)
"""h_i T; options as in `Tables`."""
