import sys
from typing import Any

import pytest
import torch

from fredholm.tasks.masks.augmentation import MaskAugmentation, Masked
from tests.refusals import refused

pytest.importorskip("kornia")

Config = MaskAugmentation.Config
COLOURS: list[dict[str, Any]] = [{"brightness": 0.3}, {"contrast": 0.4}, {"saturation": 0.5}, {"hue": 0.2}]
PLACES: list[dict[str, Any]] = [{"crop_scale": (0.2, 0.9)}, {"horizontal_flip": 0.5}, {"vertical_flip": 0.5}]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ramps(batch: int = 6, height: int = 20, width: int = 24) -> Masked:
    """Images whose channels are the coordinates of a pixel, from 0 to 1, and masks with the numbers of 5 x 4 blocks."""
    rows, columns = (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width
    down, right = torch.meshgrid(rows, columns, indexing="ij")
    numbers = ((5 * down).long() * 4 + (4 * right).long()).to(torch.uint8)
    images = torch.stack([down, right, (down + right) / 2])
    return Masked(images.expand(batch, -1, -1, -1).clone(), numbers.expand(batch, -1, -1).clone())


def test_missing_kornia_matters_only_for_changes_of_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    for settings in PLACES:
        augmentation = MaskAugmentation(Config(**settings), 3)
        augmentation.check_packages()
        augmentation(ramps(), generator())
    for settings in COLOURS:
        augmentation = MaskAugmentation(Config(**settings), 3)  # as when a model trained with it is read back
        with pytest.raises(ImportError, match=r'pip install "fredholm\[augment\]"'):
            augmentation.check_packages()


def test_defaults_change_nothing() -> None:
    given, drawn = ramps(), generator()
    before = drawn.get_state()
    found = MaskAugmentation(Config(), 3)(given, drawn)
    assert torch.equal(found.images, given.images)
    assert torch.equal(found.masks, given.masks)
    assert torch.equal(drawn.get_state(), before)


@pytest.mark.parametrize("settings", PLACES, ids=lambda settings: next(iter(settings)))
def test_masks_move_with_their_images(settings: dict[str, Any]) -> None:
    given = ramps()
    found = MaskAugmentation(Config(**settings), 3)(given, generator())
    assert not torch.equal(found.images, given.images)
    down, right = found.images[:, 0], found.images[:, 1]
    expected = (5 * down).floor() * 4 + (4 * right).floor()
    is_inner = ((5 * down) % 1 - 0.5).abs().maximum(((4 * right) % 1 - 0.5).abs()) < 0.4  # inside the blocks
    assert float(is_inner.float().mean()) > 0.4
    assert torch.equal(found.masks[is_inner].float(), expected[is_inner])
    assert found.masks.dtype == torch.uint8


def test_a_crop_has_the_drawn_area_and_lies_within_the_image() -> None:
    config = Config(crop_scale=(0.25, 0.25), crop_ratio=(1.0, 1.0))
    found = MaskAugmentation(config, 3)(ramps(40, 64, 64), generator()).images
    for channel, dim in ((0, 1), (1, 2)):
        line = found[:, channel].mean(3 - dim)  # position along one axis
        torch.testing.assert_close(line[:, 40] - line[:, 20], torch.full((40,), 20 / 64 / 2), atol=1e-4, rtol=0)
        assert bool((line > 0).all())
        assert bool((line < 1).all())
    assert float(found[:, 0, 0, 0].min()) < 0.1
    assert float(found[:, 0, -1, -1].max()) > 0.9


def test_a_crop_of_scale_1_is_the_image() -> None:
    given = ramps(3, 9, 7)
    almost = Config(crop_scale=(1 - 1e-6, 1 - 1e-6), crop_ratio=(1.0, 1.0))
    found = MaskAugmentation(almost, 3)(given, generator())
    torch.testing.assert_close(found.images, given.images, atol=1e-4, rtol=0)
    assert torch.equal(found.masks, given.masks)


def test_crops_are_as_wide_as_the_ratio_says() -> None:
    config = Config(crop_scale=(0.25, 0.25), crop_ratio=(2.0, 2.0))
    found = MaskAugmentation(config, 3)(ramps(5, 64, 64), generator()).images
    tall = (found[:, 0, 40, 30] - found[:, 0, 20, 30]) * 64 / 20
    wide = (found[:, 1, 30, 40] - found[:, 1, 30, 20]) * 64 / 20
    torch.testing.assert_close(wide / tall, torch.full((5,), 2.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(wide * tall, torch.full((5,), 0.25), atol=1e-3, rtol=0)


@pytest.mark.parametrize("settings", COLOURS, ids=lambda settings: next(iter(settings)))
def test_changes_of_colour_leave_masks_alone(settings: dict[str, Any]) -> None:
    given = ramps()
    found = MaskAugmentation(Config(**settings), 3)(given, generator())
    assert torch.equal(found.masks, given.masks)
    assert (found.images - given.images).abs().amax((1, 2, 3)).min() > 1e-3  # every image
    assert not torch.allclose(found.images[0], found.images[1])  # differently
    assert 0 <= float(found.images.min()) <= float(found.images.max()) <= 1


@pytest.mark.parametrize("settings", [*PLACES, *COLOURS], ids=lambda settings: next(iter(settings)))
def test_the_generator_alone_decides(settings: dict[str, Any]) -> None:
    given, augment = ramps(), MaskAugmentation(Config(**settings), 3)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = augment(given, generator(3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = augment(given, generator(3)), augment(given, generator(4))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.masks, again.masks)
    assert not torch.equal(first.images, other.images)


def test_grey_images_take_settings_without_colour() -> None:
    grey = Masked(ramps().images[:, :1], ramps().masks)
    found = MaskAugmentation(Config(brightness=0.2, contrast=0.2, crop_scale=(0.5, 1.0)), 1)(grey, generator())
    assert found.images.shape == grey.images.shape
    for name, config in (("saturation", Config(saturation=0.2)), ("hue", Config(hue=0.2))):
        with refused(ValueError, f"augmentation.{name} is 0.2, but the images are grey"):
            MaskAugmentation(config, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop_scale": (0.0, 1.0)}, "crop_scale is (0.0, 1.0); expected two shares"),
        ({"crop_scale": (0.5, 1.1)}, "crop_scale is (0.5, 1.1)"),
        ({"crop_scale": (0.5, 1.0), "crop_ratio": (2.0, 1.0)}, "crop_ratio is (2.0, 1.0)"),
        ({"crop_ratio": (1.0, 1.0)}, "crop_ratio=(1.0, 1.0) has no effect with crop_scale=(1.0, 1.0)"),
        ({"horizontal_flip": 1.5}, "horizontal_flip is 1.5; expected a probability"),
        ({"vertical_flip": -0.1}, "vertical_flip is -0.1"),
        ({"brightness": 1.1}, "brightness is 1.1; expected from 0 to 1"),
        ({"contrast": -1}, "contrast is -1"),
        ({"saturation": float("nan")}, "saturation is nan"),
        ({"hue": 0.6}, "hue is 0.6; expected from 0 to 0.5"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        Config(**settings)
