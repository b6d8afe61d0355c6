"""Values with their first derivatives and Laplacian, carried forward through a function."""

from typing import NamedTuple

import torch
from torch import Tensor


class Jet(NamedTuple):
    """c functions of x in R^s at N points; leading dimensions broadcast."""

    value: Tensor
    """`(..., N, c)`."""
    gradient: Tensor
    """∂/∂x_k, `(..., N, s, c)`."""
    laplacian: Tensor
    """Σ_k ∂²/∂x_k², `(..., N, c)`."""

    def mapped(self, weight: Tensor, bias: Tensor | None = None) -> "Jet":
        """The jet of W v + b, from W `(..., c', c)` and b `(..., c')`."""
        value = self.value @ weight.mT
        value = value if bias is None else value + bias[..., None, :]
        return Jet(value, self.gradient @ weight.mT[..., None, :, :], self.laplacian @ weight.mT)

    def sine(self, omega: float = 1.0) -> "Jet":
        """The jet of sin(ω v), entry by entry.

        Δ sin(ωv) = ω cos(ωv) Δv - ω² sin(ωv) ‖∇v‖².
        """
        value, slope = torch.sin(omega * self.value), omega * torch.cos(omega * self.value)
        squared = self.gradient.square().sum(-2)
        laplacian = slope * self.laplacian - omega**2 * value * squared
        return Jet(value, slope[..., None, :] * self.gradient, laplacian)
