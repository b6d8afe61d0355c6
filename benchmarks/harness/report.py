"""Reports of benchmarks: one row for each case, size, direction and peer."""

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any, final

import torch

from benchmarks.harness.instance import Alone
from benchmarks.harness.options import Options
from benchmarks.harness.step import Direction


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement. Seconds are medians, ``ratio = peer_s / ours_s``, ``peak_mb`` is ours above weights and inputs.

    The peer's three fields are None where no peer runs at this size; the error is then against an oracle. The error of
    an approximation is its distance from the exact result, and None where that was not computed. ``per_second`` is the
    throughput in the benchmark's unit, such as images. ``stored_mb`` is the memory held between forward and backward
    besides parameters, the output included, where a benchmark counts it; ``weights_mb`` is the memory of the
    parameters.
    """

    case: str
    n: int
    direction: Direction
    ours_s: float
    peer: str | None = None
    peer_s: float | None = None
    ratio: float | None = None
    peak_mb: float | None = None
    max_rel_error: float | None = None
    per_second: float | None = None
    stored_mb: float | None = None
    weights_mb: float | None = None

    @classmethod
    def alone(cls, case: str, n: int, direction: Direction, measured: Alone) -> "Row":
        """The row of a step that was measured in isolation."""
        return cls(
            case=case,
            n=n,
            direction=direction,
            ours_s=measured.seconds,
            peak_mb=measured.peak_mb,
            max_rel_error=measured.error,
        )


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """All rows of one run, the machine and settings of the measurement, and the notes that follow from the rows."""

    benchmark: str
    machine: str
    device: str
    torch: str
    triton: str | None
    threads: int
    seed: int
    rows: list[Row]
    notes: list[str]

    def write_json(self, path: Path) -> None:
        """Writes all fields as one object; the file is replaced at once, never written in part."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")
        partial.replace(path)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Reads a report that `write_json` wrote.

        Raises:
            ValueError: on any other text.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(**{**fields, "rows": [Row(**row) for row in fields["rows"]]})
        except (TypeError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"this is not a benchmark report: {error}") from None

    def markdown(self) -> str:
        """The machine in one line, the rows as a Markdown table, then the notes."""
        columns = [column for column in _COLUMNS if column.always or any(column.cell(row) != "-" for row in self.rows)]
        cells = [[column.title for column in columns], ["---"] * len(columns)]
        cells += [[column.cell(row) for column in columns] for row in self.rows]
        with_triton = "" if self.triton is None else f", Triton {self.triton}"
        title = f"{self.machine}; torch {self.torch}{with_triton}; {self.threads} threads; seed {self.seed}"
        table = [f"| {' | '.join(line)} |" for line in cells]
        return "\n".join([title, "", *table, *([""] if self.notes else []), *(f"- {note}" for note in self.notes)])


@final
@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[Row], str]
    always: bool = True


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.{1 if value >= 1e-3 else 3}f} ms"


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}x" if value >= 2 else f"{value:.2f}x"


_COLUMNS: Sequence[_Column] = (
    _Column("case", lambda row: row.case),
    _Column("n", lambda row: str(row.n)),
    _Column("direction", lambda row: row.direction),
    _Column("ours", lambda row: _seconds(row.ours_s)),
    _Column("per second", lambda row: "-" if row.per_second is None else f"{row.per_second:.1f}", always=False),
    _Column("peer", lambda row: row.peer or "-"),
    _Column("peer's", lambda row: _seconds(row.peer_s)),
    _Column("ratio", lambda row: _ratio(row.ratio)),
    _Column("peak MB", lambda row: "-" if row.peak_mb is None else f"{row.peak_mb:.0f}"),
    _Column("stored MB", lambda row: "-" if row.stored_mb is None else f"{row.stored_mb:.1f}", always=False),
    _Column("weights MB", lambda row: "-" if row.weights_mb is None else f"{row.weights_mb:.1f}", always=False),
    _Column("max rel. error", lambda row: "-" if row.max_rel_error is None else f"{row.max_rel_error:.1e}"),
)


def report_of(benchmark: str, rows: list[Row], notes: list[str], options: Options) -> Report:
    """The report of rows measured on this machine, today."""
    device = options.torch_device
    return Report(
        benchmark=benchmark,
        machine=_machine(device),
        device=device.type,
        torch=torch.__version__,
        triton=_triton_version() if device.type == "cuda" else None,
        threads=torch.get_num_threads(),
        seed=options.seed,
        rows=rows,
        notes=notes,
    )


def _triton_version() -> str | None:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def _machine(device: torch.device) -> str:
    parts = [f"{_processor()}, {os.cpu_count()} cores"]
    if device.type == "cuda":
        parts.append(torch.cuda.get_device_name(device))
    return "; ".join([*parts, f"{platform.system()}, {date.today().isoformat()}"])


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
