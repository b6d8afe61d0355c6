"""Training on data larger than the memory that a process may use."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL.PngImagePlugin import PngInfo

from fredholm.tasks.files import cache
from tests.faults.samples import picture

ROOT = Path(__file__).resolve().parents[2]
ROOM = 24 << 20
"""Bytes that a process may use in addition to those for training on small data."""
SIZE = 4 * ROOM
"""Size of the large data in bytes."""


def text(path: Path, size: int) -> Path:
    """Writes lines, some of them blank, of `size` bytes."""
    line = "the cat number {} sat on the mat, and {} mice watched it\n{}"
    block = "".join(line.format(i, i % 7, "\n" * (i % 3 == 0)) for i in range(1000)).encode()
    with path.open("wb") as file:
        for _ in range(size // len(block) + 1):
            file.write(block)
    return path


def rows(path: Path, size: int) -> Path:
    """Writes one document per line, of `size` bytes."""
    block = "".join(f'{{"id": {i}, "text": "the cat number {i} sat, and {i % 7} mice watched"}}\n' for i in range(1000))
    path.write_text(block * (size // len(block) + 1))
    return path


def sentences(path: Path, size: int) -> Path:
    """Writes long sentences of two classes, of `size` bytes."""
    words = np.random.default_rng(0).choice(["the", "cat", "sat", "on", "a", "mat", "and", "mice"], (50, 1000))
    with path.open("w") as file:
        file.write("text,label\n")
        while file.tell() < size:
            file.writelines(f"{' '.join(each)} {file.tell()},{i % 2}\n" for i, each in enumerate(words))
    return path


def image_table(path: Path, size: int) -> Path:
    """Writes images of 8 x 8 pixels, each with a note of some length, of `size` bytes."""
    count, rng = size // 12_000 + 20, np.random.default_rng(0)
    notes = [PngInfo() for _ in range(count)]
    for note in notes:
        note.add_text("note", rng.integers(32, 127, 12_000, dtype=np.uint8).tobytes().decode())
    cells = [picture(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8), pnginfo=note) for note in notes]
    table = pyarrow.table({"image": cells, "label": np.arange(count) % 2})
    pyarrow.parquet.write_table(table, path, write_batch_size=16)  # else a page, which is read as a whole, has 12 MiB
    return path


def images(path: Path, size: int) -> Path:
    """Writes images of 64 x 64 pixels in colour, of `size` bytes."""
    count = size // (64 * 64 * 3) + 20
    x = np.random.default_rng(0).integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
    np.savez(path, x=x, y=np.arange(count) % 2)
    return path


def shards(path: Path, size: int) -> Path:
    """Writes the same in ten files."""
    for number in range(9):
        images(path.with_name(f"{number}.npz"), size // 10)
    return images(path, size // 10)


def series(path: Path, size: int) -> Path:
    """Writes series of 500 samples in three channels, of `size` bytes."""
    count = size // (500 * 3 * 4) + 20
    values = np.random.default_rng(0).normal(size=(count, 500, 3)).astype(np.float32)
    np.savez(path, values=values, labels=np.arange(count) % 2)
    return path


def masks(path: Path, size: int) -> Path:
    """Writes images of 64 x 64 pixels in colour with their masks, of `size` bytes."""
    count = size // (64 * 64 * 4) + 20
    drawn = np.random.default_rng(0)
    pixels = drawn.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
    np.savez(path, images=pixels, masks=(pixels[..., 0] > 127).astype(np.uint8))
    return path


def image_texts(path: Path, size: int) -> Path:
    """Writes images of 128 x 128 pixels in colour with a text each, of `size` bytes."""
    count = size // (128 * 128 * 3) + 20
    pixels = np.random.default_rng(0).integers(0, 256, (count, 128, 128, 3), dtype=np.uint8)
    np.savez(path, images=pixels, text=[f"number {i % 7} is shown" for i in range(count)], label=np.arange(count) % 2)
    return path


def functions(path: Path, size: int) -> Path:
    """Writes functions on a grid of 32 x 32 points and the functions to predict, of `size` bytes."""
    count = size // (2 * 32 * 32 * 4) + 20
    values = np.random.default_rng(0).normal(size=(2, count, 32, 32)).astype(np.float32)
    np.savez(path, values=values[0], target_values=values[1])
    return path


GIVES_BACK = {
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "ARROW_IO_THREADS": "1",
}
"""Makes the C library and pyarrow return freed memory at once, so that only memory in use counts."""
MADE: dict[str, tuple[str, Callable[[Path, int], Path]]] = {
    "bytes": ("a.txt", text),
    "byte pairs": ("a.txt", text),
    "masked": ("a.txt", text),
    "rows": ("a.jsonl", rows),
    "sentences": ("a.csv", sentences),
    "images": ("a.npz", images),
    "image tables": ("a.parquet", image_table),
    "series": ("a.npz", series),
    "masks": ("a.npz", masks),
    "image texts": ("a.npz", image_texts),
    "operator": ("a.npz", functions),
    "field": ("a.npz", functions),
    "shards": ("a.npz", shards),
}
LONG = ("byte pairs", "masked", "rows", "sentences", "masks", "image texts", "field")
"""Kinds that take minutes for their tokens, or that are read like others."""


@pytest.fixture(scope="module")
def learners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """One process that forks for each kind: starting one takes longer than training."""
    folder = str(tmp_path_factory.mktemp("cache"))
    environment = {**os.environ, cache.FOLDER: folder, "OMP_NUM_THREADS": "1", **GIVES_BACK}
    command, pipe = [sys.executable, "-m", "tests.tasks.large"], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        yield process


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory limits need Linux")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.long if kind in LONG else ()) for kind in MADE])
def test_large_data_are_learnt_within_a_quarter_of_their_size(
    tmp_path: Path, kind: str, learners: subprocess.Popen[str]
) -> None:
    name, make = MADE[kind]
    for size in ("small", "large"):
        (tmp_path / size).mkdir()
    small, large = make(tmp_path / "small" / name, 1 << 16), make(tmp_path / "large" / name, SIZE)
    assert learners.stdin
    assert learners.stdout
    print(json.dumps([kind, str(small), str(large), ROOM]), file=learners.stdin, flush=True)
    printed = json.loads(learners.stdout.readline())
    assert printed.startswith("learnt"), printed
