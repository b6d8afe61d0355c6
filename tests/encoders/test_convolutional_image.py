import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.domains import Grid
from fredholm.encoders import ConvolutionalImage, Image
from tests.encoders.stencil_stages import SHAPES, STRIDES, encoder, filters


def phi(norm: nn.Module, image: Tensor) -> Tensor:
    return F.gelu(norm(image.movedim(1, -1))).movedim(-1, 1)


def formula(built: ConvolutionalImage, images: Tensor, strides: list[tuple[int, int]]) -> Tensor:
    """By torch's convolutions; windows reach beyond their patch by half of it, and by a cell at least."""
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
def test_is_its_formula_in_every_gradient(
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


def test_images_of_other_sizes_where_they_are_asked_for() -> None:
    built = encoder(ConvolutionalImage, (6, 10), (3, 5), 2, any_size=True)
    for rows, columns in ((2, 2), (1, 3), (4, 1)):
        images = torch.randn(2, 2, 3 * rows, 5 * columns, dtype=torch.float64)
        signal, domain = built(images)
        assert isinstance(domain, Grid)
        assert domain.shape == (rows, columns)
        torch.testing.assert_close(signal, formula(built, images, [(3, 5)]))


@pytest.mark.parametrize("depth", [1, 8])
def test_a_signal_of_size_one_at_the_start(depth: int) -> None:
    built = ConvolutionalImage(Image.Config(image_size=(32, 32), patch_size=4), 64, depth=depth)
    u, domain = torch.randn(8, 32 * 32, 3), Grid(32, 32)
    with torch.no_grad():
        for stage in built.stages:
            u, domain = stage(u, domain)
            assert 0.5 < float(u.std()) < 1.5


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
