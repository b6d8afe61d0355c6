"""Arrays that stay in their files, and are read where they are asked for."""

import math

import numpy as np
import torch
from torch import Tensor

SHARD_BYTES = 64 << 20
"""Of examples that lie together and are read at about one time."""


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array, or that of which it is a part, is mapped from a file."""
    found: object = array
    while isinstance(found, np.ndarray) and not isinstance(found, np.memmap):
        found = found.base
    return isinstance(found, np.memmap)


def shards_of(count: int, row_bytes: float) -> Tensor:
    """How many of so many rows lie together, int64 `(m,)`: stretches of about `SHARD_BYTES`, of like size."""
    shards = min(count, max(1, math.ceil(count * row_bytes / SHARD_BYTES)))
    ends = torch.arange(1, shards + 1) * count // shards
    return ends.diff(prepend=torch.zeros(1, dtype=torch.int64))
