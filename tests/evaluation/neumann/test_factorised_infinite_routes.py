"""Linear-time routes of infinite attention equal the dense oracle under all masks and weights."""

import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Domain, Points, Sequence
from fredholm.evaluation import (
    AUTO,
    Auto,
    CentralPooling,
    Dense,
    Evaluation,
    Factorisation,
    HopSeries,
    Integral,
    NeumannScan,
    StepLoop,
    Woodbury,
)
from fredholm.evaluation.neumann.scan import Chunks, chunk_states
from fredholm.kernels import FactorisedInfiniteAttention, Kernel, LinearInfiniteAttention
from tests.contracts.routes import TOLERANCE, changed, check_chunks, check_route, compare, randomise, results
from tests.contracts.weighed_domains import DOMAINS, PAIRS, domain, uniform
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
FACTORISED = {
    "plain": {},
    "rows": {"normaliser": "rows"},
    "no bias": {"bias": False, "gamma": 0.95},
    "grouped, learned": {"num_kv_heads": 2, "gamma": (0.7, 0.2, 0.3, 0.4), "learn_gamma": True},
    "grouped rows, features that vanish": {"num_kv_heads": 1, "normaliser": "rows", "feature_map": torch.relu},
}
LINEAR = {
    "plain": {},
    "no bias": {"bias": False},
    "steps and groups": {"num_central": 3, "power_steps": 2},
    "steps, learned": {"power_steps": 3, "gamma": (0.7, 0.2, 0.3, 0.4), "learn_gamma": True},
}


def problem(kernel: Kernel, where: Domain, dtype: torch.dtype = torch.float64) -> Integral:
    torch.manual_seed(1)
    u = torch.randn(2, where.num_points, 8, dtype=dtype)
    u = u if where.mask is None else torch.where(where.mask[..., None], u, 0.0)
    return Integral(randomise(kernel.to(dtype)), u, where)


@pytest.mark.sampled
@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("options", FACTORISED.values(), ids=FACTORISED.keys())
def test_woodbury_equals_dense(options, name):
    made = problem(FactorisedInfiniteAttention(8, 4, **options), domain(name))
    check_route(Woodbury(block=3, kept=0), made)


@pytest.mark.sampled
@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("options", FACTORISED.values(), ids=FACTORISED.keys())
def test_the_scan_equals_dense(options, name):
    made = problem(FactorisedInfiniteAttention(8, 4, is_causal=True, **options), domain(name))
    if name == "times that coincide":
        assert isinstance(Auto((NeumannScan(), Dense())).choose(made).route, Dense)
    else:
        check_route(NeumannScan(chunk=3), made)


@pytest.mark.pairs
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 100.0])
@pytest.mark.parametrize("normaliser", ["frobenius", "rows"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_signals_of_any_size_in_float32(is_causal, normaliser, scale):
    """Features are exponentials below 0, and the hop of a first row of tiny features is as large as any other."""
    for seed in range(3):
        torch.manual_seed(seed)
        kernel = FactorisedInfiniteAttention(16, 2, is_causal=is_causal, normaliser=normaliser)
        for parameter in kernel.parameters():
            torch.nn.init.normal_(parameter)
        made = Integral(kernel, scale * torch.randn(2, 24, 16), Sequence(24))
        routes = [AUTO.choose(made).route, StepLoop() if is_causal else Dense()]
        found = [results(route, made) for route in routes]
        made = Integral(kernel.double(), made.u.detach().double(), made.domain)
        expected = results(Dense(), made)
        for got in found:
            for name, bound in (("integral", 1e-5 if scale <= 1 else 1e-4), ("d/d u", 1e-4)):
                error = (got[name] - expected[name]).abs().max() / expected[name].abs().max()
                assert error <= bound, f"{name}: {error:.1e}"


@pytest.mark.sampled
@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("options", LINEAR.values(), ids=LINEAR.keys())
def test_central_pooling_equals_dense(options, name):
    check_route(CentralPooling(block=3, kept=0), problem(LinearInfiniteAttention(8, 4, **options), domain(name)))


@pytest.mark.parametrize("is_causal", [False, True])
def test_rows_whose_scores_underflow_keep_their_hop(is_causal):
    """Equal points have equal weights, y = γ (v + y), although φ·ψ = exp(-900) is 0 in float64."""
    kernel = FactorisedInfiniteAttention(2, bias=False, normaliser="rows", gamma=0.7, is_causal=is_causal).double()
    for parameter in kernel.parameters():
        torch.nn.init.eye_(parameter)
    u = torch.full((1, 5, 2), -450.0, dtype=torch.float64)
    expected = {"integral": 0.7 / 0.3 * u}
    routes = [HopSeries(Factorisation()), Dense(), *([NeumannScan(chunk=2), StepLoop()] if is_causal else [Woodbury()])]
    for route in routes:
        found = results(route, Integral(kernel, u, Sequence(5)))
        torch.testing.assert_close(found["integral"], expected["integral"], rtol=1e-12, atol=0.0)
        assert all(part.isfinite().all() for part in found.values())
        for name, first in (found | expected).items():
            torch.testing.assert_close(found[name], first, rtol=1e-10, atol=1e-8)
        expected = found


@pytest.mark.parametrize("normaliser", ["frobenius", "rows"])
def test_queries_elsewhere(normaliser):
    made = problem(FactorisedInfiniteAttention(8, 4, normaliser=normaliser), domain("weights"))
    made = changed(made, query=torch.randn(2, 5, 8, dtype=torch.float64), query_domain=Sequence(5))
    check_route(Woodbury(block=3, kept=0), made)
    made.kernel.is_causal = True
    (reason,) = NeumannScan().unsupported_reasons(made)
    assert reason == "the queries have a signal of their own, or are not the points of the signal"
    pooled = problem(LinearInfiniteAttention(8, 4), domain("weights"))
    pooled = changed(pooled, query_domain=Sequence(5))
    check_route(CentralPooling(block=3, kept=0), pooled)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_pair_weights_are_refused(name, is_causal):
    made = problem(FactorisedInfiniteAttention(8, 4, is_causal=is_causal), domain(name))
    route = NeumannScan() if is_causal else Woodbury()
    assert "the measure differs from query to query" in route.unsupported_reasons(made)
    out = IntegralOperator(made.kernel).double()(made.u, made.domain)
    assert torch.isfinite(out).all()


ROUTES: dict[str, tuple[Kernel, Evaluation]] = {
    "woodbury": (FactorisedInfiniteAttention(8, 4), Woodbury(block=3, kept=0)),
    "scan": (FactorisedInfiniteAttention(8, 4, is_causal=True), NeumannScan(chunk=3)),
    "rows": (FactorisedInfiniteAttention(8, 4, normaliser="rows"), Woodbury(block=3, kept=0)),
    "scan of rows": (FactorisedInfiniteAttention(8, 4, normaliser="rows", is_causal=True), NeumannScan(chunk=3)),
    "pooling": (LinearInfiniteAttention(8, 4, power_steps=2, gamma=0.5), CentralPooling(block=3, kept=0)),
}


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["masked", "weights"])
@pytest.mark.parametrize("kind", ROUTES)
def test_low_precision(kind, name, dtype):
    kernel, route = ROUTES[kind]
    rough = problem(kernel, domain(name), dtype)
    got = results(route, rough)["integral"]
    exact = Integral(kernel.double(), rough.u.detach().double(), rough.domain)
    compare({"integral": got}, {"integral": results(Dense(), exact)["integral"]}, 2 * TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ROUTES)
def test_autocast_takes_signals_of_either_precision(kind):
    kernel, route = ROUTES[kind]
    made = problem(kernel, Sequence(7, weights=torch.rand(7)), torch.float32)
    exact = route.integrate(made)
    with torch.autocast("cpu", torch.bfloat16):
        for signal in (made.u, made.u.bfloat16()):
            out = route.integrate(Integral(made.kernel, signal, made.domain))
            assert out.dtype == torch.bfloat16
            torch.testing.assert_close(out.float(), exact, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("options", [{}, {"normaliser": "rows", "num_kv_heads": 2}], ids=["frobenius", "rows"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_and_chunks_equal_the_whole_sequence(options, dtype):
    kernel = randomise(FactorisedInfiniteAttention(8, 4, is_causal=True, **options).to(dtype))
    u = torch.randn(2, 7, 8, dtype=dtype)
    check_chunks(NeumannScan(chunk=2), kernel, u, 1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.pairs
@pytest.mark.parametrize("normaliser", ["frobenius", "rows"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_features_of_any_size_give_the_same_hop(size, is_causal, normaliser):
    route = NeumannScan(chunk=3) if is_causal else Woodbury(block=3, kept=0)
    out = []
    for factor in (1.0, size):
        torch.manual_seed(0)
        kernel = FactorisedInfiniteAttention(
            8, 2, feature_map=lambda x, factor=factor: factor * x.exp(), is_causal=is_causal, normaliser=normaliser
        )
        u = torch.randn(2, 7, 8)
        out.append(route.integrate(Integral(kernel, u, Sequence(7))))
        if is_causal:
            torch.testing.assert_close(
                StepLoop().run(Integral(kernel, u, Sequence(7)))[0], out[-1], atol=1e-6, rtol=1e-5
            )
    torch.testing.assert_close(out[1], out[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("normaliser", ["frobenius", "rows"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_scores_that_are_all_zero_give_zero_without_gradient(is_causal, normaliser):
    kernel = FactorisedInfiniteAttention(
        8, 2, feature_map=torch.relu, is_causal=is_causal, normaliser=normaliser, learn_gamma=True
    )
    with torch.no_grad():
        dict(kernel.named_parameters())["projections.query_bias"].fill_(-100.0)
    u = torch.randn(2, 7, 8, requires_grad=True)
    for route in (Dense(), NeumannScan(chunk=3) if is_causal else Woodbury(block=3, kept=0)):
        out = route.integrate(Integral(kernel, u, Sequence(7)))
        assert not out.any()
        gradients = torch.autograd.grad(out.sum(), [u, *kernel.parameters()], allow_unused=True)
        assert all(g is None or not g.any() for g in gradients)
    if is_causal:
        assert not StepLoop().run(Integral(kernel, u, Sequence(7)))[0].any()


def test_nearly_the_whole_signal_passed_on():
    made = problem(FactorisedInfiniteAttention(8, 4, gamma=1 - 1e-6), Sequence(7), torch.float32)
    exact = Integral(FactorisedInfiniteAttention(8, 4, gamma=1 - 1e-6).double(), made.u.double(), made.domain)
    exact.kernel.load_state_dict(made.kernel.state_dict())
    got, expected = (results(r, p)["integral"] for r, p in ((Woodbury(), made), (Dense(), exact)))
    compare({"integral": got}, {"integral": expected}, 1e-5)


@pytest.mark.slow
def test_the_gradient_of_states():
    torch.manual_seed(0)
    states = [torch.randn(1, *shape, dtype=torch.float64) for shape in ((3, 2, 2), (3, 2, 3), (2, 3))]
    leaves = [part.requires_grad_() for part in states]
    assert torch.autograd.gradcheck(lambda *t: chunk_states(Chunks(*t)).states, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda *t: chunk_states(Chunks(*t)).states, leaves, check_fwd_over_rev=True)
    torch.library.opcheck(torch.ops.fredholm.chunk_states.default, (leaves,))


def test_resets_in_a_scan_are_refused():
    kernel = FactorisedInfiniteAttention(8, 2, is_causal=True)
    with refused(ValueError, "NeumannScan refuses this integral: running sums support no reset", "StepLoop"):
        NeumannScan().run(
            Integral(kernel, torch.randn(2, 5, 8), Sequence(5)), reset=torch.zeros(2, 5, dtype=torch.bool)
        )
    tied = Sequence(times=torch.tensor([0.0, 0.5, 0.5]))
    with refused(ValueError, "points that share a time"):
        NeumannScan().run(Integral(kernel, torch.randn(2, 3, 8), tied))


def test_the_automatic_choice_takes_these_routes():
    u, where = torch.randn(2, 5, 8), Points(uniform(5, 2).float())
    for kind, expected in ((FactorisedInfiniteAttention, Woodbury), (LinearInfiniteAttention, CentralPooling)):
        assert isinstance(AUTO.choose(Integral(kind(8), u, where)).route, expected)
    assert isinstance(
        AUTO.choose(Integral(FactorisedInfiniteAttention(8, is_causal=True), u, where)).route, NeumannScan
    )
