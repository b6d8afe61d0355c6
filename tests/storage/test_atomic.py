import errno
import os
from pathlib import Path

import pytest

from fredholm.storage.atomic import remove_folder, write_file, write_folder


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes fit into the cache, the disk has no room for them."""

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)


def test_a_file_appears_with_its_content(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"one")
    write_file(tmp_path / "a", b"two")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"two"}


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    for name in ("a", "b"):
        with pytest.raises(OSError, match="No space left on device"):
            write_file(tmp_path / name, b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_a_file_is_written_beside_its_final_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    during: list[bytes] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (during.append((tmp_path / "a").read_bytes()), real(descriptor))
    )
    write_file(tmp_path / "a", b"new")
    assert during[0] == b"old"
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_folder_appears_with_all_its_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "new" / "c", {"a": b"1", "b": b"2"})
    assert {path.name: path.read_bytes() for path in (tmp_path / "new" / "c").iterdir()} == {"a": b"1", "b": b"2"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["c"]


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        write_folder(tmp_path / "c", {"a": b"1"})
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    write_folder(tmp_path / "c", {"a": b"1"})
    with pytest.raises(OSError, match="not empty"):
        write_folder(tmp_path / "c", {"b": b"2"})
    assert [path.name for path in tmp_path.rglob("*")] == ["c", "a"]


def test_a_removed_folder_is_gone(tmp_path: Path) -> None:
    write_folder(tmp_path / "c", {"a": b"1"})
    remove_folder(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []
