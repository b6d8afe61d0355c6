"""Theorems and claims about the Yat product, each in the form in which it holds; source: `yat_nmn`."""

import math

import pytest
import torch

from fredholm.kernels import yat

EPSILONS = (1e-2, 0.3, 20.0)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gram(points, b=0.0, epsilon=1e-2):
    return yat(points, points, torch.full((len(points),), b, dtype=points.dtype), epsilon)


def gradient(x, w, epsilon, b=None):
    """The gradient of one prototype's response at each point, `(n, d)`."""
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(yat(x, w[None], b, epsilon).sum(), x)
    return found


def point_sets():
    v = draw(6)
    line = torch.tensor([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0], dtype=torch.float64)[:, None] * v
    cloud = draw(20, 6)
    return {
        "random": cloud,
        "one": cloud[:1],
        "near-duplicates": torch.cat([cloud, cloud + 1e-5 * draw(20, 6, seed=1)]),
        "duplicates": cloud[[0, 0, 1, 1, 1]],
        "collinear": line,
        "antipodal": torch.cat([cloud, -cloud]),
        "orthogonal": torch.eye(6, dtype=torch.float64),
        "on a sphere": cloud / cloud.norm(dim=1, keepdim=True),
        "of many sizes": cloud * torch.logspace(-3, 1, 20, dtype=torch.float64)[:, None],
        "with the origin": torch.cat([cloud, torch.zeros_like(v)[None]]),
    }


# ---- positive definiteness: theorem 1, section C.15


@pytest.mark.pairs
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("b", [0.0, 0.7, 5.0])
@pytest.mark.parametrize("name", point_sets())
def test_gram_matrices_are_positive_semidefinite(name, b, epsilon):
    matrix = gram(point_sets()[name], b, epsilon)
    torch.testing.assert_close(matrix, matrix.mT, rtol=1e-9, atol=0)
    values = torch.linalg.eigvalsh(matrix)
    assert values[0] >= -1e-11 * values[-1]


@pytest.mark.parametrize("name", ["random", "collinear", "antipodal", "orthogonal", "on a sphere"])
def test_gram_matrices_of_distinct_points_are_regular(name):
    """Strictly: a Gaussian mixture is, and (x·y)² only scales it where no point is 0."""
    values = torch.linalg.eigvalsh(gram(point_sets()[name], epsilon=0.3))
    assert values[0] > 1e-6 * values[-1]


@pytest.mark.parametrize("b", [-0.01, -1.0, -7.0])
def test_a_negative_constant_gives_no_positive_definite_kernel(b):
    """k(x, x) = 0 where ‖x‖² = -b, but k(x, 0) = b²/(‖x‖² + ε) > 0: no inner product does that."""
    x = draw(6)
    points = torch.stack([x * math.sqrt(-b) / x.norm(), torch.zeros_like(x)])
    values = torch.linalg.eigvalsh(gram(points, b))
    assert values[0] < -1e-7 * values[-1]


# ---- the supremum: proposition 11 has ‖w‖⁴/ε, at w


@pytest.mark.pairs
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("b", [0.0, 1.5, -0.4])
@pytest.mark.parametrize("size", [0.2, 1.0, 5.0])
def test_the_supremum_is_attained_beyond_the_prototype_and_never_exceeded(size, b, epsilon):
    """(w·x + b)² = ((w, c/√ε)·(z, √ε))² with z = x - w and c = ‖w‖² + b: Cauchy and Schwarz give ‖w‖² + c²/ε."""
    w = draw(5)
    w = size * w / w.norm()
    c, constant = size**2 + b, torch.tensor([b], dtype=torch.float64)
    supremum = size**2 + c**2 / epsilon
    best = (1 + epsilon / c) * w
    value = yat(best[None], w[None], constant, epsilon).item()
    assert value == pytest.approx(supremum, rel=1e-12)
    assert gradient(best[None], w, epsilon, constant).norm() < 1e-11 * supremum / best.norm()
    assert yat(w[None], w[None], constant, epsilon).item() == pytest.approx(c**2 / epsilon, rel=1e-9)
    spread = torch.logspace(-3, 3, 2000, dtype=torch.float64)[:, None]
    tried = torch.cat([w + spread * draw(2000, 5, seed=1), best + 1e-3 * best.norm() * draw(2000, 5, seed=2)])
    assert yat(tried, w[None], constant, epsilon).max() <= supremum * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_an_optimiser_climbs_to_the_supremum(epsilon):
    w = draw(5)
    x = (w + 0.1 * draw(5, seed=1)).requires_grad_()
    optimizer = torch.optim.LBFGS([x], max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def closure():
        optimizer.zero_grad()
        loss = -yat(x[None], w[None], epsilon=epsilon).log().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    reached = yat(x.detach()[None], w[None], epsilon=epsilon).item()
    squared = w.square().sum().item()
    assert reached == pytest.approx(squared**2 / epsilon + squared, rel=1e-8)
    assert reached > squared**2 / epsilon * (1 + 1e-4)  # the source's bound
    torch.testing.assert_close(x.detach(), (1 + epsilon / squared) * w, rtol=1e-3, atol=1e-3)


# ---- far away: propositions 1 and 2


@pytest.mark.parametrize("b", [0.0, -0.8])
@pytest.mark.parametrize("angle", [0.0, 0.6, 2.0, math.pi])
def test_far_away_the_response_tends_to_its_limit_like_one_over_the_distance(angle, b):
    """yat(w, k u) = ‖w‖² cos² θ + 2 ‖w‖ cos θ (‖w‖² cos² θ + b)/k + O(1/k²)."""
    size, cos = 1.7, math.cos(angle)
    w = torch.tensor([[size, 0.0]], dtype=torch.float64)
    u = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    constant = torch.tensor([b], dtype=torch.float64)
    distances = torch.tensor([1e2, 1e3, 1e4], dtype=torch.float64)
    rest = yat(distances[:, None] * u, w, constant, 0.3)[:, 0] - size**2 * cos**2
    expected = 2 * size * cos * (size**2 * cos**2 + b) / distances
    assert (rest / expected - 1).abs().tolist() < [0.1, 0.01, 0.001]


def test_orthogonal_inputs_give_exactly_zero_with_gradient_zero_at_every_distance():
    """Proposition 10 speaks of gradients that do not vanish at 0: at 0, and wherever w·x = 0, they do."""
    w, u = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 0.6, 0.8], dtype=torch.float64)
    x = torch.tensor([0.0, 1e-3, 1.0, 1e4], dtype=torch.float64)[:, None] * u
    assert torch.equal(yat(x, w[None]), torch.zeros(4, 1, dtype=torch.float64))
    assert torch.equal(gradient(x, w, 0.3), torch.zeros(4, 3, dtype=torch.float64))


@pytest.mark.parametrize(("angle", "exponent"), [(0.7, -1), (2.5, -1), (0.0, -2), (math.pi, -2)])
def test_the_gradient_decays_like_the_distance_and_along_the_prototype_like_its_square(angle, exponent):
    """k ‖∇‖ → 2 ‖w‖² |cos θ sin θ|, the slope of the limit over directions; for sin θ = 0, k² ‖∇‖ → 2 ‖w‖³."""
    size = 1.7
    w = torch.tensor([size, 0.0], dtype=torch.float64)
    u = torch.tensor([math.cos(angle), round(math.sin(angle), 15)], dtype=torch.float64)
    distances = torch.tensor([1e3, 1e4], dtype=torch.float64)
    norms = gradient(distances[:, None] * u, w, 0.3).norm(dim=1)
    assert math.log10(norms[1] / norms[0]) == pytest.approx(exponent, abs=0.01)
    factor = 2 * size**3 if exponent == -2 else 2 * size**2 * abs(math.cos(angle) * math.sin(angle))
    assert (norms[1] * distances[1] ** -exponent).item() == pytest.approx(factor, rel=1e-2)


# ---- gradients: theorem 5, propositions 3, 8 and 12


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_gradients_are_their_formulas(epsilon):
    x, w = draw(7, 5).requires_grad_(), draw(5, seed=1).requires_grad_()
    s, difference = x.detach() @ w.detach(), x.detach() - w.detach()
    D = difference.square().sum(-1) + epsilon
    of_x, of_w = torch.autograd.grad(yat(x, w[None], epsilon=epsilon).sum(), (x, w))
    # theorem 5
    expected = (2 * s / D)[:, None] * (w - (s / D)[:, None] * difference)
    torch.testing.assert_close(of_x, expected, rtol=1e-9, atol=1e-12)
    # theorem 5 with the arguments exchanged; proposition 12 has a plus where the minus is
    parts = (2 * s / D)[:, None] * x, (2 * (s / D).square())[:, None] * -difference
    torch.testing.assert_close(of_w, (parts[0] - parts[1]).sum(0), rtol=1e-9, atol=1e-12)
    assert (of_w - (parts[0] + parts[1]).sum(0)).norm() > 0.05 * of_w.norm()
    # equation 8, and equation 9 with the denominator and the x that are lost in it
    slope = 2 * s * (w.square().sum() + x.square().sum(-1) + epsilon - s) / D.square()
    norm = 2 * (s / D).square()
    torch.testing.assert_close(of_x, slope[:, None] * w - norm[:, None] * x, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(of_w, (slope[:, None] * x - norm[:, None] * w).sum(0), rtol=1e-9, atol=1e-12)
    # theorem 19 counts products with that slope alone, which drops the term of the norms
    assert (of_x - slope[:, None] * w).norm() > 0.05 * of_x.norm()


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 0.1, 1.0, 10.0])
def test_the_lipschitz_bound_holds_and_a_smaller_one_is_sharp(epsilon):
    """On the unit ball 2/ε + 4/ε² holds; so does 2/ε + (3√3/8) ε^(-3/2), since r/(r² + ε)² <= (3√3/16) ε^(-3/2)."""
    sharper = 2 / epsilon + 3 * math.sqrt(3) / 8 * epsilon**-1.5
    assert sharper < 2 / epsilon + 4 / epsilon**2
    w = draw(5)
    w = w / w.norm()
    anywhere = draw(20_000, 5, seed=1)
    anywhere = anywhere / anywhere.norm(dim=1, keepdim=True) * torch.linspace(0, 1, 20_000).double()[:, None]
    along = torch.linspace(0, 1, 20_001, dtype=torch.float64)[:, None] * w
    steepest = torch.cat([gradient(points, w, epsilon) for points in (anywhere, along)]).norm(dim=1).max().item()
    assert steepest <= sharper
    if epsilon <= 1e-3:
        assert steepest > 0.9 * sharper


# ---- high dimension: corollary 2


@pytest.mark.parametrize("dim", [8, 64, 512])
def test_the_mean_over_normal_inputs_tends_to_half_the_variance(dim):
    """σ² d / (2 (d - 2)) for ε → 0: with p, m = (w ± x)/√2 independent, yat = (‖p‖² - ‖m‖²)²/(8 ‖m‖²)."""
    sigma = 0.7
    mean = yat(sigma * draw(2000, dim), sigma * draw(2000, dim, seed=1), epsilon=1e-9).mean().item()
    assert mean == pytest.approx(sigma**2 * dim / (2 * (dim - 2)), rel=0.03)


def test_the_mean_needs_no_normal_inputs():
    signs = [draw(2000, 512, seed=seed).sign() * 0.7 for seed in (0, 1)]
    assert yat(*signs).mean().item() == pytest.approx(0.7**2 / 2, rel=0.03)


# ---- distributions: theorems 2 and 3


def test_on_the_simplex_zero_means_disjoint_supports():
    disjoint = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.1, 0.9], [0, 0, 0, 1.0]], dtype=torch.float64)
    matrix = yat(disjoint, disjoint)
    assert torch.equal(matrix == 0, torch.tensor([[False, True, True], [True, False, False], [True, False, False]]))
    overlapping = draw(50, 9).softmax(-1)
    assert (yat(overlapping, overlapping) > 0).all()


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_distribution_is_most_similar_to_itself_only_if_it_is_uniform(epsilon):
    """Theorem 3's value ‖p‖⁴/ε is right; that it is maximal holds on the simplex where p is constant on its support."""
    p = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
    even = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    others = torch.cat([draw(2000, 3).mul(2).softmax(-1), p + torch.tensor([[0.01, 0, -0.01]]).double()])
    for q, is_even in ((p, False), (even, True)):
        value = yat(q, q, epsilon=epsilon).item()
        assert value == pytest.approx((q.square().sum() ** 2 / epsilon).item(), rel=1e-9)
        assert (yat(others, q, epsilon=epsilon).max().item() <= value) is is_even


# ---- symmetry


def test_symmetric_in_its_arguments_and_even_in_both_but_not_in_one():
    """yat(x, -w)/yat(x, w) = (‖x - w‖² + ε)/(‖x + w‖² + ε): only the numerator is even in w (remark 10 has more)."""
    x, w, epsilon = draw(4, 5), draw(3, 5, seed=1), 0.3
    value = yat(x, w, epsilon=epsilon)
    torch.testing.assert_close(yat(w, x, epsilon=epsilon).mT, value, rtol=1e-12, atol=0)
    assert torch.equal(yat(-x, -w, epsilon=epsilon), value)
    minus, plus = ((x[:, None] - sign * w).square().sum(-1) + epsilon for sign in (1, -1))
    torch.testing.assert_close(yat(x, -w, epsilon=epsilon) / value, minus / plus, rtol=1e-10, atol=0)
    assert ((yat(x, -w, epsilon=epsilon) / value - 1).abs() > 0.01).all()


def test_a_constant_must_change_its_sign_with_the_prototype_and_the_point():
    x, w, b = draw(4, 5), draw(3, 5, seed=1), draw(3, seed=2)
    torch.testing.assert_close(yat(-x, -w, b), yat(x, w, b), rtol=1e-12, atol=0)
    assert ((yat(x, -w, -b, 20.0) / yat(x, w, b, 20.0) - 1).abs() > 1e-3).all()


# ---- approximation: theorem 4


@pytest.mark.parametrize("h", [0.1, 1.0, 3.0])
def test_three_units_are_an_inverse_multiquadric(h):
    x, w, b, epsilon = draw(40, 3), draw(2, 3, seed=1), draw(2, seed=2), 0.3
    second = (yat(x, w, b + h, epsilon) - 2 * yat(x, w, b, epsilon) + yat(x, w, b - h, epsilon)) / h**2
    expected = 2 / ((x[:, None] - w).square().sum(-1) + epsilon)
    torch.testing.assert_close(second, expected, rtol=1e-9, atol=1e-10)


def target(x):
    """Continuous, with a kink."""
    return torch.sin(3 * x.sum(-1)) + x[:, 0].abs()


@pytest.mark.parametrize("dim", [1, 2])
def test_combinations_come_close_to_a_continuous_function(dim):
    """The error of a least-squares fit falls with the number of random units, on held-out points too."""
    seen, unseen = torch.rand(2, 3000, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    spread, largest = [], []
    for units in (4, 16, 64, 256):
        w, b = 1.5 * draw(units, dim, seed=1), 2 * draw(units, seed=2)
        fitted = torch.linalg.lstsq(yat(seen, w, b, 0.1), target(seen)[:, None], driver="gelsd").solution[:, 0]
        rest = yat(unseen, w, b, 0.1) @ fitted - target(unseen)
        spread.append(rest.square().mean().sqrt().item())
        largest.append(rest.abs().max().item())
    assert spread == sorted(spread, reverse=True)
    assert largest[-1] < 0.06


def test_without_constants_everything_is_flat_at_the_origin():
    """Theorem 4 needs its b: with b = 0 each unit is 0 at 0, and so is every combination."""
    w = draw(100, 4)
    assert torch.equal(yat(torch.zeros_like(w[:1]), w), torch.zeros(1, 100, dtype=w.dtype))
