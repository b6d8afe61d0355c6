from pathlib import Path

import pytest
import torch
from PIL import Image

from fredholm.tasks.images import ImageDataset, image_files, image_folder
from fredholm.tasks.targets import ClassAnswers
from tests.refusals import refused
from tests.tasks.images.known import labels_of


def write(path: Path, value: int = 0, size: tuple[int, int] = (4, 6), mode: str = "L") -> Path:
    """Writes an image of one colour; ``size`` is height and width."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size[1], size[0]), value if mode == "L" else (value, 0, 0)).save(path)
    return path


def write_classes(root: Path, counts: dict[str, int]) -> None:
    for label, (name, count) in enumerate(counts.items()):
        for index in range(count):
            write(root / name / f"{index}.png", value=100 * label + index)


def contents(data: ImageDataset) -> dict[str, tuple[int, int]]:
    """First pixel and label by name."""
    indices = torch.arange(len(data))
    pixels, labels = data.images(indices)[:, 0, 0, 0].tolist(), labels_of(data, indices).tolist()
    return {data.name(i): (pixels[i], labels[i]) for i in range(len(data))}


def test_classes_are_sorted_and_all_images_form_one_set(tmp_path: Path) -> None:
    write_classes(tmp_path, {"cat": 10, "ant": 5})
    splits = image_folder(tmp_path)
    assert (splits.is_given, splits.test, splits.valid) == (False, None, None)
    assert splits.train.answer_names == ("ant", "cat")
    assert (splits.train.channels, splits.train.image_size) == (1, (4, 6))
    expected = {f"cat/{i}.png": (i, 1) for i in range(10)} | {f"ant/{i}.png": (100 + i, 0) for i in range(5)}
    assert contents(splits.train) == expected
    assert list(splits.train.keys.names) == sorted(expected)
    assert splits.train.keys.strata == [0] * 5 + [1] * 10


@pytest.mark.parametrize("top", ["", "train"])
def test_names_do_not_depend_on_where_the_folder_lies(tmp_path: Path, top: str) -> None:
    tests = []
    for place in ("here", "over/there"):
        write_classes(tmp_path / place / top, {"a": 20, "b": 20})
        tests.append(contents(image_folder(tmp_path / place).train))
    assert tests[0] == tests[1]


@pytest.mark.parametrize("name", ["test", "val", "valid", "dev"])
def test_given_split_is_kept(tmp_path: Path, name: str) -> None:
    write_classes(tmp_path / "train", {"a": 2, "b": 2, "c": 1})
    write_classes(tmp_path / name, {"a": 1, "b": 3})
    split, other = ("test", "valid") if name == "test" else ("valid", "test")
    splits = image_folder(tmp_path)
    assert splits.is_given
    assert set(contents(splits.train)) == {f"train/{name}.png" for name in ("a/0", "a/1", "b/0", "b/1", "c/0")}
    assert set(contents(splits.held_out(split))) == {f"{name}/{file}.png" for file in ("a/0", "b/0", "b/1", "b/2")}
    assert splits.held_out(split).answer_names == ("a", "b", "c")
    assert getattr(splits, other) is None


def test_three_splits_are_kept(tmp_path: Path) -> None:
    for split in ("train", "test", "val"):
        write_classes(tmp_path / split, {"a": 1, "b": 1})
    splits = image_folder(tmp_path)
    parts = splits.train, splits.held_out("valid"), splits.held_out("test")
    assert [part.name(0) for part in parts] == ["train/a/0.png", "val/a/0.png", "test/a/0.png"]


def test_two_folders_of_one_split_are_refused(tmp_path: Path) -> None:
    for split in ("train", "val", "valid"):
        write_classes(tmp_path / split, {"a": 1, "b": 1})
    with refused(ValueError, f"{tmp_path}: has the folders val and valid, which are one split"):
        image_folder(tmp_path)


@pytest.mark.parametrize("suffix", ["bmp", "webp", "tif", "TIFF"])
def test_other_kinds_of_images_are_read(tmp_path: Path, suffix: str) -> None:
    write_classes(tmp_path, {"a": 4, "b": 4})
    write(tmp_path / "b" / f"z.{suffix}", 77)
    splits = image_folder(tmp_path)
    assert abs(contents(splits.train)[f"b/z.{suffix}"][0] - 77) <= 2


def test_train_alone_is_no_split(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 5, "b": 5})
    splits = image_folder(tmp_path)
    assert (len(splits.train), splits.is_given) == (10, False)
    assert splits.train.answer_names == ("a", "b")
    assert splits.train.name(0).startswith("train/a/")


def test_train_can_be_a_class(tmp_path: Path) -> None:
    write_classes(tmp_path, {"car": 3, "train": 3})
    assert image_folder(tmp_path).train.answer_names == ("car", "train")


def test_files_that_count_as_images(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 1, "b": 3})
    write(tmp_path / "a" / "deep" / "er" / "UPPER.PNG")
    write(tmp_path / "a" / "photo.JpEg")
    write(tmp_path / "a" / ".hidden.png")
    write(tmp_path / "a" / ".cache" / "1.png")
    write(tmp_path / ".trash" / "1.png")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "README.md").write_text("not a class")
    with pytest.warns(UserWarning, match=r"skipped 2 files that hold no images of a class \(\.md, \.txt\)"):
        splits = image_folder(tmp_path)
    names = contents(splits.train).keys()
    assert names == {"a/0.png", "a/deep/er/UPPER.PNG", "a/photo.JpEg", "b/0.png", "b/1.png", "b/2.png"}


def test_one_colour_image_makes_all_images_colour(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 3, "b": 3})
    write(tmp_path / "b" / "z.png", 200, mode="RGB")
    splits = image_folder(tmp_path)
    assert splits.train.channels == 3
    assert splits.train.images(torch.tensor([0])).shape == (1, 3, 4, 6)


def test_sizes_that_differ(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 3, "b": 3})
    assert image_folder(tmp_path).sizes is None
    write(tmp_path / "b" / "odd.png", size=(7, 4))
    splits = image_folder(tmp_path)
    assert splits.train.image_size == (4, 6)
    assert splits.sizes == ((4, 6), (7, 4))
    splits = image_folder(tmp_path, image_size=(5, 5))
    assert splits.sizes is None
    assert splits.train.image_size == (5, 5)
    assert splits.train.images(torch.arange(len(splits.train))).shape[1:] == (1, 5, 5)


@pytest.mark.parametrize("cache_bytes", [0, 24, 3 * 24 + 5, 1000])
def test_the_cache_changes_only_the_number_of_reads(tmp_path: Path, cache_bytes: int) -> None:
    files = [write(tmp_path / f"{i}.png", 10 * i) for i in range(6)]
    data = image_files(tmp_path, files, None, channels=1, image_size=(4, 6), cache_bytes=cache_bytes)
    indices = torch.tensor([5, 1, 1, 0])
    for _ in range(2):
        assert data.images(indices)[:, 0, 0, 0].tolist() == [50, 10, 10, 0]
    assert data.images(torch.arange(6))[:, 0, 3, 5].tolist() == [0, 10, 20, 30, 40, 50]
    for path in files:
        path.unlink()
    num_cached = min(6, cache_bytes // 24)
    assert data.images(torch.arange(num_cached))[:, 0, 0, 0].tolist() == [10 * i for i in range(num_cached)]
    if num_cached < 6:
        with pytest.raises(ValueError, match=r"6 of 6 files in .* cannot be used: 0.png, "):
            data.images(torch.arange(6))


def test_changing_returned_images_does_not_change_the_cache(tmp_path: Path) -> None:
    files = [write(tmp_path / "0.png", 7)]
    data = image_files(tmp_path, files, None, channels=1, image_size=(4, 6))
    data.images(torch.tensor([0])).zero_()
    assert data.images(torch.tensor([0])).unique().tolist() == [7]


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path}: no class folder; put the images into one subfolder a class"):
        image_folder(tmp_path)
    write_classes(tmp_path, {"a": 3})
    with pytest.raises(ValueError, match=rf"{tmp_path}: only one class folder, 'a'; at least two classes are needed"):
        image_folder(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("nothing to see")
    with pytest.raises(ValueError, match=rf"{tmp_path / 'b'}: no images \(\.png, \.jpg, .* in this class folder"):
        image_folder(tmp_path)


def test_bad_test_folders(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 3, "b": 3})
    (tmp_path / "test").mkdir()
    with pytest.raises(ValueError, match=rf"{tmp_path / 'test'}: no class folder"):
        image_folder(tmp_path)
    write_classes(tmp_path / "test", {"a": 1, "c": 1})
    with pytest.raises(ValueError, match=r"class 'c' is not among the training classes \(a, b\)"):
        image_folder(tmp_path)


@pytest.mark.parametrize("image_size", [None, (4, 4)])
def test_broken_header_is_found_on_opening(tmp_path: Path, image_size: tuple[int, int] | None) -> None:
    write_classes(tmp_path, {"a": 3, "b": 3})
    path = tmp_path / "b" / "1.png"
    path.write_bytes(b"not a PNG")
    with pytest.raises(ValueError, match=f"{path}: not a PNG, JPEG, BMP, WebP or TIFF image"):
        image_folder(tmp_path, image_size=image_size)


def test_broken_pixels_are_named(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 3, "b": 3})
    path = tmp_path / "b" / "1.png"
    path.write_bytes(path.read_bytes()[:50])
    splits = image_folder(tmp_path, image_size=(4, 4))
    with pytest.raises(ValueError, match=f"{path}: cannot be read as an image"):
        assert contents(splits.train) != contents(splits.held_out("test"))


def test_bad_image_size(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 3, "b": 3})
    with pytest.raises(ValueError, match=r"image_size is \(4, 0\)"):
        image_folder(tmp_path, image_size=(4, 0))


def test_bad_dataset(tmp_path: Path) -> None:
    two = ClassAnswers(names=("a", "b"), values=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="1 images, but 2 answers: give one an image"):
        image_files(tmp_path, [tmp_path / "0.png"], two, channels=1, image_size=(4, 4))
