"""Small runs that pages are drawn of."""

from pathlib import Path

from fredholm import cli
from tests.command_line import TINY


def digits(path: Path, *options: str, seed: int = 0) -> Path:
    """A run on the built-in digits of a second."""
    words = ["train", "images", "digits", *TINY, *options, "--run-dir", str(path), "--seed", str(seed)]
    assert cli.main(words) == 0
    return path
