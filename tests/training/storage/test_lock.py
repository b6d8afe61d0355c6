"""One writer per run folder, and the state after the writer is killed."""

import errno
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fredholm.training import Run, train
from fredholm.training.storage.lock import LOCK, only_writer
from tests.refusals import refused
from tests.training.toy_task import ToyTask, toy_run


def forked(call: Callable[[], None]) -> int:
    """Forks a process that makes the call and exits silently; returns its id."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
        finally:
            os._exit(0)
    return pid


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[int]:
    """The id of a process that holds the lock of tmp_path / "run"."""
    found, telling = os.pipe()

    def hold() -> None:
        with only_writer(tmp_path / "run"):
            os.write(telling, b"!")
            signal.pause()

    pid = forked(hold)
    os.read(found, 1)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(found)
    os.close(telling)


def test_the_error_for_a_second_writer_names_the_first(tmp_path: Path, holder: int) -> None:
    path = tmp_path / "run"
    line = f"{path} is being trained by process {holder} on {socket.gethostname()}; wait for its end"
    with refused(ValueError, line), only_writer(path):
        pass
    for resume in (True, False):
        with refused(ValueError, line):
            train(toy_run(), path, resume=resume, tasks=[ToyTask])
    assert [entry.name for entry in path.iterdir()] == [LOCK]


def test_a_killed_writer_releases_the_lock_even_if_its_children_live(tmp_path: Path) -> None:
    (found, telling), (ended, ending) = os.pipe(), os.pipe()

    def hold() -> None:
        os.close(ending)
        with only_writer(tmp_path):
            forked(lambda: (os.read(ended, 1), None)[1])  # killed at the end of this test
            os.write(telling, b"!")
            signal.pause()

    pid = forked(hold)
    os.read(found, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (tmp_path / LOCK).is_file()
    with only_writer(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    for end in (found, telling, ended, ending):
        os.close(end)


def test_a_folder_with_only_a_lock_file_counts_as_new(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("process 1 on another machine\n")
    train(toy_run(epochs=1), tmp_path, tasks=[ToyTask])
    assert not (tmp_path / LOCK).exists()


def test_a_second_writer_in_one_process_is_refused_and_a_child_process_releases_nothing(tmp_path: Path) -> None:
    with only_writer(tmp_path):
        with refused(ValueError, f"is being trained by process {os.getpid()}"), only_writer(tmp_path):
            pass
        with refused(ValueError, f"is being trained by process {os.getpid()}"), only_writer(tmp_path):
            pass

    def leave() -> None:
        with only_writer(tmp_path):
            if os.fork() == 0:
                return  # at the end of the block
            os.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(forked(leave), 0)
    assert (tmp_path / LOCK).is_file()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"), only_writer(tmp_path / "run"):
        pass
    assert precious.read_text() == "kept"


def test_a_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.warns(UserWarning, match="has no locks"), only_writer(tmp_path):
        pass


def test_readers_are_not_blocked(tmp_path: Path, holder: int) -> None:
    other = tmp_path / "other"
    train(toy_run(epochs=1), other, tasks=[ToyTask])
    for entry in other.iterdir():
        entry.rename(tmp_path / "run" / entry.name)
    assert Run(tmp_path / "run", tasks=[ToyTask]).evaluate().keys() == {"accuracy", "loss"}
