"""What a sum over Yat scores is made of."""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.kernels import Normaliser, Softermax, Softmax, SoftSigmoid, SoftTanh, Unnormalised


class YatInputs(NamedTuple):
    """Everything that the sum depends on; what is not there is an empty tensor. B' and H' are 1, or B and H."""

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, H, N, d)
    value: Tensor  # (B, H, N, d_v)
    epsilon: Tensor  # ()
    key_bias: Tensor  # b: (B, H, N)
    mass: Tensor  # ω: (B', N)
    pairs: Tensor  # m: (B', H', Nq, N)
    seen: Tensor  # how many leading keys each query sees, int64: (B', Nq)

    @property
    def working_dtype(self) -> torch.dtype:
        """What scores and sums are computed in."""
        return torch.promote_types(self.query.dtype, torch.float32)


KINDS: tuple[type[Normaliser], ...] = (Softmax, Softermax, SoftSigmoid, SoftTanh, Unnormalised)
"""The normalisers that tiles know; an operator of PyTorch is told one by its place here and its numbers."""


def encoded(normaliser: Normaliser) -> list[float]:
    """A normaliser as an operator of PyTorch takes it: its place in `KINDS`, and its numbers."""
    assert dataclasses.is_dataclass(normaliser)
    return [float(KINDS.index(type(normaliser))), *map(float, dataclasses.astuple(normaliser))]


def decoded(code: list[float]) -> Normaliser:
    """The normaliser that `encoded` was given."""
    return KINDS[int(code[0])](*code[1:])
