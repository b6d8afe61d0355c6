"""The scan of linear recurrences equals the dense oracle and single steps."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator
from fredholm.domains import Domain, Grid, Points, Sequence
from fredholm.evaluation import Dense, Integral, Scan, StepLoop
from fredholm.kernels import MLP, DiagonalStateSpace, Kernel, LinearRNN, LinearSystem, SelectiveStateSpace, Stateful
from tests.contracts.routes import TOLERANCE, check_route, compare, results

pytestmark = pytest.mark.usefixtures("poisoned_memory")

KERNELS = {
    "linear rnn": lambda: LinearRNN(3, 4, 2),
    "linear rnn, affine": lambda: LinearRNN(3, 4, 2, feedthrough=True, bias=True),
    "euler": lambda: LinearSystem(2, 3, 1, rule="euler", step_size=0.3, first_step=0.2),
    "bilinear": lambda: LinearSystem(2, 3, 3, rule="bilinear", step_size=0.3, first_step=0.2),
    "zoh": lambda: LinearSystem(2, 3, rule="zoh", step_size=0.3, first_step=0.2, feedthrough=True),
    "s4d zoh": lambda: DiagonalStateSpace(3, 4),
    "s4d bilinear": lambda: DiagonalStateSpace(3, 6, rule="bilinear", feedthrough=False),
    "mamba": lambda: SelectiveStateSpace(3, 2),
    "selective zoh": lambda: SelectiveStateSpace(3, 2, input_rule="zoh", feedthrough=False),
}
ROUTES = {"whole": Scan(), "small": Scan(chunk=3, window_elements=1)}
IN_TIME = ("euler", "bilinear", "zoh")
LENGTH = 19


def keep(*shape: int) -> Tensor:
    """A random mask; with one mask per entry, the second begins with two points that do not exist."""
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(1)) > 0.4
    if len(shape) == 2:
        mask[1, :2] = False
    return mask


def times(*shape: int) -> Tensor:
    steps = torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return steps.cumsum(-1) - 3.0


DOMAINS: dict[str, Domain] = {
    "regular": Sequence(LENGTH),
    "one point": Sequence(1),
    "no point": Sequence(0),
    "masked": Sequence(LENGTH, mask=keep(LENGTH)),
    "masked per entry": Sequence(LENGTH, mask=keep(2, LENGTH)),
    "weighted": Sequence(LENGTH, weights=torch.rand(2, LENGTH, dtype=torch.float64)),
    "times": Sequence(times=times(LENGTH)),
    "times, masked": Sequence(times=times(LENGTH), mask=keep(LENGTH)),
    "times per entry, masked": Sequence(times=times(2, LENGTH), mask=keep(2, LENGTH)),
    "no point, masked": Sequence(times=times(0), mask=keep(0)),
    "coinciding times": Sequence(times=times(8).repeat_interleave(2)),
    "points on a line": Points(torch.rand(5, 1, dtype=torch.float64), weights=torch.rand(5, dtype=torch.float64)),
}


def make(name: str, domain: Domain, dtype: torch.dtype = torch.float64, batch: int = 2) -> Integral:
    torch.manual_seed(7)
    kernel = KERNELS[name]().to(dtype)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    u = torch.randn(batch, domain.num_points, kernel.in_dim, dtype=dtype)
    if domain.mask is not None:
        u = torch.where(domain.mask[..., None], u, 0.0)
    return Integral(kernel, u, domain)


@pytest.mark.pairs
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", KERNELS)
def test_equals_dense_forward_and_in_every_gradient(name, domain, route):
    check_route(ROUTES[route], make(name, DOMAINS[domain]))


def carried(route: Scan | StepLoop, problem: Integral, state: tuple[Tensor, ...], reset: Tensor) -> dict[str, Tensor]:
    """Result, final state, and gradients of a functional of both by all inputs and parameters."""
    kernel = problem.kernel
    leaves = [part.detach().requires_grad_() for part in state]
    everything = [problem.u.requires_grad_(), leaves[0], *kernel.parameters()]
    out, final = route.run(Integral(kernel, problem.u, problem.domain), tuple(leaves), reset)
    if problem.domain.mask is not None:
        out = torch.where(problem.domain.mask[..., None], out, 0.0)
    functional = out.square().sum() + (final[0] * (1 + torch.arange(final[0].numel()).view_as(final[0]))).abs().sum()
    grads = torch.autograd.grad(functional, everything, allow_unused=True)
    found = {f"grad {i}": g for i, g in enumerate(grads) if g is not None}
    found["final state"] = final[0].detach()
    for clock in final[1:]:
        found["time"] = clock.masked_fill(clock == -torch.inf, -99.0)
    return {"out": out.detach(), **{n: torch.view_as_real(g) if g.is_complex() else g for n, g in found.items()}}


def state_for(kernel: Kernel, batch: int) -> tuple[Tensor, ...]:
    assert isinstance(kernel, Stateful)
    h, *clock = kernel.initial_state(batch)
    return torch.randn_like(h), *(part.new_full(part.shape, -4.0) for part in clock)


@pytest.mark.pairs
@pytest.mark.parametrize("resets", ["none", "some", "everywhere"])
@pytest.mark.parametrize("domain", ["masked per entry", "times per entry, masked", "no point"])
@pytest.mark.parametrize("name", KERNELS)
def test_equals_the_step_loop_between_states_with_resets(name, domain, resets):
    problem = make(name, DOMAINS[domain])
    length = problem.domain.num_points
    some, nowhere = ~keep(2, length + 9)[:, 9:], torch.zeros(2, length, dtype=torch.bool)
    reset = {"none": nowhere, "some": some, "everywhere": ~nowhere}
    state = state_for(problem.kernel, 2)
    expected = carried(StepLoop(), problem, state, reset[resets])
    for route in ROUTES.values():
        compare(carried(route, problem, state, reset[resets]), expected, 1e-10)


@pytest.mark.parametrize(
    ("name", "domain"),
    [(name, "times per entry, masked" if name in IN_TIME else "masked per entry") for name in KERNELS]
    + [(name, "times" if name in IN_TIME else "regular") for name in KERNELS],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_steps_and_two_chunks_equal_the_whole_at_every_split(name, domain, dtype, tolerance):
    whole = make(name, DOMAINS[domain], dtype)
    kernel, u, n = whole.kernel, whole.u, LENGTH
    operator = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
    domain = whole.domain
    t = None if domain.times is None else domain.times.expand(2, n)
    mask = None if domain.mask is None else domain.mask

    def part(at: slice) -> Domain:
        piece = None if mask is None else mask[:, at]
        return Sequence(at.stop - at.start, mask=piece) if t is None else Sequence(times=t[:, at], mask=piece)

    with torch.no_grad():
        expected = operator(u, domain)
        assert expected.abs().max() > 0.1
        bound = tolerance * expected.abs().max()
        for split in range(n + 1):
            head, state = operator.scan(u[:, :split], part(slice(0, split)))
            tail, _ = operator.scan(u[:, split:], part(slice(split, n)), state=state)
            assert (torch.cat([head, tail], dim=1) - expected).abs().max() <= bound
        if mask is None:
            state, rows = operator.initial_state(2), []
            for k in range(n):
                row, state = operator.step(u[:, k], state, None if t is None else t[:, k])
                rows.append(row)
            assert (torch.stack(rows, dim=1) - expected).abs().max() <= bound


@hypothesis.given(
    name=st.sampled_from(["mamba", "s4d zoh", "linear rnn, affine"]), length=st.integers(0, 70),
    batch=st.integers(1, 3), chunk=st.none() | st.integers(1, 40), elements=st.none() | st.integers(1, 2000),
)  # fmt: skip
def test_any_cut_of_any_length(name, length, batch, chunk, elements):
    problem = make(name, Sequence(length), batch=batch)
    with torch.no_grad():
        (expected, end), (got, final) = (route.run(problem) for route in (StepLoop(), Scan(chunk, elements)))
    assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12)
    assert torch.allclose(final[0], end[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "mamba",
        "s4d zoh",
        "linear rnn, affine",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("selective zoh", "zoh")),
    ],
)
def test_gradcheck(name):
    """A real, a complex and a dense transition; other discretisation rules are covered by the long tests."""
    problem = make(name, Sequence(5), batch=1)
    kernel = problem.kernel
    assert isinstance(kernel, Stateful)
    h = state_for(kernel, 1)[0].requires_grad_()
    clock = kernel.initial_state(1)[1:]
    reset = torch.tensor([[False, False, False, True, False]])

    def run(u: Tensor, h: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        out, final = Scan(chunk=2, window_elements=1).run(Integral(kernel, u, problem.domain), (h, *clock), reset)
        return out, torch.view_as_real(final[0]) if final[0].is_complex() else final[0]

    signals = [problem.u.requires_grad_(), h]
    assert torch.autograd.gradcheck(run, [*signals, *kernel.parameters()])
    assert torch.autograd.gradcheck(run, signals, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, signals, check_fwd_over_rev=True, fast_mode=True)


OTHERS_TO_COMPILE = ("linear rnn, affine", "zoh", "s4d bilinear", "selective zoh")


@pytest.mark.parametrize("varies", [False, True])
def test_the_operators_pass_opcheck(varies):
    T, B, n, d = 5, 2, 3, 4
    shapes = [(n, d), (B, T, d) if varies else (d,), (B, T, d), (B, T, n) if varies else (n, d)]
    shapes += [(B, T, n) if varies else (n, d), (B, n, d), (B, T)]
    tensors = [torch.rand(shape, dtype=torch.float64) for shape in shapes]
    tensors = [t.requires_grad_(i != 6) for i, t in enumerate(tensors)]
    torch.library.opcheck(torch.ops.fredholm.diagonal_scan.default, (tensors, varies, 2, 2, 0))
    shapes = [(B if varies else 1, T if varies else 1, n, n), (B, T, n), (B, n)]
    tensors = [torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    flags = [keep(B, T), ~keep(B, T)] if varies else [None, None]
    torch.library.opcheck(torch.ops.fredholm.matrix_scan.default, ([*tensors, *flags], 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mamba", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS_TO_COMPILE)])
def test_compiles_in_one_graph_for_any_length_with_its_gradient(name):
    torch.compiler.reset()
    problem = make(name, Sequence(1), torch.float32)
    operator = IntegralOperator(problem.kernel, residual=False)
    compiled = torch.compile(operator.scan, fullgraph=True, backend="aot_eager")
    for length in (5, 9):
        u = torch.randn(2, length, problem.kernel.in_dim, requires_grad=True)
        domain = Sequence(times=times(length)) if name == "zoh" else Sequence(length, mask=keep(2, length))
        (expected, state), (got, final) = operator.scan(u, domain), compiled(u, domain)
        assert torch.allclose(got, expected, atol=1e-6)
        assert torch.allclose(final[0], state[0], atol=1e-6)
        reference, found = (torch.autograd.grad(out.square().sum(), u)[0] for out in (expected, got))
        assert torch.allclose(found, reference, atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_low_precision_keeps_float32_states_near_the_float64_oracle(name):
    problem = make(name, Sequence(67))
    expected = results(Dense(), problem)
    kernel = problem.kernel.float()
    assert isinstance(kernel, Stateful)
    u = problem.u.detach().float()
    got = results(Scan(), Integral(kernel, u, problem.domain))
    compare({"integral": got["integral"]}, {"integral": expected["integral"]}, TOLERANCE[torch.float32])
    compare({"u": got["d/d u"]}, {"u": expected["d/d u"]}, TOLERANCE[torch.float32])
    with torch.autocast("cpu", torch.bfloat16):
        out, state = Scan().run(Integral(kernel, u, problem.domain))
        stepped, after = kernel.step(u[:, 0], kernel.initial_state(2))
    compare({"integral": out.detach()}, {"integral": expected["integral"]}, TOLERANCE[torch.bfloat16])
    assert (stepped - expected["integral"][:, 0]).abs().max() <= 2e-2 * expected["integral"].abs().max()
    assert torch.finfo(state[0].dtype).bits == torch.finfo(after[0].dtype).bits == 32


@pytest.mark.parametrize("name", KERNELS)
def test_a_module_in_bfloat16_works_and_keeps_float32_states(name):
    problem = make(name, Sequence(9), torch.bfloat16)
    found = results(Scan(), problem)
    assert found["integral"].dtype == torch.bfloat16
    assert all(torch.isfinite(value).all() for value in found.values())
    assert torch.finfo(Scan().run(problem)[1][0].dtype).bits == 32


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_to_integrate_gives_exactly_zero(name):
    problem = make(name, Sequence(6, mask=torch.zeros(2, 6, dtype=torch.bool)))
    found = results(Scan(), problem)
    assert not any(value.any() for value in found.values())


@pytest.mark.parametrize("name", ["mamba", "s4d zoh"])
def test_saves_the_inputs_and_only_a_few_states(name):
    kernel: Kernel = SelectiveStateSpace(32, 64) if name == "mamba" else DiagonalStateSpace(32, 128)

    def saved(n: int) -> int:
        total = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal total
            total += tensor.numel()
            return tensor

        u = torch.randn(1, n, 32, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            Scan(window_elements=1 << 15).run(Integral(kernel, u, Sequence(n)))
        return total

    points = 128
    assert saved(2 * points) - saved(points) < 0.4 * points * 32 * 64


def test_a_long_step_neither_overflows_nor_loses_the_gradient():
    kernel = SelectiveStateSpace(2, 3)
    with torch.no_grad():
        kernel.step_bias.fill_(60.0)
    problem = Integral(kernel, torch.randn(1, 70, 2), Sequence(70))
    found = results(Scan(), problem)
    assert all(torch.isfinite(value).all() for value in found.values())


def test_two_runs_are_identical():
    problem = make("mamba", Sequence(331), torch.float32)
    first, second = results(Scan(), problem), results(Scan(), problem)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_refusals():
    u = torch.randn(1, 6, 3)
    mlp, rnn = MLP(3, pos_dim=1), LinearRNN(3, 2)
    assert "not marked" in Scan().unsupported_reasons(Integral(mlp, u, Sequence(6)))[0]
    assert "does not order" in Scan().unsupported_reasons(Integral(rnn, u, Grid(2, 3)))[0]
    assert "queries" in Scan().unsupported_reasons(Integral(rnn, u, Sequence(6), None, Sequence(4)))[0]
    assert Scan().unsupported_reasons(Integral(rnn, u, Sequence(6))) == []
    with pytest.raises(ValueError, match="chunk must be at least 1 or None; got 0"):
        Scan(chunk=0)


@pytest.mark.parametrize("name", KERNELS)
def test_is_chosen_for_these_kernels(name):
    problem = make(name, DOMAINS["masked"], torch.float32)
    operator = IntegralOperator(problem.kernel, residual=False)
    assert operator.explain(problem.u, problem.domain).startswith("Scan:")
