"""Regression between functions, against the literal formulas and refits without the left-out examples."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fredholm import from_pretrained
from fredholm.domains import Grid, Points, UnitGrid
from fredholm.encoders import Function, FunctionBatch
from fredholm.encoders.function import interpolate
from fredholm.models import BlendedOperator, FunctionRegression, NeuralOperator, SpectralConfig
from fredholm.models.fields import function_regression
from fredholm.models.fields.function_regression import AS_GOOD, LENGTHS, PENALTIES, interpolated
from tests.refusals import refused

LINE = UnitGrid((7,), (1 / 7,), (0.5 / 7,))
N = 12


def on_line(**other: object) -> FunctionRegression:
    sizes = {"given": LINE, "target": LINE, "pos_dim": 1, "num_channels": 2, "num_outputs": 3, "num_functions": N}
    return FunctionRegression(FunctionRegression.Config(**(sizes | other)))  # pyright: ignore[reportArgumentType]


def pairs(bend: float, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Functions of two channels and their images under a map with more or less curvature."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(N, 3, generator=generator).double()
    given = (coarse @ torch.randn(3, 14, generator=generator).double()).unflatten(1, (7, 2))
    found = ((coarse + bend * coarse.square()) @ torch.randn(3, 21, generator=generator).double()).unflatten(1, (7, 3))
    return given.float().double(), found + noise * torch.randn(found.shape, generator=generator).double()


def kernel(a: Tensor, b: Tensor, rate: float) -> Tensor:
    """κ between functions `(p, D)` and `(q, D)`, pair by pair."""
    rows = [
        [float(p @ q / len(p) if rate == 0 else (1 + rate**2 * (p - q).square().mean()) ** -0.5) for q in b] for p in a
    ]
    return torch.tensor(rows, dtype=torch.float64).view(len(a), len(b))


def refitted(x: Tensor, y: Tensor, query: Tensor, rate: float, penalty: float) -> Tensor:
    """f(query), by the formula at the top of function_regression.py, fitted to functions `(n, D)` and `(n, E)`."""
    eye = torch.eye(len(x), dtype=torch.float64)
    off = eye - 1 / len(x)
    gram = kernel(x, x, rate)
    dual = off @ torch.linalg.solve(off @ gram @ off + penalty * eye, off @ y)
    return y.mean(0) + (kernel(query, x, rate) - gram.mean(0)) @ dual


@pytest.mark.parametrize("bend", [0.0, 0.5])
def test_predictions_follow_the_literal_formula(bend: float) -> None:
    given, got = pairs(bend)
    model = on_line()
    model.fit(given, got)
    assert (float(model.rate) > 0) == (bend > 0)
    x, y = given.flatten(1), got.flatten(1)
    query = torch.cat([x[:2], x[2:5] + 0.3])
    target = refitted(x, y, query, float(model.rate), float(model.penalty))
    found = model(FunctionBatch(query.unflatten(1, (7, 2)), Grid(7)))
    torch.testing.assert_close(found.flatten(1), target, rtol=1e-7, atol=1e-7)


def check_choice(given: Tensor, expected: Tensor, groups: Tensor | None) -> FunctionRegression:
    """Fits a regression and checks that no other ℓ and λ have smaller errors, by refits without each group."""
    model = on_line()
    model.fit(given, expected, groups=groups)
    x, y = given.flatten(1), expected.flatten(1)
    parts = torch.arange(N) if groups is None else groups
    apart = torch.stack([(a - b).square().mean() for a in x for b in x])
    unit = float(apart[apart > 0].median()) ** 0.5
    off = torch.eye(N, dtype=torch.float64) - 1 / N

    def error(rate: float, penalty: float) -> float:
        left = [
            y[parts == part] - refitted(x[parts != part], y[parts != part], x[parts == part], rate, penalty)
            for part in parts.unique()
        ]
        return float(torch.cat(left).square().mean())

    found = dict[tuple[float, float], float]()
    for rate in (0.0, *(1 / (multiple * unit) for multiple in LENGTHS)):
        scale = float((off @ kernel(x, x, rate) @ off).trace()) / N
        for multiple in PENALTIES[10::4].tolist():  # a sample of them, since refits are slow
            found[rate, multiple * scale] = error(rate, multiple * scale)
    least, own = min(found.values()), error(float(model.rate), float(model.penalty))
    assert own <= least * AS_GOOD
    means = [y[parts == part] - y[parts != part].mean(0) for part in parts.unique()]
    plain = float(torch.cat(means).square().mean())
    assert float(model.error) == pytest.approx((own / plain) ** 0.5, rel=1e-6)
    return model


@pytest.mark.parametrize("groups", [None, torch.tensor([0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 4])])
@pytest.mark.parametrize("bend", [0.0, 0.5])
def test_length_and_penalty_have_the_smallest_errors_of_refits(bend: float, groups: Tensor | None) -> None:
    check_choice(*pairs(bend), groups)


def test_with_groups_length_and_penalty_are_chosen_by_leaving_out_both_twins() -> None:
    generator = torch.Generator().manual_seed(0)
    size = torch.randn(N // 2, 1, 1, generator=generator).double()
    noise = torch.randn(N // 2, 7, 3, generator=generator).double()
    given = (size * torch.ones(7, 2)).repeat(2, 1, 1).float().double()
    found = (size + 0.5 * noise).repeat(2, 1, 1)  # twins share their noise, which a short length could reproduce
    together = check_choice(given, found, torch.arange(N // 2).repeat(2))
    apart = on_line()
    apart.fit(given, found)
    assert float(apart.rate) > float(together.rate)
    assert float(apart.error) < 0.1 < float(together.error)


def test_a_linear_operator_is_recovered_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(14, 21, generator=generator).double()
    given = torch.randn(40, 7, 2, generator=generator).double()
    got = (given.flatten(1) @ matrix + 1).unflatten(1, (7, 3))
    model = on_line(num_functions=40)
    model.fit(given[:30], got[:30])
    assert float(model.rate) == 0
    model.fit(given, got.flip(0))
    model.fit(given[:30], got[:30])  # nothing of the earlier fit is left
    assert not bool(model.functions[30:].any() or model.dual[30:].any()), "there are fewer functions than num_functions"
    found = model(FunctionBatch(given[30:], Grid(7)))
    torch.testing.assert_close(found, got[30:], rtol=1e-5, atol=1e-5)
    k = model.linear_kernel.flatten(2).flatten(0, 1)
    torch.testing.assert_close(k / 7, matrix.T, rtol=1e-4, atol=1e-4)


def test_constant_functions_are_predicted_by_the_mean() -> None:
    found = torch.full((5, 7, 3), 2.0)
    model = on_line()
    model.fit(torch.ones(5, 7, 2), found)
    assert float(model.error) == 0
    assert torch.equal(model(FunctionBatch(torch.randn(3, 7, 2), Grid(7))), found[:3])


def test_the_precision_of_weights_is_kept_when_read_in_16_bits(tmp_path: Path) -> None:
    given, found = pairs(0.5, noise=0.0)
    model = on_line()
    model.fit(given, found)
    model.save_pretrained(tmp_path / "saved")
    read = from_pretrained(tmp_path / "saved", dtype=torch.bfloat16)
    inputs = FunctionBatch(given, Grid(7))
    torch.testing.assert_close(read(inputs), model(inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_predictions_have_the_dtype_and_precision_of_the_values(dtype: torch.dtype) -> None:
    given, got = pairs(0.0)
    model = on_line()
    model.fit(given, got)
    inputs = FunctionBatch(given.to(dtype), Grid(7))
    with torch.autocast("cpu", torch.bfloat16):
        found = model(inputs)
    assert found.dtype == dtype
    target = model(FunctionBatch(given.to(dtype).double(), Grid(7)))
    torch.testing.assert_close(found, target.to(dtype))
    assert model(FunctionBatch(given[:0].to(dtype), Grid(7)), Grid(9)).shape == (0, 9, 3)


def test_if_the_sample_is_of_one_group_functions_are_left_out_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_regression, "CHOSEN", 4)
    given, found = pairs(0.5)
    groups = torch.zeros(N, dtype=torch.long)
    groups[-1] = 1
    rates = list[float]()
    for known in (None, groups):
        torch.manual_seed(0)
        model = on_line()
        model.fit(given, found, groups=known)
        rates.append(float(model.rate))
    assert N - 1 not in torch.randperm(N, generator=torch.Generator().manual_seed(0))[:4]
    assert rates[0] == rates[1]


def test_functions_of_only_two_kinds_have_a_length() -> None:
    kind = torch.arange(N) % 4 == 0
    given = kind[:, None, None] * torch.ones(N, 7, 2)
    found = kind[:, None, None] * torch.ones(N, 7, 3)
    model = on_line()
    model.fit(given, found)
    torch.testing.assert_close(model(FunctionBatch(given, Grid(7))), found)


def test_the_unit_of_length_is_the_distance_between_different_functions() -> None:
    """Most functions are equal, but rounding gives them a distance: with 400 values 1e-15 of their squares remain."""
    size = torch.cat([torch.full((40,), 0.3), torch.linspace(-2, 2, 14)])[:, None, None]
    given = size * torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    model = on_line(given=400, num_channels=1, num_outputs=1, num_functions=54)
    model.fit(given, torch.sin(2 * size).expand(-1, 7, 1), given_pos=torch.rand(400, 1))
    assert float(model.rate) < 10
    assert float(model.error) < 0.01


def test_inputs_and_predictions_may_be_at_other_points() -> None:
    given, found = pairs(0.3)
    model = on_line()
    model.fit(given, found)
    inputs = FunctionBatch(given[:3], Grid(7))
    own = model(inputs)
    fine = Grid(21)
    torch.testing.assert_close(model(inputs, fine)[:, 1::3], own)
    finer = FunctionBatch(interpolated(inputs, fine), fine)
    torch.testing.assert_close(model(finer, Grid(7)), own)
    assert model(finer).shape == (3, 21, 3)


def test_points_shared_by_all_functions_need_no_grid() -> None:
    generator = torch.Generator().manual_seed(0)
    given_pos, target_pos = (torch.rand(n, 2, generator=generator).double() for n in (9, 4))
    given = torch.randn(20, 9, 1, generator=generator).double()
    got = (given.flatten(1) @ torch.randn(9, 4, generator=generator).double())[..., None]
    model = on_line(given=9, target=4, pos_dim=2, num_channels=1, num_outputs=1, num_functions=20)
    model.fit(given, got, given_pos=given_pos, target_pos=target_pos)
    found = model(FunctionBatch(given, Points(given_pos)), Points(target_pos))
    torch.testing.assert_close(found, got, rtol=1e-6, atol=1e-6)
    order = torch.randperm(9, generator=generator)
    moved = model(FunctionBatch(given[:, order], Points(given_pos[order])), Points(target_pos))
    torch.testing.assert_close(moved, got, rtol=1e-4, atol=1e-4)


def test_misfits_are_refused() -> None:
    given, found = pairs(0.0)
    model = on_line()
    with refused(ValueError, "expected given (n, 7, 2) of 2 to 12 functions; got (12, 6, 2)"):
        model.fit(given[:, :6], found)
    with refused(ValueError, "expected target (n, 7, 3) of 2 to 12 functions; got (12, 7, 2)"):
        model.fit(given, found[..., :2])
    with refused(ValueError, "of 2 to 12 functions; got (1, 7, 2)"):
        model.fit(given[:1], found[:1])
    with refused(ValueError, "target holds NaN or infinite values; leave such functions out"):
        model.fit(given, found.where(found < found.max(), torch.nan))
    with refused(ValueError, "groups are (12,), 1 of them; expected (12,), at least 2"):
        model.fit(given, found, groups=torch.zeros(N, dtype=torch.long))
    with refused(ValueError, "expected given_pos not to be given"):
        model.fit(given, found, given_pos=torch.zeros(7, 1))
    with refused(ValueError, "target is 7; expected target_pos of 7 points"):
        on_line(target=7).fit(given, found)
    with refused(ValueError, "expected values (batch, points, 2) at points of 1 coordinates; got (3, 7, 1)"):
        model(FunctionBatch(torch.zeros(3, 7, 1), Grid(7)))
    model.fit(*pairs(0.5))
    with refused(ValueError, "no linear operator and has no k(x, y)"):
        _ = model.linear_kernel
    with refused(ValueError, "pos_dim is 2, but given is a grid of 1 axes; make them agree"):
        on_line(pos_dim=2)


def cubic(pos: Tensor) -> Tensor:
    """A polynomial of degree 3 along each axis."""
    return (1 + pos - 2 * pos**2 + 3 * pos**3).prod(-1, keepdim=True)


@pytest.mark.parametrize("shape", [(4,), (9,), (5, 6), (4, 5, 4)])
def test_interpolation_on_a_grid_is_exact_for_cubics(shape: tuple[int, ...]) -> None:
    grid = Grid(*shape)
    places = torch.rand(11, len(shape), generator=torch.Generator().manual_seed(0)).double()
    values = cubic(grid.pos)[None] * torch.tensor([1.0, -2.0]).double()[:, None, None]
    found = interpolated(FunctionBatch(values, grid), Points(places))
    torch.testing.assert_close(found[1], -2 * cubic(places))
    each = torch.stack([places, places.flip(0)])
    torch.testing.assert_close(interpolated(FunctionBatch(values, grid), Points(each))[1], -2 * cubic(each[1]))


def test_interpolation_ignores_masked_points() -> None:
    exists = torch.tensor([True, True, False, True, True, True])
    grid = Grid(6, mask=exists)
    values = torch.where(exists, grid.pos[:, 0], torch.inf)[None, :, None]
    found = interpolated(FunctionBatch(values, grid), Points(torch.tensor([[0.4], [0.9]])))
    torch.testing.assert_close(found, interpolate(FunctionBatch(values, grid), Points(torch.tensor([[0.4], [0.9]]))))


def test_interpolation_between_few_points_and_extrapolation() -> None:
    one = interpolated(FunctionBatch(torch.tensor([[[3.0]]]), Grid(1)), Points(torch.tensor([[0.1], [5.0]])))
    assert one.flatten().tolist() == [3.0, 3.0]
    line = FunctionBatch(Grid(2).pos[None].float(), Grid(2))
    found = interpolated(line, Points(torch.tensor([[0.5], [1.0], [1.25], [7.0], [-9.0]])))
    torch.testing.assert_close(found.flatten(), torch.tensor([0.5, 1.0, 1.25, 1.25, -0.25]))


def test_interpolation_wraps_around_a_torus() -> None:
    grid = Grid(64, periodic=True)
    places = torch.tensor([[0.001], [0.999], [0.4]]).double()
    found = interpolated(FunctionBatch((2 * torch.pi * grid.pos).sin()[None], grid), Points(places, periodic=True))
    torch.testing.assert_close(found[0], (2 * torch.pi * places).sin(), rtol=1e-4, atol=1e-4)


def test_predictions_have_gradients_in_values_and_positions() -> None:
    given, found = pairs(0.5)
    model = on_line()
    model.fit(given, found)
    places = torch.tensor([[0.22], [0.61]], dtype=torch.float64, requires_grad=True)
    values = given[:2].clone().requires_grad_()
    torch.autograd.gradcheck(
        lambda u, x: model(FunctionBatch(u, Grid(7)), Points(x)), (values, places), eps=1e-4, atol=1e-4
    )


def blended() -> tuple[BlendedOperator, FunctionBatch]:
    torch.manual_seed(0)
    functions = Function(Function.Config(num_channels=2, pos_dim=1, num_frequencies=2), 4)
    kernel = SpectralConfig(num_waves_per_axis=2)
    network = NeuralOperator(functions, 3, NeuralOperator.Config(embed_dim=4, depth=1, kernel=kernel))
    given, found = (each.float() for each in pairs(0.3))
    regression = on_line()
    regression.fit(given, found)
    return BlendedOperator(network, regression), FunctionBatch(given[:2], Grid(7))


@pytest.mark.parametrize("at", [None, Points(torch.tensor([[0.3], [0.5]]))])
def test_a_blend_is_the_weighted_mean_of_its_parts(at: Points | None) -> None:
    model, inputs = blended()
    learnt, fitted = model.network(inputs, at), model.fitted(inputs, at)
    model.share.fill_(0.5)
    assert torch.equal(model(inputs, at), learnt), "training uses the network alone"
    model.eval()
    for share in (0.0, 0.25, 1.0):
        model.share.fill_(share)
        torch.testing.assert_close(model(inputs, at), share * learnt + (1 - share) * fitted)
        torch.testing.assert_close(model.with_share(0.5)(inputs, at), (learnt + fitted) / 2)


def test_a_blend_needs_a_network_with_outputs_at_every_point() -> None:
    model, _ = blended()
    pooling = NeuralOperator(model.network.encoder, 3, NeuralOperator.Config(embed_dim=4, depth=1, pool="mean"))
    with refused(ValueError, "the network has pool='mean'; build it with pool='none'"):
        BlendedOperator(pooling, model.fitted)
