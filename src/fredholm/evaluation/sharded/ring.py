"""Integrals on a sharded signal, block by block: each process's points go round a ring, and all add their integrals.

Legend (rank r of P, block b = the points of rank b)
    v_r(x)       Σ_b ∫_b κ(x, y) u(y) dμ(y), where κ depends on no other points (`Ring`)
    v_r(x)       Σ_b n(σ_b) / n(σ) Z_b O_b / Z, where scores of a row compete (`ScoreRing`): O_b, σ_b and Z_b of a block
                 as in `attention/score_tiled.py`, σ the largest of all σ_b, Z = Σ_b n(σ_b) / n(σ) Z_b

A process holds its own block and a visiting one: O(N / P · C) numbers. It sends all blocks but one forward, with n_b
points of F numbers in block b, and backward these and P blocks of gradients.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor

from fredholm._precision import autocast_dtype, wide_dtype, without_autocast
from fredholm.distributed.collectives import Block, any_holds, around, sum_for_owners
from fredholm.domains import whole_grid
from fredholm.evaluation.attention.score_tiled import (
    ScoreInputs,
    ScoreOutputs,
    has_references,
    score_backward,
    score_delta,
    score_forward,
)
from fredholm.evaluation.evaluation import Evaluation, Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.pair_tiles import measured
from fredholm.evaluation.recomputed import pulled_back, reading
from fredholm.evaluation.sharded.parts import Places, shard_of, whole_of
from fredholm.kernels import Kernel, Normalised, Normaliser, Scaled, Scored, Stationary, Sum
from fredholm.kernels.attention.scored import Competitive
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.kernel import divided


@final
@dataclasses.dataclass(frozen=True)
class Ring(Route[Kernel]):
    """For pairwise kernels on a sharded signal: blocks of points go round a ring, and integrals add up.

    Each block is integrated by a route of its own, and again in the backward pass. Besides its tiles a process needs
    memory for its own points and one block.

    Args:
        parts: evaluation of a block.
    """

    spans_processes = needs_processes = True
    differentiable_twice = False
    parts: Evaluation

    def refusals(self, integral: Integral[Kernel]) -> list[str]:
        """Refuses kernels that depend on more than two points; see `Route.refusals`."""
        kernel = integral.kernel
        if isinstance(kernel, Sum | Scaled):
            return ["each term takes its own route"]
        if not kernel.is_pairwise:
            return [f"{type(kernel).__name__} needs more than the two points of a pair"]
        if isinstance(kernel, Normalised) or (isinstance(kernel, Scored) and kernel.normaliser.is_competitive):
            return ["the mass of a point in the count depends on all others"]
        is_filter = isinstance(kernel, Stationary) and kernel.is_filter
        if is_filter and whole_grid(whole_of(integral.domain)) is not None:
            return ["on a grid a convolution of all points costs less than their pairs"]
        return []

    def compute(self, integral: Integral[Kernel]) -> Tensor:
        """See `Route.compute`."""
        kernel, shard, places = integral.kernel, shard_of(integral), Places.of(integral)
        parameters = list(kernel.parameters())

        def part(owner: int, u: Tensor, query: Tensor, *others: Tensor) -> Tensor:
            moved, own = others[: len(Places._fields)], others[len(Places._fields) :]

            def integrated() -> Tensor:
                here = Places(*moved)
                points, queries = here.points(shard, owner), here.queries(integral.query_domain)
                known = query if integral.has_query_signal else None
                return self.parts.integrate(Integral(kernel, u, points, known, queries))

            return reading(kernel, own, integrated).to(wide_dtype(u))

        return RingSum.apply(part, shard.sizes, shard.group, integral.u, integral.query, *places, *parameters)

    def details(self, integral: Integral[Kernel]) -> list[str]:
        """The route of the first block."""
        shard, places = shard_of(integral), Places.of(integral)
        points, queries = places.points(shard, shard.rank), places.queries(integral.query_domain)
        known = integral.query if integral.has_query_signal else None
        block = self.parts.explain(Integral(integral.kernel, integral.u, points, known, queries))
        return [f"each of {len(shard.sizes)} blocks: {line}" for line in block.split("\n")[:1]]


Part = Callable[..., Tensor]
"""A function of a block's owner, its content and the replicated tensors, to its integral, `(B, Nq, d_out)`."""


@final
class RingSum(torch.autograd.Function):
    """Σ_b part(b, content of b, tensors), recomputing each part in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, part: Part, sizes: Sequence[int], group: dist.ProcessGroup, own: Tensor, *tensors: Tensor | None
    ) -> Tensor:
        ctx.part, ctx.sizes, ctx.group, ctx.autocast = part, sizes, group, autocast_dtype(own)
        ctx.save_for_backward(own, *tensors)
        total: Tensor | None = None
        for block in around(own, sizes, group):
            found = part(block.owner, block.content, *tensors)
            total = found if total is None else total + found
        assert total is not None
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        own, *tensors = ctx.saved_tensors
        wanted = ctx.needs_input_grad[4:]
        sums: list[Tensor | None] = [None] * len(tensors)

        def gradient(block: Block) -> Tensor:
            content, *found = pulled_back(
                lambda content, *others: ctx.part(block.owner, content, *others),
                grads[0],
                [block.content, *tensors],
                [True, *wanted],
                ctx.autocast,
            )
            for place, each in enumerate(found):
                before = sums[place]
                sums[place] = before if each is None else each if before is None else before + each
            return torch.zeros_like(block.content) if content is None else content

        to_own = sum_for_owners(own, ctx.sizes, ctx.group, gradient)
        return None, None, None, to_own, *sums


@final
@dataclasses.dataclass(frozen=True)
class ScoreRing(Route[Scored]):
    """For `Scored` kernels with a sum over the row, on a sharded signal: keys and values go round a ring in blocks.

    Rows keep the largest score and the sum so far, so that the result is that of all keys at once; the backward pass
    goes round once more with the whole row's sums, and recomputes scores, twice where one key may have all weight.

    Args:
        tile_elements: as in `ScoreTiled`.
    """

    marker = Scored
    spans_processes = needs_processes = True
    differentiable_twice = False
    tile_elements: int | None = None

    def refusals(self, integral: Integral[Scored]) -> list[str]:
        """Refuses elementwise normalisers, and scores that tiles cannot encode; see `Route.refusals`."""
        kernel = integral.kernel
        alone = [] if kernel.normaliser.is_competitive else ["an elementwise normaliser needs no ring of scores"]
        return [*alone, *kernel.score.not_numbers(), *kernel.normaliser.not_numbers()]

    def compute(self, integral: Integral[Scored]) -> Tensor:
        """See `Route.compute`."""
        kernel, shard, places = integral.kernel, shard_of(integral), Places.of(integral)
        kernel.check_score()
        whole, query_domain = shard.whole, whole_of(integral.query_domain)
        points, queries = places.points(shard, shard.rank), places.queries(integral.query_domain)
        form = kernel.score_form(integral.u, points, integral.query, queries)
        batch, heads = form.value.shape[0], form.query.shape[1]
        mass, _, seen = measured(kernel, whole, query_domain)
        keys = [form.key.expand(batch, -1, -1, -1), form.value]
        if form.key_bias is not None:
            keys.append(form.key_bias[..., None].expand(batch, -1, -1, 1))
        dtype = wide_dtype(*keys) if form.key_bias is not None else torch.promote_types(keys[0].dtype, keys[1].dtype)
        packed = torch.cat([part.to(dtype).transpose(1, 2).flatten(2) for part in keys], dim=-1)
        spec = _Spec(
            sizes=shard.sizes,
            group=shard.group,
            widths=[part.shape[-1] for part in keys],
            heads=heads,
            score=kernel.score.encoded(),
            normaliser=kernel.normaliser.encoded(),
            elements=self.tile_elements,
        )
        order = None if seen is None else seen[:, integral.query_domain.held]
        query = form.query.expand(batch, -1, -1, -1)
        with without_autocast(packed):
            out = _ScoreRing.apply(spec, packed, query, form.softening, form.numbers, mass, order)
        return out.to(form.value.dtype).transpose(1, 2).flatten(2)

    def details(self, integral: Integral[Scored]) -> list[str]:
        """The number of blocks."""
        return [f"{len(shard_of(integral).sizes)} blocks of keys and values"]


CARRIED = ("key", "value", "key_bias")
"""Fields of `ScoreInputs` that go round the ring; not all kernels have the last."""


class _Spec(NamedTuple):
    """Settings of the ring apart from tensors."""

    sizes: tuple[int, ...]
    group: dist.ProcessGroup
    widths: list[int]
    """Channels per head of keys and values, and 1 for the constants of keys, if any."""
    heads: int
    """Number of heads of the queries."""
    score: list[float]
    normaliser: list[float]
    elements: int | None

    def cut(self, block: Block, mass: Tensor | None, seen: Tensor | None) -> "_Cut":
        """The tensors of a block, by head."""
        start, size = sum(self.sizes[: block.owner]), self.sizes[block.owner]
        kv_heads = block.content.shape[-1] // sum(self.widths)
        pieces = block.content.split([kv_heads * width for width in self.widths], dim=-1)
        key, value, *bias = (piece.unflatten(-1, (kv_heads, -1)).transpose(1, 2) for piece in pieces)
        return _Cut(
            key,
            value,
            bias[0][..., 0] if bias else None,
            None if mass is None else mass[:, start : start + size],
            None if seen is None else (seen - start).clamp(0, size),
        )


class _Cut(NamedTuple):
    key: Tensor  # (B, H', n, d)
    value: Tensor  # (B, H', n, d_v)
    bias: Tensor | None  # (B, H', n)
    mass: Tensor | None  # (B', n)
    seen: Tensor | None  # (B', Nq)

    def inputs(self, query: Tensor, softening: Tensor | None, numbers: Tensor | None, heads: int) -> ScoreInputs:
        """The `ScoreInputs` of a block."""
        return ScoreInputs(
            each_query_head(self.value, heads),
            query,
            each_query_head(self.key, heads),
            None if self.bias is None else each_query_head(self.bias, heads),
            softening,
            numbers,
            self.mass,
            None,
            self.seen,
        )


@final
class _ScoreRing(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        spec: _Spec,
        own: Tensor,
        query: Tensor,
        softening: Tensor | None,
        numbers: Tensor | None,
        mass: Tensor | None,
        seen: Tensor | None,
    ) -> Tensor:
        rho = Normaliser.decoded(spec.normaliser)
        assert isinstance(rho, Competitive)
        out = reference = total = None
        for block in around(own, spec.sizes, spec.group):
            inputs = spec.cut(block, mass, seen).inputs(query, softening, numbers, spec.heads)
            found = score_forward(inputs, spec.score, spec.normaliser, spec.elements)
            sigma, z = found.reference[..., None], found.total[..., None]
            raw, z = found.out * z, z - rho.floor(sigma)
            if out is None or reference is None or total is None:
                out, reference, total = raw, sigma, z
                continue
            largest = torch.maximum(reference, sigma)
            kept, new = (rho.numerator(each.clone(), largest) for each in (reference, sigma))
            out, total, reference = out * kept + raw * new, total * kept + z * new, largest
        assert out is not None
        assert reference is not None
        assert total is not None
        total = total + rho.floor(reference)
        out = divided(out, total)
        ctx.spec = spec
        ctx.save_for_backward(own, query, softening, numbers, mass, seen, out, reference, total)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        spec: _Spec = ctx.spec
        own, query, softening, numbers, mass, seen, out, reference, total = ctx.saved_tensors
        outputs = ScoreOutputs(out, reference[..., 0], total[..., 0])
        received = ScoreOutputs(grads[0].contiguous(), None, None)  # pyright: ignore[reportArgumentType]
        names = ("query", "softening", "numbers", "mass")
        requested = {name for name, want in zip(names, ctx.needs_input_grad[2:6], strict=True) if want}
        sums: dict[str, Tensor] = {}
        by_mass = torch.zeros_like(mass) if "mass" in requested else None
        options = spec.score, spec.normaliser, spec.elements
        rho, delta = Normaliser.decoded(spec.normaliser), None
        assert isinstance(rho, Competitive)
        if any_holds(has_references(reference, rho), spec.group, own.device):
            # g·O would differ by rounding from the g·v from which it is subtracted
            for block in around(own, spec.sizes, spec.group):
                inputs = spec.cut(block, mass, seen).inputs(query, softening, numbers, spec.heads)
                part = score_delta(inputs, outputs, received.out, *options)
                delta = part if delta is None else delta + part

        def gradient(block: Block) -> Tensor:
            cut = spec.cut(block, mass, seen)
            inputs = cut.inputs(query, softening, numbers, spec.heads)
            wanted = frozenset([*CARRIED[: len(spec.widths)], *requested])
            made = score_backward(inputs, outputs, received, wanted, *options, delta)
            for name in requested - {"mass"}:
                if name in made:
                    sums[name] = made[name] if name not in sums else sums[name] + made[name]
            if by_mass is not None and "mass" in made:
                start, stop = sum(spec.sizes[: block.owner]), sum(spec.sizes[: block.owner + 1])
                by_mass[:, start:stop] += made["mass"].reshape(len(by_mass), -1)
            batch, kv_heads, size, _ = cut.key.shape
            pieces = [
                # heads that share a key each contribute to its gradient
                made[name].reshape(batch, kv_heads, -1, size, width).sum(2).transpose(1, 2).flatten(2)
                for name, width in zip(CARRIED, spec.widths, strict=False)
            ]
            return torch.cat(pieces, dim=-1).to(own.dtype)

        to_own = sum_for_owners(own, spec.sizes, spec.group, gradient)
        given = {"query": query, "softening": softening, "numbers": numbers}
        found = [
            sums[name].reshape(given[name].shape).to(given[name].dtype) if name in sums else None for name in given
        ]
        return None, to_own, *found, by_mass, None
