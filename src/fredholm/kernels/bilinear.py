"""The marker of kernels that are a dot product of features, without a normaliser."""

import abc
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels.value_mixing import ValueMixing


class BilinearForm(NamedTuple):
    """a_ij = φ_i·ψ_j with r features of any sign, and V ũ_j."""

    query: Tensor  # φ: (B, H, Nq, r)
    key: Tensor  # ψ: (B, H, N, r)
    value: Tensor  # (B, H, N, d)


class Bilinear(ValueMixing):
    """Marker: κ_ij = (φ_i·ψ_j) V in each head, so that the sum over keys comes before the query."""

    @abc.abstractmethod
    def bilinear_form(self, u: Tensor, query: Tensor) -> BilinearForm:
        """Features and values on these signals, `(B, N, d_in)` and `(B, Nq, query_dim)`."""

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """φ·ψ; see `ValueMixing.density`."""
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        phi, psi, _ = self.bilinear_form(u, query)
        return torch.where(self.visible(domain, query_domain), phi @ psi.mT, 0.0)
