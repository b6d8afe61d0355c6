"""A short run on pictures, for tests of commands that take a finished run."""

from pathlib import Path

import numpy as np
from PIL import Image

from fredholm import cli
from tests.command_line import TINY


def train_on_pictures(folder: Path) -> None:
    """Writes bright and dark pictures to `shapes` in a folder, and trains a run on them in `run`."""
    draw = np.random.default_rng(0)
    for number in range(40):
        (folder / "shapes" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 60, (8, 8), dtype=np.uint8) + np.uint8(150 * (number % 2))
        Image.fromarray(pixels).save(folder / "shapes" / "ab"[number % 2] / f"{number}.png")
    command = ["train", "images", str(folder / "shapes"), "--run-dir", str(folder / "run"), *TINY, "--no-report"]
    assert cli.main(command) == 0
