"""The encoder of series by grids of all scales."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.encoders import SeriesBatch, SeriesPyramid
from fredholm.encoders.pyramid import PointsNorm, Pyramid
from tests.refusals import refused


def encoder(*strides: int, depth: int = 1, spacing: float = 1.0) -> SeriesPyramid:
    """An encoder of two channels in float64 with parameters from N(0, 1)."""
    built = SeriesPyramid(2, 8, strides, depth=depth, spacing=spacing).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return built


def series(*shape: int) -> Tensor:
    return torch.randn(*shape, 2, dtype=torch.float64)


def phi(norm: Any, u: Tensor) -> Tensor:
    return F.gelu(F.instance_norm(u, weight=norm.weight, bias=norm.bias, eps=norm.epsilon))


def filters(stencil: Any) -> Tensor:
    weight = stencil.kernel.weight
    centred = weight - weight.mean((1, 2), keepdim=True)
    return stencil.kernel.gain[:, None, None] * centred / centred.square().sum((1, 2), keepdim=True).sqrt()


def formula(built: Pyramid, values: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The signal by torch's convolutions and instance norms, `(B, C, N)`, of a length that the strides divide."""
    u, levels = values, list[Tensor]()
    stages: Any = built.stages
    for stage, stride in zip(stages, (1, *strides), strict=True):
        u = u if stage.norm is None else phi(stage.norm, u)
        u = F.conv1d(u, filters(stage.entry), None, stride, max(1, stride // 2))
        for norm, stencil in zip(stage.norms, stage.stencils, strict=True):
            u = u + F.conv1d(phi(norm, u), filters(stencil), padding=1)
        levels.append(u)
    for finer in reversed(range(len(strides))):
        joint: Any = built.joints[finer]
        up = F.interpolate(joint.map(levels[finer + 1].mT).mT, levels[finer].shape[2], mode="linear")
        w = levels[finer] + up
        levels[finer] = w + F.conv1d(phi(joint.norm, w), filters(joint.stencil), padding=1)
    total: Tensor = built.bias[:, None]
    for level, norm, linear, means in zip(levels, built.norms, built.maps, built.means, strict=True):
        of_values = means(F.adaptive_avg_pool1d(values, level.shape[2]).mT)
        total = total + F.interpolate((linear(phi(norm, level).mT) + of_values).mT, values.shape[2], mode="linear")
    return total


@pytest.mark.parametrize(("strides", "depth"), [((2, 3), 1), ((4,), 2), ((2, 2, 2), 0)])
def test_equals_its_formula(strides: tuple[int, ...], depth: int) -> None:
    built, values = encoder(*strides, depth=depth), series(3, 24)
    signal, domain = built(values)
    torch.testing.assert_close(signal, formula(built.pyramid, values.mT, strides).mT)
    assert domain.num_points == 24


@pytest.mark.parametrize("is_irregular", [False, True])
def test_padding_changes_nothing(is_irregular: bool) -> None:
    built, values = encoder(2, 3), series(3, 20)
    lengths, steps = torch.tensor([20, 13, 1]), torch.rand(3, 20, dtype=torch.float64) * 3
    times, mask = steps.cumsum(1) if is_irregular else None, torch.arange(20) < lengths[:, None]
    whole, _ = built(SeriesBatch(values, mask, times))
    assert bool((whole[~mask] == 0).all())
    for i, length in enumerate(lengths.tolist()):
        own = None if times is None else times[i : i + 1, :length]
        alone, _ = built(SeriesBatch(values[i : i + 1, :length], None, own))
        torch.testing.assert_close(whole[i, :length], alone[0])


def test_times_at_the_rate_of_training_are_cells() -> None:
    built, values = encoder(2, 2, spacing=0.5), series(2, 11)
    plain, _ = built(values)
    times = 7 + 0.5 * torch.arange(11.0, dtype=torch.float64).expand(2, -1)
    torch.testing.assert_close(built(SeriesBatch(values, None, times))[0], plain)
    torch.testing.assert_close(built(SeriesBatch(values, None, None, torch.full((2,), 0.5)))[0], plain)


def test_another_rate_reads_the_same_function() -> None:
    built, values = encoder(2, 2), series(1, 16)
    half, _ = built(SeriesBatch(values[:, ::2], None, None, torch.tensor([2.0])))
    between = torch.lerp(values[:, :-2:2], values[:, 2::2], 0.5)
    filled, _ = built(torch.cat([torch.stack([values[:, :-2:2], between], 2).flatten(1, 2), values[:, 14:15]], 1))
    torch.testing.assert_close(half, filled[:, ::2])


def test_a_long_gap_counts_as_the_coarsest_cell() -> None:
    built, values = encoder(2, 2), series(1, 10)
    times = torch.arange(10.0, dtype=torch.float64)
    near, far = (times + gap * (times > 4) for gap in (3, 1e12))
    torch.testing.assert_close(*(built(SeriesBatch(values, None, own[None]))[0] for own in (far, near)))


def test_series_without_samples_or_extent() -> None:
    built = encoder(2, 2)
    assert built(series(2, 0))[0].shape == (2, 0, 8)
    none = SeriesBatch(series(2, 5), torch.zeros(2, 5, dtype=torch.bool))
    assert torch.equal(built(none)[0], torch.zeros(2, 5, 8, dtype=torch.float64))
    assert bool(built(SeriesBatch(series(1, 3), None, torch.ones(1, 3)))[0].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (2, 0), (2, 7)])
def test_irregular_batches_of_any_size_and_dtype(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    encoder = SeriesPyramid(2, 8, (3, 3)).to(dtype)
    values, times = torch.randn(*shape, 2, dtype=dtype), torch.rand(shape, dtype=torch.float64).cumsum(1)
    exists = torch.arange(shape[1]).expand(shape) < max(1, shape[1] - 2)
    signal, _ = encoder(SeriesBatch(values, exists, times))
    assert (signal.shape, signal.dtype) == ((*shape, 8), dtype)
    assert bool(signal.isfinite().all())


def test_missing_cells_of_a_plane_are_not_read() -> None:
    built = Pyramid("pyramid", 1, 8, [(2, 2)], 1, PointsNorm).double()
    exists = torch.ones(1, 4, 6, dtype=torch.bool)
    exists[:, :, 4:] = False
    values = torch.randn(1, 1, 4, 6, dtype=torch.float64).masked_fill(~exists[:, None], 0.0)
    torch.testing.assert_close(built.signal(values, exists)[..., :4], built.signal(values[..., :4]))


def test_sizes_out_of_range_are_refused() -> None:
    with refused(ValueError, "encoders.SeriesPyramid: strides are whole numbers of at least 1; got ()"):
        encoder()
    with refused(ValueError, "encoders.SeriesPyramid", "depth", "-1"):
        encoder(2, depth=-1)
