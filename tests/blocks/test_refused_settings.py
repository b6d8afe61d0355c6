"""Error messages of blocks name the setting, its value and what is expected."""

import math
from typing import Any

import pytest
import torch

from fredholm import IntegralOperator, blocks, kernels
from fredholm.blocks import post_norm
from fredholm.domains import Sequence
from fredholm.layers import YatConv1d
from tests.pretended_device import DEVICE, pretending
from tests.refusals import refused


def operator(**settings: Any) -> IntegralOperator:
    return IntegralOperator(kernels.LinearAttention(4, 2), **settings)


NETWORKS = [blocks.FeedForward, blocks.GatedFeedForward, blocks.YatFeedForward]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("name", "wrong", "error"),
    [
        ("embed_dim", 0, ValueError),
        ("embed_dim", 4.0, TypeError),
        ("expansion", 0, ValueError),
        ("expansion", -1, ValueError),
        ("expansion", "2", TypeError),
        ("dropout", math.nan, ValueError),
        ("dropout", 1.0, ValueError),
        ("output_gain", math.nan, ValueError),
        ("output_gain", -1.0, ValueError),
        ("output_gain", "1", TypeError),
    ],
)
def test_bad_settings_of_feed_forward_networks(network: Any, name: str, wrong: Any, error: type[Exception]) -> None:
    with refused(error, f"{network.__name__}: {name} must be", f"got {wrong!r}"):
        network(**{"embed_dim": 4, "expansion": 2, name: wrong})


@pytest.mark.parametrize("wrong", [None, "operator", kernels.LinearAttention(4)])
def test_non_operators_are_refused(wrong: Any) -> None:
    suffix = f"must be an IntegralOperator, IntegralOperator(kernel); got {type(wrong).__name__}"
    with refused(TypeError, f"ResidualBlock: operator {suffix}"):
        blocks.ResidualBlock(wrong, blocks.FeedForward(4))
    with refused(TypeError, f"PostNormBlock: second {suffix}"):
        blocks.PostNormBlock(operator(), wrong)
    with refused(TypeError, f"NeuralOperatorBlock: operator {suffix}"):
        blocks.NeuralOperatorBlock(wrong)


def test_parts_of_the_wrong_type_are_refused() -> None:
    with refused(TypeError, "ResidualBlock: feed_forward must be a module; got NoneType"):
        blocks.ResidualBlock(operator(), None)  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "DiscountedBlock: kernel must be a fredholm kernel; got IntegralOperator"):
        blocks.DiscountedBlock(operator(), 4)  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "YatConvBlock: conv must be a YatConv1d, YatConv2d or YatConv3d; got Conv1d"):
        blocks.YatConvBlock(torch.nn.Conv1d(2, 3, 1), 2)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "YatConvBlock: output_gain must be finite; got nan"):
        blocks.YatConvBlock(YatConv1d(2, 3, 1), 2, output_gain=math.nan)


def test_bad_branch_scale_and_dropout_are_refused() -> None:
    block = blocks.ResidualBlock(operator(), blocks.FeedForward(4), branch_scale=1)
    assert block.get_parameter("operator_scale").tolist() == [1.0] * 4
    with refused(ValueError, "ResidualBlock: branch_scale must be finite; got nan"):
        blocks.ResidualBlock(operator(), blocks.FeedForward(4), branch_scale=math.nan)
    with refused(ValueError, "PostNormBlock: dropout must be in [0, 1); got nan"):
        blocks.PostNormBlock(operator(), operator(), dropout=math.nan)


def test_bad_inputs_of_a_discounted_block_are_refused() -> None:
    block, u, domain = blocks.DiscountedBlock(kernels.LinearAttention(4, 2), 4), torch.randn(2, 5, 4), Sequence(5)
    with refused(ValueError, "factor must be (H,), a number for each head of 4 channels; got (3,)"):
        block(u, domain, torch.ones(3))
    with refused(ValueError, "factor must be (H,), a number for each head of 4 channels; got float"):
        block(u, domain, 0.5)
    with refused(ValueError, "before must be (2, 5, 4), as u; got (2, 4, 4)"):
        block(u, domain, torch.ones(2), u[:, 1:])
    with refused(ValueError, "u must be (batch, points, 4); got (2, 5, 3)"):
        block(u[..., 1:], domain, torch.ones(2))


def test_output_points_and_bad_ones_are_refused() -> None:
    first = operator(residual=False)
    block, u = (
        blocks.PostNormBlock(first, IntegralOperator(kernels.Constant(4, 4), residual=False)),
        torch.randn(2, 5, 4),
    )
    torch.testing.assert_close(block(u, Sequence(5), at=torch.tensor([3])), block(u, Sequence(5))[:, 3:4])
    for at, error, message in (
        (torch.tensor([5]), ValueError, "at names points beyond 0 to 4"),
        (torch.tensor([-1]), ValueError, "at names points beyond 0 to 4"),
        (torch.tensor([1.0]), TypeError, "at must be int64 (M,) or (B, M)"),
        ([1], TypeError, "at must be int64 (M,) or (B, M), indices of points; got list"),
        (torch.zeros(3, 1, dtype=torch.int64), ValueError, "at has batch size 3 but u has 2"),
    ):
        with refused(error, f"PostNormBlock: {message}"):
            block(u, Sequence(5), at=at)
    with pretending():  # a check of a GPU tensor must not synchronise
        post_norm._check_at(torch.tensor([5]).to(DEVICE), u)


def test_bad_inputs_of_a_short_convolution_are_refused() -> None:
    short, u = blocks.ShortConvolution(4, 3), torch.randn(2, 5, 4)
    buffer = short.initial_buffer(2)
    with refused(ValueError, "buffer must be (2, 2, 4), as initial_buffer(2) gives; got (3, 2, 4)"):
        short(u, short.initial_buffer(3))
    with refused(ValueError, "buffer must be (2, 2, 4)", "got NoneType"):
        short(u, None)
    with refused(ValueError, "u must be (batch, points, 4); got (5, 4)"):
        short(u[0], buffer)
    with refused(ValueError, "mask must be bool (2, 5); got (2, 4) torch.bool"):
        short(u, buffer, torch.ones(2, 4, dtype=torch.bool))
    with refused(ValueError, "mask must be bool (5,); got (5,) torch.float32"):
        short(u, buffer, torch.ones(5))
    with refused(ValueError, "reset must be bool (2, 5); got (5,) torch.bool"):
        short(u, buffer, None, torch.ones(5, dtype=torch.bool))
