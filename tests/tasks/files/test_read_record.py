"""Every reader records the files that a run reads, where it opens them."""

import ast
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fredholm
from fredholm.tasks import ImageLearning
from fredholm.tasks.files.read_record import FileState, record_content, recorded, recording_reads
from fredholm.tasks.masks import open_masks
from fredholm.tasks.text import Tokens, read_text

TASKS = Path(fredholm.__file__).parent / "tasks"
OPENING = ("open", "read_bytes", "read_text", "read_table")
"""Names of functions and methods that open a file."""
OPEN = ("file", "member")
"""Variables of readers for a file opened by `open_file`, and for a member of it."""
OF_NUMPY = ("np.load", "np.fromfile", "np.memmap", "np.genfromtxt")


def opened_unrecorded(source: str) -> list[str]:
    """The calls that open a file to read it without recording it."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        called, whole = ast.unparse(call.func), ast.unparse(call)
        opens = called in ("open", *OF_NUMPY) or ("." in called and called.split(".")[-1] in OPENING)
        writes = any(isinstance(a, ast.Constant) and str(a.value)[:1] in ("x", "w", "a") for a in call.args)
        is_open = bool(call.args) and ast.unparse(call.args[0]) in OPEN
        if opens and not writes and not is_open and "recorded(" not in whole:
            found.append(whole)
    return found


@pytest.mark.slow
def test_no_reader_of_the_package_opens_an_unrecorded_file() -> None:
    found = {str(file.relative_to(TASKS)): opened_unrecorded(file.read_text()) for file in sorted(TASKS.rglob("*.py"))}
    assert len(found) > 100
    # the cache is made from recorded data, and data_files records everything that it opens
    assert [name for name, calls in found.items() if calls] == ["files/cache.py", "files/data_files.py"]


def test_the_search_finds_calls_that_open_a_file() -> None:
    for call in ("path.read_bytes()", "open(path)", "gzip.open(path)", "np.load(path)", "parquet.read_table(path)"):
        assert opened_unrecorded(f"x = {call}") == [call]
        assert opened_unrecorded(f"x = {call}".replace("path", "recorded(path)")) == []
    assert opened_unrecorded("with path.open('xb') as file: read_text(path)") == []


def test_reads_are_recorded_with_the_state_of_the_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("one")
    two.write_text("two")
    before = FileState.of(one)
    assert recorded(one) is one
    with recording_reads() as found:
        read_text(one)
        one.write_text("longer")
        recorded(one)
        assert recorded(tmp_path / "absent.txt") == tmp_path / "absent.txt"
        record_content("given", b"a", b"b")
    read_text(two)
    assert found.files == {one: before}
    assert len(found.contents["given"]) == 32
    assert found.start == {}


def test_a_tokenizer_file_is_read_only_by_a_new_run(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(Tokens(vocab_size=34).learn(["the cat sat on the mat"]).state)
    with recording_reads() as found:
        Tokens(file=str(file)).learn([])
    assert (list(found.files), list(found.start)) == ([], [file])


def test_masks_read_by_threads_are_recorded_too(tmp_path: Path) -> None:
    for number in range(3):
        for folder, value in (("images", 9 * number), ("masks", number % 2)):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.fromarray(np.full((4, 4), value, np.uint8)).save(tmp_path / folder / f"{number}.png")
    (tmp_path / "classes.txt").write_text("ground\nsky\n")
    with recording_reads() as found:
        open_masks(tmp_path)
    assert found.files.keys() == {path for path in tmp_path.rglob("*") if path.is_file()}


def test_digits_that_come_with_a_package_are_recorded_by_content() -> None:
    with recording_reads() as found:
        ImageLearning.Config().build()
    assert (found.files, list(found.contents)) == ({}, ["scikit-learn's digits"])
