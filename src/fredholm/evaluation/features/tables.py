"""Features of every point times one table a batch entry and head, and the gradient. Legend: `inputs.py`."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.features.features import Features, plain_features
from fredholm.evaluation.features.inputs import FeatureInputs, by_head, by_point, chunks, stacked


class TableInputs(NamedTuple):
    """The fields of `FeatureInputs`, and the table."""

    lifted: Tensor
    content: Tensor
    position_weight: Tensor
    content_weight: Tensor
    bias: Tensor
    table: Tensor  # T: (B, H, w + 1, n), which may be more precise

    @property
    def side(self) -> FeatureInputs:
        """What the features are computed from."""
        return FeatureInputs(*self[:5])


class TableOutputs(NamedTuple):
    """What is read from the table."""

    read: Tensor  # h_i T: (B, N, H, n), in the dtype of the features


@final
class Tables:
    """h_i T.

    Args:
        inputs: its tensors.
        activation: φ.
        elements: entries of p in a chunk.
    """

    def __init__(self, inputs: TableInputs, activation: str, elements: int) -> None:
        self.table = inputs.table
        self.features = Features(inputs.side, activation)
        own = self.features
        self.chunks = chunks(own.batch, own.num_points, own.heads * own.width, elements)
        self.rounded = self.table.transpose(0, 1).to(own.t.content.dtype)  # (H, B, w + 1, n)

    def forward(self) -> Tensor:
        """h_i T."""
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
        to_table = self.table.new_zeros(self.rounded.shape)
        for at in self.chunks:
            p = own.pre_activation(at)
            h = own.activated(p)
            received = by_head(grad, at)
            table, total = stacked(self.rounded[:, at.batch]), to_table[:, at.batch]
            total[:, :, :width] += (stacked(h).mT @ stacked(received)).view(*h.shape[:2], width, -1)
            total[:, :, width] += received.sum(2, dtype=total.dtype)
            own.collect(at, p, (stacked(received) @ table[:, :width].mT).view(h.shape))
        return {**own.results(), "table": to_table.transpose(0, 1)}


def plain_tables(inputs: TableInputs, activation: str) -> Tensor:
    """h_i T in differentiable operations, with the features of all points at one time."""
    h = plain_features(inputs.side, activation)
    return torch.einsum("bnhw,bhwd->bnhd", h, inputs.table.to(h.dtype))


def tables_like(inputs: TableInputs) -> TableOutputs:
    """h_i T with nothing in it."""
    return TableOutputs(inputs.content.new_empty(*inputs.content.shape[:3], inputs.table.shape[-1]))


def _forward(inputs: TableInputs, activation: str, elements: int) -> TableOutputs:
    return TableOutputs(Tables(inputs, activation, elements).forward())


feature_tables = Operator(
    "feature_tables",
    TableInputs,
    TableOutputs,
    _forward,
    lambda inputs, *_: tables_like(inputs),
    lambda inputs, _, grads, wanted, *options: Tables(inputs, *options).backward(grads.read, wanted),
    plain=lambda inputs, activation, _: (plain_tables(inputs, activation),),
)
"""h_i T; its options as in `Tables`."""
