import math

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, fit_low_rank, kernels
from fredholm.domains import Grid, Points, Sequence
from fredholm.operators import LowRankFit
from fredholm.operators.fit_low_rank import draw, signals_of, split
from tests.contracts.small_perceptron import small_perceptron
from tests.refusals import refused

NAMES = kernels.KernelInputs.__dataclass_fields__


def only(*names: str) -> kernels.KernelInputs:
    return kernels.KernelInputs(**{name: name in names for name in NAMES})


def trained(inputs: kernels.KernelInputs | None = None, pos_dim: int = 2, **options) -> IntegralOperator:
    """An operator whose kernel is far from its nearly constant initialisation."""
    torch.manual_seed(0)
    settings = small_perceptron(**{"width": 6, "sigma": 0.5, "epsilon": 1.0, "inputs": inputs} | options)
    op = IntegralOperator(kernels.MLP(4, 2, pos_dim, **settings))
    with torch.no_grad():
        if inputs is None or any(vars(inputs).values()):
            op.kernel.get_parameter("input_weight").mul_(30)
        op.get_parameter("bias").normal_()
    return op


def signals(count: int = 12, n: int = 6) -> list[tuple[Tensor, Grid]]:
    return [(torch.randn(1, n, 4), Grid(2, n // 2)) for _ in range(count)]


def errors_and_bounds(fit: LowRankFit, which: str) -> list[tuple[float, float]]:
    return list(zip(fit.kernel_error, getattr(fit, which), strict=True))


@pytest.mark.slow
def test_a_kernel_of_the_requested_rank_is_fitted():
    """A κ that depends on y alone is Φᵀ Ψ with constant Φ, of rank d = 2, so that exact features exist."""
    op = trained(only("key_content"))
    fitted, report = fit_low_rank(op, signals(60), rank=2, steps=600, width=12, learning_rate=3e-2)
    assert max(report.kernel_error) < 0.03
    assert report.integral_error < 0.03
    assert max(report.rank_bound) < 1e-6
    assert min(report.constant_error) > 0.1
    u, grid = torch.randn(2, 6, 4), Grid(2, 3)
    torch.testing.assert_close(fitted(u, grid), op(u, grid), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("constant", [True, False])
def test_no_fit_is_better_than_its_bound(constant):
    op = trained()
    _, report = fit_low_rank(op, signals(n=8), rank=2, steps=60, width=16, constant=constant)
    for error, bound in errors_and_bounds(report, "bound"):
        assert 0 < bound <= error < 1
    for rank_bound, bound, nuclear in zip(report.rank_bound, report.bound, report.nuclear_bound, strict=True):
        assert bound < rank_bound < nuclear if constant else bound == rank_bound < nuclear
    assert "rank 2 a head" in str(report)
    assert str(report).count("\n") == 2


@pytest.mark.slow
def test_more_rank_and_more_steps_are_better():
    op, data = trained(), signals(30)
    error = {}
    for rank, steps in ((1, 150), (6, 150), (6, 0)):
        torch.manual_seed(1)
        error[rank, steps] = max(fit_low_rank(op, data, rank, steps=steps, width=24)[1].kernel_error)
    assert error[6, 150] < 0.8 * error[1, 150] < error[6, 0]


def test_the_bound_is_that_of_the_sampled_matrix():
    """Four of the signal's sixteen points are held out, and every draw takes all four."""
    op, data = trained(), [(torch.randn(1, 16, 4), Grid(4, 4))]
    _, report = fit_low_rank(op, data, rank=1, steps=0, constant=False)
    u, grid = data[0]
    with torch.no_grad():
        whole = op.kernel.head_matrices(u, grid)[0].double()  # pyright: ignore[reportCallIssue]
    found = set()
    for chosen in torch.combinations(torch.arange(16), 4):
        block = whole[:, chosen][:, :, chosen].permute(0, 1, 3, 2, 4).reshape(2, 8, 8)
        sigma = torch.linalg.svdvals(block)
        share = (sigma[:, 1:].square().sum(1) / sigma.square().sum(1)).sqrt()
        found.add(tuple(round(x, 5) for x in share.tolist()))
    assert tuple(round(x, 5) for x in report.bound) in found


def test_output_residual_and_bias_are_copied_and_the_original_is_unchanged():
    op = trained().double()
    before = {name: value.clone() for name, value in op.state_dict().items()}
    data = [(u.double(), grid) for u, grid in signals(3)]
    fitted, _ = fit_low_rank(op.eval(), data, rank=3, steps=2, width=7)
    assert all(torch.equal(value, before[name]) for name, value in op.state_dict().items())
    for name in ("output_weight", "residual_weight", "bias"):
        assert torch.equal(fitted.get_parameter(name), op.get_parameter(name))
    assert torch.equal(fitted.kernel.get_buffer("features.frequencies"), op.kernel.get_buffer("frequencies"))
    assert fitted.get_parameter("bias").dtype == torch.float64
    assert not fitted.training
    kernel = fitted.kernel
    assert isinstance(kernel, kernels.LowRankMLP)
    assert (kernel.rank, kernel.query_weight.shape[2]) == (3, 8)
    bare = IntegralOperator(op.kernel, residual=False, bias=False, output_projection=False)
    fitted, _ = fit_low_rank(bare, data, rank=1, steps=1)
    assert fitted.output_weight is fitted.residual_weight is fitted.bias is None


def test_the_result_depends_on_the_seed():
    op, data = trained(), signals(4)
    fits = [fit_low_rank(op, data, 2, steps=5, generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    torch.manual_seed(3)
    fits += [fit_low_rank(op, data, 2, steps=5)]
    torch.manual_seed(3)
    fits += [fit_low_rank(op, data, 2, steps=5)]
    for (first, report), (second, same) in (fits[:2], fits[2:]):
        assert report == same
        for a, b in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(a, b)
    assert fits[0][1] != fits[2][1]


def test_a_generator_leaves_the_global_random_state_unchanged():
    op, data = trained(), signals(2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit_low_rank(op, data, 1, steps=2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.rand(3), expected)


def test_a_constant_kernel_is_exact():
    fitted, report = fit_low_rank(trained(only()), signals(3), rank=1, steps=3)
    assert max(*report.kernel_error, report.integral_error) < 1e-6
    assert not any(math.isnan(value) for value in (*report.kernel_error, *report.bound, report.integral_error))
    kernel = fitted.kernel
    assert isinstance(kernel, kernels.LowRankMLP)
    assert not kernel.reads_query


@pytest.mark.parametrize(
    ("pos_dim", "data"),
    [
        (1, [torch.randn(2, 5, 4), torch.randn(1, 3, 4), torch.randn(3, 1, 4)]),
        (2, [(torch.randn(2, 5, 4), Points(torch.rand(2, 5, 2))), (torch.randn(1, 9, 4), Grid(3, 3))]),
        (2, [(torch.randn(2, 4, 4), Grid(2, 2, periodic=True))]),
        (2, [(torch.randn(2, 4, 4), Points(torch.rand(4, 2), weights=torch.rand(4)))]),
        (1, [(torch.randn(2, 4, 4), Sequence(4, mask=torch.tensor([[True] * 4, [True, False, True, False]])))]),
        (1, [(torch.randn(2, 4, 4), Sequence(4, mask=torch.tensor([[True] * 4, [False] * 4])))]),
        (1, [torch.randn(1, 7, 4)]),
        (1, [torch.randn(1, 1, 4)]),
    ],
    ids=["sizes", "kinds", "torus", "weights", "holes", "an empty signal", "one signal", "one point"],
)
def test_data_of_every_shape(pos_dim, data):
    fitted, report = fit_low_rank(trained(pos_dim=pos_dim), data, rank=2, steps=3, width=5)
    assert all(math.isfinite(value) for value in (*report.kernel_error, report.integral_error))
    u, domain = data[0] if isinstance(data[0], tuple) else (data[0], None)
    assert torch.isfinite(fitted(u, domain)).all()


@pytest.mark.parametrize("options", [{"head_shared": True}, {"num_frequencies": 0}, {"depth": 3, "activation": "relu"}])
def test_kernels_of_every_form(options):
    op = trained(**options)
    with torch.no_grad():
        start = max(fit_low_rank(op, signals(), rank=4, steps=0)[1].kernel_error)
    assert max(fit_low_rank(op, signals(), rank=4, steps=100)[1].kernel_error) < start


def test_refusals():
    op = trained()
    with refused(ValueError, "rank must be from 1 to", "got 0"):
        fit_low_rank(op, signals(2), rank=0)
    with refused(TypeError, "expected an IntegralOperator with a kernels.MLP", "with Attention"):
        fit_low_rank(IntegralOperator(kernels.Attention(4)), signals(2), rank=2)
    with refused(TypeError, "expected an IntegralOperator with a kernels.MLP; got MLP with NoneType"):
        fit_low_rank(op.kernel, signals(2), rank=2)  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "the kernel is causal", "without is_causal"):
        fit_low_rank(trained(pos_dim=1, is_causal=True), [torch.randn(1, 3, 4)], rank=2)
    for nothing in ([], [torch.randn(0, 3, 4)], [torch.randn(1, 0, 4)]):
        with refused(ValueError, "data holds no signal with a point"):
            fit_low_rank(trained(pos_dim=1), nothing, rank=2)
    with refused(ValueError, "u must be (batch, points, channels) with 4 channels", "(1, 3, 5)"):
        fit_low_rank(trained(pos_dim=1), [torch.randn(1, 3, 5)], rank=2)
    with refused(ValueError, "fit_low_rank: steps must be at least 0; got -1"):
        fit_low_rank(op, signals(2), rank=2, steps=-1)
    mixed = [(torch.randn(1, 4, 4), Grid(2, 2, periodic=flag)) for flag in (True, False)]
    with refused(ValueError, "some domains are periodic and some are not"):
        fit_low_rank(op, mixed, rank=2)


def untrained(pos_dim: int = 1) -> IntegralOperator:
    return IntegralOperator(kernels.MLP(2, 1, pos_dim, width=3, num_frequencies=2))


def test_every_signal_keeps_its_own_points():
    u, pos, weights = torch.randn(3, 4, 2), torch.rand(3, 4, 1), torch.rand(3, 4)
    mask = torch.tensor([[True] * 4, [False] * 4, [True, False, False, True]])
    first, last = signals_of("test", untrained(), [(u, Points(pos, weights, mask))])
    assert torch.equal(first.u, u[:1])
    assert torch.equal(first.domain.pos, pos[:1])
    assert torch.equal(first.domain.weights, weights[:1])
    assert last.drawn.tolist() == [0, 3]
    assert torch.equal(last.domain.pos[:, last.drawn], pos[2:, [0, 3]])
    assert torch.equal(last.domain.weights, (weights * mask)[2:])
    assert not last.u[:, 1:3].any()


def test_a_periodic_domain_stays_periodic():
    (signal,) = signals_of("test", untrained(2), [(torch.randn(1, 4, 2), Grid(2, 2, periodic=True))])
    assert signal.domain.is_periodic
    assert draw([signal], 2, 3, None)[1].is_periodic


def test_held_out_points_are_not_trained_on():
    many = signals_of("test", untrained(), [torch.randn(11, 3, 2)])
    train, test = split(many, None)
    assert (len(train), len(test)) == (9, 2)
    assert {id(s.u) for s in train}.isdisjoint(id(s.u) for s in test)
    ((train_part,), (test_part,)) = split(many[:1], None)
    assert sorted(train_part.drawn.tolist() + test_part.drawn.tolist()) == [0, 1, 2]
    assert len(test_part.drawn) == 1
    ((train_part,), (test_part,)) = split(signals_of("test", untrained(), [torch.randn(1, 1, 2)]), None)
    assert train_part.drawn.tolist() == test_part.drawn.tolist() == [0]


def test_a_draw_takes_different_points_with_their_signals():
    signals = signals_of(
        "test", untrained(), [torch.arange(12.0).reshape(1, 6, 2), (torch.zeros(1, 4, 2), Sequence(4))]
    )
    u, domain = draw(signals[:1], 5, 4, torch.Generator().manual_seed(0))
    assert u.shape == (5, 4, 2)
    for entry, pos in zip(u[..., 0] / 2, domain.pos[..., 0], strict=True):
        assert len(set(entry.tolist())) == 4
        torch.testing.assert_close(pos.float(), entry / 256)
    assert draw(signals, 20, 9, None)[0].shape == (20, 4, 2)  # the number of points of the smaller signal


def test_data_that_are_no_list_are_refused() -> None:
    op, u = IntegralOperator(kernels.MLP(4, 2, 2, width=3)), torch.randn(2, 6, 4)
    for data in (u, (u, Grid(2, 3))):
        with refused(TypeError, "fit_low_rank: data is a list of signals, or of pairs (signal, domain)"):
            fit_low_rank(op, data, 2)  # pyright: ignore[reportArgumentType]


def test_settings_that_are_no_numbers_are_refused() -> None:
    op, data = untrained(), [torch.randn(1, 3, 2)]
    for name, wrong in (("rank", "2"), ("width", 2.0), ("steps", None), ("points", True)):
        with refused(TypeError, f"{name} must be a whole number; got {wrong!r}"):
            fit_low_rank(op, data, **{"rank": 2, name: wrong})
    with refused(TypeError, "fit_low_rank: learning_rate must be a number; got 'fast'"):
        fit_low_rank(op, data, 2, learning_rate="fast")  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "fit_low_rank: learning_rate must be positive and finite; got nan"):
        fit_low_rank(op, data, 2, learning_rate=math.nan)
    with refused(TypeError, "fit_low_rank: data is a list of signals", "got NoneType"):
        fit_low_rank(op, None, 2)  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "a pair (signal, domain); got a tuple of 3"):
        fit_low_rank(op, [(*data, Sequence(3), 1)], 2)  # pyright: ignore[reportArgumentType]


def test_values_that_are_not_finite_are_refused() -> None:
    op, u = untrained(), torch.randn(2, 3, 2)
    u[1, 2] = math.nan
    with refused(ValueError, "fit_low_rank: data holds a signal with NaN or infinite values", "mask them"):
        fit_low_rank(op, [u], 2, steps=1)
    fit_low_rank(op, [(u, Sequence(3, mask=torch.tensor([True, True, False])))], 2, steps=1)
    with refused(ValueError, "fit_low_rank: the loss is", "at step 2", "lower the learning rate, which is 1e+30"):
        fit_low_rank(op, [u[:1]], 2, steps=3, learning_rate=1e30)
    with torch.no_grad():
        next(op.kernel.parameters()).fill_(math.nan)
    with refused(ValueError, "fit_low_rank: κ of the operator holds NaN or infinite values"):
        fit_low_rank(op, [torch.randn(1, 3, 2)], 2, steps=1)
