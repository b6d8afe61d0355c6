"""Integrals over listed pairs, row by row: one row is a query with its own points.

Legend of this file
    n, K     queries of a group, points of each of them (`domains.PairGroup`)
    table    numbers of every point, query or entry, `(M, ...)`; rows gather from it by an index

Rows are processed in chunks: forward, nothing of a chunk is kept; backward, it is gathered and computed again, and its
gradients are added to those of the tables. Few rows are computed once and kept. Cost and memory grow with pairs and
points, never with their product. On a GPU the gradients of an entry that several rows read are added in no fixed order,
so that last digits differ from run to run.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from fredholm._precision import autocast_dtype, under_autocast, wide_dtype
from fredholm.domains import PairGroup, PairList, preceding_counts
from fredholm.evaluation.integral import Integral

CHUNK_ELEMENTS = 1 << 22
"""Number of entries that a chunk of rows gathers and computes on a CPU; elsewhere 16 times as many."""
KEPT_SHARE = 1 / 4
"""Share of `CHUNK_ELEMENTS` below which all rows are computed at once, and kept for the backward pass."""

RowFunction = Callable[..., Tensor]
"""A function of the shared tensors and the gathered rows of all tables, by name, to `(n, d_out)`."""


class Gathered(NamedTuple):
    """A table `(M, ...)`, and the entries that each row reads, int64 `(n,)` or `(n, K)`."""

    table: Tensor
    entries: Tensor


def row_by_row(
    function: RowFunction,
    inputs: Mapping[str, Gathered],
    out_dim: int,
    *,
    shared: Mapping[str, Tensor] | None = None,
    module: nn.Module | None = None,
    row_elements: int = 0,
) -> Tensor:
    """Applies `function` to every row, `(n, out_dim)`.

    Args:
        function: differentiable; each row of its result depends on the same row of its inputs.
        inputs: the tables to gather, by the argument names of `function`.
        out_dim: channels of the result.
        shared: tensors passed whole to every chunk, by name.
        module: the module whose parameters `function` reads; None: none.
        row_elements: number of intermediate entries of `function` per row.

    Where there are few rows, and under `torch.func` transforms, forward-mode derivatives and the compiler, all rows are
    computed at once, and all intermediates are kept; likewise for a second derivative.
    """
    shared = shared or {}
    whole = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if whole or forward_ad._current_level >= 0:
        return function(**shared, **{name: _gather(*given) for name, given in inputs.items()})
    tables, indices = [given.table for given in inputs.values()], [given.entries for given in inputs.values()]
    if indices[0].shape[0] == 0:
        return tables[0].new_zeros(0, out_dim)
    gathered = sum(index[:1].numel() * table[:1].numel() for table, index in zip(tables, indices, strict=True))
    made, budget = gathered + row_elements, CHUNK_ELEMENTS * (1 if tables[0].device.type == "cpu" else 16)
    # 16 bits are too few to sum the gradients of an entry that many rows read
    if indices[0].shape[0] * made <= KEPT_SHARE * budget and all(t.dtype == wide_dtype(t) for t in tables):
        return function(**shared, **{name: _gather(*given) for name, given in inputs.items()})
    # buffers too: under `functional_call` the module has other ones in the backward pass
    parameters = {} if module is None else {**dict(module.named_parameters()), **dict(module.named_buffers())}
    size = max(1, budget // max(1, made))
    plan = _Plan(module, function, tuple(inputs), tuple(indices), tuple(shared), tuple(parameters), size)
    return cast("Tensor", _Rows.apply(plan, *tables, *shared.values(), *parameters.values()))


def _gather(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.flatten()).view(*index.shape, *table.shape[1:])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Plan:
    """Plan of a pass over all rows: indices, names and function, without the differentiable tensors."""

    module: nn.Module | None
    function: RowFunction
    names: tuple[str, ...]
    indices: tuple[Tensor, ...]
    shared: tuple[str, ...]
    parameters: tuple[str, ...]
    size: int

    def chunks(self) -> Iterator[tuple[slice, list[Tensor]]]:
        """Chunks of rows, and the gathered inputs of each."""
        for start in range(0, self.indices[0].shape[0], self.size):
            rows = slice(start, start + self.size)
            yield rows, [index[rows] for index in self.indices]

    def compute(self, gathered: Sequence[Tensor], whole: Sequence[Tensor]) -> Tensor:
        """The function's result on a chunk, from these shared tensors and parameters."""
        given = dict(zip((*self.names, *self.shared), (*gathered, *whole[: len(self.shared)]), strict=True))
        if self.module is None:
            return self.function(**given)
        parameters = zip(self.parameters, whole[len(self.shared) :], strict=True)
        state = {f"module.{name}": value for name, value in parameters}
        return cast("Tensor", functional_call(_Reader(self.module, self.function), state, (), given))


@final
class _Reader(nn.Module):
    """Wraps a function that reads the parameters of a module."""

    def __init__(self, module: nn.Module, function: RowFunction) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, **given: Tensor) -> Tensor:
        """The function's result."""
        return self.function(**given)


@final
class _Rows(torch.autograd.Function):
    """All rows, chunk by chunk; see the top of the file."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, *tensors: Tensor) -> Tensor:
        """The rows, one chunk after the other."""
        count = len(plan.indices)
        ctx.plan, ctx.random = plan, None if plan.module is None else _random_state(tensors[0])
        ctx.autocast = autocast_dtype(tensors[0])
        ctx.save_for_backward(*tensors)
        parts = []
        for _, indices in plan.chunks():
            gathered = [_gather(table, index) for table, index in zip(tensors[:count], indices, strict=True)]
            parts.append(plan.compute(gathered, tensors[count:]))
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gathers and computes every chunk again; see `torch.autograd.Function`."""
        # saved tensors are read once: activation checkpointing does not allow a second read
        (grad,), plan, needed, tensors = grads, ctx.plan, ctx.needs_input_grad[1:], ctx.saved_tensors
        requested = [i for i, wanted in enumerate(needed) if wanted]
        if torch.is_grad_enabled():  # a second derivative may follow
            with under_autocast(ctx.autocast, grad), _replayed(ctx.random, grad):
                return None, *_differentiably(plan, tensors, requested, grad)
        with _replayed(ctx.random, grad):
            return None, *_Rows._gradients(ctx, tensors, grad, requested)

    @staticmethod
    def _gradients(ctx: Any, tensors: Sequence[Tensor], grad: Tensor, requested: list[int]) -> Iterator[Tensor | None]:
        """The gradient of every tensor, None for those not requested."""
        plan = ctx.plan
        count = len(plan.indices)
        totals = {i: torch.zeros_like(tensors[i], dtype=wide_dtype(tensors[i])) for i in requested}
        for rows, indices in plan.chunks():
            gathered = [_gather(table, index) for table, index in zip(tensors[:count], indices, strict=True)]
            leaves = [t.detach() for t in (*gathered, *tensors[count:])]
            for i in requested:
                leaves[i].requires_grad_()
            with torch.enable_grad(), under_autocast(ctx.autocast, grad):
                out = plan.compute(leaves[:count], leaves[count:])
            found = torch.autograd.grad(out, [leaves[i] for i in requested], grad[rows], allow_unused=True)
            for i, by in zip(requested, found, strict=True):
                if by is None:
                    continue
                if i < count:
                    added = by.to(totals[i].dtype).reshape(indices[i].numel(), *totals[i].shape[1:])
                    totals[i].index_add_(0, indices[i].flatten(), added)
                else:
                    totals[i] += by
        return (totals[i].to(t.dtype) if i in totals else None for i, t in enumerate(tensors))


def _random_state(like: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(like.device) if like.device.type == "cuda" else torch.get_rng_state()


@contextlib.contextmanager
def _replayed(state: Tensor | None, like: Tensor) -> Iterator[None]:
    """Context that replays random draws from a state, such as a mask of weights, and restores the generator."""
    if state is None:
        yield
        return
    on_cuda = like.device.type == "cuda"
    with torch.random.fork_rng([like.device] if on_cuda else []):
        torch.cuda.set_rng_state(state, like.device) if on_cuda else torch.set_rng_state(state)
        yield


def _differentiably(plan: _Plan, tensors: Sequence[Tensor], requested: list[int], grad: Tensor) -> list[Tensor | None]:
    """The gradients of all rows at once, with a graph of their own."""
    count = len(plan.indices)
    # views, because a table may depend on the parameters
    tensors = [tensor.view_as(tensor) for tensor in tensors]
    gathered = [_gather(table, index) for table, index in zip(tensors[:count], plan.indices, strict=True)]
    out = plan.compute(gathered, tensors[count:])
    found = torch.autograd.grad(out, [tensors[i] for i in requested], grad, create_graph=True, allow_unused=True)
    by_place = dict(zip(requested, found, strict=True))
    return [by_place.get(i) for i in range(len(tensors))]


def spread(rows: Sequence[Tensor], pairs: PairList, like: Tensor, out_dim: int) -> Tensor:
    """Scatters the rows of all groups to their queries, `(B, Nq, out_dim)`; 0 at queries in no group."""
    if not rows:
        return like.new_zeros(pairs.batch, pairs.num_queries, out_dim)
    queries = torch.cat([group.queries for group in pairs.groups])
    place = torch.full((pairs.batch * pairs.num_queries,), queries.shape[0], dtype=torch.int64, device=queries.device)
    place = place.scatter(0, queries, torch.arange(queries.shape[0], device=queries.device))
    joined = torch.cat([*rows, rows[0].new_zeros(1, out_dim)])
    return joined.index_select(0, place).view(pairs.batch, pairs.num_queries, out_dim)


def per_point(values: Tensor, index: Tensor, count: int) -> Gathered:
    """Values of each of `count` points, `(1 or B, count, ...)`, with an index that counts across the batch."""
    return Gathered(values.flatten(0, 1), index % count if values.shape[0] == 1 else index)


def pair_mass(integral: Integral[Any], group: PairGroup) -> Tensor:
    """ω_j m_ij of a group's pairs, `(n, K)`; 0 where a causal kernel does not see the point."""
    domain, query_domain = integral.domain, integral.query_domain
    mass = _gather(*per_point(torch.atleast_2d(domain.weights), group.points, domain.num_points)) * group.weights
    if not integral.kernel.is_causal or integral.kernel.reads_past_by_position:
        return mass
    seen = _gather(*per_point(preceding_counts(query_domain, domain), group.queries, query_domain.num_points))
    return torch.where(group.points % domain.num_points < seen[:, None], mass, 0.0)
