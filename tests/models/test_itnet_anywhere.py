"""An ITNet evaluated at points other than those of its signal."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import encoders
from fredholm.blocks import ResidualBlock
from fredholm.domains import Domain, Grid, Points
from fredholm.models import (
    AdditiveAttentionConfig,
    AttentionConfig,
    ConstantConfig,
    ContinuousConvolutionConfig,
    InfiniteConfig,
    ITNet,
    KernelConfig,
    LinearAttentionConfig,
    LowRankConfig,
    MLPConfig,
    RecurrenceConfig,
    SeparableConfig,
    SumConfig,
    YatConfig,
)
from tests.refusals import refused

SMALL = {"width": 5, "num_frequencies": 3, "sigma": 1.0}
KERNELS: list[KernelConfig] = [
    MLPConfig(**SMALL),
    LowRankConfig(rank=3, **SMALL),
    SeparableConfig(**SMALL),
    AttentionConfig(),
    LinearAttentionConfig(),
    YatConfig(),
    InfiniteConfig(),
    ContinuousConvolutionConfig(),
    AdditiveAttentionConfig(),
    ConstantConfig(),
    SumConfig(first=AttentionConfig(), second=MLPConfig(**SMALL)),
]


def model(kernel: KernelConfig = KERNELS[0], **settings: Any) -> ITNet:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"embed_dim": 8, "depth": 3, "num_heads": 2 if kernel.has_heads else None}
    config = ITNet.Config(**(sizes | {"kernel": kernel, "pool": "none"} | settings))
    image = encoders.Image.Config(image_size=(6, 8), patch_size=2, channels=2, num_frequencies=2, sigma=1.0)
    return ITNet(encoders.Image(image, 8), 3, config).double().eval()


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 2, 6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def literally(net: ITNet, x: Tensor, at: Domain) -> Tensor:
    """Layer by layer: u at the points, v at the queries, both by the block's formula."""
    u, domain = net.encoder(x)
    assert isinstance(net.encoder, encoders.Image)
    v = net.encoder.at(x, at)
    for block in net.blocks:
        assert isinstance(block, ResidualBlock)
        integral = block.operator(block.operator_norm(u), domain, query=block.operator_norm(v), query_domain=at)
        v = v + integral
        v = v + block.feed_forward(block.feed_forward_norm(v))
        u = block(u, domain)
    return net.head(net.norm(v))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_a_finer_grid_has_equal_outputs_at_shared_points(kernel: KernelConfig) -> None:
    net, x = model(kernel), images()
    own = net(x)
    finer = net(x, at=Grid(9, 12)).unflatten(1, (9, 12))  # the middle cells of 3 x 3 blocks are the 3 x 4 patches
    torch.testing.assert_close(finer[:, 1::3, 1::3].flatten(1, 2), own, rtol=1e-9, atol=1e-11)
    assert (finer[:, ::3, ::3].flatten(1, 2) - own).abs().max() > 1e-3
    torch.testing.assert_close(net(x, at=Grid(3, 4)), own, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_outputs_and_gradients_follow_the_formula(kernel: KernelConfig) -> None:
    net, x = model(kernel), images().requires_grad_()
    pos = torch.rand(5, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    leaves = [x, pos, *net.parameters()]
    found = []
    for answer in (net(x, at=Points(pos)), literally(net, x, Points(pos))):
        weights = torch.randn(answer.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        found.append([answer, *torch.autograd.grad(answer, leaves, weights, materialize_grads=True)])
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)
    assert found[0][2].abs().max() > 0


def test_float32_agrees_at_shared_points_to_one_part_in_1e5() -> None:
    net, x = model().float(), images().float()
    own = net(x)
    finer = net(x, at=Grid(9, 12)).unflatten(1, (9, 12))[:, 1::3, 1::3].flatten(1, 2)
    assert (finer - own).abs().max() <= 1e-5 * own.abs().max()


def test_outputs_at_a_point_do_not_depend_on_the_other_queries() -> None:
    net, x = model(), images()
    pos = torch.rand(7, 2, dtype=torch.float64)
    whole = net(x, at=Points(pos))
    torch.testing.assert_close(net(x, at=Points(pos[2:3])), whole[:, 2:3], rtol=1e-10, atol=1e-12)
    own = torch.stack([pos, pos.flip(0)])  # different points for each entry
    outputs = net(x, at=Points(own))
    torch.testing.assert_close(outputs[1], whole[1].flip(0), rtol=1e-10, atol=1e-12)
    assert net(x, at=Points(pos[:0])).shape == (2, 0, 3)
    mask = torch.arange(7) != 4
    hidden = net(x, at=Points(pos, mask=mask))
    torch.testing.assert_close(hidden[:, mask], whole[:, mask], rtol=1e-10, atol=1e-12)


def test_a_field_computes_its_layers_once_for_many_queries() -> None:
    net, x, calls = model(), images(), list[int]()
    net.encoder.register_forward_hook(lambda *_: calls.append(1))
    for block in net.blocks:
        block.register_forward_hook(lambda *_: calls.append(2))
    field = net.field(x)
    pos = torch.rand(7, 2, dtype=torch.float64)
    parts = torch.cat([field(Points(part)) for part in pos.split(3)], dim=1)
    assert calls == [1, 2, 2]  # the last layer's signal is not needed
    torch.testing.assert_close(parts, net(x, at=Points(pos)), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(field(Points(pos)), literally(net, x, Points(pos)))
    with refused(ValueError, "pool='mean' gives one answer"):
        model(pool="mean").field(x)


def test_sampled_integrals_take_their_anchors_from_the_signal() -> None:
    net, x = model(num_samples=5), images()
    pos = torch.rand(4, 2, dtype=torch.float64)
    torch.testing.assert_close(net(x, at=Points(pos)), literally(net, x, Points(pos)))


def test_models_without_outputs_at_other_points_are_refused() -> None:
    x, at = images(), Grid(4, 4)
    with refused(ValueError, "pool='mean' gives one answer", "pool='none'"):
        model(pool="mean")(x, at=at)
    with refused(ValueError, "places must have 2 coordinates"):
        model()(x, at=Grid(4))
    with refused(TypeError, "domain", "Tensor"):
        model()(x, at=at.pos)
    with refused(ValueError, "diffusion"):
        model(diffusion=0.5)(x, at=at)
    with refused(ValueError, "which Grid(3, 4) does not order"):
        model(RecurrenceConfig())(x, at=at)
    cloud = encoders.PointCloud(encoders.PointCloud.Config(num_frequencies=2), 8)
    net = ITNet(cloud, 3, dataclasses.replace(model().config, depth=1))
    with refused(ValueError, "encoders.PointCloud has no value between its points"):
        net(encoders.PointBatch(torch.rand(2, 5, 3)), at=Points(torch.rand(4, 3)))
