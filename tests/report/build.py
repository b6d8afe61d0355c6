"""Small runs for pages of reports."""

from pathlib import Path

from fredholm import cli
from tests.command_line import TINY


def digits(path: Path, *options: str, seed: int = 0) -> Path:
    """Trains on the built-in digits for a second; returns the run folder."""
    words = ["train", "images", "digits", *TINY, *options, "--run-dir", str(path), "--seed", str(seed)]
    assert cli.main(words) == 0
    return path
