import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.kernels.convolution.kernel_network import KernelActivation, KernelNetwork, WeightNormalised
from tests.refusals import refused

ACTIVATIONS: dict[KernelActivation, Any] = {
    "sine": torch.sin,
    "relu": lambda z: z.clamp_min(0),
    "leaky_relu": lambda z: torch.where(z > 0, z, 0.01 * z),
    "swish": lambda z: z / (1 + torch.exp(-z)),
}
each_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def layers(network: KernelNetwork) -> list[WeightNormalised]:
    return [layer for layer in network.layers if isinstance(layer, WeightNormalised)]


def before_activation(network: KernelNetwork, x: Tensor) -> list[Tensor]:
    """W^l h^(l-1) + b^l of both layers."""
    first, second = layers(network)
    found = [x @ first.weight.T + first.bias]
    found.append(normalised(network, ACTIVATIONS[network.activation](found[0])) @ second.weight.T + second.bias)
    return found


def normalised(network: KernelNetwork, h: Tensor) -> Tensor:
    if network.activation == "sine":
        return h
    return (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


def frequency(activation: KernelActivation, omega_0: float) -> dict[str, Any]:
    """The setting of ω0 for activations that read it."""
    return {"omega_0": omega_0} if activation == "sine" else {}


@each_activation
@pytest.mark.parametrize("pos_dim", [1, 2, 3])
def test_is_its_formula(activation: KernelActivation, pos_dim: int):
    network = KernelNetwork(pos_dim, width=6, activation=activation, **frequency(activation, 1.0)).double()
    x = 2 * torch.rand(3, 4, pos_dim, dtype=torch.float64) - 1
    expected = normalised(network, ACTIVATIONS[activation](before_activation(network, x)[1]))
    torch.testing.assert_close(network(x), expected, rtol=1e-9, atol=1e-10)


def test_omega_0_multiplies_weight_and_bias_of_both_layers():
    network = KernelNetwork(width=6, omega_0=7.0)
    x = torch.linspace(-1, 1, 9)[:, None]
    for layer in layers(network):
        x = torch.sin(7.0 * (x @ layer.weight.T + layer.bias))
    torch.testing.assert_close(network(torch.linspace(-1, 1, 9)[:, None]), x)


def test_sines_start_as_stated():
    network = KernelNetwork(width=2000, omega_0=20.0)
    first, second = layers(network)
    assert 0.99 < first.weight.abs().max() <= 1
    bound = math.sqrt(6 / 2000) / 20
    assert 0.99 * bound < second.weight.abs().max() <= bound * (1 + 1e-6)
    for layer in (first, second):
        phase = 20 * layer.bias.detach()
        assert 0.99 * math.pi < phase.abs().max() <= math.pi * (1 + 1e-6)
        # uniform over the period: no wave with a whole number of periods correlates with it
        for k in (1, 2, 3):
            assert torch.exp(1j * k * phase).mean().abs() < 0.06


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "swish"])
def test_kinks_are_spread_over_the_range_in_both_layers(activation):
    network = KernelNetwork(width=300, activation=activation)
    x = torch.linspace(-1, 1, 2001)[:, None]
    first, second = before_activation(network, x)
    knots = (-layers(network)[0].bias / layers(network)[0].weight[:, 0]).detach()
    assert knots.abs().max() <= 1 + 1e-4
    shares = torch.histc(knots, 4, -1, 1) / 300
    assert ((shares - 0.25).abs() < 0.1).all()
    for layer in (first, second):
        crosses = layer.amin(0).le(1e-2) & layer.amax(0).ge(-1e-2)
        assert crosses.all(), "a unit without a kink in the range"
    zero = KernelNetwork(width=300, activation=activation, spread_bias=False)
    assert not any(layer.bias.any() for layer in layers(zero))


def test_layer_norm_is_the_default_for_all_activations_but_sines():
    for activation in ACTIVATIONS:
        assert len(KernelNetwork(activation=activation).norms) == (0 if activation == "sine" else 2)
    assert len(KernelNetwork(layer_norm=True).norms) == 2
    assert len(KernelNetwork(activation="relu", layer_norm=False).norms) == 0


def test_a_learned_omega_0_gets_its_gradient_and_stays_positive():
    network = KernelNetwork(width=5, omega_0=4.0, learn_omega_0=True).double()
    x = torch.linspace(-1, 1, 7, dtype=torch.float64)[:, None]

    def at(log_omega: float) -> Tensor:
        with torch.no_grad():
            network.log_omega_0.fill_(log_omega)
        return network(x).square().sum()

    centre = math.log(4.0)
    slope = (at(centre + 1e-5) - at(centre - 1e-5)).item() / 2e-5
    (gradient,) = torch.autograd.grad(at(centre), [network.log_omega_0])
    assert abs(slope) > 1e-3
    assert abs(gradient.item() - slope) < 1e-6 * abs(slope)
    with torch.no_grad():
        network.log_omega_0.sub_(100.0)
    assert network.log_omega_0.exp() > 0


def test_a_fixed_omega_0_is_kept_in_the_checkpoint():
    network, other = KernelNetwork(width=5, omega_0=4.0), KernelNetwork(width=5, omega_0=9.0)
    assert "log_omega_0" not in dict(network.named_parameters())
    other.load_state_dict(network.state_dict())
    x = torch.rand(3, 1)
    assert torch.equal(network(x), other(x))


@each_activation
def test_phases_keep_float32_under_autocast_and_in_low_precision(activation):
    network = KernelNetwork(width=5, activation=activation, **frequency(activation, 300.0))
    x = torch.linspace(-1, 1, 50)[:, None]
    expected = network(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(network(x), expected)
    low = KernelNetwork(width=5, activation=activation, **frequency(activation, 300.0)).bfloat16()
    wide = KernelNetwork(width=5, activation=activation)
    wide.load_state_dict(low.state_dict())
    assert low(x).dtype == torch.float32
    torch.testing.assert_close(low(x), wide(x))


@pytest.mark.slow
@each_activation
def test_compiles_in_one_graph(activation):
    network, x = KernelNetwork(2, width=5, activation=activation, learn_omega_0=activation == "sine"), torch.rand(4, 2)
    torch.testing.assert_close(torch.compile(network, fullgraph=True, backend="aot_eager")(x), network(x))


def test_bad_input_is_refused():
    cases: list[tuple[dict[str, Any], str]] = [
        ({"activation": "tanh"}, "activation is one of ('sine', 'relu', 'leaky_relu', 'swish'); got 'tanh'"),
        ({"omega_0": 0.0}, "omega_0 must be positive and finite; got 0.0"),
        ({"omega_0": -3.0}, "got -3.0"),
        ({"omega_0": math.inf}, "got inf"),
        ({"omega_0": math.nan}, "got nan"),
        ({"width": 0}, "width must be an integer >= 1; got 0"),
        ({"activation": "relu", "learn_omega_0": True}, "learn_omega_0=True has no effect with activation='relu'"),
        (
            {"activation": "swish", "omega_0": 5.0},
            "omega_0=5.0 has no effect with activation='swish'; leave it at",
        ),
    ]
    for options, message in cases:
        with refused(ValueError, "kernels.KernelNetwork", message):
            KernelNetwork(**options)
