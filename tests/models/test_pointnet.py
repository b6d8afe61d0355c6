from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.encoders import PointBatch, PointCloud
from fredholm.models import EdgeConvolution, ITNet, MLPConfig, PointPooling, pointnet
from fredholm.models.signal_model import SignalModel
from tests.refusals import refused

CONFIGS: list[SignalModel.Config] = [
    PointPooling.Config(embed_dim=8, widths=(6, 10), head_width=5),
    EdgeConvolution.Config(embed_dim=8, widths=(6, 7, 10), head_width=5, num_neighbours=4),
    ITNet.Config(embed_dim=8, depth=1, num_heads=2, kernel=MLPConfig(width=4, num_frequencies=2), pool="max"),
]
PLAIN = PointCloud.Config(num_frequencies=0, num_neighbours=0)


def build(config: SignalModel.Config, **changes: Any) -> SignalModel:
    built = type(config)(**{**vars(config), **changes}).build(PointCloud(PLAIN, 8), 3).double().eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__qualname__)
def test_outputs_are_0_at_masked_points(config: SignalModel.Config) -> None:
    model, mask = build(config, pool="none"), torch.tensor([[True, False, True, True, True, False]])
    out = model(PointBatch(torch.randn(1, 6, 3, dtype=torch.float64), mask=mask))
    assert ((out != 0).all(-1) == mask).all()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__qualname__)
@pytest.mark.parametrize("pool", ["max", "none"])
def test_order_padding_and_batch_mates_change_nothing(config: SignalModel.Config, pool: str) -> None:
    model, pos = build(config, pool=pool), torch.randn(2, 9, 3, dtype=torch.float64)
    turn = torch.randperm(9)
    mask = torch.tensor([True] * 4 + [False] * 2 + [True] * 5).expand(2, -1)
    here = mask[0].nonzero()[:, 0]
    padded = torch.full((2, 11, 3), 7.0, dtype=torch.float64).index_copy(1, here, pos)
    points, there, back = (slice(None), here, turn.argsort()) if pool == "none" else (..., ..., ...)

    def compute(batch: PointBatch, points: Any) -> tuple[Tensor, Tensor]:
        leaf = batch.pos.clone().requires_grad_()
        found = model(PointBatch(leaf, mask=batch.mask))[0]
        found = found[points]
        (gradient,) = torch.autograd.grad(found.sin().sum(), leaf)
        return found, gradient[0]

    whole, gradient = compute(PointBatch(pos), points)
    for batch, chosen, index in (
        (PointBatch(pos[:, turn]), back, turn.argsort()),
        (PointBatch(padded, mask=mask), there, here),
        (PointBatch(pos[:1]), points, slice(None)),
    ):
        other, other_gradient = compute(batch, chosen)
        torch.testing.assert_close(other, whole, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(other_gradient[index], gradient, rtol=1e-6, atol=1e-9)


def test_pooling_follows_its_formula() -> None:
    model, pos = build(CONFIGS[0]), torch.randn(1, 5, 3, dtype=torch.float64)
    assert isinstance(model, PointPooling)
    u = model.layers(model.encoder(pos)[0])[0]
    torch.testing.assert_close(model(pos)[0], model.head(model.norm(model.perceptron(u.max(0).values))))
    local = build(CONFIGS[0], pool="none")
    assert isinstance(local, PointPooling)
    u = local.layers(local.encoder(pos)[0])[0]
    joined = torch.cat([u, u.max(0).values.expand_as(u)], dim=-1)
    torch.testing.assert_close(local(pos)[0], local.head(local.norm(local.perceptron(joined))))


def test_edge_convolutions_follow_their_formula() -> None:
    """Neighbours by position in the first layer, by signal in the second."""
    model, pos = build(CONFIGS[1]), torch.randn(1, 7, 3, dtype=torch.float64)
    assert isinstance(model, EdgeConvolution)
    u, domain = model.encoder(pos)
    u, place, kept = u[0], domain.pos[0], []
    for own, offset, after in zip(model.own, model.offset, model.after, strict=True):
        index = torch.cdist(place, place).argsort(dim=1)[:, :4]
        u = place = torch.stack(
            [torch.stack([after(own(u[i]) + offset(u[j] - u[i])) for j in index[i]]).amax(0) for i in range(7)]
        )
        kept.append(u)
    pooled = model.join(torch.cat(kept, dim=-1)).amax(0)
    torch.testing.assert_close(model(pos)[0], model.head(model.norm(model.perceptron(pooled))))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__qualname__)
def test_a_cloud_without_points(config: SignalModel.Config) -> None:
    model, empty = build(config), torch.zeros(2, 4, dtype=torch.bool)
    found = model(PointBatch(torch.randn(2, 4, 3, dtype=torch.float64), mask=empty))
    found.sum().backward()
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(model(torch.zeros(2, 0, 3, dtype=torch.float64)), found)
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (PointPooling.Config, {"widths": ()}, "models.PointPooling: needs widths"),
        (PointPooling.Config, {"pool": "cls"}, "a pool of 'max' or 'none'; got (64, 128, 512), 'cls'"),
        (PointPooling.Config, {"widths": (4, 0)}, "models.PointPooling: widths must be at least 1; got 0"),
        (PointPooling.Config, {"dropout": 1.0}, "models.PointPooling: dropout must be in [0, 1); got 1.0"),
        (
            EdgeConvolution.Config,
            {"widths": (4,)},
            "models.EdgeConvolution: needs at least 2 widths, the pooled one last",
        ),
        (
            EdgeConvolution.Config,
            {"num_neighbours": 0},
            "models.EdgeConvolution: num_neighbours must be at least 1; got 0",
        ),
    ],
)
def test_bad_settings(config: type, settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        config(**settings)


def test_neighbours_are_found_in_float32() -> None:
    pos = torch.rand(1, 256, 3)
    expected = pointnet._nearest(pos, 8, None)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(pointnet._nearest(pos, 8, None), expected)
    short = pos.bfloat16()
    assert torch.equal(pointnet._nearest(short, 8, None), pointnet._nearest(short.float(), 8, None))
