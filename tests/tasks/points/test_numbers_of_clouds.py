"""Numeric targets of clouds: reading, learning and messages."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.models import ITNet, LowRankConfig
from fredholm.tasks import PointLearning
from fredholm.tasks.points import open_points
from fredholm.tasks.points.augmentation import CloudAugmentation
from fredholm.tasks.targets import NumberTarget
from fredholm.training import Run, TrainingConfig, train
from tests.refusals import refused
from tests.tasks.points.build import write_xyz

CPU = torch.device("cpu")
SMALL = ITNet.Config(
    embed_dim=8, depth=1, num_heads=2, kernel=LowRankConfig(rank=2, width=4, num_frequencies=2, sigma=1.0), dropout=0.0
)


def clouds(count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Clouds of ten points, each with its size and its position as targets."""
    drawn = np.random.default_rng(0)
    size, place = drawn.uniform(0.5, 4, count), drawn.normal(size=count)
    x = drawn.normal(size=(count, 10, 3)) * size[:, None, None] + place[:, None, None]
    return x, np.stack([size, place], 1)


def write(folder: Path, **changed: Any) -> Path:
    """Writes all arrays to one file; None leaves an array out."""
    x, found = clouds()
    arrays = {"x": x, "targets": found, "target_names": ["size", "place"]} | changed
    np.savez(folder / "clouds.npz", **{name: each for name, each in arrays.items() if each is not None})
    return folder / "clouds.npz"


def config(folder: Path, **settings: Any) -> PointLearning.Config:
    return PointLearning.Config(**{"data": str(write(folder)), "model": SMALL, "num_neighbours": 3, **settings})


def test_targets_of_a_file_have_names(tmp_path: Path) -> None:
    found = open_points(write(tmp_path))
    assert found.target_names == ("size", "place")
    assert found.targets is not None
    torch.testing.assert_close(found.targets, torch.from_numpy(clouds()[1]))
    assert open_points(write(tmp_path, target_names=None)).target_names == ("target_0", "target_1")
    one = open_points(write(tmp_path, target_names=None, targets=np.arange(30)))
    assert one.target_names == ("target",)
    torch.testing.assert_close(
        one.select(torch.tensor([3, 1])).targets, torch.tensor([[3.0], [1.0]], dtype=torch.float64)
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"y": np.arange(30) % 2}, ("y and targets", "leave the other out")),
        ({"targets": np.full((30, 2), np.nan)}, ("targets[0, 0] is nan", "expected")),
        ({"targets": np.zeros((29, 2))}, ("targets is float64 (29, 2)", "(30,) or (30, T)")),
        ({"targets": np.array(["a"] * 30)}, ("targets is <U1", "expected numbers")),
        ({"target_names": ["size"]}, ("1 target_names for 2 columns",)),
        ({"targets": None, "y": np.arange(30) % 2}, ("target_names, but no targets",)),
        ({"targets": None, "target_names": None, "y": np.arange(30) / 2}, ("y is float64", "are called targets")),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(ValueError, "clouds.npz", *words):
        open_points(write(tmp_path, **changed))


def test_all_splits_or_none_have_targets(tmp_path: Path) -> None:
    x, got = clouds()
    arrays: dict[str, Any] = {"x_train": x[:20], "targets_train": got[:20], "x_test": x[20:]}
    np.savez(tmp_path / "split.npz", **arrays)
    with refused(ValueError, "split.npz", "some of targets_train, targets_test"):
        open_points(tmp_path / "split.npz")
    np.savez(tmp_path / "split.npz", **arrays, targets_test=got[20:, :1])
    with refused(ValueError, "split.npz", "2 and 1 columns in different splits"):
        open_points(tmp_path / "split.npz")
    np.savez(tmp_path / "split.npz", **arrays, targets_test=got[20:])
    found = open_points(tmp_path / "split.npz")
    assert found.marks.given is not None
    assert found.marks.given.tolist() == [0] * 20 + [2] * 10


def folder_of(folder: Path, table: str, count: int = 4) -> Path:
    for i in range(count):
        write_xyz(folder / "scans" / f"{i}.xyz", clouds()[0][i])
    (folder / "labels.csv").write_text(table)
    return folder


def test_a_table_lists_files_with_their_numbers_or_classes(tmp_path: Path) -> None:
    rows = "".join(f"scans/{i}.xyz,{i}.5,{2 * i},{('train', 'test')[i % 2]}\n" for i in (2, 0, 1, 3))
    found = open_points(folder_of(tmp_path / "a", "file,volume,length,split\n" + rows))
    assert found.target_names == ("volume", "length")
    assert found.targets is not None
    assert found.targets.tolist() == [[2.5, 4], [0.5, 0], [1.5, 2], [3.5, 6]]
    assert found.marks.given is not None
    assert found.marks.given.tolist() == [0, 0, 2, 2]
    assert [Path(name).name for name in found.names] == ["2.xyz", "0.xyz", "1.xyz", "3.xyz"]
    whole = folder_of(tmp_path / "b", "file,label\n" + "".join(f"scans/{i}.xyz,{i % 2}\n" for i in range(4)))
    assert open_points(whole).classes == ("0", "1")
    of_numbers = open_points(whole, kind="number")
    assert (of_numbers.target_names, of_numbers.labels) == (("label",), None)
    named = folder_of(tmp_path / "c", "file,label\n" + "".join(f"scans/{i}.xyz,{'ab'[i % 2]}\n" for i in range(4)))
    assert open_points(named).labels.tolist() == [0, 1, 0, 1]  # pyright: ignore[reportOptionalMemberAccess]


def test_tables_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with refused(ValueError, "labels.csv", "several labels a cloud"):
        open_points(folder_of(tmp_path / "a", "file,red,blue\nscans/0.xyz,1,0\nscans/1.xyz,0,1\n", 2))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "note.txt").write_text("no cloud")
    with refused(ValueError, "labels.csv", "note.txt is no cloud", ".xyz"):
        open_points(folder_of(tmp_path / "b", "file,label\nnote.txt,1.5\nscans/1.xyz,2\n"))
    with pytest.warns(UserWarning, match="left out 2 clouds that labels.csv does not name"):
        open_points(folder_of(tmp_path / "c", "file,label\nscans/0.xyz,1.5\nscans/1.xyz,2\n"))
    with refused(ValueError, "clouds have numbers", "classes stand in labels.csv"):
        open_points(write(tmp_path), kind="class")


def test_the_kind_of_target_follows_from_the_data_and_others_are_refused(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    assert isinstance(task.target, NumberTarget)
    assert config(tmp_path, target="number").build().target == task.target
    for target in ("cloud", "points"):
        with refused(ValueError, "clouds have numbers" if target == "cloud" else "no labels"):
            config(tmp_path, target=target).build()
    with refused(ValueError, "label_smoothing=0.1 has no effect with numbers"):
        config(tmp_path, label_smoothing=0.1).build()
    with refused(ValueError, "target is 'cloud'", "made with 'number'"):
        PointLearning(config(tmp_path, target="cloud"), task.facts)


def test_clouds_with_numbers_keep_their_size_and_orientation(tmp_path: Path) -> None:
    requested = PointLearning.Config(data=str(write(tmp_path)))
    machine: Any = requested.recommended("small")[0]
    assert machine.sizes
    assert machine.model.turns == "none"
    recommended: Any = requested.recommended("small", epochs=5)[0]
    found = (
        "epochs=5 takes a network; without it there is a cloud machine, fitted in closed form and better on up to 500 "
        "clouds"
    )
    assert (requested.recommended("small").notes, requested.recommended("small", epochs=5).notes) == ((), (found,))
    assert recommended.sizes
    assert recommended.augmentation == CloudAugmentation.Config(jitter=0.01)
    assert (recommended.align, recommended.label_smoothing) == (False, 0.0)
    assert recommended.model.pool == "max"


def test_the_size_of_a_cloud_is_a_feature_of_its_points(tmp_path: Path) -> None:
    task = config(tmp_path, sizes=True).build()
    clouds_of_train = task.splits.train
    radii = [(pos - pos.mean(0)).norm(dim=1).max().log() for pos in clouds_of_train.pos.split(10)]
    got = torch.stack(radii)
    mean, deviation = task.facts.size
    assert (mean, deviation) == pytest.approx((float(got.mean()), float(got.std(correction=0))))
    batch = task.train_batch(torch.arange(4), torch.Generator())
    seen = task._rows.features(batch)
    assert seen is not None
    expected = ((got[:4] - mean) / deviation).float()
    torch.testing.assert_close(seen, expected[:, None, None].expand(4, 10, 1))
    mask = torch.arange(10) < torch.tensor([10, 1, 5, 10])[:, None]
    part = batch | {"mask": mask}
    found = task._rows.features(part)
    assert found is not None
    assert bool((found[1] == 0).all())  # one point has no size
    assert bool((found[2, 5:] == 0).all())
    alone = {"pos": batch["pos"][2:3, :5], "mask": mask[2:3, :5]}
    torch.testing.assert_close(task._rows.features(alone), found[2:3, :5])
    assert config(tmp_path).build()._rows.features(batch) is None


def test_a_run_predicts_numbers_and_quantiles(tmp_path: Path) -> None:
    for name, quantiles in (("means", ()), ("quantiles", (0.1, 0.5, 0.9))):
        task = config(tmp_path, quantiles=quantiles, sizes=True)
        training = TrainingConfig(epochs=2, batch_size=8, tensorboard=False)
        metrics = train(Run.Config(task=task, training=training), tmp_path / name).metrics
        assert {"mean_absolute_error", "root_mean_squared_error", "r2", "loss"} <= metrics.keys()
        np.savetxt(tmp_path / "new.xyz", clouds()[0][0])
        [row] = Run(tmp_path / name).predict([tmp_path / "new.xyz"])
        expected = ["file", "cloud", "size", "place"]
        expected += [f"{what} at {level}" for what in ("size", "place") for level in quantiles]
        assert list(dict(row)) == expected
        assert all(math.isfinite(float(dict(row)[name])) for name in expected[2:])


def test_votes_average_predictions(tmp_path: Path) -> None:
    task = config(tmp_path, votes=3, num_points=6, augmentation=CloudAugmentation.Config(rotation="all")).build()
    torch.manual_seed(0)
    model = task.model().eval()
    batch = task.held_out_batch("valid", torch.arange(2))
    with torch.no_grad():
        each = task._outputs(model, batch).view(3, 2, 2)
    outputs = each.mean(0)
    assert float((each - outputs).abs().max()) > 1e-3
    predicted, known, _ = task.outputs_and_targets(model, "valid", torch.arange(2))
    torch.testing.assert_close(predicted, outputs)
    assert task.splits.valid is not None
    assert task.splits.valid.targets is not None
    torch.testing.assert_close(known, task.target.targets(task.splits.valid.targets[:2]))


def test_a_tensor_form_gives_the_same_predictions(tmp_path: Path) -> None:
    task = config(tmp_path, sizes=True).build()
    model = task.model().eval()
    form = task.tensor_form(model)
    x = torch.from_numpy(clouds()[0][:2])
    np.savez(tmp_path / "asked.npz", x=x.numpy())
    found = form.call(model, x, torch.ones(2, 10, dtype=torch.bool))
    rows = [dict(row) for row in task.predict(model, [tmp_path / "asked.npz"], CPU)]
    expected = torch.tensor([[row["size"], row["place"]] for row in rows])
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-4)
    assert form.names == {"numbers": ("size", "place")}


def test_baselines_predict_numbers_too(tmp_path: Path) -> None:
    task = config(tmp_path, valid_fraction=0.2).build()
    assert {baseline.name for baseline in task.baselines}
    with refused(ValueError, "the run was made with"):
        other = dataclasses.replace(task.facts, target=dataclasses.replace(task.facts.target, names=("a", "b")))
        _ = PointLearning(task.config, other).splits
