"""Neural operators: their formula, and predictions at any points."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.blocks import NeuralOperatorBlock
from fredholm.domains import Domain, Grid, Points
from fredholm.encoders import Function, FunctionBatch
from fredholm.models import AttentionConfig, KernelConfig, MLPConfig, NeuralOperator, SpectralConfig
from tests.refusals import refused

KERNELS: list[KernelConfig] = [
    SpectralConfig(num_waves_per_axis=2),
    MLPConfig(width=5, num_frequencies=3, sigma=1.0),
    AttentionConfig(),
]


def model(kernel: KernelConfig = KERNELS[0], **settings: Any) -> NeuralOperator:
    torch.manual_seed(0)
    encoder = Function(Function.Config(num_channels=2, pos_dim=2, num_frequencies=3), 8)
    heads = 2 if kernel.has_heads else None
    config = NeuralOperator.Config(embed_dim=8, depth=3, num_heads=heads, kernel=kernel, **settings)
    net = config.build(encoder, 3).double()
    for parameter in net.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))  # no part is an identity or zero
    return net


def function(*shape: int) -> FunctionBatch:
    grid = Grid(*shape)
    values = torch.randn(2, grid.num_points, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return FunctionBatch(values.requires_grad_(), grid)


def literally(net: NeuralOperator, given: FunctionBatch, at: Domain) -> Tensor:
    """Layer by layer: u at the samples, v at the query points."""
    assert isinstance(net.encoder, Function)
    (u, domain), v, gelu = net.encoder(given), net.encoder.at(given, at), torch.nn.functional.gelu
    for layer, block in enumerate(net.blocks):
        assert isinstance(block, NeuralOperatorBlock)
        v = block.operator(u, domain, query=v, query_domain=at)
        u = block.operator(u, domain)
        if block.feed_forward is not None:
            first, second = block.feed_forward.expand, block.feed_forward.contract
            u, v = (w + second(gelu(first(gelu(w)))) for w in (u, v))
        if layer < 2:
            u, v = gelu(u), gelu(v)
    hidden = gelu(v @ net.expand.weight.mT + net.expand.bias)
    return hidden @ net.head.weight.mT + net.head.bias


@pytest.mark.parametrize("width", [None, 1.5])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_outputs_and_gradients_follow_the_formula(kernel: KernelConfig, width: float | None) -> None:
    net = model(kernel, perceptron_expansion=width)
    given, at = function(3, 4), Points(torch.rand(5, 2, dtype=torch.float64))
    leaves = [given.values, *net.parameters()]
    for places, answer in ((at, net(given, at=at)), (given.domain, net(given))):
        expected = literally(net, given, places)
        weights = torch.randn_like(expected)
        found = [torch.autograd.grad(out, leaves, weights, materialize_grads=True) for out in (answer, expected)]
        torch.testing.assert_close(answer, expected)
        for actual, wanted in zip(*found, strict=True):
            torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_a_finer_grid_has_equal_outputs_at_shared_points(kernel: KernelConfig) -> None:
    net, given = model(kernel), function(3, 4)
    finer = net(given, at=Grid(9, 12)).unflatten(1, (9, 12))
    torch.testing.assert_close(finer[:, 1::3, 1::3].flatten(1, 2), net(given))
    field = net.field(given)
    assert torch.equal(field(Grid(9, 12)), finer.flatten(1, 2))


def test_the_output_scales_with_the_function() -> None:
    net = model()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim == 1:
                parameter.zero_()
        assert isinstance(net.encoder, Function)
        net.encoder.lift.weight[:, 2:] = 0.0
    given = function(3, 4)
    small = FunctionBatch(given.values.detach() * 1e-4, given.domain)
    # near 0 the GELU is linear, so that without constants nothing removes the scale of the function
    torch.testing.assert_close(2 * net(small), net(small._replace(values=2 * small.values)), rtol=1e-2, atol=0)


def test_an_output_matrix_is_added_where_the_kernel_does_not_mix_all_channels() -> None:
    names = [model(kernel).state_dict().keys() for kernel in KERNELS]
    assert ["blocks.0.operator.output_weight" in own for own in names] == [False, True, True]


def test_settings_are_checked() -> None:
    settings: dict[str, Any] = {"embed_dim": 0, "depth": 0, "num_heads": 0, "expansion": 0.0}
    settings["perceptron_expansion"] = 0.0
    for name, value in settings.items():
        with refused(ValueError, "models.NeuralOperator", name):
            NeuralOperator.Config(**{name: value})
    with refused(ValueError, "pool is 'mean', 'max' or 'none'; got 'cls'"):
        NeuralOperator.Config(pool="cls")  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "pool='mean' gives one answer"):
        model(pool="mean")(function(3, 4), at=Grid(2, 2))
