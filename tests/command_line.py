"""Helpers that run the command line in this process or in a subprocess."""

import contextlib
import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from fredholm import cli

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("tests.command_line", "torch._dynamo", "torch.distributed.checkpoint", "torchmetrics", "sklearn.datasets"),
        *("kornia.augmentation", "fredholm.cli.train", "fredholm.cli.compare"),
    ]
)

# Options for a run of about a second: one block on four patches, and no patch bank, which takes longer to fit.
TINY = [
    *("--task.patch-size", "4", "--task.model.embed-dim", "8", "--task.model.depth", "1"),
    *("--task.model.num-heads", "2", "--task.model.kernel", "mlp"),
    *("--task.model.kernel.width", "4", "--task.model.kernel.num-frequencies", "2"),
    *("--task.model.pool", "mean", "--training.epochs", "2", "--training.batch-size", "256"),
    *("--training.evaluate-every", "1", "--training.log-every", "2", "--training.no-tensorboard"),
    *("--task.bank", "0"),
]


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Runs the command in this process; returns the exit code and the text on stdout and stderr."""
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def check_refused(capsys: pytest.CaptureFixture[str], folder: Path, message: str, *arguments: str) -> None:
    """Asserts exit code 2, a one-line error that starts with the message, and an unchanged folder."""
    before = sorted(folder.iterdir())
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert err.startswith(f"error: {message}"), err
    assert err.count("\n") == 1, err
    assert sorted(folder.iterdir()) == before


class Started:
    """The command in a subprocess, forked from one that has already imported what runs import, so it starts at once.

    Args:
        arguments: arguments of the command.
        folder: working folder.
        limit: maximum size of its files in bytes.
        leads_group: whether it leads a process group of its own.
        environment: additional environment variables.
        forks_spawned: whether it forks the processes that it would otherwise spawn, each of which would import
            everything again.
    """

    def __init__(
        self,
        *arguments: str | Path,
        folder: Path,
        limit: int | None = None,
        leads_group: bool = False,
        environment: Mapping[str, str] | None = None,
        forks_spawned: bool = False,
    ) -> None:
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        settings = folder, limit, leads_group, environment or {}, forks_spawned
        self._leads_group = leads_group
        self._process = FORKS.Process(
            target=_become_command, args=([str(a) for a in arguments], *settings, DupFd(to_out), DupFd(to_err))
        )
        self._process.start()
        for descriptor in (to_out, to_err):
            os.close(descriptor)
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Sends a signal to this process alone, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends the process at once."""
        self.send_signal(signal.SIGKILL)

    def _kill_all(self) -> None:
        """Ends the process and the rest of its group, which may outlive it and keep its streams open."""
        self.kill()
        if self._leads_group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def finish(self, timeout: float = 300) -> tuple[int, str, str]:
        """Waits for the process; returns the exit code and the text on stdout and stderr."""
        alarm = threading.Timer(timeout, self._kill_all)
        alarm.start()
        with ThreadPoolExecutor(2) as pool, self.stdout, self.stderr:
            out, err = pool.map(lambda stream: stream.read(), (self.stdout, self.stderr))
        self._process.join(timeout)
        alarm.cancel()
        code = self._process.exitcode
        assert code is not None
        assert "Traceback" not in err, err
        return code, out, err


def _become_command(
    arguments: list[str],
    folder: Path,
    limit: int | None,
    leads_group: bool,
    environment: Mapping[str, str],
    forks_spawned: bool,
    out: Any,
    err: Any,
) -> NoReturn:
    """Turns a forked process into `python -m fredholm`."""
    for number, to in ((1, out), (2, err)):
        os.dup2(to.detach(), number)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # under nohup SIGHUP would be ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if leads_group:
        os.setsid()
    gc.freeze()  # imported objects are never garbage, and searching them takes seconds
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    os.chdir(folder)
    os.environ.update(environment)
    torch.set_num_threads(1)
    multiprocessing.set_start_method(None, force=True)  # as in a fresh program
    if forks_spawned:
        contexts = multiprocessing.get_context
        multiprocessing.get_context = lambda method=None: contexts("fork" if method == "spawn" else method)
        SubprocessHandler._popen = lambda _, command, environment: _Forked(command, environment)  # pyright: ignore
    sys.argv = ["fredholm", *arguments]
    sys.exit(cli.main())


class _Forked:
    """A forked stand-in for `subprocess.Popen` of a command `... -m fredholm WORDS`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        words = list(command[command.index("fredholm") + 1 :])
        self._process = multiprocessing.get_context("fork").Process(target=_become_rank, args=(words, environment))
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


def _become_rank(words: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Turns a process that torchrun's launcher forked into a rank of the command."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(environment)
    sys.argv = ["fredholm", *words]
    sys.exit(cli.main())


def start(*arguments: str | Path, folder: Path, leads_group: bool = False) -> subprocess.Popen[str]:
    """Starts `python -m fredholm` in a folder, for tests that depend on how a process starts or spawns others."""

    def prepared() -> None:
        # a background process would ignore SIGINT, a process under nohup SIGHUP
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", "fredholm", *map(str, arguments)],
        cwd=folder,
        stdout=pipe,
        stderr=pipe,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=prepared,
        start_new_session=leads_group,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Waits for the process; returns the exit code and the text on stdout and stderr."""
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def descendants(process: int) -> list[int]:
    """Identifiers of the direct children of a process, in the order of their start."""
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
