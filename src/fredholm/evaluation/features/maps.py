"""A matrix of every point, linear in its features, times a vector of that point; and the gradient. Legend: `inputs.py`.

out_j = A_j v_j,   A_j = Σ_a h_ja A_a  of (n, m) numbers
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.features.features import Features, plain_features
from fredholm.evaluation.features.inputs import Chunk, FeatureInputs, accumulator, by_head, by_point, chunks


class MapInputs(NamedTuple):
    """The fields of `FeatureInputs`, the matrices, and what they are applied to."""

    lifted: Tensor
    content: Tensor
    position_weight: Tensor
    content_weight: Tensor
    bias: Tensor
    matrices: Tensor  # A_a: (G, w + 1, n, m), in the dtype of the features
    value: Tensor  # v: (B, N, H, m), which may be more precise

    @property
    def side(self) -> FeatureInputs:
        """What the features are computed from."""
        return FeatureInputs(*self[:5])


class MapOutputs(NamedTuple):
    """What the maps give."""

    mapped: Tensor  # A_j v_j: (B, N, H, n), in at least float32


@final
class Maps:
    """A_j v_j; the matrices of a chunk exist, those of all points never do.

    Args:
        inputs: its tensors.
        activation: φ.
        elements: entries of A_j in a chunk, or of p where that has more.
    """

    def __init__(self, inputs: MapInputs, activation: str, elements: int) -> None:
        self.matrices, self.value = inputs.matrices, inputs.value
        self.features = Features(inputs.side, activation)
        own, size = self.features, self.matrices.shape[2] * self.matrices.shape[3]
        self.chunks = chunks(own.batch, own.num_points, own.heads * max(own.width, size), elements)
        self.dtype = accumulator(self.value)

    def forward(self) -> Tensor:
        """A_j v_j."""
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


def _forward(inputs: MapInputs, activation: str, elements: int) -> MapOutputs:
    return MapOutputs(Maps(inputs, activation, elements).forward())


def _like(inputs: MapInputs, activation: str, elements: int) -> MapOutputs:
    shape = *inputs.content.shape[:3], inputs.matrices.shape[2]
    return MapOutputs(inputs.value.new_empty(shape, dtype=accumulator(inputs.value)))


def _plain(inputs: MapInputs, activation: str, elements: int) -> MapOutputs:
    """With the matrices of all points at one time."""
    by_kernel, dtype = (len(inputs.matrices), -1), accumulator(inputs.value)
    h = plain_features(inputs.side, activation).to(dtype).unflatten(2, by_kernel)
    each = torch.einsum("bngkw,gwij->bngkij", h, inputs.matrices.to(dtype))
    value = inputs.value.to(dtype).unflatten(2, by_kernel)
    return MapOutputs(torch.einsum("bngkij,bngkj->bngki", each, value).flatten(2, 3))


feature_maps = Operator(
    "feature_maps",
    MapInputs,
    MapOutputs,
    _forward,
    _like,
    lambda inputs, _, grads, wanted, *options: Maps(inputs, *options).backward(grads.mapped, wanted),
    plain=_plain,
)
"""A_j v_j; its options as in `Maps`."""
