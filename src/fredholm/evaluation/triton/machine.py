"""Requirements of the fused kernels, and their settings for the machine."""

import abc
import importlib.util
import os
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.evaluation import K, Route
from fredholm.evaluation.integral import Integral
from fredholm.kernels import Kernel

INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton's interpreter is on. Triton reads the variable once too, when the kernels are defined."""
LARGEST_DIM = 256
"""Largest number of channels of a head, and of Fourier frequencies, for a program's registers and shared memory."""


class FusedRoute(Route[K]):
    """A route to fused kernels; where the machine does not support them, it refuses without further checks."""

    devices = ("cuda", "cpu") if INTERPRETING else ("cuda",)

    @final
    def refusals(self, integral: Integral[K]) -> list[str]:
        """Refuses unsupported machines and dtypes, and for the reasons of `unfused`."""
        return machine_refusals(integral) or self.unfused(integral)

    @abc.abstractmethod
    def unfused(self, integral: Integral[K]) -> list[str]:
        """Reasons against fused kernels on a machine that supports them."""


def machine_refusals(integral: Integral[Kernel]) -> list[str]:
    """Reasons against fused kernels on this GPU: the installation, the dtype, or its compute capability."""
    if not INSTALLED:
        return ["triton is not installed (pip install 'fredholm[triton]')"]
    # the interpreter rounds to bfloat16 wrongly
    served = (torch.float32, *(() if INTERPRETING else (torch.bfloat16,)), torch.float16)
    if integral.working_dtype not in served:
        named, *names, last = (str(dtype).removeprefix("torch.") for dtype in (integral.working_dtype, *served))
        return [f"computes in {', '.join(names)} and {last}, not in {named}"]
    if integral.u.device.type == "cuda":
        if torch.version.cuda is None:
            return ["the kernels are made for NVIDIA GPUs"]
        # a constant to the compiler, as `get_device_capability` is not
        found = torch.cuda.get_device_properties(integral.u.device)
        if found.major < 8:
            return [f"the GPU has compute capability {found.major}.{found.minor}, below 8.0"]
    return []


def activation_for(activation: str, dtype: torch.dtype) -> str:
    """The kernels' name of φ."""
    return f"{activation}_short" if activation.startswith("gelu") and dtype != torch.float32 else activation


def scale_for(activation: str) -> float:
    """Factor of the first layer for an activation of this name; a power of 2."""
    return 0.5 if activation.endswith("_short") else 1.0


def mass_unit(weights: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The unit of ω for products in float16, 0-dim: a power of two just above the largest ω.

    In that unit ω u is about as large as u, and stays accurate for any number of points. None: units of 1.
    """
    if dtype != torch.float16:
        return None
    largest = weights.amax().float()
    # a quotient is exact; a GPU's power of 2 may not be
    mantissa, _ = torch.frexp(largest)
    return torch.where(mantissa > 0, largest / mantissa, 1.0)


def precision() -> str:
    """Precision of float32 matrix products, as set in torch."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def padded(size: int, at_least: int = 16) -> int:
    """The smallest power of two >= `size`, at least 16 for tensor cores."""
    return max(at_least, 1 << max(0, size - 1).bit_length())
