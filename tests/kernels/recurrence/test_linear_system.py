import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.domains import Sequence
from fredholm.evaluation import Integral, Scan
from fredholm.kernels import LinearSystem
from fredholm.kernels.recurrence.linear_system import discretise
from tests.refusals import refused

RULES = ("euler", "bilinear", "zoh")


def system(rule: Any, **options) -> LinearSystem:
    torch.manual_seed(3)
    return LinearSystem(1, 4, 1, rule=rule, **options).double()


def exact(kernel: LinearSystem, frequency: float, time: float) -> Tensor:
    """Output at `time` for the signal sin(frequency t) from rest, by a system augmented with the oscillator."""
    n = kernel.state_dim
    both = torch.zeros(n + 2, n + 2, dtype=torch.float64)
    both[:n, :n] = kernel.rates
    both[:n, n] = kernel.input_weight[:, 0]
    both[n, n + 1], both[n + 1, n] = frequency, -frequency
    start = torch.zeros(n + 2, dtype=torch.float64)
    start[n + 1] = 1.0
    return kernel.output_weight @ (torch.linalg.matrix_exp(time * both) @ start)[:n]


def error(rule: str, steps: int, sampled_at: float) -> float:
    """Error at time 2, with the signal sampled at a fraction of each step."""
    kernel = system(rule, step_size=2.0 / steps)
    times = (torch.arange(steps, dtype=torch.float64) + sampled_at) * 2.0 / steps
    with torch.no_grad():
        out = Scan().run(Integral(kernel, torch.sin(3.0 * times)[None, :, None], Sequence(steps)))[0]
        return (out[0, -1] - exact(kernel, 3.0, 2.0)).abs().item()


@pytest.mark.parametrize(
    ("rule", "sampled_at", "order"),
    [
        *[("euler", 1.0, 1), ("bilinear", 1.0, 1), ("zoh", 1.0, 1)],
        *[("euler", 0.5, 1), ("bilinear", 0.5, 2), ("zoh", 0.5, 2)],
    ],
)
def test_each_rule_converges_at_its_order(rule, sampled_at, order):
    coarse, fine = error(rule, 200, sampled_at), error(rule, 400, sampled_at)
    assert math.log2(coarse / fine) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize("is_singular", [False, True])
def test_zero_order_hold_is_exact_for_a_signal_that_is_held(is_singular):
    kernel = system("zoh", first_step=0.3)
    with torch.no_grad():
        if is_singular:
            kernel.rates.copy_(torch.triu(torch.ones(4, 4), 1))
    times = torch.tensor([0.3, 0.4, 1.7, 2.0], dtype=torch.float64)
    u = torch.randn(1, 4, 1, dtype=torch.float64)
    with torch.no_grad():
        got = Scan().integrate(Integral(kernel, u, Sequence(times=times)))[0, -1]
        h, fine = torch.zeros(4, dtype=torch.float64), 20000
        for value, length in zip(u[0, :, 0], times.diff(prepend=times.new_zeros(1)), strict=True):
            advance = torch.eye(4, dtype=torch.float64) + length / fine * kernel.rates
            shift = length / fine * kernel.input_weight[:, 0] * value
            both = torch.cat([torch.cat([advance, shift[:, None]], 1), torch.eye(5, dtype=torch.float64)[4:]])
            h = (torch.linalg.matrix_power(both, fine) @ torch.cat([h, torch.ones(1, dtype=torch.float64)]))[:4]
    assert torch.allclose(got, kernel.output_weight @ h, rtol=1e-3)


@pytest.mark.parametrize("rule", RULES)
def test_a_step_of_length_zero_changes_nothing(rule):
    a, b = discretise(torch.randn(3, 3), torch.randn(3, 2), torch.zeros(2), rule)
    assert torch.equal(a, torch.eye(3).expand(2, 3, 3))
    assert not b.any()


def test_rules_equal_their_formulas():
    A, B, step = torch.randn(3, 3).double(), torch.randn(3, 2).double(), torch.tensor(0.4, dtype=torch.float64)
    identity = torch.eye(3).double()
    inverse = torch.linalg.inv(identity - 0.2 * A)
    power = torch.linalg.matrix_exp(0.4 * A)
    expected = {
        "euler": (identity + 0.4 * A, 0.4 * B),
        "bilinear": (inverse @ (identity + 0.2 * A), inverse @ (0.4 * B)),
        "zoh": (power, (power - identity) @ torch.linalg.inv(A) @ B),
    }
    for rule in RULES:
        for got, formula in zip(discretise(A, B, step, rule), expected[rule], strict=True):
            assert torch.allclose(got, formula, rtol=1e-10)


@pytest.mark.parametrize("rule", RULES)
def test_regular_times_equal_the_steps_of_a_domain_without_times(rule):
    kernel = system(rule, step_size=0.25)
    u = torch.randn(2, 9, 1, dtype=torch.float64)
    regular, state = Scan().run(Integral(kernel, u, Sequence(9)))
    timed, timed_state = Scan().run(Integral(kernel, u, Sequence(times=0.25 * torch.arange(9, dtype=torch.float64))))
    assert torch.allclose(regular, timed, atol=1e-13)
    assert torch.allclose(state[1], timed_state[1], atol=1e-13)


def test_gradient_with_respect_to_times():
    kernel = system("zoh")
    u, times = torch.randn(1, 5, 1, dtype=torch.float64), torch.rand(5, dtype=torch.float64).cumsum(0).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: Scan().run(Integral(kernel, u, Sequence(times=t)))[0], times)


def test_the_first_step_leads_to_the_first_time_also_after_a_reset():
    kernel = system("euler", step_size=1.0, first_step=0.1)
    u = torch.ones(1, 3, 1, dtype=torch.float64)
    reset = torch.tensor([[False, False, True]])
    with torch.no_grad():
        out, _ = Scan().run(Integral(kernel, u, Sequence(times=torch.tensor([5.0, 6.0, 7.0]).double())), None, reset)
        first = 0.1 * kernel.output_weight @ kernel.input_weight
    assert torch.allclose(out[0, [0, 2]], first[..., 0].expand(2, 1))
    assert not torch.allclose(out[0, 1], first[..., 0])


def test_bad_input_is_refused():
    cases: list[tuple[dict[str, Any], str]] = [
        ({"rule": "rk4"}, "'euler', 'bilinear' or 'zoh'"),
        ({"step_size": 0.0}, "must be > 0"),
    ]
    for options, message in cases:
        with refused(ValueError, "LinearSystem", message):
            LinearSystem(1, 2, **options)
    kernel = LinearSystem(1, 2)
    _, state = kernel.step(torch.ones(1, 1), kernel.initial_state(1), torch.tensor([3.0]))
    with refused(ValueError, "time runs backwards by 1"):
        kernel.step(torch.ones(1, 1), state, torch.tensor([2.0]))


def test_a_step_without_a_time_advances_by_the_step_size():
    kernel = system("zoh", step_size=0.7)
    u = torch.randn(1, 4, 1, dtype=torch.float64)
    times = torch.tensor([1.0, 1.5, 4.0, 4.7], dtype=torch.float64)
    _, state = Scan().run(Integral(kernel, u[:, :3], Sequence(times=times[:3])))
    out, (_, clock) = kernel.step(u[:, 3], state)
    assert torch.allclose(out, Scan().integrate(Integral(kernel, u, Sequence(times=times)))[:, 3], atol=1e-14)
    assert torch.allclose(clock, times[3:])


def test_a_masked_batch_of_size_0_has_a_matrix():
    where = Sequence(3, mask=torch.ones(0, 3, dtype=torch.bool))
    assert system("zoh").matrix(torch.zeros(0, 3, 1, dtype=torch.float64), where).shape == (0, 3, 3, 1, 1)
