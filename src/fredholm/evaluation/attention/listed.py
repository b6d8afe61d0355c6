"""Scored kernels on listed pairs: queries, keys and values are computed per point and gathered. See `scored.py`."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.listed import Gathered, pair_mass, per_point, row_by_row, spread
from fredholm.kernels import Normaliser, Score, Scored, ScoreForm
from fredholm.kernels.attention.scored import scores_of
from fredholm.kernels.heads import each_query_head


@final
@dataclasses.dataclass(frozen=True)
class ListedScores(Route[Scored]):
    """For `Scored` kernels and listed pairs, such as attention among neighbours: one row of scores per query.

    Cost per pair and head 2(d + d_v) flops and a score; memory linear in points and pairs, backward too.
    """

    marker = Scored
    lists_pairs = needs_list = True

    def refusals(self, integral: Integral[Scored]) -> list[str]:
        """Refuses nothing else; see `Route.refusals`."""
        return []

    def compute(self, integral: Integral[Scored]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain, query_domain = integral.kernel, integral.u, integral.domain, integral.query_domain
        assert domain.pair_list is not None
        kernel.check_score()
        pairs = domain.pair_list.repeated(u.shape[0])
        form = kernel.score_form(u, domain, integral.query, query_domain)
        n, n_q, rows = domain.num_points, query_domain.num_points, []
        shared = {"softening": form.softening, "numbers": form.numbers}
        scores = _Scores(kernel.score, kernel.normaliser)
        for group in pairs.groups:
            mass = pair_mass(integral, group)
            if domain.counts_per_mass.ndim == 2:
                mass = mass * domain.counts_per_mass.expand(u.shape[0], 1)[group.queries // n_q]
            else:
                mass = mass * domain.counts_per_mass
            inputs = {
                "query": per_point(form.query.transpose(1, 2), group.queries, n_q),
                "key": per_point(form.key.transpose(1, 2), group.points, n),
                "value": per_point(form.value.transpose(1, 2), group.points, n),
                "mass": Gathered(mass, torch.arange(mass.shape[0], device=u.device)),
            }
            if form.key_bias is not None:
                inputs["key_bias"] = per_point(form.key_bias.transpose(1, 2), group.points, n)
            given = {name: t for name, t in shared.items() if t is not None}
            made = 6 * kernel.num_heads * group.points.shape[-1]
            rows.append(row_by_row(scores, inputs, kernel.out_dim, shared=given, row_elements=made))
        return spread(rows, pairs, u, kernel.out_dim).to(form.value.dtype)


@final
@dataclasses.dataclass(frozen=True)
class _Scores:
    """The integral over the points of each row."""

    score: Score
    normaliser: Normaliser

    def __call__(
        self,
        *,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mass: Tensor,
        key_bias: Tensor | None = None,
        softening: Tensor | None = None,
        numbers: Tensor | None = None,
    ) -> Tensor:
        """`(n, H·d_v)` from queries `(n, H, d)`, keys and values `(n, K, H', ...)`, and masses `(n, K)`."""
        bias = None if key_bias is None else key_bias.transpose(1, 2)
        form = ScoreForm(query[:, :, None], key.transpose(1, 2), value.transpose(1, 2), bias, softening, numbers)
        scores = scores_of(self.score, form)
        mass = mass[:, None, None].to(scores.dtype)
        coefficients = self.normaliser.shares(scores, mass)
        values = each_query_head(form.value, scores.shape[1])
        return (coefficients @ values.to(scores.dtype)).flatten(1)
