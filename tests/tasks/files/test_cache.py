"""Cached files of large data are made once, and appear whole or not at all."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fredholm.storage.atomic import new_file
from fredholm.tasks.files import cache
from fredholm.tasks.files.cache import CacheEntry, cache_folder
from tests.refusals import refused


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LARGE", 100)
    cache._digest.cache_clear()
    return tmp_path / "cache"


class Parts:
    """Numbers in chunks of 7, with a count of the calls."""

    def __init__(self, count: int) -> None:
        self.whole, self.times = np.arange(count), 0

    def __call__(self) -> Iterator[np.ndarray]:
        self.times += 1
        yield from (self.whole[k : k + 7] for k in range(0, len(self.whole), 7))


def test_small_things_stay_in_memory(folder: Path) -> None:
    for count in (0, 1, 49):
        parts = Parts(count)
        found = CacheEntry("a", count).array(parts, np.uint16)
        assert found.dtype == np.uint16
        assert found.tolist() == list(range(count))
    assert CacheEntry("b").value(lambda: {"a": 1}, size=99) == {"a": 1}
    assert not folder.exists()


def test_large_ones_are_mapped_and_made_once(folder: Path) -> None:
    parts = Parts(1000)
    for key in ("a", "a", "b"):
        found = CacheEntry(key, 3).array(parts, np.uint16)
        assert found.tolist() == list(range(1000))
        assert isinstance(found.base, np.memmap)
        assert not found.flags.writeable
    assert parts.times == 2
    assert CacheEntry("a", 3).array(parts, np.int32).tolist() != list(range(1000)) or parts.times == 3
    for _ in range(2):
        assert CacheEntry("c").value(lambda: {"made": [parts.times]}, size=100) == {"made": [2]}
        parts.times = 2
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]


def test_damaged_entries_are_made_again(folder: Path) -> None:
    parts = Parts(1000)
    CacheEntry("a").array(parts, np.uint16)
    (data,), (listing,) = folder.glob("*.bin"), folder.glob("*.json")
    whole = data.read_bytes()
    for damage in (whole[:-2], whole[:50] + b"\1" + whole[51:], None):
        if damage is None:
            listing.write_text(json.dumps({"bytes": len(whole)}))
        else:
            data.write_bytes(damage)
        before = parts.times
        assert CacheEntry("a").array(parts, np.uint16).tolist() == list(range(1000))
        assert parts.times == before + 1
    CacheEntry("b").value(lambda: {"a": 1}, size=100)
    for file in folder.glob("*.json"):
        file.write_text(file.read_text().replace("1", "2"))
    assert CacheEntry("b").value(lambda: {"a": 3}, size=100) == {"a": 3}


def test_nothing_is_left_of_an_entry_whose_making_failed(folder: Path) -> None:
    def broken() -> Iterator[np.ndarray]:
        yield np.arange(1000)
        raise ValueError("the text is broken")

    with refused(ValueError, "the text is broken"):
        CacheEntry("a").array(broken, np.uint16)
    assert [file.suffix for file in folder.iterdir()] == [".lock"]
    assert CacheEntry("a").array(Parts(80), np.uint16).tolist() == list(range(80))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "file"))
    with refused(ValueError, "cannot be kept there (", "FREDHOLM_CACHE=PATH"):
        CacheEntry("a").array(Parts(1000), np.uint16)
    with refused(ValueError, "FREDHOLM_CACHE=PATH"):
        CacheEntry("a").value(dict, size=100)
    assert len(CacheEntry("a").array(Parts(10), np.uint16)) == 10


def test_the_folder_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/fredholm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/fredholm")


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with new_file(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"

    def interrupted() -> None:
        with new_file(path) as file:
            file.write(b"other")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
