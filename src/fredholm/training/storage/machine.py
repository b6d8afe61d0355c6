"""Capabilities of this installation: versions, devices, evaluation routes, extras."""

import contextlib
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import torch

from fredholm import evaluation
from fredholm._version import __version__
from fredholm.evaluation.triton.tuning import TileFile
from fredholm.tasks.files.terminal_text import counted

MACHINE = "machine.json"
"""Name of the file of `describe_numerics` in a run folder."""
PACKAGES = ("torch", "numpy", "safetensors", "tyro", "tqdm")


def describe_machine() -> dict[str, dict[str, str]]:
    """Returns facts by topic, in display order."""
    versions = {name: _version(name) or "not installed" for name in PACKAGES}
    return {
        "versions": {"fredholm": __version__, "python": platform.python_version(), **versions},
        "devices": _devices(),
        "routes": _routes(),
        "extras": _extras(),
    }


def describe_numerics(device: torch.device, num_processes: int = 1) -> dict[str, str]:
    """Describes everything that rounding depends on besides a run's config, seed and data.

    Args:
        device: device of the run.
        num_processes: number of processes that share its batches.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    tiles = TileFile.read().fingerprint(name)
    return {
        "fredholm": f"fredholm {__version__}",
        "torch": f"torch {torch.__version__}",
        "threads": counted(torch.get_num_threads(), "thread"),
        "processes": f"{num_processes} process{'es' if num_processes > 1 else ''}",
        "processor": _processor(),
        "device": f"{name}, tiles {tiles}" if tiles else name,
    }


def other_numerics(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Describes the differences in one line; empty where there are none."""
    pairs = ((before.get(name, "unknown"), now[name]) for name in now)
    return "; ".join(f"{then} before, {here} now" for then, here in pairs if then != here)


def _processor() -> str:
    """Returns the model of the processor and the instruction set that torch uses."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {torch.backends.cpu.get_cpu_capability()}"
    return f"{platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def _devices() -> dict[str, str]:
    capability = torch.backends.cpu.get_cpu_capability()
    devices = {"cpu": f"{platform.machine()}, {counted(torch.get_num_threads(), 'thread')}, {capability}"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        tuned = TileFile.read().describe(properties.name) or "tiles by the rule, not measured"
        devices[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, {tuned}"
    return devices


def _routes() -> dict[str, str]:
    return {route.name: route.purpose for route in evaluation.ROUTES}


def _extras() -> dict[str, str]:
    """Returns each extra with its missing packages; empty when the library runs from a folder without installation."""
    try:
        about = metadata.metadata("fredholm")
    except metadata.PackageNotFoundError:
        return {}
    requirements = about.get_all("Requires-Dist") or []
    extras = {}
    for extra in about.get_all("Provides-Extra") or []:
        wanted = [text for text in requirements if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", text)]
        names = [match[0] for text in wanted if (match := re.match(r"[\w.-]+", text))]
        missing = [name for name in names if _version(name) is None]
        extras[extra] = f"lacks {', '.join(missing)}" if missing else "installed"
    return extras


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
