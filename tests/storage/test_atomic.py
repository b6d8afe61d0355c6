import errno
import os
from pathlib import Path

import pytest

from fredholm.storage.atomic import Draft, remove_folder, write_file


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes fit into the cache, but not onto the disk."""

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


def test_an_interrupted_write_leaves_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "a", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_an_error_names_the_requested_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_file(tmp_path / "absent" / "a", b"new")
    assert caught.value.filename == str(tmp_path / "absent" / "a")


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


def written(path: Path, **files: bytes) -> Draft:
    draft = Draft(path)
    draft.begin()
    for name, content in files.items():
        draft.add(name, content)
    return draft


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_folder_appears_with_all_its_files(tmp_path: Path) -> None:
    draft = written(tmp_path / "new" / "c", a=b"1", b=b"2")
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".partial-c"]
    draft.finish("b")
    assert content(tmp_path / "new" / "c") == {"a": b"1", "b": b"2"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["c"]


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        written(tmp_path / "c", a=b"1")
    Draft(tmp_path / "c").drop()
    assert list(tmp_path.iterdir()) == []


def test_files_of_an_earlier_draft_are_discarded(tmp_path: Path) -> None:
    written(tmp_path / "c", a=b"1")
    written(tmp_path / "c", b=b"2").finish("b")
    assert content(tmp_path / "c") == {"b": b"2"}


def test_in_an_existing_folder_files_are_replaced_and_stale_ones_removed(tmp_path: Path) -> None:
    written(tmp_path / "c", a=b"1", b=b"1", list=b"1", mine=b"0").finish("list")
    written(tmp_path / "c", b=b"2", d=b"2", list=b"2").finish("list", stale={"a", "gone"})
    assert content(tmp_path / "c") == {"b": b"2", "d": b"2", "list": b"2", "mine": b"0"}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_the_last_file_is_replaced_after_the_others_and_before_stale_ones_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "c", a=b"1", stale=b"1").finish("a")
    seen: list[dict[str, bytes]] = []
    replace, unlink = Path.replace, Path.unlink
    monkeypatch.setattr(Path, "replace", lambda path, to: (seen.append(content(tmp_path / "c")), replace(path, to)))
    monkeypatch.setattr(
        Path, "unlink", lambda path, **settings: (seen.append(content(tmp_path / "c")), unlink(path, **settings))
    )
    written(tmp_path / "c", a=b"2", b=b"2").finish("a", stale={"stale"})
    assert seen == [
        {"a": b"1", "stale": b"1"},
        {"a": b"1", "stale": b"1", "b": b"2"},
        {"a": b"2", "stale": b"1", "b": b"2"},
    ]


def test_a_removed_folder_is_gone(tmp_path: Path) -> None:
    written(tmp_path / "c", a=b"1").finish("a")
    remove_folder(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []
