import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.domains import Grid, Points, Sequence
from fredholm.encoders import Image, ImagePyramid
from fredholm.encoders.pyramid import PointsNorm
from tests.encoders.stencil_stages import SHAPES, STRIDES, encoder, filters
from tests.refusals import refused


def phi(norm: Any, image: Tensor) -> Tensor:
    return F.gelu(F.instance_norm(image, weight=norm.weight, bias=norm.bias, eps=norm.epsilon))


def mapped(linear: Any, image: Tensor) -> Tensor:
    return F.conv2d(image, linear.weight[:, :, None, None])


def formula(built: Any, images: Tensor, strides: list[tuple[int, int]], pos: Tensor) -> Tensor:
    """The encoder by torch's convolutions, instance norms and grid samples, `(B, N, C)` at positions `(N, 2)`."""
    u, levels = images, list[Tensor]()
    strides = [stride for stride in strides if stride != (1, 1)]
    for stage, stride in zip(built.pyramid.stages, [(1, 1), *strides], strict=True):
        u = u if stage.norm is None else phi(stage.norm, u)
        u = F.conv2d(u, filters(stage.entry), None, stride, [max(1, r // 2) for r in stride])
        for norm, stencil in zip(stage.norms, stage.stencils, strict=True):
            u = u + F.conv2d(phi(norm, u), filters(stencil), padding=1)
        levels.append(u)
    for finer in reversed(range(len(strides))):
        joint = built.pyramid.joints[finer]
        up = F.interpolate(mapped(joint.map, levels[finer + 1]), levels[finer].shape[2:], mode="bilinear")
        w = levels[finer] + up
        levels[finer] = w + F.conv2d(phi(joint.norm, w), filters(joint.stencil), padding=1)
    phases = 2 * math.pi * pos @ built.frequencies.T
    signal = torch.cat([phases.sin(), phases.cos()], -1) @ built.position_weight.T + built.pyramid.bias
    places = (2 * pos - 1).flip(-1).expand(len(images), 1, -1, -1)
    for level, norm, linear, colours in zip(
        levels, built.pyramid.norms, built.pyramid.maps, built.pyramid.means, strict=True
    ):
        for image, each in (
            (phi(norm, level), linear),
            (F.adaptive_avg_pool2d(images, (level.shape[2], level.shape[3])), colours),
        ):
            read = F.grid_sample(image, places, padding_mode="border", align_corners=False)
            signal = signal + read[:, :, 0].mT @ each.weight.T
    return signal


# torch refuses an instance norm of a single cell
@pytest.mark.parametrize(("image_size", "patch_size", "channels", "depth"), SHAPES[:-1])
def test_equals_its_formula_in_every_gradient(
    image_size: tuple[int, int], patch_size: Any, channels: int, depth: int
) -> None:
    built = encoder(ImagePyramid, image_size, patch_size, channels, depth)
    images = torch.randn(3, channels, *image_size, dtype=torch.float64, requires_grad=True)
    anywhere = torch.rand(11, 2, dtype=torch.float64)
    signal, domain, function = built.field(images)
    rows, columns = (n // p for n, p in zip(image_size, built.config.patch, strict=True))
    assert isinstance(domain, Grid)
    assert (domain.shape, built.grid_shape) == ((rows, columns), (rows, columns))
    expected = [formula(built, images, STRIDES[patch_size], pos) for pos in (domain.pos, anywhere)]
    ours = [signal, function(Points(anywhere))]
    inputs = [images, *built.parameters()]
    directions = [torch.randn_like(each) for each in ours]
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other)
    gradients = (torch.autograd.grad(outs, inputs, directions) for outs in (ours, expected))
    for name, one, other in zip(["images", *dict(built.named_parameters())], *gradients, strict=True):
        torch.testing.assert_close(one, other, msg=name)


@pytest.mark.parametrize(("image_size", "patch_size", "channels", "depth"), SHAPES)
def test_the_signal_is_one_function_of_position(
    image_size: tuple[int, int], patch_size: Any, channels: int, depth: int
) -> None:
    built, images = (
        encoder(ImagePyramid, image_size, patch_size, channels, depth),
        torch.randn(2, channels, *image_size).double(),
    )
    signal, domain = built(images)
    torch.testing.assert_close(built.at(images, Points(domain.pos)), signal)
    positions = torch.rand(2, 5, 2, dtype=torch.float64)  # positions per image
    found = built.at(images, Points(positions))
    for one, image, pos in zip(found, images, positions, strict=True):
        torch.testing.assert_close(one, built.at(image[None], Points(pos))[0])


def test_norms_ignore_shift_and_scale_of_a_channel_and_images_are_independent() -> None:
    built, images = encoder(ImagePyramid, (4, 6), 2, 1), torch.randn(3, 1, 4, 6, dtype=torch.float64)
    at = Points(torch.rand(4, 2, dtype=torch.float64))
    torch.testing.assert_close(built.at(images[1:2], at), built.at(images, at)[1:2])
    norm = built.pyramid.norms[0]
    u = torch.randn(2, 7, 16, dtype=torch.float64)
    torch.testing.assert_close(norm(3.0 * u + 5.0), norm(u), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("patch_size", "widths"),
    [
        (2, [40, 80]),
        (4, [20, 40, 80]),
        (8, [20, 40, 80, 160]),
        (16, [20, 40, 80, 160, 320]),
        (32, [16, 20, 40, 80, 160, 320]),
    ],
)
def test_stages_double_their_channels(patch_size: int, widths: list[int]) -> None:
    built = ImagePyramid(Image.Config(image_size=(32, 32), patch_size=patch_size), 80)
    assert [norm.get_parameter("weight").numel() for norm in built.pyramid.norms] == widths
    u, _ = built(torch.randn(1, 3, 32, 32))
    assert u.shape[2] == 80


def test_images_of_other_sizes_if_enabled() -> None:
    built = encoder(ImagePyramid, (6, 10), (3, 5), 2, any_size=True)
    for rows, columns in ((2, 2), (1, 3), (4, 1)):
        images = torch.randn(2, 2, 3 * rows, 5 * columns, dtype=torch.float64)
        signal, domain = built(images)
        assert isinstance(domain, Grid)
        assert domain.shape == (rows, columns)
        torch.testing.assert_close(signal, formula(built, images, [(3, 5)], domain.pos))
    with refused(ValueError, "encoders.ImagePyramid", "places must have 2 coordinates"):
        built.at(torch.zeros(2, 2, 6, 10, dtype=torch.float64), Sequence(3))


@pytest.mark.parametrize("depth", [1, 4])
def test_the_initial_signal_has_a_moderate_rms(depth: int) -> None:
    built = ImagePyramid(Image.Config(image_size=(32, 32), patch_size=8), 64, depth=depth)
    with torch.no_grad():
        u, _ = built(torch.randn(4, 3, 32, 32))
    assert 0.3 < float(u.std()) < 3.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_close_to_float32(dtype: torch.dtype) -> None:
    built, images = ImagePyramid(Image.Config(image_size=(8, 8), patch_size=4), 16), torch.randn(2, 3, 8, 8)
    at = Points(torch.rand(5, 2))
    with torch.no_grad():
        expected = built.at(images, at)
        with torch.autocast("cpu", dtype):
            found = built.at(images, at)
    assert (found.float() - expected).abs().max() < 0.1 * expected.abs().max()


def test_norms_compute_in_float32_at_least() -> None:
    norm, short = PointsNorm(3), (10 + torch.randn(2, 50, 3)).bfloat16()
    assert torch.equal(norm(short), norm(short.float()).bfloat16())


def test_a_constant_image_is_finite() -> None:
    built = ImagePyramid(Image.Config(image_size=(8, 8), patch_size=8), 16)
    images = torch.full((1, 3, 8, 8), 0.5, requires_grad=True)
    signal, _ = built(images)
    (gradient,) = torch.autograd.grad(signal.square().sum(), images)
    assert signal.isfinite().all()
    assert gradient.isfinite().all()
