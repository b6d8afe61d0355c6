"""Chunks and steps of perceptron kernels, whose state holds every point, equal the whole sequence."""

import functools
import itertools
from collections.abc import Sequence as Cuts

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator
from fredholm.domains import Domain, Sequence
from fredholm.evaluation import AUTO, Dense, Integral, StatefulEvaluation, Tiled, Toeplitz
from fredholm.kernels import MLP, KernelInputs, LowRankMLP, Stateful, Sum
from tests.contracts.routes import TOLERANCE, check_chunks, compare, randomise
from tests.contracts.small_perceptron import small_perceptron
from tests.contracts.weighed_domains import uniform
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
ALL = KernelInputs.__dataclass_fields__
FORMS = {
    "all inputs": {},
    "one kernel for all heads": {"head_shared": True},
    "three layers": {"depth": 3},
    "raw coordinates": {"num_frequencies": 0},
    "distance": {"inputs": KernelInputs(**{name: name == "distance" for name in ALL})},
    "positions": {"inputs": KernelInputs(query_content=False, key_content=False, product=False)},
    "content": {"inputs": KernelInputs(**{name: name in ("query_content", "key_content", "product") for name in ALL})},
    "nothing": {"inputs": KernelInputs(**dict.fromkeys(ALL, False))},
}


def make(form: str, heads: int = 2, dtype: torch.dtype = torch.float64) -> MLP:
    return randomise(MLP(2 * heads, heads, is_causal=True, **small_perceptron(**FORMS[form])).to(dtype))


@pytest.mark.pairs
@pytest.mark.parametrize("elements", [7, 100, None])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_chunks_and_steps_equal_the_whole_sequence(form: str, heads: int, elements: int | None) -> None:
    kernel, u = make(form, heads), torch.randn(2, 7, 2 * heads, dtype=torch.float64)
    check_chunks(Tiled(elements), kernel, u, 1e-10, uniform(7).sort().values)
    if not kernel.reads_time:
        check_chunks(Tiled(elements), kernel, u, 1e-10)


def scanned(route: StatefulEvaluation, kernel: Stateful, u: Tensor, times: Tensor, cuts: Cuts[int]) -> Tensor:
    """The integral computed in chunks that end at `cuts`."""
    state, outs = None, []
    for first, stop in itertools.pairwise([0, *cuts, u.shape[1]]):
        chunk = Integral(kernel, u[:, first:stop], Sequence(times=times[..., first:stop]))
        out, state = route.run(chunk, state)
        outs.append(out)
    return torch.cat(outs, 1)


def found(out: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    grads = torch.autograd.grad(out.sin().sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    return {"integral": out.detach()} | dict(zip(leaves, grads, strict=True))


@pytest.mark.sampled
@pytest.mark.parametrize("per_entry", [False, True], ids=["one set of times", "times per entry"])
@pytest.mark.parametrize("form", FORMS)
def test_every_gradient_flows_through_a_state(form: str, per_entry: bool) -> None:
    kernel, u = make(form), torch.randn(2, 9, 4, dtype=torch.float64)
    times = uniform(2, 9).sort(-1).values if per_entry else uniform(9).sort().values
    leaves = {"u": u.requires_grad_(), "times": times.requires_grad_(), **dict(kernel.named_parameters())}
    expected = found(Dense().integrate(Integral(kernel, u, Sequence(times=times))), leaves)
    for cuts in ((), (4,), (0, 1, 6, 6), range(1, 9)):
        compare(found(scanned(Tiled(60), kernel, u, times, cuts), leaves), expected, 1e-10)


@pytest.mark.slow
def test_a_past_of_more_than_one_tile() -> None:
    kernel, u = make("all inputs"), torch.randn(1, 600, 4, dtype=torch.float64)
    times = torch.arange(600, dtype=torch.float64) / 128
    whole = Tiled(50).integrate(Integral(kernel, u, Sequence(times=times)))
    got = scanned(Tiled(50), kernel, u, times, (590, 599))
    torch.testing.assert_close(got, whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_stays_near_the_float64_oracle(dtype: torch.dtype) -> None:
    kernel, u, times = make("all inputs"), torch.randn(2, 31, 4, dtype=torch.float64), torch.arange(31) / 32
    exact = Dense().integrate(Integral(kernel, u, Sequence(times=times)))
    kernel.float()
    rough = u.float()
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        got = scanned(Tiled(), kernel, rough, times, (1, 20, 30))
        out, _ = kernel.step(rough[:, 0], kernel.initial_state(2), times[:1].expand(2))
    assert got.dtype == dtype
    compare({"integral": got}, {"integral": exact}, TOLERANCE[dtype])
    compare({"integral": out}, {"integral": exact[:, 0]}, TOLERANCE[dtype])
    kernel.to(dtype)
    out, (signal, at) = kernel.step(rough[:, 0].to(dtype), kernel.initial_state(2), times[:1].expand(2))
    assert (out.dtype, signal.dtype, at.dtype) == (dtype, dtype, torch.float64)


def test_large_times_stay_precise() -> None:
    """A state always holds times in float64."""
    kernel, u = make("all inputs").float(), torch.randn(1, 6, 4)
    times = 1e5 + torch.arange(6, dtype=torch.float64) / 256
    whole = Tiled().integrate(Integral(kernel, u, Sequence(times=times)))
    torch.testing.assert_close(scanned(Tiled(), kernel, u, times, (2, 3)), whole, atol=1e-5, rtol=1e-5)


def test_a_prompt_on_a_grid_uses_the_table_and_can_be_continued() -> None:
    kernel, u = make("all inputs"), torch.randn(2, 9, 4, dtype=torch.float64)

    def place(first: int, stop: int) -> Domain:
        return Sequence(stop - first, spacing=0.25, start=0.5 + 0.25 * first)

    whole = Dense().integrate(Integral(kernel, u, place(0, 9)))
    prompt = Integral(kernel, u[:, :6], place(0, 6))
    for state in (None, kernel.initial_state(2)):
        first, after = Toeplitz().run(prompt, state)
        rest = Integral(kernel, u[:, 6:], place(6, 9))
        assert Toeplitz().unsupported_run_reasons(rest, after) == [
            "earlier points are not on the grid of the next ones"
        ]
        second, (signal, times) = AUTO.run(rest, after)
        torch.testing.assert_close(torch.cat([first, second], 1), whole, atol=1e-12, rtol=0)
        assert torch.equal(signal, u)
        torch.testing.assert_close(times[1, :, 0], place(0, 9).times)


def test_chunks_that_do_not_follow_the_state_are_refused() -> None:
    kernel, u = make("all inputs"), torch.randn(1, 3, 4, dtype=torch.float64)
    route, times = Tiled(), torch.tensor([0.0, 0.5, 0.75], dtype=torch.float64)
    _, state = route.run(Integral(kernel, u, Sequence(times=times)))
    with refused(ValueError, "reads positions, and Sequence(3) does not continue", "Sequence(times=...)"):
        route.run(Integral(kernel, u, Sequence(3)), state)
    for late in (0.0, 0.7):
        with refused(ValueError, "Tiled refuses", f"comes {late - 0.75:.4g} after the last", "must come later"):
            route.run(Integral(kernel, u, Sequence(times=late + times)), state)
    with refused(ValueError, "comes 0 after the last", "must come later"):
        route.run(Integral(kernel, u, Sequence(times=0.75 + times)), state)
    tied = Sequence(times=torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64))
    for tied_kernel in (kernel, make("content")):
        with refused(ValueError, "points that share a time see each other"):
            route.run(Integral(tied_kernel, u, tied))
    for where in (Sequence(3, mask=times < 0.6), Sequence(3, weights=times)):
        with refused(ValueError, "keeps neither resets nor masks and weights"):
            route.run(Integral(kernel, u, where))
    with refused(ValueError, "cannot be cleared", "keeps neither resets"):
        route.run(Integral(kernel, u, Sequence(3)), None, torch.zeros(1, 3, dtype=torch.bool))


def test_the_total_measure_is_refused() -> None:
    total = MLP(4, 2, is_causal=True, causal_measure="total")
    u, message = torch.randn(1, 3, 4), ("share of the whole measure", "causal_measure='past'")
    for route in (Tiled(), Toeplitz()):
        with refused(ValueError, *message):
            route.run(Integral(total, u, Sequence(3)))
    operator = IntegralOperator(total)
    with refused(ValueError, *message):
        operator.initial_state(1)
    with refused(ValueError, *message):
        operator.scan(u)
    with refused(ValueError, *message):
        Sum([total, LowRankMLP(4, 2, rank=2, is_causal=True)]).initial_state(1)


@pytest.mark.long
@pytest.mark.parametrize("form", ["all inputs", "content"])
@pytest.mark.usefixtures("fresh_compiler")
def test_steps_and_chunks_compile_in_one_graph(form: str) -> None:
    operator = IntegralOperator(make(form)).double()
    u, times = torch.randn(2, 5, 4, dtype=torch.float64), torch.arange(5, dtype=torch.float64) / 8
    step = torch.compile(operator.step, fullgraph=True, backend="aot_eager")
    scan = torch.compile(operator.scan, fullgraph=True, backend="aot_eager")
    whole, state = operator(u, Sequence(times=times)), operator.initial_state(2)
    for t in range(3):
        out, state = step(u[:, t], state, times[t].expand(2))
        torch.testing.assert_close(out, whole[:, t])
    out, state = scan(u[:, 3:], Sequence(2, spacing=1 / 8, start=3 / 8), state=state)
    torch.testing.assert_close(out, whole[:, 3:])
    assert torch.equal(state[0], u)


@pytest.mark.parametrize("kind", ["exact", "low rank"])
def test_chunks_of_a_sequence_give_their_first_index(kind: str) -> None:
    build = MLP if kind == "exact" else functools.partial(LowRankMLP, rank=3)
    op = IntegralOperator(randomise(build(4, 2, 1, is_causal=True, **small_perceptron()))).double()
    u = torch.randn(2, 7, 4, dtype=torch.float64)
    first, state = op.scan(u[:, :4], Sequence(4))
    second, state = op.scan(u[:, 4:6], Sequence(2, first=4), state=state)
    last, _ = op.scan(u[:, 6:], Sequence(1, first=6), state=state)
    torch.testing.assert_close(torch.cat([first, second, last], 1), op(u))
    with refused(ValueError, "does not continue those of a sequence", "Sequence(n, first=...)") as _:
        op.scan(u[:, 6:], Sequence(1), state=state)
