import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import analysis, fields, models
from fredholm.domains import Points, Union
from tests.models.fields.test_neural_field import samples
from tests.refusals import refused

ETA = 1 / 128  # exact in float32, in which parameters start


def regressor(num_layers: int = 7, *, num_terms: int = 6, **options: Any) -> models.InContextRegressor:
    torch.manual_seed(2)
    field = fields.SinusoidalField(2, 2, num_terms=num_terms, sigma=1.0)
    return models.InContextRegressor(field, num_layers=num_layers, step_size=ETA, **options).double()


def descent(features: Tensor, y: Tensor, weights: Tensor, steps: int) -> Tensor:
    """Coefficients after plain gradient descent from 0, the gradients by autograd."""
    c = torch.zeros(len(y), features.shape[-1], y.shape[-1], dtype=y.dtype)
    for _ in range(steps):
        c = c.detach().requires_grad_()
        loss = 0.5 * (weights[..., None] * (y - features @ c).square()).sum()
        (gradient,) = torch.autograd.grad(loss, c)
        c = c - ETA * gradient
    return c.detach()


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2, 25])
def test_layers_are_steps_of_gradient_descent(num_layers: int, weighed: bool) -> None:
    net, (y, x) = regressor(num_layers), samples(n=40)
    mask = torch.arange(40).expand(2, -1) < torch.tensor([[40], [31]])
    weights = torch.rand(2, 40, dtype=torch.float64) if weighed else None
    placed = net(y, Points(x, weights, mask))
    counts = mask.double() * (1.0 if weights is None else weights)
    expected = descent(net.field.basis(x), y, counts, num_layers)
    error = (placed.parameters.view(2, 6, 2) - expected).abs().max() / expected.abs().max()
    assert error.item() <= 1e-10
    assert expected.abs().max() > 1e-2


def test_the_counts_of_parts_that_share_a_mass_have_mean_1() -> None:
    net, (y, x) = regressor(3), samples(n=20)
    union = Union(Points(x[:, :5]), Points(x[:, 5:]), mass=(0.5, 0.5))
    expected = descent(net.field.basis(x), y, union.counts.expand(len(y), -1), 3)
    assert union.counts.mean() == 1
    torch.testing.assert_close(net(y, union).parameters.view(expected.shape), expected, rtol=1e-10, atol=1e-12)


def test_preconditioned_layers_are_preconditioned_steps() -> None:
    net, (y, x) = regressor(3), samples(n=20)
    features, c = net.field.basis(x), torch.zeros(2, 6, 2, dtype=torch.float64)
    for layer, step in zip(net.layers, net.steps, strict=True):
        P, E = torch.randn(6, 6, dtype=torch.float64), 0.01 * torch.randn(2, 2, dtype=torch.float64)
        with torch.no_grad():
            layer.kernel.query_weight.copy_(P.T)  # pyright: ignore
            step.copy_(E)
        c = c + P @ analysis.negative_gradient(features, y - features @ c) @ E.T
    torch.testing.assert_close(net(y, Points(x)).parameters.view(2, 6, 2), c, rtol=1e-10, atol=1e-12)


def test_softmax_layers_approach_the_exact_ones_as_the_temperature_rises() -> None:
    y, x = samples(n=20)
    exact = regressor(3)(y, Points(x)).parameters
    temperatures = torch.tensor([30.0, 100.0, 300.0, 1000.0])
    errors = []
    for tau in temperatures.tolist():
        found = regressor(3, temperature=tau)(y, Points(x)).parameters
        errors.append((found - exact).norm() / exact.norm())
    assert 0.9 <= analysis.decay_exponent(temperatures, torch.stack(errors).detach()) <= 1.1
    weights, mask = torch.rand(20, dtype=torch.float64), torch.arange(20) < 13
    near, exact = (net(y, Points(x, weights, mask)).parameters for net in (regressor(3, temperature=1e5), regressor(3)))
    assert ((near - exact).norm() / exact.norm()).item() < 1e-4


def test_it_fits_its_samples_and_is_equivariant() -> None:
    """For samples of a field in the basis, gradient descent finds it, in the frame and after moving the samples."""
    net = regressor(10, frame=fields.Rotational())
    _, x = samples(n=60)
    frame = fields.Rotational().coordinates(Points(x))
    truth = net.field.basis(frame.normalise(x)[:, 0]) @ torch.randn(6, 2, dtype=torch.float64)
    errors = []
    for layers in (1, 10, 150):
        few = regressor(layers, frame=fields.Rotational())
        with torch.no_grad():
            errors.append(((few(truth, Points(x))(x) - truth).norm() / truth.norm()).item())
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 0.1
    for moves in (analysis.OrthogonalMaps(), analysis.Scalings(), analysis.Translations(), analysis.Permutations()):
        found = analysis.equivariance_error(net, moves, truth, Points(x), num_moves=2)
        assert found.relative.max() < 1e-11


def test_step_sizes_and_preconditioners_are_learnable() -> None:
    net, (y, x) = regressor(3), samples()
    net(y, Points(x))(x).square().sum().backward()
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None
            assert parameter.grad.abs().max() > 0, name
    learned = sum(parameter.requires_grad for parameter in net.parameters())
    assert learned == 6  # W_Q and E of three layers


def test_without_samples_the_field_is_zero() -> None:
    net, (y, x) = regressor(), samples()
    empty = net(y.requires_grad_(), Points(x, mask=torch.zeros(11, dtype=torch.bool)))
    assert not empty.parameters.any()
    (grad,) = torch.autograd.grad(empty(x).sum(), y)
    assert not grad.any()


def test_bad_arguments_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 0.0}, "temperature"),
        ({"margin": math.inf}, "margin"),
        ({"num_layers": 0}, "num_layers"),
        ({"frame": fields.Periodic(), "pos_dim": 2}, "makes 4 coordinates of pos_dim 2"),
        ({"num_terms": 1, "temperature": 1.0}, "1 channels of a query"),
    ]
    for options, message in cases:
        with refused(ValueError, "models.InContextRegressor", message):
            regressor(**options)
    with refused(ValueError, "models.InContextRegressor", "built for 2"):
        regressor()(samples()[0], Points(torch.rand(11, 3)))
