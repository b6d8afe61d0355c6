"""Small kernels in a basis that use all freedom of `BasisFilter`."""

from typing import final

import torch
from torch import Tensor, nn

from fredholm.kernels import BasisFilter


@final
class Waves(BasisFilter):
    """κ(x, y) = Σ_k M_k cos(a_k·(x - y) + b_k), cut to the horizon and to the past.

    Not smooth at 0 and without symmetry, so that a flipped or shifted filter gives wrong results.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        pos_dim: int = 1,
        *,
        groups: int = 1,
        width: int = 3,
        is_causal: bool = False,
        horizon: float | None = None,
    ) -> None:
        super().__init__()
        self.in_dim, self.out_dim, self.pos_dim, self.groups = in_dim, out_dim, pos_dim, groups
        self.num_basis, self.is_causal, self.horizon = width, is_causal, horizon
        self.rates = nn.Parameter(2 * torch.randn(pos_dim, width))
        self.phases = nn.Parameter(torch.randn(width))
        self.mixing = nn.Parameter(torch.randn(width, out_dim, in_dim // groups))

    def basis(self, displacement: Tensor) -> Tensor:
        wide = torch.promote_types(self.rates.dtype, torch.float32)
        turns = (displacement.to(wide)[..., None] * self.rates.to(wide)).sum(-2)
        waves = torch.cos(turns + self.phases.to(wide))
        seen = torch.ones_like(displacement[..., 0], dtype=torch.bool)
        if self.is_causal:
            seen = displacement[..., 0] > -1e-9
        if self.horizon is not None:
            seen = seen & (displacement.abs() < self.horizon - 1e-9).all(-1)
        return torch.where(seen[..., None], waves, 0.0)

    def basis_weight(self) -> Tensor:
        return self.mixing
