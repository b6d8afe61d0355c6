"""Problems small enough for the interpreter, which takes milliseconds for one tile of one owner."""

from typing import Any

import torch

from fredholm.domains import Domain
from fredholm.evaluation import Integral
from fredholm.kernels import MLP
from tests.contracts.routes import changed, randomise
from tests.contracts.small_perceptron import small_perceptron


def make(domain: Domain, batch: int = 1, head_dim: int = 2, **options) -> Integral:
    """A kernel of noise in float32 on a domain; what does not exist carries no signal."""
    given: dict[str, Any] = {"num_heads": 2} | small_perceptron(**options)
    heads = given.pop("num_heads")
    kernel = randomise(MLP(head_dim * heads, heads, domain.pos_dim, **given))
    u = torch.randn(batch, domain.num_points, kernel.in_dim)
    if domain.mask is not None:
        u = torch.where(domain.mask[..., None], u, 0.0)
    return Integral(kernel, u, domain)


def with_queries(problem: Integral, query_domain: Domain) -> Integral:
    """The same integral at other points, where the signal is other noise."""
    problem = changed(
        problem,
        query_domain=query_domain,
        query=torch.randn(len(problem.u), query_domain.num_points, problem.kernel.in_dim),
    )
    return problem
