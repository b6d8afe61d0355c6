"""The command line, called in this process or in one of its own."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fredholm import cli

# A run of a second: one block on four patches.
TINY = [
    *("--task.patch-size", "4", "--task.model.embed-dim", "8", "--task.model.depth", "1"),
    *("--task.model.num-heads", "2", "--task.model.kernel", "mlp"),
    *("--task.model.kernel.width", "4", "--task.model.kernel.num-frequencies", "2"),
    *("--task.model.pool", "mean", "--training.epochs", "2", "--training.batch-size", "256"),
    *("--training.evaluate-every", "1", "--training.log-every", "2", "--training.no-tensorboard"),
]


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The exit code, and what was printed to both streams."""
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def check_refused(capsys: pytest.CaptureFixture[str], folder: Path, message: str, *arguments: str) -> None:
    """Asserts one line that starts with the message, the exit code 2, and nothing new in the folder."""
    before = sorted(folder.iterdir())
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert err.startswith(f"error: {message}"), err
    assert err.count("\n") == 1, err
    assert sorted(folder.iterdir()) == before


def start(
    *arguments: str | Path, folder: Path, limit: int | None = None, leads_group: bool = False
) -> subprocess.Popen[str]:
    """The command in a process of its own, whose files may have so many bytes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def prepared() -> None:
        # a background process would ignore the one, a process under nohup the other
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", "fredholm", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment,
        preexec_fn=prepared,
        start_new_session=leads_group,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code, and what was printed to both streams, once the process has ended."""
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err
    return process.returncode, out, err
