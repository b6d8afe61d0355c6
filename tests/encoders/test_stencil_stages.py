"""Properties shared by the image encoders with stencils."""

import copy
import itertools
from typing import Any

import pytest
import torch

from fredholm.domains import Domain, Grid
from fredholm.encoders import ConvolutionalImage, Image, ImagePyramid
from tests.encoders.stencil_stages import encoder
from tests.refusals import refused

kinds = pytest.mark.parametrize("kind", [ConvolutionalImage, ImagePyramid])


def stages_of(built: ConvolutionalImage | ImagePyramid) -> Any:
    return built.pyramid.stages if isinstance(built, ImagePyramid) else built.stages


@kinds
@pytest.mark.parametrize("patch_size", [1, 2, 3, 4, 5, 6, 7, (2, 3)])
def test_the_signal_has_the_positions_of_the_patches(kind: Any, patch_size: Any) -> None:
    down, right = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    built = encoder(kind, (3 * down, 2 * right), patch_size, 1)
    domain: Domain = Grid(3 * down, 2 * right)
    for stage in stages_of(built):
        _, domain = stage(torch.zeros(1, domain.num_points, stage.entry.kernel.in_dim, dtype=torch.float64), domain)
    torch.testing.assert_close(domain.pos, Grid(3, 2).pos)


@pytest.mark.parametrize(
    ("kind", "embed_dim", "widths"), [(ConvolutionalImage, 24, [8, 12, 24]), (ImagePyramid, 56, [16, 28, 56, 112])]
)
def test_channels_are_halved_towards_the_pixels(kind: Any, embed_dim: int, widths: list[int]) -> None:
    stages = stages_of(kind(Image.Config(image_size=(24, 24), patch_size=12, channels=3), embed_dim))
    assert [stage.entry.kernel.out_dim for stage in stages] == widths
    assert [stage.entry.kernel.in_dim for stage in stages] == [3, *widths[:-1]]


@kinds
def test_other_images_are_refused(kind: Any) -> None:
    name = f"encoders.{kind.__name__}"
    with refused(ValueError, name, "(batch, 2, a multiple of 3, a multiple of 5)"):
        encoder(kind, (6, 10), (3, 5), 2, any_size=True)(torch.zeros(2, 2, 4, 10, dtype=torch.float64))
    with refused(ValueError, name, "(batch, 2, 6, 10)", "(2, 2, 3, 5)"):
        encoder(kind, (6, 10), (3, 5), 2)(torch.zeros(2, 2, 3, 5, dtype=torch.float64))


@kinds
def test_images_of_one_batch_are_independent(kind: Any) -> None:
    built, images = encoder(kind, (4, 6), 2, 1), torch.randn(3, 1, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(built(images[1:2])[0], built(images)[0][1:2])
    assert built(images[:0])[0].shape == (0, 6, 10)


@kinds
def test_can_be_deep_copied_and_refuses_a_depth_below_0(kind: Any) -> None:
    built, images = encoder(kind, (4, 6), 2, 1), torch.randn(1, 1, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(copy.deepcopy(built)(images)[0], built(images)[0])
    with refused(ValueError, f"encoders.{kind.__name__}", "depth", "-1"):
        encoder(kind, (4, 6), 2, 1, depth=-1)


@kinds
def test_encoders_converted_to_other_channels_agree_on_grey_images(kind: Any) -> None:
    grey, colour = (kind(Image.Config(image_size=(4, 4), patch_size=2, channels=count), 8) for count in (1, 3))
    images = torch.randn(2, 1, 4, 4)
    for old, new in itertools.permutations((grey, colour)):
        with torch.no_grad():
            for parameter in old.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        same = {name: value for name, value in old.state_dict().items() if new.state_dict()[name].shape == value.shape}
        new.load_state_dict(same | new.resampled(old), strict=False)
        expected, _ = old(images.expand(-1, old.config.channels, -1, -1))
        found, _ = new(images.expand(-1, new.config.channels, -1, -1))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert grey.resampled(grey) == {}
