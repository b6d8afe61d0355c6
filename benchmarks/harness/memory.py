"""Peak memory of one computation above what its weights and inputs hold, measured in a process of its own."""

import contextlib
import ctypes
import ctypes.util
import gc
import multiprocessing
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, final

import torch

T = TypeVar("T")
MEGABYTE = 1e6


@final
class PeakMemory:
    """Context that measures the peak between entry and exit over the memory in use at entry, as ``megabytes``.

    On CUDA: the allocator's own peak. Elsewhere: the process's peak resident set, reset at entry where the system
    allows it (Linux's /proc/self/clear_refs); where it does not, the peak of its whole life, never too small.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.megabytes = float("nan")
        self._baseline = 0.0

    def __enter__(self) -> "PeakMemory":
        gc.collect()
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
        self.megabytes = (peak - self._baseline) / MEGABYTE


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """``function(*arguments)`` in a new interpreter, so that nothing computed before is in its memory.

    Raises whatever the function raised, and `BrokenProcessPool` where the process was killed, for want of memory say.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def _return_free_memory() -> None:
    """Hand the C allocator's free pages back to the system, so that the baseline holds only what is in use."""
    trim = getattr(ctypes.CDLL(ctypes.util.find_library("c")), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_peak() -> None:
    with contextlib.suppress(OSError):  # without it the peak counts from the process's start
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
