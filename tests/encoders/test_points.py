import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.encoders import PointBatch, PointCloud
from fredholm.kernels.fourier_features import fourier_features
from fredholm.models import ITNet
from fredholm.models.kernel_configs import ContinuousConvolutionConfig
from tests.refusals import refused

PLAIN = PointCloud.Config(num_frequencies=0, num_neighbours=0)


def encoder(embed_dim: int = 8, **settings: Any) -> PointCloud:
    return PointCloud(dataclasses.replace(PLAIN, **settings), embed_dim).double()


def cloud(*shape: int) -> Tensor:
    return torch.randn(*shape, 3, dtype=torch.float64)


def test_a_cloud_is_scaled_to_the_unit_box() -> None:
    pos = cloud(2, 20)
    _, domain = encoder()(pos)
    expected = pos - pos.mean(1, keepdim=True)
    expected = expected / expected.norm(dim=-1).amax(1).view(2, 1, 1)
    torch.testing.assert_close(domain.pos, (expected + 1) / 2)
    assert domain.is_plain
    assert (domain.pos_dim, encoder().pos_dim) == (3, 3)
    _, moved = encoder()(100 * pos + torch.tensor([5.0, 6.0, 7.0]))
    torch.testing.assert_close(moved.pos, domain.pos)
    _, kept = encoder(normalise=False)(pos)
    torch.testing.assert_close(kept.pos, (pos + 1) / 2)


def test_equal_weights_are_the_same_as_none_for_kernels_that_count_points() -> None:
    torch.manual_seed(0)
    kernel = ContinuousConvolutionConfig(depthwise=False, omega_0=3.0)
    model = ITNet.Config(embed_dim=4, depth=1, kernel=kernel).build(encoder(4), 3).double().eval()
    pos, mask = cloud(2, 9), torch.arange(9) < torch.tensor([[9], [6]])
    weights = torch.full((2, 9), 0.7, dtype=torch.float64)
    without, weighed = (model(PointBatch(pos, mask=mask, weights=each)) for each in (None, weights))
    torch.testing.assert_close(weighed, without)


@pytest.mark.parametrize("settings", [{}, {"num_neighbours": 3}, {"num_neighbours": 3, "num_centres": 2}])
def test_clouds_without_extent(settings: dict[str, Any]) -> None:
    built = encoder(**settings)
    for pos in (cloud(2, 1), cloud(2, 1).expand(2, 7, 3)):
        leaf = pos.clone().requires_grad_()
        signal, domain = built(leaf)
        torch.testing.assert_close(domain.pos, torch.full_like(domain.pos, 0.5))
        signal.square().sum().backward()
        assert bool(signal.isfinite().all())
        assert leaf.grad is not None
        assert bool(leaf.grad.isfinite().all())
    nowhere = torch.zeros(1, 4, dtype=torch.bool)
    for batch in (PointBatch(cloud(2, 0)), PointBatch(cloud(0, 4)), PointBatch(cloud(1, 4), mask=nowhere)):
        signal, domain = built(batch)
        assert signal.shape == (*domain.pos.shape[:2], 8)
        assert not bool(signal.any())
    assert not bool(domain.weights.any())


def test_the_embedding_equals_its_formula() -> None:
    pos, features = cloud(2, 6), torch.randn(2, 6, 2, dtype=torch.float64)
    built = encoder(num_features=2)
    x = 2 * built(PointBatch(pos, features))[1].pos - 1
    assert built.feature_embedding is not None
    torch.nn.init.normal_(built.coordinate_embedding.bias)
    expected = x @ built.coordinate_embedding.weight.mT + built.coordinate_embedding.bias
    expected = expected + features @ built.feature_embedding.weight.mT
    torch.testing.assert_close(built(PointBatch(pos, features))[0], expected)
    waves = encoder(num_frequencies=4, sigma=2.0)
    signal, domain = waves(pos)
    expected = fourier_features(domain.pos, waves.frequencies) @ waves.coordinate_embedding.weight.mT
    torch.testing.assert_close(signal, expected)


def test_local_features_are_the_maximum_over_neighbours() -> None:
    """Compared with a loop over points; K includes the point itself, and lengths are in units of the mean distance."""
    pos, features = cloud(2, 7), torch.randn(2, 7, 1, dtype=torch.float64)
    built = encoder(num_features=1, num_neighbours=3)
    signal, domain = built(PointBatch(pos, features))
    assert built.local is not None
    assert built.feature_embedding is not None
    for b in range(2):
        apart = torch.cdist(domain.pos[b], domain.pos[b])
        index = apart.argsort(dim=1)[:, :3]
        unit = apart.gather(1, index).mean()
        for k in range(7):
            inputs = [
                torch.cat(
                    [
                        (domain.pos[b, j] - domain.pos[b, k]) / unit,
                        apart[k, j, None] / unit,
                        features[b, k],
                        features[b, j],
                    ]
                )
                for j in index[k].tolist()
            ]
            found = built.local(torch.stack(inputs)).amax(0)
            point = built.coordinate_embedding(2 * domain.pos[b, k] - 1) + built.feature_embedding(features[b, k])
            torch.testing.assert_close(signal[b, k], point + found)


def test_more_neighbours_than_points_means_all_points() -> None:
    pos = cloud(1, 4)
    few, many = encoder(num_neighbours=4), encoder(num_neighbours=40)
    many.load_state_dict(few.state_dict())
    torch.testing.assert_close(few(pos)[0], many(pos)[0])


GRID = torch.cartesian_prod(*(torch.arange(3, dtype=torch.float64),) * 3)[None].expand(2, -1, -1)


@pytest.mark.parametrize("pos", [cloud(2, 27), GRID], ids=["scattered", "a grid, where distances tie"])
@pytest.mark.parametrize("num_centres", [None, 10])
@pytest.mark.parametrize("num_frequencies", [0, 3])
def test_order_padding_and_other_batch_entries_change_nothing(
    pos: Tensor, num_centres: int | None, num_frequencies: int
) -> None:
    sigma = 2.0 if num_frequencies else 1.0
    built = encoder(
        num_features=2, num_neighbours=5, num_centres=num_centres, num_frequencies=num_frequencies, sigma=sigma
    )
    pos, features = pos.clone(), torch.randn(2, 27, 2, dtype=torch.float64)
    weights = torch.rand(2, 27, dtype=torch.float64)
    probe = torch.randn(8, dtype=torch.float64)

    def compute(batch: PointBatch, index: Tensor) -> list[Tensor]:
        """The output for the first cloud, its points sorted by signal, and the gradients at its points."""
        assert batch.features is not None
        leaves = [part.clone().requires_grad_() for part in (batch.pos, batch.features)]
        signal, domain = built(PointBatch(leaves[0], leaves[1], batch.mask, batch.weights))
        exists = torch.ones(signal.shape[1], dtype=torch.bool) if domain.mask is None else domain.mask[0]
        measure = domain.weights[0][exists]
        value = (signal[0][exists] @ probe).sin()
        (value * measure).sum().backward()
        order = value.argsort()
        gradients = [leaf.grad[0, index] for leaf in leaves if leaf.grad is not None]
        return [signal[0][exists][order], domain.pos[0][exists][order], measure[order], *gradients]

    everywhere = torch.arange(27)
    whole = compute(PointBatch(pos, features, weights=weights), everywhere)
    turn = torch.randperm(27)
    turned = compute(PointBatch(pos[:, turn], features[:, turn], weights=weights[:, turn]), turn.argsort())
    mask = torch.ones(2, 31, dtype=torch.bool).index_fill(1, torch.tensor([0, 9, 18, 30]), False)
    here = mask[0].nonzero()[:, 0]
    gaps = [torch.full((2, 31, part.shape[2]), math.nan).double() for part in (pos, features, weights[..., None])]
    for gap, part in zip(gaps, (pos, features, weights[..., None]), strict=True):
        gap[:, here] = part
    spread = compute(PointBatch(gaps[0], gaps[1], mask, gaps[2][..., 0]), here)
    alone = compute(PointBatch(pos[:1], features[:1], weights=weights[:1]), everywhere)
    for other in (turned, spread, alone):
        for one, two in zip(whole, other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)


def test_farthest_points() -> None:
    pos = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [10, 0, 0], [9, 0, 0], [4, 0, 0]]]).double()
    _, domain = encoder(num_centres=3, normalise=False)(pos)
    assert domain.pos[0, :, 0].tolist() == [(x + 1) / 2 for x in (0, 10, 4)]
    assert domain.is_plain
    weights = torch.tensor([[1.0, 2, 3, 4, 10]]).double()
    _, domain = encoder(num_centres=3, normalise=False)(PointBatch(pos, weights=weights))
    torch.testing.assert_close(domain.weights, torch.tensor([[3.0, 7, 10]]).double() / 20)


def test_clouds_with_fewer_points_than_centres() -> None:
    pos = torch.zeros(2, 6, 3).double()
    pos[:, :, 0] = torch.tensor([0.0, 0, 1, 5, 5, 3])
    mask = torch.tensor([[True] * 6, [False, True, True, True, False, False]])
    built = encoder(num_centres=4, normalise=False)
    signal, domain = built(PointBatch(pos, mask=mask))
    assert domain.mask is not None
    assert domain.mask.tolist() == [[True] * 4, [True, True, True, False]]
    assert sorted(domain.pos[1, :3, 0].tolist()) == [0.5, 1.0, 3.0]
    assert sorted(domain.pos[0, :, 0].tolist()) == [0.5, 1.0, 2.0, 3.0]
    assert float(signal[1, 3].detach().abs().sum()) == 0
    torch.testing.assert_close(domain.weights, torch.tensor([[1 / 4] * 4, [1 / 3] * 3 + [0]]).double())


def test_only_relative_weights_matter() -> None:
    pos, weights = cloud(2, 6), torch.rand(2, 6).double()
    weights[0, 2] = 0
    built = encoder()
    domain, other = (built(PointBatch(pos, weights=w))[1] for w in (weights, 30 * weights))
    torch.testing.assert_close(domain.weights, weights / weights.sum(1, keepdim=True))
    torch.testing.assert_close(domain.weights, other.weights)
    assert built(PointBatch(pos, weights=0 * weights))[1].weights.abs().sum() == 0


def test_large_coordinates_stay_precise() -> None:
    pos = cloud(1, 30)
    built = PointCloud(PLAIN, 4)
    _, near = built(pos)
    _, far = built(pos + 5e6)
    assert (near.pos.dtype, built(pos)[0].dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(near.pos, far.pos, rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_centres", [None, 5])
def test_compiles_in_one_graph(num_centres: int | None, fresh_compiler: None) -> None:
    built, weights = encoder(num_neighbours=3, num_centres=num_centres), torch.rand(2, 9).double()

    def signal(pos: Tensor, mask: Tensor) -> Tensor:
        return built(PointBatch(pos, mask=mask, weights=weights))[0]

    compiled = torch.compile(signal, fullgraph=True, backend="eager")
    inputs = (cloud(2, 9), torch.arange(9).expand(2, -1) < 7)
    torch.testing.assert_close(compiled(*inputs), signal(*inputs))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"pos": torch.zeros(2, 5)}, "expected float coordinates of shape (batch, points, 3); got (2, 5)"),
        ({"pos": torch.zeros(2, 5, 2)}, "got (2, 5, 2)"),
        ({"pos": torch.zeros(2, 5, 3).long()}, "torch.int64"),
        ({"features": None}, "expected 2 features of each point, (2, 5, 2); got none"),
        ({"features": torch.zeros(2, 5, 3)}, "expected 2 features of each point, (2, 5, 2); got (2, 5, 3)"),
        ({"features": torch.zeros(2, 4, 2)}, "got (2, 4, 2)"),
        ({"mask": torch.ones(5, dtype=torch.bool)}, "expected mask of shape (2, 5), one entry a point; got (5,)"),
        ({"weights": torch.ones(2, 4)}, "expected weights of shape (2, 5), one entry a point; got (2, 4)"),
        ({"pos": torch.full((2, 5, 3), math.nan)}, "coordinates are NaN or infinite at points that exist"),
        ({"features": torch.full((2, 5, 2), math.inf)}, "features are NaN or infinite at points that exist"),
        ({"weights": -torch.ones(2, 5)}, "weights are masses, finite and at least 0"),
    ],
)
def test_bad_batches_are_refused(batch: dict[str, Any], message: str) -> None:
    with refused(ValueError, "encoders.PointCloud: ", message):
        encoder(num_features=2)(PointBatch(**{"pos": torch.zeros(2, 5, 3), "features": torch.zeros(2, 5, 2), **batch}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_features": -1}, "num_features must be at least 0; got -1"),
        ({"num_centres": 0}, "num_centres must be at least 1; got 0"),
        ({"num_frequencies": 3, "sigma": 0.0}, "sigma must be positive and finite; got 0.0"),
        ({"num_frequencies": 0, "sigma": 2.0}, "sigma=2.0 has no effect with num_frequencies=0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, f"encoders.PointCloud: {message}"):
        PointCloud.Config(**settings)
    with refused(ValueError, "encoders.PointCloud: embed_dim must be at least 1; got 0"):
        PointCloud(PLAIN, 0)


def test_a_cloud_of_fewer_points_than_neighbours_is_independent_of_padding() -> None:
    built = encoder(num_neighbours=5, normalise=False)
    pos = 0.8 + 0.1 * torch.randn(1, 2, 3, dtype=torch.float64)
    for layer in built.modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.normal_(layer.weight)
    padded = torch.cat([pos, torch.zeros(1, 4, 3, dtype=torch.float64)], dim=1)
    signal, _ = built(PointBatch(padded, mask=torch.tensor([[True] * 2 + [False] * 4])))
    torch.testing.assert_close(signal[:, :2], built(pos)[0])


def test_a_list_of_clouds_is_refused() -> None:
    with refused(TypeError, "got list; pad clouds", "PointBatch(pos, mask=mask)"):
        PointCloud(PointCloud.Config(), 8)([torch.rand(5, 3), torch.rand(4, 3)])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("settings", [{"num_neighbours": 2}, {"num_neighbours": 2, "num_centres": 4}])
def test_the_order_of_coincident_points_changes_nothing(settings: dict[str, Any]) -> None:
    built = encoder(num_features=2, **settings)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter)
    pos = cloud(1, 4).repeat(1, 3, 1)
    features = torch.randn(1, 12, 2, dtype=torch.float64)
    features[:, 4:8, 0] = features[:, :4, 0]
    weights = torch.rand(1, 12, dtype=torch.float64)
    features[:, 8:] = features[:, :4]  # points that differ only in their weights
    turn = torch.randperm(12)
    signal, domain = built(PointBatch(pos, features, weights=weights))
    turned, turned_domain = built(PointBatch(pos[:, turn], features[:, turn], weights=weights[:, turn]))
    back = turn if "num_centres" not in settings else slice(None)  # the order of centres does not follow the points
    torch.testing.assert_close(turned, signal[:, back])
    torch.testing.assert_close(turned_domain.weights, domain.weights[:, back])


def test_positions_have_second_derivatives() -> None:
    built = encoder(num_neighbours=2)
    mask = torch.tensor([[True] * 4 + [False]])

    def signal(pos: Tensor) -> Tensor:
        return built(PointBatch(pos, mask=mask))[0]

    assert torch.autograd.gradgradcheck(signal, (cloud(1, 5).requires_grad_(),))
