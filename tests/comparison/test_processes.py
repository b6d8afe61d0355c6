"""Comparisons in several processes, which are killed and resumed."""

import dataclasses
import json
import os
import signal
import time
from pathlib import Path

import pytest

from fredholm.comparison import Comparison, read_comparison
from fredholm.comparison.comparison import COMPARISON
from fredholm.training.storage.run_folder import RunFolder
from fredholm.training.trainer import read_progress
from tests.command_line import FORKS, Started, descendants, finish, start
from tests.comparison.build import keep_a_worker, stripes

pytestmark = pytest.mark.slow
COMMAND = [
    *("compare", "images", "stripes.npz", "--kernels", "attention", "linear-attention", "--seeds", "0"),
    *("--epochs", "2", "--run-dir", "found", "--resume", "--training.device", "cpu", "--training.batch-size", "16"),
    *("--task.patch-size", "4", "--task.model.embed-dim", "16", "--task.model.num-heads", "2"),
]
LONGER = [*COMMAND, "--seeds", "0", "1", "--epochs", "4", "--training.batch-size", "4"]


def numbers(found: Comparison) -> list[object]:
    """The parts of a comparison that are equal whenever it is repeated."""
    rows = [
        dataclasses.replace(row, seconds_per_step=None, examples_per_second=None, memory_bytes=None)
        for row in found.rows
    ]
    return [rows, found.best, found.is_complete, found.budget]


def last_steps(folder: Path) -> dict[Path, tuple[int, int]]:
    """For each unfinished run, the step of its checkpoint and that of its last log line."""
    found = dict[Path, tuple[int, int]]()
    for config in folder.glob("*/**/config.json"):
        run = RunFolder(config.parent)
        step = run.checkpoints.last_step()
        lines = (config.parent / "metrics.jsonl").read_bytes().splitlines() if step is not None else []
        if step is not None and lines and not read_progress(run.checkpoints, step).is_done:
            found[config.parent] = (step, max(json.loads(line)["step"] for line in lines if line.endswith(b"}")))
    return found


def trains(process: int) -> bool:
    """Whether a process is a worker of a comparison."""
    return "spawn_main" in Path(f"/proc/{process}/cmdline").read_text()


def is_alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until(condition: object, limit: float = 300.0) -> None:
    assert callable(condition)
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_killed_worker_is_a_reason_and_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    def tried() -> list[float | None]:
        return [value for row in read_comparison(found).rows for _, _, value in row.tried]

    stripes(tmp_path)
    found = tmp_path / "found"
    # With five rates for six epochs the search is still running after the first epoch, however late that is noticed.
    options = ("--epochs", "24", "--processes", "2")
    process = Started(*COMMAND, *options, folder=tmp_path, leads_group=True, forks_spawned=True)
    wait_until(lambda: any(found.glob("*/**/metrics.jsonl")))
    lost, *_ = descendants(process.pid)
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: None in tried())
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = process.finish()
    assert code == 130
    _, last = err.splitlines()  # one line says that it stops, one how to resume
    kernels = len(read_comparison(found).rows)
    assert last == (
        f"interrupted; 0 of {kernels} kernels are done, all runs are saved in found, and the same command with "
        "--resume goes on"
    )
    assert tried().count(None) == 1


def test_a_worker_ends_with_its_parent_process(tmp_path: Path) -> None:
    found, sending = FORKS.Pipe(duplex=False)
    parent = FORKS.Process(target=keep_a_worker, args=(tmp_path / "log", sending))
    parent.start()
    worker = found.recv()
    wait_until((tmp_path / "log").exists)
    assert is_alive(worker)
    parent.kill()
    parent.join()
    wait_until(lambda: not is_alive(worker))


@pytest.mark.long
def test_ctrl_c_is_reported_in_two_lines(tmp_path: Path) -> None:
    stripes(tmp_path)
    process = start(*LONGER, "--processes", "2", folder=tmp_path, leads_group=True)
    wait_until(lambda: len(list((tmp_path / "found").glob("*/**/metrics.jsonl"))) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert len(err.splitlines()) == 2  # one line says that it stops, one how to resume


@pytest.mark.long
def test_a_killed_comparison_loses_at_most_one_epoch_and_ends_with_the_same_result(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        stripes(tmp_path / name)
    code, out, err = finish(start(*LONGER, "--processes", "2", folder=tmp_path / "whole"))
    assert (code, err) == (0, ""), out
    whole, found = read_comparison(tmp_path / "whole" / "found"), tmp_path / "killed" / "found"
    steps_per_epoch = -(-whole.num_train // 4)
    for runs in (1, 3):  # during the search of rates, and in the final runs
        process = start(*LONGER, "--processes", "2", folder=tmp_path / "killed")
        wait_until(lambda: (found / COMPARISON).exists() and len(list(found.glob("*/**/metrics.jsonl"))) >= 2)
        wait_until(
            lambda count=runs: sum(len(row.tried) > count for row in read_comparison(found).rows) or last_steps(found)
        )
        children = descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        wait_until(lambda started=children: not any(map(is_alive, started)))
        for step, reached in last_steps(found).values():
            assert reached - step <= steps_per_epoch
    code, out, err = finish(start(*LONGER, "--processes", "2", folder=tmp_path / "killed"))
    assert (code, err) == (0, ""), out
    assert numbers(read_comparison(found)) == numbers(whole)


@pytest.mark.long
def test_a_comparison_that_lost_a_process_is_complete(tmp_path: Path) -> None:
    stripes(tmp_path)
    process = start(*LONGER, "--processes", "2", folder=tmp_path)
    wait_until(lambda: len(list((tmp_path / "found").glob("*/**/metrics.jsonl"))) >= 2)
    lost, *_ = (child for child in descendants(process.pid) if trains(child))
    os.kill(lost, signal.SIGKILL)
    code, _, err = finish(process)
    assert (code, err) == (0, "")  # a lock left behind by the lost process would be reported
    assert read_comparison(tmp_path / "found").is_complete
    values = [value for row in read_comparison(tmp_path / "found").rows for _, _, value in row.tried]
    assert values.count(None) == 1
