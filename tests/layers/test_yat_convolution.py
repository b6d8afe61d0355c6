import copy
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fredholm.kernels import yat
from fredholm.layers import YatConv1d, YatConv2d, YatConv3d, YatConvolution
from tests.refusals import refused


def randomise(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def patches(x, size, stride, pads, dilation):
    """All patches of an image `(B, C, *n)`, by explicit indexing: `(B, C, *places, cells)`."""
    x = F.pad(x, [cells for pair in reversed(pads) for cells in pair])
    for axis, (k, s, d) in enumerate(zip(size, stride, dilation, strict=True)):
        x = x.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
    return x.flatten(-len(size))


def literal(layer: YatConvolution, x):
    """Responses of filters to patches, group by group, by `kernels.yat`."""
    if layer.padding == "same":
        reach = [d * (k - 1) for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        pads = [(r // 2, r - r // 2) for r in reach]
    else:
        pads = [(p, p) for p in ((0,) * layer.num_axes if layer.padding == "valid" else layer.padding)]
    found = patches(x, layer.kernel_size, layer.stride, pads, layer.dilation)
    points = found.movedim(1, -2).unflatten(-2, (layer.groups, -1)).flatten(-2)
    weight = layer.weight.flatten(1).unflatten(0, (layer.groups, -1))
    bias = [None] * layer.groups if layer.bias is None else layer.bias.unflatten(0, (layer.groups, -1))
    answers = [yat(points[..., g, :], weight[g], bias[g], layer.softening()) for g in range(layer.groups)]
    out = torch.cat(answers, dim=-1).movedim(-1, 1)
    return out if layer.scale is None else layer.scale() * out


CASES = [
    pytest.param(YatConv1d(3, 5, 4), (2, 3, 11), id="1d"),
    pytest.param(YatConv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), (3, 4, 13), id="1d-all-options"),
    pytest.param(YatConv1d(3, 5, 4, padding="same", dilation=3, learn_epsilon=True), (2, 3, 17), id="1d-even-same"),
    pytest.param(YatConv2d(3, 7, 3), (2, 3, 5, 8), id="2d"),
    pytest.param(YatConv2d(6, 6, (3, 2), padding="same", groups=6, bias=False), (2, 6, 5, 7), id="2d-depthwise"),
    pytest.param(YatConv2d(4, 8, (2, 3), (1, 2), (0, 3), (2, 1), 4, scale=False), (1, 4, 7, 7), id="2d-all-options"),
    pytest.param(YatConv2d(3, 1, 1, padding="valid"), (1, 3, 1, 1), id="2d-one-point"),
    pytest.param(YatConv2d(3, 2, 3, padding=1), (0, 3, 4, 4), id="2d-empty-batch"),
    pytest.param(YatConv3d(2, 3, (2, 1, 3), padding=1, learn_epsilon=True), (2, 2, 3, 4, 5), id="3d"),
]


@pytest.mark.parametrize(("layer", "shape"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_equals_yat_of_patches_and_filters_in_value_and_every_gradient(layer, shape, dtype, tolerance):
    layer = randomise(copy.deepcopy(layer).to(dtype))
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    leaves = [x, *layer.parameters()]
    out, expected = layer(x), literal(layer, x)
    grad = torch.randn_like(expected)
    found, reference = (torch.autograd.grad(value, leaves, grad) for value in (out, expected))
    torch.testing.assert_close((out, *found), (expected, *reference), rtol=tolerance, atol=tolerance)


def test_an_image_without_a_batch():
    layer, x = YatConv2d(3, 4, 3), torch.randn(3, 6, 7)
    torch.testing.assert_close(layer(x), layer(x[None])[0])


def test_16_bits_and_autocast():
    layer, x = randomise(YatConv2d(5, 7, 3, padding=1)), torch.randn(2, 5, 6, 7)
    exact = copy.deepcopy(layer).bfloat16().double()(x.bfloat16().double())
    with torch.autocast("cpu", torch.bfloat16):
        under = layer(x)
    for out in (under, copy.deepcopy(layer).bfloat16()(x.bfloat16())):
        assert out.dtype == torch.bfloat16
        assert (out - exact).abs().max() <= 2e-2 * exact.abs().max()


def test_large_entries_in_16_bits_stay_finite():
    layer = YatConv2d(16, 8, 3, padding=1).bfloat16()
    x = (1e4 * torch.sign(torch.randn(2, 16, 5, 5))).bfloat16().requires_grad_()
    out = layer(x)
    out.float().sum().backward()
    for value in (out, x.grad, *(parameter.grad for parameter in layer.parameters())):
        assert value is not None
        assert value.isfinite().all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e20])
def test_non_finite_inputs_affect_only_their_patches(bad):
    layer, x = YatConv1d(2, 3, 3), torch.randn(1, 2, 12)
    x[0, 1, 5] = bad
    out = layer(x)
    assert out[..., 3:6].isnan().all()
    assert out[..., :3].isfinite().all()
    assert out[..., 6:].isfinite().all()


@pytest.mark.parametrize("groups", [1, 4])
def test_responses_start_of_order_one(groups):
    layer, x = YatConv2d(16, 64, 3, groups=groups), torch.randn(4, 16, 10, 10)
    assert layer(x).mean().item() == pytest.approx(1, rel=0.25)


def test_compiles_in_one_graph():
    layer, x = YatConv2d(4, 6, 3, groups=2, padding="same"), torch.randn(2, 4, 5, 6, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    grads = [torch.autograd.grad(f(x).square().sum(), [x, *layer.parameters()]) for f in (layer, compiled)]
    torch.testing.assert_close(*grads)


def test_mistakes_are_refused():
    with refused(ValueError, "groups", "5"):
        YatConv1d(4, 6, 3, groups=5)
    with refused(ValueError, "kernel_size", "(3, 3)"):
        YatConv1d(4, 6, (3, 3))
    with refused(ValueError, "stride", "0"):
        YatConv2d(4, 6, 3, stride=0)
    with refused(ValueError, "same", "stride"):
        YatConv2d(4, 6, 3, stride=2, padding="same")
    with refused(ValueError, "padding", "'full'"):
        YatConv2d(4, 6, 3, padding="full")  # type: ignore[arg-type]
    with refused(ValueError, "(B, 4, …)", "(2, 3, 5, 5)"):
        YatConv2d(4, 6, 3)(torch.randn(2, 3, 5, 5))
    with refused(TypeError, "float16", "bfloat16"):
        YatConv1d(4, 6, 3).half()(torch.randn(2, 4, 5).half())


def test_an_image_smaller_than_a_patch_is_refused() -> None:
    calls: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        ({}, (1, 2, 2, 5)),
        ({"dilation": (1, 2)}, (2, 3, 4)),
        ({"padding": 1}, (1, 2, 0, 5)),
    ]
    for options, shape in calls:
        with refused(ValueError, "YatConv2d: patches of (3, ", "do not fit into an image of", "enlarge the image"):
            YatConv2d(2, 3, 3, **options)(torch.randn(shape))
    assert YatConv2d(2, 3, 3, padding="same")(torch.randn(1, 2, 1, 1)).shape == (1, 3, 1, 1)


def test_bad_numbers_of_channels_or_cells_are_refused() -> None:
    with refused(TypeError, "YatConv1d: in_channels must be a whole number; got '2'"):
        YatConv1d("2", 2, 3)  # pyright: ignore[reportArgumentType]
    for name in ("kernel_size", "stride", "padding", "dilation"):
        for wrong in (2.5, None, True):
            settings: dict[str, Any] = {"kernel_size": 3, name: wrong}
            with refused(ValueError, f"YatConv1d: {name} must be an integer", f"got {wrong!r}"):
                YatConv1d(2, 2, **settings)
    with refused(TypeError, "YatConv1d: expected a tensor; got list; torch.as_tensor makes one"):
        YatConv1d(2, 2, 3)([[1.0] * 3] * 2)
