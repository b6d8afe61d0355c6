import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm.domains import Grid, Points
from fredholm.encoders.image import Image, windows
from tests.refusals import refused

SHAPES = [
    ((8, 8), 4, 1),
    ((6, 10), 2, 3),
    ((6, 10), (3, 5), 2),
    ((4, 6), (4, 1), 1),
    ((5, 7), 1, 2),
    ((5, 7), (5, 7), 3),  # one patch
]


def encoder(image_size: tuple[int, int], patch_size: int | tuple[int, int], channels: int, **more: Any) -> Image:
    config = Image.Config(
        image_size=image_size, patch_size=patch_size, channels=channels, **{"num_frequencies": 3, **more}
    )
    built = Image(config, 5).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return built


def formula(built: Image, images: Tensor, grid: Grid) -> Tensor:
    """W [E patch ; sin 2πBx ; cos 2πBx] + b, the patches by a strided convolution."""
    patch = built.config.patch
    kernel = built.patch_embedding.weight.view(5, built.config.channels, *patch)
    embedded = torch.nn.functional.conv2d(images, kernel, built.patch_embedding.bias, stride=patch)
    phases = 2 * math.pi * grid.pos @ built.frequencies.T
    position = torch.cat([phases.sin(), phases.cos()], -1).expand(len(images), -1, -1)
    signal = torch.cat([embedded.flatten(2).transpose(1, 2), position], -1)
    return signal @ built.projection.weight.T + built.projection.bias


@pytest.mark.parametrize(("image_size", "patch_size", "channels"), SHAPES)
def test_equals_its_formula(image_size: tuple[int, int], patch_size: Any, channels: int) -> None:
    built = encoder(image_size, patch_size, channels)
    images = torch.randn(3, channels, *image_size, dtype=torch.float64)
    signal, domain = built(images)
    rows, columns = (n // p for n, p in zip(image_size, built.config.patch, strict=True))
    assert isinstance(domain, Grid)
    assert (domain.shape, domain.is_periodic, domain.mask) == ((rows, columns), False, None)
    assert built.grid_shape == (rows, columns)
    assert signal.shape == (3, rows * columns, 5)
    torch.testing.assert_close(signal, formula(built, images, Grid(rows, columns)))


def test_images_of_other_sizes_if_enabled() -> None:
    built = encoder((6, 10), (3, 5), 2, any_size=True)
    for rows, columns in ((2, 2), (1, 3), (4, 1)):
        images = torch.randn(2, 2, 3 * rows, 5 * columns, dtype=torch.float64)
        signal, domain = built(images)
        assert isinstance(domain, Grid)
        assert domain.shape == (rows, columns)
        torch.testing.assert_close(signal, formula(built, images, Grid(rows, columns)))
    for shape in ((2, 2, 4, 10), (2, 2, 3, 9), (2, 2, 0, 5), (2, 1, 3, 5)):
        with refused(ValueError, "(batch, 2, a multiple of 3, a multiple of 5)", str(shape)):
            built(torch.zeros(shape, dtype=torch.float64))
    with refused(ValueError, "(batch, 2, 6, 10)", "(2, 2, 3, 5)"):
        encoder((6, 10), (3, 5), 2)(torch.zeros(2, 2, 3, 5, dtype=torch.float64))


def test_a_pixel_affects_only_its_patch() -> None:
    built = encoder((6, 10), (3, 2), 2)
    blank = torch.zeros(1, 2, 6, 10, dtype=torch.float64)
    for row, column in ((0, 0), (0, 9), (2, 3), (3, 4), (5, 9)):
        lit = blank.clone()
        lit[0, 1, row, column] = 1.0
        signal, domain = built(lit)
        changed = (signal != built(blank)[0]).any(-1)[0].nonzero().flatten().tolist()
        assert changed == [(row // 3) * 5 + column // 2]
        # the patch's position is that of its pixels, with the image as the unit box
        centre = torch.tensor([(row // 3 + 0.5) * 3 / 6, (column // 2 + 0.5) * 2 / 10], dtype=torch.float64)
        torch.testing.assert_close(domain.pos[changed[0]], centre)


def test_a_patch_holds_its_pixels_channel_by_channel_row_by_row() -> None:
    built = encoder((4, 6), (2, 3), 2, num_frequencies=0)
    images = torch.randn(2, 2, 4, 6, dtype=torch.float64)
    patches = torch.nn.functional.unfold(images, (2, 3), stride=(2, 3)).transpose(1, 2)
    torch.testing.assert_close(built(images)[0], built.projection(built.patch_embedding(patches)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_precisions(dtype: torch.dtype) -> None:
    built, images = encoder((4, 4), 2, 1).to(dtype), torch.rand(2, 1, 4, 4, dtype=dtype)
    signal, _ = built(images)
    assert signal.dtype == dtype


def test_phases_are_not_rounded_under_autocast() -> None:
    built, images = encoder((4, 4), 2, 1, sigma=100.0).float(), torch.zeros(1, 1, 4, 4)
    with torch.no_grad():
        built.projection.weight.copy_(torch.eye(5, 11).roll(5, 1))  # reads only the position features
        built.projection.bias.zero_()
        exact, _ = built(images)
        with torch.autocast("cpu", torch.bfloat16):
            rounded, _ = built(images)
    assert rounded.dtype == torch.bfloat16
    assert (rounded - exact).abs().max() < 1e-2  # the features are at most 1


def test_images_of_one_batch_are_independent() -> None:
    built, images = encoder((4, 6), 2, 1), torch.randn(3, 1, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(built(images[1:2])[0], built(images)[0][1:2])
    assert built(images[:0])[0].shape == (0, 6, 5)


def test_gradients_reach_every_parameter_and_the_pixels() -> None:
    built, images = encoder((4, 6), 2, 2), torch.randn(2, 2, 4, 6, dtype=torch.float64).requires_grad_()
    built(images)[0].square().sum().backward()
    assert [name for name, p in built.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert images.grad is not None
    assert images.grad.all()


def test_golden_parameter_shapes() -> None:
    built = Image(Image.Config(), 384)
    assert {name: tuple(p.shape) for name, p in built.named_parameters()} == {
        "patch_embedding.weight": (384, 768),
        "patch_embedding.bias": (384,),
        "projection.weight": (384, 512),
        "projection.bias": (384,),
    }
    assert {name: tuple(b.shape) for name, b in built.named_buffers()} == {"frequencies": (64, 2)}
    assert (built.embed_dim, built.pos_dim, built.grid_shape) == (384, 2, (14, 14))
    assert built.frequencies.std().item() == pytest.approx(10, rel=0.2)


@pytest.mark.parametrize(("image_size", "patch_size", "channels"), [((224, 224), 16, 3), ((28, 28), 4, 1)])
def test_initial_embeddings_have_the_same_variance_for_any_patch_size(
    image_size: Any, patch_size: int, channels: int
) -> None:
    config = Image.Config(image_size=image_size, patch_size=patch_size, channels=channels)
    weight = Image(config, 384).patch_embedding.weight
    values = patch_size * patch_size * channels
    deviation = 0.02 * math.sqrt(768 / values)  # the paper's 0.02 for 768 values
    assert weight.abs().max().item() <= 2 * deviation * (1 + 1e-6)
    # a normal truncated at two deviations has 0.88 of its deviation
    assert weight.std().item() == pytest.approx(0.88 * deviation, rel=0.03)


@pytest.mark.parametrize(
    ("image_size", "patch_size", "message"),
    [
        ((28, 28), 5, ["patches of 5 x 5", "28 x 28", "heights that do: [1, 2, 4, 7, 14, 28]"]),
        ((6, 10), (3, 4), ["patches of 3 x 4", "6 x 10", "widths that do: [1, 2, 5, 10]"]),
        ((6, 10), 3, ["patches of 3 x 3", "heights that do: [1, 2, 3, 6]", "widths that do: [1, 2, 5, 10]"]),
        ((4, 4), 8, ["patches of 8 x 8", "4 x 4"]),
        ((4, 4), 0, ["patches of 0 x 0"]),
        ((4, 4), (2, -2), ["patches of 2 x -2"]),
    ],
)
def test_patches_that_do_not_divide_the_image_are_refused(image_size: Any, patch_size: Any, message: list[str]) -> None:
    with refused(ValueError, "encoders.Image", "do not divide", *message):
        Image.Config(image_size=image_size, patch_size=patch_size)


def test_bad_sizes_are_refused() -> None:
    with refused(ValueError, "image height must be at least 1 pixel", "got 0"):
        Image.Config(image_size=(0, 4), patch_size=1)
    with refused(ValueError, "image width must be at least 1 pixel", "got -4"):
        Image.Config(image_size=(4, -4), patch_size=1)
    with refused(ValueError, "channels must be at least 1; got 0"):
        Image.Config(channels=0)
    with refused(ValueError, "num_frequencies must be at least 0; got -1"):
        Image.Config(num_frequencies=-1)
    with pytest.raises(TypeError, match="positional"):
        Image.Config((4, 4))  # pyright: ignore[reportCallIssue]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Image.Config().channels = 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("shape", [(2, 4, 6), (4, 6), (1, 2, 2, 4, 6), (3, 1, 4, 6), (3, 2, 6, 4), (3, 2, 4, 7)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with refused(ValueError, "encoders.Image", "(batch, 2, 4, 6)", f"got {shape}"):
        encoder((4, 6), 2, 2)(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_images_that_are_not_float_are_refused(dtype: torch.dtype) -> None:
    with refused(ValueError, "expected float images", str(dtype)):
        encoder((4, 6), 2, 2)(torch.zeros(3, 2, 4, 6, dtype=dtype))


@pytest.mark.parametrize(("image_size", "patch_size", "channels"), SHAPES)
def test_equals_its_grid_values_at_grid_points(image_size: tuple[int, int], patch_size: Any, channels: int) -> None:
    built = encoder(image_size, patch_size, channels)
    images = torch.randn(3, channels, *image_size, dtype=torch.float64)
    signal, grid = built(images)
    torch.testing.assert_close(built.at(images, grid), signal, rtol=1e-10, atol=1e-10)


def test_windows_cover_the_pixels_around_their_centres() -> None:
    built = encoder((6, 12), (3, 4), 2)
    images = torch.randn(2, 2, 6, 12, dtype=torch.float64)
    # pixels 2 to 4 and 3 to 6, and the same window half a pixel down and a quarter to the right
    centres = torch.tensor([[3.5 / 6, 5 / 12], [4 / 6, 5.25 / 12]], dtype=torch.float64)
    window = images[..., 2:5, 3:7]
    moved = 0.75 * images[..., 2:6, 3:7] + 0.25 * images[..., 2:6, 4:8]
    moved = (moved[..., :3, :] + moved[..., 1:, :]) / 2
    embedded = torch.stack([window, moved], 1).flatten(2) @ built.patch_embedding.weight.T + built.patch_embedding.bias
    phases = 2 * math.pi * centres @ built.frequencies.T
    position = torch.cat([phases.sin(), phases.cos()], -1).expand(2, -1, -1)
    expected = torch.cat([embedded, position], -1) @ built.projection.weight.T + built.projection.bias
    torch.testing.assert_close(built.at(images, Points(centres)), expected)


def test_border_pixels_extend_beyond_the_image() -> None:
    images = torch.arange(12.0, dtype=torch.float64).view(1, 1, 3, 4)
    outside = torch.tensor([[-1.0, -1.0], [0.5, 9.0]], dtype=torch.float64)
    assert windows(images, outside, (1, 1)).flatten().tolist() == [0.0, 7.0]


def test_positions_with_other_coordinates_are_refused() -> None:
    built = encoder((4, 4), 2, 1)
    with refused(ValueError, "places must have 2 coordinates"):
        built.at(torch.randn(1, 1, 4, 4, dtype=torch.float64), Grid(3))


def embedded(encoder: Image, images: Tensor) -> Tensor:
    """The patch embedding of images, without positions."""
    return nn.functional.conv2d(
        images,
        encoder.patch_embedding.weight.unflatten(1, (encoder.config.channels, *encoder.config.patch)),
        stride=encoder.config.patch,
    )


@pytest.mark.parametrize(("patch", "larger"), [((2, 2), (4, 4)), ((3, 2), (5, 4))])
def test_an_embedding_resized_to_larger_patches_agrees_on_scaled_patches(
    patch: tuple[int, int], larger: tuple[int, int]
) -> None:
    old, new = (Image(Image.Config(image_size=size, patch_size=size, num_frequencies=4), 5) for size in (patch, larger))
    new.load_state_dict(old.resampled(old) | new.resampled(old), strict=False)
    images = torch.randn(6, 3, *patch)
    scaled = nn.functional.interpolate(images, larger, mode="bilinear", antialias=True)
    torch.testing.assert_close(embedded(new, scaled), embedded(old, images))


def test_an_embedding_resized_to_smaller_patches_is_the_least_squares_solution() -> None:
    old, new = (Image(Image.Config(image_size=(size, size), patch_size=size, channels=1), 3) for size in (6, 4))
    found = new.resampled(old)["patch_embedding.weight"]
    images = torch.eye(36).view(36, 1, 6, 6)
    scaled = nn.functional.interpolate(images, (4, 4), mode="bilinear", antialias=True).flatten(1)
    target = old.patch_embedding.weight.T  # <x, E> for every pixel x
    torch.testing.assert_close(found.T, torch.linalg.lstsq(scaled, target).solution, rtol=1e-4, atol=1e-5)


def test_an_embedding_converted_to_other_channels_agrees_on_grey_images() -> None:
    grey, colour = (Image(Image.Config(image_size=(4, 4), patch_size=2, channels=count), 5) for count in (1, 3))
    images = torch.randn(2, 1, 4, 4)
    for old, new in ((grey, colour), (colour, grey)):
        before = embedded(old, images.expand(-1, old.config.channels, -1, -1))
        new.load_state_dict(new.resampled(old), strict=False)
        torch.testing.assert_close(embedded(new, images.expand(-1, new.config.channels, -1, -1)), before)
    assert grey.resampled(grey) == {}


def test_errors_about_images_name_the_remedy() -> None:
    image = Image(Image.Config(image_size=(4, 6), patch_size=2, channels=1), 8)
    with refused(ValueError, "got (2, 1, 4, 6), torch.uint8; bytes become floats from 0 to 1 by images / 255"):
        image(torch.zeros(2, 1, 4, 6, dtype=torch.uint8))
    with refused(ValueError, "got (2, 1, 8, 6), torch.float32; any_size=True takes other sizes too"):
        image(torch.zeros(2, 1, 8, 6))
    with refused(ValueError, "(batch, 1, 4, 6); got (4, 6), torch.float32"):
        image(torch.zeros(4, 6))
    for size in (28, [4, 6]):
        with refused(TypeError, f"image_size is (height, width); got {size}"):
            Image.Config(image_size=size)  # pyright: ignore[reportArgumentType]
