"""S, the sum over points of features times values, and its gradient. Legend: `inputs.py`."""

from typing import final

from torch import Tensor

from fredholm.evaluation.features.features import Features
from fredholm.evaluation.features.inputs import Chunk, FeatureInputs, accumulator, by_head, by_point, chunks, stacked


@final
class Sums:
    """S = Σ_j ω_j h_j ⊗ v_j.

    Args:
        tensors: the fields of `FeatureInputs`; v, `(B, N, H, d)`, in their dtype; and ω, `(B', N)`, in the sums' dtype.
        activation: φ.
        elements: entries of p in a chunk.
    """

    def __init__(self, tensors: list[Tensor], activation: str, elements: int) -> None:
        *inputs, self.value, self.weights = tensors
        self.features = Features(FeatureInputs(*inputs), activation)
        own = self.features
        self.chunks = chunks(own.batch, own.num_points, own.heads * own.width, elements)
        self.dtype = accumulator(self.value)

    def forward(self) -> Tensor:
        """S, `(B, H, w + 1, d)`, in at least float32."""
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

    def backward(self, grad: Tensor, wanted: list[bool]) -> list[Tensor]:
        """Gradients of all tensors from that of S; those of points only where `wanted`."""
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
            if wanted[6]:
                each = (h * to_h).sum((0, 3), dtype=self.dtype) + (value * constant).sum((0, 3), dtype=self.dtype)
                if self.weights.shape[0] == 1:
                    to_weights[:, at.points] += each.sum(0)
                else:
                    to_weights[at.batch, at.points] = each
            weights = self._weights(at).to(h.dtype)
            if wanted[5]:
                read = (stacked(h) @ learned).view(*h.shape[:3], -1).add_(constant).mul_(weights)
                to_value[at.batch, at.points] = by_point(read)
            own.collect(at, p, to_h.mul_(weights))
        return [*own.results(), to_value, to_weights]

    def _weights(self, at: Chunk) -> Tensor:
        """ω, `(b or 1, c, 1)`."""
        entries = slice(None) if self.weights.shape[0] == 1 else at.batch
        return self.weights[entries, at.points, None]
