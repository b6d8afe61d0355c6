"""Arrays for the validation split, and arrays of unknown names, in every kind of .npz file."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredholm.tasks import (
    FieldLearning,
    GraphLearning,
    ImageLearning,
    ImageTextLearning,
    OperatorLearning,
    PointLearning,
    Segmentation,
    SeriesLearning,
)
from fredholm.tasks.fields.open import read_places
from fredholm.tasks.files.npz_arrays import split_of_rows
from fredholm.tasks.images.arrays import read_image_arrays
from fredholm.tasks.masks.npz_file import images_of_npz
from fredholm.tasks.points import read_points
from fredholm.tasks.points.npz_file import clouds_of_npz
from fredholm.tasks.series import read_series
from fredholm.tasks.splits.splits import Divisible, Splits
from fredholm.tasks.task import SplitTask
from tests.refusals import refused

DRAW = np.random.default_rng(0)
SIZES = {"train": 6, "valid": 3, "test": 4}
LABELS = np.arange(13) % 2
IMAGES = DRAW.integers(0, 256, (13, 4, 4), dtype=np.uint8)
CLOUDS = DRAW.normal(size=(13, 5, 3))
VALUES = DRAW.normal(size=(13, 5))
RING = {"edge_index": np.stack([np.arange(26), np.arange(26) ^ 1]), "graph": np.repeat(np.arange(13), 2)}
ROWS: dict[type[SplitTask[Any]], dict[str, np.ndarray]] = {
    SeriesLearning: {"values": VALUES, "labels": LABELS},
    FieldLearning: {"values": VALUES},
    OperatorLearning: {"values": VALUES, "target_values": VALUES},
    GraphLearning: {"labels": LABELS},
    PointLearning: {"x": CLOUDS, "y": LABELS},
    ImageLearning: {"x": IMAGES, "y": LABELS},
    Segmentation: {"images": IMAGES, "masks": IMAGES % 2},
    ImageTextLearning: {"images": IMAGES[..., None], "text": np.array(["a b"] * 13), "label": LABELS},
}
"""Arrays with one row per example; an additional array gives the split of each row."""
NAMED: dict[type[SplitTask[Any]], tuple[dict[str, np.ndarray], str]] = {
    ImageLearning: ({"x": IMAGES, "y": LABELS}, "{name}_{split}"),
    PointLearning: ({"x": CLOUDS, "y": LABELS}, "{name}_{split}"),
    SeriesLearning: ({"values": VALUES, "labels": LABELS}, "{split}_{name}"),
    FieldLearning: ({"values": VALUES}, "{split}_{name}"),
    OperatorLearning: ({"values": VALUES, "target_values": VALUES}, "{split}_{name}"),
}
"""Arrays with one row per example, with separate names for each split."""


def sizes(kind: type[SplitTask[Any]], path: Path) -> dict[str, int]:
    config: Any = kind.Config
    splits: Splits[Any] = config(data=str(path)).build().splits
    return {name: len(part) for name in SIZES if (part := getattr(splits, name)) is not None}


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_a_split_array_has_a_word_or_number_per_row(kind: type[SplitTask[Any]], tmp_path: Path) -> None:
    if kind is ImageTextLearning:
        pytest.importorskip("tokenizers")
    rows = ROWS[kind] | (RING if kind is GraphLearning else {})
    words = DRAW.permutation(np.repeat(["train", "val", "test"], list(SIZES.values())))
    numbers = np.array([["train", "val", "test"].index(word) for word in words])
    for split in (words, numbers):
        np.savez(tmp_path / "a.npz", **rows, split=split)  # pyright: ignore[reportArgumentType]
        assert sizes(kind, tmp_path / "a.npz") == SIZES


@pytest.mark.parametrize("kind", NAMED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("word", ["valid", "val"])
def test_arrays_of_a_split_have_its_name_in_theirs(kind: type[SplitTask[Any]], word: str, tmp_path: Path) -> None:
    arrays, form = NAMED[kind]
    starts = dict(zip(("train", word, "test"), (0, 6, 9), strict=True))
    given = {
        form.format(name=name, split=split): array[start : start + size]
        for name, array in arrays.items()
        for (split, start), size in zip(starts.items(), SIZES.values(), strict=True)
    }
    np.savez(tmp_path / "a.npz", **given)  # pyright: ignore[reportArgumentType]
    assert sizes(kind, tmp_path / "a.npz") == SIZES
    without = {name: array for name, array in given.items() if "test" not in name}
    np.savez(tmp_path / "b.npz", **without)  # pyright: ignore[reportArgumentType]
    assert sizes(kind, tmp_path / "b.npz") == {"train": 6, "valid": 3}
    again = given | {form.format(name=name, split="dev"): array[:1] for name, array in arrays.items()}
    np.savez(tmp_path / "c.npz", **again)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "c.npz", f"arrays of {word} and of dev, which are one split; keep one"):
        sizes(kind, tmp_path / "c.npz")


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_an_array_that_nothing_reads_is_refused(kind: type[SplitTask[Any]], tmp_path: Path) -> None:
    if kind is ImageTextLearning:
        pytest.importorskip("tokenizers")
    rows: Any = ROWS[kind] | (RING if kind is GraphLearning else {})
    np.savez(tmp_path / "a.npz", **rows, gruops=np.arange(13))
    # long lines are cut in the middle, as with the many names of graphs in a long path
    known = "known are " if kind is GraphLearning else "groups, example_times"
    with refused(ValueError, "a.npz: has 'gruops', which nothing reads; here gruops is groups", "known are ", known):
        sizes(kind, tmp_path / "a.npz")
    if kind is GraphLearning:
        return  # graph files are not read in shards
    for name, part in (("0.npz", slice(6)), ("1.npz", slice(6, 13))):
        (tmp_path / "shards").mkdir(exist_ok=True)
        own: Any = {name: array[part] for name, array in rows.items()}
        np.savez(tmp_path / "shards" / name, **own, gruops=np.arange(13)[part])
    if kind is not PointLearning:  # folders of clouds hold one cloud per file
        with refused(ValueError, "shards", "has 'gruops', which nothing reads"):
            sizes(kind, tmp_path / "shards")


@pytest.mark.parametrize("kind", NAMED, ids=lambda kind: kind.__name__)
def test_an_array_of_a_split_that_nothing_reads_is_refused(kind: type[SplitTask[Any]], tmp_path: Path) -> None:
    arrays, form = NAMED[kind]
    rows: Any = {form.format(name=name, split=split): each for name, each in arrays.items() for split in SIZES}
    lost, known = (form.format(name=name, split=split) for name, split in (("gruops", "test"), ("", "train")))
    np.savez(tmp_path / "a.npz", **rows | {lost: np.arange(13)})
    here = f"here {lost} is {form.format(name='groups', split='test')}; rename"
    with refused(ValueError, f"a.npz: has '{lost}', which nothing reads; {here}", "known are ", f" with {known}, "):
        sizes(kind, tmp_path / "a.npz")
    for name in ("split", next(iter(arrays))):  # arrays that would be read if there were no arrays of splits
        np.savez(tmp_path / "b.npz", **rows | {name: np.arange(13)})
        with refused(ValueError, "b.npz: has ", name):
            sizes(kind, tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("read", "name", "array"),
    [
        (lambda path: read_image_arrays(path, 1, (4, 4)), "x", IMAGES),
        (lambda path: read_image_arrays(path, 1, (4, 4)), "x_test", IMAGES),
        (lambda path: images_of_npz(path, 1), "images", IMAGES),
        (read_series, "values", VALUES),
        (read_points, "x", CLOUDS),
        (clouds_of_npz, "points", CLOUDS),
        (lambda path: read_places(path, ("x", "y", "z")), "pos", CLOUDS[0]),
    ],
)
def test_unread_arrays_are_refused_by_the_other_readers(
    read: Callable[[Path], object], name: str, array: np.ndarray, tmp_path: Path
) -> None:
    given: Any = {name: array}
    np.savez(tmp_path / "a.npz", **given)
    assert read(tmp_path / "a.npz") is not None
    np.savez(tmp_path / "b.npz", **given, weigths=np.ones(13))
    with refused(ValueError, "b.npz: has 'weigths', which nothing reads", " known are ", name.removesuffix("_test")):
        read(tmp_path / "b.npz")


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_groups_stay_together_and_the_newest_are_the_test_split(kind: type[SplitTask[Any]], tmp_path: Path) -> None:
    if kind is ImageTextLearning:
        pytest.importorskip("tokenizers")
    config: Any = kind.Config
    rows: Any = ROWS[kind] | (RING if kind is GraphLearning else {})
    groups = np.array([*"ppqqqrrrsstuv"])
    np.savez(tmp_path / "a.npz", **rows, groups=groups)
    task = config(data=str(tmp_path / "a.npz")).build()
    parts = [rows_of(task, split) for split in SIZES]
    assert sorted(i for part in parts for i in part) == list(range(13))
    has_valid = kind not in (SeriesLearning, GraphLearning)  # their default models leave examples out themselves
    assert [bool(part) for part in parts] == [True, has_valid, True]
    owners = [set(groups[part]) for part in parts]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 7
    times = np.datetime64("2020-01-01") + np.roll(np.arange(13), 4)
    np.savez(tmp_path / "b.npz", **rows, example_times=times)
    task = config(data=str(tmp_path / "b.npz"), split_by="time").build()
    parts = [rows_of(task, split) for split in SIZES]
    assert [len(part) for part in parts] == ([9, 1, 3] if has_valid else [10, 0, 3])
    assert [times[i] for part in parts for i in sorted(part, key=lambda i: times[i])] == sorted(times)
    with refused(ValueError, "the data have no times"):
        config(data=str(tmp_path / "a.npz"), split_by="time").build()
    np.savez(tmp_path / "c.npz", **rows, groups=groups, split=np.arange(13) % 3 % 2 * 2)
    with refused(ValueError, "c.npz", "the group 'p' is in"):
        _ = config(data=str(tmp_path / "c.npz")).build().splits
    np.savez(tmp_path / "d.npz", **rows, groups=groups[:5])
    with refused(ValueError, "d.npz: groups is <U1 (5,); expected integers or texts (13,)"):
        config(data=str(tmp_path / "d.npz")).build()


def rows_of(task: SplitTask[Any], split: str) -> list[int]:
    """The rows of a split, identified by their contents."""
    if split == "valid" and task.num_held_out("valid") == 0:
        return []
    part: Any = task.splits.train if split == "train" else task.held_out(split)  # pyright: ignore[reportArgumentType]
    names = part.keys.names if isinstance(part, Divisible) else part.names
    return [int(re.findall(r"\d+", name.rpartition(".npz")[2])[0]) for name in names]


def test_invalid_split_arrays_are_refused() -> None:
    for split, message in (
        (np.array([0, 1, 3]), "split[2] is 3; expected 0 (train), 1 (valid) or 2 (test)"),
        (np.array([0, 1]), "split is int64 (2,); expected words or integers (3,)"),
        (np.array(["train", "later", ""]), "split[1] is 'later'; expected train, valid or test, or ''"),
        (np.array([0.0, 1.0, 2.0]), "split is float64 (3,)"),
    ):
        with refused(ValueError, message):
            split_of_rows({"split": split}, 3)
    assert split_of_rows({}, 3) is None
    found = split_of_rows({"split": np.array(["Train", "", "dev"])}, 3)
    assert found is not None
    assert found.tolist() == [0, -1, 1]
