import torch
from torch import nn

from fredholm.kernels.convolution.kernel_network import WeightNormalised

G = "parametrizations.weight.original"  # torch's g, and v


def test_starts_at_the_given_weight():
    weight, bias, x = torch.randn(5, 3), torch.randn(5), torch.randn(2, 7, 3)
    layer = WeightNormalised(weight, bias)
    torch.testing.assert_close(layer.weight, weight)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, weight, bias))


def test_is_torchs_weight_normalisation_forward_and_in_every_gradient():
    torch.manual_seed(1)
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(3, 5).double(), dim=0)
    named = dict(linear.named_parameters())
    magnitude, direction, bias = (named[name] for name in (f"{G}0", f"{G}1", "bias"))
    layer = WeightNormalised(direction.detach(), bias.detach())
    with torch.no_grad():
        magnitude.mul_(1.7)
        layer.magnitude.copy_(magnitude)
    x = torch.randn(4, 3, dtype=torch.float64)
    cotangent = torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(layer(x), linear(x))
    got = torch.autograd.grad(layer(x), [layer.magnitude, layer.direction, layer.bias], cotangent)
    expected = torch.autograd.grad(linear(x), [magnitude, direction, bias], cotangent)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_row_without_a_direction_is_zero_with_finite_gradients():
    layer = WeightNormalised(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.zeros(2))
    assert layer.weight.tolist()[0] == [0.0, 0.0]
    layer(torch.randn(3, 2)).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_the_direction_of_a_single_input_is_a_sign_and_no_parameter():
    weight = torch.tensor([[-0.3], [2.0], [0.0]])
    layer = WeightNormalised(weight, torch.zeros(3))
    assert torch.equal(layer.weight, weight)
    assert [name for name, _ in layer.named_parameters()] == ["magnitude", "bias"]
    assert "direction" in layer.state_dict()


def test_is_computed_in_float32_in_low_precision_and_under_autocast():
    layer, x = WeightNormalised(torch.randn(5, 3), torch.randn(5)), torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        under = layer(x)
    assert torch.equal(under, layer(x))
    low = WeightNormalised(torch.randn(5, 3), torch.randn(5)).bfloat16()
    assert low(x.bfloat16()).dtype == torch.float32
    assert low.weight.dtype == torch.float32


def test_lives_in_checkpoints_and_functional_calls():
    one, other = (WeightNormalised(torch.randn(5, 3), torch.randn(5)) for _ in range(2))
    other.load_state_dict(one.state_dict())
    x = torch.randn(4, 3)
    assert torch.equal(one(x), other(x))
    doubled = {name: 2 * value for name, value in one.named_parameters()}
    got = torch.func.functional_call(one, doubled, (x,))
    torch.testing.assert_close(got, 2 * one(x))  # the length of v does not matter, only g and b
