"""Cloud machines: invariance to rotations, and prediction from shapes, positions and features where they count."""

import math
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fredholm.encoders import PointBatch
from fredholm.models import CloudMachine, CloudReading
from fredholm.models.fitted.cloud_features import (
    MOST_FEATURES,
    MOST_PLACED,
    RANGES,
    num_of_features,
    numbers_of_features,
)
from fredholm.models.fitted.cloud_numbers import (
    NUM_OF_TURNS,
    CloudFrame,
    Turns,
    determinant,
    eigenvalues,
    num_numbers,
    numbers_of_clouds,
    quantiles,
)
from fredholm.tasks.targets import ClassTarget, NumberTarget
from tests.refusals import refused

CLASSES = ClassTarget(names=("shell", "rod", "cross"))


def rotation(seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(3, 3, generator=draw, dtype=torch.float64)).Q
    return q * q.det().sign()


def about_z(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def everywhere(pos: Tensor) -> Tensor:
    return torch.ones(pos.shape[:2], dtype=torch.bool)


def shapes(count: int, seed: int = 0, points: int = 40) -> Tensor:
    """Shells, full balls and crosses of three rods in turn, of any size and orientation."""
    x = noise(count, points, 3, seed=seed)
    shell = x / x.norm(dim=2, keepdim=True)
    ball = shell * noise(count, points, 1, seed=seed + 1).abs().clamp(max=2) / 2
    cross = 0.1 * x
    cross[torch.arange(count)[:, None], torch.arange(points), torch.arange(points) % 3] *= 10
    kinds = (torch.arange(count) % 3)[:, None, None]
    found = torch.where(kinds == 0, shell, torch.where(kinds == 1, ball, cross))
    turns = torch.stack([rotation(seed + k) for k in range(count)])
    return (found + 0.03 * x) @ turns * torch.exp(noise(count, 1, 1, seed=seed + 2)) + noise(count, 1, 3, seed=seed + 3)


@pytest.mark.parametrize(
    ("turns", "turn", "stays"),
    [
        ("all", rotation(), True),
        ("axis", about_z(0.7), True),
        ("axis", rotation(), False),
        ("none", about_z(0.7), False),
    ],
)
def test_numbers_are_invariant_to_the_configured_rotations(turns: Turns, turn: Tensor, stays: bool) -> None:
    pos = noise(3, 30, 3) * torch.tensor([1.0, 2.0, 3.0])
    before, after = (numbers_of_clouds(CloudFrame(each, everywhere(pos)), turns) for each in (pos, 3 * pos @ turn + 5))
    assert before.shape == (3, num_numbers(turns))
    assert torch.allclose(before, after, atol=1e-6) == stays
    if not stays:  # the numbers used for all rotations are invariant
        freer = NUM_OF_TURNS["all"]
        torch.testing.assert_close(before[:, :freer], after[:, :freer], atol=1e-6, rtol=1e-6)


def test_half_of_the_numbers_are_invariant_to_stretching() -> None:
    pos, half = noise(2, 60, 3), (NUM_OF_TURNS["all"] - 3) // 2
    both = (pos, pos @ torch.tensor([[1.2, 0.3, 0.0], [0.0, 0.7, 0.1], [0.0, 0.0, 1.5]], dtype=torch.float64))
    before, after = (numbers_of_clouds(CloudFrame(each, everywhere(pos)), "all") for each in both)
    # except for FLAT, which regularises flat clouds
    torch.testing.assert_close(before[:, half : 2 * half], after[:, half : 2 * half], atol=1e-2, rtol=1e-2)
    assert not torch.allclose(before[:, :half], after[:, :half], atol=1e-2)


def test_padding_order_and_batch_mates_change_nothing() -> None:
    pos = noise(2, 20, 3)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    whole = numbers_of_clouds(CloudFrame(pos, everywhere(pos)), "none")
    torch.testing.assert_close(numbers_of_clouds(CloudFrame(pos[:, order], everywhere(pos)), "none"), whole)
    padded = torch.cat([pos, torch.full((2, 7, 3), 9.0, dtype=torch.float64)], 1)
    exists = torch.arange(27).expand(2, -1) < 20
    torch.testing.assert_close(numbers_of_clouds(CloudFrame(padded, exists), "none"), whole)
    torch.testing.assert_close(numbers_of_clouds(CloudFrame(pos[1:], everywhere(pos[1:])), "none"), whole[1:])


@pytest.mark.parametrize("points", [0, 1, 2, 5])
def test_clouds_of_few_or_coinciding_points_give_finite_numbers(points: int) -> None:
    for pos in (noise(1, 5, 3), torch.ones(1, 5, 3).double(), noise(1, 5, 3) * torch.tensor([1.0, 0.0, 0.0])):
        found = numbers_of_clouds(CloudFrame(pos, torch.arange(5)[None] < points), "none")
        assert found.isfinite().all()
        assert bool((found == 0).all()) == (points == 0)


def test_eigenvalues_determinants_and_quantiles_match_torch() -> None:
    x = noise(6, 3, 3)
    x = x @ x.mT
    x[0] = torch.eye(3)
    torch.testing.assert_close(eigenvalues(x), torch.linalg.eigvalsh(x).flip(-1), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(determinant(x), torch.linalg.det(x))
    values, ranks = noise(2, 3, 11), (torch.arange(4).double() + 0.5) / 4
    found = quantiles(values, torch.arange(11).expand(2, -1) < 9, 4).unflatten(1, (3, 4))
    torch.testing.assert_close(found, torch.quantile(values[..., :9], ranks, dim=2).permute(1, 2, 0))


@pytest.mark.slow
def test_eigenvalues_can_be_exported_to_onnx(tmp_path: Path) -> None:
    """ONNX has no arccosine in float64."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")

    class Eigenvalues(torch.nn.Module):
        def forward(self, matrices: Tensor) -> Tensor:
            return eigenvalues(matrices)

    x = noise(50, 3, 3)
    x = torch.cat([x + x.mT, -noise(1, 3, 1) * noise(1, 3, 1).mT, torch.eye(3)[None].double()])
    warnings.simplefilter("ignore")  # exporters warn about their own internals
    torch.onnx.export(Eigenvalues().eval(), (x,), file := tmp_path / "eigenvalues.onnx", dynamo=True, verbose=False)
    (found,) = onnxruntime.InferenceSession(file).run(None, {"matrices": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), eigenvalues(x))


def test_shapes_are_predicted_for_any_rotation_and_size() -> None:
    torch.manual_seed(0)
    built = CloudMachine.Config(turns="all", num_trees=0).build(CloudReading(), 3)
    left_out = built.fit([(PointBatch(shapes(30)), torch.arange(30) % 3)], CLASSES)
    with torch.no_grad():
        found = built(PointBatch(shapes(30, seed=100)))
    targets = torch.arange(30) % 3
    assert (found.argmax(1) == targets).double().mean() > 0.9
    assert (left_out.argmax(1) == targets).double().mean() > 0.8


@pytest.mark.parametrize("keeps_place", [False, True])
def test_size_and_position_are_predicted_where_they_count(keeps_place: bool) -> None:
    torch.manual_seed(0)
    size, at = noise(40, 1, seed=1).exp(), noise(40, 1, seed=2)
    pos = size[..., None] * noise(40, 15, 3, seed=3) + at[..., None]
    target = NumberTarget(names=("size", "x"), mean=(0.0, 0.0), deviation=(1.0, 1.0))
    built = CloudMachine.Config(num_trees=0).build(CloudReading(keeps_place=keeps_place), 2)
    targets = torch.cat([size.log(), at], 1)
    left_out = built.fit([(PointBatch(pos), targets)], target)
    errors = (left_out - targets).square().mean(0) / targets.var(0)
    assert bool((errors < 0.5).all()) == keeps_place


@pytest.mark.parametrize("turns", ["all", "axis", "none"])
@pytest.mark.parametrize("count", [2, MOST_PLACED + 1, MOST_FEATURES + 1])
def test_values_of_features_are_read(count: int, turns: Turns) -> None:
    pos, features = noise(3, 12, 3), noise(3, 12, count, seed=1)
    built = CloudMachine.Config(turns=turns).build(CloudReading(num_features=count), 2)
    found = built.numbers(PointBatch(pos, features))[:, num_numbers(turns) :]
    assert found.shape[1] == num_of_features(count, (), turns)
    torch.testing.assert_close(found[:, :count], features.mean(1))
    if count <= MOST_FEATURES:
        torch.testing.assert_close(found[:, count : 2 * count], features.std(1, correction=0))
        torch.testing.assert_close(found[:, 3 * count : 4 * count], features.amax(1))


def test_places_of_features_equal_those_of_loops() -> None:
    pos, f = noise(1, 30, 3), noise(1, 30, 1, seed=1)
    frame = CloudFrame(pos, everywhere(pos))
    found = numbers_of_features(frame, f, (), "none")[0, 5:]
    x, rest = frame.x[0], (f - f.mean())[0, :, 0]
    expected = [(rest @ x).norm() / 30]
    distance = torch.cdist(x, x)
    for low, high in RANGES:
        near = (distance >= low) & (distance < high) & ~torch.eye(30, dtype=torch.bool)
        expected.append((rest[:, None] * rest)[near].mean() / rest.square().mean())
    expected.append((rest * x[:, :2].norm(dim=1)).mean())
    z = x[:, 2]
    slab = ((z - z.min()) / (z.max() - z.min()) * 5).long().clamp(max=4)
    expected += [rest[slab == k].sum() / 30 for k in range(5)]
    cell = ((x / x.norm(dim=1).max() + 1) / 2 * 3).long().clamp(0, 2) @ torch.tensor([9, 3, 1])
    expected += [rest[cell == k].sum() / 30 for k in range(27)]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize(("turns", "turn"), [("all", rotation()), ("axis", about_z(0.7))])
def test_normals_rotate_with_the_cloud(turns: Turns, turn: Tensor) -> None:
    pos, features = noise(3, 30, 3) * torch.tensor([1.0, 2.0, 3.0]), noise(3, 30, 4, seed=1)
    features[0, :4, :3] = 0  # points without a normal
    both, normal = list[Tensor](), (2, 0, 1)
    for q in (torch.eye(3, dtype=torch.float64), turn):
        own = features.clone()
        own[..., list(normal)] = features[..., list(normal)] @ q
        both.append(numbers_of_features(CloudFrame(3 * pos @ q + 5, everywhere(pos)), own, normal, turns))
    assert both[0].shape == (3, num_of_features(4, normal, turns))
    torch.testing.assert_close(*both, atol=1e-6, rtol=1e-6)
    turned_alone = numbers_of_features(CloudFrame(3 * pos @ turn + 5, everywhere(pos)), features, normal, turns)
    assert not torch.allclose(both[0], turned_alone, atol=1e-2)


def test_whitened_normals_are_orthogonal_to_whitened_planes() -> None:
    pos, normal = noise(1, 40, 3), noise(1, 1, 3, seed=1)
    pos[:, :6] -= (pos[:, :6] @ normal.mT) * normal / normal.square().sum()  # six points of a plane
    frame = CloudFrame(pos, everywhere(pos))
    along = frame.w[:, 1:6] - frame.w[:, :1]
    torch.testing.assert_close(along @ frame.whitened_normals(normal).mT, torch.zeros(1, 5, 1).double())
    assert (along @ normal.mT).abs().max() > 0.01


def test_unreadable_clouds_and_bad_settings_are_refused() -> None:
    built = CloudMachine.Config().build(CloudReading(), 2)
    with refused(ValueError, "models.CloudMachine", "masses"):
        built(PointBatch(noise(1, 4, 3), weights=torch.ones(1, 4)))
    with refused(ValueError, "models.CloudMachine", "NaN"):
        built(torch.full((1, 4, 3), torch.nan))
    with refused(ValueError, "no cloud"):
        built.fit([], CLASSES)
    with refused(ValueError, "turns is 'some'", "axis"):
        CloudMachine.Config(turns="some")  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "normal is (0, 0, 1)", "num_features=3"):
        CloudReading(num_features=3, normal=(0, 0, 1))
