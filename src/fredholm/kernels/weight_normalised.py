"""A linear map whose rows are a direction and a length.

Legend
    v_i        direction of row i, any length        g_i    its magnitude        b    bias

    W_i = g_i v_i / ‖v_i‖

Source: Salimans and Kingma 2016 (weight normalisation), eq. 2. A row with v = 0 is 0. Of a single input v_i / ‖v_i‖ is
the sign of v_i, which no gradient changes: v is then no parameter.
"""

from typing import final

import torch
from torch import Tensor, nn


@final
class WeightNormalised(nn.Module):
    """x ↦ W x + b with W_i = g_i v_i / ‖v_i‖, in at least float32 and never under autocast.

    Args:
        weight: W at the start, `(out, in)`; v starts as W and g as the norms of its rows.
        bias: b at the start, `(out,)`.

    Attributes:
        direction: v, `(out, in)`; a buffer of a single input.
        magnitude: g, `(out, 1)`.
        bias: b, `(out,)`.
    """

    no_weight_decay = frozenset({"magnitude"})

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.direction: Tensor
        if weight.shape[1] == 1:
            self.register_buffer("direction", weight.sign())
        else:
            self.direction = nn.Parameter(weight.clone())
        self.magnitude = nn.Parameter(torch.linalg.vector_norm(weight, dim=1, keepdim=True))
        self.bias = nn.Parameter(bias.clone())

    @property
    def weight(self) -> Tensor:
        """W, `(out, in)`, in at least float32."""
        wide = torch.promote_types(self.direction.dtype, torch.float32)
        with torch.autocast(self.direction.device.type, enabled=False):
            return self.magnitude.to(wide) * nn.functional.normalize(self.direction.to(wide), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in)` to `(..., out)`."""
        weight = self.weight
        dtype = torch.promote_types(x.dtype, weight.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.linear(x.to(dtype), weight.to(dtype), self.bias.to(dtype))
