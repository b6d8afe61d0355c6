"""Small pictures with sentences that are true or false of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220), "yellow": (220, 210, 30)}


def pixels(names: Sequence[str], size: int = 8) -> np.ndarray:
    """Pictures of one colour each with some noise, uint8 `(M, size, size, 3)`."""
    drawn = np.random.default_rng(sum(map(len, names)))
    noise = drawn.integers(-20, 20, (len(names), size, size, 3))
    return (np.array([COLOURS[name] for name in names])[:, None, None] + noise).clip(0, 255).astype(np.uint8)


def write_pictures(folder: Path, size: int = 8) -> None:
    """Writes red.png, green.png, blue.png and yellow.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COLOURS:
        Image.fromarray(pixels([name], size)[0]).save(folder / f"{name}.png")


def examples(count: int, num_images: int = 2) -> list[dict[str, Any]]:
    """Examples that say whether the named colour is among the pictures, at most 4 of different colours."""
    names, found, drawn = list(COLOURS), [], np.random.default_rng(0)
    for i in range(count):
        shown = [names[k] for k in drawn.permutation(4)[:num_images]]
        chosen = names[int(drawn.integers(0, 4))]
        images = [f"pictures/{name}.png" for name in shown]
        found.append({"images": images, "text": f"there is {chosen} in number {i % 5}", "label": chosen in shown})
    return found


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    """Writes one row per line, with texts unescaped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def write_folder(folder: Path, *, splits: bool = False, count: int = 40, num_images: int = 2) -> Path:
    """Writes pictures with all.jsonl, and returns that file; or with a file for each split, and returns the folder."""
    write_pictures(folder / "pictures")
    if not splits:
        return write_jsonl(folder / "all.jsonl", examples(count, num_images))
    for number, name in enumerate(("train", "valid", "test")):
        write_jsonl(folder / f"{name}.jsonl", examples(count, num_images)[number::3])
    return folder


def write_npz(path: Path, *, count: int = 30, num_images: int = 2, splits: bool = True) -> Path:
    """Writes the same examples as arrays."""
    rows = examples(count, num_images)
    images = np.stack([pixels([Path(name).stem for name in row["images"]]) for row in rows])
    arrays: dict[str, Any] = {"images": images, "text": [row["text"] for row in rows]}
    arrays["label"] = [row["label"] for row in rows]
    if splits:
        arrays["split"] = [("train", "train", "dev", "test")[i % 4] for i in range(count)]
    np.savez(path, **arrays)
    return path
