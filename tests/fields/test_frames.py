import itertools
import warnings

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fredholm import fields
from fredholm.domains import Points

SEEDS = st.integers(0, 10_000)
FEW = settings(max_examples=8, suppress_health_check=[HealthCheck.filter_too_much])


def cloud(generator: torch.Generator, dim: int, n: int = 11) -> Tensor:
    """Two anisotropic sets of samples, `(2, n, dim)`."""
    noise = torch.rand(2, n, dim, generator=generator, dtype=torch.float64) ** 3
    return noise * torch.arange(1, dim + 1, dtype=torch.float64) + 0.1


def orthogonal(generator: torch.Generator, dim: int, *, proper: bool) -> Tensor:
    Q = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
    if proper:
        Q[:, 0] *= torch.sign(torch.linalg.det(Q))
    return Q


def matrix_of(group: str, generator: torch.Generator, dim: int) -> Tensor:
    """A random element of the group that a frame covers."""
    identity = torch.eye(dim, dtype=torch.float64)
    sizes = torch.rand(dim, generator=generator, dtype=torch.float64) * 2 + 0.5
    match group:
        case "translations":
            return identity
        case "scalings":
            return sizes[0] * identity
        case "axes":
            return torch.diag(sizes)
        case "rotations":
            return sizes[0] * orthogonal(generator, dim, proper=True)
        case "reflections":
            return sizes[0] * orthogonal(generator, dim, proper=False)
    turned = orthogonal(generator, dim, proper=group == "linear, det > 0")
    return turned @ torch.diag(sizes) @ orthogonal(generator, dim, proper=True)


def quiet(frame: fields.Frame, domain: Points) -> fields.Coordinates:
    """The coordinates of sets that give no warning; hypothesis tries other sets otherwise."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = frame.coordinates(domain)
    assume(not caught)
    return found


# an eigenvalue gap and a skewness that leave 12 digits
CLEAR = 0.01
COVERED = [
    (fields.Isotropic(), "scalings"),
    (fields.Diagonal(), "axes"),
    (fields.Rotational(tolerance=CLEAR), "reflections"),
    (fields.Rotational(proper=True, tolerance=CLEAR), "rotations"),
    (fields.Affine(tolerance=CLEAR), "linear"),
    (fields.Affine(proper=True, tolerance=CLEAR), "linear, det > 0"),
]


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(("frame", "group"), COVERED, ids=[f"{f} {g}" for f, g in COVERED])
@FEW
@given(seed=SEEDS)
def test_coordinates_are_invariant_to_the_group_that_a_frame_covers(
    frame: fields.Frame, group: str, dim: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, A = cloud(generator, dim), matrix_of(group, generator, dim)
    b = torch.randn(dim, generator=generator, dtype=torch.float64)
    weights = torch.rand(2, 11, generator=generator, dtype=torch.float64)
    mask = torch.rand(2, 11, generator=generator) > 0.2
    before = quiet(frame, Points(x, weights, mask))
    after = quiet(frame, Points(x @ A.T + b, weights, mask))
    z, moved = before.normalise(x), after.normalise(x @ A.T + b)
    torch.testing.assert_close(moved, z, rtol=1e-12, atol=1e-12)
    # ρ(g)(μ, M) = (A μ + b, A M), theorem 7
    torch.testing.assert_close(after.origin, before.origin @ A.T + b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after.matrix, A @ before.matrix, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(before.matrix @ before.inverse, torch.eye(dim).double().expand_as(before.matrix))


@FEW
@given(seed=SEEDS)
def test_torus_coordinates_are_invariant_to_translations(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = cloud(generator, 2) / 3
    b = torch.randn(2, generator=generator, dtype=torch.float64)
    before, after = (quiet(fields.Periodic(tolerance=CLEAR), Points(p, periodic=True)) for p in (x, (x + b) % 1))
    torch.testing.assert_close(after.normalise((x + b) % 1), before.normalise(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("dim", "proper"), [(1, False), (2, True), (3, False), (3, True)])
@pytest.mark.parametrize("kind", [fields.Rotational, fields.Affine])
@FEW
@given(seed=SEEDS)
def test_averaged_frames_are_permuted(kind: type, dim: int, proper: bool, seed: int) -> None:
    """The set of all frames moves with the samples, symmetric or not."""
    frame = kind(average=True, proper=proper, tolerance=CLEAR)
    generator = torch.Generator().manual_seed(seed)
    half = cloud(generator, dim)
    x = torch.cat([half, -half], dim=1)
    R = orthogonal(generator, dim, proper=proper)
    before, after = quiet(frame, Points(x)), quiet(frame, Points(x @ R.T))
    z, moved = before.normalise(x), after.normalise(x @ R.T)
    assert z.shape[1] == 2 ** (dim - 1 if proper else dim)
    if proper:
        assert bool((torch.linalg.det(before.matrix) > 0).all())
    for entry in range(2):
        gaps = (moved[entry][:, None] - z[entry][None]).abs().amax((-1, -2))
        assert gaps.amin(0).max() < 1e-12
        assert gaps.amin(1).max() < 1e-12
        assert len(set(gaps.argmin(0).tolist())) == z.shape[1]


FRAMES = [
    fields.Identity(),
    fields.Isotropic(),
    fields.Diagonal(),
    fields.Rotational(),
    fields.Rotational(average=True),
    fields.Affine(),
    fields.Periodic(),
]


@pytest.mark.parametrize("frame", FRAMES, ids=str)
def test_order_masks_and_weights(frame: fields.Frame) -> None:
    x = cloud(torch.Generator().manual_seed(0), 2, n=9) / 2
    weights = torch.rand(2, 9, dtype=torch.float64)
    queries = torch.rand(2, 4, 2, dtype=torch.float64)
    expected = frame.coordinates(Points(x, weights)).normalise(queries)
    order = torch.randperm(9)
    shuffled = frame.coordinates(Points(x[:, order], weights[:, order]))
    torch.testing.assert_close(shuffled.normalise(queries), expected, rtol=1e-11, atol=1e-11)
    padded = torch.cat([x, torch.full((2, 3, 2), torch.nan, dtype=torch.float64)], dim=1)
    heavy = torch.cat([7 * weights, torch.ones(2, 3, dtype=torch.float64)], dim=1)
    mask = torch.arange(12).expand(2, -1) < 9
    masked = frame.coordinates(Points(padded, heavy, mask))
    torch.testing.assert_close(masked.normalise(queries), expected, rtol=1e-11, atol=1e-11)
    light = frame.coordinates(Points(padded.nan_to_num(50.0), torch.where(mask, heavy, 0.0)))
    torch.testing.assert_close(light.normalise(queries), expected, rtol=1e-11, atol=1e-11)
    single = frame.coordinates(Points(x[1], weights[1]))
    torch.testing.assert_close(single.normalise(queries[1:]), expected[1:], rtol=1e-11, atol=1e-11)
    # a weight of two is a repeated sample
    doubled = frame.coordinates(Points(torch.cat([x, x[:, :1]], 1), torch.cat([weights, weights[:, :1]], 1)))
    more = weights.clone()
    more[:, 0] *= 2
    torch.testing.assert_close(
        doubled.normalise(queries), frame.coordinates(Points(x, more)).normalise(queries), rtol=1e-11, atol=1e-11
    )


def test_frames_follow_their_formulas() -> None:
    x = cloud(torch.Generator().manual_seed(0), 2)
    centred = x - x.mean(1, keepdim=True)
    isotropic = fields.Isotropic().coordinates(Points(x)).normalise(x)[:, 0]
    torch.testing.assert_close(isotropic, centred / centred.square().sum(-1).mean(-1).sqrt()[:, None, None])
    diagonal = fields.Diagonal().coordinates(Points(x)).normalise(x)[:, 0]
    torch.testing.assert_close(diagonal, centred / x.std(1, correction=0)[:, None])
    z = fields.Rotational().coordinates(Points(x)).normalise(x)[:, 0]
    C = z.mT @ z / 11
    torch.testing.assert_close(C[:, 0, 1], torch.zeros(2).double())
    assert bool((C[:, 0, 0] < C[:, 1, 1]).all())
    torch.testing.assert_close(C[:, 0, 0] + C[:, 1, 1], torch.ones(2).double())
    assert bool((z.pow(3).sum(1) > 0).all())
    y = fields.Affine().coordinates(Points(x)).normalise(x)[:, 0]
    torch.testing.assert_close(y.mT @ y / 11, torch.eye(2).double().expand(2, -1, -1))
    T = (y.square().sum(-1, keepdim=True) * y).mT @ y
    torch.testing.assert_close(T[:, 0, 1], torch.zeros(2).double(), atol=1e-10, rtol=0)


CORNERS = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=2)), dtype=torch.float64)
LINE = torch.stack([torch.linspace(0, 1, 7) ** 2, torch.linspace(0, 1, 7) ** 2], dim=-1).double()
DEGENERATE = [
    (fields.Isotropic(), torch.ones(1, 2), "samples at one place (size 1 taken) in 1 of 1 sets"),
    (fields.Isotropic(), torch.full((5, 2), 0.1), "samples at one place"),
    (fields.Isotropic(), torch.ones(0, 2), "samples at one place"),
    (fields.Diagonal(), torch.full((5, 2), 0.1), "samples at one place"),
    (fields.Diagonal(), LINE * torch.tensor([1.0, 0.0]), "no spread along an axis"),
    (fields.Rotational(), torch.ones(1, 2), "samples at one place"),
    (fields.Rotational(), CORNERS, "equal principal variances"),
    (fields.Rotational(), CORNERS * torch.tensor([2.0, 1.0]), "ambiguous signs"),
    (fields.Rotational(), LINE, "ambiguous signs"),
    (fields.Rotational(average=True), CORNERS, "equal principal variances"),
    (fields.Affine(), torch.full((5, 2), 0.1), "samples at one place"),
    (fields.Affine(), LINE, "in a line or plane"),
    (fields.Affine(), CORNERS, "equal fourth moments"),
    (fields.Periodic(), (CORNERS + 1) / 4, "spread evenly"),
]


@pytest.mark.parametrize(("frame", "x", "fragment"), DEGENERATE, ids=[f"{f} {t}" for f, _, t in DEGENERATE])
def test_degenerate_sets_have_a_fallback_and_one_warning(frame: fields.Frame, x: Tensor, fragment: str) -> None:
    x = x.double().requires_grad_()
    with pytest.warns(RuntimeWarning, match="fields.") as caught:
        found = frame.coordinates(Points(x))
    assert len(caught) == 1
    assert fragment in str(caught[0].message)
    queries = torch.randn(1, 4, 2, dtype=torch.float64)
    z = found.normalise(queries)
    assert bool(z.isfinite().all())
    if x.shape[0]:
        (grad,) = torch.autograd.grad(z.pow(3).sum(), x)
        assert bool(grad.isfinite().all())
    eye = torch.eye(2, dtype=torch.float64)
    assert float((found.matrix @ found.inverse - eye).detach().abs().max()) < 1e-12


def test_one_warning_counts_all_degenerate_sets() -> None:
    sets = torch.stack([cloud(torch.Generator().manual_seed(0), 2, n=4)[0], CORNERS, torch.ones(4, 2).double()])
    with pytest.warns(RuntimeWarning) as caught:
        found = fields.Rotational().coordinates(Points(sets))
    (message,) = (str(w.message) for w in caught)
    assert "at one place (size 1 and no rotation taken) in 1 of 3 sets" in message
    assert "equal principal variances (no rotation taken) in 1 of 3 sets" in message
    torch.testing.assert_close(found.matrix[1, 0], 2**0.5 * torch.eye(2).double())
    torch.testing.assert_close(found.matrix[2, 0], torch.eye(2).double())


def test_fallbacks_keep_the_stated_invariance() -> None:
    turn = orthogonal(torch.Generator().manual_seed(1), 2, proper=True)
    line = LINE - 0.2
    with pytest.warns(RuntimeWarning, match="ambiguous signs"):
        before, after = (fields.Rotational().coordinates(Points(p)) for p in (line, line @ turn.T))
    queries = torch.randn(1, 4, 2, dtype=torch.float64)
    torch.testing.assert_close(after.normalise(queries @ turn.T), before.normalise(queries), rtol=1e-11, atol=1e-11)
    lower = torch.tensor([[1.5, 0.0], [-0.7, 0.4]], dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match="triangular"):
        before, after = (fields.Affine().coordinates(Points(p)) for p in (CORNERS, CORNERS @ lower.T))
    torch.testing.assert_close(after.normalise(queries @ lower.T), before.normalise(queries), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("frame", FRAMES, ids=str)
def test_gradients_flow_through_the_frame(frame: fields.Frame) -> None:
    x = (cloud(torch.Generator().manual_seed(0), 2, n=6) / 2).requires_grad_()
    weights = torch.rand(2, 6, dtype=torch.float64).add(0.1).requires_grad_()
    queries = torch.rand(2, 3, 2, dtype=torch.float64, requires_grad=True)

    def normalised(x: Tensor, weights: Tensor, queries: Tensor) -> Tensor:
        return frame.coordinates(Points(x, weights)).normalise(queries)

    assert torch.autograd.gradcheck(normalised, (x, weights, queries), fast_mode=True)


def test_weights_break_the_symmetry_of_a_grid() -> None:
    """The frame follows the content of an image on a square grid, whose positions alone have no axes."""
    grid = torch.cartesian_prod(*(torch.linspace(-1, 1, 5, dtype=torch.float64),) * 2)
    shown = torch.rand(25, dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match="equal principal variances"):
        fields.Rotational().coordinates(Points(grid))
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    before, after = (fields.Rotational().coordinates(Points(p, shown)) for p in (grid, grid @ quarter.T))
    torch.testing.assert_close(after.normalise((grid @ quarter.T)[None]), before.normalise(grid[None]))


def test_positions_in_float32_far_from_the_origin() -> None:
    near = cloud(torch.Generator().manual_seed(0), 2).float()
    far = (near.double() + 1000).float()
    exact = far.double() - 1000
    got = fields.Isotropic().coordinates(Points(far)).normalise(far)
    torch.testing.assert_close(got, fields.Isotropic().coordinates(Points(exact)).normalise(exact))
