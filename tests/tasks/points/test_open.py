import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.tasks.points import PointSet, modelnet10_voxels, open_points, read_npz, read_points
from fredholm.tasks.points.modelnet10_voxels import SIDE, surface
from fredholm.tasks.splits.split_marks import SplitMarks
from tests.refusals import refused
from tests.tasks.points.build import balls_and_rods, write_folder, write_off, write_xyz

LAYOUTS = {
    "classes": ("{label}",),
    "splits of classes": ("train/{label}", "valid/{label}", "test/{label}"),
    "classes of splits": ("{label}/train", "{label}/val", "{label}/test"),
    "no test": ("train/{label}", "val/{label}/deeper"),
    "no validation": ("{label}/train", "{label}/test"),
    "training alone": ("train/{label}",),
}
WORDS = (("train",), ("valid", "val"), ("test",))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders(tmp_path: Path, layout: str) -> None:
    write_folder(tmp_path, 10, folders=LAYOUTS[layout])
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README.txt").write_text("no cloud")
    found = open_points(tmp_path)
    assert found.channels == ()
    assert len(found) == 10 * len(LAYOUTS[layout])
    assert found.classes == ("ball", "rod")
    assert found.labels is not None
    assert [label == 0 for label in found.labels.tolist()] == ["ball" in name for name in found.names]
    assert (found.marks.given is None) == (layout == "classes")
    for name, part in zip(found.names, [] if found.marks.given is None else found.marks.given.tolist(), strict=False):
        assert set(WORDS[part]) & set(Path(name).relative_to(tmp_path).parts)
    if found.marks.given is not None:
        with refused(ValueError, f"there are {len(found) - 1} splits of {len(found)} examples; expected one each"):
            dataclasses.replace(found, marks=SplitMarks(given=found.marks.given[1:]))
    clouds, _ = balls_and_rods(0, 10)
    first = found.select(torch.tensor([0]))
    index = int(Path(first.names[0]).stem)
    np.testing.assert_allclose(first.pos.numpy(), clouds[index], atol=1e-6)


def test_a_class_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    for name in ("engine", "train", "test"):
        write_folder(tmp_path, 2, folders=(name,))
    found = open_points(tmp_path)
    assert (found.marks.given, found.classes) == (None, ("engine", "test", "train"))


def test_labels_of_points_need_no_classes_of_clouds(tmp_path: Path) -> None:
    for i in range(5):
        path = write_xyz(tmp_path / f"{i}.xyz", np.full((3, 3), float(i)))
        path.with_suffix(".labels").write_text("10\n9\nten\n" if i else "9\n9\n9\n")
    found = open_points(tmp_path)
    assert found.labels is None
    assert found.point_classes == ("9", "10", "ten")
    for i, name in enumerate(found.names):
        own = found.select(torch.tensor([i])).point_labels
        assert own is not None
        assert own.tolist() == ([0, 0, 0] if Path(name).stem == "0" else [1, 0, 2])


def test_points_and_normals_are_sampled_from_meshes(tmp_path: Path) -> None:
    for name, scale in (("small", 1.0), ("large", 2.0)):
        for i in range(3):
            write_off(tmp_path / name / f"{i}.off", scale=scale)
    found = open_points(tmp_path, num_samples=7, normals=True)
    assert found.sizes.tolist() == [7] * 6
    assert found.channels == ("nx", "ny", "nz")
    assert read_points(tmp_path / "small" / "0.off", num_samples=7).pos.shape == (7, 3)
    write_folder(tmp_path / "points")
    with refused(ValueError, "num_samples=7 has no effect with", "points, where there are no meshes"):
        open_points(tmp_path / "points", num_samples=7)
    with refused(ValueError, "ball/0.xyz, ", "(has no faces to take normals from"):
        open_points(tmp_path / "points", normals=True)


def arrays(n: int = 6, size: int = 5, features: int = 1, **more: Any) -> dict[str, Any]:
    drawn = np.random.default_rng(0)
    return {"x": drawn.normal(size=(n, size, 3 + features)), "y": np.arange(n) % 2, **more}


def npz(path: Path, **given: Any) -> Path:
    np.savez(path, **given)
    return path


def test_padded_joined_and_masked_arrays_give_the_same_clouds(tmp_path: Path) -> None:
    given = arrays()
    x, lengths = given["x"], np.array([5, 1, 2, 3, 4, 5])
    joined = np.concatenate([x[i, :k] for i, k in enumerate(lengths)])
    weights = np.abs(x[..., 0])
    mask = np.arange(5) < lengths[:, None]
    holes = np.where(mask[..., None], x, np.nan)
    ways = [
        {"x": holes, "lengths": lengths, "weights": weights},
        {"points": holes, "mask": mask, "weights": weights},
        {"x": joined, "lengths": lengths, "weights": weights[mask]},
        {"x": joined, "offsets": np.concatenate([[0], lengths.cumsum()]), "weights": weights[mask]},
    ]
    found = [read_npz(npz(tmp_path / f"{i}.npz", y=given["y"], **way)) for i, way in enumerate(ways)]
    first = found[0]
    assert isinstance(first, PointSet)
    assert first.sizes.tolist() == lengths.tolist()
    assert first.channels == ("feature_0",)
    for other in found[1:]:
        assert isinstance(other, PointSet)
        assert torch.equal(first.pos, other.pos)
        assert torch.equal(first.features, other.features)
        assert first.weights is not None
        assert other.weights is not None
        assert torch.equal(first.weights, other.weights)


@pytest.mark.parametrize("valid", ["", "valid", "val"])
def test_splits_and_names_in_arrays(tmp_path: Path, valid: str) -> None:
    given = arrays(classes=["chair", "lamp"], channels=["heat"], point_classes=["top", "leg", "back"])
    x, labels = given.pop("x"), np.arange(30).reshape(6, 5) % 3
    y, rows = given.pop("y"), {"train": slice(0, 3), "test": slice(4, 6)} | ({valid: slice(3, 4)} if valid else {})
    for word, own in rows.items():
        given |= {f"x_{word}": x[own], f"y_{word}": y[own], f"labels_{word}": labels[own]}
    path = npz(tmp_path / "a.npz", **given)
    found = open_points(path)
    kept = [*range(3), *([3] if valid else []), 4, 5]
    assert found.marks.given is not None
    assert found.marks.given.tolist() == [(0, 0, 0, 1, 2, 2)[i] for i in kept]
    assert (found.classes, found.channels) == (("chair", "lamp"), ("heat",))
    assert found.point_classes == ("top", "leg", "back")
    assert found.labels is not None
    assert found.labels.tolist() == y[kept].tolist()
    assert found.point_labels is not None
    assert found.point_labels.tolist() == labels[kept].ravel().tolist()
    np.testing.assert_array_equal(found.pos, x[kept][..., :3].reshape(-1, 3))
    part = found.select(torch.tensor([len(kept) - 1, 0]))
    assert part.marks.given is not None
    assert part.marks.given.tolist() == [2, 0]
    with pytest.warns(UserWarning, match="a.npz: holds the parts .*; the test part is read"):
        assert len(read_points(path)) == 2
    assert len(read_points(path, part="train")) == 3


def test_training_clouds_define_the_classes(tmp_path: Path) -> None:
    x = np.ones((4, 2, 3))
    words = {"y_train": ["rod", "ball"], "y_test": ["ball", "rod"]}
    labels = {"labels_train": [["b", "b"], ["c", "b"]], "labels_test": [["c", "c"], ["b", "c"]]}
    found = open_points(npz(tmp_path / "a.npz", x_train=x[:2], x_test=x[2:], **words, **labels))
    assert (found.classes, found.point_classes) == (("ball", "rod"), ("b", "c"))
    for name, change, message in (
        ("y_test", ["ball", "arm"], "x_test[1]: class 'arm' is none of ball, rod"),
        ("labels_test", [["b", "a"], ["b", "c"]], "x_test[0]: point 1: class 'a' is none of b, c"),
    ):
        with refused(ValueError, "a.npz", message):
            open_points(npz(tmp_path / "a.npz", x_train=x[:2], x_test=x[2:], **words | labels | {name: change}))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("x_train", "y_train", "x_val", "y_val", "x_valid"), "has arrays of valid and of val, which are one split"),
        (("x_train", "y_train", "x_test"), "has some of y_train, y_test, but not all; give every split its classes"),
        (("x_test", "y_test"), "has no array 'x'; the arrays are x_test, y_test"),
        (("x_train", "x_test"), "neither clouds nor their points have labels"),
    ],
)
def test_bad_splits_of_arrays_are_refused(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    given = arrays(4)
    path = npz(tmp_path / "a.npz", **{name: given[name[0]] for name in names})
    with refused(ValueError, str(path), message):
        open_points(path)


def test_a_single_cloud_and_names_of_features(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", points=np.arange(12.0).reshape(2, 6))
    assert read_points(path, channels=("nx", "ny", "nz")).channels == ("nx", "ny", "nz")
    assert read_points(path).names == (f"{path}:points[0]",)
    many = npz(tmp_path / "b.npz", **arrays(10, features=3))
    assert open_points(many, channels=("nx", "ny", "nz")).channels == ("nx", "ny", "nz")
    for i, name in enumerate("aabb"):
        (tmp_path / "folder" / name).mkdir(parents=True, exist_ok=True)
        got = {"y": np.array(["a"]), "split": np.array(["test"])} if i == 0 else {}  # the folder gives the class
        npz(tmp_path / "folder" / name / f"{i}.npz", points=np.full((3, 4), float(i)), **got)
    found = open_points(tmp_path / "folder", channels=("heat",))
    assert (found.channels, found.classes) == (("heat",), ("a", "b"))
    assert torch.equal(found.features[:, 0].double(), found.pos[:, 0])
    write_folder(tmp_path / "named", kind=".off")
    with refused(ValueError, "channels=('a',) has no effect"):
        open_points(tmp_path / "named", channels=("a",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.ones((2, 3, 2))}, "x is float64 (2, 3, 2); expected numbers (n, N, 3 + features)"),
        ({"x": np.array([["a"] * 3])}, "x is <U1 (1, 3); expected numbers"),
        ({"y": np.arange(3)}, "y is int64 (3,); expected integers or names (6,), one a cloud"),
        ({"y": np.arange(6), "classes": ["a", "b"]}, "y has 2, but there are 2 classes"),
        ({"y": np.array(["a", "b", ""] * 2)}, "y[2] is empty; name the class of each cloud"),
        ({"labels": np.zeros((6, 4), int)}, "labels is int64 (6, 4); expected one a point, (6, 5)"),
        ({"weights": np.full((6, 5), -1.0)}, "x[0]: point 0: its weight is -1; expected a finite mass of at least 0"),
        ({"weights": np.zeros((6, 5))}, "x[0]: all its weights are 0; expected some mass"),
        ({"mask": np.zeros((6, 5), bool)}, "x[0]: has no points; expected at least one"),
        ({"mask": np.ones((6, 4), bool)}, "mask is bool (6, 4); expected bool (6, 5)"),
        ({"lengths": np.arange(6)}, "x[0]: has no points"),
        ({"lengths": np.arange(7)}, "lengths do not fit 6 clouds of up to 5 points"),
        ({"lengths": np.ones(6, int), "mask": np.ones((6, 5), bool)}, "mask and lengths of x (6, 5, 4); give mask or"),
        ({"x": np.ones((9, 4)), "offsets": np.array([0, 5, 4, 9])}, "offsets do not rise from 0 to the 9 points"),
        ({"x": np.ones((9, 4)), "lengths": np.array([5, 5])}, "lengths do not add up to the 9 points"),
        ({"channels": ["a", "b"]}, "x has 1 features; expected 2: a, b"),
        (
            {"x": np.full((6, 5, 4), np.nan)},
            "x[0]: point 0: its coordinates are nan, nan, nan; expected finite numbers",
        ),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = npz(tmp_path / "a.npz", **arrays() | change)
    with refused(ValueError, str(path), message):
        open_points(path)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}, {}], object))
    with refused(ValueError, "a.npz: cannot be read as an .npz file"):
        open_points(tmp_path / "a.npz")


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with refused(ValueError, "no clouds at", "pass a folder of clouds, or an .npz file of them"):
        open_points(tmp_path / "absent")
    write_folder(tmp_path / "a")
    (tmp_path / "a" / "vase").mkdir()
    (tmp_path / "a" / "vase" / "cloud.txt").write_text("1 2 3")
    with refused(ValueError, "a/vase: has no clouds (.ply, .off, .obj, .stl, .xyz, .csv, .parquet, .npz); add some"):
        open_points(tmp_path / "a")
    (tmp_path / "a" / "vase" / "train").mkdir()
    with refused(ValueError, "a/ball: has no folder train, but", "a/vase has; split all or none"):
        open_points(tmp_path / "a")
    write_folder(tmp_path / "two", folders=("train/{label}", "val/{label}", "valid/{label}"))
    with refused(ValueError, "two: has the folders val and valid, which are one split; keep one"):
        open_points(tmp_path / "two")
    write_folder(tmp_path / "some", folders=("{label}/train",))
    write_xyz(tmp_path / "some" / "rod" / "val" / "0.xyz", np.ones((2, 3)))
    with refused(ValueError, "some/ball/valid: has no clouds"):
        open_points(tmp_path / "some")
    write_folder(tmp_path / "bare", folders=("train/{label}", "test"))
    with refused(ValueError, "bare: the train split has class folders, and the test split none; give both some"):
        open_points(tmp_path / "bare")
    write_folder(tmp_path / "b", folders=("train/{label}", "test/new {label}"))
    with refused(ValueError, "test/new ball/0.xyz: class 'new ball' is none of ball, rod"):
        open_points(tmp_path / "b")
    write_folder(tmp_path / "c")
    write_xyz(tmp_path / "c" / "rod" / "odd.xyz", np.ones((3, 4)))
    with refused(ValueError, "rod/odd.xyz: has the features feature_0;", "ball/0.xyz has none; make them equal"):
        open_points(tmp_path / "c")
    write_folder(tmp_path / "d")
    (tmp_path / "d" / "rod" / "1.seg").write_text("1\n" * 13)
    with refused(ValueError, "ball/0.xyz: has no labels of points, but", "rod/1.xyz has some; give all or none"):
        open_points(tmp_path / "d")
    write_xyz(tmp_path / "e" / "a.xyz", np.array([[0.0, 1, 2], [3, np.nan, 5]]))
    with refused(ValueError, "e/a.xyz, line 2: 'nan' is no finite number; write one"):
        open_points(tmp_path / "e")
    write_xyz(tmp_path / "f" / "a.xyz", np.ones((3, 3)))
    with refused(ValueError, "f: neither clouds nor their points have labels"):
        open_points(tmp_path / "f")
    write_folder(tmp_path / "g")
    npz(tmp_path / "g" / "rod" / "many.npz", x=np.ones((2, 3, 3)))
    with refused(ValueError, "rod/many.npz: has 2 clouds; a file in a folder has one"):
        open_points(tmp_path / "g")
    labels = tmp_path / "h"
    for part, words in (("train", "a\nb\n"), ("test", "a\nc\n")):
        write_xyz(labels / part / "0.xyz", np.ones((2, 3))).with_suffix(".seg").write_text(words)
    with refused(ValueError, "test/0.xyz: point 1: class 'c' is none of a, b"):
        open_points(labels)


def test_the_surface_of_voxels() -> None:
    filled = np.zeros((SIDE,) * 3, bool)
    filled[10:13, 10:13, 10:13] = True
    filled[0, 0, 0] = True
    pos = surface(filled) * 12 + (SIDE - 1) / 2
    assert len(pos) == 27
    assert not (pos == 11).all(1).any()
    assert (pos[0] == 0).all()


@pytest.mark.slow
def test_modelnet10(shared_data: Path) -> None:
    found = modelnet10_voxels(shared_data / "modelnet10_voxel")
    assert found.marks.given is not None
    assert found.marks.given.bincount().tolist() == [3991 - 7, 0, 908 - 1]
    assert found.classes[2] == "chair"
    assert float(found.pos.abs().max()) <= 1
    with refused(ValueError, "num_samples=5 has no effect"):
        open_points(shared_data / "modelnet10_voxel", num_samples=5)


def test_groups_and_times_of_splits_in_separate_arrays(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 3))
    given = {"x_train": x, "y_train": np.array([0, 1, 1]), "x_test": x[:2], "y_test": np.array([1, 0])}
    marks = {"groups_train": np.array([*"ppq"]), "groups_test": np.array([*"rs"])}
    times = {"example_times_train": np.arange(3), "example_times_test": np.arange(3, 5)}
    np.savez(tmp_path / "a.npz", **given, **marks, **times)  # pyright: ignore[reportArgumentType]
    found = open_points(tmp_path / "a.npz").marks
    assert found.given is not None
    assert found.times is not None
    assert (found.given.tolist(), found.groups, found.times.tolist()) == (
        [0, 0, 0, 2, 2],
        tuple("ppqrs"),
        [0, 1, 2, 3, 4],
    )
    for some, kind in ((marks, "groups"), (times, "times")):
        first = dict([next(iter(some.items()))])
        np.savez(tmp_path / "b.npz", **given, **first)  # pyright: ignore[reportArgumentType]
        with refused(ValueError, f"b.npz: the test split has no {kind}, but another has; give them to all, or to none"):
            open_points(tmp_path / "b.npz")


def test_features_in_arrays_are_found_by_name(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(2, 4, 5))
    np.savez(tmp_path / "a.npz", x=x, channels=["age", "heat"])
    found = read_points(tmp_path / "a.npz", channels=("heat", "age"))
    assert found.channels == ("heat", "age")
    np.testing.assert_allclose(found.features.numpy(), x[..., [4, 3]].reshape(-1, 2), rtol=1e-6)
    with refused(ValueError, "a.npz: x has no feature 'cold'; its features are age, heat"):
        read_points(tmp_path / "a.npz", channels=("heat", "cold"))


def test_labels_of_padding_are_ignored(tmp_path: Path) -> None:
    mask = np.array([[True, True, True], [True, True, False]])
    arrays: dict[str, Any] = {"x": np.random.default_rng(0).normal(size=(2, 3, 3)), "point_classes": ["a", "b"]}
    labels = np.array([[0, 1, 0], [1, 0, -1]])
    wheres: list[dict[str, Any]] = [{"mask": mask}, {"lengths": np.array([3, 2])}]
    for where in wheres:
        np.savez(tmp_path / "a.npz", labels=labels, **arrays, **where)
        found = open_points(tmp_path / "a.npz")
        assert found.point_labels is not None
        assert (found.point_labels.tolist(), found.point_classes) == ([0, 1, 0, 1, 0], ("a", "b"))
    np.savez(tmp_path / "a.npz", labels=np.where(mask, 0, -1) - ~mask[:, ::-1], mask=mask, **arrays)
    with refused(ValueError, "a.npz: labels has -1, but there are 2 point classes"):
        open_points(tmp_path / "a.npz")
