"""The form of every benchmark's result: one row for each case, size, direction and peer."""

import dataclasses
import json
import os
import platform
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal, final

import torch

Direction = Literal["forward", "forward+backward"]


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement. Seconds are medians, ``ratio = peer_s / ours_s``, ``peak_mb`` is ours above weights and inputs.

    The peer's three fields are None where no peer runs at this size; the error is then against an oracle.
    """

    case: str
    n: int
    direction: Direction
    ours_s: float
    peer: str | None
    peer_s: float | None
    ratio: float | None
    peak_mb: float | None
    max_rel_error: float


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """All rows of one run, with the machine that they were measured on."""

    machine: str
    torch: str
    threads: int
    rows: list[Row]

    def write_json(self, path: Path) -> None:
        """Write ``{machine, torch, threads, rows: [...]}``; the file is whole or absent."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")
        partial.replace(path)

    def markdown(self) -> str:
        """The machine in one line, then the rows as a Markdown table."""
        header = ["case", "n", "direction", "ours", "peer", "peer's", "ratio", "peak MB", "max rel. error"]
        body = [
            [
                row.case,
                str(row.n),
                row.direction,
                _seconds(row.ours_s),
                row.peer or "-",
                _seconds(row.peer_s),
                _ratio(row.ratio),
                "-" if row.peak_mb is None else f"{row.peak_mb:.0f}",
                f"{row.max_rel_error:.1e}",
            ]
            for row in self.rows
        ]
        lines = [header, ["---"] * len(header), *body]
        title = f"{self.machine}; torch {self.torch}; {self.threads} threads"
        return "\n".join([title, "", *(f"| {' | '.join(cells)} |" for cells in lines)])


def report_of(rows: list[Row], device: torch.device) -> Report:
    """The report of rows measured on this machine, today."""
    return Report(machine=_machine(device), torch=torch.__version__, threads=torch.get_num_threads(), rows=rows)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}x" if value >= 2 else f"{value:.2f}x"


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
