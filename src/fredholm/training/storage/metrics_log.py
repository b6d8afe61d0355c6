"""A run's metrics over time: one JSON object a line, and TensorBoard event files where it is installed."""

import contextlib
import hashlib
import json
import math
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from fredholm.storage.integrity import file_size, is_missing
from fredholm.training.progress import print_line

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@final
@dataclass(frozen=True, kw_only=True)
class LogPosition:
    """Position of a log at a checkpoint."""

    lines: int = 0
    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()
    """Digest of everything written by then."""


@final
class MetricsLog:
    """Appends measurements to ``metrics.jsonl`` and to TensorBoard.

    Args:
        folder: folder of the run.
        mark: position to cut the log to, which drops lines written after the last checkpoint.
        step: step to continue from; TensorBoard hides later events of an earlier process.
        tensorboard: write event files; a missing package is reported on stderr.

    Raises:
        ValueError: the file does not match the mark, and is left unchanged. A missing file begins anew, with a printed
            line.
    """

    def __init__(
        self, folder: Path, *, mark: LogPosition | None = None, step: int = 0, tensorboard: bool = True
    ) -> None:
        path, mark = folder / "metrics.jsonl", mark or LogPosition()
        if is_missing(path) and mark.bytes:
            print_line(f"{path} is missing: a new one begins at step {step}")
            mark = LogPosition()
        self._digest = _cut(path, mark)
        self.num_lines, self._bytes = mark.lines, mark.bytes
        self._file = path.open("ab")
        self._excepthook = threading.excepthook
        self._writer = _event_writer(folder / "tensorboard", step) if tensorboard else None
        threading.excepthook = self._without_writers

    def _without_writers(self, failure: "threading.ExceptHookArgs") -> None:
        """Suppresses the traceback of TensorBoard's thread; `write` handles its error."""
        if not type(failure.thread).__module__.startswith("tensorboard."):
            self._excepthook(failure)

    def write(self, kind: str, step: int, values: dict[str, int | float]) -> None:
        """Writes one line ``{"kind": kind, "step": step, **values}``; a value that is not finite becomes null.

        Raises:
            OSError: the disk is full.
        """
        clean = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = (json.dumps({"kind": kind, "step": step, **clean}) + "\n").encode()
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            message = f"cannot write the metrics of step {step} ({error.strerror}); the checkpoints are intact"
            raise OSError(error.errno, message, self._file.name) from error
        self.num_lines += 1
        self._bytes += len(line)
        self._digest.update(line)
        if self._writer is not None:
            numbers = {f"{kind}/{name}": value for name, value in clean.items() if value is not None}
            with self._ending_events(step):
                for name, value in numbers.items():
                    self._writer.add_scalar(name, value, step)

    def mark(self) -> LogPosition:
        """Flushes the log to the disk, and returns its position.

        Raises:
            OSError: the disk is full.
        """
        os.fsync(self._file.fileno())
        return LogPosition(lines=self.num_lines, bytes=self._bytes, sha256=self._digest.hexdigest())

    def close(self) -> None:
        """Flushes and closes both logs."""
        with contextlib.suppress(OSError):  # `write` has already reported what is unwritten
            self._file.close()
        if self._writer is not None:
            with self._ending_events():
                self._writer.close()
        threading.excepthook = self._excepthook

    @contextlib.contextmanager
    def _ending_events(self, step: int | None = None) -> Iterator[None]:
        """Reports that TensorBoard's files cannot be written, and stops writing them; the run continues."""
        try:
            yield
        except OSError as error:
            self._writer = None
            where = "" if step is None else f" at step {step}"
            print_line(f"the event files of TensorBoard end{where} ({error.strerror}); metrics.jsonl goes on")


def _cut(path: Path, mark: LogPosition) -> "hashlib._Hash":
    """Cuts a log to its content at a mark, and returns the running digest of that."""
    digest = hashlib.sha256()
    if is_missing(path):
        return digest
    if path.is_symlink():
        raise ValueError(f"{path} is a link, and the log of a run is cut when it goes on; put the file itself there")
    is_whole = file_size(path) >= mark.bytes
    with path.open("r+b") as file:
        left = mark.bytes
        while is_whole and left and (part := file.read(min(left, 2**20))):
            digest.update(part)
            left -= len(part)
        if not is_whole or digest.hexdigest() != mark.sha256:
            raise ValueError(
                f"{path} is damaged: its first {mark.bytes} bytes are not what the run had written at its last "
                "checkpoint; move it away to go on with a new one, or put it back as it was"
            )
        file.truncate(mark.bytes)
    return digest


def _event_writer(folder: Path, step: int) -> "SummaryWriter | None":
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("tensorboard is not installed: no event files (pip install 'fredholm[train]')", file=sys.stderr)
        return None
    return SummaryWriter(str(folder), purge_step=step)
