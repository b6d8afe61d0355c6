from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator
from fredholm.domains import Grid, Sequence, Union
from fredholm.evaluation import AUTO, Dense, Evaluation, Integral, NativeRecurrence, StepLoop
from fredholm.evaluation.recurrence import native
from fredholm.evaluation.recurrence.cell_gradients import CellInputs
from fredholm.evaluation.recurrence.native import fused_recurrence_op
from fredholm.kernels import Pointwise
from fredholm.kernels.recurrence.cell_recurrence import CellRecurrence
from tests.contracts.cells import CELLS, assert_near, gradients, pair, state_of
from tests.contracts.routes import check_route
from tests.pretended_device import DEVICE, pretending

pytestmark = pytest.mark.usefixtures("poisoned_memory")
names = pytest.mark.parametrize("name", CELLS)

MASKS = {
    "whole": None,
    "all exist": torch.ones(3, 7, dtype=torch.bool),
    "padded": torch.arange(7) < torch.tensor([4, 7, 1])[:, None],
    "shared padding": torch.arange(7) < 5,
    "gaps, and one without points": torch.tensor(
        [[False, True, True, False, True, False, True], [False] * 7, [True, False, False, True, True, True, False]]
    ),
}
RESETS = {
    "never": None,
    "nowhere": torch.zeros(3, 7, dtype=torch.bool),
    # at the first point, at one that does not exist, at two adjacent ones, and at the last
    "resets": torch.tensor([[1, 0, 0, 1, 0, 1, 0], [0, 0, 1, 1, 0, 0, 1], [0, 1, 0, 0, 0, 1, 1]]).bool(),
}


def operator(kernel: CellRecurrence, evaluation: Evaluation = AUTO) -> IntegralOperator:
    return IntegralOperator(kernel, evaluation=evaluation, residual=False, bias=False, output_projection=False)


def run(
    call: Any, u: Tensor, mask: Tensor | None, state: tuple[Tensor, ...] | None, reset: Tensor | None
) -> list[Tensor]:
    out, end = call(u, Sequence(u.shape[1], mask=mask), state=state, reset=reset)
    return [out, *end]


@pytest.mark.pairs
@names
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reset", RESETS.values(), ids=RESETS.keys())
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_equals_the_step_loop_with_states_and_gradients(name, mask, reset, bias):
    kernel, _ = pair(name, bias=bias)
    u, state = torch.randn(3, 7, 3, dtype=torch.float64).requires_grad_(), state_of(kernel, 3)
    leaves = [u, *state, *kernel.weights]
    got, expected = (run(operator(kernel, e).scan, u, mask, state, reset) for e in (NativeRecurrence(), StepLoop()))
    assert_near(got, expected, 1e-12)
    assert_near(gradients(got, leaves), gradients(expected, leaves), 1e-10)


@names
@pytest.mark.parametrize("length", [0, 1, 8])
def test_equals_the_dense_oracle(name, length):
    kernel, _ = pair(name)
    check_route(NativeRecurrence(), Integral(kernel, torch.randn(2, length, 3).double(), Sequence(length)))


@names
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_equals_the_dense_oracle_where_points_are_missing(name, mask):
    kernel, _ = pair(name)
    u, domain = torch.randn(3, 7, 3, dtype=torch.float64).requires_grad_(), Sequence(7)
    got, expected = (operator(kernel, e)(u, domain, key_padding_mask=mask) for e in (NativeRecurrence(), Dense()))
    assert_near([got], [expected], 1e-12)
    leaves = [u, *kernel.weights]
    assert_near(gradients([got], leaves), gradients([expected], leaves), 1e-10)


@names
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("reset", RESETS.values(), ids=RESETS.keys())
def test_the_custom_operator_gives_the_same_results(name, mask, reset):
    kernel, _ = pair(name, bias=mask is None)
    u, state = torch.randn(3, 7, 3, dtype=torch.float64).requires_grad_(), state_of(kernel, 3)
    leaves = [u, *state, *kernel.weights]
    mask = None if mask is None else mask.expand(3, 7)
    inputs = CellInputs.of(u, state, kernel.weights, mask, reset)
    got = [part for part in fused_recurrence_op(inputs, kernel.mode) if part is not None]
    out, *ends = run(operator(kernel, NativeRecurrence()).scan, u, mask, state, reset)
    assert_near(got, [out, *ends], 0.0)
    assert_near(gradients(got, leaves), gradients([out, *ends], leaves), 1e-12)


def test_the_custom_operator_passes_opcheck():
    kernel, _ = pair("lstm")
    u, mask = torch.randn(2, 4, 3, dtype=torch.float64).requires_grad_(), torch.tensor([[True, True, False, True]] * 2)
    arguments = (list(CellInputs.of(u, state_of(kernel, 2), kernel.weights, mask, None)), "lstm")
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.fredholm.fused_recurrence.default, arguments, test_utils=utils)


@names
@pytest.mark.parametrize("mask", [None, torch.zeros(2, 5, dtype=torch.bool)], ids=["no points", "none exist"])
def test_nothing_to_integrate_gives_zero_and_returns_the_state(name, mask):
    kernel, _ = pair(name)
    u = torch.randn(2, 0 if mask is None else 5, 3, dtype=torch.float64).requires_grad_()
    state = state_of(kernel, 2)
    out, *ends = run(operator(kernel).scan, u, mask, state, None)
    assert not out.any()
    assert all(torch.equal(end, part) for end, part in zip(ends, state, strict=True))
    leaves = [u, *kernel.weights, *state]
    inputs = CellInputs.of(u, state, kernel.weights, mask, None)
    compiled = [part for part in fused_recurrence_op(inputs, kernel.mode) if part is not None]
    for results in ([out, *ends], compiled):
        *inner, d_state = gradients(results, leaves)
        assert not any(grad.any() for grad in inner[: 1 + len(kernel.weights)])
        assert d_state.all()


@names
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_steps_equal_the_whole_sequence_at_every_split(name, dtype, tolerance):
    kernel, _ = pair(name)
    op = operator(kernel.to(dtype))
    u = torch.randn(2, 8, 3, dtype=dtype)
    with torch.no_grad():
        whole, end = op.scan(u)
        for split in range(9):
            out, state = op.scan(u[:, :split])
            rows = [out]
            for t in range(split, 8):
                row, state = op.step(u[:, t], state)
                rows.append(row[:, None])
            assert_near([torch.cat(rows, dim=1), *state], [whole, *end], tolerance)


@names
def test_chunks_carry_the_state_and_its_gradient(name):
    kernel, _ = pair(name)
    op, u = operator(kernel), torch.randn(2, 9, 3, dtype=torch.float64).requires_grad_()
    leaves = [u, *kernel.weights]
    whole, end = op.scan(u)
    state, outs = None, []
    for chunk in u.split([4, 1, 4], dim=1):
        out, state = op.scan(chunk, state=state)
        outs.append(out)
    assert state is not None
    got = [torch.cat(outs, dim=1), *state]
    assert_near(got, [whole, *end], 1e-12)
    assert_near(gradients(got, leaves), gradients([whole, *end], leaves), 1e-10)


@names
def test_low_precision(name):
    kernel, _ = pair(name)
    u = torch.randn(3, 17, 3, dtype=torch.float64)
    mask = torch.arange(17) < torch.tensor([17, 5, 11])[:, None]
    for keep in (None, mask):
        expected = run(operator(kernel.double()).scan, u, keep, None, None)
        kernel.float()
        single = run(operator(kernel).scan, u.float(), keep, None, None)
        assert_near(single, expected, 1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            automatic = run(operator(kernel).scan, u.bfloat16(), keep, None, None)
        assert all(part.dtype == torch.float32 for part in automatic)
        assert_near(automatic, expected, 2e-2)
        kernel.bfloat16()
        half = run(operator(kernel).scan, u.bfloat16(), keep, None, None)
        assert all(part.dtype == torch.bfloat16 for part in half)
        assert_near(half, expected, 5e-2)


@names
def test_gradients_in_float32(name):
    kernel, _ = pair(name)
    u, found = torch.randn(3, 17, 3, dtype=torch.float64), []
    for dtype in (torch.float64, torch.float32):
        leaf, state = u.to(dtype).requires_grad_(), kernel.to(dtype).initial_state(3)
        results = run(operator(kernel).scan, leaf, None, state, None)
        found.append(gradients(results, [leaf, *kernel.weights]))
    assert_near(found[1], found[0], 1e-5)


@names
@pytest.mark.parametrize("bias", [True, False])
def test_on_a_gpu_weights_are_contiguous_in_one_buffer(monkeypatch, name, bias):
    kernel, _ = pair(name, bias=bias)
    seen, called = [], native._FUNCTIONS[kernel.mode]
    monkeypatch.setitem(native._FUNCTIONS, kernel.mode, lambda *args: seen.append(args[2]) or called(*args))
    u, domain, found = torch.randn(2, 7, 3, dtype=torch.float64), Sequence(7), []
    with pretending():
        for device in ("cpu", DEVICE):
            kernel.to(device)
            out, *_ = operator(kernel).scan(u.to(device), domain.to(device))
            found.append([t.cpu() for t in (out, *gradients([out], kernel.weights))])
    assert_near(found[1], found[0], 1e-12)
    apart, together = seen
    assert len({w.untyped_storage().data_ptr() for w in apart}) == len(apart)
    begin = together[0].untyped_storage().data_ptr()
    before = [sum(w.numel() for w in together[:i]) for i in range(len(together))]
    assert [w.data_ptr() - begin for w in together] == [8 * numbers for numbers in before]
    # with room for the two biases that cuDNN expects
    rows = kernel.num_gates * kernel.state_dim
    assert together[0].untyped_storage().nbytes() == 8 * rows * (kernel.in_dim + kernel.state_dim + 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@names
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.filterwarnings("error")
def test_cuda_does_not_warn_about_scattered_weights(name, bias):
    kernel, layer = pair(name, 5, 7, bias=bias)
    kernel.float().cuda()
    layer.float().cuda()
    u, domain = torch.randn(2, 9, 5, device="cuda").requires_grad_(), Sequence(9).to("cuda")
    out, *_ = operator(kernel).scan(u, domain)
    expected, _ = layer(u)
    assert_near([out], [expected], 1e-5)
    assert_near(gradients([out], kernel.weights), gradients([expected], list(layer.parameters())), 1e-5)


@names
def test_is_chosen_for_cells(name):
    kernel, _ = pair(name)
    assert operator(kernel).explain(torch.randn(2, 5, 3).double()).startswith("NativeRecurrence")


@pytest.mark.parametrize("route", [NativeRecurrence(), StepLoop()], ids=lambda route: route.name)
def test_refusals(route: Evaluation):
    kernel, _ = pair("gru")
    u = torch.randn(2, 6, 3).double()
    assert route.unsupported_reasons(Integral(Pointwise(3, 3), u, Sequence(6)))[0].startswith("Pointwise is not marked")
    assert route.unsupported_reasons(Integral(kernel, u, Grid(2, 3))) == ["the domain does not order its points"]
    weighted = Sequence(6, weights=torch.ones(6))
    assert "the measure was given" in route.unsupported_reasons(Integral(kernel, u, weighted))[0]
    joined = Union(Sequence(2), Sequence(4), mass=(0.5, 0.5))
    assert "the measure was given" in route.unsupported_reasons(Integral(kernel, u, joined))[0]
    (elsewhere,) = route.unsupported_reasons(Integral(kernel, u, Sequence(6), u, Sequence(6, first=1)))
    assert "not the points of the signal" in elsewhere
    assert not route.unsupported_reasons(Integral(kernel, u, Sequence(6), 2 * u, Sequence(6)))  # equal, and u(x) unread


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["lstm", "relu"])
def test_compiles_to_one_graph_for_every_length(name):
    kernel, _ = pair(name)
    op = operator(kernel)
    compiled = torch.compile(op.scan, fullgraph=True, backend="aot_eager")
    for batch, length in ((3, 7), (2, 9), (3, 4)):
        u, state = torch.randn(batch, length, 3, dtype=torch.float64).requires_grad_(), state_of(kernel, batch)
        mask, reset = torch.rand(batch, length) > 0.3, torch.rand(batch, length) > 0.7
        leaves = [u, *state, *kernel.weights]
        got, expected = (run(call, u, mask, state, reset) for call in (compiled, op.scan))
        assert_near(got, expected, 1e-12)
        assert_near(gradients(got, leaves), gradients(expected, leaves), 1e-10)


@pytest.mark.long
@pytest.mark.usefixtures("fresh_compiler")
def test_with_code_generation():
    kernel, _ = pair("gru")
    op, u = operator(kernel), torch.randn(2, 6, 3, dtype=torch.float64).requires_grad_()
    mask = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    leaves = [u, *kernel.weights]
    got, expected = (run(call, u, mask, None, None) for call in (torch.compile(op.scan, fullgraph=True), op.scan))
    assert_near(got, expected, 1e-12)
    assert_near(gradients(got, leaves), gradients(expected, leaves), 1e-10)
