"""Cost of a computation on its device: peak memory, and synchronisation for timing."""

import contextlib
import ctypes
import ctypes.util
import resource
import sys
from pathlib import Path
from typing import final

import torch

MEGABYTE = 1e6


@final
class PeakMemory:
    """Context that measures peak memory between entry and exit beyond that in use at entry, as `megabytes` (1e6 bytes).

    On CUDA: the allocator's own peak. Elsewhere: the process's peak resident set, reset at entry where the system
    allows it (Linux's /proc/self/clear_refs); where it does not, the peak since the process started, which is never too
    small. Garbage in reference cycles counts as in use: collect it before.

    Args:
        device: the device of the computation.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.megabytes = float("nan")
        self._baseline = 0.0

    def __enter__(self) -> "PeakMemory":
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._baseline = float(torch.cuda.memory_allocated(self.device))
        else:
            _return_free_memory()
            _reset_peak()
            self._baseline = _resident_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        on_cuda = self.device.type == "cuda"
        peak = float(torch.cuda.max_memory_allocated(self.device)) if on_cuda else _peak_bytes()
        self.megabytes = max(0.0, peak - self._baseline) / MEGABYTE


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished its work; on a CPU returns at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _return_free_memory() -> None:
    """Returns the C allocator's free pages to the system, so that the baseline holds only memory in use."""
    trim = getattr(ctypes.CDLL(ctypes.util.find_library("c")), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_peak() -> None:
    with contextlib.suppress(OSError):  # without a reset the peak counts from the process's start
        Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(field: str) -> float | None:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return 1024 * float(line.split()[1])
    return None


def _lifetime_peak_bytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak) if sys.platform == "darwin" else 1024.0 * peak


def _peak_bytes() -> float:
    peak = _status_bytes("VmHWM")
    return _lifetime_peak_bytes() if peak is None else peak


def _resident_bytes() -> float:
    resident = _status_bytes("VmRSS")
    return _lifetime_peak_bytes() if resident is None else resident
