"""The kernel of factorised infinite attention equals its series of hops."""

import pytest
import torch

from fredholm.domains import Points, Sequence
from fredholm.evaluation import Dense, Integral, StepLoop
from fredholm.kernels import FactorisedInfiniteAttention, InfiniteAttention
from tests.contracts.routes import randomise
from tests.refusals import refused

WEIGHTS = torch.rand(7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
PLACES = Points(torch.zeros(7, 1, dtype=torch.float64), weights=WEIGHTS)


def made(**options):
    torch.manual_seed(0)
    kernel = randomise(FactorisedInfiniteAttention(8, 2, **options).double())
    return kernel, torch.randn(1, 7, 8, dtype=torch.float64)


@pytest.mark.parametrize("normaliser", ["frobenius", "rows"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_coefficients_are_the_sum_of_all_powers(normaliser, is_causal):
    kernel, u = made(normaliser=normaliser, is_causal=is_causal, gamma=(0.3, 0.9))
    phi, psi = kernel.query_features(u)[0], kernel.key_features(u)[0]
    scores = phi @ psi.mT
    scores = scores.tril() if is_causal else scores
    if normaliser == "rows":
        norm = (scores * WEIGHTS).sum(-1, keepdim=True)
    else:
        squares = WEIGHTS[:, None] * WEIGHTS * scores.square()
        rows = [squares[:, : n + 1, : n + 1].sum((1, 2)) if is_causal else squares.sum((1, 2)) for n in range(7)]
        norm = torch.stack(rows, dim=1).sqrt()[..., None]
    hop = torch.tensor([0.3, 0.9], dtype=torch.float64)[:, None, None] * scores / norm * WEIGHTS
    power, series = hop, torch.zeros_like(hop)
    for _ in range(400):
        series, power = series + power, power @ hop
    torch.testing.assert_close(kernel.coefficients(u, PLACES)[0], series, atol=1e-12, rtol=0)


def test_rows_of_the_row_norm_count_the_hops_before_absorption():
    kernel, u = made(normaliser="rows", gamma=0.7)
    expected = torch.full((1, 2, 7), 0.7 / 0.3, dtype=torch.float64)
    torch.testing.assert_close(kernel.coefficients(u, PLACES).sum(-1), expected)


def test_equals_infinite_attention_where_queries_and_keys_are_non_negative():
    kernel, u = made(feature_map=torch.relu)
    infinite = InfiniteAttention(8, 2).double()
    infinite.projections.load_state_dict(kernel.projections.state_dict())
    shift = {name: torch.full((8,), 20.0) for name in ("query_bias", "key_bias")}
    for each in (kernel, infinite):
        each.projections.load_state_dict(shift, strict=False)
    torch.testing.assert_close(kernel.matrix(u, PLACES), infinite.matrix(u, PLACES))


def test_gamma_learns_in_every_head():
    kernel, u = made(learn_gamma=True, gamma=(0.2, 0.8))
    raw = dict(kernel.named_parameters())["discount.raw"]
    (slope,) = torch.autograd.grad(kernel.coefficients(u, Sequence(7)).sum(), raw)
    assert (slope > 0).all()


def test_features_of_any_width():
    kernel, u = made(feature_map=lambda x: torch.cat([x.relu(), (-x).relu()], dim=-1), is_causal=True)
    assert kernel.query_features(u).shape == (1, 2, 7, 8)
    total, grams, squares = kernel.initial_state(3)
    assert total.shape == (3, 2, 8, 4)
    assert grams.shape == (3, 2, 8, 8)
    assert squares.shape == (3, 2)


@pytest.mark.parametrize("feature_map", [None, torch.nn.functional.softplus])
def test_a_state_of_features_that_vanish_in_float32_stays_precise(feature_map):
    kernel = FactorisedInfiniteAttention(2, normaliser="rows", is_causal=True, bias=False, feature_map=feature_map)
    for name in ("query_weight", "key_weight", "value_weight"):
        kernel.projections.load_state_dict({name: torch.eye(2)}, strict=False)
    u = -torch.tensor([[[120.0, 130.0], [125.0, 140.0], [110.0, 150.0]]])
    out = StepLoop().integrate(Integral(kernel, u, Sequence(3)))
    expected = Dense().integrate(Integral(kernel.double(), u.double(), Sequence(3)))
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("gamma", [0.0, 1.0, -0.5, float("nan"), (0.5, 1.5)])
def test_refuses_a_discount_outside_its_range(gamma):
    with refused(ValueError, "gamma must be in (0, 1)"):
        FactorisedInfiniteAttention(8, 2, gamma=gamma)


def test_refuses_negative_features_and_unknown_normalisers():
    kernel, u = made(feature_map=lambda x: x)
    with refused(ValueError, "kernels.FactorisedInfiniteAttention: feature_map must be >= 0"):
        kernel.matrix(u, PLACES)
    with refused(ValueError, "normaliser must be 'frobenius' or 'rows'; got 'softmax'"):
        made(normaliser="softmax")
    with refused(ValueError, "num_heads must divide embed_dim"):
        FactorisedInfiniteAttention(8, 3)
