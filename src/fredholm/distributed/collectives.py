"""Differentiable communication between processes: sums, gathers, and blocks passed round a ring.

The loss is the sum of the losses of all processes, and all of them go forward and backward together. The gradient of
a tensor received from another process is therefore sent back to that process. The gradient of a replicated tensor, such
as a parameter, is partial on each process: its own contribution.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor


@final
@dataclasses.dataclass
class Traffic:
    """Bytes that this process sends to others, by kind of communication.

    Attributes:
        sums: of tensors that are added up over all processes; counted once, though the backend may send a number
            several times.
        gathered: of tensors of which every process gets a copy, or its part of the sum.
        ring: to the next process in the ring.
        relay: to the process that continues a sequence, or back from it.
    """

    sums: int = 0
    gathered: int = 0
    ring: int = 0
    relay: int = 0


_counted: list[Traffic] = []


@contextlib.contextmanager
def counted_traffic() -> Iterator[Traffic]:
    """Context that counts the bytes that this process sends for signals of several processes."""
    traffic = Traffic()
    _counted.append(traffic)
    try:
        yield traffic
    finally:
        _counted.remove(traffic)


def _count(way: str, group: dist.ProcessGroup, tensors: Sequence[Tensor]) -> None:
    if dist.get_world_size(group) == 1:
        return
    for traffic in _counted:
        setattr(traffic, way, getattr(traffic, way) + sum(each.numel() * each.element_size() for each in tensors))


def send(tensors: Sequence[Tensor], to: int, group: dist.ProcessGroup) -> None:
    """Sends tensors to another process of a relay, which must `receive` as many, of these shapes and dtypes."""
    for each in tensors:
        dist.send(each.contiguous(), to, group)
    _count("relay", group, tensors)


def receive(like: Sequence[Tensor], source: int, group: dist.ProcessGroup) -> list[Tensor]:
    """Receives tensors of these shapes and dtypes from another process."""
    received = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in like]
    for each in received:
        dist.recv(each, source, group)
    return received


def all_sum(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of a tensor over all processes, on each of them."""
    return _AllSum.apply(part, group)


def any_holds(here: bool, group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether `here` is true on any of the processes; `device` is that of the group's collectives."""
    count = torch.tensor(int(here), device=device)
    dist.all_reduce(count, group=group)
    _count("sums", group, [count])
    return bool(count)


def gathered(part: Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """The parts of all processes one after the other along dim 1: `(B, n, ...)` to `(B, N, ...)`.

    Args:
        part: of this process.
        sizes: n of every process.
        group: the processes.
    """
    return _Gathered.apply(part, tuple(sizes), group)


@final
class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        _count("sums", group, [total])
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return all_sum(grads[0], ctx.group), None


@final
class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, sizes: tuple[int, ...], group: dist.ProcessGroup) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        most = max(sizes)
        # all_gather needs equal sizes
        even = part.new_zeros(part.shape[0], most, *part.shape[2:])
        even[:, : part.shape[1]] = part
        parts = [torch.empty_like(even) for _ in sizes]
        dist.all_gather(parts, even, group=group)
        _count("gathered", group, [even])
        return torch.cat([each[:, :size] for each, size in zip(parts, sizes, strict=True)], dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _OwnSum.apply(grads[0], ctx.sizes, ctx.group), None, None


@final
class _OwnSum(torch.autograd.Function):
    """Reduce-scatter: sums over all processes, `(B, N, ...)`, of which each keeps its own part, `(B, n, ...)`."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, sizes: tuple[int, ...], group: dist.ProcessGroup) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        own = sizes[dist.get_rank(group)]
        points_first = whole.transpose(0, 1).contiguous()
        received = points_first.new_empty(own * len(sizes), *points_first.shape[1:])
        dist.all_to_all_single(received, points_first, [own] * len(sizes), list(sizes), group=group)
        _count("gathered", group, [points_first])
        return received.unflatten(0, (len(sizes), own)).sum(0).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return gathered(grads[0], ctx.sizes, ctx.group), None, None


def ring_neighbours(group: dist.ProcessGroup) -> tuple[int, int]:
    """The processes before and after this one in the ring, as ranks among all."""
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    before, after = ((rank + step) % count for step in (-1, 1))
    return dist.get_global_rank(group, before), dist.get_global_rank(group, after)


class Block(NamedTuple):
    """A block of points of one process, passed round the ring."""

    owner: int
    """Rank of the process in the group."""
    content: Tensor
    """`(B, n, F)`, n being the owner's."""


def around(own: Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> Iterator[Block]:
    """The blocks of all processes, this one's first: each is passed on while it is used.

    Args:
        own: of this process, `(B, n, F)`.
        sizes: n of every process.
        group: the processes.
    """
    rank, count = dist.get_rank(group), dist.get_world_size(group)
    block = own.contiguous()
    for step in range(count):
        owner = (rank - step) % count
        following, sent = None, []
        if step < count - 1:
            following = _like(block, sizes[(owner - 1) % count])
            sent = _exchange(block, following, group)
        yield Block(owner, block)
        _wait(sent)
        if following is not None:
            block = following


def sum_for_owners(
    own: Tensor, sizes: Sequence[int], group: dist.ProcessGroup, gradient: Callable[[Block], Tensor]
) -> Tensor:
    """Sum over all processes of `gradient` of this process's block, `(B, n, F)`.

    Partial sums are passed round with the blocks, and one step further to their owners.

    Args:
        own: as in `around`.
        sizes: n of every process.
        group: the processes.
        gradient: maps a block to the gradient of its entries, in one dtype on all processes.
    """
    count, carried = len(sizes), None
    for block in around(own, sizes, group):
        found = gradient(block).contiguous()
        carried = found if carried is None else carried + found
        received = _like(carried, sizes[(block.owner - 1) % count])
        _wait(_exchange(carried, received, group))
        carried = received
    assert carried is not None
    return carried


def _like(block: Tensor, size: int) -> Tensor:
    return block.new_empty(block.shape[0], size, *block.shape[2:])


def _exchange(sent: Tensor, received: Tensor, group: dist.ProcessGroup) -> list[dist.Work]:
    """Sends a block to the next process, and receives one from the previous process."""
    if dist.get_world_size(group) == 1:
        received.copy_(sent)
        return []
    before, after = ring_neighbours(group)
    _count("ring", group, [sent])
    return dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, after, group), dist.P2POp(dist.irecv, received, before, group)]
    )


def _wait(sent: list[dist.Work]) -> None:
    for work in sent:
        work.wait()
