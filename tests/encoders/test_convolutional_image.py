import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.domains import Domain, Grid
from fredholm.encoders import ConvolutionalImage, Image
from tests.refusals import refused

SHAPES = [
    ((8, 12), 4, 1, 1),
    ((6, 12), 6, 3, 2),
    ((6, 10), (3, 5), 2, 1),
    ((8, 6), (4, 1), 1, 0),
    ((8, 6), (4, 3), 1, 1),
    ((5, 7), 1, 2, 2),
    ((8, 6), (4, 6), 3, 1),  # one patch
]


def encoder(
    image_size: tuple[int, int], patch_size: int | tuple[int, int], channels: int, depth: int = 1, **more: Any
) -> ConvolutionalImage:
    settings = {"image_size": image_size, "patch_size": patch_size, "channels": channels, "num_frequencies": 3}
    built = ConvolutionalImage(Image.Config(**settings | more), 10, depth=depth).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return built


def phi(norm: nn.Module, image: Tensor) -> Tensor:
    return F.gelu(norm(image.movedim(1, -1))).movedim(-1, 1)


def filters(stencil: Any) -> Tensor:
    weight, each = stencil.kernel.weight, (1, 2, 3)
    centred = weight - weight.mean(each, keepdim=True)
    return stencil.kernel.gain[:, None, None, None] * centred / centred.square().sum(each, keepdim=True).sqrt()


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


STRIDES = {
    4: [(2, 2), (2, 2)],
    6: [(2, 2), (3, 3)],
    (3, 5): [(3, 5)],
    (4, 1): [(2, 1), (2, 1)],
    (4, 3): [(2, 1), (2, 3)],
    1: [(1, 1)],
    (4, 6): [(2, 2), (2, 3)],
}


@pytest.mark.parametrize(("image_size", "patch_size", "channels", "depth"), SHAPES)
def test_is_its_formula_in_every_gradient(
    image_size: tuple[int, int], patch_size: Any, channels: int, depth: int
) -> None:
    built = encoder(image_size, patch_size, channels, depth)
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


@pytest.mark.parametrize("patch_size", [1, 2, 3, 4, 5, 6, 7, (2, 3)])
def test_the_signal_stands_where_the_patches_do(patch_size: Any) -> None:
    down, right = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    built = encoder((3 * down, 2 * right), patch_size, 1)
    domain: Domain = Grid(3 * down, 2 * right)
    for stage in built.stages:
        layers: Any = stage
        _, domain = stage(torch.zeros(1, domain.num_points, layers.entry.kernel.in_dim, dtype=torch.float64), domain)
    torch.testing.assert_close(domain.pos, Grid(3, 2).pos)


def test_channels_are_halved_towards_the_pixels() -> None:
    config = Image.Config(image_size=(24, 24), patch_size=12, channels=3)
    stages: Any = ConvolutionalImage(config, 24).stages
    assert [stage.entry.kernel.out_dim for stage in stages] == [8, 12, 24]


def test_images_of_other_sizes_where_they_are_asked_for() -> None:
    built = encoder((6, 10), (3, 5), 2, any_size=True)
    for rows, columns in ((2, 2), (1, 3), (4, 1)):
        images = torch.randn(2, 2, 3 * rows, 5 * columns, dtype=torch.float64)
        signal, domain = built(images)
        assert isinstance(domain, Grid)
        assert domain.shape == (rows, columns)
        torch.testing.assert_close(signal, formula(built, images, [(3, 5)]))
    with refused(ValueError, "encoders.ConvolutionalImage", "(batch, 2, a multiple of 3, a multiple of 5)"):
        built(torch.zeros(2, 2, 4, 10, dtype=torch.float64))
    with refused(ValueError, "encoders.ConvolutionalImage", "(batch, 2, 6, 10)", "(2, 2, 3, 5)"):
        encoder((6, 10), (3, 5), 2)(torch.zeros(2, 2, 3, 5, dtype=torch.float64))


def test_images_of_one_batch_do_not_meet() -> None:
    built, images = encoder((4, 6), 2, 1), torch.randn(3, 1, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(built(images[1:2])[0], built(images)[0][1:2])
    assert built(images[:0])[0].shape == (0, 6, 10)


@pytest.mark.parametrize("depth", [1, 8])
def test_a_signal_of_size_one_at_the_start(depth: int) -> None:
    built = ConvolutionalImage(Image.Config(image_size=(32, 32), patch_size=4), 64, depth=depth)
    u, domain = torch.randn(8, 32 * 32, 3), Grid(32, 32)
    with torch.no_grad():
        for stage in built.stages:
            u, domain = stage(u, domain)
            assert 0.5 < float(u.std()) < 1.5


def test_is_copied_whole_and_refuses_a_depth_below_0() -> None:
    built, images = encoder((4, 6), 2, 1), torch.randn(1, 1, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(copy.deepcopy(built)(images)[0], built(images)[0])
    with refused(ValueError, "encoders.ConvolutionalImage", "depth", "-1"):
        encoder((4, 6), 2, 1, depth=-1)


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


def test_grey_pictures_look_alike_to_encoders_of_other_channels() -> None:
    grey, colour = (
        ConvolutionalImage(Image.Config(image_size=(4, 4), patch_size=2, channels=count), 8) for count in (1, 3)
    )
    images = torch.randn(2, 1, 4, 4)
    for old, new in ((grey, colour), (colour, grey)):
        with torch.no_grad():
            for parameter in old.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        same = {name: value for name, value in old.state_dict().items() if new.state_dict()[name].shape == value.shape}
        new.load_state_dict(same | new.resampled(old), strict=False)
        expected, _ = old(images.expand(-1, old.config.channels, -1, -1))
        found, _ = new(images.expand(-1, new.config.channels, -1, -1))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert grey.resampled(grey) == {}
