"""Widths at which networks have the same number of parameters."""

import dataclasses

import pytest

from fredholm.comparison.equal_sizes import sized
from fredholm.comparison.kernels import KERNELS_BY_NAME
from fredholm.encoders import Image
from fredholm.models import AttentionConfig, ITNet, LowRankConfig
from fredholm.models.stack import Stack
from tests.refusals import refused

IMAGES = Image.Config(image_size=(8, 8), patch_size=4, channels=1, num_frequencies=2, sigma=1.0)
STACK = ITNet.Config(embed_dim=16, depth=1, kernel=AttentionConfig(), pool="mean")
HEADS = STACK.heads


def count(stack: Stack) -> int:
    return sum(p.numel() for p in stack.build(Image(IMAGES, stack.embed_dim), 3).parameters())


@pytest.mark.parametrize("name", KERNELS_BY_NAME)
def test_every_kernel_is_sized_within_five_percent(name: str) -> None:
    expected = 40_000
    found = sized(dataclasses.replace(STACK, kernel=KERNELS_BY_NAME[name].kernel), HEADS, expected, count)
    assert count(found.stack) == found.parameters
    assert abs(found.parameters / expected - 1) < 0.01
    assert found.stack.embed_dim % HEADS == 0
    assert found.stack.kernel == KERNELS_BY_NAME[name].kernel
    assert 2 < found.stack.expansion < 8  # the width was chosen before the hidden one


def test_a_network_of_the_target_size_is_unchanged() -> None:
    assert sized(STACK, HEADS, count(STACK), count).stack == STACK


def test_a_kernel_that_no_width_brings_to_the_target_is_refused() -> None:
    wide = dataclasses.replace(STACK, kernel=LowRankConfig(width=512))
    with refused(ValueError, "3,000 within 5 % are wanted", "no width"):
        sized(wide, HEADS, 3_000, count)
