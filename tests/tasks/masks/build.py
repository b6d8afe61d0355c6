"""Small images with masks: squares in the colour of their class on a black ground."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLOURS = np.array([(0, 0, 0), (220, 30, 30), (30, 30, 220)], np.uint8)


def squares(count: int, size: tuple[int, int] = (16, 16), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images `(count, H, W, 3)` and masks `(count, H, W)`: a red (1) or blue (2) square, with noise."""
    drawn = np.random.default_rng(seed)
    masks = np.zeros((count, *size), np.uint8)
    for i, mask in enumerate(masks):
        side = int(drawn.integers(size[0] // 4, size[0] // 2 + 1))
        top, left = (int(drawn.integers(0, extent - side + 1)) for extent in size)
        mask[top : top + side, left : left + side] = 1 + i % 2
    noise = drawn.integers(0, 20, (count, *size, 1), dtype=np.uint8)
    return COLOURS[masks] + noise, masks


def write_pairs(folder: Path, images: np.ndarray, masks: np.ndarray, *, start: int = 0, kind: str = "png") -> None:
    """Writes `images` and `masks`, named by their indices."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i, (image, mask) in enumerate(zip(images, masks, strict=True), start):
        Image.fromarray(image).save(folder / "images" / f"{i}.{kind}")
        Image.fromarray(mask).save(folder / "masks" / f"{i}.png")


def write_folder(folder: Path, count: int = 10, *, classes: bool = True, **settings: Any) -> Path:
    """Writes a folder of squares with the names of the classes."""
    write_pairs(folder, *squares(count, **settings))
    if classes:
        (folder / "classes.txt").write_text("ground\nred\nblue\n")
    return folder


def write_npz(file: Path, count: int = 10, *, split: list[int] | None = None, **settings: Any) -> Path:
    """Writes the same as one file."""
    images, masks = squares(count, **settings)
    more: dict[str, Any] = {} if split is None else {"split": np.array(split)}
    np.savez(file, images=images, masks=masks, classes=["ground", "red", "blue"], **more)
    return file
