import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fredholm.blocks.feed_forward import FeedForward, YatFeedForward
from fredholm.kernels import yat


@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 5, 6)])
def test_equals_its_formula(shape: tuple[int, ...]) -> None:
    block, v = FeedForward(6, dropout=0.5).double().eval(), torch.randn(shape, dtype=torch.float64)
    hidden = v @ block.expand.weight.T + block.expand.bias
    gelu = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
    torch.testing.assert_close(block(v), gelu @ block.contract.weight.T + block.contract.bias)


@pytest.mark.parametrize(("kind", "activation"), [(FeedForward, nn.functional.gelu), (YatFeedForward, nn.Identity())])
def test_dropout_acts_on_the_hidden_layer(
    kind: type[FeedForward] | type[YatFeedForward], activation: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    block, v = kind(6, dropout=0.4), torch.randn(50, 6)
    hidden = activation(block.expand(v))
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
def test_initialised_xavier_uniform_with_the_last_layer_times_the_gain(gain: float) -> None:
    block = FeedForward(64, output_gain=gain)
    bound = math.sqrt(6 / (64 + 256))
    assert block.expand.weight.abs().max().item() == pytest.approx(bound, rel=1e-2)
    assert block.contract.weight.abs().max().item() == pytest.approx(gain * bound, rel=1e-2)
    assert not block.expand.bias.any()
    assert not block.contract.bias.any()


@pytest.mark.parametrize("shape", [(6,), (2, 6), (2, 5, 6)])
def test_yat_units_equal_their_formula(shape: tuple[int, ...]) -> None:
    block, v = YatFeedForward(6, dropout=0.5).double().eval(), torch.randn(shape, dtype=torch.float64)
    hidden = 24 / math.log(25) * yat(v, block.expand.weight, block.expand.bias)
    torch.testing.assert_close(block(v), hidden @ block.contract.weight.T + block.contract.bias, rtol=1e-6, atol=1e-6)


def test_golden_parameter_shapes_of_yat_units() -> None:
    def shapes(block: nn.Module) -> dict[str, tuple[int, ...]]:
        return {name: tuple(p.shape) for name, p in block.named_parameters()}

    assert shapes(YatFeedForward(6, learn_epsilon=True)) == {
        "expand.weight": (24, 6),
        "expand.bias": (24,),
        "expand.softening.raw": (1,),
        "expand.scale.alpha": (1,),
        "contract.weight": (6, 24),
        "contract.bias": (6,),
    }
    bare = YatFeedForward(6, expansion=2, bias=False, scale=False)
    assert shapes(bare) == {"expand.weight": (12, 6), "contract.weight": (6, 12)}


def test_yat_units_have_no_normalisation() -> None:
    assert not any(isinstance(module, nn.LayerNorm) for module in YatFeedForward(6).modules())


@pytest.mark.parametrize("gain", [1.0, 0.25])
def test_yat_units_keep_the_rms_of_a_signal_times_the_gain(gain: float) -> None:
    block, v = YatFeedForward(64, output_gain=gain), torch.randn(500, 64)
    assert block(v).square().mean().sqrt().item() == pytest.approx(gain, rel=0.2)
    assert block.contract.bias is not None
    assert not block.contract.bias.any()
