"""One signal over many processes: each holds some of the points, and operators compute the result at these points.

    u, domain = shard_points(u, Grid(9216, 9216), mesh)
    y = op(u, domain)                                    # the points of this process, integrated over those of all

The measure is that of the whole domain: masses, masks and orders stay the same. Gradients of the signal are complete
on the process that holds the points. Those of replicated tensors, such as parameters, are partial on each process, and
`reduce_gradients` sums them.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Self, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from fredholm.distributed.collectives import all_sum, gathered
from fredholm.domains import Domain
from fredholm.domains.domain import check_mask


@final
class Shard(Domain):
    """The points of a domain that this process holds: a run of consecutive ones; other processes hold the others.

    Every process keeps the positions and masses of all points, which are small beside a signal.

    Args:
        whole: the domain, alike on all processes.
        mesh: the processes, in one dimension; None: all there are.
        sizes: number of points of each process, all at least 1; None: equal up to one.

    Raises:
        ValueError: fewer points than processes, sizes that do not add up, domains or sizes that differ between
            processes; pairs that are weighed or listed, or a mesh of several dimensions.

    Attributes:
        start: index of the first point held here.
        sizes: points of each process.
        group: the processes.
    """

    def __init__(self, whole: Domain, mesh: DeviceMesh | None = None, sizes: Sequence[int] | None = None) -> None:
        if not isinstance(whole, Domain):
            raise TypeError(f"Shard: expected a fredholm domain; got {type(whole).__name__}")
        if isinstance(whole, Shard):
            raise ValueError("Shard: these points are a part already; shard the whole domain")
        if whole.pair_bias is not None or whole.pair_list is not None:
            raise ValueError(
                "Shard: the domain weighs or lists pairs (Domain.weigh_pairs, list_pairs), which no process holds a "
                "part of; leave them out, or keep the signal on one process"
            )
        self.group = _group(mesh)
        self.sizes = _checked_sizes(whole, sizes, dist.get_world_size(self.group))
        facts = {"a domain": repr(whole), "sizes": self.sizes, "points, by their checksum,": _checksum(whole)}
        _check_agreement(self.group, facts)
        self.start = sum(self.sizes[: self.rank])
        self._hold(whole)

    def _hold(self, whole: Domain) -> None:
        """Slices all per-point tensors of a domain to this process's part."""
        self._whole, at = whole, slice(self.start, self.start + self.sizes[self.rank])
        self.pos, self.weights = whole.pos[..., at, :], whole.weights[..., at]
        self.mask = None if whole.mask is None else whole.mask[..., at]
        self.times = None if whole.times is None else whole.times[..., at]
        self.features = None if whole.features is None else whole.features[:, at]
        self.is_periodic, self.has_index_order = whole.is_periodic, whole.has_index_order
        self.is_generated = whole.is_generated
        self.uniform_parts = None
        self.given_counts_per_mass = whole.counts_per_mass

    @property
    def whole(self) -> Domain:
        """The domain of which these points are a part."""
        return self._whole

    @property
    def held(self) -> slice:
        """See `Domain.held`."""
        return slice(self.start, self.start + self.num_points)

    @property
    def rank(self) -> int:
        """Rank of this process in `group`."""
        return dist.get_rank(self.group)

    def total(self, sums: Tensor) -> Tensor:
        """See `Domain.total`: the sum over all processes."""
        return all_sum(sums, self.group)

    def greatest(self, largest: Tensor) -> Tensor:
        """See `Domain.greatest`."""
        return gathered(largest[:, None], (1,) * len(self.sizes), self.group).amax(1)

    def everywhere(self, u: Tensor) -> Tensor:
        """See `Domain.everywhere`: `gather_points`."""
        return gather_points(u, self)

    def widest(self, dtype: torch.dtype) -> torch.dtype:
        """See `Domain.widest`: float64 where any process needs it."""
        asks = torch.tensor([dtype == torch.float64], dtype=torch.uint8, device=self.device)
        dist.all_reduce(asks, dist.ReduceOp.MAX, group=self.group)
        return torch.float64 if bool(asks) else dtype

    def mapped(self, where: Callable[[Domain], Domain]) -> Domain:
        """See `Domain.mapped`; another number of points is distributed evenly."""
        found = where(self.whole)
        if found.has_points_of(self.whole):
            return self
        other = self._with(pos=self.pos, weights=self.weights, mask=self.mask)
        if found.num_points < len(self.sizes):
            raise ValueError(
                f"{found!r}, where results live, has fewer points than there are processes, {len(self.sizes)}; give a "
                "query_domain, which every process then holds whole, or use fewer processes"
            )
        if found.num_points != self.whole.num_points:
            other.sizes = _checked_sizes(found, None, len(self.sizes))
            other.start = sum(other.sizes[: self.rank])
        other._hold(found)
        return other

    def restrict(self, mask: Tensor | None) -> Self:
        """See `Domain.restrict`, for a mask of the points held here; a uniform measure is spread over all that stay."""
        if mask is None:
            return self
        check_mask("Shard", mask, self.pos)
        flags = torch.atleast_2d(mask).to(torch.uint8)
        whole = gathered(flags, self.sizes, self.group).bool()
        return self._of(self.whole.restrict(whole if mask.ndim == 2 else whole[0]))

    def to(self, device: torch.device | str) -> Self:
        """See `Domain.to`."""
        return self if self.device == torch.device(device) else self._of(self.whole.to(device))

    def weigh_pairs(self, bias: Tensor) -> Self:
        """Raises ValueError: weights of pairs cannot be sharded."""
        raise ValueError("Shard.weigh_pairs: pairs of a signal that lies on several processes cannot be weighed")

    def list_pairs(self, pairs: object, *, is_mean: bool = False) -> Self:
        """Raises ValueError: a list of pairs cannot be sharded."""
        raise ValueError("Shard.list_pairs: pairs of a signal that lies on several processes cannot be listed")

    def _of(self, whole: Domain) -> Self:
        other = self._with(pos=self.pos, weights=self.weights, mask=self.mask)
        other._hold(whole)
        return other

    def _is_the_same_part(self, other: Domain) -> bool:
        if not isinstance(other, Shard) or (self.sizes, self.group) != (other.sizes, other.group):
            return False
        return self.whole.has_points_of(other.whole)

    def __repr__(self) -> str:
        return f"Shard({self.whole!r}, points {self.start} to {self.start + self.num_points} of {sum(self.sizes)})"


def shard_points(
    u: Tensor, domain: Domain, mesh: DeviceMesh | None = None, sizes: Sequence[int] | None = None
) -> tuple[Tensor, Shard]:
    """This process's part of a signal that all processes hold.

    Where a signal is too large for that, `Shard` alone gives the points that each process must create or read.

    Args:
        u: the whole signal, `(B, N, C)`.
        domain: its N points.
        mesh, sizes: as in `Shard`.

    Returns:
        The signal at the points held here, `(B, n, C)`, and these points.

    Raises:
        ValueError: what `Shard` refuses, another number of points, or shapes that differ between processes.
    """
    if not isinstance(u, Tensor) or u.ndim != 3 or u.shape[1] != domain.num_points:
        shape = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
        raise ValueError(f"shard_points: u must be (batch, {domain.num_points} points, channels); got {shape}")
    shard = Shard(domain, mesh, sizes)
    _check_agreement(shard.group, {"a signal": f"{tuple(u.shape)} {u.dtype}"})
    return u[:, shard.start : shard.start + shard.num_points], shard


def gather_points(u: Tensor, shard: Shard) -> Tensor:
    """The signal at all points, `(B, N, C)`, on every process, from the part of each, `(B, n, C)`.

    Raises:
        ValueError: u is not at the points of the shard.
    """
    if u.ndim != 3 or u.shape[1] != shard.num_points:
        raise ValueError(
            f"gather_points: u must be (batch, {shard.num_points} points, channels), the points held here; got "
            f"{tuple(u.shape)}"
        )
    return gathered(u, shard.sizes, shard.group)


def reduce_gradients(parameters: nn.Module | Iterable[Tensor], mesh: DeviceMesh | None = None) -> None:
    """Sums the gradients of replicated tensors over all processes; call it between `backward` and the optimiser's step.

    A missing gradient on some process counts as 0.

    Args:
        parameters: a module, or tensors; in one order on all processes.
        mesh: the processes, in one dimension; None: all there are.
    """
    group = _group(mesh)
    tensors = list(parameters.parameters() if isinstance(parameters, nn.Module) else parameters)
    tensors = [tensor for tensor in tensors if tensor.requires_grad]
    with torch.no_grad():
        for tensor in tensors:
            # all_reduce needs contiguous tensors
            tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.contiguous()
        for work in [dist.all_reduce(tensor.grad, group=group, async_op=True) for tensor in tensors]:
            assert work is not None
            work.wait()


def _group(mesh: DeviceMesh | None) -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            "the processes do not know each other; start the program with torchrun, and call "
            "torch.distributed.init_process_group() in it"
        )
    if mesh is None:
        every = dist.group.WORLD
        assert every is not None
        return every
    if mesh.ndim != 1:
        raise ValueError(
            f"the mesh has {mesh.ndim} dimensions, {mesh.mesh_dim_names or tuple(mesh.shape)}; give the one along "
            "which points are shared out, mesh['name']"
        )
    return mesh.get_group()


def _checked_sizes(whole: Domain, sizes: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Number of points of each process, checked."""
    num_points = whole.num_points
    if num_points < count:
        raise ValueError(
            f"Shard: {whole!r} has {num_points} points for {count} processes; each needs one at least: use fewer "
            "processes, or do not shard so small a signal"
        )
    if sizes is None:
        return tuple(num_points // count + (rank < num_points % count) for rank in range(count))
    sizes = tuple(sizes)
    if len(sizes) != count or sum(sizes) != num_points or min(sizes) < 1:
        raise ValueError(
            f"Shard: sizes={sizes} must share out {num_points} points among {count} processes, with at least one each"
        )
    return sizes


def _checksum(domain: Domain) -> str:
    """Checksum of all per-point tensors, which detects processes that drew different points."""
    found = hashlib.sha256()
    for each in (domain.pos, domain.weights, domain.mask, domain.times):
        if each is not None:
            found.update(each.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]


def _check_agreement(group: dist.ProcessGroup, facts: dict[str, object]) -> None:
    """Raises a ValueError, on all processes, unless all have the same facts."""
    everyone: list[dict[str, object]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everyone, facts, group=group)
    for what in facts:
        for rank, other in enumerate(everyone):
            if other[what] != everyone[0][what]:
                raise ValueError(
                    f"process {rank} has {what} {other[what]} where process 0 has {everyone[0][what]}; all must have "
                    "the same"
                )
