"""Cloud machines: invariance to rotations, and prediction from shapes, positions and features where they count."""

import math
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fredholm.encoders import PointBatch
from fredholm.models import CloudMachine, CloudReading
from fredholm.models.fitted.cloud_machine import MOST_FEATURES
from fredholm.models.fitted.cloud_numbers import (
    NUM_OF_TURNS,
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
    before, after = (numbers_of_clouds(each, everywhere(pos), turns) for each in (pos, 3 * pos @ turn + 5))
    assert before.shape == (3, num_numbers(turns))
    assert torch.allclose(before, after, atol=1e-6) == stays
    if not stays:  # the numbers used for all rotations are invariant
        freer = NUM_OF_TURNS["all"]
        torch.testing.assert_close(before[:, :freer], after[:, :freer], atol=1e-6, rtol=1e-6)


def test_half_of_the_numbers_are_invariant_to_stretching() -> None:
    pos, half = noise(2, 60, 3), (NUM_OF_TURNS["all"] - 3) // 2
    both = (pos, pos @ torch.tensor([[1.2, 0.3, 0.0], [0.0, 0.7, 0.1], [0.0, 0.0, 1.5]], dtype=torch.float64))
    before, after = (numbers_of_clouds(each, everywhere(pos), "all") for each in both)
    # except for FLAT, which regularises flat clouds
    torch.testing.assert_close(before[:, half : 2 * half], after[:, half : 2 * half], atol=1e-2, rtol=1e-2)
    assert not torch.allclose(before[:, :half], after[:, :half], atol=1e-2)


def test_padding_order_and_batch_mates_change_nothing() -> None:
    pos = noise(2, 20, 3)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    whole = numbers_of_clouds(pos, everywhere(pos), "none")
    torch.testing.assert_close(numbers_of_clouds(pos[:, order], everywhere(pos), "none"), whole)
    padded = torch.cat([pos, torch.full((2, 7, 3), 9.0, dtype=torch.float64)], 1)
    exists = torch.arange(27).expand(2, -1) < 20
    torch.testing.assert_close(numbers_of_clouds(padded, exists, "none"), whole)
    torch.testing.assert_close(numbers_of_clouds(pos[1:], everywhere(pos[1:]), "none"), whole[1:])


@pytest.mark.parametrize("points", [0, 1, 2, 5])
def test_clouds_of_few_or_coinciding_points_give_finite_numbers(points: int) -> None:
    for pos in (noise(1, 5, 3), torch.ones(1, 5, 3).double(), noise(1, 5, 3) * torch.tensor([1.0, 0.0, 0.0])):
        found = numbers_of_clouds(pos, torch.arange(5)[None] < points, "none")
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


@pytest.mark.parametrize("count", [2, MOST_FEATURES + 1])
def test_features_of_points_are_read(count: int) -> None:
    pos, features = noise(30, 12, 3), noise(30, 12, count, seed=1)
    built = CloudMachine.Config(turns="all").build(CloudReading(num_features=count), 2)
    found = built.numbers(PointBatch(pos, features))[:, NUM_OF_TURNS["all"] :]
    torch.testing.assert_close(found[:, :count], features.mean(1))
    assert found.shape[1] == (5 * count if count <= MOST_FEATURES else count)
    if count <= MOST_FEATURES:
        torch.testing.assert_close(found[:, count : 2 * count], features.std(1, correction=0))
        torch.testing.assert_close(found[:, 3 * count : 4 * count], features.amax(1))


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
