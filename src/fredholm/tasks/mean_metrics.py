"""Means over all examples, in float64; needs torchmetrics.

Those of torchmetrics are cast to float32 where they are moved to a device, which numbers in the unit of the data, and
their squares before all, can be beyond.
"""

from typing import final

import torch
from torch import Tensor
from torchmetrics import Metric


class Mean(Metric):
    """The mean of what it is given; NaN where something is."""

    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "count"):
            self.add_state(name, default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    @final
    def update(self, values: Tensor | float, weight: float = 1.0) -> None:
        """Adds one value, or some of any shape, each of which counts so much."""
        found = torch.as_tensor(values, dtype=torch.float64, device=self.total.device)
        self.total += weight * found.sum()
        self.count += weight * found.numel()

    def compute(self) -> Tensor:
        """A float64 scalar."""
        return self.total / self.count


@final
class RootMean(Mean):
    """The root of the mean."""

    def compute(self) -> Tensor:
        """A float64 scalar."""
        return super().compute().sqrt()
