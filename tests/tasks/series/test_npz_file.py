import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.models.series.ckcnn import CKCNN
from fredholm.tasks import SeriesLearning, series
from fredholm.tasks.files import mapped
from fredholm.tasks.series import (
    LabelReading,
    MappedSeries,
    Preparation,
    SeriesSet,
    npz_file,
    open_series,
    read_series,
    stored_series,
)
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import ClassAnswers, LabelAnswers, NumberAnswers
from tests.refusals import refused

read_npz = functools.partial(series.read_npz, reading=LabelReading())

JOINED: dict[str, Any] = {
    "values": np.arange(10.0).reshape(5, 2),
    "offsets": [0, 3, 5],
    "label": np.array([1, 0], np.uint8),
    "classes": ["a", "b"],
    "channels": ["x", "y"],
}


def written(folder: Path, **arrays: Any) -> Path:
    path = folder / "some.npz"
    np.savez(path, **arrays)
    return path


def whole(folder: Path, **arrays: Any) -> SeriesSet:
    found = read_npz(written(folder, **arrays))
    assert isinstance(found, SeriesSet)
    return found


def test_a_training_set_alone_is_read(tmp_path: Path) -> None:
    alone = read_npz(written(tmp_path, **{f"train_{name}": array for name, array in JOINED.items()}))
    assert isinstance(alone, Splits)
    assert (len(alone.train), alone.train.answer_names, alone.test, alone.is_given) == (2, ("a", "b"), None, True)


def test_joined_series(tmp_path: Path) -> None:
    found = whole(tmp_path, **JOINED)
    assert (found.lengths.tolist(), found.answer_names, found.channels) == ([3, 2], ("a", "b"), ("x", "y"))
    assert found.values[1, :2].tolist() == [[6, 7], [8, 9]]
    assert found.answers is not None
    assert found.answers.values.tolist() == [1, 0]
    audio = whole(tmp_path, audio=np.arange(5, dtype=np.int16), offsets=[0, 2, 5], sample_rate=8000)
    assert (audio.spacing, audio.values[1].tolist(), audio.answers) == (1 / 8000, [[2], [3], [4]], None)


def test_padded_series_with_times_and_named_labels(tmp_path: Path) -> None:
    times = np.array([[0.0, 1, 5], [2, 3, np.nan]])
    found = whole(tmp_path, values=np.zeros((2, 3)), lengths=[3, 2], times=times, labels=["q", "p"])
    assert found.times is not None
    assert found.times.tolist() == [[0, 1, 5], [2, 3, 0]]
    assert (found.answer_names, found.values.shape, found.channels) == (("p", "q"), (2, 3, 1), ("channel_0",))
    assert whole(tmp_path, values=np.zeros((2, 3, 4)), labels=[7, 5], spacing=0.25).lengths.tolist() == [3, 3]


def test_splits(tmp_path: Path) -> None:
    for name in ("is_test", "suggested_test"):
        found = read_npz(written(tmp_path, **JOINED, **{name: [True, False]}))
        assert isinstance(found, Splits)
        assert (found.train.lengths.tolist(), found.held_out("test").lengths.tolist()) == ([2], [3])
    arrays = {f"{part}_{key}": JOINED[key] for part in ("train", "test") for key in ("values", "offsets", "label")}
    found = read_npz(written(tmp_path, **arrays, classes=["a", "b"]))
    assert isinstance(found, Splits)
    assert (len(found.train), len(found.held_out("test")), found.held_out("test").answer_names) == (2, 2, ("a", "b"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"values": None}, "has no array 'values'; the arrays are offsets"),
        ({"values": np.array(["x"] * 5)}, "values are <U1; expected numbers"),
        ({"values": np.zeros((2, 2, 2))}, "values have shape (2, 2, 2); expected (steps, C) beside offsets"),
        ({"offsets": None}, "lengths"),
        ({"offsets": [0, 4]}, "offsets do not rise from 0 to the 5 steps of the values"),
        ({"offsets": [0, 3, 2, 5]}, "offsets do not rise"),
        ({"offsets": [0, 5, 5]}, "some.npz, series 1: has 0 samples"),
        ({"label": [0, 1, 1]}, "label is int64 (3,); expected one of each of the 2 series"),
        ({"label": [0, 2]}, "a label is 2, but there are 2 classes"),
        ({"label": np.zeros((2, 2, 2))}, "label is float64 (2, 2, 2); expected integers (n,), labels (n, L)"),
        ({"label": [0.0, np.nan]}, "label: example 1: target is nan"),
        ({"times": np.zeros(4)}, "times is float64 (4,); expected numbers or integers (5,)"),
        ({"times": np.array([0, 1, np.nan, 0, 1])}, "series 0: the time of sample 2 is nan"),
        ({"times": np.zeros(5)}, "series 0: the time of sample 1 is 0 after 0"),
        ({"spacing": 0.0}, "spacing is 0.0; expected a finite number above 0"),
        ({"is_test": [0, 1]}, "is_test is int64 (2,); expected bool (2,)"),
        ({"channels": ["x"]}, "has 2 channels; expected 1: x"),
    ],
)
def test_mistakes_name_file_and_array(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    arrays = {name: array for name, array in {**JOINED, **changed}.items() if array is not None}
    if message == "lengths":
        arrays["lengths"] = [1, 2, 3, 2, 9]
        message = "lengths[2] is 3; the values have 2 steps"
    with refused(ValueError, "some.npz", message):
        read_npz(written(tmp_path, **arrays))


def test_no_npz_and_nothing_pickled(tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    path.write_bytes(b"no")
    with refused(ValueError, "some.npz: cannot be read as an .npz file"):
        read_npz(path)
    with refused(ValueError, "absent.npz: cannot be read as an .npz file (No such file or directory)"):
        read_npz(tmp_path / "absent.npz")
    np.savez(path, values=np.array([{}], dtype=object))
    with refused(ValueError, "some.npz: cannot be read as an .npz file", "pass one without objects"):
        read_npz(path)


def test_extra_arrays_of_published_files_are_ignored_and_others_refused(tmp_path: Path) -> None:
    others = {"speaker": [0, 1], "speaker_names": ["ann", "bob"], "index": [0, 1], "unlabeled_values": [[1.0]]}
    assert len(whole(tmp_path, **JOINED, **others)) == 2
    with refused(ValueError, "some.npz: has 'speakers', which nothing reads", "known are values, audio, offsets"):
        whole(tmp_path, **JOINED, speakers=[0, 1])
    with refused(ValueError, "some.npz: has classes beside train_classes; keep one of these"):
        read_npz(written(tmp_path, **{f"train_{name}": array for name, array in JOINED.items()}, classes=["a", "b"]))


def test_the_shared_sets(shared_data: Path) -> None:
    letters = read_npz(shared_data / "character_trajectories" / "character_trajectories.npz")
    assert isinstance(letters, Splits)
    assert (len(letters.train) + len(letters.held_out("test")), len(letters.train.answer_names)) == (1429, 20)
    assert letters.train.channels == ("x_velocity", "y_velocity", "pen_force")
    vowels = read_npz(shared_data / "uea_ucr_small" / "JapaneseVowels.npz")
    assert isinstance(vowels, Splits)
    assert (len(vowels.train), len(vowels.held_out("test")), len(vowels.train.channels)) == (270, 370, 12)


def test_answers_are_classes_labels_or_numbers(tmp_path: Path) -> None:
    values: dict[str, Any] = {"values": np.zeros((3, 4))}
    classes = whole(tmp_path, **values, labels=[7, 5, 7]).answers
    assert isinstance(classes, ClassAnswers)
    assert (classes.names, classes.values.tolist()) == (("5", "7"), [1, 0, 1])
    labels = whole(tmp_path, **values, labels=[[1, 0], [0, 0], [1, 1]], classes=["wet", "cold"]).answers
    assert isinstance(labels, LabelAnswers)
    assert (labels.names, labels.values.int().tolist()) == (("wet", "cold"), [[1, 0], [0, 0], [1, 1]])
    numbers = whole(tmp_path, **values, targets=[1.0, 2.5, 3.0]).answers
    assert isinstance(numbers, NumberAnswers)
    assert (numbers.names, numbers.values[:, 0].tolist()) == (("target",), [1.0, 2.5, 3.0])
    two = whole(tmp_path, **values, targets=[[1.0, 2], [3, 4], [5, 6]], target_names=["a", "b"]).answers
    assert isinstance(two, NumberAnswers)
    assert two.names == ("a", "b")
    as_numbers = read_npz(written(tmp_path, **values, labels=[7, 5, 7]), reading=LabelReading(kind="number"))
    assert isinstance(as_numbers, SeriesSet)
    assert isinstance(as_numbers.answers, NumberAnswers)
    with refused(ValueError, "has labels and targets; leave one of them out"):
        whole(tmp_path, **values, labels=[7, 5, 7], targets=[1.0, 2.0, 3.0])
    with refused(ValueError, "targets is float64 (2,); expected one of each of the 3 series"):
        whole(tmp_path, **values, targets=[1.0, 2.0])


def test_groups_are_read(tmp_path: Path) -> None:
    values: dict[str, Any] = {"values": np.zeros((3, 4)), "groups": [4, 4, 9]}
    marks = whole(tmp_path, **values).marks
    assert (marks.groups, marks.given) == (("4", "4", "9"), None)
    plain = series.read_npz(written(tmp_path, **values))
    assert isinstance(plain, SeriesSet)
    assert (plain.marks.groups, plain.marks.given) == (None, None)


def sets(folder: Path, *, has_splits: bool) -> Path:
    """Thirty series of one to six samples in two channels, in three files, and the same in one file."""
    drawn = np.random.default_rng(0)
    values = drawn.normal(size=(30, 6, 2)).astype(np.float32)
    values[drawn.random(values.shape) < 0.2] = np.nan
    arrays = {"values": values, "lengths": drawn.integers(1, 7, 30), "labels": np.arange(30) % 2}
    shared = {"channels": np.array(["u", "v"]), "spacing": np.float64(0.5), "classes": np.array(["a", "b"])}
    folder.mkdir()
    split = {"split": np.array(["train"] * 22 + ["test"] * 8)}
    names = ("train-0", "train-1", "test-0") if has_splits else ("0", "1", "2")
    for name, part in zip(names, (slice(0, 15), slice(15, 22), slice(22, 30)), strict=True):
        own = arrays if has_splits else {**arrays, **split}
        np.savez(folder / f"{name}.npz", **{key: array[part] for key, array in own.items()}, **shared)  # pyright: ignore
    np.savez(folder.with_suffix(".npz"), **arrays, **shared, **split)  # pyright: ignore[reportArgumentType]
    return folder


@pytest.mark.parametrize("large", [0, 1 << 30])
@pytest.mark.parametrize("source", ["set.npz", "whole", "splits"])
def test_series_mapped_from_files_equal_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int, source: str
) -> None:
    sets(tmp_path / "whole", has_splits=False)
    sets(tmp_path / "splits", has_splits=True)
    (tmp_path / "whole.npz").rename(tmp_path / "set.npz")
    expected = open_series(tmp_path / "set.npz")
    for module in (npz_file, mapped):
        monkeypatch.setattr(module, "LARGE", large)
    monkeypatch.setattr(stored_series, "CHUNK", 50)
    found = open_series(tmp_path / source)
    for split, count in (("train", 22), ("test", 8)):
        one, other = getattr(found, split), getattr(expected, split)
        assert isinstance(one, MappedSeries) == (large == 0)
        assert len(one) == count
        for rows in (torch.arange(count), torch.tensor([3, 0, 3]), torch.tensor([], dtype=torch.int64)):
            read, same = one.read(rows), other.read(rows)
            assert torch.equal(read.values.nan_to_num(99.0), same.values.nan_to_num(99.0))
            assert torch.equal(read.lengths, same.lengths)
            assert torch.equal(read.answers.values, same.answers.values)
            assert (read.spacing, read.channels, read.times) == (0.5, ("u", "v"), None)
        assert torch.equal(one.extents, other.extents)
        learnt, known = Preparation.learn(one), Preparation.learn(other)
        assert learnt.mean == pytest.approx(known.mean, rel=1e-12)
        assert learnt.deviation == pytest.approx(known.deviation, rel=1e-12)
        assert learnt.observation == known.observation == (0, 1)
    if large == 0:
        assert found.train.shards is not None
        assert found.train.shards.tolist() == ([22] if source == "set.npz" else [15, 7])
        assert found.train.names[20].endswith(", series 20" if source == "set.npz" else "1.npz, series 5")
        chunks = list(found.train.chunks())
        assert len(chunks) == 6
        assert [name for chunk in chunks for name in chunk.names] == list(found.train.names)


def test_mapped_series_train_like_series_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets(tmp_path / "set", has_splits=False)
    settings: list[dict[str, Any]] = [{}, {"train_drop": 0.3, "test_drop": 0.3}, {"bin": 1.0}, {"test_every": 2}]
    for changes in settings:
        config = SeriesLearning.Config(data=str(tmp_path / "set.npz"), model=CKCNN.Config(), **changes)
        tasks = [config.build()]
        with monkeypatch.context() as patch:
            patch.setattr(npz_file, "LARGE", 0)
            tasks.append(config.build())
            is_changed = "bin" in changes or "train_drop" in changes
            assert isinstance(tasks[1].splits.train, MappedSeries) != is_changed
        assert tasks[0].facts == tasks[1].facts
        shards = tasks[1].train_shards
        assert is_changed if shards is None else int(shards.sum()) == tasks[1].num_train
        for batches in (
            [task.train_batch(torch.tensor([4, 0, 9]), torch.Generator()) for task in tasks],
            [task.held_out_batch("test", torch.arange(8)) for task in tasks],
            [task.held_out_batch("valid", torch.arange(2)) for task in tasks],
        ):
            assert batches[0].keys() == batches[1].keys()
            assert all(torch.equal(batches[0][name], batches[1][name]) for name in batches[0])


def test_misfits_between_files_and_infinite_values_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sets(tmp_path / "set", has_splits=True)
    with np.load(folder / "train-1.npz") as opened:
        whole = dict(opened)
    infinite = whole["values"].copy()
    infinite[2, 0, 1], short = np.inf, whole["lengths"].copy()
    short[2] = 7
    for large in (0, 1 << 30):
        for module in (npz_file, mapped):
            monkeypatch.setattr(module, "LARGE", large)
        cases: list[tuple[dict[str, Any], str]] = [
            ({"values": infinite}, "sample 0 of channel 'v' is infinite"),
            ({"lengths": short}, "set, train: lengths[17] is 7; the values have 6 steps"),
            ({"offsets": np.arange(8)}, "train-1.npz: has the arrays"),
            ({"spacing": np.float64(2)}, "train-1.npz: spacing are others than in train-0.npz"),
            ({"values": whole["values"][:, :4]}, "train-1.npz: an array of rows is float32 (7, 4, 2)"),
        ]
        for change, message in cases:
            np.savez(folder / "train-1.npz", **{**whole, **change})
            with refused(ValueError, message):
                open_series(folder)
    for file in folder.iterdir():
        np.savez(file, values=np.zeros((9, 2)), offsets=np.array([0, 4, 9]), labels=np.arange(2))
    with refused(ValueError, "set, train: has offsets, which are of one file"):
        open_series(folder)


def test_arrays_that_cannot_be_mapped_are_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"values": np.arange(12.0).reshape(2, 3, 2), "times": np.arange(6.0).reshape(2, 3) ** 2, "labels": [0, 1]}
    for arrays in (JOINED, held):
        path = written(tmp_path, **arrays)
        expected = read_npz(path)
        with monkeypatch.context() as patch:
            patch.setattr(npz_file, "LARGE", 0)
            found = read_npz(path)
        assert isinstance(found, SeriesSet)
        assert isinstance(expected, SeriesSet)
        assert torch.equal(found.values.nan_to_num(99.0), expected.values.nan_to_num(99.0))
        assert (found.times is None) == (arrays is JOINED)


def test_gaps_are_found_over_all_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.ones((6, 2, 2), np.float32)
    values[0, 0, 0] = values[4, 1] = np.nan  # in separate samples of the first series, in the same one of the fifth
    path = written(tmp_path, values=values, labels=np.arange(6) % 2)
    in_memory = read_npz(path)
    monkeypatch.setattr(npz_file, "LARGE", 0)
    monkeypatch.setattr(stored_series, "CHUNK", 4)
    stored = read_npz(path)
    assert isinstance(stored, MappedSeries)
    assert isinstance(in_memory, SeriesSet)
    assert Preparation.learn(stored).observation == Preparation.learn(in_memory).observation == (0, 1)
    whole = Preparation(mean=(0.0, 0.0), deviation=(1.0, 1.0))
    for found in (stored, in_memory):
        with pytest.warns(UserWarning, match="values are missing in channel_0, channel_1, but none were in training"):
            whole.warn_of_gaps(found)


@pytest.mark.parametrize("large", [0, 1 << 30])
def test_channels_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(npz_file, "LARGE", large)
    values = np.random.default_rng(0).normal(size=(3, 4, 2))
    path = written(tmp_path, values=values, channels=["age", "heat"], labels=[0, 1, 0])
    for found in (read_npz(path, channels=("heat", "age")), read_series(path, channels=("heat", "age"))):
        assert isinstance(found, series.Series)
        assert found.channels == ("heat", "age")
        np.testing.assert_allclose(found.in_memory().values.numpy(), values[..., ::-1])
    with refused(ValueError, "some.npz: has no channel 'cold'; its channels are age, heat"):
        read_series(path, channels=("heat", "cold"))
