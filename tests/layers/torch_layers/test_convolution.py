"""torch's convolutions converted to operators: by the dense oracle, by torch's convolution, and by the FFT."""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from torch import Tensor, nn

from fredholm.evaluation import FFT, Dense, NativeConvolution, Tiled
from fredholm.kernels import MLP, Convolution
from fredholm.layers.torch_layers.convolution import ConvolutionLayer
from tests.refusals import refused

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),
]

CONVOLUTIONS: tuple[Callable[..., nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED: tuple[Callable[..., nn.Module], ...] = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
SHAPES = ((11,), (7, 6), (4, 5, 6))
ROUTES = {Dense(): 1e-12, NativeConvolution(): 1e-12, FFT(): 1e-10}


def ordinary() -> Iterator[tuple[int, dict]]:
    """(axes, options): every pair of values of two options, with the others at their defaults."""
    for axes in (1, 2, 3):
        yield axes, {}
        yield axes, {"kernel_size": (2, 3, 1)[:axes], "stride": (2, 1, 3)[:axes], "padding": (1, 0, 2)[:axes]}
        yield axes, {"kernel_size": 1}
        yield axes, {"stride": 2, "groups": 4, "padding": 1}
        for mode in ("zeros", "reflect", "replicate", "circular"):
            yield axes, {"padding_mode": mode, "padding": 2, "stride": 2}
            yield axes, {"padding_mode": mode, "padding": "same", "kernel_size": 2}
            yield axes, {"padding_mode": mode, "padding": (3, 1, 2)[:axes], "dilation": 2, "kernel_size": 2}
    values = {
        "kernel_size": [1, 2, 3, 4],
        "stride": [1, 2, 3],
        "padding": [0, 1, 3],
        "dilation": [1, 2],
        "groups": [1, 2, 4],
        "padding_mode": ["zeros", "reflect", "replicate", "circular"],
    }
    for first, second in itertools.combinations(values, 2):
        for a, b in itertools.product(values[first], values[second]):
            options = {"kernel_size": 3, "padding": 1} | {first: a, second: b}
            yield 1, options
            if "padding_mode" in (first, second) or "stride" in (first, second):
                yield 2, options
    yield 1, {"padding": "valid", "bias": False}
    yield 1, {"kernel_size": 11, "padding": "same"}
    yield 1, {"kernel_size": 23, "padding": 11, "padding_mode": "circular"}
    yield 1, {"kernel_size": 5, "stride": 7, "padding": 4}
    yield 2, {"kernel_size": (7, 6)}


def transposed() -> Iterator[tuple[int, dict]]:
    for axes in (1, 2, 3):
        yield axes, {}
        yield axes, {"stride": 2, "padding": 1, "output_padding": 1}
        yield axes, {"kernel_size": (2, 3, 1)[:axes], "stride": (3, 1, 2)[:axes], "padding": (1, 0, 0)[:axes]}
    for kernel_size, stride, dilation, groups in itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2), (1, 2)):
        options = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation, "groups": groups}
        yield 1, options
        yield 1, options | {"padding": 2, "output_padding": max(stride, dilation) - 1}
    yield 1, {"kernel_size": 2, "padding": 4, "bias": False}
    yield 1, {"kernel_size": 19, "stride": 2, "padding": 9}


def make(axes: int, options: dict, makers: tuple[Callable[..., nn.Module], ...] = CONVOLUTIONS) -> nn.Module:
    return makers[axes - 1](4, 8, **{"kernel_size": 3, "dtype": torch.float64} | options)


def label(case: tuple[int, dict]) -> str:
    return f"{case[0]}d " + " ".join(f"{name}={value}" for name, value in case[1].items())


def unique(cases: Iterator[tuple[int, dict]]) -> list:
    return [pytest.param(*case, id=text) for text, case in {label(case): case for case in cases}.items()]


def image(axes: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 4, *SHAPES[axes - 1], dtype=torch.float64)


def results(layer: Callable[..., Tensor], x: Tensor, parameters: Mapping[str, Tensor], **more) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    out = layer(x, **more)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gradients = torch.autograd.grad(out, [x, *parameters.values()], cotangent)
    return {"out": out.detach()} | dict(zip(["x", *parameters], gradients, strict=True))


def compare(layer: ConvolutionLayer, native: nn.Module, x: Tensor, bound: float, **more) -> None:
    parameters = {"weight": layer.kernel.weight}
    if layer.operator.bias is not None:
        parameters["bias"] = layer.operator.bias
    expected, got = results(native, x, dict(native.named_parameters()), **more), results(layer, x, parameters, **more)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].shape == value.shape
        error = (got[name] - value).abs().max() / value.abs().max().clamp_min(1e-30)
        assert error <= (bound if name == "out" else 1e-10), f"{name}: {error:.1e}"


@pytest.mark.sampled
@pytest.mark.parametrize(("axes", "options"), unique(ordinary()))
def test_every_route_equals_torchs_convolution(axes, options):
    native, x = make(axes, options), image(axes)
    layer = ConvolutionLayer.from_torch(native)
    for route, bound in ROUTES.items():
        layer.operator.evaluation = route
        compare(layer, native, x, bound)


@pytest.mark.sampled
@pytest.mark.parametrize(("axes", "options"), unique(transposed()))
def test_every_route_equals_torchs_transposed_convolution(axes, options):
    native, x = make(axes, options, TRANSPOSED), image(axes)
    layer = ConvolutionLayer.from_torch(native)
    for route, bound in ROUTES.items():
        layer.operator.evaluation = route
        compare(layer, native, x, bound)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_shifted_tap_is_noticed(axes):
    native, x = make(axes, {"padding": 1}), image(axes)
    layer = ConvolutionLayer.from_torch(native)
    with torch.no_grad():
        layer.kernel.weight.copy_(layer.kernel.weight.roll(1, -1))
    for route, bound in ROUTES.items():
        layer.operator.evaluation = route
        with pytest.raises(AssertionError, match="out: "):
            compare(layer, native, x, bound)


def test_an_output_size_is_required_where_the_smallest_is_empty():
    native = nn.ConvTranspose1d(1, 1, 1, stride=3, padding=2, dtype=torch.float64)
    x, layer = torch.randn(1, 1, 2, dtype=torch.float64), ConvolutionLayer.from_torch(native)
    for route, bound in ROUTES.items():
        layer.operator.evaluation = route
        compare(layer, native, x, bound, output_size=(1,))
        compare(layer, native, x, bound, output_size=(2,))
    with refused(ValueError, "between (0,) and (2,), and be at least 1", "got (0,)"):
        layer(x, (0,))
    with refused(ValueError, "leave no result", "enlarge the grid, or pad less"):
        layer(x)


@pytest.mark.parametrize("size", [(13,), (14,), (15,)])
def test_the_size_of_a_transposed_result_is_an_option(size):
    native = nn.ConvTranspose1d(4, 8, 3, stride=3, padding=1, dtype=torch.float64)
    x = torch.randn(2, 4, 5, dtype=torch.float64)
    layer = ConvolutionLayer.from_torch(native)
    for route, bound in ROUTES.items():
        layer.operator.evaluation = route
        compare(layer, native, x, bound, output_size=size)
    torch.testing.assert_close(layer(x, (2, 8, *size)), layer(x, size))
    output_size = [*size]
    for output_size[0] in (14, 13):
        assert layer(x, output_size).shape == (2, 8, output_size[0])


@pytest.mark.parametrize("makers", [CONVOLUTIONS, TRANSPOSED], ids=["ordinary", "transposed"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_an_image_without_a_batch_and_a_batch_without_images(axes, makers):
    native = make(axes, {"stride": 2}, makers)
    layer = ConvolutionLayer.from_torch(native)
    x = image(axes)
    torch.testing.assert_close(layer(x[0]), native(x[0]))
    assert layer(x[:0]).shape == (0, *native(x).shape[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("route", [NativeConvolution(), FFT()], ids=lambda route: route.name)
def test_low_precision(dtype, route):
    native, x = make(2, {"padding": 1}), image(2)
    layer = ConvolutionLayer.from_torch(native).to(dtype)
    layer.operator.evaluation = route
    assert layer(x.to(dtype)).dtype == dtype
    torch.testing.assert_close(
        layer(x.to(dtype)).double(), native(x), rtol=0, atol=3e-2 if dtype.itemsize == 2 else 1e-5
    )


def test_autocast_keeps_the_fft_in_float32():
    native = make(2, {"padding": 1}).float()
    layer, x = ConvolutionLayer.from_torch(native), image(2).float()
    expected = native(x)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            layer.operator.evaluation = NativeConvolution()
            assert layer(x).dtype == native(x).dtype == torch.bfloat16
            torch.testing.assert_close(layer(x), native(x), rtol=0, atol=2e-2)
            layer.operator.evaluation = FFT()
            torch.testing.assert_close(layer(x), expected.bfloat16(), rtol=8e-3, atol=1e-5)  # rounded at the end
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-5)


def test_images_of_another_size_are_taken():
    native, x = make(2, {"stride": 2}), image(2)
    layer = ConvolutionLayer.from_torch(native)
    for shape in ((7, 6), (3, 5), (7, 6), (6, 7)):
        part = x[..., : shape[0], : shape[1]] if shape != (6, 7) else x.mT.contiguous()
        torch.testing.assert_close(layer(part), native(part))


def test_the_cached_plan_follows_the_operator_and_the_weights():
    native, x = make(2, {"padding": 1}), image(2)
    layer = ConvolutionLayer.from_torch(native)
    layer(x)
    with torch.no_grad():
        layer.kernel.weight.mul_(2)
        native.get_parameter("weight").mul_(2)
    torch.testing.assert_close(layer(x), native(x))
    layer.float()
    with refused(TypeError, "float64", "float32"):
        layer(x)
    torch.testing.assert_close(layer(x.float()), native(x).float())
    other = ConvolutionLayer.from_torch(make(2, {"dilation": 2}))
    layer.operator.kernel = other.kernel
    layer.operator.bias = other.operator.bias
    torch.testing.assert_close(layer.double()(x), other(x))
    layer.operator.evaluation = Tiled()
    with refused(ValueError, "Tiled refuses this integral"):
        layer(x)


def test_hooks_on_the_operator_run():
    native, x, calls = make(2, {"padding": 1}), image(2), []
    layer = ConvolutionLayer.from_torch(native)
    layer(x)
    hook = layer.operator.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(2):
        torch.testing.assert_close(layer(x), native(x))
    hook.remove()
    layer(x)
    assert len(calls) == 2


def test_channels_last_stays_channels_last():
    native, x = make(2, {"padding": 1}), image(2).contiguous(memory_format=torch.channels_last)
    out = ConvolutionLayer.from_torch(native)(x)
    torch.testing.assert_close(out, native(x))
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("makers", "options"),
    [
        (CONVOLUTIONS, {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}),
        (CONVOLUTIONS, {"padding": "same", "kernel_size": 4, "bias": False}),
        (CONVOLUTIONS, {"padding": 2, "padding_mode": "reflect"}),
        (TRANSPOSED, {"stride": 2, "padding": 1, "output_padding": 1}),
    ],
)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_round_trip_keeps_the_layer(axes, makers, options):
    native, x = make(axes, options, makers), image(axes)
    native.get_parameter("weight").requires_grad_(False)
    native.eval()
    state = torch.random.get_rng_state()
    layer = ConvolutionLayer.from_torch(native)
    assert torch.equal(torch.random.get_rng_state(), state)
    back = layer.to_torch()
    assert type(back) is type(native)
    assert str(back) == str(native) or options["padding"] == "same"
    assert torch.equal(back(x), native(x))
    for module in (layer, back):
        assert not module.training
        assert all(p.requires_grad == name.endswith("bias") for name, p in module.named_parameters())
    with torch.no_grad():
        native.get_parameter("weight").zero_()
    assert layer.kernel.weight.any()  # a copy
    assert back.get_parameter("weight").any()


def test_a_new_layer_is_initialised_like_torchs():
    torch.manual_seed(3)
    native = nn.ConvTranspose2d(64, 32, 3, groups=2)
    layer = ConvolutionLayer(Convolution(64, 32, 3, 2, groups=2, transposed=True))
    bias = layer.operator.bias
    assert bias is not None
    for ours, name in ((layer.kernel.weight, "weight"), (bias, "bias")):
        theirs = native.get_parameter(name)
        assert ours.shape == theirs.shape
        limit = theirs.abs().max().item()
        assert 0.8 * limit < ours.abs().max().item() < 1.2 * limit
    assert ConvolutionLayer(Convolution(2, 2, 3), bias=False).operator.bias is None


def test_a_copy_of_a_used_layer_is_a_layer():
    layer = ConvolutionLayer.from_torch(make(1, {}))
    expected = layer(image(1))
    other = copy.deepcopy(layer)
    torch.testing.assert_close(other(image(1)).shape, expected.shape)
    assert other.state_dict().keys() == {"operator.bias", "operator.kernel.weight"}


class Subclass(nn.Conv1d):
    """A subclass whose forward might differ."""


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2), "got Linear"),
        (Subclass(2, 2, 1), "got Subclass"),
        (nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 2, 1)), "remove_parametrizations"),
        (nn.LazyConv1d(2, 1), "got LazyConv1d"),
        (nn.Conv1d(2, 2, 1, dtype=torch.complex64), "real"),
    ],
)
def test_modules_that_are_not_converted(module, message):
    with refused(TypeError, "ConvolutionLayer.from_torch", message):
        ConvolutionLayer.from_torch(module)


def test_bad_calls_are_refused():
    layer = ConvolutionLayer(Convolution(4, 8, 3, 2))
    with refused(ValueError, "(batch, 4, *cells) with 2 axes", "(2, 3, 7, 6)"):
        layer(torch.randn(2, 3, 7, 6))
    with refused(ValueError, "with 2 axes", "(4, 7)"):
        layer(torch.randn(4, 7))
    with refused(ValueError, "at least one cell", "(0, 6)"):
        layer(torch.randn(2, 4, 0, 6))
    with refused(ValueError, "windows of (3, 3) cells", "grid of (2, 6)"):
        layer(torch.randn(2, 4, 2, 6))
    with refused(TypeError, "expected a tensor", "list"):
        layer([1.0])
    with refused(TypeError, "float64", "float32"):
        layer(image(2))
    with refused(ValueError, "output_size belongs to a transposed"):
        layer(torch.randn(2, 4, 7, 6), (5, 4))
    with refused(TypeError, "kernels.Convolution", "MLP"):
        ConvolutionLayer(MLP(4))  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "ConvolutionLayer.to_torch", "both ends alike", "((2, 0),)"):
        ConvolutionLayer(Convolution(4, 8, 3, padding=((2, 0),))).to_torch()
    up = ConvolutionLayer(Convolution(4, 8, 3, stride=3, padding=1, transposed=True))
    for size in ((12,), (16,), (), (2, 2, 8, 13)):
        with refused(ValueError, "between (13,) and (15,)", str(size)):
            up(torch.randn(2, 4, 5), size)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("makers", "options"),
    [(CONVOLUTIONS, {"stride": 2, "padding": 1, "padding_mode": "circular"}), (TRANSPOSED, {"stride": 2})],
    ids=["ordinary", "transposed"],
)
@pytest.mark.parametrize(
    "route", [NativeConvolution(), pytest.param(FFT(), marks=pytest.mark.long)], ids=lambda route: route.name
)
def test_compiles_in_one_graph(makers, options, route):
    native, x = make(2, options, makers), image(2)
    layer = ConvolutionLayer.from_torch(native)
    layer.operator.evaluation = route
    parameters: dict[str, Tensor] = dict(zip(("bias", "weight"), layer.parameters(), strict=True))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected, got = results(native, x, dict(native.named_parameters())), results(compiled, x, parameters)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_compiles_in_one_graph_for_dynamic_sizes():
    native = make(1, {"padding": 1})
    compiled = torch.compile(ConvolutionLayer.from_torch(native), fullgraph=True, backend="eager")
    for batch, n in ((2, 11), (3, 8), (1, 13)):
        x = torch.randn(batch, 4, n, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), native(x))
