"""The marker of softmax attention: normalised kernels whose numerator is the exponential of a dot product."""

import abc
from typing import NamedTuple

from torch import Tensor

from fredholm.kernels.attention.value_mixing import Normalised


class DotProductForm(NamedTuple):
    """n_ij = exp(scale q_i·k_j), and V ũ_j; keys and values may have fewer heads, each serving several in a row."""

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, H', N, d)
    value: Tensor  # (B, H', N, d_v)
    scale: float


class DotProduct(Normalised):
    """Marker: a normalised kernel that fused attention can compute."""

    @abc.abstractmethod
    def dot_product_form(self, u: Tensor, query: Tensor) -> DotProductForm:
        """Queries, keys and values on these signals, `(B, N, d_in)` and `(B, Nq, query_dim)`."""
