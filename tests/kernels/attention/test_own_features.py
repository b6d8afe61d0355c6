"""User-defined feature maps with values outside the range of float32, and warnings where they leave float64 too."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from fredholm import IntegralOperator
from fredholm.domains import Points, Sequence
from fredholm.evaluation import ROUTES, Dense
from fredholm.kernels import FactorisedInfiniteAttention, Kernel, LinearAttention
from tests.contracts.routes import randomise
from tests.refusals import refused

MADE: dict[str, Callable[..., Kernel]] = {
    "linear": LinearAttention,
    "frobenius": FactorisedInfiniteAttention,
    "rows": lambda *sizes, **options: FactorisedInfiniteAttention(*sizes, normaliser="rows", **options),
}
FAR = 150.0
"""Scale of a signal at which exp(-x) underflows to 0 in float32, but not in float64."""


def operator_of(name: str, **options) -> IntegralOperator:
    torch.manual_seed(0)
    kernel = MADE[name](4, 2, **options)
    return IntegralOperator(randomise(kernel), residual=False, bias=False, output_projection=False)


def numbers(operator: IntegralOperator, u: Tensor) -> list[Tensor]:
    """The result and all gradients."""
    leaves = [u.clone().requires_grad_(), *operator.parameters()]
    out = operator(leaves[0], Sequence(u.shape[1]))
    slope = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad(out, leaves, slope)]


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("is_causal", [False, True])
def test_features_that_vanish_in_float32_stay_precise_on_every_route(name: str, is_causal: bool) -> None:
    operator = operator_of(name, feature_map=softplus, is_causal=is_causal)
    u = FAR * torch.randn(2, 5, 4)
    exact = operator_of(name, feature_map=softplus, is_causal=is_causal).double()
    exact.evaluation = Dense()
    expected = numbers(exact, u.double())
    integral, tried = operator.prepare(u, Sequence(5)), 0
    for route in ROUTES:
        if route.unsupported_reasons(integral) or route.name.endswith("(Truncation)"):
            continue
        operator.evaluation, tried = route, tried + 1
        for got, reference in zip(numbers(operator, u), expected, strict=True):
            assert (got - reference).abs().max() <= 1e-4 * reference.abs().max(), route.name
    assert tried >= 2 + is_causal


def test_a_float32_map_stays_in_float32_and_vanishing_features_are_reported() -> None:
    features = nn.Sequential(nn.Linear(2, 3), nn.Softplus())
    operator, u = operator_of("linear", feature_map=features), -FAR * torch.ones(1, 3, 4)
    for parameter in operator.parameters():
        parameter.data.fill_(1.0)
    with pytest.warns(UserWarning, match="gave only zeros in torch.float32 at queries or keys larger than 40"):
        operator(u, Points(torch.zeros(3, 1)))


def test_features_that_vanish_in_float64_are_reported() -> None:
    operator = operator_of("rows", feature_map=softplus)
    for parameter in operator.parameters():
        parameter.data.fill_(1.0)
    with pytest.warns(UserWarning, match="kernels.FactorisedInfiniteAttention: feature_map gave only zeros"):
        operator(-1e4 * torch.ones(1, 3, 4), Points(torch.zeros(3, 1)))


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_a_map_with_zeros_at_any_size_gives_no_warning(size: float) -> None:
    operator = operator_of("linear", feature_map=torch.relu)
    with warnings.catch_warnings(action="error"):
        output = operator(size * torch.randn(2, 9, 4), Points(torch.zeros(9, 1)))
    assert output.isfinite().all()


@pytest.mark.parametrize("name", MADE)
def test_infinite_features_are_refused(name: str) -> None:
    operator = operator_of(name, feature_map=torch.exp)
    operator(FAR * torch.randn(2, 3, 4), Points(torch.zeros(3, 1)))
    with refused(ValueError, "feature_map gave infinite values in torch.float64, at queries or keys of size"):
        operator(1e4 * torch.randn(2, 3, 4), Points(torch.zeros(3, 1)))
