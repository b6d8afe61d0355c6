"""Yat scores in tiles: memory that grows with N, not N²."""

import dataclasses
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain, Sequence, preceding_counts
from fredholm.evaluation.evaluation import StatefulEvaluation
from fredholm.evaluation.yat_sums import KINDS, YatInputs, yat_sums
from fredholm.evaluation.yat_sums.inputs import encoded
from fredholm.kernels import Kernel, State, StatefulYat, YatForm, YatScored
from fredholm.kernels.head_blocks import each_query_head
from fredholm.kernels.yat_product import working_dtype


@final
@dataclasses.dataclass(frozen=True)
class YatTiled(StatefulEvaluation):
    """For `YatScored` kernels: scores, densities and sums tile by tile, computed anew in the backward pass.

    Cost per pair and head 2(d + d_v) flops forward and five products of d or d_v backward; memory O(N·d) beside tiles.
    Scores, densities and sums are in float32 whatever the signal, since distances cancel.

    Args:
        tile_elements: pairs in a tile; None: 2^17 a thread on a CPU, which its cache can hold, 2^24 elsewhere.
    """

    marker = YatScored
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses normalisers of one's own; see `Evaluation.unsupported_reasons`."""
        assert isinstance(kernel, YatScored)
        if type(kernel.normaliser) not in KINDS:
            return [f"tiles do not know the normaliser {type(kernel.normaliser).__name__}"]
        return []

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, YatScored)
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        form = kernel.yat_form(u, domain, query, query_domain)
        return integrate_scores(kernel, form, domain, query_domain, self._in_tiles)

    def run(
        self, kernel: Kernel, u: Tensor, domain: Domain, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulEvaluation.run`, and `continue_scores`."""
        assert isinstance(kernel, StatefulYat)
        return continue_scores(kernel, u, domain, state, reset, self._in_tiles)

    def _in_tiles(self, inputs: YatInputs, normaliser: list[float]) -> Tensor:
        return yat_sums(list(inputs), normaliser, self.tile_elements)[0]


YatSum = Callable[[YatInputs, list[float]], Tensor]
"""From all tensors and a normaliser as `encoded` gives it, the integral `(B, H, Nq, d_v)` in the working dtype."""


def integrate_scores(kernel: YatScored, form: YatForm, domain: Domain, query_domain: Domain, sums: YatSum) -> Tensor:
    """What `sums` makes of these queries, keys and values, `(B, Nq, H·d_v)`."""
    inputs = gathered(kernel, form, domain, query_domain)
    out = sums(inputs, encoded(kernel.normaliser))
    return out.to(inputs.value.dtype).transpose(1, 2).flatten(2)


def continue_scores(
    kernel: StatefulYat, u: Tensor, domain: Domain, state: State | None, reset: Tensor | None, sums: YatSum
) -> tuple[Tensor, State]:
    """What `sums` makes of the next points of a sequence; the state is every key and value so far.

    Raises:
        ValueError: on a reset, masked points, or masses of their own, which the cache does not remember.
    """
    if reset is not None or not domain.is_plain:
        raise ValueError(
            f"{type(kernel).__name__}: a cache of keys keeps neither resets nor masks and weights; "
            "run each sequence by itself, or call the operator on the whole signal"
        )
    if u.shape[1] == 1 and state is not None:
        # the scores of one point are few: tiles cost more than they save
        time = None if domain.times is None else domain.times[..., 0].expand(len(u))
        out, state = kernel.step(u[:, 0], state, time)
        return out[:, None], state
    form = kernel.continued_form(u, domain, state)
    here, so_far = (Sequence(n).to(u.device) for n in (u.shape[1], form.key.shape[2]))
    return integrate_scores(kernel, form, so_far, here, sums), (form.key, form.value)


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
