"""Kernel configurations: which kernels have heads, and refusal of a number of heads without effect."""

import dataclasses
import functools
import math
from typing import Any

import pytest
import torch

from fredholm import kernels
from fredholm.domains import Graph, Sequence
from fredholm.models import (
    AttentionConfig,
    ContinuousConvolutionConfig,
    ConvolutionConfig,
    InfiniteConfig,
    ITNet,
    LowRankConfig,
    MessagePassing,
    MLPConfig,
    NeuralOperator,
    OnEdgesConfig,
    RecurrenceConfig,
    SeparableConfig,
    SpectralConfig,
    SumConfig,
    TwoStream,
)
from fredholm.models.kernel_configs import KERNELS, ConstantConfig, KernelConfig, PerceptronConfig, usual_heads
from fredholm.models.signal_model import SignalModel, replaced
from tests.refusals import refused

CONVOLUTIONS = SumConfig(first=ConvolutionConfig(), second=ConvolutionConfig(kernel_size=5))
CONFIGS: list[KernelConfig] = [
    *(kind() for kind in KERNELS),
    *(InfiniteConfig(kind="factorised"), InfiniteConfig(kind="linear")),
    *(RecurrenceConfig(kind="lstm"), RecurrenceConfig(kind="gru")),
    *(CONVOLUTIONS, SumConfig(first=ConvolutionConfig(), second=AttentionConfig())),
    *(MLPConfig(head_shared=True), OnEdgesConfig(kernel=ConstantConfig())),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_has_heads_is_true_if_their_number_changes_the_kernel(config: KernelConfig) -> None:
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    domain = Graph(edges, 5, pos=torch.rand(5, 1)) if isinstance(config, OnEdgesConfig) else Sequence(5)
    u, found = torch.randn(1, 5, 8), []
    for heads in (1, 4):
        torch.manual_seed(0)
        found.append(config.build(8, heads, 1, is_causal=False).matrix(u, domain))
    assert config.has_heads != torch.equal(*found)


SMALL: dict[str, Any] = {"width": 4, "num_frequencies": 2, "sigma": 1.0}
OF_CHANNELS: list[KernelConfig] = [
    *(config for config in CONFIGS if "MLP" not in config.kinds and not isinstance(config, PerceptronConfig)),
    *(MLPConfig(**SMALL), LowRankConfig(rank=2, **SMALL), SeparableConfig(**SMALL)),
    OnEdgesConfig(kernel=MLPConfig(**SMALL)),
    *(ConvolutionConfig(depthwise=True), ContinuousConvolutionConfig(depthwise=False)),
]


@pytest.mark.parametrize("config", OF_CHANNELS, ids=lambda config: config.kinds)
def test_mixes_channels_is_true_if_an_output_matrix_adds_no_new_kernels(config: KernelConfig) -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    domain = Graph(edges, 3, pos=torch.rand(3, 1)) if isinstance(config, OnEdgesConfig) else Sequence(3)
    kernel = config.build(4, 4, 1, is_causal=False).double()
    found = kernel.matrix(torch.randn(1, 3, 4, dtype=torch.float64), domain)
    parameters = list(kernel.parameters())
    rows = [
        torch.autograd.grad(entry, parameters, retain_graph=True, materialize_grads=True) for entry in found.flatten()
    ]
    slopes = torch.stack([torch.cat([slope.flatten() for slope in row]) for row in rows])
    expected = (torch.randn(4, 4, dtype=torch.float64) @ found).detach().flatten()
    # the part of W κ that no small change of the kernel's parameters adds
    left = expected - slopes @ torch.linalg.lstsq(slopes, expected[:, None], driver="gelsd").solution[:, 0]
    assert config.mixes_channels == bool(left.norm() < 1e-6 * expected.norm())


def test_the_default_is_one_head_per_64_channels_and_at_least_4() -> None:
    widths = (4, 6, 7, 8, 64, 96, 128, 256, 320, 384, 400, 768, 1024)
    assert [usual_heads(channels) for channels in widths] == [4, 3, 1, 4, 4, 4, 4, 4, 5, 6, 5, 12, 16]
    assert ITNet.Config(embed_dim=64).heads == TwoStream.Config(embed_dim=64).heads == 4
    assert (ITNet.Config(num_heads=8).heads, NeuralOperator.Config().heads) == (8, 1)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (
            ITNet,
            {"kernel": ConvolutionConfig()},
            "kernel=ConvolutionConfig; leave it out, or give kernel with heads, such as mlp",
        ),
        (ITNet, {"kernel": CONVOLUTIONS}, "kernel=SumConfig(ConvolutionConfig, ConvolutionConfig)"),
        (
            ITNet,
            {"kernel": OnEdgesConfig(kernel=ConstantConfig())},
            "OnEdgesConfig(ConstantConfig); leave it out, or give kernel.kernel",
        ),
        (NeuralOperator, {}, "kernel=SpectralConfig"),
        (TwoStream, {"kernel": SpectralConfig(), "cross_kernel": ConstantConfig()}, "kernel=SpectralConfig"),
        (TwoStream, {"kernel": SpectralConfig(), "fusion": "concatenation"}, "kernel=SpectralConfig"),
        (MessagePassing, {"layer": "gin"}, "layer='gin'; leave it out, or take layer='gat'"),
    ],
)
def test_num_heads_is_refused_for_kernels_without_heads(kind: Any, settings: dict[str, Any], message: str) -> None:
    without = kind.Config(**settings)
    assert not without.has_heads
    with refused(ValueError, f"models.{kind.__name__}: num_heads=2 has no effect with ", message):
        kind.Config(**settings, num_heads=2)
    suggested = replaced(without, num_heads=2)
    assert suggested == without
    assert without.resized(32, 3, kind.Config()).num_heads is None


def test_cross_attention_may_have_heads_where_blocks_have_none() -> None:
    config = TwoStream.Config(embed_dim=8, num_heads=2, kernel=ConstantConfig())
    assert (config.has_heads, config.stack().num_heads) == (True, None)


def test_replacing_the_kernel_keeps_the_heads_if_it_has_some() -> None:
    wide: SignalModel.Config = ITNet.Config(embed_dim=24, num_heads=8)
    for kernel, heads in ((AttentionConfig(), 8), (ConvolutionConfig(), None)):
        assert replaced(wide, kernel=kernel, num_heads=8) == dataclasses.replace(
            ITNet.Config(embed_dim=24), kernel=kernel, num_heads=heads
        )
    assert ITNet.Config(num_heads=8).resized(64, 2, ITNet.Config()).num_heads == 8
    assert ITNet.Config().resized(64, 2, ITNet.Config()).num_heads == 4


PERCEPTRONS = {
    MLPConfig: kernels.MLP,
    LowRankConfig: functools.partial(kernels.LowRankMLP, rank=2),
    SeparableConfig: kernels.SeparableMLP,
}


@pytest.mark.parametrize("kind", PERCEPTRONS)
@pytest.mark.parametrize(
    ("name", "value"), [("sigma", -1.0), ("sigma", math.nan), ("epsilon", -1.0), ("epsilon", 1e999)]
)
def test_bad_scales_of_perceptrons_are_refused(kind: Any, name: str, value: float) -> None:
    expected = {"sigma": "must be positive and finite", "epsilon": "must be finite and at least 0"}[name]
    with refused(ValueError, f"models.{kind.__name__}: {name} {expected}; got {value}"):
        kind(**{name: value})
    with refused(ValueError, "kernels.", f"MLP: {name} {expected}; got {value}"):
        PERCEPTRONS[kind](4, 1, **{name: value})
    assert kind(epsilon=0.0).epsilon == 0


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ITNet.Config, "kernel"),
        (NeuralOperator.Config, "kernel"),
        (TwoStream.Config, "cross_kernel"),
        (SumConfig, "second"),
        (OnEdgesConfig, "kernel"),
    ],
)
def test_a_kernel_instead_of_its_configuration_is_refused(owner: Any, name: str) -> None:
    with refused(TypeError, f"{name} must be the configuration of a kernel, such as {name}=MLPConfig(); got Attention"):
        owner(**{name: kernels.Attention(8, 2)})
