from typing import Any

import pytest
import torch

from fredholm.tasks.points.augmentation import CloudAugmentation, Clouds
from tests.refusals import refused

MASK = torch.ones(400, 7, dtype=torch.bool).index_fill(1, torch.tensor([3]), False)


def clouds() -> Clouds:
    pos = torch.randn(400, 7, 3, dtype=torch.float64) + 5
    return Clouds(torch.where(MASK[..., None], pos, 0.0), torch.randn(400, 7, 4), MASK)


def augmented(given: Clouds, normal: tuple[int, int, int] | None = None, seed: int = 0, **settings: Any) -> Clouds:
    changes = CloudAugmentation(CloudAugmentation.Config(**settings), normal)
    return changes(given, torch.Generator().manual_seed(seed))


def offsets(given: Clouds) -> torch.Tensor:
    """Coordinates relative to the centre, at the valid points."""
    centre = given.pos.sum(1, keepdim=True) / given.mask.sum(1).view(-1, 1, 1)
    return (given.pos - centre)[:, [0, 1, 2, 4, 5, 6]]


def test_nothing_changes_by_default_and_draws_come_from_the_generator() -> None:
    given = clouds()
    assert augmented(given) is given
    state = torch.get_rng_state()
    changes: list[dict[str, Any]] = [{"scale": (0.5, 2.0)}, {"rotation": "all"}, {"jitter": 0.1}, {"drop": 0.5}]
    for settings in changes:
        one, same, other = (augmented(given, seed=seed, **settings) for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        assert not one.mask[:, 3].any()
        assert not one.pos[~one.mask].any()
    assert torch.equal(torch.get_rng_state(), state)


def test_axes_are_scaled_independently() -> None:
    given = clouds()
    factors = offsets(augmented(given, scale=(0.5, 2.0))) / offsets(given)
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors))
    drawn = factors[:, 0]
    assert 0.5 <= float(drawn.min()) < 0.52
    assert 1.98 < float(drawn.max()) <= 2
    assert float(torch.corrcoef(drawn.T).fill_diagonal_(0).abs().max()) < 0.2


@pytest.mark.parametrize("axis", ["x", "y", "z"])
def test_rotation_about_an_axis(axis: Any) -> None:
    given = clouds()
    before, after = offsets(given), offsets(augmented(given, rotation="axis", axis=axis))
    kept = "xyz".index(axis)
    torch.testing.assert_close(after[..., kept], before[..., kept])
    torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1))
    across = [k for k in range(3) if k != kept]
    one, other = (torch.view_as_complex(part[:, 0][:, across].contiguous()) for part in (before, after))
    turned = (other / one).angle()
    assert float(turned.min()) < -3.0
    assert float(turned.max()) > 3.0
    assert abs(float(torch.exp(1j * turned).mean().abs())) < 0.15


def test_rotation_about_all_axes() -> None:
    given = clouds()
    before, after = offsets(given), offsets(augmented(given, rotation="all"))
    torch.testing.assert_close(after @ after.mT, before @ before.mT)
    turns = torch.linalg.lstsq(before, after).solution
    torch.testing.assert_close(torch.linalg.det(turns), torch.ones(400, dtype=torch.float64))
    assert float(turns.mean(0).abs().max()) < 0.12
    assert float((turns.square().mean(0) - 1 / 3).abs().max()) < 0.07


def test_normals_stay_perpendicular_to_their_surface() -> None:
    """Two directions in a plane and its normal, which must stay perpendicular."""
    given = clouds()
    plane = torch.randn(400, 2, 3, dtype=torch.float64)
    pos = torch.zeros(400, 7, 3, dtype=torch.float64)
    pos[:, 1], pos[:, 2] = plane[:, 0], plane[:, 1]
    features = given.features.clone()
    normal = torch.linalg.cross(plane[:, 0], plane[:, 1])
    features[:, 0, [3, 0, 1]] = torch.nn.functional.normalize(normal, dim=-1).float()
    found = augmented(Clouds(pos, features, MASK), (3, 0, 1), rotation="all", scale=(0.5, 2.0))
    turned = found.features[:, 0, [3, 0, 1]].double()
    torch.testing.assert_close(turned.norm(dim=-1), torch.ones(400, dtype=torch.float64))
    for k in (1, 2):
        assert float(((found.pos[:, k] - found.pos[:, 0]) * turned).sum(-1).abs().max()) < 1e-5
    assert torch.equal(found.features[..., 2], features[..., 2])
    assert not torch.equal(features, found.features)


def test_jitter_is_in_radii_and_limited() -> None:
    given = clouds()
    radius = offsets(given).norm(dim=-1).amax(1).view(-1, 1, 1)
    noise = (augmented(given, jitter=0.01).pos - given.pos)[MASK].view(400, 6, 3) / radius
    assert abs(float(noise.std()) - 0.01) < 5e-4
    cut = (augmented(given, jitter=0.5, jitter_limit=0.1).pos - given.pos)[MASK].view(400, 6, 3) / radius
    torch.testing.assert_close(cut.abs().amax((1, 2)), torch.full((400,), 0.1, dtype=torch.float64))


def test_points_are_dropped_but_never_all_of_a_cloud() -> None:
    given = clouds()
    kept = augmented(given, drop=0.99).mask
    assert int(kept.sum(1).min()) == 1
    assert int(kept.sum(1).max()) == 6
    assert not (kept & ~MASK).any()
    assert abs(float(augmented(given, drop=0.5).mask[MASK].float().mean()) - 0.75) < 0.03
    one = Clouds(torch.zeros(3, 1, 3), torch.zeros(3, 1, 0), torch.ones(3, 1, dtype=torch.bool))
    assert bool(augmented(one, drop=0.9, jitter=0.1).mask.all())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": (2.0, 1.0)}, "scale is (2.0, 1.0); expected two factors above 0, the smaller one first"),
        ({"scale": (0.0, 1.0)}, "scale is (0.0, 1.0)"),
        ({"rotation": "some"}, "rotation is 'some'; expected one of none, axis, all"),
        ({"rotation": "axis", "axis": "w"}, "axis is 'w'; expected one of x, y, z"),
        ({"jitter": -1.0}, "jitter is -1.0"),
        ({"jitter": 0.1, "jitter_limit": 0.0}, "jitter_limit 0.0"),
        ({"drop": 1.0}, "drop is 1.0; expected a share from 0 to below 1"),
        ({"rotation": "all", "axis": "x"}, "axis='x' has no effect with rotation='all'"),
        ({"jitter_limit": 0.1}, "jitter_limit=0.1 has no effect with jitter=0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        CloudAugmentation.Config(**settings)
