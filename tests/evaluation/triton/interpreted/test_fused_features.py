"""The fused sums of features equal the dense oracle, forward and in every gradient."""

import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Domain, Grid, Points
from fredholm.evaluation import AUTO, Integral, TritonFeatureSum
from fredholm.evaluation.triton import feature_sum, features, tuning
from fredholm.evaluation.triton.long_product import long_products
from fredholm.kernels import LowRankMLP, PointInputs, SeparableMLP
from tests.contracts.routes import changed, check_route, randomise, results
from tests.contracts.small_perceptron import small_perceptron

pytestmark = pytest.mark.usefixtures("poisoned_memory")
LOW_RANK, SEPARABLE = "low rank", "separable"


def make(kind: str, domain: Domain, batch: int = 2, head_dim: int = 3, heads: int = 2, **options) -> Integral:
    options = small_perceptron(**options)
    kernel = (
        LowRankMLP(heads * head_dim, heads, domain.pos_dim, rank=2, **options)
        if kind == LOW_RANK
        else SeparableMLP(heads * head_dim, heads, domain.pos_dim, **options)
    )
    u = torch.randn(batch, domain.num_points, kernel.in_dim)
    if domain.mask is not None:
        u = torch.where(domain.mask[..., None], u, 0.0)
    return Integral(randomise(kernel), u, domain)


MASK = torch.tensor([[True, True, False, True, True], [True, False, False, False, True]])
DOMAINS: dict[str, Domain] = {
    "grid": Grid(2, 3),
    "points per entry": Points(torch.rand(2, 5, 2)),
    "weights and mask per entry": Points(torch.rand(2, 5, 2), weights=torch.rand(2, 5), mask=MASK),
    "shared weights": Points(torch.rand(4, 2), weights=torch.rand(4)),
    "one point": Points(torch.rand(1, 2)),
    "nothing": Grid(1, 5, mask=torch.zeros(2, 5, dtype=torch.bool)),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=[] if takes_turn else pytest.mark.long)
        for index, name in enumerate(DOMAINS)
        for kind, takes_turn in ((LOW_RANK, index % 2 == 0), (SEPARABLE, index % 2 == 1))
    ],
)
def test_every_domain(kind, name):
    check_route(TritonFeatureSum(), make(kind, DOMAINS[name]))


@pytest.mark.parametrize("kind", [LOW_RANK, SEPARABLE])
@pytest.mark.parametrize("name", [pytest.param("grid", marks=pytest.mark.long), "weights and mask per entry"])
def test_weights_that_heads_share(kind, name):
    check_route(TritonFeatureSum(), make(kind, DOMAINS[name], head_shared=True))


@pytest.mark.parametrize("kind", [LOW_RANK, SEPARABLE])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(3, 5), (1, 4), (0, 3), (3, 0)])
def test_queries_on_another_domain(kind, num_queries, num_keys):
    problem = make(kind, Points(torch.rand(num_keys, 2)))
    problem = changed(problem, query_domain=Points(torch.rand(2, num_queries, 2)), query=torch.randn(2, num_queries, 6))
    check_route(TritonFeatureSum(), problem)


@pytest.mark.parametrize(
    "options",
    [
        {"inputs": PointInputs(query_position=False, key_content=False)},
        pytest.param({"inputs": PointInputs(query_content=False, key_position=False)}, marks=pytest.mark.long),
        {"inputs": PointInputs(**dict.fromkeys(PointInputs.__dataclass_fields__, False))},
        {"num_frequencies": 0, "activation": "relu"},
        {"num_frequencies": 17, "activation": "gelu_tanh", "head_dim": 17},
        {"width": 130, "heads": 1},
        pytest.param({"width": 16, "head_dim": 16, "num_frequencies": 8}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_every_form_and_size(options):
    check_route(TritonFeatureSum(), make(SEPARABLE, Points(torch.rand(3, 2)), **options))


@pytest.mark.parametrize("options", [{"constant": False}, {"constant": False, "head_shared": True}], ids=str)
def test_low_rank_without_the_constant(options):
    check_route(TritonFeatureSum(), make(LOW_RANK, Points(torch.rand(3, 2)), **options))


@pytest.mark.parametrize(("rows", "columns", "size"), [(3, 5, 7), (40, 33, 700), (1, 2, 16384)])
@pytest.mark.parametrize("matrices", [1, 2])
def test_long_products_are_shared_by_programs(monkeypatch, rows, columns, size, matrices):
    monkeypatch.setattr(tuning, "multiprocessors", lambda _: 8)
    a, b = torch.randn(2, rows, size), torch.randn(matrices, columns, size)
    torch.testing.assert_close(long_products(a, b), a @ b.mT, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("programs", [pytest.param(1, marks=pytest.mark.long), 2, 528])
def test_any_number_of_programs_over_more_points_than_one_tile(monkeypatch, programs):
    monkeypatch.setattr(features, "PROGRAMS", programs)
    check_route(TritonFeatureSum(), make(LOW_RANK, Points(torch.rand(101, 2)), batch=1, heads=1))


def test_nothing_to_integrate_gives_exactly_zero():
    found = results(TritonFeatureSum(), make(LOW_RANK, DOMAINS["nothing"]))
    assert not any(value.any() for value in found.values())


def test_two_runs_are_identical():
    problem = make(SEPARABLE, Points(torch.rand(40, 2)))
    first, second = results(TritonFeatureSum(), problem), results(TritonFeatureSum(), problem)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_signal_that_is_not_contiguous():
    problem = make(SEPARABLE, Points(torch.rand(3, 2)))
    problem = changed(problem, u=torch.randn(3, 6, 2).permute(2, 0, 1))
    check_route(TritonFeatureSum(), problem)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("feature_sums_triton", LOW_RANK, marks=pytest.mark.long),
        ("feature_tables_triton", SEPARABLE),
        ("low_rank_tables_triton", LOW_RANK),
    ],
)
def test_operator_registration(monkeypatch, name, kind):
    """`opcheck`: schema, fake tensors, autograd and the compiler's view of the operators."""
    calls, original = [], getattr(feature_sum, name)
    monkeypatch.setattr(feature_sum, name, lambda *call: (calls.append(call), original(*call))[1])
    problem = make(kind, Points(torch.rand(2, 2, 2)))
    TritonFeatureSum().integrate(problem)
    tensors, *options = calls[0]
    leaves = [t if t is None else t.detach().requires_grad_() for t in tensors]
    report = torch.library.opcheck(getattr(torch.ops.fredholm, name).default, (leaves, *options))
    assert set(report.values()) == {"SUCCESS"}


@pytest.mark.long
def test_compiles_in_one_graph_with_the_same_results():
    torch.compiler.reset()
    problem = make(LOW_RANK, Grid(1, 3))
    op = IntegralOperator(problem.kernel)
    found = []
    for call in (op, torch.compile(op, fullgraph=True, backend="aot_eager")):
        u = problem.u.clone().requires_grad_()
        op.zero_grad()
        out = call(u, problem.domain)
        out.square().sum().backward()
        found.append([out, u.grad, *(p.grad for p in op.parameters())])
    torch.testing.assert_close(found[1], found[0])


def test_the_fused_route_is_the_first_choice_where_it_runs():
    problem = make(LOW_RANK, Grid(1, 3))
    assert isinstance(AUTO.choose(problem).route, TritonFeatureSum)
