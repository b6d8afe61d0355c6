"""What the routes by the fast Fourier transform share."""

import torch
from torch import Tensor


def fast_length(least: int) -> int:
    """The smallest number >= `least` without prime factors above 7."""
    length = least
    while True:
        rest = length
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 1


def at_least_float32(x: Tensor) -> Tensor:
    """What transforms compute in."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
