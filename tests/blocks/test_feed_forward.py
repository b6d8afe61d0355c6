import math

import pytest
import torch
from torch import nn

from fredholm.blocks.feed_forward import FeedForward


@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 5, 6)])
def test_is_its_formula(shape: tuple[int, ...]) -> None:
    block, v = FeedForward(6, dropout=0.5).double().eval(), torch.randn(shape, dtype=torch.float64)
    hidden = v @ block.expand.weight.T + block.expand.bias
    gelu = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
    torch.testing.assert_close(block(v), gelu @ block.contract.weight.T + block.contract.bias)


def test_dropout_acts_on_the_hidden_layer() -> None:
    block, v = FeedForward(6, dropout=0.4), torch.randn(50, 6)
    hidden = nn.functional.gelu(block.expand(v))
    torch.manual_seed(1)
    out = block(v)
    torch.manual_seed(1)
    torch.testing.assert_close(out, block.contract(nn.functional.dropout(hidden, 0.4)))


def test_golden_parameter_shapes() -> None:
    shapes = {name: tuple(p.shape) for name, p in FeedForward(6).named_parameters()}
    assert shapes == {
        "expand.weight": (24, 6),
        "expand.bias": (24,),
        "contract.weight": (6, 24),
        "contract.bias": (6,),
    }
    assert FeedForward(6, expansion=2).expand.weight.shape == (12, 6)


@pytest.mark.parametrize("gain", [1.0, 0.25])
def test_starts_xavier_uniform_with_its_last_layer_times_the_gain(gain: float) -> None:
    block = FeedForward(64, output_gain=gain)
    bound = math.sqrt(6 / (64 + 256))
    assert block.expand.weight.abs().max().item() == pytest.approx(bound, rel=1e-2)
    assert block.contract.weight.abs().max().item() == pytest.approx(gain * bound, rel=1e-2)
    assert not block.expand.bias.any()
    assert not block.contract.bias.any()
