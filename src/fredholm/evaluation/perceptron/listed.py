"""Pairwise perceptron kernels on listed pairs. Legend: `tiles.py`, and `evaluation/listed.py` for rows.

Row i has K points. Computed once per point, for all its rows: α, and β_j = bias + K u_j. Computed per pair:

    p_ij = α_i + β_j + [P, s, c]·[u_i ⊙ u_j, sin(θ_i - θ_j), cos(θ_i - θ_j)] + r ‖x_i - x_j‖ + e·γ(x_i - x_j) + f·e_ij

one product with shared weights, 2w(d + 2L) flops; then S_i = Σ_j m_ij ω_j h_ij ⊗ u_j, and W S_i per row.
"""

import dataclasses
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import linear

from fredholm._precision import wide_dtype
from fredholm.domains.domain import wrapped
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.listed import Gathered, pair_mass, per_point, row_by_row, spread
from fredholm.kernels import PairwiseMLP
from fredholm.kernels.fourier_features import fourier_features
from fredholm.kernels.perceptron.mlp import PairwiseForm, activate


@final
@dataclasses.dataclass(frozen=True)
class ListedPerceptron(Route[PairwiseMLP]):
    """For `PairwiseMLP` kernels and listed pairs: per-point parts are computed once for all pairs of a point.

    Cost per pair and head 2w(2d + 2L) flops, per query 2w·d²; memory linear in points and pairs, backward too.
    """

    marker = PairwiseMLP
    lists_pairs = needs_list = True

    def refusals(self, integral: Integral[PairwiseMLP]) -> list[str]:
        """Refuses nothing else; see `Route.refusals`."""
        return []

    def compute(self, integral: Integral[PairwiseMLP]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain, query_domain = integral.kernel, integral.u, integral.domain, integral.query_domain
        assert domain.pair_list is not None
        pairs, dtype = domain.pair_list.repeated(u.shape[0]), integral.working_dtype
        form = kernel.pairwise_form(domain, None if integral.own_positions else query_domain)
        n, n_q, rows = domain.num_points, query_domain.num_points, []
        tables = _tables(form, integral, dtype)
        shared = _shared(form, dtype)
        perceptron = _Perceptron(kernel.num_heads, kernel.activation, domain.is_periodic)
        heads, width, dim = kernel.num_heads, kernel.width, kernel.in_dim // kernel.num_heads
        for group in pairs.groups:
            every = torch.arange(group.queries.shape[0], device=u.device)
            inputs = {name: per_point(t, group.points, n) for name, t in tables["point"].items()}
            inputs |= {name: per_point(t, group.queries, n_q) for name, t in tables["query"].items()}
            inputs["mass"] = Gathered(pair_mass(integral, group), every)
            if group.features is not None and form.feature_weight is not None:
                _check_features(group.features, form.feature_weight)
                inputs["features"] = Gathered(group.features.to(dtype), every)
            made = group.points.shape[-1] * (heads * (4 * width + 2 * dim) + 4 * kernel.num_frequencies)
            made += heads * width * dim
            rows.append(row_by_row(perceptron, inputs, kernel.out_dim, shared=shared, row_elements=made))
        out = spread(rows, pairs, u, kernel.out_dim)
        share = kernel.past_share(domain, query_domain)
        return out.to(dtype) if share is None else (out * share[..., None]).to(dtype)


def _check_features(features: Tensor, weight: Tensor) -> None:
    if features.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"the kernel reads {weight.shape[-1]} features of a pair (edge_dim); the listed pairs have "
            f"{features.shape[-1]}"
        )


def _tables(form: PairwiseForm, integral: Integral[PairwiseMLP], dtype: torch.dtype) -> dict[str, dict[str, Tensor]]:
    """Tables of points and of queries to gather from, `(1 or B, N, ...)` each."""
    heads = integral.kernel.num_heads
    u, query = (t.to(dtype).unflatten(-1, (heads, -1)) for t in (integral.u, integral.query))  # (B, N, H, d)
    alpha, beta = (
        bias.to(dtype).transpose(1, 2).expand(-1, points.shape[1], -1, -1)  # (B', N, G, w)
        for bias, points in ((form.query_bias, query), (form.key_bias, u))
    )
    if form.query_weight is not None:
        alpha = alpha + torch.einsum("bnhd,hwd->bnhw", query, form.query_weight.to(dtype).expand(heads, -1, -1))
    if form.key_weight is not None:
        beta = beta + torch.einsum("bnhd,hwd->bnhw", u, form.key_weight.to(dtype).expand(heads, -1, -1))
    point, at_query = {"u": u, "beta": beta}, {"alpha": alpha}
    if form.product_weight is not None:
        at_query["query"] = query
    if form.sin_weight is not None:
        assert form.key_phase is not None
        assert form.query_phase is not None
        point["phase"], at_query["query_phase"] = form.key_phase.to(dtype), form.query_phase.to(dtype)
    if form.distance_weight is not None or form.wrapped_weight is not None:
        point["pos"], at_query["query_pos"] = form.key_pos, form.query_pos
    return {"point": point, "query": at_query}


def _shared(form: PairwiseForm, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights that all rows share, by their names in a form."""
    names = ("product_weight", "sin_weight", "cos_weight", "distance_weight", "wrapped_weight", "feature_weight")
    names += ("hidden_weight", "hidden_bias", "output_weight", "output_bias")
    found = {name: getattr(form, name) for name in names}
    shared = {name: t.to(dtype) for name, t in found.items() if t is not None}
    return shared if form.frequencies is None else shared | {"frequencies": form.frequencies}


@final
@dataclasses.dataclass(frozen=True)
class _Perceptron:
    """κ integrated over the points of each row, head by head."""

    num_heads: int
    activation: str
    is_periodic: bool

    def __call__(self, **given: Tensor) -> Tensor:
        """The integral of each row, `(n, H·d_out)`, in at least float32, from gathered tables."""
        accumulator = wide_dtype(given["u"])
        h = self._last_hidden(given).to(accumulator)
        values = given["u"].to(accumulator) * given["mass"].to(accumulator)[..., None, None]  # (n, K, H, d)
        sums = h.permute(0, 2, 3, 1) @ values.transpose(1, 2)  # S: (n, H, w, d)
        weight, bias = (given[name].to(accumulator) for name in ("output_weight", "output_bias"))
        out = _by_head(sums.flatten(2), weight.flatten(1, 2).mT) + _by_head(values.sum(1), bias)
        return out.flatten(1)

    def _last_hidden(self, given: dict[str, Tensor]) -> Tensor:
        """h, `(n, K, H, w)`."""
        p = given["beta"] + given["alpha"][:, None]
        if between := _between(given, self.is_periodic):
            weight = torch.cat([_columns(given[name]) for name in between], dim=-1)  # (G, w, f)
            p = p + linear(torch.cat(list(between.values()), dim=-1), weight.flatten(0, 1)).unflatten(
                -1, weight.shape[:2]
            )
        if "product_weight" in given:
            p = p + _by_head(given["query"][:, None] * given["u"], given["product_weight"])
        h = activate(p, self.activation).expand(-1, -1, self.num_heads, -1)
        if "hidden_weight" in given:
            for weight, bias in zip(given["hidden_weight"], given["hidden_bias"], strict=True):
                h = activate(_by_head(h, weight) + bias, self.activation)
        return h


def _columns(weight: Tensor) -> Tensor:
    """Weights as `(G, w, f)`; those of a scalar input are `(G, w)`."""
    return weight if weight.ndim == 3 else weight[..., None]


def _by_head(values: Tensor, weight: Tensor) -> Tensor:
    """Values `(..., H, i)` by each head's matrix, `(H, o, i)`, or by the one of all heads, `(1, o, i)`."""
    if weight.shape[0] == 1:
        return linear(values, weight[0])
    return torch.einsum("...hi,hoi->...ho", values, weight)


def _between(given: dict[str, Tensor], is_periodic: bool) -> dict[str, Tensor]:
    """The inputs of the weights of a name, `(n, K, ...)`, other than the signal."""
    found: dict[str, Any] = {}
    dtype = given["u"].dtype
    if "sin_weight" in given:
        (sin_i, cos_i), (sin_j, cos_j) = given["query_phase"][:, None].chunk(2, -1), given["phase"].chunk(2, -1)
        found["sin_weight"] = sin_i * cos_j - cos_i * sin_j
        found["cos_weight"] = cos_i * cos_j + sin_i * sin_j
    if "pos" in given:
        step = given["query_pos"][:, None] - given["pos"]  # x - y
        step = wrapped(step) if is_periodic else step
        if "distance_weight" in given:
            squared = step.square().sum(-1, keepdim=True)
            distance = torch.where(squared > 0, squared, 1.0).sqrt() * (squared > 0)
            found["distance_weight"] = distance.to(dtype)
        if "wrapped_weight" in given:
            waves = given["frequencies"]
            found["wrapped_weight"] = (fourier_features(step, waves) if waves.shape[0] else step).to(dtype)
    if "features" in given:
        found["feature_weight"] = given["features"]
    return found
