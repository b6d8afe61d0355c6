"""Features of every point times one table a batch entry and head, and the gradient. Legend: `inputs.py`."""

from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.features.features import Features
from fredholm.evaluation.features.inputs import FeatureInputs, by_head, by_point, chunks, stacked


@final
class Tables:
    """h_i T.

    Args:
        tensors: the fields of `FeatureInputs`, and T, `(B, H, w + 1, n)`, which may be more precise.
        activation: φ.
        elements: entries of p in a chunk.
    """

    def __init__(self, tensors: list[Tensor], activation: str, elements: int) -> None:
        *inputs, self.table = tensors
        self.features = Features(FeatureInputs(*inputs), activation)
        own = self.features
        self.chunks = chunks(own.batch, own.num_points, own.heads * own.width, elements)
        self.rounded = self.table.transpose(0, 1).to(own.t.content.dtype)  # (H, B, w + 1, n)

    def forward(self) -> Tensor:
        """`(B, N, H, n)`, in the dtype of the features."""
        own, width = self.features, self.features.width
        out = self.rounded.new_empty(own.batch, own.num_points, own.heads, self.table.shape[-1])
        for at in self.chunks:
            p = own.pre_activation(at)
            h = own.activated(p, out=p)
            table = stacked(self.rounded[:, at.batch])
            value = torch.baddbmm(table[:, width:], stacked(h), table[:, :width])
            out[at.batch, at.points] = by_point(value.view(*h.shape[:3], -1))
        return out

    def backward(self, grad: Tensor, wanted: list[bool]) -> list[Tensor]:
        """Gradients of all tensors from that of the result; those of points only where `wanted`."""
        own, width = self.features, self.features.width
        own.begin_gradients(wanted)
        to_table = self.table.new_zeros(self.rounded.shape)
        for at in self.chunks:
            p = own.pre_activation(at)
            h = own.activated(p)
            received = by_head(grad, at)
            table, total = stacked(self.rounded[:, at.batch]), to_table[:, at.batch]
            total[:, :, :width] += (stacked(h).mT @ stacked(received)).view(*h.shape[:2], width, -1)
            total[:, :, width] += received.sum(2, dtype=total.dtype)
            own.collect(at, p, (stacked(received) @ table[:, :width].mT).view(h.shape))
        return [*own.results(), to_table.transpose(0, 1).contiguous()]
