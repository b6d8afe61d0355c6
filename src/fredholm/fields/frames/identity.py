"""No frame: coordinates as they come."""

import dataclasses
from typing import final

import torch

from fredholm.domains import Domain
from fredholm.fields.frames.coordinates import Coordinates
from fredholm.fields.frames.frame import Frame


@final
@dataclasses.dataclass(frozen=True)
class Identity(Frame):
    """μ = 0, M = I: covers no group. What ablations compare with."""

    def coordinates(self, domain: Domain) -> Coordinates:
        """See `Frame.coordinates`."""
        batch = domain.batch_size or 1
        pos = domain.pos.double()
        identity = torch.eye(domain.pos_dim, dtype=pos.dtype, device=pos.device).expand(batch, 1, -1, -1)
        return Coordinates(pos.new_zeros(batch, 1, domain.pos_dim), identity, identity)
