"""Two domains side by side."""

from collections.abc import Sequence as Ordered
from typing import final

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
from fredholm.domains.domain import Domain, UniformParts


@final
class Union(Domain):
    """The disjoint union of two domains: first the points of `first`, then those of `second`.

    Args:
        first, second: domains of one `pos_dim` on one device; batched ones must agree in batch size.
        mass: the total mass of each part, both >= 0, whatever its number of points (a balanced measure for two
            modalities is (0.5, 0.5)); or a float tensor `(B, 2)`, those of each batch entry. A part without existing
            points has no mass. None: proportional to the number of points that exist, so that two uniform parts give a
            uniform union of total mass 1.

    Raises:
        ValueError: when the parts do not fit each other.
        TypeError: on parts or masses of another kind.
    """

    def __init__(self, first: Domain, second: Domain, mass: Ordered[float] | Tensor | None = None) -> None:
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

    def _weigh(self, parts: tuple[Domain, Domain], mass: Ordered[float] | Tensor | None) -> None:
        first, second = (part.uniform_parts for part in parts)
        if mass is None and first is not None and second is not None and len(first) == len(second) == 1:
            return
        shares = self._shares(parts, mass)
        if mass is not None and first is not None and second is not None:
            self.uniform_parts = (*_with_mass(first, shares[0]), *_with_mass(second, shares[1]))
            self.weights = self._weights_over(self.mask)
            return
        self.uniform_parts = None
        self.weights = _join(
            [_scaled(part, share, self.pos.dtype) for part, share in zip(parts, shares, strict=True)], 1
        )
        if all(part.given_counts_per_mass is None for part in parts):
            return
        total = self.weights.sum(-1, keepdim=True)
        counted = sum(part.counts.to(self.pos.dtype).sum(-1, keepdim=True) for part in parts)
        self.given_counts_per_mass = counted / torch.where(total > 0, total, 1.0)

    def _shares(self, parts: tuple[Domain, Domain], mass: Ordered[float] | Tensor | None) -> Ordered[float | Tensor]:
        """Mass of each part, a number or `(B, 1)`."""
        if isinstance(mass, Tensor):
            return mass.to(self.pos.dtype).split(1, dim=-1)
        if mass is not None:
            return mass
        counts = [_existence(part).sum(-1, keepdim=True).to(self.pos.dtype) for part in parts]
        everything = (counts[0] + counts[1]).clamp_min(1.0)
        return [count / everything for count in counts]


def _with_mass(runs: UniformParts, share: float | Tensor) -> UniformParts:
    """The runs, scaled to a total mass of `share`."""
    total = sum(mass for _, mass in runs)
    total = torch.where(total > 0, total, 1.0) if isinstance(total, Tensor) else total or 1.0
    return tuple((count, mass * share / total) for count, mass in runs)


def _check(first: Domain, second: Domain, mass: Ordered[float] | Tensor | None) -> None:
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
    if isinstance(mass, Tensor):
        _check_masses(mass, first, second)
    elif mass is not None:
        _check_mass(mass)


def _check_mass(mass: object) -> None:
    if isinstance(mass, Domain):
        raise TypeError("Union: joins two domains; got three; join the first two, Union(Union(a, b), c)")
    expected = "Union: mass is one finite number >= 0 for each of the two parts"
    if not isinstance(mass, Ordered):
        raise TypeError(f"{expected}; got {mass!r}")
    if len(mass) != 2 or not all(0 <= m < float("inf") for m in mass):
        raise ValueError(f"{expected}; got {tuple(mass)}")


def _check_masses(mass: Tensor, first: Domain, second: Domain) -> None:
    batch = first.batch_size or second.batch_size
    if mass.ndim != 2 or mass.shape[1] != 2 or batch not in (None, mass.shape[0]):
        raise ValueError(
            f"Union: a tensor of masses is ({batch or 'B'}, 2), one of each part in each batch entry; got "
            f"{tuple(mass.shape)}"
        )
    if not mass.dtype.is_floating_point:
        raise TypeError(f"Union: masses must be floats; got {mass.dtype}")
    if mass.device != first.device:
        raise ValueError(f"Union: mass is on {mass.device} but the parts are on {first.device}")
    if values_can_be_read(mass) and not bool(((mass >= 0) & (mass < torch.inf)).all()):
        raise ValueError("Union: mass holds numbers that are not finite or below 0")


def _existence(part: Domain) -> Tensor:
    return torch.ones(part.num_points, dtype=torch.bool, device=part.device) if part.mask is None else part.mask


def _scaled(part: Domain, share: float | Tensor, dtype: torch.dtype) -> Tensor:
    weights = part.weights.to(dtype)
    total = weights.sum(-1, keepdim=True)
    return weights * share / torch.where(total > 0, total, torch.ones_like(total))


def _join(parts: list[Tensor], unbatched_ndim: int) -> Tensor:
    """Concatenates along the points, expanding the part without a batch to the other's batch."""
    sizes = [part.shape[0] for part in parts if part.ndim > unbatched_ndim]
    if sizes:
        batch = sizes[0]
        parts = [p if p.ndim > unbatched_ndim else p.expand(batch, *p.shape) for p in parts]
    return torch.cat(parts, dim=1 if parts[0].ndim > unbatched_ndim else 0)
