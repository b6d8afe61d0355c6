"""Images in .npz files: arrays are read as written, and errors name the file and the array."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.tasks import ImageLearning
from fredholm.tasks.files import mapped
from fredholm.tasks.images import InMemoryImages, moments, npz_file, npz_images, open_images
from fredholm.tasks.splits.splitting import divided
from fredholm.tasks.targets import Answers, ClassAnswers, Kind, LabelAnswers, NumberAnswers
from tests.refusals import refused
from tests.tasks.images.known import labels_of


def arrays(*shape: int) -> dict[str, Any]:
    """Seven training and three test images, and labels of three classes."""
    drawn = np.random.default_rng(0)
    return {
        "x_train": drawn.integers(0, 256, (7, *shape), dtype=np.uint8),
        "y_train": np.arange(7, dtype=np.uint8) % 3,
        "x_test": drawn.integers(0, 256, (3, *shape), dtype=np.uint8),
        "y_test": np.arange(3)[:, None],
    }


def write(folder: Path, **held: Any) -> Path:
    np.savez(folder / "set.npz", **held)
    return folder / "set.npz"


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 3)])
def test_pixels_labels_and_classes_are_as_they_were_written(tmp_path: Path, shape: tuple[int, ...]) -> None:
    held = arrays(*shape)
    splits = open_images(write(tmp_path, **held))
    channels = shape[2] if len(shape) == 3 else 1
    for split in ("train", "test"):
        data = getattr(splits, split)
        expected = torch.from_numpy(held[f"x_{split}"]).reshape(-1, 4, 5, channels).permute(0, 3, 1, 2)
        assert torch.equal(data.images(torch.arange(len(data))), expected)
        assert labels_of(data, torch.arange(len(data))).tolist() == held[f"y_{split}"].ravel().tolist()
        assert (data.answer_names, data.channels, data.image_size) == (("0", "1", "2"), channels, (4, 5))
    assert splits.held_out("test").name(1) == "set.npz:x_test[1]"


def test_a_training_set_alone_is_read(tmp_path: Path) -> None:
    held = {name: array for name, array in arrays(4, 5).items() if name.endswith("train")}
    splits = open_images(write(tmp_path, **held))
    assert (len(splits.train), splits.test, splits.valid, splits.is_given) == (len(held["x_train"]), None, None, True)


def test_classes_may_have_names_and_images_may_be_resized(tmp_path: Path) -> None:
    splits = npz_images(write(tmp_path, **arrays(4, 6), classes=["cat", "dog", "ox"]), image_size=(2, 3))
    assert splits.train.answer_names == ("cat", "dog", "ox")
    assert splits.train.images(torch.arange(2)).shape == (2, 1, 2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": None}, "has no array 'x_test'; the arrays are x_train, y_train, y_test"),
        ({"x_train": np.zeros((7, 4, 5))}, r"x_train is float64 \(7, 4, 5\); expected uint8"),
        ({"x_train": np.zeros((7, 4, 5, 2), np.uint8)}, r"x_train is uint8 \(7, 4, 5, 2\); expected uint8 .* 1 or 3"),
        ({"x_train": np.uint8(1)}, r"y_train is uint8 \(7,\); expected \(0, \.\.\.\), one an image"),
        ({"y_train": np.zeros(6, int)}, r"y_train is int64 \(6,\); expected \(7, \.\.\.\), one an image"),
        ({"y_train": np.int64(1)}, r"y_train is int64 \(\); expected \(7"),
        ({"y_train": np.zeros((7, 2, 2))}, r"y_train is float64 \(7, 2, 2\); expected integers \(n,\), labels"),
        ({"y_train": np.full((7, 2), 3)}, r"y_train is int64 \(7, 2\); expected integers \(7,\), one an example"),
        ({"y_train": np.full(7, 0.5), "y_test": np.full(3, np.nan)}, "y_test: example 0: target is nan"),
        ({"x": np.zeros((2, 4, 5), np.uint8), "y": np.zeros(2, int)}, "has x_train beside x and y; keep one of these"),
        ({"y_test": np.array([0, -1, 0])}, "y_test has the label -1"),
        ({"y_test": np.array([0, 3, 0])}, "a label is 3, but there are 3 classes"),
        ({"classes": ["a", "b"]}, "a label is 2, but there are 2 classes"),
        ({"x_test": np.zeros((0, 4, 5), np.uint8), "y_test": np.zeros(0, int)}, "the test set is empty"),
        ({"x_test": np.zeros((3, 4, 6), np.uint8)}, "image size differ"),
    ],
)
def test_errors_name_file_and_array(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    held = {name: array for name, array in (arrays(4, 5) | change).items() if array is not None}
    with pytest.raises(ValueError, match=rf"set\.npz: {message}"):
        npz_images(write(tmp_path, **held))


def test_a_file_in_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set.npz").write_text("no arrays")
    with pytest.raises(ValueError, match=r"set\.npz: cannot be read as an \.npz file"):
        open_images(tmp_path / "set.npz")


FIRST = LabelAnswers(names=("label_0", "label_1"), values=torch.eye(6)[:, :2] > 0)


def whole(**more: Any) -> dict[str, Any]:
    return {"x": np.arange(6 * 20, dtype=np.uint8).reshape(6, 4, 5)} | more


@pytest.mark.parametrize(
    ("y", "kind", "expected"),
    [
        (
            np.array([0, 2, 1, 0, 0, 0]),
            None,
            ClassAnswers(names=("0", "1", "2"), values=torch.tensor([0, 2, 1, 0, 0, 0])),
        ),
        (np.array(list("baabab")), None, ClassAnswers(names=("a", "b"), values=torch.tensor([1, 0, 0, 1, 0, 1]))),
        (np.eye(6)[:, :2] > 0, None, FIRST),
        (
            np.eye(6)[:, :2].astype(int),
            None,
            LabelAnswers(names=("label_0", "label_1"), values=torch.eye(6)[:, :2] > 0),
        ),
        (np.eye(6)[:, :2], "labels", FIRST),
        (np.arange(6) / 4, None, NumberAnswers(names=("target",), values=torch.arange(6)[:, None].double() / 4)),
        (np.arange(6), "number", NumberAnswers(names=("target",), values=torch.arange(6)[:, None].double())),
        (np.ones((6, 2)), None, NumberAnswers(names=("target_0", "target_1"), values=torch.ones(6, 2).double())),
        (np.eye(6)[0] > 0, None, ClassAnswers(names=("0", "1"), values=torch.tensor([1, 0, 0, 0, 0, 0]))),
    ],
)
def test_kinds_of_answers_in_y(tmp_path: Path, y: np.ndarray, kind: Kind | None, expected: Answers) -> None:
    found = npz_images(write(tmp_path, **whole(y=y)), kind=kind)
    answers = found.train.answers
    assert not found.is_given
    assert answers is not None
    assert (type(answers), answers.names) == (type(expected), expected.names)
    assert torch.equal(answers.values, expected.values)


@pytest.mark.parametrize(
    ("y", "names", "expected"),
    [
        (np.arange(6) % 2, {"classes": ["no", "yes"]}, ("no", "yes")),
        (np.eye(6) > 0, {"labels": list("abcdef")}, tuple("abcdef")),
        (np.ones((6, 2)), {"target_names": ["width", "height"]}, ("width", "height")),
    ],
)
def test_names_of_answers(tmp_path: Path, y: np.ndarray, names: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert npz_images(write(tmp_path, **whole(y=y, **names))).train.answer_names == expected


def test_splits_groups_and_times_in_one_array_each(tmp_path: Path) -> None:
    y, groups, times = np.arange(6) % 2, np.array(list("ppqqrr")), np.arange(6)[::-1]
    found = npz_images(write(tmp_path, **whole(y=y, groups=groups, example_times=times)))
    keys = found.train.keys
    assert keys.groups == tuple("ppqqrr")
    assert keys.times is not None
    assert keys.times.tolist() == [5, 4, 3, 2, 1, 0]
    days = np.array(["2024-01-01", "2024-01-02"] * 3, dtype="datetime64[D]")
    keys = npz_images(write(tmp_path, **whole(y=y, example_times=days))).train.keys
    assert keys.times is not None
    assert float(keys.times[1] - keys.times[0]) == 86400
    for split in (
        np.array(["train", "val", "test", "", "train", "TRAIN"]),
        np.array(["train", "dev", "test", "", "train", "train"]),
    ):
        found = npz_images(write(tmp_path, **whole(y=y, split=split)))
        parts = found.train, found.held_out("valid"), found.held_out("test")
        assert [[part.name(i)[-2] for i in range(len(part))] for part in parts] == [["0", "4", "5"], ["1"], ["2"]]


def test_parts_may_include_validation_and_have_their_own_groups(tmp_path: Path) -> None:
    held = arrays(4, 5)
    held |= {"x_val": held["x_test"], "y_val": held["y_test"], "groups_train": np.arange(7), "groups_val": np.arange(3)}
    found = npz_images(write(tmp_path, **held))
    assert (len(found.train), len(found.held_out("valid")), len(found.held_out("test"))) == (7, 3, 3)
    assert found.train.keys.groups == tuple("0123456")
    assert found.held_out("test").keys.groups is None
    with refused(ValueError, "the group '0' is in the training and the validation split; keep all of it in one"):
        divided(found, ImageLearning.Config(data="x"))


def medmnist(*shape: int) -> dict[str, Any]:
    """The arrays of `arrays` under the names of MedMNIST's files, with a validation split."""
    held = arrays(*shape)
    found = {"x": "images", "y": "labels"}
    named = {f"{word}_{found[kind]}": held[f"{kind}_{word}"] for kind in found for word in ("train", "test")}
    return named | {"val_images": held["x_test"][:2], "val_labels": held["y_test"][:2]}


def test_files_of_medmnist_are_read_unchanged(tmp_path: Path) -> None:
    held = medmnist(4, 5, 3)
    found = open_images(write(tmp_path, **held))
    for word, part in (("train", found.train), ("val", found.held_out("valid")), ("test", found.held_out("test"))):
        every = torch.arange(len(part))
        assert torch.equal(part.images(every), torch.from_numpy(held[f"{word}_images"]).permute(0, 3, 1, 2))
        assert labels_of(part, every).tolist() == held[f"{word}_labels"].ravel().tolist()
        assert part.name(1) == f"set.npz:{word}_images[1]"
    sizes = {name.removesuffix("_images"): len(array) for name, array in held.items() if name.endswith("_images")}
    many = held | {f"{word}_labels": np.eye(size, 2, dtype=int) for word, size in sizes.items()}
    assert open_images(write(tmp_path, **many)).train.answer_names == ("label_0", "label_1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": None}, "has no array 'train_labels'; the arrays are train_images, test_images"),
        ({"train_images": None}, "has no array 'train_images'"),
        ({"val_labels": np.zeros(3, int)}, "val_labels is int64 (3,); expected (2, ...), one an image"),
        ({"train_ids": np.zeros(7)}, "has 'train_ids', which nothing reads"),
        ({"x_train": np.zeros((7, 4, 5), np.uint8)}, "which nothing reads; here "),
    ],
)
def test_misfits_in_files_of_medmnist_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    held = {name: array for name, array in (medmnist(4, 5) | change).items() if array is not None}
    with refused(ValueError, "set.npz: ", message):
        npz_images(write(tmp_path, **held))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"y": np.zeros(5, int)}, "y is int64 (5,); expected (6, ...), one an image"),
        ({}, "has no array 'y'"),
        ({"y": np.zeros(6, int), "groups": np.zeros(5, int)}, "groups is int64 (5,); expected integers or texts (6,)"),
        ({"y": np.zeros(6, int), "groups": np.zeros(6)}, "groups is float64 (6,); expected integers or texts (6,)"),
        (
            {"y": np.zeros(6, int), "example_times": np.zeros((6, 1))},
            "example_times is float64 (6, 1); expected",
        ),
        (
            {"y": np.zeros(6, int), "split": np.array(["trian"] * 6)},
            "split[0] is 'trian'; expected train",
        ),
        ({"y": np.zeros(6, int), "split": np.full(6, 3)}, "split[0] is 3"),
        ({"y": np.zeros(6, int), "split": np.full(6, 2)}, "the split has nothing to train on"),
        ({"y": np.eye(6) > 0, "labels": list("abc")}, "there are 3 names (a, b, c) of 6 labels"),
        ({"y": np.array(list("abcabc")), "classes": ["a", "b"]}, "y[2]: class 'c' is none of a, b"),
    ],
)
def test_misfits_in_one_array_are_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with refused(ValueError, f"set.npz: {message}"):
        npz_images(write(tmp_path, **whole(**more)))


@pytest.mark.parametrize(
    ("y", "kind", "message"),
    [
        (np.arange(6), "labels", "y is int64 (6,) with values beside 0 and 1; expected labels (n, L)"),
        (np.array(list("abcabc")), "number", "y is <U1 (6,); expected numbers (n,) or (n, T)"),
        (np.ones(6), "class", "y is float64 (6,); expected integers (6,), one an example"),
        (np.eye(6) > 0, "class", "y is bool (6, 6); expected integers (6,)"),
    ],
)
def test_kinds_of_answers_that_do_not_fit_are_refused(tmp_path: Path, y: np.ndarray, kind: Kind, message: str) -> None:
    with refused(ValueError, message):
        npz_images(write(tmp_path, **whole(y=y)), kind=kind)


def shards(folder: Path, *, has_splits: bool) -> Path:
    """Nine images in files of four, three and two, of which the last are for testing."""
    drawn = np.random.default_rng(0)
    x, y = drawn.integers(0, 256, (9, 4, 5, 3), dtype=np.uint8), np.arange(9) % 2
    folder.mkdir()
    names = ("train-0", "train-1", "test-0") if has_splits else ("0", "1", "2")
    for name, part in zip(names, (slice(0, 4), slice(4, 7), slice(7, 9)), strict=True):
        split: dict[str, Any] = {} if has_splits else {"split": np.array(["train"] * 7 + ["test"] * 2)[part]}
        np.savez(folder / f"{name}.npz", x=x[part], y=y[part], classes=np.array(["a", "b"]), **split)
    np.savez(folder.with_suffix(".npz"), x=x, y=y, classes=np.array(["a", "b"]), split=["train"] * 7 + ["test"] * 2)
    return folder


@pytest.mark.parametrize("large", [0, 1 << 30])
@pytest.mark.parametrize("has_splits", [True, False])
def test_files_of_a_folder_form_one_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int, has_splits: bool
) -> None:
    monkeypatch.setattr(mapped, "LARGE", large)
    monkeypatch.setattr(npz_file, "LARGE", large)
    folder = shards(tmp_path / "set", has_splits=has_splits)
    parts, whole = open_images(folder), npz_images(tmp_path / "set.npz")
    for split in ("train", "test"):
        one, other = getattr(parts, split), getattr(whole, split)
        every = torch.arange(len(other))
        assert torch.equal(one.images(every), other.images(every))
        assert torch.equal(one.answers.values, other.answers.values)
        assert one.answer_names == ("a", "b")
    assert parts.train.name(5) == ("train-1.npz:x[1]" if has_splits else "1.npz:x[1]")
    expected = [4, 3] if large == 0 else None
    assert (None if parts.train.shards is None else parts.train.shards.tolist()) == expected
    assert (whole.train.shards is None) == (large > 0)


def test_mapped_images_train_like_images_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards(tmp_path / "set", has_splits=False)
    config = ImageLearning.Config(data=str(tmp_path / "set.npz"), patch_size=1, valid_fraction=0.0)
    in_memory = config.build()
    assert in_memory.train_shards is None
    monkeypatch.setattr(npz_file, "LARGE", 0)
    from_disk = config.build()
    assert from_disk.facts == in_memory.facts
    assert from_disk.train_shards is not None
    assert from_disk.train_shards.tolist() == [7]
    generator = torch.Generator()
    for numbers in ([0, 6, 3], [5]):
        one, other = (task.train_batch(torch.tensor(numbers), generator) for task in (in_memory, from_disk))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_files_of_a_folder_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = shards(tmp_path / "set", has_splits=True)
    x = np.zeros((2, 4, 5, 3), np.uint8)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"x": x, "y": np.zeros(3, int), "classes": ["a", "b"]}, r"set, test: y is int64 \(3,\); expected \(2, "),
        ({"x": x.astype(float), "y": np.zeros(2, int), "classes": ["a"]}, "set, test: x is float64"),
        ({"x": x, "y": np.zeros(2, int), "classes": ["a", "c"]}, "answer names differ"),
        ({"x": x}, "set, test: has no array 'y'"),
    ]
    for arrays, message in cases:
        np.savez(folder / "test-0.npz", **arrays)
        with pytest.raises(ValueError, match=message):
            open_images(folder)


def test_moments_are_exact_for_any_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (50, 3, 6, 7), dtype=torch.uint8)
    data, every = InMemoryImages(images, None, str), torch.arange(50)
    whole = moments(data, every)
    monkeypatch.setattr(sys.modules[moments.__module__], "CHUNK", 500)
    assert moments(data, every) == whole
    pixels = images.double() / 255
    assert whole.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-14)
    assert whole.deviation == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), rel=1e-12)
