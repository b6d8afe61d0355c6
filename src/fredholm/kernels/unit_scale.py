"""The scale of a layer of Yat units, by their number.

    s = (n / log(1 + n))^α,   α learned, 1 at the start

Source: the Yat product (`yat_nmn`), section 2.3. Deviation: none.
"""

import math
from typing import final

import torch
from torch import Tensor, nn


@final
class UnitScale(nn.Module):
    """s = (n / log(1 + n))^α, > 0, in at least float32.

    Args:
        num_units: n, >= 1.

    Attributes:
        alpha: α, 0-dim.

    Raises:
        ValueError: on a number of units below 1.
    """

    def __init__(self, num_units: int) -> None:
        super().__init__()
        if num_units < 1:
            raise ValueError(f"kernels.UnitScale: num_units must be at least 1; got {num_units}")
        self.num_units = num_units
        self.alpha = nn.Parameter(torch.ones(()))

    def forward(self) -> Tensor:
        """s, 0-dim."""
        base = self.num_units / math.log1p(self.num_units)
        return torch.exp(math.log(base) * self.alpha.to(torch.promote_types(self.alpha.dtype, torch.float32)))

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"num_units={self.num_units}"
