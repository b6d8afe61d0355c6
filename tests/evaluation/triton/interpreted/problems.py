"""Problems small enough for the interpreter, which takes milliseconds for a tile of one program."""

from typing import Any

import torch

from fredholm.domains import Domain
from fredholm.evaluation import Integral
from fredholm.kernels import MLP
from tests.contracts.routes import changed, randomise
from tests.contracts.small_perceptron import small_perceptron


def make(domain: Domain, batch: int = 1, head_dim: int = 2, **options) -> Integral:
    """A random float32 kernel on a domain; the signal is 0 at points that do not exist."""
    settings: dict[str, Any] = {"num_heads": 2} | small_perceptron(**options)
    heads = settings.pop("num_heads")
    kernel = randomise(MLP(head_dim * heads, heads, domain.pos_dim, **settings))
    u = torch.randn(batch, domain.num_points, kernel.in_dim)
    if domain.mask is not None:
        u = torch.where(domain.mask[..., None], u, 0.0)
    return Integral(kernel, u, domain)


def with_queries(problem: Integral, query_domain: Domain) -> Integral:
    """The same integral at other query points, with another random query signal."""
    problem = changed(
        problem,
        query_domain=query_domain,
        query=torch.randn(len(problem.u), query_domain.num_points, problem.kernel.in_dim),
    )
    return problem
