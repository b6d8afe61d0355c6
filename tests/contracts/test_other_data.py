"""A resumed run of any task needs the data that it began with, at any path; other data only with `accept_new_data`."""

import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.tasks import TASKS, Task
from fredholm.tasks.files.read_record import recording_reads
from fredholm.training import Run, TrainingConfig, train
from fredholm.training.storage.fingerprint import Fingerprint
from tests.contracts.settings import Subject
from tests.contracts.task_settings import task_subjects

pytest.importorskip("kornia")
pytest.importorskip("tokenizers")
pytest.importorskip("trimesh")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # warnings about small and modified data

NAMES = [task.__name__ for task in TASKS]
LISTED = ("ImageLearning.Config", "PointLearning.Config")
"""Tasks that read all files of a folder."""
Change = Callable[[], object]

_opened: set[Path] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str | os.PathLike):
        _opened.add(Path(os.fspath(arguments[0])))


sys.addaudithook(_note)  # Python cannot remove an audit hook


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return {subject.name: subject for subject in task_subjects(tmp_path_factory.mktemp("data"))}


@pytest.fixture(params=NAMES)
def starts(request: pytest.FixtureRequest, subjects: dict[str, Subject]) -> list[tuple[Subject, dict[str, Any]]]:
    """A task's settings, once for each of its data sets."""
    subject = subjects[f"{request.param}.Config"]
    found = {start["data"]: start for start in reversed(list(subject.starts().values()))}
    return [(subject, start) for start in found.values()]


def copied(start: dict[str, Any], to: Path) -> dict[str, Any]:
    """The settings on a copy of the data, in the folder `to`, which does not exist."""
    data = Path(start["data"])
    if data.is_dir():
        shutil.copytree(data, to / data.name)
    else:  # a file may name others in its folder
        shutil.copytree(data.parent, to)
    return start | {"data": str(to / data.name)}


def all_read(task: Task) -> Iterator[object]:
    """Facts and all batches that a run reads from its data."""
    yield task.facts
    yield from task.train_batch(torch.arange(task.num_train), torch.Generator().manual_seed(0)).values()
    for split in ("valid", "test"):
        if count := task.num_held_out(split):
            yield from task.held_out_batch(split, torch.arange(count)).values()


def same(a: list[object], b: list[object]) -> bool:
    pairs = zip(a, b, strict=True)
    return all(
        torch.equal(x.nan_to_num(), y.nan_to_num())  # NaN stands for a missing number
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        else x == y
        for x, y in pairs
    )


def test_all_opened_files_are_recorded_before_the_first_batch(
    starts: list[tuple[Subject, dict[str, Any]]],
) -> None:
    global _opened
    for subject, start in starts:
        place = Path(start["data"]).parent
        _opened = set()
        with recording_reads() as found:
            task = subject.of(**start).build()
            _ = [task.num_train, *(task.num_held_out(split) for split in ("valid", "test"))]
        _ = list(all_read(task))
        opened, _opened = {path for path in _opened if path.is_relative_to(place)}, None
        assert opened == found.files.keys(), start["data"]
        assert opened


def test_data_at_another_path_are_the_same(
    starts: list[tuple[Subject, dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (subject, start) in enumerate(starts):
        moved = copied(start, tmp_path / str(number))
        (tmp_path / f"link {number}").symlink_to(tmp_path / str(number))
        monkeypatch.chdir(tmp_path)
        relative = moved | {"data": os.path.relpath(moved["data"])}
        linked = moved | {"data": str(tmp_path / f"link {number}" / Path(moved["data"]).name)}
        known, read = None, None
        for settings in (start, moved, relative, linked):
            with recording_reads() as found:
                built = subject.of(**settings).build()
                values = list(all_read(built))
            fingerprint = Fingerprint.of(found, settings["data"])
            if known is None or read is None:
                known, read = fingerprint, values
            assert same(read, values), settings["data"]
            assert {name: file.digest for name, file in fingerprint.files.items()} == {
                name: file.digest for name, file in known.files.items()
            }


def changes_of(file: Path) -> Iterator[Change]:
    """Changes of a file's content: the first, a middle or the last entry of each array, or one byte of other files."""
    if file.suffix == ".npz":
        with np.load(file) as opened:
            arrays = {name: opened[name] for name in opened.files}
        for name, array in arrays.items():
            for at in {0, array.size // 2, max(array.size - 1, 0)}:
                copied_array = array.copy()
                copied_array.reshape(-1)[at] = _changed(array.reshape(-1)[at])
                changed: dict[str, Any] = arrays | {name: copied_array}
                yield partial(np.savez, file, **changed)
        return
    data = file.read_bytes()
    for at in (len(data) // 4, len(data) // 2, len(data) - 2):
        yield partial(file.write_bytes, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def _changed(value: Any) -> Any:
    if value.dtype.kind == "U":
        return "train" if str(value) == "test" else "test"
    return ~value if value.dtype.kind == "b" else value + 1 if value.dtype.kind in "iu" else np.nan_to_num(value) + 0.5


def swap_contents(first: Path, second: Path) -> None:
    before = first.read_bytes(), second.read_bytes()
    first.write_bytes(before[1])
    second.write_bytes(before[0])


def harmless_changes(files: list[Path]) -> Iterator[Change]:
    """Changes of content that leave files readable."""
    if files[0].suffix in (".png", ".off"):
        yield partial(swap_contents, files[0], files[-1])
    elif files[0].suffix != ".npz":
        lines = files[0].read_text().splitlines()
        yield partial(files[0].write_text, "\n".join([*lines[:1], *lines[:0:-1]]))
    yield from changes_of(files[0])


class Begun:
    """A run of one epoch, or in closed form, on a copy of its data that can be restored."""

    def __init__(self, subject: Subject, start: dict[str, Any], folder: Path) -> None:
        self.folder, self.run, settings = folder / "data", folder / "run", copied(start, folder / "data")
        task = subject.of(**settings)
        steps: dict[str, Any] = (
            {"epochs": 1, "batch_size": 64, "log_every": 99} if task.build().learns_by_steps else {"epochs": 0}
        )
        numbers = TrainingConfig(**steps, tensorboard=False, device="cpu")
        self.config = Run.Config(task=task, training=numbers)
        self.result = train(self.config, self.run, needs_measure=False)
        place = Path(settings["data"])
        self.place, self.is_folder = (place if place.is_dir() else place.parent), place.is_dir()
        self.files = [self.place / name for name in self.fingerprint.files]
        self._before = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint.of_text((self.run / "data.json").read_text())

    def restore(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self._before:
                path.unlink()
        for path, data in self._before.items():
            path.write_bytes(data)

    def refusal(self) -> str:
        with pytest.raises(ValueError, match=f"^{re.escape(str(self.run))} is a run on other data: ") as caught:
            train(self.config, self.run, resume=True)
        assert len(str(caught.value)) < 500 + len(str(self.run))
        return str(caught.value)

    def name(self, file: Path) -> str:
        return file.relative_to(self.place).as_posix()


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.long)])
def test_other_data_are_refused_by_name(
    starts: list[tuple[Subject, dict[str, Any]]], count: int, tmp_path: Path
) -> None:
    for number, (subject, start) in enumerate(starts[:count]):
        begun = Begun(subject, start, tmp_path / str(number))
        files = begun.files
        for file in [files[i * (len(files) - 1) // max(count - 1, 1)] for i in range(min(count, len(files)))]:
            for change in itertools.islice(changes_of(file), None if count > 1 else 2):
                change()
                assert f": 1 file changed ({begun.name(file)})" in begun.refusal()
                begun.restore()
            renamed = file.with_name(f"z{file.name}")
            file.rename(renamed)
            found = begun.refusal()
            assert f"1 file renamed ({begun.name(file)} to {begun.name(renamed)})" in found or "removed" in found
            begun.restore()
            file.unlink()
            assert f"1 file removed ({begun.name(file)})" in begun.refusal()
            begun.restore()
            if subject.name in LISTED and begun.is_folder:
                shutil.copy(file, renamed)
                assert f"1 file added ({begun.name(renamed)})" in begun.refusal()
                begun.restore()
                swap_contents(files[0], files[-1])
                assert "2 files changed" in begun.refusal()
                begun.restore()
        again = train(begun.config, begun.run, resume=True).metrics
        assert again == pytest.approx(begun.result.metrics, rel=0, abs=0, nan_ok=True)


def test_accepted_new_data_become_the_data_of_the_run(
    starts: list[tuple[Subject, dict[str, Any]]], tmp_path: Path
) -> None:
    begun = Begun(*starts[0], tmp_path)
    if begun.config.training.epochs == 0:
        pytest.skip("a model that is fitted in closed form does not go on with other data")
    known = begun.fingerprint
    longer = dataclasses.replace(begun.config, training=dataclasses.replace(begun.config.training, epochs=2))
    for change in harmless_changes(begun.files):
        change()
        with contextlib.suppress(ValueError):  # some changes lead to other classes
            train(longer, begun.run, resume=True, accept_new_data=True)
            break
        assert begun.fingerprint == known
        begun.restore()
    assert begun.fingerprint.files != known.files
    train(longer, begun.run, resume=True)
    begun.restore()
    with pytest.raises(ValueError, match="is a run on other data"):
        train(longer, begun.run, resume=True)
