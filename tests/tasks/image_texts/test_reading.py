import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.tasks.files import mapped
from fredholm.tasks.image_texts import npz_file, open_image_texts, read_image_texts
from tests.refusals import refused
from tests.tasks.image_texts.build import examples, pixels, write_folder, write_jsonl, write_npz, write_pictures


def test_a_file_is_its_lines_with_their_images(tmp_path: Path) -> None:
    rows = examples(6)
    found = open_image_texts(write_folder(tmp_path, count=6))
    assert (len(found), found.num_images, found.channels, found.image_size) == (6, 2, 3, (8, 8))
    assert [example.text for example in found.examples] == [row["text"] for row in rows]
    assert (found.classes, found.marks.given) == (("false", "true"), None)
    assert found.labels is not None
    assert found.labels.tolist() == [int(row["label"]) for row in rows]
    assert [example.line for example in found.examples] == [1, 2, 3, 4, 5, 6]
    images = found.images(torch.tensor([4, 1]))
    assert images.dtype == torch.uint8
    for shown, i in zip(images, (4, 1), strict=True):
        names = [Path(name).stem for name in rows[i]["images"]]
        expected = np.stack([pixels([name])[0] for name in names])
        assert torch.equal(shown, torch.from_numpy(expected).movedim(-1, 1))
    assert len(found.pictures) == 4  # each file once


@pytest.mark.parametrize("size", ["small", "mapped"])
def test_files_of_arrays_are_one_set(tmp_path: Path, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if size == "mapped":
        for module in (mapped, npz_file):
            monkeypatch.setattr(module, "LARGE", 0)
    whole = open_image_texts(write_npz(tmp_path / "a.npz", count=6, splits=False))
    arrays = dict(np.load(tmp_path / "a.npz"))
    assert (whole.shards is None) == (size == "small")
    for names, split in ((("0", "1", "2"), None), (("test", "train-0", "train-1"), [0, 0, 0, 0, 2, 2])):
        folder = tmp_path / names[0]
        folder.mkdir()
        for name, part in zip(names, (slice(4, 6), slice(0, 1), slice(1, 4)), strict=True):
            np.savez(folder / f"{name}.npz", **{key: array[part] for key, array in arrays.items()})
        found = open_image_texts(folder)
        order = torch.tensor([4, 5, 0, 1, 2, 3]) if split is None else torch.arange(6)
        assert torch.equal(found.images(torch.arange(6)), whole.images(order))
        assert [example.text for example in found.examples] == [whole.examples[i].text for i in order.tolist()]
        lines = [1, 2, 1, 1, 2, 3] if split is None else [1, 1, 2, 3, 1, 2]
        assert [example.line for example in found.examples] == lines
        assert found.labels is not None
        assert whole.labels is not None
        assert torch.equal(found.labels, whole.labels[order])
        assert (found.marks.given is None) == (split is None)
        if found.marks.given is not None:
            assert found.marks.given.tolist() == split
        shards = found.select(torch.tensor([0, 1, 2])).shards
        assert (shards is None) == (size == "small")
        if shards is not None:
            assert shards.tolist() == ([2, 1] if split is None else [1, 2])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": {"images": ..., "text": ...}, "b": {"images": ...}}, "b.npz: has the arrays images; expected 'images'"),
        ({"a": {"images": ...}}, "has no array 'text'; the arrays are images"),
        ({"a": {"text": ...}}, "a.npz: has the arrays text; expected 'images'"),
        ({name: {"images": ..., "text": ..., "split": ...} for name in ("train", "test")}, "has an array 'split'"),
    ],
)
def test_files_of_arrays_that_do_not_fit(tmp_path: Path, files: dict[str, dict[str, Any]], message: str) -> None:
    arrays = dict(np.load(write_npz(tmp_path / "whole.npz", count=4)))
    (tmp_path / "whole.npz").unlink()
    for name, chosen in files.items():
        np.savez(tmp_path / f"{name}.npz", **{key: arrays[key] for key in chosen})
    with refused(ValueError, message):
        open_image_texts(tmp_path)


@pytest.mark.parametrize(
    ("label", "word"), [("yes ", "yes"), (3, "3"), (True, "true"), (False, "false"), (-1, "-1"), ("12", "12")]
)
def test_labels_are_texts_numbers_and_truth_values(tmp_path: Path, label: object, word: str) -> None:
    write_pictures(tmp_path)
    path = write_jsonl(tmp_path / "a.jsonl", [{"images": "red.png", "text": "a", "label": label}])
    assert open_image_texts(path).classes == (word,)


def test_numbers_are_classes_by_size(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    rows = [{"images": "red.png", "text": "a", "label": label} for label in (10, 9, 2, 10)]
    found = open_image_texts(write_jsonl(tmp_path / "a.jsonl", rows))
    assert found.classes == ("2", "9", "10")
    assert found.labels is not None
    assert found.labels.tolist() == [2, 1, 0, 2]


def test_a_folder_has_splits_and_a_packed_file_is_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, splits=True, count=12)
    packed = folder / "train.jsonl.gz"
    packed.write_bytes(gzip.compress((folder / "train.jsonl").read_bytes()))
    (folder / "train.jsonl").unlink()
    found = open_image_texts(folder)
    assert found.marks.given is not None
    assert found.marks.given.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert [example.path.name for example in found.examples[::4]] == ["train.jsonl.gz", "valid.jsonl", "test.jsonl"]
    assert len(open_image_texts(packed)) == 4


def test_an_npz_file_holds_the_same_examples(tmp_path: Path) -> None:
    rows, found = examples(8), open_image_texts(write_npz(tmp_path / "a.npz", count=8))
    assert (len(found), found.num_images, found.channels, found.image_size) == (8, 2, 3, (8, 8))
    assert found.marks.given is not None
    assert found.labels is not None
    assert found.marks.given.tolist() == [0, 0, 1, 2] * 2
    assert found.labels.tolist() == [int(row["label"]) for row in rows]
    shown = [Path(name).stem for name in rows[5]["images"]]
    assert torch.equal(found.images(torch.tensor([5]))[0], torch.from_numpy(pixels(shown)).movedim(-1, 1))
    arrays = {"images": np.zeros((2, 4, 6, 1), np.uint8), "text": ["a", "b"], "label": [3, 10]}
    np.savez(tmp_path / "one.npz", **arrays)
    one = open_image_texts(tmp_path / "one.npz")
    assert (one.num_images, one.channels, one.image_size, one.classes) == (1, 1, (4, 6), ("3", "10"))


def test_images_are_resized_and_grey_ones_stay_grey(tmp_path: Path) -> None:
    for name, side in (("small", 4), ("large", 8)):
        Image.fromarray(np.full((side, side), 9, np.uint8)).save(tmp_path / f"{name}.png")
    rows = [{"images": f"{name}.png", "text": "a", "label": name} for name in ("small", "large")]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    with refused(ValueError, "a.jsonl, line 2: images differ in size, 4x4 and 8x8", "pass image_size"):
        open_image_texts(path)
    found = open_image_texts(path, image_size=(6, 4))
    assert found.images(torch.arange(2)).shape == (2, 1, 1, 6, 4)


def test_names_of_examples_depend_on_neither_folder_nor_order(tmp_path: Path) -> None:
    rows = [{**row, "text": f"{row['text']} of line {i}"} for i, row in enumerate(examples(6))]
    for name, listed in (("one", rows), ("two", rows[::-1])):
        write_pictures(tmp_path / name / "pictures")
        write_jsonl(tmp_path / name / "all.jsonl", [*listed, listed[0]])
    one, two = (open_image_texts(tmp_path / name / "all.jsonl") for name in ("one", "two"))
    assert len(set(one.names)) == 7
    assert one.names[:6] == two.names[:6][::-1]


def test_a_trained_model_reads_its_own_form_of_images_and_no_labels(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    rows: list[dict[str, Any]] = [{"images": ["red.png"], "text": "a", "label": None}, {"images": "blue.png"}]
    rows[1] |= {"text": "b", "label": "unknown"}
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    found = read_image_texts(path, num_images=1, channels=1, image_size=(4, 4))
    assert (found.labels, found.channels, found.image_size) == (None, 1, (4, 4))
    with refused(ValueError, "a.jsonl, line 1: has 1 images; the model reads 2"):
        read_image_texts(path, num_images=2, channels=3, image_size=(4, 4))
    packed = write_npz(tmp_path / "a.npz")
    with pytest.warns(UserWarning, match="holds the parts train, valid, test; the test part is read"):
        of_test = read_image_texts(packed, num_images=2, channels=3, image_size=(4, 4))
    of_train = read_image_texts(packed, num_images=2, channels=3, image_size=(4, 4), part="train")
    assert (len(of_train), len(of_test)) == (16, 7)
    with refused(ValueError, "a.npz: images have 3 channels; the model reads 1"):
        read_image_texts(packed, num_images=2, channels=1, image_size=(4, 4), part="test")
    with refused(ValueError, "a.jsonl: is not in parts; leave --part train out"):
        read_image_texts(path, num_images=1, channels=1, image_size=(4, 4), part="train")


GOOD = {"images": ["pictures/red.png", "pictures/blue.png"], "text": "a", "label": True}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([GOOD, '{"images": "a'], "a.jsonl, line 2: does not parse as JSON"),
        ([GOOD, "[1]"], "a.jsonl, line 2: is a list; expected an object"),
        ([""], "a.jsonl: has no lines but empty ones"),
        ([GOOD, "", {"text": "a", "label": 1}], "a.jsonl, line 3: has no 'images'; its keys are text, label"),
        ([{"images": "pictures/red.png", "label": 1}], "a.jsonl, line 1: has no 'text'"),
        ([GOOD, {**GOOD, "label": None}], "a.jsonl, line 2: has no 'label'; give each line one"),
        ([{**GOOD, "label": 0.5}], "a.jsonl, line 1: 'label' is 0.5; expected a class"),
        ([{**GOOD, "label": " "}], "a.jsonl, line 1: 'label' is ' '; expected a class"),
        ([{**GOOD, "label": ["a"]}], "a.jsonl, line 1: 'label' is ['a']; expected a class"),
        ([{**GOOD, "text": " \t"}], "a.jsonl, line 1: 'text' is empty"),
        ([GOOD, {**GOOD, "text": "a \ud800"}], "a.jsonl, line 2: the text is no UTF-8 at character 2"),
        ([GOOD, {**GOOD, "label": "\ud800"}], "a.jsonl, line 2: the text is no UTF-8 at character 0"),
        ([{**GOOD, "text": 7}], "a.jsonl, line 1: 'text' is 7; expected a text"),
        ([{**GOOD, "images": []}], "a.jsonl, line 1: 'images' is []; expected a path, or a list of paths"),
        ([{**GOOD, "images": 7}], "a.jsonl, line 1: 'images' is 7; expected a path"),
        ([{**GOOD, "images": ["a.png", None]}], "a.jsonl, line 1: 'images' is ['a.png', None]; expected a path"),
        ([GOOD, {**GOOD, "images": "pictures/red.png"}], "a.jsonl, line 2: has 1 images, but line 1 has 2"),
        ([GOOD, {**GOOD, "images": ["pictures/red.png", "no.png"]}], "a.jsonl, line 2: image "),
        (
            [GOOD, {**GOOD, "images": ["pictures/red.png", "bad.png"]}],
            "bad.png: not a PNG, JPEG, BMP, WebP or TIFF image",
        ),
        ([GOOD, {**GOOD, "images": ["pictures/red.png", "a\0b"]}], "a.jsonl, line 2: image "),
        ([GOOD, {**GOOD, "images": ["pictures/red.png", "pictures"]}], "pictures: cannot be read as an image"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, rows: list[Any], message: str) -> None:
    write_pictures(tmp_path / "pictures")
    (tmp_path / "bad.png").write_text("no image")
    with refused(ValueError, message, "a.jsonl"):
        open_image_texts(write_jsonl(tmp_path / "a.jsonl", rows))


def test_a_missing_image_is_named_with_its_path(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    rows = [GOOD, {**GOOD, "images": ["pictures/red.png", "pictures/none.png"]}]
    missing = str(tmp_path / "pictures" / "none.png")
    with refused(ValueError, "a.jsonl, line 2: image ", missing, "No such file"):
        open_image_texts(write_jsonl(tmp_path / "a.jsonl", rows))


def test_splits_must_agree_and_be_complete(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, splits=True, count=12)
    write_jsonl(folder / "test.jsonl", [{**GOOD, "label": "maybe"}])
    with refused(ValueError, "test.jsonl, line 1: label: class 'maybe' is none of false, true", "training data"):
        open_image_texts(folder)
    write_jsonl(folder / "test.jsonl", [{**GOOD, "images": "pictures/red.png"}])
    with refused(ValueError, "test.jsonl, line 1: has 1 images, but ", "train.jsonl, line 1 has 2"):
        open_image_texts(folder)
    write_jsonl(folder / "test.jsonl", [{"images": GOOD["images"], "text": "a"}])
    with refused(ValueError, "test.jsonl, line 1: has no 'label'"):
        open_image_texts(folder)
    (folder / "test.jsonl").write_text("")
    with refused(ValueError, "test.jsonl: is empty"):
        open_image_texts(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": None}, "has no array 'images'; the arrays are text, label"),
        ({"label": None}, "has no array 'label'"),
        ({"images": np.zeros((3, 2, 4, 4, 2), np.uint8)}, "images is uint8 (3, 2, 4, 4, 2); expected uint8"),
        ({"images": np.zeros((3, 2, 4, 4, 3))}, "images is float64 (3, 2, 4, 4, 3); expected uint8"),
        ({"text": ["a", "b"]}, "text is <U1 (2,); expected texts (3,)"),
        ({"text": ["a", " ", "b"]}, "line 2: the text is empty"),
        ({"label": [0.5, 1, 2]}, "label is float64 (3,); expected classes (3,)"),
        ({"label": ["a", "", "b"]}, "line 2: the label is empty"),
        ({"split": ["train", "train", "later"]}, "split[2] is 'later'; expected train, valid"),
        ({"split": [0.0, 1.0]}, "split is float64 (2,); expected words or integers (3,)"),
        ({"split": ["train", "train", "test"], "label": ["a", "b", "c"]}, "line 3: label: class 'c' is none of a, b"),
    ],
)
def test_broken_arrays_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays = {"images": np.zeros((3, 2, 4, 4, 3), np.uint8), "text": ["a", "b", "c"], "label": ["a", "b", "a"]}
    given: dict[str, Any] = {name: value for name, value in (arrays | change).items() if value is not None}
    np.savez(tmp_path / "a.npz", **given)
    with refused(ValueError, "a.npz", message):
        open_image_texts(tmp_path / "a.npz")


def test_unusable_sources_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("images,text\n")
    with refused(ValueError, "a.csv: is of no known kind; expected .jsonl, .jsonl.gz, .npz"):
        open_image_texts(tmp_path / "a.csv")
    write_folder(tmp_path)
    with refused(ValueError, "no JSONL at", "did you mean", "all.jsonl"):
        open_image_texts(tmp_path / "al.jsonl")
    (tmp_path / "b.npz").write_text(json.dumps({}))
    with refused(ValueError, "b.npz: cannot be read as an .npz file"):
        open_image_texts(tmp_path / "b.npz")


def test_lines_give_splits_groups_and_times(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    rows = examples(4)
    for word, values in (
        ("split", ["train", "test", "dev", "train"]),
        ("group", ["p", 7, "p", "q"]),
        ("time", [2, 1.5, 9, 0]),
    ):
        path = write_jsonl(
            tmp_path / f"{word}.jsonl", [row | {word: value} for row, value in zip(rows, values, strict=True)]
        )
        marks = open_image_texts(path).marks
        assert marks.given is None or marks.given.tolist() == [0, 2, 1, 0]
        assert marks.groups in (None, ("p", "7", "p", "q"))
        assert marks.times is None or marks.times.tolist() == [2, 1.5, 9, 0]
        assert [marks.given is None, marks.groups is None, marks.times is None].count(False) == 1
        chosen = open_image_texts(path).select(torch.tensor([3, 1])).marks
        assert (chosen.groups or ("q", "7")) == ("q", "7")
        bare = write_jsonl(tmp_path / "bare.jsonl", [rows[0], rows[1] | {word: values[1]}, *rows[2:]])
        with refused(ValueError, f"bare.jsonl, line 1: has no {word!r}, but ", "bare.jsonl, line 2 has one"):
            open_image_texts(bare)
    for more, message in (
        ({"time": "soon"}, "line 1: time"),
        ({"group": ["p"]}, "line 1: 'group' is ['p']; expected a text"),
    ):
        with refused(ValueError, "a.jsonl, ", message):
            open_image_texts(write_jsonl(tmp_path / "a.jsonl", [row | more for row in rows]))
    timed = write_jsonl(tmp_path / "timed.jsonl", [row | {"time": "soon"} for row in rows])
    assert len(read_image_texts(timed, num_images=2, channels=3, image_size=(8, 8))) == 4  # times are not used
    folder = write_folder(tmp_path / "parts", splits=True, count=12)
    path = folder / "train.jsonl"
    write_jsonl(path, [json.loads(line) | {"split": "train"} for line in path.read_text().splitlines()])
    with refused(ValueError, "has no 'split', but "):
        open_image_texts(folder)
    for name in ("valid", "test"):
        other = folder / f"{name}.jsonl"
        write_jsonl(other, [json.loads(line) | {"split": "train"} for line in other.read_text().splitlines()])
    with refused(ValueError, "train.jsonl, line 1: has a 'split', but its file is of one; leave it out"):
        open_image_texts(folder)
