"""The convolution as a kernel: κ on arbitrary points, output domains, refusals."""

import pytest
import torch
from torch import Tensor, nn

from fredholm import IntegralOperator
from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import Dense, Integral
from fredholm.kernels import MLP, Convolution, KernelInputs
from tests.contracts.routes import randomise
from tests.refusals import refused


def kernel(*args, **options) -> Convolution:
    made = randomise(Convolution(*args, **options).double())
    assert isinstance(made, Convolution)
    return made


def kappa(made: Convolution, domain: Domain, query_domain: Domain | None = None) -> Tensor:
    """κ for one signal, `(Nq, N, d_out, d_in)`; it does not depend on the signal."""
    u = torch.full((1, domain.num_points, made.in_dim), torch.nan, dtype=torch.float64)
    return made.matrix(u, domain, None, query_domain)[0]


def test_every_pair_has_the_tap_between_its_points():
    made = kernel(2, 3, (2, 3), 2, dilation=(1, 2))
    keys, queries = Grid(4, 6), Grid(7, 11, spacing=(1 / 8, 1 / 12), origin=(0.125, 1 / 12))
    found = kappa(made, keys, queries)
    taps = 0
    for i, x in enumerate(queries.pos.tolist()):
        for j, y in enumerate(keys.pos.tolist()):
            steps = [(b - a) * n for a, b, n in zip(x, y, keys.shape, strict=True)]  # y - x in cells
            offsets = [(-0.5, 0.5), (-2, 0, 2)]
            hit = [[k for k, at in enumerate(offsets[axis]) if abs(steps[axis] - at) < 1e-6] for axis in (0, 1)]
            if all(hit):
                taps += 1
                torch.testing.assert_close(found[i, j], made.weight[:, :, hit[0][0], hit[1][0]])
            else:
                assert not found[i, j].any()
    assert taps > 50


def test_a_transposed_convolution_is_the_transpose_of_the_strided_one():
    down = kernel(3, 5, (3, 2), 2, stride=(2, 3), dilation=(2, 1), padding=(1, 0))
    fine = Grid(9, 8)
    coarse = down.output_domain(fine)
    up = kernel(5, 3, (3, 2), 2, stride=(2, 3), dilation=(2, 1), padding=(1, 0), transposed=True)
    with torch.no_grad():
        up.weight.copy_(down.weight)
    result = up.output_domain(coarse, (9, 8))
    torch.testing.assert_close(result.pos, fine.pos)
    torch.testing.assert_close(kappa(up, coarse, result), kappa(down, fine, coarse).permute(1, 0, 3, 2))


def test_groups_do_not_mix():
    found = kappa(kernel(6, 4, 3, groups=2, padding=1), Sequence(5))
    assert found[:, :, :2, :3].any()
    assert found[:, :, 2:, 3:].any()
    assert not found[:, :, :2, 3:].any()
    assert not found[:, :, 2:, :3].any()


def test_it_depends_on_displacement_only_and_not_on_the_spacing():
    made = kernel(2, 2, 3, padding=1)
    found = kappa(made, Grid(5))
    torch.testing.assert_close(found[1:, 1:], found[:-1, :-1])
    elsewhere = Grid(5, spacing=(3.0,), origin=(-7.0,))
    torch.testing.assert_close(kappa(made, elsewhere), found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_queries_at_lattice_points_equal_those_of_the_grid_and_others_give_zero(dtype):
    made, grid = kernel(2, 3, (3, 2), 2, padding=(1, 0)), Grid(5, 4)
    u = torch.randn(2, 20, 2, dtype=torch.float64)
    operator = IntegralOperator(made, residual=False, bias=False, output_projection=False).double()
    natural = made.output_domain(grid)
    order = torch.randperm(natural.num_points)[:7]
    on = Points(natural.pos[order].to(dtype))
    torch.testing.assert_close(operator(u, grid, query_domain=on), operator(u, grid)[:, order])
    each = Points(torch.stack([natural.pos[order], natural.pos[order.flip(0)]]))
    expected = operator(u, grid)
    torch.testing.assert_close(
        operator(u, grid, query_domain=each), torch.stack([expected[0, order], expected[1, order.flip(0)]])
    )
    off = Points(natural.pos[order] + 0.03)
    assert not operator(u, grid, query_domain=off).any()


def test_rounded_positions_stay_on_a_fine_lattice():
    fine = Grid(100_003)
    made = kernel(1, 1, 1)
    rounded = Points(fine.pos[-7:].float())
    (block,) = fine.grid_blocks
    assert made._taps(rounded.pos[:, 0], block, 0).nonzero()[:, 2].tolist() == list(range(99_996, 100_003))


def test_boundaries_extend_as_far_as_a_query_needs():
    far = Grid(19, spacing=(1 / 4,), origin=(0.125 - 2.0,))
    for mode, period in (("circular", 4), ("reflect", 6)):
        found = kappa(kernel(1, 1, 1, padding_mode=mode), Grid(4), far)
        assert found.any(1).all()
        torch.testing.assert_close(found[period:], found[:-period])


def test_a_perceptron_of_the_displacement_is_a_convolution_with_its_table():
    inputs = KernelInputs(
        query_position=False, key_position=False, query_content=False, key_content=False, product=False
    )
    perceptron = randomise(MLP(4, 2, 2, width=5, num_frequencies=3, sigma=0.3, inputs=inputs).double())
    grid, u = Grid(3, 4), torch.randn(2, 12, 4, dtype=torch.float64)
    made = kernel(4, 4, (5, 7), 2, padding="same")
    table = perceptron.matrix(u[:1], grid)[0].unflatten(1, grid.shape).unflatten(0, grid.shape)
    with torch.no_grad():
        for a in range(5):
            for b in range(7):
                i, j = max(2 - a, 0), max(3 - b, 0)
                made.weight[:, :, a, b] = table[i, j, i + a - 2, j + b - 3] / grid.num_points
    torch.testing.assert_close(
        Dense().integrate(Integral(made, u, grid)), Dense().integrate(Integral(perceptron, u, grid))
    )


@pytest.mark.parametrize(
    ("options", "shape", "spacing", "origin"),
    [
        ({"kernel_size": 3, "padding": 1}, (6,), 1, 0.5),
        ({"kernel_size": 3}, (4,), 1, 1.5),
        ({"kernel_size": 2}, (5,), 1, 1),
        ({"kernel_size": 4, "padding": "same"}, (6,), 1, 1),
        ({"kernel_size": 3, "padding": 1, "stride": 2}, (3,), 2, 0.5),
        ({"kernel_size": 3, "padding": ((2, 0),)}, (6,), 1, -0.5),
        ({"kernel_size": 2, "stride": 2, "transposed": True}, (12,), 0.5, 0.25),
        ({"kernel_size": 3, "stride": 2, "padding": 1, "transposed": True}, (11,), 0.5, 0.5),
    ],
)
def test_results_lie_at_the_centres_of_their_windows(options, shape, spacing, origin):
    (block,) = Convolution(1, 1, **options).output_domain(Grid(6)).grid_blocks
    assert block.shape == shape
    assert [6 * x for x in (*block.spacing, *block.origin)] == pytest.approx([spacing, origin])


def test_results_at_the_keys_keep_their_domain():
    masked = Grid(3, 4, mask=torch.rand(12) > 0.5)
    assert Convolution(1, 1, 3, 2, padding="same").output_domain(masked) is masked
    strided = Convolution(1, 1, 3, 2, padding=1, stride=2).output_domain(masked)
    assert strided.mask is None
    torus = Grid(4, 6, periodic=True)
    for stride, stays in ((2, True), (3, False)):
        made = Convolution(1, 1, 3, 2, padding=1, stride=stride, padding_mode="circular")
        assert made.output_domain(torus).is_periodic == stays


def test_two_layers_in_a_row_keep_positions():
    grid = Grid(9, 9)
    first = Convolution(1, 1, 3, 2, stride=2, padding=1).output_domain(grid)
    second = Convolution(1, 1, 2, 2).output_domain(first)
    back = Convolution(1, 1, 2, 2, transposed=True).output_domain(second)
    torch.testing.assert_close(back.pos, first.pos)
    up = Convolution(1, 1, 3, 2, stride=2, padding=1, transposed=True)
    torch.testing.assert_close(up.output_domain(first).pos, grid.pos)


def test_the_operator_returns_results_on_the_output_domain_of_the_kernel():
    made = kernel(2, 3, 4, stride=2, padding=1)
    operator = IntegralOperator(made, residual=False, output_projection=False).double()
    u = torch.randn(2, 9, 2, dtype=torch.float64)
    expected = nn.functional.conv1d(u.mT, made.weight, operator.bias, 2, 1).mT
    torch.testing.assert_close(operator(u), expected)
    with refused(ValueError, "pass query="):
        IntegralOperator(kernel(2, 2, 3, stride=2)).double()(u)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_dim": 0}, "in_dim must be an integer >= 1; got 0"),
        ({"out_dim": 2.0}, "out_dim must be an integer >= 1; got 2.0"),
        ({"groups": 3}, "groups must divide both channel counts; got 3 groups for 4 in and 6 out"),
        ({"pos_dim": 4}, "pos_dim must be 1, 2 or 3; got 4"),
        ({"kernel_size": 0}, "kernel_size must be an integer >= 1, or one for each of the 2 axes; got 0"),
        ({"kernel_size": (3,)}, "kernel_size must be an integer >= 1, or one for each of the 2 axes; got (3,)"),
        ({"stride": (1, 0)}, "stride must be an integer >= 1"),
        ({"stride": 1.5}, "stride must be an integer >= 1"),
        ({"dilation": True}, "dilation must be an integer >= 1"),
        ({"padding": -1}, "padding must be 'valid', 'same', an integer >= 0"),
        ({"padding": (1, 2, 3)}, "for each of the 2 axes; got (1, 2, 3)"),
        ({"padding": ((1, 2, 3), 0)}, "a pair (lo, hi)"),
        ({"padding": ()}, "padding must be"),
        ({"padding": None}, "padding must be"),
        ({"padding": "full"}, "'valid', 'same' or numbers; got 'full'"),
        ({"padding": "same", "stride": 2}, "padding 'same' needs stride 1; got stride (2, 2)"),
        ({"padding": "same", "transposed": True}, "transposed convolution has padding in numbers"),
        ({"padding_mode": "wrap"}, "padding_mode is one of ('zeros', 'reflect', 'replicate', 'circular'); got 'wrap'"),
        ({"padding_mode": "circular", "transposed": True}, "has padding_mode 'zeros'; got 'circular'"),
        ({"output_padding": 1}, "output_padding belongs to a transposed convolution; got 1"),
        ({"output_padding": 2, "stride": 2, "transposed": True}, "below stride 2 or dilation 1; got 2"),
        ({"standardised": True, "transposed": True}, "filters of a transposed convolution cannot be standardised"),
        ({"standardised": True, "in_dim": 2, "groups": 2, "kernel_size": 1}, "filters of one value, which would be 0"),
    ],
)
def test_bad_and_contradictory_options_are_refused(options, message):
    with refused(ValueError, "kernels.Convolution: ", message):
        Convolution(**{"in_dim": 4, "out_dim": 6, "kernel_size": 3, "pos_dim": 2} | options)


@pytest.mark.parametrize(
    ("options", "domain", "message"),
    [
        ({}, Points(torch.rand(5, 1)), "one whole regular grid with 1 axes"),
        ({}, Sequence(times=torch.arange(5.0)), "one whole regular grid"),
        ({}, Union(Grid(4), Points(torch.rand(1, 1).double())), "one whole regular grid"),
        ({}, Sequence(0), "one whole regular grid"),
        ({"kernel_size": 7}, Grid(5), "windows of (7,) cells with padding ((0, 0),) leave no result"),
        ({"padding": 5, "padding_mode": "reflect"}, Grid(5), "smaller than the grid; got padding (5, 5)"),
        ({"padding": 6, "padding_mode": "circular"}, Grid(5), "not go round more than once; got padding (6, 6)"),
        ({"transposed": True, "padding": 4}, Grid(5), "leave no result"),
        ({"padding": 1}, Grid(5, periodic=True), "padding_mode 'zeros'; use 'circular'"),
    ],
)
def test_domains_that_are_refused(options, domain, message):
    operator = IntegralOperator(Convolution(2, 2, **{"kernel_size": 3} | options), residual=False)
    with refused(ValueError, "kernels.Convolution", message):
        operator(torch.randn(1, domain.num_points, 2), domain)


def test_a_grid_with_other_axes_is_refused():
    operator = IntegralOperator(Convolution(2, 2, 3, 2), residual=False)
    with refused(ValueError, "positions with 2 coordinates", "Sequence(6)"):
        operator(torch.randn(1, 6, 2))


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_standardised_filters_have_mean_0_and_their_gain_as_norm(shift):
    made = kernel(4, 6, (2, 3), 2, groups=2, standardised=True)
    with torch.no_grad():
        made.weight.mul_(5).add_(shift)
    expected = torch.stack([w - w.mean() for w in made.weight])
    assert made.gain is not None
    expected = torch.stack([g * w / w.norm() for g, w in zip(made.gain, expected, strict=True)])
    operator = IntegralOperator(made, residual=False, output_projection=False).double()
    u = torch.randn(2, 30, 4, dtype=torch.float64)
    out = nn.functional.conv2d(u.mT.unflatten(2, (5, 6)), expected, operator.bias, groups=2)
    torch.testing.assert_close(operator(u, Grid(5, 6)), out.flatten(2).mT)


def test_a_standardised_filter_without_differences_is_0():
    made = kernel(2, 1, 3, standardised=True)
    with torch.no_grad():
        made.weight.fill_(2.0)
    found = kappa(made, Sequence(5))
    assert not found.any()
    found.sum().backward()
    assert made.weight.grad is not None
    assert torch.isfinite(made.weight.grad).all()


def test_its_repr_shows_its_settings():
    assert "standardised=True" in str(Convolution(4, 6, 3, standardised=True))
    assert "standardised" not in str(Convolution(4, 6, 3))
    text = str(Convolution(4, 6, 3, 2, stride=2, groups=2))
    assert "4, 6, kernel_size=(3, 3), stride=(2, 2)" in text
    assert "groups=2" in text
    assert "output_padding=(1,)" in str(Convolution(1, 1, 3, stride=2, transposed=True, output_padding=1))
