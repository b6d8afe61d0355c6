"""Yat scores in tiles: memory that grows with N, not N²."""

import dataclasses
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain, Sequence, preceding_counts
from fredholm.evaluation.attention.sums.inputs import KINDS, YatInputs, encoded
from fredholm.evaluation.attention.sums.op import yat_sums
from fredholm.evaluation.evaluation import StatefulRoute, cache_refusals
from fredholm.evaluation.integral import Integral
from fredholm.kernels import State
from fredholm.kernels.attention.yat import StatefulYat, YatForm, YatScored
from fredholm.kernels.attention.yat_product import working_dtype
from fredholm.kernels.heads import each_query_head


@final
@dataclasses.dataclass(frozen=True)
class YatTiled(StatefulRoute[YatScored]):
    """For `YatScored` kernels: scores, densities and sums tile by tile, computed anew in the backward pass.

    Cost per pair and head 2(d + d_v) flops forward and five products of d or d_v backward; memory O(N·d) beside tiles.
    Scores, densities and sums are in float32 whatever the signal, since distances cancel.

    Args:
        tile_elements: pairs in a tile; None: 2^17 a thread on a CPU, which its cache can hold, 2^24 elsewhere.
    """

    marker = YatScored
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(self, integral: Integral[YatScored]) -> list[str]:
        """Refuses normalisers of one's own; see `Route.refusals`."""
        normaliser = integral.kernel.normaliser
        return [] if type(normaliser) in KINDS else [f"tiles do not know the normaliser {type(normaliser).__name__}"]

    def compute(self, integral: Integral[YatScored]) -> Tensor:
        """See `Route.compute`."""
        return integrate_scores(integral, self._in_tiles)

    def run_refusals(self, integral: Integral[YatScored], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses what a cache of keys does not remember."""
        return cache_refusals(integral, reset)

    def advance(
        self, integral: Integral[YatScored], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`, and `continue_scores`."""
        return continue_scores(integral, state, self._in_tiles)

    def _in_tiles(self, inputs: YatInputs, normaliser: list[float]) -> Tensor:
        return yat_sums(list(inputs), normaliser, self.tile_elements)[0]


YatSum = Callable[[YatInputs, list[float]], Tensor]
"""From all tensors and a normaliser as `encoded` gives it, the integral `(B, H, Nq, d_v)` in the working dtype."""


def integrate_scores(integral: Integral[YatScored], sums: YatSum) -> Tensor:
    """What `sums` makes of an integral, `(B, Nq, H·d_v)`."""
    form = integral.kernel.yat_form(integral.u, integral.domain, integral.query, integral.query_domain)
    return _summed(integral.kernel, form, integral.domain, integral.query_domain, sums)


def _summed(kernel: YatScored, form: YatForm, domain: Domain, query_domain: Domain, sums: YatSum) -> Tensor:
    """What `sums` makes of these queries, keys and values, `(B, Nq, H·d_v)`."""
    inputs = gathered(kernel, form, domain, query_domain)
    out = sums(inputs, encoded(kernel.normaliser))
    return out.to(inputs.value.dtype).transpose(1, 2).flatten(2)


def continue_scores(integral: Integral[YatScored], state: State | None, sums: YatSum) -> tuple[Tensor, State]:
    """What `sums` makes of the next points of a sequence; the state is every key and value so far.

    Raises:
        TypeError: for a kernel without a state.
    """
    kernel, u, domain = integral.kernel, integral.u, integral.domain
    if not isinstance(kernel, StatefulYat):
        raise TypeError(f"{type(kernel).__name__} carries no state along a sequence")
    if u.shape[1] == 1 and state is not None:
        # the scores of one point are few: tiles cost more than they save
        time = None if domain.times is None else domain.times[..., 0].expand(len(u))
        out, state = kernel.step(u[:, 0], state, time)
        return out[:, None], state
    form = kernel.continued_form(u, domain, state)
    here, so_far = (Sequence(n).to(u.device) for n in (u.shape[1], form.key.shape[2]))
    return _summed(kernel, form, so_far, here, sums), (form.key, form.value)


def gathered(kernel: YatScored, form: YatForm, domain: Domain, query_domain: Domain) -> YatInputs:
    """Keys for every head, and of masses, pair weights and order what is not all ones."""
    working_dtype(f"kernels.{type(kernel).__name__}", form.query.dtype)  # refuses float16
    kernel.check_pair_weights(domain)
    empty = form.query.new_empty(0)
    batch, heads = len(form.value), form.query.shape[1]
    bias = empty if form.key_bias is None else each_query_head(form.key_bias, heads).expand(batch, -1, -1)
    mass = kernel.measure(domain)
    pairs = domain.pair_weights
    return YatInputs(
        query=form.query.expand(batch, -1, -1, -1),
        key=each_query_head(form.key, heads),
        value=each_query_head(form.value, heads),
        epsilon=form.epsilon,
        key_bias=bias,
        mass=empty if domain.is_even and domain.mask is None else torch.atleast_2d(mass),
        pairs=empty if pairs is None else pairs,
        seen=preceding_counts(query_domain, domain) if kernel.is_causal else empty.long(),
    )
