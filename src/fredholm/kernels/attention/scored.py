"""Scored kernels: non-negative scores of pairs, made densities by a normaliser.

Legend
    s_ij ≥ 0     score of a pair in a head            a      densities that the normaliser makes of a row of scores
    V_h          value matrix

    κ_ij = a_ij V_h
"""

import abc
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels.attention.normalisers import Normaliser
from fredholm.kernels.attention.value_mixing import ValueMixing


class Scored(ValueMixing):
    """Marker: in each head κ is a score >= 0 that went through `normaliser`, times a value matrix.

    The measure counts points, so that a sum over the points so far may be carried along a sequence.
    """

    normaliser: Normaliser

    @abc.abstractmethod
    def scores(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> Tensor:
        """s at every pair, `(B, H, Nq, N)`, in at least float32; what hidden pairs have is not used."""

    @final
    def density(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """See `ValueMixing.density`."""
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        visible = self.visible(domain, query_domain)
        scores = self.scores(u, domain, query, query_domain)
        mass = self.pair_mass(domain, scores.dtype)
        return self.normaliser.density(scores, torch.where(visible, mass, 0.0)).to(u.dtype)
