"""The marker of normalised kernels that split over the two points of a pair."""

import abc
from typing import NamedTuple

from torch import Tensor

from fredholm.kernels.normalised import Normalised


class SeparableForm(NamedTuple):
    """n_ij = φ_i·ψ_j with r features, all ≥ 0, and V ũ_j; keys and values may have fewer heads than queries."""

    query: Tensor  # φ: (B, H, Nq, r)
    key: Tensor  # ψ: (B, H', N, r)
    value: Tensor  # (B, H', N, d)


class Separable(Normalised):
    """Marker: a normalised kernel with n_ij = φ_i·ψ_j, so that the sum over keys comes before the query."""

    @abc.abstractmethod
    def separable_form(self, u: Tensor, query: Tensor) -> SeparableForm:
        """Features and values on these signals, `(B, N, d_in)` and `(B, Nq, query_dim)`."""
