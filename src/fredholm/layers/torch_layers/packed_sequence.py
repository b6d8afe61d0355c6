"""A PackedSequence as a signal with a mask, in the order of packing, the longest sequence first."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def unpack(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """The signal `(B, T, C)`, 0 behind the end of a sequence, and the mask `(B, T)`, True = this point exists."""
    sizes, data = packed.batch_sizes, packed.data
    exists = torch.arange(int(sizes[0]), device=data.device) < sizes.to(data.device)[:, None]
    signal = data.new_zeros(*exists.shape, data.shape[-1]).masked_scatter(exists[..., None], data)
    return signal.transpose(0, 1), exists.T


def repack(signal: Tensor, like: PackedSequence, mask: Tensor) -> PackedSequence:
    """The points that exist of another signal in the same layout."""
    data = signal.transpose(0, 1)[mask.T]
    return PackedSequence(data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)
