"""Running text: a piece of the reference manual that comes with Python."""

import math
import pydoc_data.topics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.first_runs.first_run import FirstRun, learnable
from fredholm.tasks.splits.splits import HeldOut

NUM_BYTES = 200_000
ORDERS = range(3, 9)


def manual(folder: Path, seed: int) -> Path:
    """So many bytes of the manual's topics in the order of their names, from a place that the seed chooses."""
    whole = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)).encode()
    places = len(whole) // NUM_BYTES
    start = seed % places * NUM_BYTES
    path = folder / "manual.txt"
    path.write_bytes(whole[start : start + NUM_BYTES].decode(errors="ignore").encode())
    return path


def n_grams(task: Any, split: HeldOut) -> float:
    """Perplexity a byte of interpolated n-grams, n chosen on the validation split.

        p(c | a b) = (N(a b c) + T(a b) p(c | b)) / (N(a b) + T(a b)),

    with N the times that something came and T the number of different bytes that came after it (Witten and Bell, 1991);
    under the shortest context lies 1/256.
    """
    splits = task.splits
    order = min(ORDERS, key=lambda n: _bits([splits.train], splits.valid, n))
    return 2 ** _bits(learnable(task, split), splits.valid if split == "valid" else splits.test, order)


def _bits(learnt: Iterable[Iterable[str]], asked: Iterable[str], order: int) -> float:
    """Bits a byte of a text under n-grams of others, each of which comes in parts."""
    came, before, kinds = Counter[bytes](), Counter[bytes](), Counter[bytes]()
    for text in learnt:
        data = "".join(text).encode()
        for n in range(order):
            for end in range(n, len(data)):
                context = data[end - n : end]
                kinds[context] += (longer := data[end - n : end + 1]) not in came
                came[longer] += 1
                before[context] += 1
    total = 0.0
    data = "".join(asked).encode()
    for end in range(len(data)):
        p = 1 / 256
        for n in range(min(order, end + 1)):
            context = data[end - n : end]
            if context in before:
                p = (came[data[end - n : end + 1]] + kinds[context] * p) / (before[context] + kinds[context])
        total -= math.log2(p)
    return total / len(data)


FIRST_RUNS = (
    FirstRun(
        name="manual",
        task="text",
        data="200 kB of Python's reference manual",
        make=manual,
        peers={"n-grams of bytes, Witten-Bell": n_grams},
    ),
)
