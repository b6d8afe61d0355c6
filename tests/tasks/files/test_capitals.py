"""File names in capital letters, as other systems write them, are read like lowercase ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredholm.tasks.fields.open import open_fields
from fredholm.tasks.graphs.open import open_graphs
from fredholm.tasks.image_texts import open_image_texts
from fredholm.tasks.images import open_images
from fredholm.tasks.masks import open_masks
from fredholm.tasks.points import open_points
from fredholm.tasks.sentences import open_sentences
from fredholm.tasks.sentences.table import TableFile
from fredholm.tasks.series import read_series
from fredholm.tasks.text.documents import Documents

PIXELS = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)
ROWS = "text,label\ngood,1\nbad,0\n"
FILES: dict[str, tuple[str, Any, Callable[[Path], Any]]] = {
    "images": ("A.NPZ", {"x": PIXELS, "y": np.arange(6) % 2}, open_images),
    "masks": ("A.NPZ", {"images": PIXELS, "masks": PIXELS % 2}, open_masks),
    "images with text": (
        "A.NPZ",
        {"images": PIXELS[..., None], "text": ["a b"] * 6, "label": np.arange(6) % 2},
        open_image_texts,
    ),
    "series": ("A.NPZ", {"values": np.ones((6, 4)), "labels": np.arange(6) % 2}, read_series),
    "series, table": ("A.CSV", "time,x\n0,1\n1,2\n", read_series),
    "functions": ("A.NPZ", {"values": np.ones((6, 4, 1)), "pos": np.linspace(0, 1, 4)[:, None]}, open_fields),
    "sentences": ("A.CSV", ROWS, TableFile),
    "sentences, tabs": ("A.TSV", ROWS.replace(",", "\t"), TableFile),
    "graphs": (
        "A.NPZ",
        {"edge_index": np.array([[0, 2], [1, 3]]), "graph": np.array([0, 0, 1, 1]), "labels": np.arange(2)},
        open_graphs,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_uppercase_suffixes_are_read(name: str, tmp_path: Path) -> None:
    file, held, read = FILES[name]
    for each in (file, file.lower()):
        path = tmp_path / each
        if isinstance(held, str):
            path.write_text(held)
        else:
            np.savez(path.with_suffix(".npz"), **held)
            path.with_suffix(".npz").rename(path)
    big, small = (read(tmp_path / each) for each in (file, file.lower()))
    assert type(big) is type(small)
    if isinstance(big, TableFile):
        assert [row.cells for row in big.rows()] == [row.cells for row in small.rows()]


@pytest.mark.parametrize("ends", ["upper", "lower"])
def test_text_and_the_files_of_splits(ends: str, tmp_path: Path) -> None:
    change = getattr(str, ends)
    (tmp_path / change("a.jsonl")).write_text('{"text": "one two"}\n{"text": "three"}\n')
    assert list(Documents([tmp_path / change("a.jsonl")], "file")) == ["one two", "three"]
    (tmp_path / "set").mkdir()
    for split in ("train", "test"):
        (tmp_path / "set" / change(f"{split}.csv")).write_text(ROWS)
    found = open_sentences(tmp_path / "set").splits
    assert (len(found.train), len(found.held_out("test"))) == (2, 2)


@pytest.mark.parametrize("words", [("Train", "TEST"), ("train", "Test")])
def test_folders_of_splits(words: tuple[str, str], tmp_path: Path) -> None:
    pixels = pytest.importorskip("PIL.Image", reason="image files need pillow")
    rng = np.random.default_rng(0)
    for word in words:
        for label in "xy":
            for kind in ("images", "points"):
                (tmp_path / kind / word / label).mkdir(parents=True)
            np.savetxt(tmp_path / "points" / word / label / "1.xyz", rng.normal(size=(4, 3)))
            pixels.fromarray(PIXELS[0]).save(tmp_path / "images" / word / label / "1.png")
        for kind in ("images", "masks"):
            (tmp_path / "masks" / word / kind).mkdir(parents=True)
            pixels.fromarray(PIXELS[0] % 2).save(tmp_path / "masks" / word / kind / "1.png")
    images = open_images(tmp_path / "images")
    assert (len(images.train), images.test is not None) == (2, True)
    assert images.train.answers is not None
    assert images.train.answers.names == ("x", "y")
    for found, count in ((open_points(tmp_path / "points"), 2), (open_masks(tmp_path / "masks"), 1)):
        assert found.marks.given is not None
        assert found.marks.given.tolist() == [0] * count + [2] * count
