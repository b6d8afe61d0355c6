"""GELUs of numbers in a GPU's registers, the rate against which `roofline` compares kernels."""

from typing import Any

import torch
import triton
import triton.language as tl

from fredholm.evaluation.triton.tile import activate

PROGRAMS, BLOCK, REPEATS = 4096, 1024, 64
NUMBERS = PROGRAMS * BLOCK * REPEATS
"""GELUs per call."""


@triton.jit
def _repeated(out, BLOCK: tl.constexpr, REPEATS: tl.constexpr):
    p = tl.arange(0, BLOCK).to(tl.float32) + tl.program_id(0)
    for _ in range(REPEATS):
        p = activate(p, "gelu_short")
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), p)


def activate_in_registers(device: torch.device) -> torch.Tensor:
    """Computes NUMBERS GELUs on a GPU with the GELU of the 16-bit kernels, one after the other for each number."""
    out = torch.empty(PROGRAMS * BLOCK, device=device)
    kernel: Any = _repeated
    with torch.cuda.device(device):
        kernel[(PROGRAMS,)](out, BLOCK=BLOCK, REPEATS=REPEATS)
    return out
