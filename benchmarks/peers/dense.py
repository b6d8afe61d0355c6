"""Dense einsum: every kernel matrix materialised at once, then contracted with the signal; autograd does the rest."""

from typing import final

import torch
from torch import Tensor

from benchmarks.peers.kernel_input import kernel_input
from benchmarks.peers.peer import Peer
from benchmarks.peers.weights import KernelWeights, evaluate_kernel, join_heads, split_heads


@final
class DenseEinsum(Peer):
    """``O(N^2 d_h^2)`` memory per head; kernel values are laid out key by key so that einsum copies none of them."""

    name = "dense einsum"

    def integrate(self, weights: KernelWeights, u: Tensor, pos: Tensor, measure: Tensor) -> Tensor:
        heads = split_heads(u, weights.num_heads)
        z = kernel_input(pos[None], pos[:, None], heads[:, :, None], heads[:, :, :, None], weights.frequencies)
        kappa = evaluate_kernel(weights, z)  # (H, B, keys, queries, d_h, d_h)
        mass = measure[:, None] * heads
        return join_heads(torch.einsum("hbkqde,hbke->hbkqd", kappa, mass).sum(dim=2))

    def kernel_bytes(self, weights: KernelWeights, batch: int, num_points: int) -> int:
        return batch * num_points**2 * weights.output_bias.numel() * weights.output_bias.element_size()
