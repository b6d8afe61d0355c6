import pytest
import torch

from fredholm.blocks.yat_conv_block import YatConvBlock
from fredholm.layers import YatConv1d, YatConv2d, YatConv3d
from tests.refusals import refused


@pytest.mark.parametrize(
    ("conv", "shape"),
    [(YatConv1d(3, 8, 3), (2, 3, 9)), (YatConv2d(3, 8, 3, 2), (2, 3, 7, 9)), (YatConv3d(3, 8, 1), (3, 2, 3, 4))],
)
@pytest.mark.parametrize("bias", [False, True])
def test_equals_a_convolution_and_a_linear_map(conv, shape, bias):
    block, x = YatConvBlock(conv, 5, bias=bias), torch.randn(shape)
    hidden = conv(x).movedim(-1 - conv.num_axes, -1)
    expected = hidden @ block.contract.weight.flatten(1).T
    if bias:
        assert block.contract.bias is not None
        expected = expected + block.contract.bias
    torch.testing.assert_close(block(x), expected.movedim(-1, -1 - conv.num_axes), rtol=1e-4, atol=1e-5)
    assert (block.contract.bias is None) != bias


def test_a_residual_adds_the_signal():
    conv, x = YatConv2d(4, 8, 3, padding="same"), torch.randn(2, 4, 5, 6)
    block = YatConvBlock(conv, 4, residual=True)
    torch.testing.assert_close(block(x), x + block.contract(conv(x)))
    silent = YatConvBlock(conv, 4, residual=True, output_gain=0.0)
    assert torch.equal(silent(x), x)


def test_keeps_the_rms_of_a_signal():
    block, x = YatConvBlock(YatConv2d(16, 64, 3, padding="same"), 16), torch.randn(8, 16, 12, 12)
    assert block(x).square().mean().sqrt().item() == pytest.approx(1, rel=0.25)


def test_a_residual_of_another_shape_is_refused():
    with refused(ValueError, "4 in", "5 out"):
        YatConvBlock(YatConv1d(4, 8, 3, padding="same"), 5, residual=True)
    with refused(ValueError, "stride"):
        YatConvBlock(YatConv1d(4, 8, 3, stride=2), 4, residual=True)
    with refused(ValueError, "(2, 4, 9)", "(2, 4, 7)"):
        YatConvBlock(YatConv1d(4, 8, 3), 4, residual=True)(torch.randn(2, 4, 9))
