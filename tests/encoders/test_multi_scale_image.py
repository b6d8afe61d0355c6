import dataclasses
from typing import Any

import pytest
import torch

from fredholm.domains import Grid, Points, Union
from fredholm.encoders import Image, MultiScaleImage
from fredholm.models import ITNet, LowRankConfig, MLPConfig
from tests.refusals import refused

SIZES: dict[str, Any] = {"channels": 2, "num_frequencies": 3, "sigma": 1.0}


def encoder(
    patch_sizes: tuple[int, ...] = (2, 4), image_size: tuple[int, int] = (8, 12), **more: Any
) -> MultiScaleImage:
    torch.manual_seed(0)
    config = MultiScaleImage.Config(image_size=image_size, patch_sizes=patch_sizes, **SIZES | more)
    built = MultiScaleImage(config, 5).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return built


def images(batch: int = 3, height: int = 8, width: int = 12) -> torch.Tensor:
    return torch.randn(batch, 2, height, width, dtype=torch.float64)


def test_patches_of_8_and_16_are_980_points_of_the_papers_image() -> None:
    built = MultiScaleImage(MultiScaleImage.Config(), 6)
    signal, domain = built(torch.rand(1, 3, 224, 224))
    assert signal.shape == (1, 980, 6)
    assert domain.num_points == 784 + 196 == 980
    assert built.grid_shapes == ((28, 28), (14, 14))
    torch.testing.assert_close(domain.weights, torch.full((980,), 1 / 980, dtype=domain.weights.dtype))
    assert [(block.start, block.shape) for block in domain.grid_blocks] == [(0, (28, 28)), (784, (14, 14))]


@pytest.mark.parametrize("patch_sizes", [(2, 4), (1, 2, 4)])
def test_equals_one_image_encoder_per_patch_size(patch_sizes: tuple[int, ...]) -> None:
    built, x = encoder(patch_sizes), images()
    signal, domain = built(x)
    parts = [scale(x) for scale in (built.finest, *built.coarser)]
    torch.testing.assert_close(signal, torch.cat([u for u, _ in parts], dim=1))
    assert torch.equal(domain.pos, torch.cat([grid.pos for _, grid in parts]))
    for side, shape, (u, grid) in zip(patch_sizes, built.grid_shapes, parts, strict=True):
        alone = Image(Image.Config(image_size=(8, 12), patch_size=side, **SIZES), 5)
        assert shape == alone.grid_shape
        assert isinstance(grid, Grid)
        assert grid.shape == shape
        assert u.shape == (3, shape[0] * shape[1], 5)


def test_scales_are_distinguished_by_their_weights() -> None:
    built = encoder()
    blank = torch.zeros(1, 2, 8, 12, dtype=torch.float64)
    signal, domain = built(blank)
    fine = built.finest.at(blank, Points(domain.pos[24:]))  # around the centres of the coarse patches
    assert (signal[:, 24:] - fine).abs().min() > 1e-3
    x = images().requires_grad_()
    built(x)[0].square().sum().backward()
    assert [name for name, p in built.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(("patch_sizes", "counts"), [((2, 4), (24, 6)), ((1, 2, 4), (96, 24, 6))])
def test_points_or_scales_have_equal_mass(patch_sizes: tuple[int, ...], counts: tuple[int, ...]) -> None:
    for balanced in (False, True):
        weights = encoder(patch_sizes, balanced=balanced)(images())[1].weights
        masses = [float(part.sum()) for part in weights.split(list(counts))]
        expected = [1 / len(counts) if balanced else count / sum(counts) for count in counts]
        assert masses == pytest.approx(expected)
        assert all(bool((part == part[0]).all()) for part in weights.split(list(counts)))


def test_at_other_positions_it_equals_its_finest_scale() -> None:
    built, x = encoder(), images()
    signal, domain = built(x)
    assert isinstance(domain, Union)
    torch.testing.assert_close(built.at(x, Grid(4, 6)), signal[:, :24], rtol=1e-10, atol=1e-10)
    places = Points(torch.rand(7, 2, dtype=torch.float64))
    torch.testing.assert_close(built.at(x, places), built.finest.at(x, places))
    with refused(ValueError, "encoders.MultiScaleImage: places must have 2 coordinates"):
        built.at(x, Grid(3))


def test_images_of_other_sizes_if_enabled() -> None:
    built = encoder(any_size=True)
    assert built(images(height=4, width=16))[0].shape == (3, 16 + 4, 5)
    with refused(ValueError, "a multiple of 4", "(3, 2, 6, 12)"):
        built(images(height=6))
    with refused(ValueError, "(batch, 2, 8, 12)", "(3, 2, 4, 16)"):
        encoder()(images(height=4, width=16))


@pytest.mark.parametrize("kernel", [MLPConfig(width=5, num_frequencies=3, sigma=1.0), LowRankConfig(rank=2, width=4)])
def test_a_model_at_the_finest_grid_returns_its_outputs_there(kernel: Any) -> None:
    torch.manual_seed(0)
    config = ITNet.Config(embed_dim=8, depth=3, num_heads=2, kernel=kernel, pool="none")
    scales = MultiScaleImage.Config(image_size=(8, 12), patch_sizes=(2, 4), **SIZES)
    net, x = ITNet(MultiScaleImage(scales, 8), 3, config).double().eval(), images()
    outputs = net(x)
    assert outputs.shape == (3, 30, 3)
    torch.testing.assert_close(net(x, at=Grid(4, 6)), outputs[:, :24], rtol=1e-9, atol=1e-11)
    assert (
        net(x, at=Grid(2, 3)) - outputs[:, 24:]
    ).abs().max() > 1e-4  # these are outputs of the finest scale, at other positions
    x[:, :, :4, :4] += 1  # the first coarse patch affects all outputs
    assert (net(x) - outputs).abs().amin() > 0


def test_golden_parameter_shapes() -> None:
    built = MultiScaleImage(MultiScaleImage.Config(), 6)
    assert {name: tuple(p.shape) for name, p in built.named_parameters()} == {
        "finest.patch_embedding.weight": (6, 192),
        "finest.patch_embedding.bias": (6,),
        "finest.projection.weight": (6, 134),
        "finest.projection.bias": (6,),
        "coarser.0.patch_embedding.weight": (6, 768),
        "coarser.0.patch_embedding.bias": (6,),
        "coarser.0.projection.weight": (6, 134),
        "coarser.0.projection.bias": (6,),
    }
    assert not torch.equal(built.finest.frequencies, built.coarser.get_buffer("0.frequencies"))


@pytest.mark.parametrize("patch_sizes", [(), (8,), (8, 8), (16, 8)])
def test_bad_patch_sizes_are_refused(patch_sizes: tuple[int, ...]) -> None:
    with refused(ValueError, "patch_sizes must be at least two", f"got {patch_sizes}"):
        MultiScaleImage.Config(patch_sizes=patch_sizes)


def test_inconsistent_settings_are_refused() -> None:
    with refused(ValueError, "patches of 16 x 16 do not divide images of 24 x 24"):
        MultiScaleImage.Config(image_size=(24, 24))
    with refused(ValueError, "sigma=2.0 has no effect with num_frequencies=0"):
        MultiScaleImage.Config(num_frequencies=0, sigma=2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        MultiScaleImage.Config().channels = 1  # pyright: ignore[reportAttributeAccessIssue]
