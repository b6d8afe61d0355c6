"""The command line in a subprocess: process group, streams and limits."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fredholm._version import __version__
from tests.command_line import TINY, Started, call

LONG = [*TINY, "--training.epochs", "4000", "--training.evaluate-every", "4000"]
WORKERS = ["--training.num-workers", "2"]


def begin(folder: Path, *arguments: str) -> Started:
    """Starts a run that leads its process group, and waits until it has logged a step."""
    process = Started("train", "digits", "--run-dir", "run", *LONG, *arguments, folder=folder, leads_group=True)
    metrics = folder / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
        time.sleep(0.05)
    return process


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FREDHOLM": f"{sys.executable} -m fredholm"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_the_process_group_saves_even_with_data_workers(tmp_path: Path, number: signal.Signals) -> None:
    process = begin(tmp_path, *WORKERS)
    os.killpg(process.pid, number)
    code, _, err = process.finish()
    assert code == 128 + number
    first, last = err.splitlines()
    assert first.startswith("stopping after this step ...")
    step = int(last.removeprefix("interrupted; step ").split()[0])
    assert last == f"interrupted; step {step} of 24000 is saved in run, --resume goes on"
    assert (tmp_path / "run" / "checkpoints" / f"step-{step:08d}").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_ctrl_c_again_and_again_is_never_a_traceback(tmp_path: Path, pause: float) -> None:
    process = begin(tmp_path, *WORKERS)
    for _ in range(3):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(pause)
    code, _, err = process.finish()
    assert code in (130, -signal.SIGINT), err
    assert err.startswith("stopping after this step ...")
    assert err.count("\n") <= 2


@pytest.mark.slow
def test_a_second_run_in_the_folder_is_refused_and_reading_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = begin(tmp_path, "--training.checkpoint-every", "5")
    path = tmp_path / "run"
    while not any((path / "checkpoints").glob("step-*")):
        assert process.poll() is None
        time.sleep(0.05)
    code, _, err = call(capsys, "train", "digits", "--run-dir", path, *LONG, "--resume")
    assert code == 2
    assert err.startswith(f"error: {path} is being trained by process {process.pid} on ")
    assert err.count("\n") == 1
    process.send_signal(signal.SIGSTOP)  # no step while the folder is read
    assert call(capsys, "evaluate", path)[0] == 0
    process.kill()
    process.send_signal(signal.SIGCONT)
    process.finish()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("> /dev/full", 1),
        *(
            pytest.param(words, 0, marks=pytest.mark.long)
            for words in ("| head -1", ">&- 2> /dev/full", "<&- >&- 2>&-")
        ),
    ],
)
def test_a_run_ends_even_when_its_streams_are_closed_or_full(tmp_path: Path, words: str, code: int) -> None:
    done = shell(f"$FREDHOLM train digits --run-dir run {' '.join(TINY)} {words}", tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert done.stderr == ("error: No space left on device\n" if code else "")
    assert "step-00000012" in [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    done = shell("$FREDHOLM --version > /dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


def test_too_little_memory_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, before[1]))
    try:
        wide = ("--task.model.embed-dim", "40000")
        code, _, err = call(capsys, "train", "digits", "--run-dir", tmp_path / "run", *TINY, *wide)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert code == 1
    assert err.startswith("error: out of memory, ")
    assert err.endswith(" bytes more were asked for; smaller batches, inputs or models need less\n")
    assert list(tmp_path.iterdir()) == []


IN_IMPORT = """
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.nn":  # in the middle of importing torch
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
"""
SCRIPT = "import sys; from fredholm.cli import main; sys.exit(main())"
"""The program of an installed console script."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "is_ignored"),
    [
        (["-m", "fredholm"], False),
        (["-m", "fredholm"], True),
        (["-c", SCRIPT], False),
        pytest.param(["-c", SCRIPT], True, marks=pytest.mark.long),
    ],
    ids=["module", "module, ignored", "script", "script, ignored"],
)
def test_ctrl_c_while_torch_is_imported_is_one_line(tmp_path: Path, command: list[str], is_ignored: bool) -> None:
    (tmp_path / "sitecustomize.py").write_text(IN_IMPORT)
    handler = signal.SIG_IGN if is_ignored else signal.default_int_handler
    done = subprocess.run(
        [sys.executable, *command, "info"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
        check=False,
    )
    if is_ignored:
        assert (done.returncode, done.stderr) == (0, "")
        assert __version__ in done.stdout
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
