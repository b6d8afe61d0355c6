"""Sums of sinusoids whose frequencies are parameters: the continuous-frequency variant.

    f(x) = Σ_k c_k sin(w_k·x + b_k),   θ = (c, w, b)

Such sums are closed under x -> A x + b, unlike those with fixed frequencies: f(A⁻¹(x - t)) has the frequencies
A⁻ᵀ w_k and the phases b_k - (A⁻ᵀ w_k)·t. `Coordinates.waves` computes these for a frame.

Source: Neural Fields Meet Attention, 3.3 (A3b). The paper says that an operator which outputs frequencies "will" output
w_k / a for samples scaled by a. It can, but nothing enforces it. Here it does, since it outputs frequencies in the
frame.
"""

import math
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._settings import check_count, check_positive
from fredholm.fields.field import Field
from fredholm.fields.jet import Jet


class Waves(NamedTuple):
    """f(x) = Σ_k c_k sin(w_k·x + b_k)."""

    amplitudes: Tensor
    """c, `(..., K, m)`."""
    frequencies: Tensor
    """w, `(..., K, s)`, in radians per unit of x."""
    phases: Tensor
    """b, `(..., K)`."""


@final
class FreeSinusoidalField(Field):
    """f(x) = Σ_k c_k sin(w_k·x + b_k) with K free frequencies; θ holds c `(K, m)`, w `(K, s)` and b `(K,)`.

    Args:
        pos_dim: coordinates s of x.
        out_dim: values m.
        num_terms: K.
        sigma: standard deviation of the entries of w_k at the start, in radians per unit of x.

    Raises:
        ValueError: on sizes below 1, or a sigma that is not positive and finite.
    """

    def __init__(self, pos_dim: int, out_dim: int = 1, *, num_terms: int = 64, sigma: float = 3.0) -> None:
        super().__init__()
        for what, size in (("pos_dim", pos_dim), ("out_dim", out_dim), ("num_terms", num_terms)):
            check_count("fields.FreeSinusoidalField", what, size)
        check_positive("fields.FreeSinusoidalField", "sigma", sigma)
        self.pos_dim, self.out_dim, self.num_terms, self.sigma = pos_dim, out_dim, num_terms, sigma
        self.num_parameters = num_terms * (out_dim + pos_dim + 1)

    def waves(self, parameters: Tensor) -> Waves:
        """c, w and b, views of θ `(..., P)`."""
        K = self.num_terms
        c, w, b = parameters.split([K * self.out_dim, K * self.pos_dim, K], dim=-1)
        return Waves(c.unflatten(-1, (K, self.out_dim)), w.unflatten(-1, (K, self.pos_dim)), b)

    def draw(self) -> Tensor:
        """See `Field.draw`: values of variance 1, phases uniform over one period."""
        K = self.num_terms
        c, w = math.sqrt(2 / K) * torch.randn(K * self.out_dim), self.sigma * torch.randn(K * self.pos_dim)
        return torch.cat([c, w, math.pi * (2 * torch.rand(K) - 1)])

    def sizes(self) -> Tensor:
        """See `Field.sizes`."""
        K = self.num_terms
        scales = (math.sqrt(2 / K), self.sigma, math.pi / math.sqrt(3))
        counts = (K * self.out_dim, K * self.pos_dim, K)
        return torch.cat([torch.full((n,), scale) for n, scale in zip(counts, scales, strict=True)])

    def amplitudes(self) -> Tensor:
        """See `Field.amplitudes`: c."""
        return torch.arange(self.num_parameters) < self.num_terms * self.out_dim

    def values(self, parameters: Tensor, x: Tensor) -> Tensor:
        """See `Field.values`."""
        c, w, b = self.waves(parameters)
        return torch.sin(x @ w.mT + b[..., None, :]) @ c

    def derivatives(self, parameters: Tensor, x: Jet) -> Jet:
        """See `Field.derivatives`."""
        c, w, b = self.waves(parameters)
        return x.mapped(w, b).sine().mapped(c.mT)

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return f"pos_dim={self.pos_dim}, out_dim={self.out_dim}, num_terms={self.num_terms}, sigma={self.sigma:g}"
