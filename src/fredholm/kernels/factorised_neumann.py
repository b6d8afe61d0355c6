"""The marker of series of hops whose scores split over the two points of a pair.

Legend
    φ_i, ψ_j     features of a query and of a key, r each, all ≥ 0        c_i      norm of the hop (`hop_norms.py`)
    ω_j          mass of a point                                          γ        discount of a hop, in (0, 1)

    a_ij = φ_i·ψ_j / c_i,   (A f)_i = Σ_j ω_j a_ij f_j

With c one number, s = γ / c and M = Σ_j ω_j ψ_j φ_jᵀ, an r x r matrix (Woodbury):

    Σ_{t ≥ 1} (γA)^t v at x  =  s φ(x)ᵀ (I - s M)⁻¹ Σ_j ω_j ψ_j v_jᵀ,
    c² = Σ_ij ω_i ω_j (φ_i·ψ_j)² = ⟨Σ_i ω_i φ_i φ_iᵀ, Σ_j ω_j ψ_j ψ_jᵀ⟩

With one norm a row, c_i = φ_i·Σ_j ω_j ψ_j, the same holds for φ_i / c_i in place of φ_i and γ in place of s.
"""

import abc

from torch import Tensor

from fredholm.kernels.neumann import Neumann


class FactorisedNeumann(Neumann):
    """Marker: a series of hops with scores φ_i·ψ_j >= 0, so that sums over the points come before the query.

    `activation` is "identity", and `norm` is `FrobeniusNorm` or `RowNorm`.
    """

    @abc.abstractmethod
    def query_features(self, u: Tensor) -> Tensor:
        """φ, `(B, H, N, r)`, of a signal `(B, N, query_dim)`."""

    @abc.abstractmethod
    def key_features(self, u: Tensor) -> Tensor:
        """ψ, `(B, H', N, r)`, of a signal `(B, N, d_in)`; H' divides H, each serving several heads in a row."""
