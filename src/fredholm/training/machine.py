"""What this installation can do: versions, devices, evaluation routes, extras."""

import platform
import re
from importlib import metadata

import torch

from fredholm import evaluation
from fredholm._version import __version__

PACKAGES = ("torch", "numpy", "safetensors", "tyro", "tqdm")


def describe_machine() -> dict[str, dict[str, str]]:
    """Facts by topic, in display order."""
    versions = {name: _version(name) or "not installed" for name in PACKAGES}
    return {
        "versions": {"fredholm": __version__, "python": platform.python_version(), **versions},
        "devices": _devices(),
        "routes": _routes(),
        "extras": _extras(),
    }


def _devices() -> dict[str, str]:
    capability = torch.backends.cpu.get_cpu_capability()
    devices = {"cpu": f"{platform.machine()}, {torch.get_num_threads()} threads, {capability}"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    return devices


def _routes() -> dict[str, str]:
    return {route.name: route.purpose for route in evaluation.ROUTES}


def _extras() -> dict[str, str]:
    """Each extra with what it lacks; empty when the library runs from a folder without having been installed."""
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
