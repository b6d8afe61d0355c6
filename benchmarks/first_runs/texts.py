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
    """`NUM_BYTES` bytes of the manual's topics in the order of their names, from an offset that the seed chooses."""
    whole = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)).encode()
    places = len(whole) // NUM_BYTES
    start = seed % places * NUM_BYTES
    path = folder / "manual.txt"
    path.write_bytes(whole[start : start + NUM_BYTES].decode(errors="ignore").encode())
    return path


def n_grams(task: Any, split: HeldOut) -> float:
    """Perplexity per byte of interpolated n-grams, with n chosen on the validation split.

        p(c | a b) = (N(a b c) + T(a b) p(c | b)) / (N(a b) + T(a b)),

    with N the count of a sequence and T the number of different bytes that follow it (Witten and Bell, 1991). The
    shortest context backs off to 1/256.
    """
    splits = task.splits
    order = min(ORDERS, key=lambda n: _bits([splits.train], splits.valid, n))
    return 2 ** _bits(learnable(task, split), splits.valid if split == "valid" else splits.test, order)


def _bits(learnt: Iterable[Iterable[str]], held_out: Iterable[str], order: int) -> float:
    """Bits per byte of a text under n-grams learnt from other texts; each text is an iterable of pieces."""
    counts, contexts, followers = Counter[bytes](), Counter[bytes](), Counter[bytes]()
    for text in learnt:
        data = "".join(text).encode()
        for n in range(order):
            for end in range(n, len(data)):
                context = data[end - n : end]
                followers[context] += (longer := data[end - n : end + 1]) not in counts
                counts[longer] += 1
                contexts[context] += 1
    total = 0.0
    data = "".join(held_out).encode()
    for end in range(len(data)):
        p = 1 / 256
        for n in range(min(order, end + 1)):
            context = data[end - n : end]
            if context in contexts:
                weight = contexts[context] + followers[context]
                p = (counts[data[end - n : end + 1]] + followers[context] * p) / weight
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
