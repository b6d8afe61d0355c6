from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.tasks.images import read_image_arrays, read_images
from tests.refusals import refused


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3)])
def test_an_array_is_read_like_a_file_of_the_same_pixels(tmp_path: Path, shape: tuple[int, ...], channels: int) -> None:
    pixels = drawn(2, *shape)
    np.save(tmp_path / "a.npy", pixels)
    np.savez(tmp_path / "a.npz", x=pixels)
    files = [tmp_path / f"{i}.png" for i in range(2)]
    for file, each in zip(files, pixels, strict=True):
        Image.fromarray(each.squeeze()).save(file)
    for size in ((5, 7), (4, 6)):
        expected = read_images(files, channels, size)
        for name in ("a.npy", "a.npz"):
            assert torch.equal(read_image_arrays(tmp_path / name, channels, size), expected)


def test_a_part_can_be_chosen_and_a_warning_reports_the_test_part(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x_train=drawn(3, 4, 4), x_val=drawn(1, 4, 4), x_test=drawn(2, 4, 4), y_train=np.arange(3))
    with pytest.warns(UserWarning, match="a.npz: holds the parts train, valid, test; the test part is read"):
        assert len(read_image_arrays(path, 1, (4, 4))) == 2
    assert [len(read_image_arrays(path, 1, (4, 4), part=part)) for part in ("train", "valid", "test")] == [3, 1, 2]
    np.savez(path, x_train=drawn(3, 4, 4))
    assert len(read_image_arrays(path, 1, (4, 4))) == 3  # the only part need not be named
    with refused(ValueError, "a.npz: holds no test part; it has train"):
        read_image_arrays(path, 1, (4, 4), part="test")
    np.savez(path, train_images=drawn(3, 4, 4), val_images=drawn(1, 4, 4), train_labels=np.arange(3))
    assert [len(read_image_arrays(path, 1, (4, 4), part=part)) for part in ("train", "valid")] == [3, 1]
    np.savez(path, x=drawn(3, 4, 4))
    with refused(ValueError, "a.npz: is not in parts; leave --part train out"):
        read_image_arrays(path, 1, (4, 4), part="train")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": drawn(1, 4, 4)}, "has no array 'x' or 'x_test'; the arrays are z"),
        ({"x": drawn(1, 4, 4) / 255}, "x is float64 (1, 4, 4); expected uint8 (n, H, W)"),
        ({"x": drawn(4, 4)}, "x is uint8 (4, 4); expected"),
        ({"x": drawn(4, 5, 3)}, "x is (4, 5, 3): one image, or 4 grey ones of 5 x 3; expected (1, 4, 5, 3) of the"),
        ({"x_test": drawn(0, 4, 4)}, "x_test has the shape (0, 4, 4); expected at least one image"),
        ({"x": np.array([None])}, "pass one without objects"),
    ],
)
def test_arrays_that_are_no_images_are_named(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, f"{tmp_path / 'a.npz'}: ", message):
        read_image_arrays(tmp_path / "a.npz", 1, (4, 4))


def test_a_file_that_is_not_an_array_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY")
    np.savez(tmp_path / "b.npz", x=drawn(1, 4, 4))
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    for name, message in (("a.npy", "cannot be read as an .npy file"), ("b.npy", "is an .npz file by its content")):
        with refused(ValueError, f"{tmp_path / name}: ", message):
            read_image_arrays(tmp_path / name, 1, (4, 4))


def test_images_as_narrow_as_the_number_of_colours_stay_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=drawn(4, 5, 3))
    assert read_image_arrays(tmp_path / "a.npz", 1, (5, 3)).shape == (4, 1, 5, 3)
