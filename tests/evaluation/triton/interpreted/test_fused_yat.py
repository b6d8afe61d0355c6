"""The fused sum over Yat scores equals the dense oracle, forward and in every gradient."""

import copy
from typing import Any

import pytest
import torch

from benchmarks.yat_attention import ConcatenatedQKV
from fredholm import IntegralOperator
from fredholm.domains import Domain, Points, Sequence
from fredholm.evaluation import AUTO, Dense, Integral, TritonYat
from fredholm.evaluation.attention.score_tiled import ScoreInputs
from fredholm.evaluation.triton import yat_tiled
from fredholm.kernels import Normaliser, Rotary, Softermax, Softmax, YatAttention
from tests.contracts.routes import changed, check_route, compare, randomise, results

pytestmark = pytest.mark.usefixtures("poisoned_memory")

NORMALISERS = {"softmax": None, "softermax": Softermax(1.0, 1e-2), "softermax of power 2.5": Softermax(2.5, 1e-1)}
MASK = torch.tensor([[True, True, False, True, True], [True, False, False, False, True]])
SEEDED = torch.Generator().manual_seed(0)
DOMAINS: dict[str, Domain] = {
    "sequence": Sequence(5),
    "weights and mask per entry": Points(torch.zeros(2, 5, 1), weights=torch.rand(2, 5, generator=SEEDED), mask=MASK),
    "shared weights": Points(torch.zeros(4, 1), weights=torch.rand(4, generator=SEEDED)),
    "one point": Sequence(1),
    "no point": Sequence(0),
    "nothing exists": Sequence(4, mask=torch.zeros(2, 4, dtype=torch.bool)),
    "times": Sequence(times=torch.rand(2, 5, generator=SEEDED).sort().values),
}


def make(where: Domain, heads: int = 2, head_dim: int = 3, **options) -> Integral:
    kernel = randomise(YatAttention(heads * head_dim, heads, **options))
    u = torch.randn(2, where.num_points, kernel.in_dim)
    return Integral(kernel, u if where.mask is None else torch.where(where.mask[..., None], u, 0.0), where)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("name", "normaliser"),
    [
        *((name, "softmax") for name in DOMAINS),
        ("weights and mask per entry", "softermax"),
        ("times", "softermax of power 2.5"),
        ("one point", "softermax"),
        ("nothing exists", "softermax of power 2.5"),
    ],
)
def test_every_domain(name, normaliser, is_causal):
    problem = make(DOMAINS[name], is_causal=is_causal, normaliser=NORMALISERS[normaliser])
    # a single point has a weight of nearly 1, so its score's gradient is a difference of nearly equal numbers
    check_route(TritonYat(), problem, tolerance=1e-4 if name == "one point" else None)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize("normaliser", NORMALISERS.values(), ids=NORMALISERS.keys())
def test_a_query_that_sees_only_keys_without_mass(normaliser):
    """Its gradient is 0, although the densities of such keys, which no sum includes, overflow."""
    where = Points(torch.arange(5.0)[:, None], weights=torch.tensor([0.0, 0.0, 0.5, 0.3, 0.2]))
    check_route(TritonYat(), make(where, is_causal=True, normaliser=normaliser))


@pytest.mark.parametrize("normaliser", NORMALISERS.values(), ids=NORMALISERS.keys())
def test_a_learned_epsilon(normaliser):
    # its gradient is a sum over all pairs whose terms largely cancel
    problem = make(DOMAINS["shared weights"], normaliser=normaliser, learn_epsilon=True)
    check_route(TritonYat(), problem, tolerance=2e-4)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(3, 5), (1, 4), (0, 3), (3, 0), (70, 3), (3, 70)])
def test_queries_on_another_domain(num_queries, num_keys):
    problem = make(Points(torch.rand(num_keys, 1)), heads=1)
    problem = changed(problem, query_domain=Points(torch.rand(num_queries, 1)), query=torch.randn(2, num_queries, 3))
    check_route(TritonYat(), problem, tolerance=2e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"num_kv_heads": 1},
        {"rotary": Rotary(9.0), "head_dim": 4},
        pytest.param({"head_dim": 17}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_more_points_than_one_tile(options):
    check_route(TritonYat(), make(Sequence(67), is_causal=True, **options), tolerance=1e-4)


def test_signals_of_more_channels_than_a_head_may_have():
    """Queries, keys and values lie side by side; the limit on channels applies to the products of one head."""
    kernel = ConcatenatedQKV(100, 1)
    assert kernel.query_dim == 300
    check_route(TritonYat(), Integral(kernel, torch.randn(2, 5, kernel.in_dim), Sequence(5)), tolerance=1e-4)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("head_dim", [3, 16])
@pytest.mark.parametrize("num_points", [64, 75])
def test_tiles_in_which_every_query_sees_every_key(num_points, head_dim, is_causal):
    """Signals with heads of 16 channels are read in place, others are copied."""
    check_route(TritonYat(), make(Sequence(num_points), head_dim=head_dim, is_causal=is_causal), tolerance=1e-4)


@pytest.mark.parametrize("normaliser", NORMALISERS.values(), ids=NORMALISERS.keys())
@pytest.mark.parametrize("num_masses", [0, 1, 2])
def test_any_number_of_visible_keys_per_query(num_masses, normaliser):
    """Queries of the first entry see one key more than in a sequence; those of the second a random number of keys."""
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 1, n, 3, generator=generator) for n in (45, 83, 83))
    seen = torch.stack([torch.arange(45) + 2, torch.randint(0, 84, (45,), generator=generator)])
    seen[1, :33] = 83  # a tile whose queries see all keys
    tensors = {"value": value, "query": query, "key": key, "softening": torch.tensor(0.5)}
    tensors |= {"mass": torch.rand(num_masses, 83, generator=generator)} if num_masses else {}
    compare_sums(tensors, seen, normaliser or Softmax())


@pytest.mark.parametrize("side", ["query", "key"])
def test_a_point_of_zeros_without_a_softening(side):
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(1, 1, 5, 3, generator=generator) for name in ("value", "query", "key")}
    tensors[side][:, :, 2] = 0
    compare_sums(tensors, None, Softmax())


def compare_sums(tensors: dict[str, torch.Tensor], seen: torch.Tensor | None, normaliser: Normaliser) -> None:
    """Compares the operator with its plain form in float64, in its result and all gradients."""
    missing: dict[str, Any] = dict.fromkeys({"key_bias", "softening", "numbers", "pairs", "mass"} - tensors.keys())
    found = []
    for sums, dtype in ((yat_tiled.yat_sums_triton, torch.float32), (yat_tiled.yat_sums_triton.plain, torch.float64)):
        leaves = {name: t.to(dtype).requires_grad_() for name, t in tensors.items()}
        assert sums is not None
        out = sums(ScoreInputs(**leaves, **missing, seen=seen), normaliser.encoded())[0]
        grads = torch.autograd.grad(out.square().sum(), list(leaves.values()))
        found.append({"integral": out.detach(), **dict(zip(leaves, grads, strict=True))})
    compare(*found, tolerance=1e-4)


def test_a_sequence_continues_from_a_state():
    problem = make(Sequence(7), is_causal=True)
    whole = TritonYat().integrate(problem)
    first, state = TritonYat().run(Integral(problem.kernel, problem.u[:, :4], Sequence(4)))
    second, _ = TritonYat().run(Integral(problem.kernel, problem.u[:, 4:], Sequence(3)), state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)


@pytest.mark.parametrize("where", [Sequence(9), Points(torch.zeros(9, 1), weights=torch.rand(9) + 0.1)], ids=str)
def test_large_scores_stay_finite(where):
    problem = make(where)
    problem = changed(problem, u=1e4 * torch.randn(2, 9, 6).sign())
    assert all(bool(torch.isfinite(value).all()) for value in results(TritonYat(), problem).values())


@pytest.mark.parametrize("where", ["self", "causal", "masked", "weighed"])
def test_gradients_are_as_precise_as_those_of_dense_where_one_key_dominates(where):
    # slopes of scores are 10⁶ here, and g·v - δ is 0
    there = Sequence(33, mask=torch.arange(33) % 3 > 0 if where == "masked" else None)
    if where == "weighed":
        there = Points(torch.zeros(33, 1), weights=torch.rand(33, generator=torch.Generator().manual_seed(3)) + 0.1)
    kernel = YatAttention(2, is_causal=where == "causal")
    for seed in range(3):
        u = 300 * torch.randn(2, 33, 2, generator=torch.Generator().manual_seed(seed))
        right = results(Dense(), Integral(copy.deepcopy(kernel).double(), u.double(), there))
        dense, fused = (results(each, Integral(kernel, u.clone(), there)) for each in (Dense(), TritonYat()))
        for name, exact in right.items():
            allowed = (dense[name] - exact).norm() + 1e-5 * exact.norm() + 1e-6
            assert (fused[name] - exact).norm() < 20 * allowed, name


@pytest.mark.parametrize("normaliser", NORMALISERS.values(), ids=NORMALISERS.keys())
def test_nan_stays_nan(normaliser):
    problem = make(Sequence(5), is_causal=True, normaliser=normaliser)
    problem.u[:, 2] = torch.nan
    found = results(TritonYat(), problem)
    assert bool(found["integral"][:, 2:].isnan().all())
    assert all(bool(value.isnan().any()) for value in found.values())


def test_two_runs_are_identical():
    problem = make(Sequence(40), is_causal=True)
    first, second = results(TritonYat(), problem), results(TritonYat(), problem)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_operator_registration(monkeypatch):
    """`opcheck`: schema, fake tensors, autograd and the compiler's view of the operator."""

    calls, original = [], yat_tiled.yat_sums_triton
    monkeypatch.setattr(yat_tiled, "yat_sums_triton", lambda *call: (calls.append(call), original(*call))[1])
    problem = make(DOMAINS["shared weights"], is_causal=True)
    TritonYat().integrate(problem)
    inputs, normaliser = calls[0]
    leaves = [t if t is None else t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
    operator = torch.ops.fredholm.yat_sums_triton.default
    assert set(torch.library.opcheck(operator, (leaves, normaliser)).values()) == {"SUCCESS"}


@pytest.mark.long
def test_compiles_in_one_graph_with_the_same_results():
    torch.compiler.reset()
    op = IntegralOperator(make(Sequence(3), is_causal=True).kernel)
    found = []
    for call in (op, torch.compile(op, fullgraph=True, backend="aot_eager")):
        u = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
        op.zero_grad()
        out = call(u)
        out.square().sum().backward()
        found.append([out, u.grad, *(p.grad for p in op.parameters())])
    torch.testing.assert_close(found[1], found[0])


def test_the_fused_route_is_the_first_choice_where_it_runs():
    problem = make(Sequence(3))
    assert isinstance(AUTO.choose(problem).route, TritonYat)
