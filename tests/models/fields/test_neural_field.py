import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import fields, models
from fredholm.domains import Grid, Points
from tests.refusals import refused

SMALL = models.FieldOperator.Config(
    embed_dim=8, depth=2, num_heads=2, num_seeds=2, head_dim=8, num_frequencies=3, epsilon=1.0
)


def operator(
    frame: fields.Frame, *, pos_dim: int = 2, field: fields.Field | None = None, **settings: Any
) -> models.FieldOperator:
    """A small operator in float64 with noise on all parameters, so that fields have norm 1 and depend on samples."""
    torch.manual_seed(1)
    size = pos_dim * frame.coordinates_per_axis
    field = fields.SIREN(size, 2, width=6, omega_0=5.0) if field is None else field
    op = models.FieldOperator(pos_dim, field, frame, dataclasses.replace(SMALL, **settings)).double()
    with torch.no_grad():
        for parameter in op.blocks.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return op.eval()


def samples(n: int = 11, pos_dim: int = 2, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Values `(batch, n, 2)` at anisotropic positions."""
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(batch, n, pos_dim, generator=generator, dtype=torch.float64) ** 3
    return torch.randn(batch, n, 2, generator=generator, dtype=torch.float64), x * torch.arange(1.0, pos_dim + 1) + 0.1


TURN = torch.linalg.qr(torch.tensor([[1.0, 0.3], [-0.4, 0.9]], dtype=torch.float64))[0]
MOVES = {
    "scaling": (1.7 * torch.eye(2).double(), fields.Isotropic()),
    "axes": (torch.diag(torch.tensor([0.4, 2.3])).double(), fields.Diagonal()),
    "rotation": (1.7 * TURN, fields.Rotational()),
    "averaged rotation": (1.7 * TURN, fields.Rotational(average=True)),
    "linear": (torch.tensor([[1.1, 0.8], [-0.2, 0.6]]).double(), fields.Affine()),
}
SHIFT = torch.tensor([0.3, -3.0], dtype=torch.float64)


def moved_error(op: models.FieldOperator, A: Tensor) -> tuple[float, float]:
    """‖f_{gS}(g x) - f_S(x)‖ / ‖f_S‖, and the root mean square ‖f_S‖."""
    u, x = samples()
    queries = torch.rand(2, 20, 2, generator=torch.Generator().manual_seed(6), dtype=torch.float64) * 2
    A, shift = A.to(u.dtype), SHIFT
    with torch.no_grad():
        before, after = op(u, Points(x))(queries), op(u, Points(x @ A.T + shift))(queries @ A.T + shift)
    return ((after - before).norm() / before.norm()).item(), before.square().mean().sqrt().item()


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("move", MOVES)
def test_fields_are_equivariant(move: str, attention: str) -> None:
    A, frame = MOVES[move]
    error, norm = moved_error(operator(frame, attention=attention), A)
    assert norm > 0.1
    assert error < 1e-12


@pytest.mark.parametrize("move", MOVES)
def test_ablations_and_frames_that_do_not_cover_the_motion_are_not_equivariant(move: str) -> None:
    A, frame = MOVES[move]
    assert moved_error(operator(frame, encoding="absolute"), A)[0] > 1e-3
    assert moved_error(operator(fields.Identity()), A)[0] > 1e-3
    if move not in ("scaling", "axes"):
        assert moved_error(operator(fields.Isotropic()), A)[0] > 1e-3


def test_float32_is_close() -> None:
    u, x = samples()
    queries = torch.rand(2, 20, 2)
    op = operator(fields.Isotropic()).float()
    with torch.no_grad():
        before = op(u.float(), Points(x.float()))(queries)
        after = op(u.float(), Points((1.5 * x + SHIFT).float()))((1.5 * queries + SHIFT).float())
    assert before.dtype == torch.float32
    assert ((after - before).norm() / before.norm()).item() < 1e-5


def test_fields_on_a_torus() -> None:
    op = operator(fields.Periodic())
    u, x = samples()
    x, queries = x / 4, torch.rand(2, 20, 2, dtype=torch.float64)
    with torch.no_grad():
        before = op(u, Points(x, periodic=True))
        after = op(u, Points((x + SHIFT) % 1, periodic=True))((queries + SHIFT) % 1)
    torch.testing.assert_close(after, before(queries), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(before(queries + 1), before(queries), rtol=1e-11, atol=1e-11)


def test_free_frequencies_scale_with_the_samples() -> None:
    field = fields.FreeSinusoidalField(2, 2, num_terms=5)
    op = operator(fields.Isotropic(), field=field)
    u, x = samples()
    waves = []
    with torch.no_grad():
        for points in (x, 1.5 * x + SHIFT):
            placed = op(u, Points(points))
            _, w, b = field.waves(placed.parameters)
            waves.append(placed.coordinates.waves(w, b)[0])
    torch.testing.assert_close(waves[1], waves[0] / 1.5, rtol=1e-11, atol=1e-11)


def test_order_padding_and_batch_mates_change_nothing() -> None:
    op, (u, x) = operator(fields.Rotational()), samples()
    queries = torch.rand(5, 2, dtype=torch.float64)
    expected = op(u, Points(x))(queries)
    order = torch.randperm(11)
    torch.testing.assert_close(op(u[:, order], Points(x[:, order]))(queries), expected, rtol=1e-11, atol=1e-11)
    hole = torch.full((2, 4, 2), torch.nan, dtype=torch.float64)
    u_long, x_long, mask = torch.cat([u, hole], 1), torch.cat([x, hole], 1), torch.arange(15) < 11
    for got in (
        op(u_long, Points(x_long, mask=mask)),
        op(u_long, Points(x_long.nan_to_num(9.0)), key_padding_mask=mask),
    ):
        torch.testing.assert_close(got(queries), expected, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(got.reach, op(u, Points(x)).reach, rtol=1e-11, atol=1e-11)
    # sets of several sizes in one batch
    mask = torch.tensor([[True] * 11, [True] * 7 + [False] * 4])
    batched = op(u, Points(x, mask=mask))(queries)
    torch.testing.assert_close(batched[0], expected[0], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(batched[1:], op(u[1:, :7], Points(x[1:, :7]))(queries), rtol=1e-11, atol=1e-11)


def test_a_weight_of_two_equals_a_repeated_sample() -> None:
    op, (u, x) = operator(fields.Isotropic()), samples()
    queries, weights = torch.rand(5, 2, dtype=torch.float64), torch.ones(11, dtype=torch.float64)
    weights[0] = 2
    twice = op(torch.cat([u, u[:, :1]], 1), Points(torch.cat([x, x[:, :1]], 1)))(queries)
    torch.testing.assert_close(op(u, Points(x, weights))(queries), twice, rtol=1e-11, atol=1e-11)


def test_frame_weights_may_differ_from_those_of_the_samples() -> None:
    op, (u, _) = operator(fields.Rotational()), samples(9)
    grid = torch.cartesian_prod(*(torch.linspace(-1, 1, 3, dtype=torch.float64),) * 2)
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    shown, queries = u[..., 0].square(), torch.rand(5, 2, dtype=torch.float64)
    before = op(u, Points(grid), frame_weights=shown)(queries)
    after = op(u, Points(grid @ quarter.T), frame_weights=shown)(queries @ quarter.T)
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-10)
    even = op(u, Grid(3, 3), frame_weights=shown)
    torch.testing.assert_close(even(queries / 3 + 0.5), before, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize(
    "field",
    [
        fields.SIREN(2, 2, width=6, omega_0=5.0),
        fields.SinusoidalField(2, 2, num_terms=5),
        fields.FreeSinusoidalField(2, 2, num_terms=5),
    ],
    ids=lambda field: type(field).__name__,
)
def test_every_parameter_and_input_has_a_gradient(field: fields.Field, attention: str) -> None:
    """At initialisation, end to end: the values of the field at queries depend on everything."""
    op = models.FieldOperator(2, field, fields.Rotational(), dataclasses.replace(SMALL, attention=attention)).double()
    u, x = (part.requires_grad_() for part in samples())
    weights = torch.rand(2, 11, dtype=torch.float64, requires_grad=True)
    queries = torch.rand(2, 6, 2, dtype=torch.float64)
    op(u, Points(x, weights))(queries).square().sum().backward()
    named = dict(op.named_parameters()) | {"u": u, "x": x, "weights": weights}
    for name, parameter in named.items():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert parameter.grad.abs().max() > 1e-12, name


def test_gradcheck_through_the_frame() -> None:
    op, (u, x) = operator(fields.Affine()), samples(6, batch=1)
    queries = torch.rand(1, 3, 2, dtype=torch.float64)

    def values(u: Tensor, x: Tensor, queries: Tensor) -> Tensor:
        return op(u, Points(x))(queries)

    inputs = tuple(part.requires_grad_() for part in (u, x, queries))
    assert torch.autograd.gradcheck(values, inputs, fast_mode=True)


def test_queries_far_outside_are_flagged() -> None:
    op, (u, x) = operator(fields.Isotropic()), samples()
    placed = op(u, Points(x))
    furthest = (x - x.mean(1, keepdim=True)).norm(dim=-1).amax(1)
    out = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for factor, far in ((1.49, False), (1.51, True), (1e6, True)):
        at = x.mean(1, keepdim=True) + factor * furthest[:, None, None] * out
        found = placed.sample(at)
        assert found.is_far.tolist() == [[far], [far]]
        assert bool(found.values.isfinite().all())


@pytest.mark.parametrize(("n", "message"), [(0, "at one place"), (1, "at one place"), (2, "ambiguous signs")])
def test_few_samples_give_a_warning_and_finite_values(n: int, message: str) -> None:
    op, (u, x) = operator(fields.Rotational()), samples(n)
    with pytest.warns(RuntimeWarning, match=message) as caught:
        placed = op(u.requires_grad_(), Points(x.requires_grad_()))
    assert len(caught) == 1
    values = placed(torch.rand(4, 2, dtype=torch.float64))
    assert bool(values.isfinite().all())
    values.sum().backward()
    for part in (u, x):
        assert part.grad is not None
        assert bool(part.grad.isfinite().all())


@pytest.mark.long
def test_the_model_compiles_to_one_graph() -> None:
    op, (u, x) = operator(fields.Rotational(average=True), depth=1), samples()
    queries = torch.rand(2, 3, 2, dtype=torch.float64)

    def values(u: Tensor, x: Tensor, queries: Tensor) -> Tensor:
        return op(u, Points(x))(queries)

    compiled = torch.compile(values, fullgraph=True, backend="aot_eager")
    for inputs in ((u, x, queries), (u, 2 * x, queries + 1)):
        torch.testing.assert_close(compiled(*inputs), values(*inputs), rtol=1e-10, atol=1e-10)
    torch.compiler.reset()


def test_autocast_keeps_the_field_in_float32() -> None:
    op, (u, x) = operator(fields.Isotropic()).float(), samples()
    u, x, queries = u.float(), x.float(), torch.rand(5, 2)
    expected = op(u, Points(x))(queries)
    with torch.autocast("cpu", torch.bfloat16):
        got = op(u, Points(x))(queries)
    assert got.dtype == torch.float32
    assert ((got - expected).norm() / expected.norm()).item() < 0.1


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_bfloat16_weights_lose_precision_but_not_equivariance(attention: str) -> None:
    exact, (u, x) = operator(fields.Rotational(), attention=attention), samples()
    queries = torch.rand(2, 20, 2, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    expected = exact(u, Points(x))(queries)
    op = operator(fields.Rotational(), attention=attention).bfloat16()
    found = op(u.bfloat16(), Points(x))(queries)
    assert 0 < ((found - expected).norm() / expected.norm()).item() < 0.1
    turned = op(u.bfloat16(), Points(x @ TURN.T + SHIFT))(queries @ TURN.T + SHIFT)
    assert ((turned - found).norm() / found.norm()).item() < 1e-2
    found.square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in op.parameters())


def test_samples_beyond_the_precision_of_their_frame_are_refused_unless_masked() -> None:
    op, (u, x) = operator(fields.Identity()), samples()
    x[1, 3, 0] = 5e12
    with refused(ValueError, "models.FieldOperator: samples lie 5.0e+12 sizes", "fields.Isotropic"):
        op(u, Points(x))
    exists = torch.ones(2, 11, dtype=torch.bool)
    exists[1, 3] = False
    assert bool(op(u, Points(x, mask=exists))(torch.rand(4, 2)).isfinite().all())
    near = 1 + 1e-13 * x.clamp(max=9.0)  # the masked position, stored as 0, is 10^13 sizes away
    assert bool(operator(fields.Isotropic())(u, Points(near, mask=exists))(near).isfinite().all())
    large = 1e30 * x.clamp(max=9.0)
    assert bool(operator(fields.Isotropic())(u, Points(large))(large).isfinite().all())


def test_bad_arguments_are_refused() -> None:
    op, (u, x) = operator(fields.Isotropic()), samples()
    with refused(ValueError, "3 coordinates", "built for 2"):
        op(u, Points(torch.rand(2, 11, 3)))
    with refused(ValueError, "(batch, samples, 2)", "(2, 11, 1)"):
        op(u[..., :1], Points(x))
    with refused(ValueError, "(2, 11, 2)", "7 points"):
        op(u, Points(x[:, :7]))
    with refused(TypeError, "fredholm domain", "Tensor"):
        op(u, x)
    broken = u.clone()
    broken[0, 0] = math.nan
    with refused(ValueError, "u holds NaN"):
        op(broken, Points(x))
    with refused(ValueError, "pos holds NaN"):
        op(u, Points(broken))
    with refused(ValueError, "weighs pairs"):
        op(u, Points(x).weigh_pairs(torch.zeros(11, 11)))
    with refused(ValueError, "makes 4 coordinates of pos_dim 2", "takes 2"):
        models.FieldOperator(2, fields.SIREN(2), fields.Periodic())
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"depth": 0}, ["depth", "got 0"]),
        ({"sigma": 0.0}, ["sigma", "got 0.0"]),
        ({"encoding": "none"}, ["relative", "'none'"]),
        (
            {"attention": "linear", "temperature": 1.0},
            ["temperature=1.0 has no effect", "leave it out"],
        ),
    ]
    for settings, message in cases:
        with refused(ValueError, *message):
            dataclasses.replace(SMALL, **settings)


@pytest.mark.slow
def test_a_short_training_learns_fields() -> None:
    """Waves from 20 samples each: half of the error of the mean is gone after 60 steps."""
    torch.manual_seed(0)
    field = fields.FreeSinusoidalField(1, 1, num_terms=6, sigma=2.0)
    op = models.FieldOperator(1, field, fields.Isotropic(), dataclasses.replace(SMALL, embed_dim=16, head_dim=32))
    optimiser = torch.optim.Adam(op.parameters(), lr=3e-3)
    loss = torch.tensor(math.inf)
    for _ in range(60):
        x, phase = torch.rand(16, 20, 1), 2 * math.pi * torch.rand(16, 1, 1)
        y = torch.sin(4 * x + phase)
        loss = (op(y, Points(x))(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.25


def test_input_and_output_functions_may_differ() -> None:
    field = fields.SIREN(2, 2, width=6)
    op = models.FieldOperator(2, field, fields.Isotropic(), SMALL, in_dim=3)
    pos = torch.rand(2, 7, 2)
    u = torch.randn(2, 7, 3, requires_grad=True)
    values = op(u, Points(pos))(torch.rand(5, 2))
    assert values.shape == (2, 5, 2)
    (gradient,) = torch.autograd.grad(values.square().sum(), u)
    assert bool((gradient != 0).any(1).all())
    with refused(ValueError, "u must be (batch, samples, 3)"):
        op(u[..., :2], Points(pos))
    with refused(ValueError, "in_dim must be at least 1; got 0"):
        models.FieldOperator(2, field, fields.Isotropic(), in_dim=0)
