"""Images that are decoded when asked for, and kept decoded while they fit."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor


@final
class DecodingCache:
    """uint8 arrays of one shape by their number.

    Args:
        count: how many there are.
        shape: of each.
        decode: from numbers `(n,)` to `(n, *shape)`.
        cache_bytes: the first ones, as many as fit into this much memory, are decoded only once.
    """

    def __init__(
        self, count: int, shape: tuple[int, ...], decode: Callable[[Tensor], Tensor], *, cache_bytes: int
    ) -> None:
        num_cached = min(count, cache_bytes // torch.Size(shape).numel())
        self._decode = decode
        self._cache = torch.empty((num_cached, *shape), dtype=torch.uint8)
        self._is_cached = torch.zeros(num_cached, dtype=torch.bool)

    def __getitem__(self, indices: Tensor) -> Tensor:
        """Those of these numbers, `(n, *shape)`, which are the caller's own."""
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
