"""The benchmark of the cost of safe runs, at tiny sizes: its gate, its clock and its rows."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import safe_runs
from benchmarks.harness import GateError, Options
from benchmarks.safe_runs import (
    ALL,
    BENCHMARK,
    CHECKSUMS,
    LOCKING,
    PARTS,
    RECORDING,
    RUN,
    Clock,
    Config,
    require_safety,
)
from fredholm.tasks.files.read_record import ReadRecord
from fredholm.tasks.images.digits import digits
from fredholm.training import run as run_module
from fredholm.training.storage import checkpoint, run_folder
from fredholm.training.storage.fingerprint import Difference, Fingerprint

TINY = Config(options=Options(rounds=1), data=("files",), epochs=(1,), images=2)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses this process as the second one: its lock is refused as well, and a new one takes seconds to start."""
    monkeypatch.setattr(safe_runs, "in_fresh_process", lambda function, *given: function(*given))


def test_every_part_and_stage_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_runs, "require_safety", lambda *given: None)  # tested below
    report = BENCHMARK.run(TINY)
    stages = ("new", "resumed", "resumed, files touched")
    assert [(row.case, row.n, row.peer) for row in report.rows] == [
        (f"files, {stage}: {part}", 1, RUN) for stage in stages for part in PARTS
    ]
    for row in report.rows:
        assert row.peer_s is not None
        assert 0 < row.ours_s < row.peer_s
        assert row.ratio == row.peer_s / row.ours_s
    for start in (0, 4, 8):
        *parts, whole = (row.ours_s for row in report.rows[start : start + 4])
        assert whole == pytest.approx(sum(parts))
    assert [note.rpartition(":")[0] for note in report.notes] == [f"files, {stage}, 1 epoch" for stage in stages]


def not_checked(path: Path, entry: Any) -> None: ...


@contextlib.contextmanager
def not_locked(folder: Path) -> Iterator[None]:
    yield


def no_difference(*given: Any) -> Difference:
    return Difference((), (), (), ())


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("owner", "name", "other", "message"),
    [
        (
            checkpoint,
            "check_listed",
            not_checked,
            "a flipped byte of ema.safetensors is not found, so nothing",
        ),
        (run_folder, "read_listed", lambda path, entry: path.read_bytes(), "a flipped byte of "),
        (run_module, "only_writer", not_locked, "a second process is not refused"),
        (Difference, "between", no_difference, "other data are not refused, so nothing is timed"),
    ],
)
def test_the_gate_stops_unsafe_runs(
    owner: Any, name: str, other: Callable[..., Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, other)
    with pytest.raises(GateError, match=message):
        require_safety(TINY, tmp_path)


@pytest.mark.slow
def test_the_second_process_is_a_separate_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, in_fresh_process = list[str](), safe_runs.in_fresh_process

    def noted(function: Callable[..., str], *given: Any) -> str:
        found.append(in_fresh_process(function, *given))
        return found[-1]

    monkeypatch.setattr(safe_runs, "in_fresh_process", noted)
    require_safety(TINY, tmp_path)
    assert f"is being trained by process {os.getpid()}" in found[0]


def test_a_part_that_is_never_called_stops_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_module, "only_writer", not_locked)
    images = safe_runs.write_images(tmp_path / "images", 2)
    with pytest.raises(GateError, match="new: lock took no time at all"):
        safe_runs.seconds_of(safe_runs.demo(TINY, images, 1), tmp_path / "run", "new")


def test_the_clock_counts_nothing_twice_and_restores_the_library(tmp_path: Path) -> None:
    before = (checkpoint.seal, run_module.only_writer, vars(Fingerprint)["of"])
    clock = Clock()
    with clock.attached():
        checkpoint.seal({"a": 1})
        with run_module.only_writer(tmp_path):
            run_folder.listed(b"")
        Fingerprint.of(ReadRecord(), str(tmp_path))
        with clock.counting(RECORDING):
            checkpoint.seal({"a": 1})
    assert clock.calls == {CHECKSUMS: 2, LOCKING: 2, RECORDING: 2}
    assert all(seconds > 0 for seconds in clock.seconds.values())
    assert (checkpoint.seal, run_module.only_writer, vars(Fingerprint)["of"]) == before
    assert ALL not in clock.seconds


def test_the_image_files_are_the_digits(tmp_path: Path) -> None:
    whole = digits().train
    safe_runs.write_images(tmp_path, 2)
    files = sorted((tmp_path / "train").rglob("*.png"))
    assert len(files) == 20
    for file in files:
        index = int(file.stem)
        assert file.parent.name == str(int(whole.answers.values[index]))  # pyright: ignore[reportOptionalMemberAccess]
        assert (np.asarray(Image.open(file)) == whole.images(safe_runs.torch.tensor([index]))[0, 0].numpy()).all()


@pytest.mark.parametrize("settings", [{"epochs": ()}, {"epochs": (0,)}, {"images": 1}])
def test_runs_without_training_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(settings))} "):
        Config(**settings).sized()
