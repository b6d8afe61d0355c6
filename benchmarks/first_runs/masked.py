"""Running text with masked words: docstrings, and descriptions of packages one after the other."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.first_runs.first_run import FirstRun
from benchmarks.first_runs.sentences import descriptions, docstrings
from fredholm.tasks.splits.splits import HeldOut

LETTERS = 300_000
"""Largest number of characters of each text."""


def docstring_text(folder: Path, seed: int) -> Path:
    """Docstrings of the standard library as one text, in a random order of packages."""
    found = docstrings()
    order = np.random.default_rng(seed).permutation(sorted(found)).tolist()
    return _written(folder / "docstrings.txt", "\n\n".join(text for name in order for text in found[name]))


def description_text(folder: Path, seed: int) -> Path:
    """Descriptions of packages in a random order, one per line."""
    every = sorted(text for texts in descriptions().values() for text in texts)
    return _written(folder / "descriptions.txt", "\n".join(np.random.default_rng(seed).permutation(every).tolist()))


def _written(path: Path, text: str) -> Path:
    path.write_text(text[:LETTERS], encoding="utf-8")
    return path


def neighbours(task: Any, split: HeldOut) -> float:
    """The perplexity of masked tokens given their two neighbours, with the k that is best on the validation split."""
    (baseline,) = task.baselines
    learnt = min((baseline.learnt(k) for k in baseline.settings), key=lambda value: value("valid"))
    return learnt(split)


PEERS = {"both neighbours, smoothed": neighbours}

FIRST_RUNS = (
    FirstRun(
        name="docstring_text",
        task="masked",
        data="300 kB of Python's docstrings",
        make=docstring_text,
        peers=PEERS,
    ),
    FirstRun(
        name="description_text",
        task="masked",
        data="300 kB of descriptions of Debian packages",
        make=description_text,
        peers=PEERS,
    ),
)
