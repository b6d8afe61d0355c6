"""A run's measurements: one JSON object a line, and TensorBoard's event files where it is installed."""

import contextlib
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, final

from fredholm.training.atomic import write_file

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@final
class MetricsLog:
    """Appends measurements to ``metrics.jsonl`` and to TensorBoard.

    Args:
        folder: the run folder.
        num_lines: lines to keep; what an earlier process wrote after its last checkpoint goes.
        step: the step to go on from; TensorBoard hides later events of an earlier process.
        tensorboard: write event files; without the package one line on stderr says so.
    """

    def __init__(self, folder: Path, *, num_lines: int = 0, step: int = 0, tensorboard: bool = True) -> None:
        path = folder / "metrics.jsonl"
        if path.exists():
            write_file(path, b"".join(path.read_bytes().splitlines(keepends=True)[:num_lines]))
        self.num_lines = num_lines
        self._file = path.open("a", encoding="utf-8")
        self._writer = _event_writer(folder / "tensorboard", step) if tensorboard else None

    def write(self, kind: str, step: int, values: dict[str, int | float]) -> None:
        """One line ``{"kind": kind, "step": step, **values}``; a value that is not finite becomes null.

        Raises:
            OSError: the disk is full.
        """
        clean = {name: value if math.isfinite(value) else None for name, value in values.items()}
        try:
            self._file.write(json.dumps({"kind": kind, "step": step, **clean}) + "\n")
            self._file.flush()
        except OSError as error:
            message = f"cannot write the metrics of step {step} ({error.strerror}); the checkpoints are intact"
            raise OSError(error.errno, message, self._file.name) from error
        self.num_lines += 1
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Flushes and closes both."""
        with contextlib.suppress(OSError):  # only what `write` has already complained about is still unwritten
            self._file.close()
        if self._writer is not None:
            self._writer.close()


def _event_writer(folder: Path, step: int) -> "SummaryWriter | None":
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("tensorboard is not installed: no event files (pip install 'fredholm[train]')", file=sys.stderr)
        return None
    return SummaryWriter(str(folder), purge_step=step)
