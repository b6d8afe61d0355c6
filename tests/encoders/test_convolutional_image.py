import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.domains import Grid
from fredholm.encoders import ConvolutionalImage, Image
from fredholm.encoders.convolutional_image import SignalNorm
from tests.encoders.stencil_stages import SHAPES, STRIDES, encoder, filters


def phi(norm: SignalNorm, image: Tensor) -> Tensor:
    return F.gelu(F.group_norm(image, 1, norm.weight, norm.bias, 1e-5))


def formula(built: ConvolutionalImage, images: Tensor, strides: list[tuple[int, int]]) -> Tensor:
    """The encoder by torch's convolutions; windows extend beyond their patch by half of it, and at least by a cell."""
    u = images
    for stage, stride in zip(built.stages, strides, strict=True):
        layers: Any = stage
        u = u if layers.norm is None else phi(layers.norm, u)
        beyond = [max(1, r // 2) for r in stride]
        assert layers.entry.kernel.weight.shape[2:] == tuple(r + 2 * b for r, b in zip(stride, beyond, strict=True))
        u = F.conv2d(u, filters(layers.entry), layers.entry.bias, stride, beyond)
        for norm, stencil in zip(layers.norms, layers.stencils, strict=True):
            u = u + F.conv2d(phi(norm, u), filters(stencil), stencil.bias, padding=1)
    phases = 2 * math.pi * Grid(*u.shape[2:]).pos @ built.frequencies.T
    return u.flatten(2).transpose(1, 2) + torch.cat([phases.sin(), phases.cos()], -1) @ built.position_weight.T


@pytest.mark.parametrize(("image_size", "patch_size", "channels", "depth"), SHAPES)
def test_equals_its_formula_in_every_gradient(
    image_size: tuple[int, int], patch_size: Any, channels: int, depth: int
) -> None:
    built = encoder(ConvolutionalImage, image_size, patch_size, channels, depth)
    images = torch.randn(3, channels, *image_size, dtype=torch.float64, requires_grad=True)
    signal, domain = built(images)
    expected = formula(built, images, STRIDES[patch_size])
    torch.testing.assert_close(signal, expected)
    rows, columns = (n // p for n, p in zip(image_size, built.config.patch, strict=True))
    assert isinstance(domain, Grid)
    assert (domain.shape, built.grid_shape) == ((rows, columns), (rows, columns))
    inputs = [images, *built.parameters()]
    direction = torch.randn_like(signal)
    gradients = (torch.autograd.grad(out, inputs, direction, allow_unused=True) for out in (signal, expected))
    for name, ours, theirs in zip(["images", *dict(built.named_parameters())], *gradients, strict=True):
        assert ours is not None, name
        torch.testing.assert_close(ours, theirs)


def test_images_of_other_sizes_if_enabled() -> None:
    built = encoder(ConvolutionalImage, (6, 10), (3, 5), 2, any_size=True)
    for rows, columns in ((2, 2), (1, 3), (4, 1)):
        images = torch.randn(2, 2, 3 * rows, 5 * columns, dtype=torch.float64)
        signal, domain = built(images)
        assert isinstance(domain, Grid)
        assert domain.shape == (rows, columns)
        torch.testing.assert_close(signal, formula(built, images, [(3, 5)]))


@pytest.mark.parametrize("depth", [1, 8])
def test_the_initial_signal_has_rms_one(depth: int) -> None:
    built = ConvolutionalImage(Image.Config(image_size=(32, 32), patch_size=4), 64, depth=depth)
    u, domain = torch.randn(8, 32 * 32, 3), Grid(32, 32)
    with torch.no_grad():
        for stage in built.stages:
            u, domain = stage(u, domain)
            assert 0.5 < float(u.std()) < 1.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_close_to_float32(dtype: torch.dtype) -> None:
    built, images = ConvolutionalImage(Image.Config(image_size=(8, 8), patch_size=4), 16), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected, _ = built(images)
        with torch.autocast("cpu", dtype):
            found, _ = built(images)
    assert (found.float() - expected).abs().max() < 0.1 * expected.abs().max()


def test_norms_compute_in_float32_at_least() -> None:
    norm, short = SignalNorm(3), (10 + torch.randn(2, 50, 3)).bfloat16()
    torch.nn.init.normal_(norm.weight)
    assert torch.equal(norm(short), norm(short.float()).bfloat16())


def test_a_constant_image_is_finite() -> None:
    built = ConvolutionalImage(Image.Config(image_size=(8, 8), patch_size=8), 16)
    images = torch.full((1, 3, 8, 8), 0.5, requires_grad=True)
    signal, _ = built(images)
    (gradient,) = torch.autograd.grad(signal.square().sum(), images)
    assert signal.isfinite().all()
    assert gradient.isfinite().all()


def test_noise_in_empty_regions_stays_small() -> None:
    torch.manual_seed(0)
    images = 0.05 * torch.randn(1, 1, 32, 32)
    images[..., :8, :8] += torch.randn(8, 8)
    built = ConvolutionalImage(Image.Config(image_size=(32, 32), patch_size=8, channels=1, num_frequencies=0), 16)
    signal, _ = built(images)
    sizes = signal.square().mean(2).sqrt().unflatten(1, (4, 4))[0]
    assert sizes[2:, 2:].mean() < 0.4 * sizes[0, 0]


def test_golden_parameter_shapes() -> None:
    built = ConvolutionalImage(Image.Config(image_size=(8, 8), patch_size=4, num_frequencies=4), 32)
    shapes = {name: tuple(p.shape) for name, p in built.named_parameters()}
    assert {name: shape for name, shape in shapes.items() if len(shape) > 1} == {
        "stages.0.entry.kernel.weight": (16, 3, 4, 4),
        "stages.0.stencils.0.kernel.weight": (16, 16, 3, 3),
        "stages.1.entry.kernel.weight": (32, 16, 4, 4),
        "stages.1.stencils.0.kernel.weight": (32, 32, 3, 3),
        "position_weight": (32, 8),
    }
