"""Whether the fused kernels can run here."""

import importlib.util
import os

import torch
from torch import Tensor

INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton reads this once too, when the kernels are defined."""
LARGEST_DIM = 256
"""Channels of a head, and Fourier frequencies, that a program's registers and shared memory are cut for."""


def machine_refusals(u: Tensor) -> list[str]:
    """What speaks against fused kernels for this signal: the installation, the device, or the dtype."""
    if not INSTALLED:
        return ["triton is not installed (pip install fredholm[triton])"]
    device = u.device.type
    if device != "cuda" and not (device == "cpu" and INTERPRETING):
        return [f"the signal is on {device}, not on an NVIDIA GPU"]
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else u.dtype
    served = (torch.float32,) if INTERPRETING else (torch.float32, torch.bfloat16)
    if dtype not in served:
        which = "float32" if INTERPRETING else "float32 and bfloat16"
        return [f"computes in {which}, not in {str(dtype).removeprefix('torch.')}"]
    if device == "cuda":
        if torch.version.cuda is None:
            return ["the kernels are made for NVIDIA GPUs"]
        # a constant to the compiler, as `get_device_capability` is not
        found = torch.cuda.get_device_properties(u.device)
        if found.major < 8:
            return [f"the GPU has compute capability {found.major}.{found.minor}, below 8.0"]
    return []
