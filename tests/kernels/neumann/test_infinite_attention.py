"""Infinite attention equals its formula: a normalised hop, and the series of all hops."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator
from fredholm.domains import Points, Sequence, preceding_counts
from fredholm.evaluation import Dense, Integral, StepLoop
from fredholm.kernels import Attention, FrobeniusNorm, HopNorm, InfiniteAttention
from fredholm.kernels.linear_algebra import solve_each
from tests.contracts.routes import randomise
from tests.contracts.weighed_domains import DOMAINS, PAIRS, domain, uniform
from tests.refusals import refused

ACTIVATIONS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "abs": torch.abs}


def kernel_of(dtype: torch.dtype = torch.float64, **options) -> InfiniteAttention:
    return randomise(InfiniteAttention(8, 4, **options).to(dtype))


def signal(where, dtype: torch.dtype = torch.float64) -> Tensor:
    u = torch.randn(2, where.num_points, 8, dtype=dtype)
    return u if where.mask is None else torch.where(where.mask[..., None], u, 0.0)


@torch.no_grad()
def hop_by_hand(kernel: InfiniteAttention, u: Tensor, where, batch: int, head: int) -> Tensor:
    """A of one head, entry by entry: the weight of every point for every query, including masses."""
    projections, n = kernel.projections, where.num_points
    mass = where.counts.expand(len(u), -1)[batch]
    q, k = (
        projections.queries(u)[batch, head],
        projections.keys(u)[batch, head * projections.num_kv_heads // projections.num_heads],
    )
    pairs = where.pair_weights
    counts = preceding_counts(where, where)
    counts = counts[batch % len(counts)]
    phi = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            if kernel.is_causal and j >= counts[i]:
                continue
            m = 1.0 if pairs is None else pairs[batch % len(pairs), head % pairs.shape[1], i, j]
            phi[i, j] = m * ACTIVATIONS[kernel.activation](kernel.scale * q[i] @ k[j])
    hop = torch.zeros_like(phi)
    for i in range(n):
        if isinstance(kernel.norm, FrobeniusNorm):
            block = int(counts[i]) if kernel.is_causal else n
            square = sum(mass[a] * mass[b] * phi[a, b] ** 2 for a in range(block) for b in range(n))
            norm = float(square) ** 0.5
        else:
            norm = float(sum(mass[b] * phi[i, b].abs() for b in range(n)))
        for j in range(n):
            hop[i, j] = mass[j] * phi[i, j] / norm if norm > 0 else 0.0
    return hop


@pytest.mark.parametrize("name", ["sequence", "masked", "weights", "pairs weighed per head", "nothing exists"])
@pytest.mark.parametrize(
    "options",
    [{}, {"activation": "gelu"}, {"activation": "abs", "normaliser": "rows"}, {"is_causal": True, "num_kv_heads": 2}],
    ids=str,
)
def test_coefficients_equal_the_formula(options, name):
    torch.manual_seed(0)
    where = domain(name)
    u = signal(where)
    hop, series = kernel_of(form="hop", **options), kernel_of(gamma=[0.3, 0.5, 0.7, 0.9], **options)
    one, all_hops = hop.coefficients(u, where), series.coefficients(u, where)
    for batch, head in ((0, 1), (1, 3)):
        a = hop_by_hand(hop, u, where, batch, head)
        torch.testing.assert_close(one[batch, head], a, atol=1e-12, rtol=1e-12)
        gamma_a = (0.5 if head == 1 else 0.9) * a
        powers, term = torch.zeros_like(a), torch.eye(len(a), dtype=a.dtype)
        for _ in range(400):
            term = term @ gamma_a
            powers = powers + term
        torch.testing.assert_close(all_hops[batch, head], powers, atol=1e-12, rtol=1e-12)


def test_equal_masses_give_the_papers_layer():
    kernel, u = kernel_of(form="hop"), torch.randn(2, 6, 8, dtype=torch.float64)
    projections = kernel.projections
    scores = (projections.queries(u) @ projections.keys(u).mT).relu()
    hop = scores / torch.linalg.matrix_norm(scores)[..., None, None]
    expected = (hop @ projections.values(u)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(Dense().integrate(Integral(kernel, u, Sequence(6))), expected)


@pytest.mark.parametrize("name", DOMAINS + PAIRS)
def test_rows_are_substochastic_and_the_frobenius_norm_is_one(name):
    torch.manual_seed(0)
    where = domain(name)
    u = signal(where)
    rows = kernel_of(form="hop", normaliser="rows").coefficients(u, where).sum(-1)
    assert bool(((rows == 0) | ((rows - 1).abs() < 1e-12)).all())
    hop = kernel_of(form="hop").coefficients(u, where)
    mass = where.counts.expand(2, -1)[:, None]
    squares = torch.where(mass[:, :, None] > 0, hop.square() / mass[:, :, None], 0.0)
    squares = (mass[..., None] * squares).sum((-2, -1))
    assert bool(((squares == 0) | ((squares - 1).abs() < 1e-12)).all())


def test_frobenius_rows_may_sum_to_more_than_one():
    u = torch.zeros(1, 9, 8, dtype=torch.float64)
    u[:, 0] = 5.0
    kernel = InfiniteAttention(8, form="hop", bias=True).double()
    with torch.no_grad():
        for weight in (kernel.projections.query_weight, kernel.projections.key_weight):
            weight.copy_(torch.eye(8))
        kernel.get_parameter("projections.key_bias").fill_(1.0)
    rows = kernel.coefficients(u, Sequence(9)).sum(-1)
    assert rows.amax() > 1 / 0.7  # 1 - γ max row sum < 0: no absorption probability
    kernel = kernel_of(form="hop", activation="gelu", normaliser="rows")
    assert bool(
        (kernel.coefficients(torch.randn(2, 9, 8, dtype=torch.float64), Sequence(9)).abs().sum(-1) < 1 + 1e-12).all()
    )


def test_systems_are_solved_one_by_one():
    matrices = torch.randn(2, 3, 70, 70, dtype=torch.float64) + 20 * torch.eye(70, dtype=torch.float64)
    for right in (torch.randn(2, 3, 70, 5, dtype=torch.float64), torch.randn(2, 3, 70, 0, dtype=torch.float64)):
        torch.testing.assert_close(matrices @ solve_each(matrices, right), right)
    assert solve_each(matrices[:0], matrices[:0]).shape == (0, 3, 70, 70)


@pytest.mark.parametrize("form", ["hop", "resolvent"])
@pytest.mark.parametrize("normaliser", ["frobenius", "rows"])
def test_other_queries_at_the_points_themselves_change_nothing(normaliser, form):
    for is_causal in (False, True):
        kernel = kernel_of(normaliser=normaliser, form=form, is_causal=is_causal)
        times = uniform(6).sort().values
        where, u = Sequence(times=times), torch.randn(2, 6, 8, dtype=torch.float64)
        here = Dense().integrate(Integral(kernel, u, where))
        torch.testing.assert_close(Dense().integrate(Integral(kernel, u, where, u.clone())), here)
        part = Dense().integrate(Integral(kernel, u, where, u[:, 1:4].clone(), Sequence(times=times[1:4])))
        torch.testing.assert_close(part, here[:, 1:4])


def test_a_query_elsewhere_is_one_more_hop():
    kernel, u = kernel_of(), torch.randn(2, 6, 8, dtype=torch.float64)
    where, query = Points(uniform(6, 2), weights=uniform(6)), torch.randn(2, 3, 8, dtype=torch.float64)
    projections = kernel.projections
    scores = ((kernel.scale * projections.queries(u)) @ projections.keys(u).mT).relu()
    mass = where.weights
    norm = torch.einsum("i,j,bhij->bh", mass, mass, scores.square()).sqrt()
    value = projections.values(u)
    inner = Dense().integrate(Integral(kernel, u, where)).unflatten(-1, (4, 2)).transpose(1, 2)
    last_hop = (
        ((kernel.scale * projections.queries(query)) @ projections.keys(u).mT).relu() / norm[..., None, None] * mass
    )
    expected = (0.7 * last_hop @ (value + inner)).transpose(1, 2).flatten(2)
    got = Dense().integrate(Integral(kernel, u, where, query, Points(uniform(3, 2))))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("gamma", [0.7, [0.2, 0.4, 0.6, 0.8]])
def test_gamma_learns_in_every_head(gamma):
    kernel, u = kernel_of(gamma=gamma, learn_gamma=True), torch.randn(2, 6, 8, dtype=torch.float64)
    assert kernel.discount is not None
    assert kernel.discount.raw is not None
    out = Dense().integrate(Integral(kernel, u, Sequence(6)))
    cotangent = torch.randn_like(out)
    grad = torch.autograd.grad((out * cotangent).sum(), kernel.discount.raw)[0]
    step = 1e-6
    for head in range(4):
        ends = []
        for side in (step, -step):
            with torch.no_grad():
                kernel.discount.raw[head] += side
                ends.append((Dense().integrate(Integral(kernel, u, Sequence(6))) * cotangent).sum())
                kernel.discount.raw[head] -= side
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(grad[head].item(), rel=1e-5)
        assert grad[head] != 0


@pytest.mark.parametrize("activation", ["relu", "gelu", "abs"])
@pytest.mark.parametrize("normaliser", ["frobenius", "rows"])
def test_zero_scores_give_no_hops(normaliser, activation):
    """Zero scores everywhere: the integral is 0 with gradient 0, not NaN."""
    kernel = kernel_of(normaliser=normaliser, activation=activation, bias=False)
    u = torch.zeros(1, 4, 8, dtype=torch.float64, requires_grad=True)
    out = Dense().integrate(Integral(kernel, u, Sequence(4)))
    grads = torch.autograd.grad(out.sum(), [u, *kernel.parameters()], allow_unused=True)
    assert not out.any()
    assert all(not grad.any() for grad in grads if grad is not None)


@pytest.mark.parametrize("options", [{}, {"normaliser": "rows"}, {"form": "hop"}, {"activation": "gelu"}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_give_the_whole_sequence(options, dtype):
    kernel = kernel_of(dtype, is_causal=True, num_kv_heads=2, **options)
    u = torch.randn(2, 9, 8, dtype=dtype)
    whole, stepped = (route.integrate(Integral(kernel, u, Sequence(9))) for route in (Dense(), StepLoop()))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(stepped, whole, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("normaliser", ["frobenius", "rows"])
def test_a_first_score_that_underflows_has_a_gradient(normaliser):
    kernel = InfiniteAttention(4, 2, activation="gelu", is_causal=True, normaliser=normaliser, bias=False)
    with torch.no_grad():
        kernel.projections.key_weight.copy_(-kernel.projections.query_weight)
    u = (30 * torch.randn(1, 4)).requires_grad_()
    out, (_, _, norm) = kernel.step(u, kernel.initial_state(1))
    grads = torch.autograd.grad(out.sum() + norm.sum(), [u, *kernel.parameters()])
    assert not norm.any()
    assert all(not grad.any() for grad in grads)


def test_the_future_reaches_nothing():
    kernel, u = kernel_of(is_causal=True), torch.randn(1, 8, 8, dtype=torch.float64)
    other = u.clone()
    other[:, 5:] = 10 * torch.randn(1, 3, 8, dtype=torch.float64)
    here, there = (Dense().integrate(Integral(kernel, v, Sequence(8))) for v in (u, other))
    torch.testing.assert_close(here[:, :5], there[:, :5])
    assert not torch.allclose(here[:, 5:], there[:, 5:])


class Loose(HopNorm):
    """A normaliser that does not normalise."""

    def norm(self, scores):
        return torch.ones_like(scores.query[..., :1])

    def following(self, row, before):
        return torch.ones_like(before)


def test_refuses_a_series_that_diverges():
    kernel = kernel_of(normaliser=Loose(), activation="abs", is_causal=True)
    u = torch.randn(1, 5, 8, dtype=torch.float64)
    small = Dense().integrate(Integral(kernel, 0.1 * u, Sequence(5)))
    torch.testing.assert_close(StepLoop().integrate(Integral(kernel, 0.1 * u, Sequence(5))), small)
    for route in (Dense(), StepLoop()):
        with refused(ValueError, "InfiniteAttention: the series of hops diverges, the spectral radius of γA is"):
            route.integrate(Integral(kernel, 100 * u, Sequence(5)))


def test_refuses_bad_settings():
    cases: list[tuple[dict[str, Any], str]] = [
        ({"gamma": 1.0}, "gamma must be in (0, 1)"),
        ({"form": "depth"}, "form must be 'resolvent' or 'hop'; got 'depth'"),
        ({"activation": "exp"}, "activation must be 'relu' or 'gelu' or 'abs'"),
        ({"normaliser": "l1"}, "normaliser must be 'frobenius' or 'rows'"),
        ({"form": "hop", "learn_gamma": True}, "learn_gamma=True has no effect with form='hop'"),
        ({"form": "hop", "gamma": 0.5}, "gamma=0.5 has no effect with form='hop'"),
        ({"scale": 0.3}, "scale=0.3 has no effect with activation='relu'"),
    ]
    for options, message in cases:
        with refused(ValueError, message):
            InfiniteAttention(8, 4, **options)
    with refused(ValueError, "num_heads must divide embed_dim"):
        InfiniteAttention(8, 3)


def test_refuses_pair_weights_for_queries_elsewhere():
    where = Sequence(5).weigh_pairs(torch.zeros(3, 5))
    with refused(ValueError, "pair weights are for other queries than the points", "as points of the signal"):
        Dense().integrate(
            Integral(kernel_of(), signal(where), where, torch.randn(2, 3, 8, dtype=torch.float64), Sequence(3))
        )


def test_sums_with_other_kernels_weigh_pairs_once():
    terms = [kernel_of(), randomise(Attention(8, 4).double(), 0.4)]
    total = terms[0] + terms[1]
    where = domain("pairs weighed")
    u = signal(where)
    expected = Dense().integrate(Integral(terms[0], u, where)) + Dense().integrate(Integral(terms[1], u, where))
    torch.testing.assert_close(Dense().integrate(Integral(total, u, where)), expected)
    torch.testing.assert_close(
        IntegralOperator(total, residual=False, output_projection=False).double()(u, where), expected
    )
