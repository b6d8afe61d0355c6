"""One hop of infinite attention on a sharded signal: keys and values go round a ring, and the norm is over all points.

Legend: `neumann/hops.py`

    y_i = Σ_b Σ_{j in b} S_ij v_j / c_i      c_i = Σ_b Σ_{j in b} |S_ij|   or   c_i² = Σ_{l seen by i} ω_l r_l

    r_l = Σ_b Σ_{j in b} P_lj φ_lj² is known to the process that holds l; sums over l are summed over the processes, or,
    where the kernel is causal, over the earlier ones.
"""

import dataclasses
from collections.abc import Sequence
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor

from fredholm._precision import wide_dtype, without_autocast
from fredholm.distributed.collectives import gathered
from fredholm.domains import preceding_counts
from fredholm.evaluation.evaluation import Queries, Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.recomputed import recomputed
from fredholm.evaluation.sharded.parts import shard_of
from fredholm.evaluation.sharded.ring import RingSum
from fredholm.kernels import FrobeniusNorm, Neumann, RowNorm, ScoreForm
from fredholm.kernels.attention.scored import scores_of
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.kernel import divided
from fredholm.kernels.neumann.infinite_attention import block_norm, over_own_power


@final
@dataclasses.dataclass(frozen=True)
class HopRing(Route[Neumann]):
    """For `Neumann` kernels of one hop on a sharded signal: blocks of keys go round a ring, and sums add up.

    Scores, norms and sums are in float32 at least; in the backward pass blocks go round again, and scores are
    recomputed.

    Args:
        tile_elements: pairs of all heads in a tile; None: 2^20 on a CPU, 2^25 elsewhere.
    """

    marker = Neumann
    queries = Queries.OWN
    spans_processes = needs_processes = True
    differentiable_twice = False
    tile_elements: int | None = None

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses series, custom norms, and points whose order is not that of their indices."""
        kernel = integral.kernel
        if kernel.discount is not None:
            return ["the kernel is a series of hops, each of which meets all points"]
        if not isinstance(kernel.norm, FrobeniusNorm | RowNorm):
            return [f"it does not support the norm {type(kernel.norm).__name__}"]
        return []

    def compute(self, integral: Integral[Neumann]) -> Tensor:
        """See `Route.compute`."""
        kernel, shard = integral.kernel, shard_of(integral)
        form, whole = kernel.hop_form(integral.u, None), shard.whole
        dtype = wide_dtype(form.query, form.value)
        has_rows = isinstance(kernel.norm, RowNorm)
        query = form.query.to(dtype)
        if has_rows and kernel.score.is_homogeneous:
            query = over_own_power(query)
        elif kernel.score.is_homogeneous:
            counts = torch.atleast_2d(kernel.measure(shard))[:, None, :, None] > 0
            query = query * self._factor([part.where(counts, 0.0) for part in (query, form.key.to(dtype))], shard.group)
        mass = torch.atleast_2d(kernel.measure(whole)).to(dtype)
        seen = preceding_counts(whole, whole)[:, shard.held] if kernel.is_causal else None
        kv_heads, width = form.key.shape[1], form.key.shape[-1]

        def part(owner: int, content: Tensor, query: Tensor, mass: Tensor) -> Tensor:
            start, size = sum(shard.sizes[:owner]), shard.sizes[owner]
            by_head = content.unflatten(-1, (kv_heads, -1)).transpose(1, 2)
            key, value = (each_query_head(each, query.shape[1]) for each in by_head.split_with_sizes(widths, dim=-1))
            weighed = mass[:, None, None, start : start + size]
            count = self.tile_elements or (1 << 20 if content.device.type == "cpu" else 1 << 25)
            rows = max(1, count // max(1, key[..., 0].numel()))

            def tile(query: Tensor, key: Tensor, value: Tensor, weighed: Tensor, first: int) -> Tensor:
                score = scores_of(kernel.score, ScoreForm(query, key, value))
                pairs = score * weighed
                if seen is not None:
                    known = seen[:, first : first + query.shape[2]] - start
                    hidden = torch.arange(size, device=score.device) >= known[:, None, :, None]
                    pairs = pairs.masked_fill(hidden, 0.0)
                norm = pairs.abs() if has_rows else pairs * score
                return torch.cat([pairs @ value, norm.sum(-1, keepdim=True)], dim=-1)

            tiles = [
                recomputed(None, tile, each, key, value, weighed, rows * place)
                for place, each in enumerate(query.split(rows, dim=2))
            ]
            return torch.cat(tiles, dim=2)

        widths = [width, form.value.shape[-1]]
        packed = torch.cat([form.key.to(dtype), form.value.to(dtype)], dim=-1).transpose(1, 2).flatten(2)
        with without_autocast(packed):
            found = RingSum.apply(part, shard.sizes, shard.group, packed, query, mass)
            sums, norm = found[..., :-1], found[..., -1:]
            if not has_rows:
                own = mass[:, shard.held]
                squares = norm * own[:, None, :, None]  # ω_l r_l: (B, H, n, 1)
                norm = block_norm(self._seen(integral, squares.double(), seen)).to(dtype)
            out = divided(sums, norm)
        return out.to(form.value.dtype).transpose(1, 2).flatten(2)

    def _factor(self, parts: Sequence[Tensor], group: dist.ProcessGroup) -> Tensor:
        """A power of two, which cancels in a hop, so that squares of scores stay within floating range.

        Args:
            parts: queries and keys, 0 at points without mass, whose scores are in no norm and no sum.
            group: the processes.
        """
        largest = torch.stack([part.detach().abs().amax() for part in parts])
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        product = largest.prod()
        exponent = torch.frexp(torch.where((product > 0) & product.isfinite(), product, 1.0)).exponent
        return torch.ldexp(torch.ones_like(product), -exponent)

    def _seen(self, integral: Integral[Neumann], squares: Tensor, seen: Tensor | None) -> Tensor:
        """c² of each query, `(B, H, n or 1, 1)`: the sum over all points, or over those that it sees."""
        shard = shard_of(integral)
        if seen is None:
            return shard.total(squares.sum(2, keepdim=True))
        ordered = gathered(squares.transpose(1, 2), shard.sizes, shard.group)  # (B, N, H, 1)
        running = torch.nn.functional.pad(ordered.cumsum(1), (0, 0, 0, 0, 1, 0))
        at = seen[:, :, None, None].expand(squares.shape[0], -1, *running.shape[2:])
        return running.gather(1, at).transpose(1, 2)
