"""Images in .npz files: what is read is what was written, and what does not fit is told by file and array."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.tasks.images import npz_images, open_images


def arrays(*shape: int) -> dict[str, Any]:
    """Seven training and three test images, and their labels of three classes."""
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
        assert data.labels(torch.arange(len(data))).tolist() == held[f"y_{split}"].ravel().tolist()
        assert (data.classes, data.channels, data.image_size) == (("0", "1", "2"), channels, (4, 5))
    assert splits.held_out("test").name(1) == "set.npz:x_test[1]"


def test_a_training_set_may_be_alone(tmp_path: Path) -> None:
    held = {name: array for name, array in arrays(4, 5).items() if name.endswith("train")}
    splits = open_images(write(tmp_path, **held))
    assert (len(splits.train), splits.test, splits.valid, splits.is_given) == (len(held["x_train"]), None, None, True)


def test_classes_may_have_names_and_images_another_size(tmp_path: Path) -> None:
    splits = npz_images(write(tmp_path, **arrays(4, 6), classes=["cat", "dog", "ox"]), image_size=(2, 3))
    assert splits.train.classes == ("cat", "dog", "ox")
    assert splits.train.images(torch.arange(2)).shape == (2, 1, 2, 3)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"x_test": None}, "has no array 'x_test'; the arrays are x_train, y_train, y_test"),
        ({"x_train": np.zeros((7, 4, 5))}, r"x_train is float64 \(7, 4, 5\); expected uint8"),
        ({"x_train": np.zeros((7, 4, 5, 2), np.uint8)}, r"x_train is uint8 \(7, 4, 5, 2\); expected uint8 .* 1 or 3"),
        ({"x_train": np.uint8(1)}, r"y_train is uint8 \(7,\); expected integers \(0,\)"),
        ({"y_train": np.zeros(6, int)}, r"y_train is int64 \(6,\); expected integers \(7,\), one an image"),
        ({"y_train": np.zeros(7)}, r"y_train is float64"),
        ({"y_test": np.array([0, -1, 0])}, "y_test has the label -1"),
        ({"y_test": np.array([0, 3, 0])}, "a label is 3, but there are 3 classes"),
        ({"classes": ["a", "b"]}, "a label is 2, but there are 2 classes"),
        ({"x_test": np.zeros((0, 4, 5), np.uint8), "y_test": np.zeros(0, int)}, "the test set is empty"),
        ({"x_test": np.zeros((3, 4, 6), np.uint8)}, "image size differ"),
    ],
)
def test_what_does_not_fit_names_file_and_array(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    held = {name: array for name, array in (arrays(4, 5) | change).items() if array is not None}
    with pytest.raises(ValueError, match=rf"set\.npz: {told}"):
        npz_images(write(tmp_path, **held))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set.npz").write_text("no arrays")
    with pytest.raises(ValueError, match=r"set\.npz: cannot be read as an \.npz file"):
        open_images(tmp_path / "set.npz")
