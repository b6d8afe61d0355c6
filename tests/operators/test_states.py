"""States of operators: step and scan, their results, and their refusals."""

import pytest
import torch

from fredholm import IntegralOperator, kernels
from fredholm.domains import Grid, Points, Sequence
from fredholm.evaluation import AUTO, Dense, Integral, StepLoop, TermByTerm
from tests.refusals import refused

CONTENT = kernels.PointInputs(query_position=False, key_position=False)
PAIR_CONTENT = kernels.KernelInputs(query_position=False, key_position=False, relative_position=False, distance=False)
KERNELS = {
    "MLP": lambda: kernels.MLP(4, 2, width=5, inputs=PAIR_CONTENT, is_causal=True),
    "attention": lambda: kernels.Attention(4, 2, is_causal=True),
    "linear attention": lambda: kernels.LinearAttention(4, 2, is_causal=True),
    "linear attention with rotary positions": lambda: kernels.LinearAttention(
        4, 2, is_causal=True, rotary=kernels.Rotary(10.0)
    ),
    "factorised infinite attention": lambda: kernels.FactorisedInfiniteAttention(4, 2, is_causal=True),
    "low rank": lambda: kernels.LowRankMLP(4, 2, rank=3, width=5, inputs=CONTENT, is_causal=True),
    "separable": lambda: kernels.SeparableMLP(4, 2, width=5, inputs=CONTENT, is_causal=True),
    "linear RNN": lambda: kernels.LinearRNN(4, 3),
    "S4D": lambda: kernels.DiagonalStateSpace(4, 6),
    "Mamba": lambda: kernels.SelectiveStateSpace(4, 3),
    "RNN": lambda: kernels.RNN(4, 4),
    "LSTM": lambda: kernels.LSTM(4, 4),
    "GRU": lambda: kernels.GRU(4, 4),
    "sum": lambda: kernels.LSTM(4, 4) + 2.0 * kernels.LinearAttention(4, 2, is_causal=True) + KERNELS["low rank"](),
    "sum of sums": lambda: 0.5 * (KERNELS["sum"]() + kernels.RNN(4, 4)) + (kernels.GRU(4, 4) + kernels.LinearRNN(4, 3)),
    "sum with caches": lambda: kernels.LSTM(4, 4) + (KERNELS["attention"]() + 3.0 * KERNELS["MLP"]()),
}
CACHES = ("MLP", "attention", "sum with caches")
"""Kernels whose state holds every point, so that it supports no resets and no masks."""


def operator(name: str, **options) -> IntegralOperator:
    torch.manual_seed(0)
    made = IntegralOperator(KERNELS[name](), **options).double()
    with torch.no_grad():
        for parameter in (made.output_weight, made.residual_weight, made.bias):
            if parameter is not None:
                parameter.normal_()
    return made


@pytest.mark.parametrize("name", KERNELS)
def test_steps_equal_the_whole_sequence_with_all_channel_maps(name):
    op, u = operator(name), torch.randn(2, 6, 4, dtype=torch.float64)
    whole = op(u)
    state, rows = op.initial_state(2), []
    for t in range(6):
        row, state = op.step(u[:, t], state)
        rows.append(row)
    torch.testing.assert_close(torch.stack(rows, 1), whole, atol=1e-12, rtol=0)
    scanned, end = op.scan(u)
    torch.testing.assert_close(scanned, whole, atol=1e-12, rtol=0)
    for one, other in zip(end, state, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", KERNELS)
def test_chunks_carry_their_state_and_its_gradient(name):
    op = operator(name)
    u = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    whole = op(u)
    for split in (0, 1, 4, 7):
        first, state = op.scan(u[:, :split])
        second, _ = op.scan(u[:, split:], state=state)
        joined = torch.cat([first, second], 1)
        torch.testing.assert_close(joined, whole, atol=1e-12, rtol=0)
        expected = torch.autograd.grad(whole.square().sum(), u, retain_graph=True)[0]
        torch.testing.assert_close(torch.autograd.grad(joined.square().sum(), u)[0], expected, atol=1e-10, rtol=0)


IN_TIME = {
    "MLP": lambda: kernels.MLP(4, 2, width=5, num_frequencies=2, is_causal=True),
    "low rank": lambda: kernels.LowRankMLP(4, 2, rank=3, width=5, num_frequencies=2, is_causal=True),
    "Yat attention": lambda: kernels.YatAttention(4, 2, is_causal=True),
    "infinite attention": lambda: kernels.InfiniteAttention(4, 2, is_causal=True),
    "linear system": lambda: kernels.LinearSystem(4, 3, 4),
    "continuous convolution": lambda: kernels.ContinuousConvolution(4, 4, width=5),
    "continuous convolution with a horizon": lambda: kernels.ContinuousConvolution(4, 4, width=5, horizon=0.02),
}


@pytest.mark.parametrize("name", [*KERNELS, *(f"{name} in time" for name in IN_TIME)])
def test_states_of_an_empty_batch_have_the_usual_sizes(name):
    torch.manual_seed(0)
    make = KERNELS.get(name) or IN_TIME[name.removesuffix(" in time")]
    op = IntegralOperator(make()).double()
    times = torch.arange(5, dtype=torch.float64).expand(2, -1)
    u = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for entries in (2, 0):
        state, sizes = op.initial_state(entries), []
        for part in (slice(0, 3), slice(3, 3), slice(3, 4)):
            out, state = op.scan(u[:entries, part], Sequence(times=times[:entries, part]), state=state)
            sizes.append((out.shape[1:], out.dtype, [(each.shape[1:], each.dtype) for each in state]))
        row, state = op.step(u[:entries, 4], state, times[:entries, 4])
        found.append([*sizes, (row.shape[1:], row.dtype, [(each.shape[1:], each.dtype) for each in state])])
    assert found[0] == found[1]
    assert torch.autograd.grad(out.sum(), u)[0].count_nonzero() == 0


COUNTED = "linear attention with rotary positions"
SUMS_OVER_THE_PAST = (
    "attention",
    "linear attention",
    COUNTED,
    "factorised infinite attention",
    "low rank",
    "separable",
)
RESETS = [(name, StepLoop()) for name in KERNELS if name not in CACHES]
RESETS += [(name, AUTO) for name in KERNELS if name not in (*CACHES, *SUMS_OVER_THE_PAST)]


@pytest.mark.parametrize(("name", "route"), RESETS)
def test_a_reset_starts_a_new_sequence(name, route):
    op, u = operator(name, evaluation=route), torch.randn(2, 6, 4, dtype=torch.float64)
    reset = torch.zeros(2, 6, dtype=torch.bool)
    reset[0, 2] = reset[1, 4] = True
    out, end = op.scan(u, reset=reset)
    torch.testing.assert_close(out[:1, 2:], op(u[:1, 2:]), atol=1e-12, rtol=0)
    torch.testing.assert_close(out[1:, :4], op(u[1:, :4]), atol=1e-12, rtol=0)
    torch.testing.assert_close(out[1:, 4:], op(u[1:, 4:]), atol=1e-12, rtol=0)
    for one, other in zip(end, op.scan(u[1:, 4:])[1], strict=True):
        torch.testing.assert_close(one[1:], other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("route", [AUTO, StepLoop()], ids=["auto", "loop"])
@pytest.mark.parametrize("name", [name for name in KERNELS if name not in (*CACHES, COUNTED)])
def test_points_that_do_not_exist_do_not_change_the_state(name, route):
    op, u = operator(name, evaluation=route), torch.randn(1, 6, 4, dtype=torch.float64)
    kept = torch.tensor([True, False, True, True, False, False])
    out, end = op.scan(u, Sequence(6, mask=kept))
    expected, expected_end = op.scan(u[:, kept])
    torch.testing.assert_close(out[:, kept], expected, atol=1e-12, rtol=0)
    assert not out[:, ~kept].any()
    for one, other in zip(end, expected_end, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_indices_of_rotary_positions_count_points_that_do_not_exist() -> None:
    op, u = operator(COUNTED), torch.randn(1, 6, 4, dtype=torch.float64)
    kept = torch.tensor([True, False, True, True, False, True])
    out, end = op.scan(u, Sequence(6, mask=kept))
    torch.testing.assert_close(out, op(u, Sequence(6, mask=kept)), atol=1e-12, rtol=0)
    first, state = op.scan(u[:, :2], Sequence(2, mask=kept[:2]))
    second, end_of_chunks = op.scan(u[:, 2:], Sequence(4, mask=kept[2:]), state=state)
    torch.testing.assert_close(torch.cat([first, second], 1), out, atol=1e-12, rtol=0)
    for one, other in zip(end, end_of_chunks, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    with refused(ValueError, "rotary positions by index count points that do not exist"):
        operator(COUNTED, evaluation=StepLoop())(u, Sequence(6, mask=kept))


def test_refuses_states_that_do_not_fit():
    op, u = operator("LSTM"), torch.randn(2, 5, 4, dtype=torch.float64)
    with refused(ValueError, "the state has batch size 3 but the signal has 2", "initial_state(2)"):
        op.scan(u, state=op.initial_state(3))
    with refused(ValueError, "the state has batch size 3"):
        op.step(u[:, 0], op.initial_state(3))
    with refused(TypeError, "a state of LSTM is a tuple of 2 tensors", "Tensor"):
        op.step(u[:, 0], torch.zeros(2, 4))  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "u must be one point, (batch, channels)", "(2, 5, 4)"):
        op.step(u, op.initial_state(2))
    with refused(ValueError, "reset must be (2, 5) bool", "(5,)"):
        op.scan(u, reset=torch.zeros(5, dtype=torch.bool))


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (1.5, "1.5"),
        (torch.tensor(1.5), "() torch.float32"),
        (torch.tensor([1.0, 2.0, 3.0]), "(3,) torch.float32"),
        (torch.tensor([[1.0], [2.0]]), "(2, 1) torch.float32"),
        (torch.tensor([1, 2]), "(2,) torch.int64"),
    ],
)
def test_refuses_times_that_are_not_one_per_entry(time, message):
    op, u = IntegralOperator(kernels.LinearRNN(4, 4)), torch.randn(2, 4)
    with refused(ValueError, "time must be a float tensor (2,)", f"got {message}"):
        op.step(u, op.initial_state(2), time)
    with refused(ValueError, "time is on meta but u is on cpu"):
        op.step(u, op.initial_state(2), torch.zeros(2, device="meta"))


def test_refuses_kernels_that_carry_no_state():
    u = torch.randn(2, 5, 4)
    op = IntegralOperator(kernels.Pointwise(4, 4))
    with refused(TypeError, "IntegralOperator.scan: Pointwise carries no state"):
        op.scan(u)
    with refused(TypeError, "IntegralOperator.initial_state: Pointwise carries no state"):
        op.initial_state(2)
    op = IntegralOperator(kernels.LSTM(4, 4) + 2.0 * kernels.Pointwise(4, 4))
    with refused(TypeError, "Pointwise carries no state along a sequence"):
        op.initial_state(2)
    with refused(ValueError, "TermByTerm: Pointwise carries no state along a sequence"):
        op.scan(u)
    op = IntegralOperator(kernels.Attention(4, 2))
    with refused(ValueError, "IntegralOperator.step: Attention looks ahead", "is_causal=True"):
        op.step(u[:, 0], (u, u))
    op = IntegralOperator(kernels.LSTM(4, 4), evaluation=Dense())
    with refused(ValueError, "Dense carries no state", "evaluation=Auto()"):
        op.scan(u)
    op = IntegralOperator(kernels.LSTM(4, 4) + kernels.LSTM(4, 4), evaluation=TermByTerm(Dense()))
    with refused(ValueError, "TermByTerm refuses this integral: Dense carries no state"):
        op.scan(u)
    for name in CACHES:
        op = operator(name)
        with refused(ValueError, "a state that holds every point cannot be cleared"):
            op.scan(u.double(), reset=torch.zeros(2, 5, dtype=torch.bool))
        with refused(ValueError, "keeps neither resets nor masks"):
            op.scan(u.double(), Sequence(5, mask=torch.ones(5, dtype=torch.bool)))


@pytest.mark.parametrize("name", ["linear RNN", "S4D", "Mamba", "LSTM"])
def test_a_recurrence_refuses_domains_without_order_and_other_queries(name):
    op = operator(name, residual=False)
    u = torch.randn(1, 4, 4, dtype=torch.float64)
    with refused(ValueError, "Grid(2, 2)"):
        op(u, Grid(2, 2))
    with refused(ValueError):
        op(u, Sequence(4), query_domain=Sequence(3))


def test_the_loop_refuses_points_that_share_a_time():
    u = torch.randn(1, 3, 4)
    loop = StepLoop()
    causal = kernels.LinearAttention(4, is_causal=True)
    tied = Sequence(times=torch.tensor([0.0, 0.5, 0.5]))
    assert loop.unsupported_reasons(Integral(causal, u, tied)) == ["points that share a time see each other"]
    assert loop.unsupported_reasons(Integral(kernels.LinearRNN(4, 3), u, tied)) == []
    assert "looks ahead" in loop.unsupported_reasons(Integral(kernels.Attention(4), u, Sequence(3)))[0]
    weighted = Points(torch.rand(3, 1), weights=torch.rand(3))
    assert "the measure was given" in loop.unsupported_reasons(Integral(causal, u, weighted))[0]
