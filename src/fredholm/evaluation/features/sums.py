"""S, the sum over points of features times values, and its gradient. Legend: `inputs.py`."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.features.features import Features, plain_features
from fredholm.evaluation.features.inputs import Chunk, FeatureInputs, accumulator, by_head, by_point, chunks, stacked


class SumInputs(NamedTuple):
    """The fields of `FeatureInputs`, and what is summed."""

    lifted: Tensor
    content: Tensor
    position_weight: Tensor
    content_weight: Tensor
    bias: Tensor
    value: Tensor  # v: (B, N, H, d), in the dtype of the features
    weights: Tensor  # ω: (B', N), in that of the sums

    @property
    def side(self) -> FeatureInputs:
        """What the features are computed from."""
        return FeatureInputs(*self[:5])


class SumOutputs(NamedTuple):
    """What the sums give."""

    sums: Tensor  # S: (B, H, w + 1, d), in at least float32


@final
class Sums:
    """S = Σ_j ω_j h_j ⊗ v_j.

    Args:
        inputs: its tensors.
        activation: φ.
        elements: entries of p in a chunk.
    """

    def __init__(self, inputs: SumInputs, activation: str, elements: int) -> None:
        self.value, self.weights = inputs.value, inputs.weights
        self.features = Features(inputs.side, activation)
        own = self.features
        self.chunks = chunks(own.batch, own.num_points, own.heads * own.width, elements)
        self.dtype = accumulator(self.value)

    def forward(self) -> Tensor:
        """S."""
        own, width = self.features, self.features.width
        sums = self.value.new_zeros(own.heads, own.batch, width + 1, self.value.shape[-1], dtype=self.dtype)
        for at in self.chunks:
            p = own.pre_activation(at)
            h = own.activated(p, out=p)
            value = by_head(self.value, at) * self._weights(at)
            total = sums[:, at.batch]
            total[:, :, :width] += (stacked(h).mT @ stacked(value.to(h.dtype))).view(*h.shape[:2], width, -1)
            total[:, :, width] += value.sum(2)
        return sums.transpose(0, 1).contiguous()

    def backward(self, grad: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Gradients of all inputs from that of S; those of points only where `wanted`."""
        own, width = self.features, self.features.width
        own.begin_gradients(wanted)
        to_value, to_weights = self.value.new_zeros(self.value.shape), self.weights.new_zeros(self.weights.shape)
        grad = grad.transpose(0, 1).to(self.value.dtype)  # (H, B, w + 1, d)
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
            if "value" in wanted:
                read = (stacked(h) @ learned).view(*h.shape[:3], -1).add_(constant).mul_(weights)
                to_value[at.batch, at.points] = by_point(read)
            own.collect(at, p, to_h.mul_(weights))
        return {**own.results(), "value": to_value, "weights": to_weights}

    def _weights(self, at: Chunk) -> Tensor:
        """ω, `(b or 1, c, 1)`."""
        entries = slice(None) if self.weights.shape[0] == 1 else at.batch
        return self.weights[entries, at.points, None]


def plain_sums(inputs: SumInputs, activation: str) -> Tensor:
    """S in differentiable operations, with the features of all points at one time."""
    h = plain_features(inputs.side, activation).to(accumulator(inputs.value))
    return torch.einsum("bnhw,bnhd->bhwd", h, inputs.value.to(h.dtype) * inputs.weights[..., None, None])


def sums_like(inputs: SumInputs) -> SumOutputs:
    """S with nothing in it."""
    shape = inputs.content.shape[0], inputs.content.shape[2], inputs.bias.shape[1] + 1, inputs.value.shape[-1]
    return SumOutputs(inputs.value.new_empty(shape, dtype=accumulator(inputs.value)))


def _forward(inputs: SumInputs, activation: str, elements: int) -> SumOutputs:
    return SumOutputs(Sums(inputs, activation, elements).forward())


feature_sums = Operator(
    "feature_sums",
    SumInputs,
    SumOutputs,
    _forward,
    lambda inputs, *_: sums_like(inputs),
    lambda inputs, _, grads, wanted, *options: Sums(inputs, *options).backward(grads.sums, wanted),
    plain=lambda inputs, activation, _: (plain_sums(inputs, activation),),
)
"""S; its options as in `Sums`."""
