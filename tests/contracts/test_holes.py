"""Integrals without a route at the size of one layer of a vision transformer: 196 points, 384 channels, 6 heads.

A small signal of any kernel is computed by `Dense`. A larger one needs a specialised route. `HOLES` lists the cases
that have none; remove a case once a route takes it.
"""

import functools
import itertools
from collections.abc import Callable

import pytest
import torch

from fredholm import kernels
from fredholm.domains import Domain, Grid, Points, Sequence
from fredholm.evaluation import AUTO, Integral
from fredholm.kernels import Kernel

POINTS, CHANNELS, HEADS = 196, 384, 6


class RationalQuadratic(Kernel):
    """A user-defined content kernel that has only its definition."""

    in_dim = out_dim = CHANNELS
    pos_dim, is_causal, reads_query = None, False, True

    def matrix(self, u, domain, query=None, query_domain=None):
        squared = torch.cdist(u if query is None else query, u).square()
        return (1 / (1 + squared))[..., None, None] * torch.eye(CHANNELS)


DOMAINS: dict[str, Callable[[], Domain]] = {
    "grid": lambda: Grid(14, 14),
    "torus": lambda: Grid(14, 14, periodic=True),
    "points": lambda: Points(torch.rand(POINTS, 2)),
    "periodic points": lambda: Points(torch.rand(POINTS, 2), periodic=True),
    "pair weights": lambda: Points(torch.rand(POINTS, 2)).weigh_pairs(torch.randn(POINTS, POINTS)),
}
IN_THE_PLANE: dict[str, Callable[[], Kernel]] = {
    "MLP": functools.partial(kernels.MLP, CHANNELS, HEADS, 2),
    "LowRankMLP": functools.partial(kernels.LowRankMLP, CHANNELS, HEADS, 2, rank=8),
    "SeparableMLP": functools.partial(kernels.SeparableMLP, CHANNELS, HEADS, 2),
    "Attention": functools.partial(kernels.Attention, CHANNELS, HEADS),
    "LinearAttention": functools.partial(kernels.LinearAttention, CHANNELS, HEADS),
    "UnnormalisedAttention": functools.partial(kernels.UnnormalisedAttention, CHANNELS, HEADS),
    "YatAttention": functools.partial(kernels.YatAttention, CHANNELS, HEADS),
    "InfiniteAttention": functools.partial(kernels.InfiniteAttention, CHANNELS, HEADS),
    "FactorisedInfiniteAttention": functools.partial(kernels.FactorisedInfiniteAttention, CHANNELS, HEADS),
    "LinearInfiniteAttention": functools.partial(kernels.LinearInfiniteAttention, CHANNELS, HEADS),
    "ContinuousConvolution": functools.partial(kernels.ContinuousConvolution, CHANNELS, CHANNELS, 2),
    "SpectralConvolution": functools.partial(kernels.SpectralConvolution, CHANNELS, CHANNELS, 2),
    "user-defined": RationalQuadratic,
}
HOLES = {("user-defined", domain) for domain in DOMAINS}


@pytest.mark.parametrize(("name", "domain"), list(itertools.product(IN_THE_PLANE, DOMAINS)))
def test_an_integral_of_one_layer_has_a_route_or_is_listed(name: str, domain: str) -> None:
    u = torch.empty(1, 1, 1).expand(8, POINTS, CHANNELS)
    reasons = AUTO.unsupported_reasons(Integral(IN_THE_PLANE[name](), u, DOMAINS[domain]()))
    assert bool(reasons) == ((name, domain) in HOLES), reasons


def test_the_definition_is_refused_beyond_its_limit_of_size() -> None:
    for points, fits in ((85, True), (86, False)):
        u = torch.empty(1, 1, 1).expand(1, points, CHANNELS)
        assert (not AUTO.unsupported_reasons(Integral(RationalQuadratic(), u, Sequence(points)))) == fits
