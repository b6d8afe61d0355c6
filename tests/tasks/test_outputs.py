"""Files written by predictions."""

import errno
import os
from pathlib import Path

import pytest

from fredholm.tasks.outputs import Outputs, with_ending
from tests.refusals import refused


def test_existing_files_are_not_replaced_without_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    outputs = Outputs(save=path)
    outputs.write("--save", path, b"first")
    for other in (Outputs(save=path), outputs):
        with refused(ValueError, f"--save: {path}"):
            other.write("--save", path, b"second")
    assert path.read_bytes() == b"first"
    replacing = Outputs(save=path, overwrite=True)
    replacing.write("--save", path, b"third")
    with refused(ValueError, "would hold the predictions of two inputs"):
        replacing.write("--save", path, b"fourth")
    assert path.read_bytes() == b"third"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_is_never_followed(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    for name, target in (("whole", "precious"), ("broken", "absent")):
        (tmp_path / name).symlink_to(tmp_path / target)
        outputs = Outputs(save=tmp_path / name, overwrite=overwrite)
        if overwrite:
            outputs.check("--save", tmp_path / name)
            outputs.write("--save", tmp_path / name, b"new")
            assert not (tmp_path / name).is_symlink()
        else:
            with refused(ValueError, "exists"):
                outputs.check("--save", tmp_path / name)
            with refused(ValueError, "exists"):
                outputs.write("--save", tmp_path / name, b"new")
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_ctrl_c_leaves_the_existing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool, error: BaseException
) -> None:
    path = tmp_path / "a.npz"
    if overwrite:
        path.write_bytes(b"first")

    def full(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(type(error)) as caught:
        Outputs(save=path, overwrite=overwrite).write("--save", path, b"second")
    assert getattr(caught.value, "filename", str(path)) == str(path)
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("a.npz", b"first")] * overwrite


def test_a_missing_suffix_is_added(tmp_path: Path) -> None:
    assert with_ending("--save", tmp_path / "a", (".npz",)) == tmp_path / "a.npz"
    assert with_ending("--save", tmp_path / "A.NPZ", (".npz",)) == tmp_path / "A.NPZ"
    with refused(ValueError, "a.csv ends in .csv; expected .npz"):
        with_ending("--save", tmp_path / "a.csv", (".npz",))
    with refused(ValueError, "--save is '.'; expected the name of a file"):
        with_ending("--save", Path(), (".npz",))
