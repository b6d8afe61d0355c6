import random
import re
from pathlib import Path

import pytest

from tests.faults.contained import Case, broken_cases
from tests.faults.mutations import family, mutate_files, mutated
from tests.faults.samples import samples


def test_a_few_damaged_files_of_every_kind_are_read_or_refused() -> None:
    outcomes = mutate_files(3 * len(samples()), seed=1)
    assert sum(outcome.tried for outcome in outcomes) == 3 * len(samples())
    assert [line for outcome in outcomes for line in outcome.broken] == []


def test_a_mutation_is_reproducible(tmp_path: Path) -> None:
    kind = samples()[0]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        mutated(kind, random.Random("3 7"), "3 7").make(tmp_path / name)
    (file,) = kind.files
    found = [(tmp_path / name / file).read_bytes() for name in ("a", "b")]
    assert found[0] == found[1] != kind.files[file]


def test_every_kind_belongs_to_a_family() -> None:
    assert {family(kind) for kind in samples()} == {
        "arrays, .npz and .npy",
        "images, masks and idx files",
        "meshes and clouds",
        "tables, series, texts and graphs",
    }


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda folder: _raise(KeyError("x")), "KeyError at : 'x'"),
        (lambda folder: _raise(ValueError("unknown")), "names no file: unknown"),
        (lambda folder: _raise(ValueError("a.csv: \x1b[2J")), "no short printable line"),
        (lambda folder: _raise(ValueError("a.csv: " + "x" * 500)), "no short printable line"),
        (lambda folder: _raise(SystemExit(0)), "SystemExit"),
        (lambda folder: bytearray(3 << 30), "MemoryError"),
        (lambda folder: __import__("os").abort(), "SIGABRT"),
        (lambda folder: None, "was read"),
    ],
)
def test_endings_other_than_promised_are_reported(read: object, expected: str) -> None:
    case = Case("bad", lambda folder: (folder / "a.csv").touch(), read, must_fail=True)  # pyright: ignore[reportArgumentType]
    sound = Case("good", lambda folder: (folder / "a.csv").touch(), lambda folder: _raise(OSError("a.csv: is gone")))
    ((number, ending),) = broken_cases(3, lambda i: case if i == 1 else sound)
    assert number == 1
    assert re.search(re.escape(expected), ending)
