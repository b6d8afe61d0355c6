import functools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fredholm import analysis
from tests.refusals import refused

GAMMA = 0.7


def weights(*shape: int, seed: int = 0) -> Tensor:
    """Weights >= 0 with zeros, of Frobenius norm 1."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(*shape, shape[-1], generator=generator, dtype=torch.float64).relu()
    return A / torch.linalg.matrix_norm(A, keepdim=True)


def visits_by_paths(A: Tensor, gamma: float, terms: int = 400) -> Tensor:
    """Σ_t (γA)^t as a sum over paths: each term sums the previous one over its intermediate points."""
    n = len(A)
    total, term = torch.eye(n, dtype=A.dtype), torch.eye(n, dtype=A.dtype)
    for _ in range(terms):
        longer = torch.zeros(n, n, dtype=A.dtype)
        for i in range(n):
            for j in range(n):
                longer[i, j] = sum((term[i, k] * gamma * A[k, j] for k in range(n)), torch.zeros((), dtype=A.dtype))
        term = longer
        total = total + term
        if term.max() < 1e-17:
            break
    return total


@pytest.mark.parametrize("n", [1, 2, 5])
def test_all_centralities_are_sums_over_paths(n: int) -> None:
    A = weights(n)
    N = visits_by_paths(A, GAMMA)
    ones = torch.ones(n, dtype=torch.float64)
    assert_close = functools.partial(torch.testing.assert_close, atol=1e-10, rtol=1e-10)
    assert_close(analysis.expected_visits(A, GAMMA), N)
    assert_close(analysis.outgoing_influence(A, GAMMA), N.sum(1))
    assert_close(analysis.incoming_influence(A, GAMMA), N.sum(0))
    assert_close(analysis.katz_centrality(A, GAMMA), N @ ones - ones)


def test_a_discount_for_each_head() -> None:
    A, gamma = weights(3, 2, 4), torch.tensor([0.3, 0.9])
    for measure in (analysis.expected_visits, analysis.katz_centrality, analysis.incoming_influence):
        both = measure(A, gamma)
        for head in range(2):
            torch.testing.assert_close(both[:, head], measure(A[:, head], gamma[head]))


def test_visits_and_absorption_equal_a_simulated_walk() -> None:
    """Simulated walkers on three points, a million steps in all, instead of a matrix inverse."""
    A = torch.tensor([[0.1, 0.6, 0.2], [0.0, 0.3, 0.5], [0.4, 0.0, 0.0]], dtype=torch.float64)
    step = GAMMA * A.numpy()
    rng, walkers = np.random.default_rng(0), 100_000
    visits, ended = np.zeros(3), np.zeros(3)
    at = np.zeros(walkers, dtype=int)
    cumulative = np.concatenate([step, 1 - step.sum(1, keepdims=True)], 1).cumsum(1)
    while len(at):
        visits += np.bincount(at, minlength=3)
        moved = (rng.random(len(at))[:, None] > cumulative[at]).sum(1)
        ended += np.bincount(at[moved == 3], minlength=3)
        at = moved[moved < 3]
    N = analysis.expected_visits(A, GAMMA)[0].numpy()
    B = analysis.absorption_probabilities(A, GAMMA)[0].numpy()
    assert np.allclose(visits / walkers, N, atol=0.01)
    assert np.allclose(ended / walkers, B, atol=0.01)


def test_absorption_probabilities_sum_to_one() -> None:
    A = weights(2, 3, 5) / 2
    B = analysis.absorption_probabilities(A, GAMMA)
    torch.testing.assert_close(B.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))
    assert bool((B >= 0).all())
    reading = analysis.markov_reading(A, GAMMA)
    torch.testing.assert_close(B, analysis.expected_visits(A, GAMMA) * reading.ending[..., None, :])
    everywhere = analysis.absorption_probabilities(torch.zeros(3, 3), GAMMA)
    assert torch.equal(everywhere, torch.eye(3))


def test_a_norm_of_one_converges_without_being_a_walk() -> None:
    """All weights are in one row: ‖A‖_F = 1, and the row sums to √N."""
    n = 9
    A = torch.zeros(n, n, dtype=torch.float64)
    A[2] = 1 / math.sqrt(n)
    reading = analysis.markov_reading(A, GAMMA)
    assert not bool(reading.holds)
    assert reading.margin.item() == pytest.approx(1 - GAMMA * 3)
    assert reading.fails.tolist() == [i == 2 for i in range(n)]
    assert analysis.expected_visits(A, GAMMA).isfinite().all()
    with refused(ValueError, "gamma times the largest row sum is 2.1, above 1", "markov_reading"):
        analysis.absorption_probabilities(A, GAMMA)


def test_rows_that_sum_to_one_define_a_walk_for_every_gamma() -> None:
    A = torch.rand(2, 3, 6, 6, dtype=torch.float64).softmax(-1)
    for gamma in (0.01, 0.5, 0.99):
        reading = analysis.markov_reading(A, gamma)
        assert bool(reading.holds.all())
        torch.testing.assert_close(reading.margin, torch.full_like(reading.margin, 1 - gamma))
        length = analysis.outgoing_influence(A, gamma)
        torch.testing.assert_close(length, torch.full_like(length, 1 / (1 - gamma)))
    assert not bool(analysis.markov_reading(torch.tensor([[2.0]]), 0.5).holds)  # exactly 1: a walk that never ends


def test_points_without_mass_are_visited_only_from_themselves() -> None:
    A = torch.zeros(3, 3, dtype=torch.float64)
    A[:2, :2] = weights(2)
    N = analysis.expected_visits(A, GAMMA)
    assert N[2].tolist() == [0, 0, 1]
    torch.testing.assert_close(N[:2, :2], analysis.expected_visits(A[:2, :2], GAMMA))


def test_no_points() -> None:
    empty = torch.zeros(2, 0, 0)
    assert analysis.expected_visits(empty, GAMMA).shape == (2, 0, 0)
    assert analysis.katz_centrality(empty, GAMMA).shape == (2, 0)
    assert analysis.absorption_probabilities(empty, GAMMA).shape == (2, 0, 0)
    with refused(ValueError, "no points"):
        analysis.markov_reading(empty, GAMMA)


def test_series_beyond_every_norm_bound_may_converge() -> None:
    A = torch.tensor([[0.0, 5.0], [0.0, 0.0]], dtype=torch.float64)  # every norm is 5, the spectral radius 0
    torch.testing.assert_close(
        analysis.expected_visits(A, 0.5), torch.tensor([[1.0, 2.5], [0.0, 1.0]], dtype=torch.float64)
    )
    both = torch.stack([A, torch.full((2, 2), 1.5, dtype=torch.float64)])
    with refused(ValueError, "diverges", "spectral radius of gamma A is 1.5"):
        analysis.expected_visits(both, 0.5)


@pytest.mark.parametrize("gamma", [0.0, 1.0, -0.5, float("nan")])
def test_discounts_out_of_range_are_refused(gamma: float) -> None:
    for measure in (analysis.expected_visits, analysis.markov_reading, analysis.katz_centrality):
        with refused(ValueError, "gamma must be in (0, 1)"):
            measure(torch.rand(3, 3), gamma)


def test_bad_weights_are_refused() -> None:
    for measure in (analysis.outgoing_influence, analysis.markov_reading):
        with refused(ValueError, "(..., N, N)", "(3, 4)"):
            measure(torch.rand(3, 4), GAMMA)
        with refused(ValueError, "must be >= 0", "the least is -0.5"):
            measure(torch.tensor([[-0.5, 1.0], [1.0, 1.0]]), GAMMA)
        with refused(ValueError, "must be >= 0", "the least is -1"):
            measure(-torch.ones(1, 1), GAMMA)
        with refused(ValueError, "NaN"):
            measure(torch.tensor([[float("nan")]]), GAMMA)
        with refused(TypeError, "float tensor", "int64"):
            measure(torch.ones(2, 2, dtype=torch.int64), GAMMA)
        with refused(ValueError, "broadcast to the matrices' (2,)", "(3,)"):
            measure(torch.rand(2, 3, 3), torch.full((3,), 0.5))


def test_small_negative_values_from_the_solver_become_zero() -> None:
    A = weights(4)
    less = torch.where(A == 0, -1e-16, A)
    assert less.min() < 0
    torch.testing.assert_close(analysis.expected_visits(less, GAMMA), analysis.expected_visits(A, GAMMA))
    assert bool((analysis.expected_visits(less, GAMMA) >= 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    A = weights(2, 5).to(dtype)
    got = analysis.expected_visits(A, GAMMA)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), analysis.expected_visits(A.double(), GAMMA), atol=1e-5, rtol=1e-5)


def test_gradients_flow() -> None:
    A = (weights(3) / 2).requires_grad_()
    for measure in (
        analysis.expected_visits, analysis.katz_centrality, analysis.incoming_influence,
        analysis.absorption_probabilities,
    ):  # fmt: skip
        assert torch.autograd.gradcheck(lambda A, measure=measure: measure(A.abs(), GAMMA), (A + 0.1,))
