import copy
import math

import pytest
import torch
from torch import nn

import fredholm
from fredholm import domains, kernels
from fredholm.kernels import yat
from fredholm.layers import YatDense
from tests.refusals import refused


def randomise(layer: YatDense) -> YatDense:
    """Moves all parameters away from their initial values, including ε and α."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def formula(layer: YatDense, x):
    out = yat(x, layer.weight, layer.bias, layer.softening())
    return out if layer.scale is None else layer.scale() * out


@pytest.mark.pairs
@pytest.mark.parametrize("shape", [(5,), (7, 5), (2, 3, 5), (0, 5), (2, 0, 5)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("learn_epsilon", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_equals_the_formula_in_value_and_every_gradient(shape, bias, learn_epsilon, scale):
    layer = YatDense(5, 11, bias=bias, epsilon=0.2, learn_epsilon=learn_epsilon, scale=scale).double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    leaves = [x, *randomise(layer).parameters()]
    assert len(leaves) == 2 + bias + learn_epsilon + scale
    out, expected = layer(x), formula(layer, x)
    grad = torch.randn_like(expected)
    found, reference = (torch.autograd.grad(value, leaves, grad) for value in (out, expected))
    torch.testing.assert_close((out, *found), (expected, *reference), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_equals_the_integral_of_the_yat_kernel_over_prototypes(bias, scale):
    """Each prototype is a point of the domain with its own unit vector as signal; forward and in every gradient."""
    layer = randomise(YatDense(5, 7, bias=bias, epsilon=0.2, scale=scale).double())
    kernel = kernels.Yat(5, 7, reads_bias=bias, num_units=7 if scale else None, epsilon=0.2).double()
    if layer.scale is not None:
        assert kernel.scale is not None
        kernel.scale.alpha = layer.scale.alpha
    operator = fredholm.IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
    x = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    parts = [layer.weight, *([] if layer.bias is None else [layer.bias[:, None]]), torch.eye(7, dtype=torch.float64)]
    integral = operator(
        torch.cat(parts, dim=-1)[None], domains.Sequence(7), query=x[None], query_domain=domains.Sequence(11)
    )
    leaves, grad = [x, *layer.parameters()], torch.randn(11, 7, dtype=torch.float64)
    found, reference = (torch.autograd.grad(value, leaves, grad) for value in (layer(x), integral[0]))
    torch.testing.assert_close((layer(x), *found), (integral[0], *reference), rtol=1e-10, atol=1e-10)


def test_reads_signals_in_any_layout():
    layer, x = YatDense(5, 3), torch.randn(5, 4, 7).permute(2, 1, 0)
    torch.testing.assert_close(layer(x), formula(layer, x))


@pytest.mark.parametrize("autocast", [False, True])
def test_16_bits(autocast):
    layer, x = randomise(YatDense(33, 17, learn_epsilon=True)), torch.randn(19, 33)
    rounded = copy.deepcopy(layer).bfloat16()
    exact = rounded.double()(x.bfloat16().double())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = layer(x) if autocast else layer.bfloat16()(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert (out - exact).abs().max() <= 2e-2 * exact.abs().max()
    out.float().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype


def test_products_are_not_rounded_before_the_distance():
    """Points at 1 % of their length from a prototype: products rounded to bfloat16 would lose their distance."""
    w = torch.randn(1, 64).bfloat16()
    x = (w + 0.01 * torch.randn(50, 64)).bfloat16()
    layer = YatDense(64, 1, bias=False, scale=False).bfloat16()
    with torch.no_grad():
        layer.weight.copy_(w)
    exact = yat(x.double(), w.double())
    assert ((layer(x) - exact).abs() <= 2e-2 * exact).all()


@pytest.mark.parametrize("bias", [False, True])
def test_large_entries_in_16_bits_stay_finite(bias):
    layer = YatDense(768, 64, bias=bias).bfloat16()
    x = (1e4 * torch.sign(torch.randn(8, 768))).bfloat16()
    with torch.no_grad():
        layer.weight[:4].copy_(x[:4])  # exactly at a prototype, where the response is highest
    x.requires_grad_()
    out = layer(x)
    out.float().sum().backward()
    for value in (out, x.grad, *(parameter.grad for parameter in layer.parameters())):
        assert value is not None
        assert value.isfinite().all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_non_finite_inputs_affect_only_their_row(bad):
    layer, x = YatDense(5, 3), torch.randn(3, 5)
    x[1, 2] = bad
    out = layer(x)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_zero_points_and_prototypes():
    layer, x = YatDense(5, 3), torch.zeros(2, 5, requires_grad=True)
    with torch.no_grad():
        layer.weight.zero_()
    out = layer(x)
    out.sum().backward()
    for value in (out, x.grad, layer.weight.grad):
        assert value is not None
        assert not value.any()


@pytest.mark.parametrize(("dim", "units"), [(64, 256), (768, 3072), (784, 10), (64, 1)])
@pytest.mark.parametrize("scale", [False, True])
def test_responses_start_of_order_one(dim, units, scale):
    draws = max(1, 64 // units)
    x, layers = torch.randn(256, dim), [YatDense(dim, units, scale=scale) for _ in range(draws)]
    with torch.no_grad():
        whole = torch.cat([layer(x) for layer in layers], dim=-1).mean().item()
        unit = torch.cat([layer(x / x.norm(dim=-1, keepdim=True)) for layer in layers], dim=-1).mean().item()
    s = units / math.log1p(units) if scale else 1.0
    assert whole == pytest.approx(min(1.0, s / 2), rel=0.25)
    assert 0.7 * min(1.0, s / dim) * min(dim / max(s - 1, 1), 1) / 2 < unit < 1.5


def test_signals_and_gradients_keep_their_scale_over_depth():
    layers: list[nn.Module] = []
    for _ in range(12):
        layers += [YatDense(64, 256), nn.Linear(256, 64)]
    x = torch.randn(200, 64, requires_grad=True)
    signals = [x]
    for layer in layers:
        signals.append(layer(signals[-1]))
    size = signals[-1].square().mean().sqrt()
    assert 0.5 < size < 2
    (grad,) = torch.autograd.grad(signals[-1], x, torch.randn_like(x))
    assert 1 < grad.square().mean().sqrt() < 1.5 * (2 / 3**0.5) ** 12
    # activations of different inputs are neither equal nor unrelated
    unit = nn.functional.normalize(signals[-1].detach(), dim=-1)
    correlation = (unit @ unit.T).fill_diagonal_(0).sum() / (200 * 199)
    assert 0.3 < correlation < 0.7


def test_golden_parameter_shapes():
    names = {name: tuple(p.shape) for name, p in YatDense(6, 4, learn_epsilon=True).named_parameters()}
    assert names == {"weight": (4, 6), "bias": (4,), "softening.raw": (1,), "scale.alpha": (1,)}
    assert set(YatDense(6, 4, bias=False, scale=False).state_dict()) == {"weight"}


@pytest.mark.parametrize("bias", [False, True])
def test_compiles_in_one_graph(bias):
    layer, x = YatDense(6, 4, bias=bias, learn_epsilon=True), torch.randn(5, 6, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    grads = [torch.autograd.grad(f(x).square().sum(), [x, *layer.parameters()]) for f in (layer, compiled)]
    torch.testing.assert_close(*grads)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), layer(x))


def test_mistakes_are_refused():
    layer = YatDense(5, 3)
    with refused(ValueError, "(..., 5)", "(2, 4)"):
        layer(torch.randn(2, 4))
    with refused(ValueError, "in_features", "0"):
        YatDense(0, 3)
    with refused(ValueError, "epsilon", "-1"):
        YatDense(2, 3, epsilon=-1)
    with refused(TypeError, "float64", "float32"):
        layer(torch.randn(2, 5, dtype=torch.float64))
    with refused(TypeError, "YatDense", "float16", "bfloat16"):
        layer.half()(torch.randn(2, 5).half())
    with torch.autocast("cpu", torch.float16), refused(TypeError, "YatDense", "float16", "bfloat16"):
        YatDense(5, 3)(torch.randn(2, 5))
