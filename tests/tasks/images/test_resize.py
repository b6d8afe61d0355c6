import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fredholm.tasks.images.resize import common_size, covering_size, fit, fit_masks

sides = st.integers(1, 40)


@given(sides, sides, sides, sides)
def test_every_size_can_be_reached(height: int, width: int, target_height: int, target_width: int) -> None:
    images = torch.full((2, 3, height, width), 200, dtype=torch.uint8)
    fitted = fit(images, (target_height, target_width))
    assert fitted.shape == (2, 3, target_height, target_width)
    assert fitted.dtype == torch.uint8
    assert (fitted == 200).all()


def test_the_right_size_is_unchanged() -> None:
    images = torch.randint(256, (2, 1, 5, 7), dtype=torch.uint8)
    assert torch.equal(fit(images, (5, 7)), images)


@pytest.mark.parametrize("target", [(16, 16), (8, 8), (40, 40)])
def test_resizing_agrees_with_pillow(target: tuple[int, int]) -> None:
    image = torch.randint(256, (24, 24), dtype=torch.uint8)
    pillow = Image.fromarray(image.numpy()).resize((target[1], target[0]), Image.Resampling.BILINEAR)
    difference = fit(image.view(1, 1, 24, 24), target)[0, 0].int() - torch.from_numpy(np.array(pillow)).int()
    assert difference.abs().max() <= 1


@pytest.mark.parametrize(("size", "target"), [((6, 12), (6, 6)), ((12, 24), (6, 6)), ((3, 6), (6, 6))])
def test_resizing_keeps_proportions_and_trims_both_ends(size: tuple[int, int], target: tuple[int, int]) -> None:
    """The middle half of a wide image remains; its outer quarters have another colour."""
    height, width = size
    image = torch.zeros(1, 1, height, width, dtype=torch.uint8)
    image[..., width // 4 : -(width // 4)] = 100
    for images, expected in ((image, target), (image.mT, (target[1], target[0]))):
        inner = fit(images, expected)[..., 1:-1, 1:-1]  # the border may blend with the trimmed part
        assert (inner == 100).all()


def test_a_trim_on_one_side_would_be_noticed() -> None:
    image = torch.arange(9, dtype=torch.uint8).view(1, 1, 1, 9)
    assert fit(image, (1, 3)).flatten().tolist() == [3, 4, 5]
    assert fit(image.mT, (3, 1)).flatten().tolist() == [3, 4, 5]


@given(sides, sides, sides, sides)
def test_masks_are_fitted_as_their_images_are(height: int, width: int, target_height: int, target_width: int) -> None:
    """For an image whose right half is white, the border in the mask is within half a pixel of that in the image."""
    image = torch.zeros(1, 1, height, width, dtype=torch.uint8)
    image[..., width // 2 :] = 255
    fitted = fit(image, (target_height, target_width))[:, 0]
    mask = fit_masks(image[:, 0] // 255, (target_height, target_width))
    assert mask.shape == fitted.shape
    assert set(mask.unique().tolist()) <= {0, 1}
    covered = covering_size((height, width), (target_height, target_width))
    if covered[0] >= height and covered[1] >= width:  # no pixel is an average
        assert bool((mask[fitted == 0] == 0).all())
        assert bool((mask[fitted == 255] == 1).all())


def test_a_pixel_of_a_mask_takes_the_class_at_its_centre() -> None:
    mask = torch.arange(27, dtype=torch.uint8).view(1, 3, 9)
    assert fit_masks(mask, (1, 3)).flatten().tolist() == [10, 13, 16]
    assert fit_masks(mask, (1, 1)).flatten().tolist() == [13]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(4, 6)], (4, 6)),
        ([(4, 6), (6, 4), (4, 6)], (4, 6)),
        ([(30, 20), (300, 200), (60, 40)], (60, 40)),
        ([(10, 10), (20, 10), (10, 40), (10, 20)], (10, 20)),
        ([(1, 300), (1, 300), (5, 5)], (1, 300)),
    ],
)
def test_the_common_size_is_the_median_of_lengths_and_proportions(
    sizes: list[tuple[int, int]], expected: tuple[int, int]
) -> None:
    assert common_size(sizes) == expected
