"""Full float32 precision during measurements."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_float32() -> Iterator[None]:
    """Full float32 in products, convolutions and recurrences; by default cuDNN rounds to TF32."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, torch.get_float32_matmul_precision()
    cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])
