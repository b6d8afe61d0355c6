"""Sums of sinusoids with fixed frequencies, linear in the parameters.

    f(x) = Σ_k c_k φ_k(x),   φ_k(x) = sin(w_k·x + b_k),   θ = c

Source: Neural Fields Meet Attention, theorem 3.
"""

import math
from typing import final

import torch
from torch import Tensor

from fredholm._precision import at_least_float32, without_autocast
from fredholm._settings import check_count, check_positive
from fredholm.fields.field import Field
from fredholm.fields.jet import Jet


@final
class SinusoidalField(Field):
    """f(x) = Σ_k c_k sin(w_k·x + b_k) with K fixed frequencies; θ holds c `(K, m)`, row after row.

    Args:
        pos_dim: coordinates s of x.
        out_dim: values m.
        num_terms: K.
        sigma: standard deviation of the entries of w_k, in radians per unit of x; b_k is uniform over one period.
            Both are drawn from torch's global seed and kept as buffers.

    Attributes:
        frequencies: w, `(K, s)`.
        phases: b, `(K,)`.

    Raises:
        ValueError: on sizes below 1, or a sigma that is not positive and finite.
    """

    def __init__(self, pos_dim: int, out_dim: int = 1, *, num_terms: int = 64, sigma: float = 3.0) -> None:
        super().__init__()
        for what, size in (("pos_dim", pos_dim), ("out_dim", out_dim), ("num_terms", num_terms)):
            check_count("fields.SinusoidalField", what, size)
        check_positive("fields.SinusoidalField", "sigma", sigma)
        self.pos_dim, self.out_dim, self.num_terms = pos_dim, out_dim, num_terms
        self.num_parameters = num_terms * out_dim
        self.frequencies: Tensor
        self.phases: Tensor
        self.register_buffer("frequencies", sigma * torch.randn(num_terms, pos_dim))
        self.register_buffer("phases", math.pi * (2 * torch.rand(num_terms) - 1))

    def basis(self, x: Tensor) -> Tensor:
        """φ(x), `(..., N, K)`, from `(..., N, s)`; in at least float32."""
        wide = at_least_float32(x)
        with without_autocast(x):
            return torch.sin(wide @ self.frequencies.to(wide).mT + self.phases.to(wide))

    def draw(self) -> Tensor:
        """See `Field.draw`: c ~ N(0, 2/K), values of variance 1."""
        return math.sqrt(2 / self.num_terms) * torch.randn(self.num_parameters)

    def sizes(self) -> Tensor:
        """See `Field.sizes`."""
        return torch.full((self.num_parameters,), math.sqrt(2 / self.num_terms))

    def amplitudes(self) -> Tensor:
        """See `Field.amplitudes`: all of them."""
        return torch.ones(self.num_parameters, dtype=torch.bool)

    def values(self, parameters: Tensor, x: Tensor) -> Tensor:
        """See `Field.values`."""
        return self.basis(x) @ parameters.unflatten(-1, (self.num_terms, self.out_dim))

    def derivatives(self, parameters: Tensor, x: Jet) -> Jet:
        """See `Field.derivatives`."""
        waves = x.mapped(self.frequencies.to(x.value), self.phases.to(x.value)).sine()
        return waves.mapped(parameters.unflatten(-1, (self.num_terms, self.out_dim)).mT)

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return f"pos_dim={self.pos_dim}, out_dim={self.out_dim}, num_terms={self.num_terms}"
