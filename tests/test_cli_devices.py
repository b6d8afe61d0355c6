"""`fredholm train` on several processes that torchrun starts."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import TINY, call, check_refused, finish, start

LONG = [*TINY, "--training.epochs", "500", "--training.checkpoint-every", "2"]


def log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_train_as_one_does_and_one_of_them_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ("--training.num-workers", "1")
    code, out, err = finish(
        start("train", "digits", "--devices", "2", *TINY, *made, "--run-dir", "two", folder=tmp_path)
    )
    assert (code, err) == (0, "")
    assert out.count("training digits, seed 0") == out.count("test accuracy: ") == 1
    assert call(capsys, "train", "digits", *TINY, "--run-dir", tmp_path / "one")[0] == 0
    for line, expected in zip(log(tmp_path / "two"), log(tmp_path / "one"), strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert json.loads((tmp_path / "two" / "machine.json").read_text())["processes"] == "2 processes"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--devices", "0"], "--devices is 0; expected at least 1"),
        (["--devices=3", "--training.batch-size", "2"], "--devices is 3, and --training.batch-size 2, of which"),
        (["--devices", "2", "--training.device", "nonsense"], "device 'nonsense' is not available here"),
    ],
)
def test_devices_without_use_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    check_refused(capsys, tmp_path, message, "train", "digits", *options, "--run-dir", str(tmp_path / "run"))


def test_commands_for_one_process_refuse_torchrun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    message = "torchrun started 3 processes, and fredholm evaluate takes one; leave torchrun out"
    check_refused(capsys, tmp_path, message, "evaluate", str(tmp_path))
    monkeypatch.setenv("RANK", "2")
    assert call(capsys, "evaluate", str(tmp_path)) == (2, "", "")


def begun(folder: Path, devices: int) -> subprocess.Popen[str]:
    """A long run on processes, once it has its first checkpoint."""
    process = start("train", "digits", "--devices", str(devices), *LONG, "--run-dir", "run", folder=folder)
    while process.poll() is None and not list(folder.glob("run/checkpoints/step-*")):
        time.sleep(0.05)
    return process


def process_of(parent: int, rank: int) -> int:
    """The process of that rank among the children of another."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            own = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if own == parent and f"RANK={rank}" in path.joinpath("environ").read_text().split("\0"):
                return int(path.name)
        except OSError:  # it has ended
            continue
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.slow
def test_a_signal_to_all_saves_and_tells_once(tmp_path: Path) -> None:
    process = begun(tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 128 + signal.SIGTERM
    assert err.startswith("interrupted; step ")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_killed_process_ends_the_run_with_its_name(tmp_path: Path) -> None:
    process = begun(tmp_path, 3)
    pid = process_of(process.pid, 2)
    os.kill(pid, signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 1
    assert err == (f"error: rank 2 of 3 was lost (process {pid}: Killed); --resume goes on from the last checkpoint\n")
