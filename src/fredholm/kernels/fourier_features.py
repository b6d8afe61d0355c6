"""Fourier features of positions, by which kernels and encoders resolve positions.

Legend
    B    frequencies, in cycles per unit length, L of them        γ(x) = [sin 2πBx, cos 2πBx]

Source: ITNet (arXiv 2606.19538), eq. 199 and H.2.1.
"""

import abc
import math
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from fredholm._precision import wide_dtype
from fredholm.domains import Domain

PIECE_BYTES = 1 << 24
"""Largest memory of phases at one time, in bytes: in the precision of positions they need more than the features."""
SHARED_POINTS = 4096
"""Largest number of points for which γ is computed for several kernels at once and cached for a pass of a model."""


def sample_frequencies(num_frequencies: int, pos_dim: int, sigma: float) -> Tensor:
    """B with entries from N(0, sigma²), `(num_frequencies, pos_dim)`, in cycles per unit length (ITNet, H.2.1)."""
    return torch.randn(num_frequencies, pos_dim) * sigma


def phases(pos: Tensor, frequencies: Tensor) -> Tensor:
    """θ = 2π B x for positions `(..., s)` and frequencies `(L, s)`: `(..., L)`.

    Computed in the wider precision of positions and frequencies, and never under autocast: bfloat16 cannot resolve a
    phase of hundreds of radians.
    """
    dtype = wide_dtype(pos, frequencies)
    coordinates, waves = pos.to(dtype)[..., None].unbind(-2), frequencies.to(dtype).unbind(-1)
    # products and sums, because autocast would lower the precision of a matrix product
    theta = coordinates[0] * waves[0]
    for x, wave in zip(coordinates[1:], waves[1:], strict=True):
        theta = theta + x * wave
    return 2 * math.pi * theta


def fourier_features(pos: Tensor, frequencies: Tensor) -> Tensor:
    """γ(x) = [sin 2πBx, cos 2πBx] (ITNet, eq. 199): positions `(..., s)` to `(..., 2L)`, in at least float32."""
    theta = phases(pos, frequencies)
    return torch.cat([theta.sin(), theta.cos()], dim=-1)


class Lifting(nn.Module, abc.ABC):
    """A module that reads γ(x), or x itself if it has no frequencies.

    Attributes:
        num_frequencies: L.
        frequencies: B, `(L, s)`.
    """

    num_frequencies: int
    frequencies: Tensor

    @property
    @abc.abstractmethod
    def reads_position(self) -> bool:
        """Whether γ(x) is read."""

    @property
    @abc.abstractmethod
    def lifted_dtype(self) -> torch.dtype:
        """Dtype of the parameters, in which γ is returned."""

    @final
    def lift(self, domain: Domain) -> Tensor:
        """γ at the points of a domain, `(B', N, 2L or s)`, in the parameters' dtype; `(1, N, 0)` if it is not read."""
        if not self.reads_position:
            return self.frequencies.new_empty(1, domain.num_points, 0, dtype=self.lifted_dtype)
        pos = _batched(domain)
        if not _is_shared(pos, domain):
            return self.lift_positions(pos)
        return domain.cached(self, lambda: self.lift_positions(pos))

    @final
    def lift_positions(self, pos: Tensor) -> Tensor:
        """γ(x) of positions `(..., N, s)`, in the parameters' dtype."""
        if not self.num_frequencies:
            return pos.to(self.lifted_dtype)
        size = max(1, PIECE_BYTES // (8 * self.num_frequencies))
        # a compiled or exported graph must hold for any number of points
        is_whole = torch.compiler.is_compiling() or pos.shape[-2] <= size
        pieces = (pos,) if is_whole else pos.split(size, dim=-2)
        found = [fourier_features(piece, self.frequencies).to(self.lifted_dtype) for piece in pieces]
        return found[0] if len(found) == 1 else torch.cat(found, dim=-2)


def lift_together(kernels: Sequence[Lifting], domain: Domain) -> None:
    """Computes and caches γ for several kernels at the points of a domain with a cache, in a single batch.

    With many points, each kernel computes its own when needed, so that they are not all in memory.
    """
    alike: dict[Any, list[Lifting]] = {}
    for kernel in kernels:
        if kernel.reads_position and kernel.num_frequencies:
            key = kernel.frequencies.shape, kernel.frequencies.dtype, kernel.lifted_dtype
            alike.setdefault(key, []).append(kernel)
    pos = _batched(domain)
    if not _is_shared(pos, domain):
        return
    for (_, _, dtype), group in alike.items():
        waves = torch.stack([kernel.frequencies for kernel in group])[:, None, None]  # (K, 1, 1, L, s)
        for kernel, lifted in zip(group, fourier_features(pos, waves).to(dtype).unbind(), strict=True):
            domain.cached(kernel, lambda lifted=lifted: lifted)


def _is_shared(pos: Tensor, domain: Domain) -> bool:
    # not for differentiable positions: activation checkpointing expects γ inside the layer, which it runs twice
    return domain.has_cache and not pos.requires_grad and pos.shape[0] * pos.shape[1] <= SHARED_POINTS


def _batched(domain: Domain) -> Tensor:
    """Positions with a batch axis, `(B', N, s)`."""
    return domain.pos if domain.pos.ndim == 3 else domain.pos[None]
