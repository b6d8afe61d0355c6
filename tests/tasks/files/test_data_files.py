"""Paths of data that a user wrote."""

from pathlib import Path

import pytest

from fredholm.tasks.files.data_files import data_path
from tests.refusals import refused


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "X.7Z"])
def test_files_with_archive_suffixes_are_archives_and_folders_are_not(name: str, tmp_path: Path) -> None:
    assert data_path(tmp_path / name) == tmp_path / name  # its reader reports the missing file
    (tmp_path / name).mkdir()
    assert data_path(tmp_path / name) == tmp_path / name
    (tmp_path / name).rmdir()
    (tmp_path / name).write_bytes(b"")
    with refused(ValueError, f"{tmp_path / name} is an archive; unpack it, and pass the file or folder that was in it"):
        data_path(tmp_path / name)
