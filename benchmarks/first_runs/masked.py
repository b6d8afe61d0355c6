"""Running text of which words are hidden: docstrings, and descriptions of packages one after the other."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.first_runs.first_run import FirstRun
from benchmarks.first_runs.sentences import descriptions, docstrings
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.text import IGNORED

LETTERS = 300_000
"""Of each text, at most."""
CHOICES = (0.5, 2.0, 8.0, 32.0)
"""How many sightings the rarer evidence must have to count as much as the commoner."""


def docstring_text(folder: Path, seed: int) -> Path:
    """Docstrings of packages of the standard library in a random order of packages, one text."""
    found = docstrings()
    order = np.random.default_rng(seed).permutation(sorted(found)).tolist()
    return _written(folder / "docstrings.txt", "\n\n".join(text for name in order for text in found[name]))


def description_text(folder: Path, seed: int) -> Path:
    """Descriptions of packages in a random order, a line each."""
    every = sorted(text for texts in descriptions().values() for text in texts)
    return _written(folder / "descriptions.txt", "\n".join(np.random.default_rng(seed).permutation(every).tolist()))


def _written(path: Path, text: str) -> Path:
    path.write_text(text[:LETTERS], encoding="utf-8")
    return path


class Neighbours:
    """p(token | the one before, the one after), smoothed step by step: both, the mean of either, and the token alone.

    Each step is (n p + k q) / (n + k) for n sightings with shares p and the next step's q. A token that is hidden is no
    neighbour.
    """

    def __init__(self, task: Any) -> None:
        tokens = task._train_blocks.tokens.tolist()
        # a ring, so that every token has two neighbours
        tokens = [tokens[-1], *tokens, tokens[0]]
        self.hidden, self.size = task.tokenizer.marks.mask, task.tokenizer.vocab_size
        self.alone, self.seen, self.after = Counter(tokens[1:-1]), len(tokens) - 2, Counter(pairwise(tokens[1:]))
        around = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
        self.between, self.outside = Counter(around), Counter((first, last) for first, _, last in around)

    def probability(self, before: int, token: int, after: int, k: float) -> float:
        """Of a token between two others, hidden or not."""
        base = (self.alone[token] + 1) / (self.seen + self.size)
        sides = []
        if before != self.hidden:
            sides.append((self.after[before, token] + k * base) / (self.alone[before] + k))
        if after != self.hidden:
            sides.append((self.after[token, after] + k * base) / (self.alone[after] + k))
        if not sides:
            return base
        either = sum(sides) / len(sides)
        if len(sides) == 1:
            return either
        return (self.between[before, token, after] + k * either) / (self.outside[before, after] + k)


def neighbours(task: Any, split: HeldOut) -> float:
    """The perplexity of hidden tokens by their two neighbours, with the k that is best on the validation split."""
    model = Neighbours(task)
    best = min(CHOICES, key=lambda k: _perplexity(model, task, "valid", k))
    return _perplexity(model, task, split, best)


def _perplexity(model: Neighbours, task: Any, split: HeldOut, k: float) -> float:
    nats, count = 0.0, 0
    for indices in torch.arange(task.num_held_out(split)).split(64):
        batch = task.held_out_batch(split, indices)
        for given, wanted in zip(batch["inputs"].tolist(), batch["targets"].tolist(), strict=True):
            for place in (i for i, token in enumerate(wanted) if token != IGNORED):
                after = given[place + 1] if place + 1 < len(given) else model.hidden
                nats -= math.log(model.probability(given[place - 1], wanted[place], after, k))
                count += 1
    return math.exp(nats / count)


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
