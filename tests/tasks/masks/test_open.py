import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.tasks.files import mapped
from fredholm.tasks.images import read_images
from fredholm.tasks.masks import IGNORED, MaskedImages, npz_file, open_masks, read_mask, truth_beside
from fredholm.tasks.masks.mask_set import MaskFiles
from tests.refusals import refused
from tests.tasks.masks.build import squares, write_folder, write_npz, write_pairs


def contents(found: MaskedImages) -> tuple[torch.Tensor, torch.Tensor]:
    everything = torch.arange(len(found))
    return found.images(everything), found.masks(everything)


def test_a_folder_and_a_file_of_the_same_data_are_equal(tmp_path: Path) -> None:
    folder, file = write_folder(tmp_path / "a", 5), write_npz(tmp_path / "a.npz", 5)
    images, masks = squares(5)
    for found in (open_masks(folder), open_masks(file)):
        assert (found.classes, found.channels, found.image_size, found.marks.given) == (
            ("ground", "red", "blue"),
            3,
            (16, 16),
            None,
        )
        own_images, own_masks = contents(found)
        assert torch.equal(own_images, torch.from_numpy(images).permute(0, 3, 1, 2))
        assert torch.equal(own_masks, torch.from_numpy(masks))
        part = found.select(torch.tensor([3, 1]))
        assert torch.equal(part.masks(torch.tensor([1, 0, 1])), torch.from_numpy(masks[[1, 3, 1]]))
        assert part.names == (found.names[3], found.names[1])


def test_splits_are_folders_or_numbers(tmp_path: Path) -> None:
    images, masks = squares(6)
    for start, stop, name in ((0, 3, "train"), (3, 4, "val"), (4, 6, "test")):
        write_pairs(tmp_path / "a" / name, images[start:stop], masks[start:stop], start=start)
    file = write_npz(tmp_path / "a.npz", 6, split=[0, 0, 0, 1, 2, 2])
    for data in (tmp_path / "a", file):
        found = open_masks(data)
        assert found.marks.given is not None
        assert found.marks.given.tolist() == [0, 0, 0, 1, 2, 2]
        assert torch.equal(contents(found)[1], torch.from_numpy(masks))
        chosen = found.select(torch.tensor([4, 0])).marks.given
        assert chosen is not None
        assert chosen.tolist() == [2, 0]


@pytest.mark.parametrize("size", ["small", "mapped"])
def test_files_of_arrays_are_one_set(tmp_path: Path, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if size == "mapped":
        for module in (mapped, npz_file):
            monkeypatch.setattr(module, "LARGE", 0)
    whole, images, masks = open_masks(write_npz(tmp_path / "a.npz", 6)), *squares(6)
    assert (whole.shards is None) == (size == "small")
    for names, split in ((("0", "1", "2"), None), (("test", "train-0", "train-1"), [0, 0, 0, 0, 2, 2])):
        folder = tmp_path / names[0]
        folder.mkdir()
        for name, part in zip(names, (slice(4, 6), slice(0, 1), slice(1, 4)), strict=True):
            np.savez(folder / f"{name}.npz", images=images[part], masks=masks[part], classes=["ground", "red", "blue"])
        found = open_masks(folder)
        order = [4, 5, 0, 1, 2, 3] if split is None else list(range(6))
        assert found.classes == whole.classes
        for own, expected in zip(contents(found), contents(whole), strict=True):
            assert torch.equal(own, expected[order])
        assert (found.marks.given is None) == (split is None)
        if found.marks.given is not None:
            assert found.marks.given.tolist() == split
        shards = found.select(torch.tensor([0, 1, 2])).shards
        assert (shards is None) == (size == "small")
        if shards is not None:
            assert shards.tolist() == ([2, 1] if split is None else [1, 2])
    np.savez(folder / "train-1.npz", images=images[1:4], masks=masks[1:4] + 2, classes=["ground", "red", "blue"])
    with refused(ValueError, "train-1.npz, masks[0] has the class number 4; there are 3 classes"):
        open_masks(folder)
    with refused(ValueError, "has an array 'split', but names of files say the splits"):
        for name in ("train", "test"):
            write_npz(tmp_path / f"{name}.npz", 2, split=[0, 1])
        (tmp_path / "a.npz").unlink()
        open_masks(tmp_path)


def test_masks_are_scaled_and_trimmed_with_their_images(tmp_path: Path) -> None:
    images, masks = squares(4, size=(12, 24))
    write_pairs(tmp_path / "a", images, masks)
    np.savez(tmp_path / "a.npz", images=images, masks=masks)
    for data in (tmp_path / "a", tmp_path / "a.npz"):
        found = open_masks(data, image_size=(24, 24))
        assert found.image_size == (24, 24)
        own_images, own_masks = contents(found)
        # doubled in size, with a quarter cut off on both sides
        doubled = torch.from_numpy(masks[:, :, 6:18]).repeat_interleave(2, 1).repeat_interleave(2, 2)
        assert torch.equal(own_masks, doubled)
        red = own_images[:, 0].int() - own_images[:, 2].int() > 150  # inside red squares
        assert bool(red.any())
        assert bool((own_masks[red] == 1).all())


@pytest.mark.parametrize("cache_bytes", [0, 2 * 16 * 16, 1 << 20])
def test_the_cache_changes_nothing(tmp_path: Path, cache_bytes: int) -> None:
    images, masks = squares(4)
    write_pairs(tmp_path, images, masks)
    files = [(tmp_path / "images" / f"{i}.png", tmp_path / "masks" / f"{i}.png") for i in range(4)]
    source = MaskFiles(files, channels=3, image_size=(16, 16), cache_bytes=cache_bytes)
    for order in ([0, 1, 2, 3], [3, 0, 3]):
        assert torch.equal(source.masks(torch.tensor(order)), torch.from_numpy(masks[order]))
        assert torch.equal(source.images(torch.tensor(order)), torch.from_numpy(images[order]).permute(0, 3, 1, 2))
    source.masks(torch.tensor([0])).fill_(7)
    assert torch.equal(source.masks(torch.tensor([0])), torch.from_numpy(masks[:1]))


def test_kinds_of_masks(tmp_path: Path) -> None:
    numbers = np.array([[0, 1, 255], [3, 2, 1]], np.uint8)
    grey = Image.fromarray(numbers)
    palette = Image.fromarray(numbers)
    palette.putpalette(np.random.default_rng(0).integers(0, 256, 768).astype(np.uint8).tobytes())
    for name, picture in (("grey", grey), ("palette", palette)):
        picture.save(tmp_path / f"{name}.png")
        assert torch.equal(read_mask(tmp_path / f"{name}.png"), torch.from_numpy(numbers))
    few = Image.fromarray(numbers % 4)
    few.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    few.save(tmp_path / "few.png", bits=2)
    assert read_mask(tmp_path / "few.png").tolist() == [[0, 1, 3], [3, 2, 1]]
    Image.fromarray(numbers > 1).save(tmp_path / "bits.png")
    assert read_mask(tmp_path / "bits.png").tolist() == [[0, 0, 1], [1, 1, 0]]


def write_grey_of_4_bits(path: Path) -> None:
    """Writes a PNG of 4-bit grey values, which pillow cannot write."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2, 1, 4, 0, 0, 0, 0)
    body = zlib.compress(bytes([0, 0x12]))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def test_images_that_are_not_masks(tmp_path: Path) -> None:
    for mode in ("RGB", "RGBA", "LA", "I;16"):
        Image.new(mode, (4, 4)).save(tmp_path / "a.png")
        with refused(ValueError, f"{tmp_path / 'a.png'}: is an image of {mode}; a mask has class numbers"):
            read_mask(tmp_path / "a.png")
    Image.new("L", (4, 4)).save(tmp_path / "a.jpg")
    with refused(ValueError, "a.jpg: is a JPEG image, which changes numbers; save masks as PNG"):
        read_mask(tmp_path / "a.jpg")
    write_grey_of_4_bits(tmp_path / "b.png")
    with refused(ValueError, "b.png: is an image of L of L;4; a mask has class numbers, as 8-bit"):
        read_mask(tmp_path / "b.png")
    (tmp_path / "c.png").write_bytes(b"nothing")
    with refused(ValueError, "c.png: not a PNG, JPEG, BMP, WebP or TIFF image"):
        read_mask(tmp_path / "c.png")


def test_classes_without_names_are_numbers(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", classes=False)
    assert open_masks(folder).classes == ("0", "1", "2")
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 2, 2), np.uint8), masks=np.array([[[0, 4], [255, 1]]], np.uint8))
    found = open_masks(tmp_path / "a.npz")
    assert (found.classes, found.channels) == (("0", "1", "2", "3", "4"), 1)
    assert found.masks(torch.tensor([0])).unique().tolist() == [0, 1, 4, IGNORED]


def test_grey_images_and_other_files(tmp_path: Path) -> None:
    images, masks = squares(3)
    write_pairs(tmp_path, images[..., 0], masks, kind="jpg")
    for name in (".hidden.png", "notes.txt"):
        (tmp_path / "images" / name).write_text("")
        (tmp_path / "masks" / name).write_text("")
    found = open_masks(tmp_path)
    assert (len(found), found.channels) == (3, 1)
    assert torch.equal(
        found.images(torch.tensor([2])), read_images([tmp_path / "images" / "2.jpg"], channels=1, image_size=(16, 16))
    )


def test_the_mask_of_an_image_in_the_sibling_folder(tmp_path: Path) -> None:
    write_pairs(tmp_path, *squares(1), kind="jpeg")
    assert truth_beside(tmp_path / "images" / "0.jpeg") == tmp_path / "masks" / "0.png"
    assert truth_beside(tmp_path / "masks" / "0.png") is None
    assert truth_beside(tmp_path / "images" / "1.jpeg") is None


def test_folders_in_capital_letters(tmp_path: Path) -> None:
    write_pairs(tmp_path, *squares(3))
    (tmp_path / "images").rename(tmp_path / "Images")
    (tmp_path / "masks").rename(tmp_path / "MASKS")
    found = open_masks(tmp_path)
    assert found.names[0].endswith("Images/0.png")
    assert torch.equal(contents(found)[1], torch.from_numpy(squares(3)[1]))
    image = next(iter(sorted((tmp_path / "Images").iterdir())))
    assert truth_beside(image) == tmp_path / "MASKS" / "0.png"
    (tmp_path / "Masks").mkdir()
    assert truth_beside(image) is None
    with refused(ValueError, f"{tmp_path}: has no folder 'masks', but Images, MASKS, Masks; name the folder"):
        open_masks(tmp_path)
    (tmp_path / "MASKS").rename(tmp_path / "masks")  # it is ambiguous which one holds the masks
    assert len(open_masks(tmp_path).names) == 3


def write_mask(path: Path, value: int, size: tuple[int, int] = (16, 16)) -> None:
    Image.fromarray(np.full(size, value, np.uint8)).save(path)


def blank_all(folder: Path) -> None:
    for path in (folder / "masks").iterdir():
        write_mask(path, 255)


def one_class(folder: Path) -> None:
    (folder / "classes.txt").write_text("a\n")
    blank_all(folder)
    write_mask(folder / "masks" / "0.png", 0)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:50])


def emptied(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        path.unlink()


BROKEN: dict[str, tuple[Any, str]] = {
    "no mask": (lambda at: (at / "masks" / "3.png").unlink(), "images/3.png: has no mask; add "),
    "no image": (lambda at: (at / "images" / "3.png").unlink(), "masks/3.png: has no image in "),
    "sizes": (
        lambda at: write_mask(at / "masks" / "3.png", 1, (8, 16)),
        "masks/3.png: is 8 x 16; its image 3.png is 16",
    ),
    "unknown": (lambda at: write_mask(at / "masks" / "3.png", 7), "masks/3.png: has the class number 7; there are 3 "),
    "no classes": (lambda at: (at / "classes.txt").write_text("\n"), "classes.txt: names no class"),
    "one class": (
        one_class,
        "has the classes ['a']; expected at least 2 (255 says that a class is not known; in masks of 0",
    ),
    "twice": (lambda at: (at / "classes.txt").write_text("a\nb\na\n"), "the name of class 2 is 'a'"),
    "gap": (lambda at: (at / "classes.txt").write_text("a\n\nb\n"), "the name of class 1 is ''"),
    "bytes": (lambda at: (at / "classes.txt").write_bytes(b"\xff\xfe\xff"), "classes.txt: cannot be read as text"),
    "not labelled": (blank_all, "all pixels of all masks are 255, not labelled"),
    "unreadable": (
        lambda at: (at / "images" / "3.png").write_bytes(b"no"),
        "images/3.png: not a PNG, JPEG, BMP, WebP or TIFF image",
    ),
    "cut": (lambda at: cut(at / "masks" / "3.png"), "masks/3.png: cannot be read as an image"),
    "two of a name": (
        lambda at: shutil.copy(at / "images" / "3.png", at / "images" / "3.jpg"),
        "has 3.jpg and 3.png, of one name",
    ),
    "no folder": (lambda at: shutil.rmtree(at / "masks"), "has no folder 'masks'"),
    "empty": (emptied, "images: has no images"),
    "another size": (lambda at: write_pairs(at, *squares(1, (8, 8)), start=9), "images differ in size: "),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_folders_that_cannot_be_used(tmp_path: Path, broken: str) -> None:
    folder = write_folder(tmp_path / "a", 5)
    breaking, message = BROKEN[broken]
    breaking(folder)
    with refused(ValueError, message, str(folder)):
        open_masks(folder)


def test_splits_that_cannot_be_used(tmp_path: Path) -> None:
    for name in ("train", "test"):
        write_folder(tmp_path / "a" / name, 2)
    (tmp_path / "a" / "classes.txt").write_text("a\nb\nc\n")
    blank_all(tmp_path / "a" / "test")
    with refused(ValueError, f"{tmp_path / 'a'}, test split: all pixels of all masks are 255"):
        open_masks(tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "test" / "images")
    with refused(ValueError, "a/test: has no folder 'images'"):
        open_masks(tmp_path / "a")
    for name in ("val", "valid"):
        write_folder(tmp_path / "a" / name, 2)
    with refused(ValueError, "has the folders val and valid, which are one split"):
        open_masks(tmp_path / "a")


def test_unusable_sources_are_refused(tmp_path: Path) -> None:
    with refused(ValueError, "no images at 'absent'; pass a folder with images and masks, an .npz file, or a "):
        open_masks("absent")
    (tmp_path / "a.txt").write_text("")
    with refused(ValueError, "no images at"):
        open_masks(tmp_path / "a.txt")
    with refused(ValueError, "has no folder 'images'; name the folder of images 'images' and that of their masks"):
        open_masks(tmp_path)
    write_folder(tmp_path / "set", 2)
    (tmp_path / "set" / "masks").rename(tmp_path / "set" / "labels")
    with refused(ValueError, "set: has no folder 'masks', but labels; name the folder of images 'images'"):
        open_masks(tmp_path / "set")


ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "no masks": ({"masks": None}, "has no array 'masks'; the arrays are images, classes"),
    "floats": ({"images": np.zeros((4, 8, 8, 3))}, "images is float64 (4, 8, 8, 3); expected uint8 (n, H, W)"),
    "channels": ({"images": np.zeros((4, 8, 8, 2), np.uint8)}, "images is uint8 (4, 8, 8, 2)"),
    "none": ({"images": np.zeros((0, 8, 8, 3), np.uint8)}, "expected at least one image"),
    "sizes": ({"masks": np.zeros((4, 8, 7), np.uint8)}, "masks are uint8 (4, 8, 7); expected uint8 (4, 8, 8)"),
    "numbers": ({"masks": np.zeros((4, 8, 8))}, "masks are float64 (4, 8, 8); expected uint8"),
    "unknown": ({"masks": np.full((4, 8, 8), 3, np.uint8)}, "masks[0] has the class number 3; there are 3 classes"),
    "blank": ({"masks": np.full((4, 8, 8), 255, np.uint8)}, "all pixels of all masks are 255"),
    "split": ({"split": np.array([0, 1, 2, 3])}, "split[3] is 3; expected 0 (train), 1 (valid) or 2 (test)"),
    "short split": ({"split": np.array([0, 1, 2])}, "split is int64 (3,)"),
    "one class": ({"classes": ["a"], "masks": np.zeros((4, 8, 8), np.uint8)}, "has the classes ['a']"),
    "no classes": ({"classes": np.zeros(0, "U1")}, "classes: names no class"),
}


@pytest.mark.parametrize("broken", ARRAYS)
def test_arrays_that_cannot_be_used(tmp_path: Path, broken: str) -> None:
    changes, message = ARRAYS[broken]
    images, masks = squares(4, (8, 8))
    arrays = {"images": images, "masks": masks, "classes": ["ground", "red", "blue"]} | changes
    np.savez(tmp_path / "a.npz", **{name: array for name, array in arrays.items() if array is not None})
    with refused(ValueError, str(tmp_path / "a.npz"), message):
        open_masks(tmp_path / "a.npz")


def test_a_split_without_labels(tmp_path: Path) -> None:
    images, masks = squares(4, (8, 8))
    masks[2:] = 255
    np.savez(tmp_path / "a.npz", images=images, masks=masks, split=np.array([0, 0, 1, 1]))
    with refused(ValueError, "all pixels of the valid split are 255"):
        open_masks(tmp_path / "a.npz")


def test_a_table_says_how_images_are_divided(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "a", 4)
    for column, cells in (("split", ["test", "train", "", "val"]), ("group", [*"pqpr"]), ("time", [*"3214"])):
        rows = [f"images/{i}.png,{cell}" for i, cell in enumerate(cells)]
        (root / "images.csv").write_text("\n".join([f"File,{column.title()}", *rows[::-1]]))
        marks = open_masks(root).marks
        assert marks.given is None or marks.given.tolist() == [2, 0, -1, 1]
        assert marks.groups in (None, tuple("pqpr"))
        assert marks.times is None or marks.times.tolist() == [3, 2, 1, 4]
        assert [marks.given is None, marks.groups is None, marks.times is None].count(False) == 1
    row = "images/0.png,p\nimages/1.png,p\nimages/2.png,p\nimages/3.png,p\n"
    for table, message in (
        ("file,group\n" + row.replace("images/2.png,p\n", ""), "images.csv: has no row of images/2.png"),
        ("file,group\n" + row + "images/9.png,p\n", "images.csv: names 'images/9.png', which is none of the images"),
        ("file,group\n" + row + "images/3.png,p\n", "images.csv: names an image twice"),
        ("file,patient\n" + row, "images.csv, line 1: the columns are file, patient; expected file, and split"),
        ("file,group\n" + row.replace("2.png,p", "2.png,"), "images.csv, line 4: column 'group': is empty"),
        ("file,group,day\n" + row.replace(",p", ",p,1"), "expected file, and split, group or time, and no others"),
        ("file,group,Group\n" + row.replace(",p", ",p,1"), "line 1: columns 'group' and 'Group' are one; keep one"),
    ):
        (root / "images.csv").write_text(table)
        with refused(ValueError, message):
            open_masks(root)
    images, masks = squares(4)
    write_pairs(tmp_path / "c", images, np.where(np.arange(4)[:, None, None] == 3, 255, masks).astype(np.uint8))
    rows = [f"images/{i}.png,{'test' if i == 3 else 'train'}" for i in range(4)]
    (tmp_path / "c" / "images.csv").write_text("\n".join(["file,split", *rows]))
    with refused(ValueError, f"{tmp_path / 'c'}, test split: all pixels of all masks are 255"):
        open_masks(tmp_path / "c")
    for part, own in (("train", [0, 1]), ("test", [2, 3])):
        write_pairs(tmp_path / "b" / part, images[own], masks[own])
    names = [f"{part}/images/{i}.png" for part in ("train", "test") for i in range(2)]
    (tmp_path / "b" / "images.csv").write_text("\n".join(["file,group", *(f"{name},{name[0]}" for name in names)]))
    marks = open_masks(tmp_path / "b").marks
    assert marks.given is not None
    assert (marks.groups, marks.given.tolist()) == (("t", "t", "t", "t"), [0, 0, 2, 2])
    (tmp_path / "b" / "images.csv").write_text("\n".join(["file,split", *(f"{name},train" for name in names)]))
    with refused(ValueError, "has a column 'split', but images are in folders of splits; leave it out"):
        open_masks(tmp_path / "b")
