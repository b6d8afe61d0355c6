"""Two domains side by side."""

from collections.abc import Sequence as Ordered
from typing import final

import torch
from torch import Tensor

from fredholm.domains.domain import Domain


@final
class Union(Domain):
    """The disjoint union of two domains: first the points of `first`, then those of `second`.

    Args:
        first, second: domains of one `pos_dim` on one device; batched ones must agree in batch size.
        mass: the total mass of each part, both >= 0, whatever its number of points (a balanced measure for two
            modalities is (0.5, 0.5)). None: proportional to the number of points that exist, so that two uniform parts
            give a uniform union of total mass 1.

    Raises:
        ValueError: when the parts do not fit each other.
    """

    def __init__(self, first: Domain, second: Domain, mass: Ordered[float] | None = None) -> None:
        _check(first, second, mass)
        dtype = torch.promote_types(first.pos.dtype, second.pos.dtype)
        parts = (first, second)
        pos = _join([part.pos.to(dtype) for part in parts], 2)
        mask = None if first.mask is None and second.mask is None else _join([_existence(part) for part in parts], 1)
        shifted = (block.shifted(first.num_points) for block in second.grid_blocks)
        self.grid_blocks = (*first.grid_blocks, *shifted)
        self._set(pos, None, mask, is_finite=True)
        self.is_generated = first.is_generated and second.is_generated
        self.has_index_order = first.has_index_order and second.has_index_order
        self._weigh(parts, mass)

    def _weigh(self, parts: tuple[Domain, Domain], mass: Ordered[float] | None) -> None:
        piecewise = [part.uniform_parts for part in parts]
        if mass is None and all(p is not None and len(p) == 1 for p in piecewise):
            return
        if mass is not None and piecewise[0] is not None and piecewise[1] is not None:
            scaled = [(n, m * share) for p, share in zip(piecewise, mass, strict=True) for n, m in p or ()]
            self.uniform_parts = tuple(scaled)
            self.weights = self._weights_over(self.mask)
            return
        counts = [_existence(part).sum(-1, keepdim=True).to(self.pos.dtype) for part in parts]
        everything = (counts[0] + counts[1]).clamp_min(1.0)
        shares = [c / everything if mass is None else torch.full_like(c, mass[i]) for i, c in enumerate(counts)]
        self.uniform_parts = None
        self.weights = _join([_scaled(p, s) for p, s in zip(parts, shares, strict=True)], 1)


def _check(first: Domain, second: Domain, mass: Ordered[float] | None) -> None:
    for part in (first, second):
        if not isinstance(part, Domain):
            raise TypeError(f"Union: both parts must be domains; got {type(part).__name__}")
    if first.pos_dim != second.pos_dim:
        raise ValueError(
            f"Union: both parts need positions of one dimension; got {first.pos_dim} and {second.pos_dim}; make Points "
            "with further coordinates of the part that has fewer"
        )
    if first.device != second.device:
        raise ValueError(f"Union: both parts must be on one device; got {first.device} and {second.device}")
    if None not in (first.batch_size, second.batch_size) and first.batch_size != second.batch_size:
        raise ValueError(f"Union: the parts have different batch sizes, {first.batch_size} and {second.batch_size}")
    if first.is_periodic or second.is_periodic:
        raise ValueError("Union: a periodic part would need displacements that wrap only within it; not supported")
    if any(part.pair_bias is not None or part.pair_list is not None for part in (first, second)):
        raise ValueError("Union: weigh or list the pairs of the union itself, not of its parts (Domain.weigh_pairs)")
    if mass is None:
        return
    if isinstance(mass, Domain):
        raise TypeError("Union: joins two domains; got three; join the first two, Union(Union(a, b), c)")
    expected = "Union: mass is one finite number >= 0 for each of the two parts"
    if not isinstance(mass, Ordered):
        raise TypeError(f"{expected}; got {mass!r}")
    if len(mass) != 2 or not all(0 <= m < float("inf") for m in mass):
        raise ValueError(f"{expected}; got {tuple(mass)}")


def _existence(part: Domain) -> Tensor:
    return torch.ones(part.num_points, dtype=torch.bool, device=part.device) if part.mask is None else part.mask


def _scaled(part: Domain, share: Tensor) -> Tensor:
    weights = part.weights.to(share.dtype)
    total = weights.sum(-1, keepdim=True)
    return weights * share / torch.where(total > 0, total, torch.ones_like(total))


def _join(parts: list[Tensor], unbatched_ndim: int) -> Tensor:
    """Concatenates along the points, expanding the part without a batch to the other's batch."""
    sizes = [part.shape[0] for part in parts if part.ndim > unbatched_ndim]
    if sizes:
        batch = sizes[0]
        parts = [p if p.ndim > unbatched_ndim else p.expand(batch, *p.shape) for p in parts]
    return torch.cat(parts, dim=1 if parts[0].ndim > unbatched_ndim else 0)
