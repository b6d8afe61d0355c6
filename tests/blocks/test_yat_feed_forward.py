import math

import pytest
import torch
from torch import nn

from fredholm.blocks.yat_feed_forward import YatFeedForward
from fredholm.kernels import yat


@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 5, 6)])
def test_is_its_formula(shape):
    block, v = YatFeedForward(6, dropout=0.5).double().eval(), torch.randn(shape, dtype=torch.float64)
    hidden = 24 / math.log(25) * yat(v, block.expand.weight, block.expand.bias)
    torch.testing.assert_close(block(v), hidden @ block.contract.weight.T + block.contract.bias, rtol=1e-6, atol=1e-6)


def test_dropout_acts_on_the_responses():
    block, v = YatFeedForward(6, dropout=0.4), torch.randn(50, 6)
    hidden = block.expand(v)
    torch.manual_seed(1)
    out = block(v)
    torch.manual_seed(1)
    torch.testing.assert_close(out, block.contract(nn.functional.dropout(hidden, 0.4)))


def test_golden_parameter_shapes():
    def shapes(block):
        return {name: tuple(p.shape) for name, p in block.named_parameters()}

    assert shapes(YatFeedForward(6, learn_epsilon=True)) == {
        "expand.weight": (24, 6),
        "expand.bias": (24,),
        "expand.softening.raw": (),
        "expand.scale.alpha": (),
        "contract.weight": (6, 24),
        "contract.bias": (6,),
    }
    bare = YatFeedForward(6, expansion=2, bias=False, scale=False)
    assert shapes(bare) == {"expand.weight": (12, 6), "contract.weight": (6, 12)}


def test_has_no_normalisation():
    assert not any(isinstance(module, nn.LayerNorm) for module in YatFeedForward(6).modules())


@pytest.mark.parametrize("gain", [1.0, 0.25])
def test_keeps_the_size_of_a_signal_times_the_gain(gain):
    block, v = YatFeedForward(64, output_gain=gain), torch.randn(500, 64)
    assert block(v).square().mean().sqrt().item() == pytest.approx(gain, rel=0.2)
    assert block.contract.bias is not None
    assert not block.contract.bias.any()
