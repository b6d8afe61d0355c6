import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fredholm.tasks.images.mixing import drawn_blend

# Image i has the value i everywhere and the target "class i", so that every pixel of a blend shows its shares.


def labelled(num_images: int, height: int, width: int, channels: int = 1) -> tuple[Tensor, Tensor]:
    images = torch.arange(num_images).double().view(-1, 1, 1, 1).expand(-1, channels, height, width)
    return images, torch.eye(num_images, dtype=torch.float64)


def mix(images: Tensor, targets: Tensor, mixup_alpha: float, cutmix_alpha: float) -> tuple[Tensor, Tensor]:
    blend, whole = drawn_blend(images.shape, mixup_alpha, cutmix_alpha), torch.arange(len(images))
    assert blend is not None
    return blend.images(images, whole, whole), blend.targets(targets, whole)


batches = st.tuples(st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), st.integers(1, 3))
alphas = st.sampled_from([1e-3, 0.2, 1.0, 8.0])


@given(batches, alphas, st.integers(0, 1000))
def test_mixup_target_is_the_blend_of_the_pixels(batch: tuple[int, int, int, int], alpha: float, seed: int) -> None:
    images, targets = labelled(*batch)
    torch.manual_seed(seed)
    mixed, mixed_targets = mix(images, targets, alpha, 0.0)
    torch.testing.assert_close(mixed_targets.sum(1), torch.ones(len(images)).double())
    assert (mixed_targets >= 0).all()
    expected = mixed_targets @ torch.arange(len(images)).double()
    torch.testing.assert_close(mixed, expected.view(-1, 1, 1, 1).expand_as(images))


@given(batches, alphas, st.integers(0, 1000))
def test_cutmix_target_is_the_area_that_remains(batch: tuple[int, int, int, int], alpha: float, seed: int) -> None:
    images, targets = labelled(*batch)
    torch.manual_seed(seed)
    mixed, mixed_targets = mix(images, targets, 0.0, alpha)
    for i in range(len(images)):
        assert (mixed[i] == mixed[i, :1]).all()  # all channels are cut alike
        pixels = mixed[i, 0]
        shares = torch.bincount(pixels.flatten().long(), minlength=len(images)).double() / pixels.numel()
        torch.testing.assert_close(mixed_targets[i], shares)
        pasted = (pixels != i).nonzero()
        if len(pasted):
            height, width = (pasted.amax(0) - pasted.amin(0) + 1).tolist()
            assert height * width == len(pasted)  # one solid box
            assert pixels[pixels != i].unique().numel() == 1  # from one partner


@given(batches, st.integers(0, 1000))
def test_each_image_takes_either_form(batch: tuple[int, int, int, int], seed: int) -> None:
    images, targets = labelled(*batch)
    torch.manual_seed(seed)
    mixed, mixed_targets = mix(images, targets, 1.0, 1.0)
    torch.testing.assert_close(mixed_targets.sum(1), torch.ones(len(images)).double())
    mean = mixed.mean((1, 2, 3))
    torch.testing.assert_close(mean, mixed_targets @ torch.arange(len(images)).double())


def test_both_forms_occur_side_by_side() -> None:
    mixed, _ = mix(*labelled(200, 8, 8), 1.0, 1.0)
    is_whole = torch.isclose(mixed, mixed.round()).flatten(1).all(1)  # CutMix keeps pixels unchanged
    assert 70 < int(is_whole.sum()) < 130


@pytest.mark.parametrize("alpha", [0.4, 4.0])
def test_mixup_shares_follow_the_beta_distribution(alpha: float) -> None:
    images = torch.zeros(20_000, 1, 1, 1)
    images[::2] = 1.0
    targets = torch.eye(2)[images.flatten().long()]
    mixed, _ = mix(images, targets, alpha, 0.0)
    # for a Beta(α, α) share l: E (2l - 1)² = 1 / (2α + 1); half of the pairs have equal labels and keep |2x - 1| = 1
    spread = (2 * mixed - 1).square().mean().item()
    assert spread == pytest.approx(0.5 + 0.5 / (2 * alpha + 1), abs=0.02)


def test_cutmix_boxes_reach_every_corner() -> None:
    mixed, _ = mix(*labelled(2000, 6, 6), 0.0, 1.0)
    pasted = mixed[:, 0] != torch.arange(2000).view(-1, 1, 1)
    shares = pasted.double().mean(0)
    assert shares.min() > 0.1
    torch.testing.assert_close(shares, shares.flip(0, 1), atol=0.12, rtol=0)


@pytest.mark.parametrize("num_images", [0, 1])
def test_a_single_image_or_none_has_no_partner(num_images: int) -> None:
    images, targets = torch.rand(num_images, 1, 4, 4), torch.ones(num_images, 1)
    mixed, mixed_targets = mix(images, targets, 1.0, 1.0)
    torch.testing.assert_close(mixed, images)
    torch.testing.assert_close(mixed_targets, targets)


def test_nothing_is_blended_when_switched_off() -> None:
    assert drawn_blend(torch.Size((5, 1, 4, 4)), 0.0, 0.0) is None
