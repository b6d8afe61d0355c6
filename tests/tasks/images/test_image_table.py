"""Images in columns of tables are read like image files."""

import importlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch

from fredholm.tasks.files import cache
from fredholm.tasks.images import ImageDataset, image_table, open_images, read_image_table, read_images
from tests.faults.samples import columns, picture
from tests.refusals import refused
from tests.tasks.files.test_arrow_table import SAVED

RNG = np.random.default_rng(0)
SIZES = ((6, 7), (9, 5), (6, 7), (12, 4), (6, 7))
ENCODED = [
    picture(RNG.integers(0, 256, (*size, 3), dtype=np.uint8), kind)
    for size, kind in zip(SIZES, ("png", "jpg", "bmp", "webp", "png"), strict=True)
]
NAMES = {"label": ["zebra", "ant"]}


def cells(encoded: Sequence[bytes | None]) -> list[dict[str, Any]]:
    return [{"bytes": each, "path": f"{i}.png"} for i, each in enumerate(encoded)]


def write(path: Path, encoded: Sequence[bytes] = ENCODED, **others: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    others = others or {"label": [i % 2 for i in range(len(encoded))]}
    path.write_bytes(columns(path.suffix, NAMES, image=cells(encoded), **others))
    return path


def from_files(folder: Path, image_size: tuple[int, int]) -> torch.Tensor:
    """The same images read from one file each."""
    files = [folder / f"{i}.png" for i in range(len(ENCODED))]
    for file, content in zip(files, ENCODED, strict=True):
        file.write_bytes(content)
    return read_images(files, 3, image_size)


@pytest.mark.parametrize("kind", [".arrow", ".parquet"])
def test_images_in_a_table_equal_those_in_files(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = from_files(tmp_path, (6, 7))
    path = write(tmp_path / f"a{kind}", time=[3, 1, 2, 5, 4], label=[0, 1, 0, 0, 1], note=["n"] * 5)
    for large in (cache.LARGE, 1):  # in memory, and mapped
        monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
        monkeypatch.setattr(cache, "LARGE", large)
        splits = open_images(path)
        data = splits.train
        assert (splits.is_given, splits.test, splits.valid, len(data)) == (False, None, None, 5)
        assert (data.channels, data.image_size, splits.sizes) == (3, (6, 7), ((6, 7), (12, 4)))
        order = torch.tensor([4, 0, 3, 3, 1, 2])
        assert torch.equal(data.images(order), expected[order])
        assert torch.equal(data.select(torch.tensor([2, 0])).images(torch.tensor([1])), expected[:1])
        assert data.name(1) == f"a{kind}, row 2"
        assert data.answer_names == ("ant", "zebra")
        assert data.answers is not None
        assert data.answers.values.tolist() == [1, 0, 1, 1, 0]
        assert data.marks.times is not None
        assert data.marks.times.tolist() == [3, 1, 2, 5, 4]
    bare = columns(kind, None, image=ENCODED, label=["x", "y", "x", "y", "x"])
    (tmp_path / f"b{kind}").write_bytes(bare)
    assert torch.equal(open_images(tmp_path / f"b{kind}", image_size=(6, 7)).train.images(order), expected[order])


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.large_binary()])
def test_cells_of_a_slice_are_not_copied(kind: pyarrow.DataType) -> None:
    values = [b"a", b"", None, b"bcd", b"ef", None]
    part = pyarrow.array(values, kind).slice(1, 4)
    ends, content, is_there = importlib.import_module("fredholm.tasks.images.image_table")._Cells.of(part)
    assert [bytes(content[a:b]) for a, b in itertools.pairwise(ends)] == [b"", b"", b"bcd", b"ef"]
    assert is_there.tolist() == [True, False, True, True]
    assert len(content) == 6


def test_splits_follow_the_files(tmp_path: Path) -> None:
    expected = from_files(tmp_path, (6, 7))
    folder = tmp_path / "shards"
    write(folder / "train-00000-of-00002.parquet", ENCODED[:2])
    write(folder / "train-00001-of-00002.parquet", ENCODED[2:3])
    write(folder / "validation-00000-of-00001.parquet", ENCODED[3:])
    splits = open_images(folder)
    assert (splits.is_given, splits.test, len(splits.train)) == (True, None, 3)
    assert torch.equal(splits.train.images(torch.tensor([2, 0])), expected[[2, 0]])
    assert splits.train.name(2) == "train-00001-of-00002.parquet, row 1"
    assert torch.equal(splits.held_out("valid").images(torch.arange(2)), expected[3:])
    path = write(tmp_path / "column.arrow", label=[0, 1, 0, 1, 1], split=["test", "train", "train", "valid", "train"])
    splits = open_images(path)
    parts: list[ImageDataset | None] = [splits.train, splits.valid, splits.test]
    assert [None if part is None else len(part) for part in parts] == [3, 1, 1]


def test_large_tables_report_their_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("fredholm.tasks.images.image_table"), "LARGE", 1)
    folder = tmp_path / "shards"
    for i in range(3):
        write(folder / f"{i}.arrow", ENCODED[: i + 2])
    shards = open_images(folder).train.shards
    assert shards is not None
    assert shards.tolist() == [2, 3, 4]


def test_files_saved_by_datasets_are_read() -> None:
    pixels, order = torch.from_numpy(np.load(SAVED / "pixels.npy")), [5, 0, 1, 2]
    splits = open_images(SAVED / "splits")
    assert (splits.train.channels, splits.train.answer_names, splits.test) == (1, ("ant", "zebra"), None)
    assert torch.equal(splits.train.images(torch.arange(4))[:, 0], pixels[order])
    assert torch.equal(splits.held_out("valid").images(torch.arange(2))[:, 0], pixels[3:5])
    whole = open_images(SAVED / "whole.parquet")
    assert torch.equal(whole.train.images(torch.arange(6))[:, 0], pixels)


@pytest.mark.parametrize("kind", [".arrow", ".parquet"])
def test_predictions_read_tables_without_labels(tmp_path: Path, kind: str) -> None:
    expected = from_files(tmp_path, (5, 5))
    (tmp_path / f"a{kind}").write_bytes(columns(kind, None, image=cells(ENCODED)))
    assert torch.equal(read_image_table(tmp_path / f"a{kind}", 3, (5, 5)), expected)
    with refused(ValueError, "has no column of images"):
        (tmp_path / f"a{kind}").write_bytes(columns(kind, None, text=["a"]))
        read_image_table(tmp_path / f"a{kind}", 3, (5, 5))


def test_unreadable_tables_are_refused(tmp_path: Path) -> None:
    pixels, label = cells(ENCODED[:2]), ["x", "y"]
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"text": label, "label": label}, ["has no column of images", "the columns are text, label"]),
        ({"image": pixels, "img": pixels, "label": label}, ["several columns of images, image, img; keep one"]),
        ({"image": pixels}, ["no column has a usual name of a label", "the columns are image:"]),
        ({"image": pixels, "fine": label, "coarse": label}, ["rename the one to predict"]),
        ({"image": pixels, "label": ["x", None]}, ["row 2: column 'label': is empty; give each row a value"]),
        ({"image": cells([ENCODED[0], None]), "label": label}, ["row 2: there is no image; leave the row out"]),
        ({"image": [pixels[0], None], "label": label}, ["row 2: there is no image; leave the row out"]),
        ({"image": cells([ENCODED[0], b"text"]), "label": label}, ["row 2: not a PNG, JPEG, BMP, WebP or TIFF image"]),
    ]
    for given, message in cases:
        (tmp_path / "a.arrow").write_bytes(columns(".arrow", None, **given))
        with refused(ValueError, "a.arrow", *message):
            image_table(tmp_path / "a.arrow")
    nothing = pyarrow.array([], pyarrow.binary())
    (tmp_path / "none.arrow").write_bytes(columns(".arrow", None, image=nothing, label=pyarrow.array([], "string")))
    for read in (image_table, lambda path: read_image_table(path, 3, (4, 4))):
        with refused(ValueError, "none.arrow: has no rows; expected at least one image"):
            read(tmp_path / "none.arrow")
    write(tmp_path / "two" / "train.parquet")
    others: list[tuple[dict[str, Any], str]] = [
        ({"picture": pixels, "label": label}, "has no column 'image'; give all files the same"),
        ({"image": pixels}, "has no column 'label'; give all files the same"),
        ({"image": label, "label": label}, "column 'image' is of string; expected images"),
    ]
    for given, message in others:
        (tmp_path / "two" / "test.parquet").write_bytes(columns(".parquet", None, **given))
        with refused(ValueError, "test.parquet", message):
            open_images(tmp_path / "two")
