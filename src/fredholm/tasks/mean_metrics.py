"""Means over all examples in float64; needs torchmetrics.

The metrics of torchmetrics become float32 when moved to a device. Numbers in the unit of the data, and especially their
squares, can exceed its range.
"""

from typing import final

import torch
from torch import Tensor
from torchmetrics import Metric


class Mean(Metric):
    """Mean of all values; NaN if one of them is NaN."""

    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "count"):
            self.add_state(name, default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    @final
    def update(self, values: Tensor | float, weight: Tensor | float | None = None) -> None:
        """Adds a value, or a tensor of values, each with this weight or with one of its own; None: all are 1."""
        found = torch.as_tensor(values, dtype=torch.float64, device=self.total.device)
        if weight is None:
            mass = torch.ones_like(found)
        else:
            mass = torch.as_tensor(weight, dtype=torch.float64, device=found.device).expand_as(found)
        self.total += (mass * found).sum()
        self.count += mass.sum()

    def compute(self) -> Tensor:
        """Returns a float64 scalar."""
        return self.total / self.count


@final
class RootMean(Mean):
    """Square root of the mean."""

    def compute(self) -> Tensor:
        """Returns a float64 scalar."""
        return super().compute().sqrt()
