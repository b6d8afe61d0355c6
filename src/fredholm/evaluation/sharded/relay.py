"""Integrals along a sharded sequence: the state at the end of a part is sent to the next process.

The time is that of a single process, since all wait for each other; memory is shared. The backward pass sends the
state's gradient back, and recomputes each part.
"""

import dataclasses
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from fredholm._precision import autocast_dtype
from fredholm.distributed.collectives import receive, ring_neighbours, send
from fredholm.domains import Domain, Points
from fredholm.evaluation.evaluation import Queries, Route, StatefulEvaluation
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.recomputed import pulled_back, reading
from fredholm.evaluation.sharded.parts import shard_of, whole_of
from fredholm.kernels import Scaled, Stateful, Sum


@final
@dataclasses.dataclass(frozen=True)
class Relay(Route[Stateful]):
    """For causal kernels with a state, on a sharded sequence: each process continues from the previous one's state.

    Args:
        parts: evaluation of each part.
    """

    marker = Stateful
    queries = Queries.OWN
    spans_processes = needs_processes = True
    differentiable_twice = False
    parts: StatefulEvaluation

    def refusals(self, integral: Integral[Stateful]) -> list[str]:
        """Refuses kernels without a state of fixed size, and points without an order; see `Route.refusals`."""
        kernel, whole = integral.kernel, shard_of(integral).whole
        if isinstance(kernel, Sum | Scaled):
            return ["each term takes its own route"]
        if not kernel.is_causal:
            return [f"{type(kernel).__name__} carries no state along a sequence"]
        if kernel.has_growing_state:
            return ["a state that holds every point would grow from process to process"]
        # checked on the whole, so that all processes agree
        u = integral.u.new_zeros(()).expand(integral.u.shape[0], whole.num_points, kernel.in_dim)
        part = Integral(kernel, u, _run(whole, whole.pos, whole.weights, whole.times))
        ordered = [] if whole.is_ordered else ["the points are in no order"]
        return ordered or self.parts.unsupported_run_reasons(part, kernel.initial_state(u.shape[0]))

    def compute(self, integral: Integral[Stateful]) -> Tensor:
        """See `Route.compute`."""
        kernel, shard = integral.kernel, shard_of(integral)
        parameters = list(kernel.parameters())
        where = shard.pos, shard.weights, shard.times

        def part(u: Tensor, state: tuple[Tensor, ...] | None, others: tuple[Any, ...]) -> tuple[Tensor, ...]:
            def advanced() -> tuple[Tensor, ...]:
                out, after = self.parts.run(Integral(kernel, u, _run(shard, *others[: len(where)])), state)
                return out, *after

            return reading(kernel, others[len(where) :], advanced)

        like = [each.to(integral.u.device) for each in kernel.initial_state(integral.u.shape[0])]
        return _Relay.apply(part, like, shard.group, integral.u, *where, *parameters)


def _run(source: Domain, pos: Tensor, weights: Tensor, times: Tensor | None) -> Domain:
    """The points of a domain as the continuation of earlier ones."""
    run = Points.derived(source, pos, weights, times, counts_per_mass=source.counts_per_mass)
    run.mask, run.has_index_order = source.mask, True
    if whole_of(source).is_uniform:
        run.uniform_parts = ((source.num_points, 1.0),)
    return run


@final
class _Relay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: Any, like: list[Tensor], group: dist.ProcessGroup, u: Tensor, *others: Tensor | None
    ) -> Tensor:
        rank, count = dist.get_rank(group), dist.get_world_size(group)
        before, after = ring_neighbours(group)
        state = tuple(receive(like, before, group)) if rank > 0 else None
        out, *reached = part(u, state, others)
        if rank < count - 1:
            send([each.to(expected.dtype) for each, expected in zip(reached, like, strict=True)], after, group)
        ctx.part, ctx.group, ctx.like, ctx.autocast = part, group, like, autocast_dtype(u)
        ctx.num_states = 0 if state is None else len(state)
        ctx.save_for_backward(u, *(state or ()), *others)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        rank, count = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        before, after = ring_neighbours(ctx.group)
        u, *others = ctx.saved_tensors
        state, others = others[: ctx.num_states], others[ctx.num_states :]
        is_last = rank == count - 1
        to_reached = [torch.zeros_like(each) for each in ctx.like] if is_last else receive(ctx.like, after, ctx.group)

        def anew(u: Tensor, *moved: Tensor) -> tuple[Tensor, ...]:
            out, *reached = ctx.part(u, moved[: ctx.num_states] or None, moved[ctx.num_states :])
            return out, *(each.to(like.dtype) for each, like in zip(reached, ctx.like, strict=True))

        wanted = [ctx.needs_input_grad[3], *[True] * len(state), *ctx.needs_input_grad[4:]]
        to_u, *found = pulled_back(anew, (grads[0], *to_reached), [u, *state, *others], wanted, ctx.autocast)
        if rank > 0:
            given = zip(state, found, strict=False)
            back = [torch.zeros_like(each) if grad is None else grad.to(each.dtype) for each, grad in given]
            send(back, before, ctx.group)
        return None, None, None, to_u, *found[len(state) :]
