"""`fredholm train` on several processes that torchrun starts."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import TINY, Started, call, check_refused, descendants

RESTARTED = [
    *TINY,
    *("--training.epochs", "6", "--training.checkpoint-every", "4", "--training.log-every", "1"),
    *("--task.model.drop-path", "0.2"),
]
LONG = [*TINY, "--training.epochs", "500", "--training.checkpoint-every", "2"]


def log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_one_of_them_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ("--training.num-workers", "1")
    words = ("train", "digits", "--devices", "2", *TINY, *made, "--run-dir", "two")
    process = Started(*words, folder=tmp_path, forks_spawned=True)
    code, out, err = process.finish()
    assert (code, err) == (0, "")
    assert out.count("training digits, seed 0") == out.count("test accuracy: ") == 1
    assert call(capsys, "train", "digits", *TINY, "--run-dir", tmp_path / "one")[0] == 0
    for line, expected in zip(log(tmp_path / "two"), log(tmp_path / "one"), strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert json.loads((tmp_path / "two" / "machine.json").read_text())["processes"] == "2 processes"


def on_ranks(folder: Path, *words: str) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of a command on each of two processes, started without torchrun."""
    with socket.create_server(("localhost", 0)) as free:
        rendezvous = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
    environments = [rendezvous | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    processes = [Started(*words, folder=folder, environment=environment) for environment in environments]
    return [process.finish() for process in processes]


@pytest.mark.slow
def test_only_the_first_process_reports_a_limit_in_minutes(tmp_path: Path) -> None:
    small = TINY[: TINY.index("--training.epochs")]
    command = ("train", "images", *small, "--training.batch-size", "128", "--no-report", "--run-dir", "run")
    (code, out, err), (_, *got) = on_ranks(tmp_path, *command, "--minutes", "0.000001")
    assert (code, out.count("training"), got) == (2, 0, ["", ""])
    assert err.startswith("error: 1e-06 minutes a run are too few: one epoch takes about 0.")
    found = on_ranks(tmp_path, "train", "images", *small, "--dry-run", "--minutes", "3")
    assert [(code, out.count("training: ")) for code, out, _ in found] == [(0, 1), (0, 0)], found


@pytest.mark.slow
def test_a_sharded_run_resumes_on_one_process_without_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("train", "images", "digits", *TINY, "--no-report", "--run-dir", str(tmp_path / "run"))
    assert [code for code, *_ in on_ranks(tmp_path, *command, "--training.shard")] == [0, 0]
    longer = (*command, "--training.epochs", "3", "--resume")
    code, out, _ = call(capsys, *longer)
    assert code == 0
    assert "epoch 3/3" in out
    code, _, err = call(capsys, *longer, "--training.shard")
    assert (code, err.startswith("error: --training.shard has no effect on one process")) == (2, True)


@pytest.mark.slow
def test_an_error_on_several_processes_is_reported_once_with_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_text("no archive")
    code, out, err = Started("train", "images", "broken.npz", "--devices", "2", folder=tmp_path).finish()
    assert (code, out) == (2, "")
    assert err.startswith("error: broken.npz")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--devices", "0"], "--devices is 0; expected at least 1"),
        (["--devices=3", "--training.batch-size", "2"], "--devices is 3, and --training.batch-size 2, of which"),
        (["--devices", "2", "--training.device", "nonsense"], "device 'nonsense' is not available here"),
    ],
)
def test_numbers_and_names_of_devices_that_do_not_fit_are_refused(
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


def begun(folder: Path, devices: int, *, forks_spawned: bool) -> Started:
    """Starts a long run on several processes and waits for its first checkpoint."""
    words = ("train", "digits", "--devices", str(devices), *LONG, "--run-dir", "run")
    process = Started(*words, folder=folder, forks_spawned=forks_spawned)
    while process.poll() is None and not list(folder.glob("run/checkpoints/step-*")):
        time.sleep(0.05)
    return process


def process_of(parent: int, rank: int) -> int:
    """Identifier of the child process with a rank."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            its_parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if its_parent == parent and f"RANK={rank}" in path.joinpath("environ").read_text().split("\0"):
                return int(path.name)
        except OSError:  # the process has ended
            continue
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.slow
@pytest.mark.parametrize("forks_spawned", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_signal_to_all_processes_saves_and_is_reported_once(tmp_path: Path, forks_spawned: bool) -> None:
    process = begun(tmp_path, 2, forks_spawned=forks_spawned)
    process.send_signal(signal.SIGTERM)
    code, _, err = process.finish()
    assert code == 128 + signal.SIGTERM
    assert err.startswith("interrupted; step ")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_killed_process_ends_the_run_and_is_named(tmp_path: Path) -> None:
    process = begun(tmp_path, 2, forks_spawned=True)
    _, pid = descendants(process.pid)
    os.kill(pid, signal.SIGKILL)
    code, _, err = process.finish()
    assert code == 1
    assert err == (f"error: rank 1 of 2 was lost (process {pid}: Killed); --resume goes on from the last checkpoint\n")


def elastic(folder: Path, size: int) -> subprocess.Popen[str]:
    """Starts a run on processes that torchrun restarts when one is lost."""
    start_them = ("--standalone", "--local-addr", "localhost", "--nproc-per-node", str(size), "--max-restarts", "2")
    words = ("train", "digits", *RESTARTED, "--run-dir", "run", "--no-report")
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *start_them, "-m", "fredholm", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def ended(process: subprocess.Popen[str], folder: Path) -> dict[str, bytes]:
    """Waits for a run to succeed and returns the files of its last checkpoint."""
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    last = max(folder.glob("run/checkpoints/step-*"))
    return {path.name: path.read_bytes() for path in sorted(last.glob("*.safetensors"))}


def disturbed(folder: Path, size: int, seed: int) -> dict[str, bytes]:
    """The files of the last checkpoint of a run that loses a random process after a random number of steps."""
    chance = random.Random(seed)
    process, lines, rank = elastic(folder, size), chance.randrange(1, 24), chance.randrange(size)
    file = folder / "run" / "metrics.jsonl"
    while process.poll() is None and not (file.exists() and file.read_text().count("\n") >= lines):
        time.sleep(0.01)
    time.sleep(chance.random() * 0.05)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process_of(process.pid, rank), signal.SIGKILL)
    return ended(process, folder)


@pytest.mark.long
@pytest.mark.parametrize(("size", "kills"), [(2, 1), (4, 10)])
def test_a_run_that_loses_a_process_ends_with_the_weights_of_an_undisturbed_one(
    tmp_path: Path, size: int, kills: int
) -> None:
    folders = [tmp_path / str(number) for number in range(kills + 1)]
    for folder in folders:
        folder.mkdir()
    expected = ended(elastic(folders[0], size), folders[0])
    for seed, folder in enumerate(folders[1:]):
        assert disturbed(folder, size, seed) == expected
