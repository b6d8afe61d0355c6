"""Stochastic depth."""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_rate


@final
class StochasticDepth(nn.Module):
    """Drops a residual branch for whole samples in training, and rescales the rest (Huang et al., 2016).

    Args:
        probability: chance in [0, 1) that a sample's branch is dropped; the kept ones are divided by 1 - probability.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        check_rate("StochasticDepth", "probability", probability)
        self.probability = probability

    def forward(self, branch: Tensor) -> Tensor:
        """`(B, ...)` to the same shape."""
        if not self.training or self.probability == 0:
            return branch
        kept = 1 - self.probability
        shape = (branch.shape[0],) + (1,) * (branch.ndim - 1)
        return branch * (torch.rand(shape, device=branch.device) < kept).to(branch.dtype) / kept

    def extra_repr(self) -> str:
        """The probability, for `print(module)`."""
        return f"probability={self.probability}"


def linear_schedule(layer: int, num_layers: int, maximum: float) -> float:
    """Drop probability of layer ℓ = 1 … L: ℓ · maximum / L (ITNet, H.4)."""
    return layer * maximum / num_layers
