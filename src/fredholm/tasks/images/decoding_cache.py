"""A cache of decoded images."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor


@final
class DecodingCache:
    """uint8 arrays of one shape, by index, decoded on demand; the first ones are then kept in memory.

    Args:
        count: the number of arrays.
        shape: the shape of each.
        decode: maps indices `(n,)` to arrays `(n, *shape)`.
        cache_bytes: the memory for arrays that are kept.
    """

    def __init__(
        self, count: int, shape: tuple[int, ...], decode: Callable[[Tensor], Tensor], *, cache_bytes: int
    ) -> None:
        num_cached = min(count, cache_bytes // torch.Size(shape).numel())
        self._decode = decode
        self._cache = torch.empty((num_cached, *shape), dtype=torch.uint8)
        self._is_cached = torch.zeros(num_cached, dtype=torch.bool)

    def __getitem__(self, indices: Tensor) -> Tensor:
        """The arrays at `indices`, `(n, *shape)`, as a copy."""
        within = indices < len(self._cache)
        missing = indices[within].unique()
        missing = missing[~self._is_cached[missing]]
        if len(missing):
            self._cache[missing] = self._decode(missing)
            self._is_cached[missing] = True
        if bool(within.all()):
            return self._cache[indices]
        found = self._cache.new_empty((len(indices), *self._cache.shape[1:]))
        found[within] = self._cache[indices[within]]
        found[~within] = self._decode(indices[~within])
        return found
