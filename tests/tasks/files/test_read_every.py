from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.tasks.files.read_every import MOST, read_every
from fredholm.tasks.images import open_images
from fredholm.tasks.images.encoded_images import SEARCHED, EncodedImages
from fredholm.tasks.masks import open_masks
from fredholm.tasks.points import open_points
from fredholm.tasks.series import open_series
from tests.refusals import refused
from tests.tasks.masks.build import squares, write_pairs


def read(name: str) -> str:
    if "bad" in name:
        raise ValueError(f"data/{name}: is broken, {name.split('-')[0]}")
    return name


def test_broken_files_are_named_by_their_faults() -> None:
    assert read_every(["a", "b"], read, "reading") == ["a", "b"]
    with refused(ValueError, "data/x-bad: is broken, x"):
        read_every(["a", "x-bad"], read, "reading")
    names = ["a", "x-bad1", "y-bad", "b", "x-bad2"]
    with refused(
        ValueError, "3 of 5 files in data cannot be used: x-bad1, x-bad2 (is broken, x); y-bad (is broken, y)"
    ):
        read_every(names, read, "reading")
    with pytest.raises(ValueError, match=r"^12 of 13 files in data .*x-bad9 \(is broken, x\); and 2 more$"):
        read_every(["a", *(f"x-bad{i}" for i in range(12))], read, "reading")


def test_files_that_all_are_broken_are_not_all_read() -> None:
    left = iter([f"x-bad{i}" for i in range(MOST + 5)])
    with refused(ValueError, f"{MOST} of the first {MOST} files in data cannot be used"):
        read_every(left, read, "reading")
    assert len(list(left)) == 5


def test_all_broken_files_of_a_folder_are_named(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "images" / label / f"{i}.png")
        (tmp_path / "images" / label / "1.png").write_text("no image")
    with refused(ValueError, f"2 of 6 files in {tmp_path / 'images'} cannot be used: a/1.png, b/1.png (not a PNG"):
        open_images(tmp_path / "images")

    for name in ("a/1.png", "b/1.png"):
        (tmp_path / "images" / name).unlink()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)).save(tmp_path / "whole.jpg")
    for name in ("a/3.jpg", "b/4.jpg"):  # whose headers are whole
        (tmp_path / "images" / name).write_bytes((tmp_path / "whole.jpg").read_bytes()[:2000])
    images = open_images(tmp_path / "images").train
    with refused(ValueError, "2 of 6 files in", "cannot be used: a/3.jpg, b/4.jpg (cannot be read as an image"):
        images.images(torch.tensor([2]))
    many = [tmp_path / "images" / "a" / "3.jpg"] * (SEARCHED + 1)
    with refused(ValueError, "a/3.jpg: cannot be read as an image"):
        EncodedImages(many, str, None, channels=1, image_size=(4, 4)).images(torch.tensor([0]))

    for kind, good, broken in (("csv", "x,y,z\n0,0,0\n", "x,y\n0,0\n"), ("xyz", "0 0 0\n", "0 0\n")):
        for label in "ab":
            (tmp_path / kind / label).mkdir(parents=True)
            for i in range(3):
                (tmp_path / kind / label / f"{i}.{kind}").write_text(broken if i == 1 else good)
        with refused(ValueError, f"2 of 6 files in {tmp_path / kind} cannot be used: a/1.{kind}, line 1, b/1.{kind}, "):
            open_points(tmp_path / kind)

    for label in "ab":
        (tmp_path / "series" / label).mkdir(parents=True)
        for i in range(3):
            text = "time,v\n0,1\n1\n" if i == 1 else "time,v\n0,1\n1,2\n"
            (tmp_path / "series" / label / f"{i}.csv").write_text(text)
    with refused(ValueError, "2 of 6 files in", "a/1.csv, line 3, b/1.csv, line 3 (has 1 cells"):
        open_series(tmp_path / "series")

    folder = tmp_path / "masks"
    write_pairs(folder, *squares(4))
    masks = sorted((folder / "masks").iterdir())
    for mask in masks[:2]:
        mask.write_text("no image")
    with refused(ValueError, f"2 of {len(masks)} files in", f"{masks[0].name}, {masks[1].name} (not a PNG"):
        open_masks(folder)
