"""Steps of the continuous convolution: results equal those of the whole sequence; contents of the state."""

import math

import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Sequence
from fredholm.evaluation import Dense, Integral, StepLoop
from fredholm.kernels import ContinuousConvolution
from tests.contracts.routes import check_route
from tests.refusals import refused

TIMES = torch.tensor([0.0, 0.1, 0.15, 0.4, 0.8, 0.85, 0.9, 1.6, 1.7], dtype=torch.float64)


def operator(**options) -> IntegralOperator:
    op = IntegralOperator(ContinuousConvolution(4, 4, width=5, omega_0=6.0, **options)).double()
    assert op.bias is not None
    with torch.no_grad():
        op.bias.normal_()
    return op


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("horizon", [None, 0.3])
def test_steps_give_the_whole_sequence_in_every_gradient(horizon, dtype):
    kernel = ContinuousConvolution(4, 6, groups=2, horizon=horizon, num_samples=3, width=5).to(dtype)
    u = torch.randn(2, 9, 4, dtype=dtype)
    check_route(StepLoop(), Integral(kernel, u, Sequence(9, spacing=kernel.spacing[0], start=-0.4)))
    if horizon is None:
        check_route(StepLoop(), Integral(kernel, u, Sequence(times=TIMES)))


@pytest.mark.parametrize("horizon", [None, 0.7])
def test_steps_without_times_have_the_spacing_of_training(horizon):
    op = operator(horizon=horizon, spacing=0.1)
    u = torch.randn(2, 23, 4, dtype=torch.float64)
    whole = op(u, Sequence(23, spacing=0.1))
    state, rows = op.initial_state(2), []
    for t in range(23):
        row, state = op.step(u[:, t], state)
        rows.append(row)
    torch.testing.assert_close(torch.stack(rows, 1), whole, rtol=1e-10, atol=1e-12)
    assert state[0].shape == (2, 23 if horizon is None else 7, 4)


def test_a_state_of_a_fixed_horizon_holds_irregular_samples_up_to_its_size():
    op = operator(horizon=0.5, num_samples=4)
    u = torch.randn(1, 9, 4, dtype=torch.float64)
    whole = op(u, Sequence(times=TIMES))
    state = op.initial_state(1)
    for t in range(9):
        row, state = op.step(u[:, t], state, TIMES[t : t + 1])
        torch.testing.assert_close(row, whole[:, t], rtol=1e-10, atol=1e-12)
    small = operator(horizon=0.5, num_samples=2)
    state = small.initial_state(1)
    with refused(ValueError, "more than 2 samples lie within the horizon 0.5", "num_samples"):
        for t in range(9):
            _, state = small.step(u[:, t], state, TIMES[t : t + 1])


@pytest.mark.parametrize("horizon", [None, 0.3])
def test_chunks_carry_their_state(horizon):
    op = operator(horizon=horizon, spacing=0.1)
    u = torch.randn(2, 9, 4, dtype=torch.float64, requires_grad=True)
    whole = op(u, Sequence(9, spacing=0.1))
    first, state = op.scan(u[:, :4], Sequence(4, spacing=0.1))
    second, _ = op.scan(u[:, 4:], Sequence(5, spacing=0.1, start=0.4), state=state)
    joined = torch.cat([first, second], 1)
    torch.testing.assert_close(joined, whole, rtol=1e-10, atol=1e-12)
    got, expected = (torch.autograd.grad(out.square().sum(), u, retain_graph=True)[0] for out in (joined, whole))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


def test_points_that_do_not_exist_do_not_change_a_bounded_state():
    op = operator(horizon=0.35, spacing=0.1)
    u = torch.randn(2, 9, 4, dtype=torch.float64)
    mask = torch.rand(2, 9) > 0.4
    domain = Sequence(9, spacing=0.1, mask=mask)
    torch.testing.assert_close(op.scan(u, domain)[0], op(u, domain), rtol=1e-10, atol=1e-12)


def test_a_reset_starts_a_new_sequence():
    op = operator(horizon=0.5, spacing=0.1)
    u = torch.randn(2, 6, 4, dtype=torch.float64)
    reset = torch.zeros(2, 6, dtype=torch.bool)
    reset[0, 2] = True
    out, _ = op.scan(u, Sequence(6, spacing=0.1), reset=reset)
    torch.testing.assert_close(out[:1, 2:], op(u[:1, 2:], Sequence(4, spacing=0.1)), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(out[1:], op(u[1:], Sequence(6, spacing=0.1)), rtol=1e-10, atol=1e-12)


def test_a_state_that_grows_is_not_reset():
    op = operator(spacing=0.1)
    with refused(ValueError, "StepLoop: a state that holds every point cannot be cleared"):
        op.scan(torch.randn(2, 3, 4).double(), Sequence(3, spacing=0.1), reset=torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("horizon", [0.5, None])
def test_a_second_point_at_the_same_time_is_refused(horizon):
    op = operator(horizon=horizon, num_samples=9)
    u, times = torch.randn(1, 4, 4, dtype=torch.float64), torch.tensor([0.0, 0.5, 0.5, 1.0], dtype=torch.float64)
    _, state = op.scan(u[:, :2], Sequence(times=times[:2]))
    with refused(ValueError, "points that share a time see each other", "got steps of [0.0]"):
        op.scan(u[:, 2:], Sequence(times=times[2:]), state=state)
    with refused(ValueError, "the previous one is computed already", "call the operator on the whole sequence"):
        op.step(u[:, 2], state, times[2:3])


@pytest.mark.long
def test_compiles_in_one_graph():
    torch.compiler.reset()
    op = operator(horizon=0.3, spacing=0.1)
    u, state = torch.randn(2, 4, dtype=torch.float64), op.initial_state(2)
    compiled = torch.compile(op.step, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        got, after = compiled(u, state)
        expected, state = op.step(u, state)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(after, state)
    scan = torch.compile(op.scan, fullgraph=True, backend="eager")
    v = torch.randn(2, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(scan(v, Sequence(2, spacing=0.1)), op.scan(v, Sequence(2, spacing=0.1)))


def test_low_precision_states_and_autocast():
    kernel = ContinuousConvolution(4, 4, horizon=0.5, spacing=0.1).bfloat16()
    u = torch.randn(2, 9, 4).bfloat16()
    domain = Sequence(9, spacing=0.1)
    out, state = StepLoop().run(Integral(kernel, u, domain))
    assert (out.dtype, state[0].dtype, state[1].dtype) == (torch.bfloat16, torch.bfloat16, torch.float64)
    expected = Dense().integrate(Integral(kernel, u, domain))
    assert (out - expected).abs().max() < 2e-2 * expected.abs().max()
    op = IntegralOperator(
        ContinuousConvolution(4, 4, horizon=0.5, spacing=0.1), output_projection=False, residual=False
    )
    with torch.autocast("cpu", torch.bfloat16):
        row, _ = op.step(u[:, 0].float(), op.initial_state(2))
    torch.testing.assert_close(row, op.step(u[:, 0].float(), op.initial_state(2))[0])


def test_steps_without_valid_times_are_refused():
    op = operator(horizon=0.5, num_samples=9)
    u, at = torch.randn(2, 4, dtype=torch.float64), torch.tensor([1.0, 1.0])
    _, state = op.step(u, op.initial_state(2), at)
    for time in (at - 0.1, at * math.nan, at * math.inf):
        with refused(ValueError, "ContinuousConvolution.step: times must be finite and not decrease"):
            op.step(u, state, time)
    loop, kernel = StepLoop(), op.kernel
    signal = torch.randn(2, 3, 4)
    reasons = loop.unsupported_reasons(Integral(kernel, signal, Sequence(3)))
    assert reasons == ["a step needs the time of its point, and the domain has no times"]
    tied = Sequence(times=torch.tensor([0.0, 0.5, 0.5]))
    assert loop.unsupported_reasons(Integral(kernel, signal, tied)) == ["points that share a time see each other"]
    weighed = Sequence(3, spacing=0.1, weights=torch.ones(3))
    assert "the measure was given" in loop.unsupported_reasons(Integral(kernel, signal, weighed))[0]
    with refused(ValueError, "ContinuousConvolution looks ahead"):
        operator(is_causal=False).initial_state(2)


def test_a_step_finer_than_training_is_refused_with_smoothing():
    op = operator(horizon=0.5, spacing=0.1, smoothing=True)
    u = torch.randn(1, 5, 4, dtype=torch.float64)
    same = Sequence(5, spacing=0.1)
    torch.testing.assert_close(op.scan(u, same)[0], op(u, same), rtol=1e-10, atol=1e-12)
    for points in (5, 1):
        with refused(ValueError, "a step of 0.05 is finer than the spacing 0.1 of training", "smoothing=False"):
            op.scan(u[:, :points], Sequence(points, spacing=0.05))
