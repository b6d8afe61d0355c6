import itertools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from fredholm import kernels
from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import ROUTES, Dense, Evaluation, Integral, Tiled, Toeplitz
from fredholm.kernels import MLP, KernelInputs
from tests.contracts.routes import TOLERANCE, changed, check_route, compare, randomise, results
from tests.contracts.small_perceptron import small_perceptron
from tests.contracts.weighed_domains import keep, uniform

GROUPS = tuple(KernelInputs.__dataclass_fields__)
pytestmark = pytest.mark.usefixtures("poisoned_memory")


def make(domain: Domain, batch: int = 2, dtype: torch.dtype = torch.float64, **options) -> Integral:
    settings: dict[str, Any] = {"num_heads": 3} | small_perceptron(**options)
    kernel = randomise(
        MLP(2 * settings.pop("num_heads"), settings.pop("heads", 3), domain.pos_dim, **settings).to(dtype)
    )
    u = torch.randn(batch, domain.num_points, kernel.in_dim, dtype=dtype)
    if domain.mask is not None:
        u = torch.where(domain.mask[..., None], u, 0.0)
    return Integral(kernel, u, domain)


def token() -> Points:
    return Points(torch.full((1, 2), 0.5, dtype=torch.float64))


GRIDS: dict[str, Domain] = {
    "line": Grid(7),
    "plane": Grid(3, 5),
    "space": Grid(2, 3, 4),
    "single cell": Grid(1, 1),
    "one row": Grid(1, 5),
    "torus": Grid(4, 5, periodic=True),
    "masked": Grid(3, 5, mask=keep(15)),
    "masked per entry": Grid(3, 5, mask=keep(2, 15)),
    "weighted": Grid(3, 4, weights=uniform(12)),
    "weighted per entry": Grid(3, 4, weights=uniform(2, 12)),
    "token and grid": Union(token(), Grid(3, 4)),
    "grid between points": Union(Union(Points(uniform(2, 2)), Grid(2, 3)), Points(uniform(1, 2)), mass=(0.7, 0.3)),
    "grid beside moving points": Union(Points(uniform(2, 3, 2)), Grid(2, 3)),
    "sequence": Sequence(7),
}
SCATTERED: dict[str, Domain] = {
    "points": Points(uniform(6, 2)),
    "points per entry": Points(uniform(2, 6, 3)),
    "points, weights and mask": Points(uniform(6, 2), weights=uniform(6), mask=keep(6)),
    "points, weights and mask per entry": Points(uniform(2, 6, 2), weights=uniform(2, 6), mask=keep(2, 6)),
    "coinciding points": Points(uniform(3, 2).repeat(2, 1)),
    "one point": Points(uniform(1, 2)),
    "times": Sequence(times=uniform(7).sort().values),
    "times per entry": Sequence(times=uniform(2, 7).sort().values, mask=keep(2, 7)),
}
BOTH = {**GRIDS, **SCATTERED}
SMALL_TILES = 60


@pytest.mark.pairs
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("elements", [None, SMALL_TILES])
@pytest.mark.parametrize("name", [name for name in BOTH if name != "torus"])
def test_tiled_equals_dense(name, elements, is_causal):
    check_route(Tiled(elements), make(BOTH[name], is_causal=is_causal))


@pytest.mark.pairs
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("elements", [None, SMALL_TILES])
@pytest.mark.parametrize("name", GRIDS)
def test_toeplitz_equals_dense(name, elements, is_causal):
    check_route(Toeplitz(elements), make(GRIDS[name], is_causal=is_causal))


@pytest.mark.slow
@pytest.mark.parametrize("is_causal", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "domain",
    [Grid(7, 6, 7), Union(token(), Grid(19, 15)), pytest.param(Grid(19, 15), marks=pytest.mark.long)],
    ids=repr,
)
def test_keys_that_fill_more_than_one_tile(domain, is_causal):
    """A tile holds at least 256 keys, so that smaller problems never split their keys."""
    problem = make(domain, batch=1, num_heads=1, heads=1, width=3, num_frequencies=2, is_causal=is_causal)
    for route in (Toeplitz(SMALL_TILES), Tiled(SMALL_TILES)):
        check_route(route, problem)


@pytest.mark.pairs
@pytest.mark.parametrize("head_shared", [False, True])
@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("route", [Tiled(SMALL_TILES), Toeplitz(SMALL_TILES)], ids=["tiled", "toeplitz"])
def test_every_form_of_the_kernel(route, activation, depth, head_shared):
    domain = Union(token(), Grid(2, 3, mask=keep(2, 6)))
    check_route(route, make(domain, activation=activation, depth=depth, head_shared=head_shared, is_causal=True))


@pytest.mark.parametrize("num_frequencies", [0, pytest.param(2, marks=pytest.mark.long)])
def test_every_subset_of_the_inputs(num_frequencies):
    for bits in itertools.product((False, True), repeat=len(GROUPS)):
        inputs = KernelInputs(**dict(zip(GROUPS, bits, strict=True)))
        for route, domain in ((Tiled(), Points(uniform(2, 3, 2))), (Toeplitz(), Grid(2, 2)), (Tiled(), Grid(2, 2))):
            problem = make(domain, inputs=inputs, num_frequencies=num_frequencies, width=3, heads=1)
            if not route.unsupported_reasons(Integral(problem.kernel, problem.u, domain)):
                check_route(route, problem)


@pytest.mark.parametrize(
    ("query_domain", "domain"),
    [
        (Points(uniform(4, 2)), Grid(3, 3)),
        (Points(uniform(2, 4, 2)), Grid(3, 3)),
        (Grid(3, 3), Points(uniform(2, 5, 2))),
        (Points(uniform(1, 2)), Points(uniform(5, 2))),
        (Points(uniform(0, 2)), Points(uniform(5, 2))),
        (Points(uniform(5, 2)), Points(uniform(0, 2))),
    ],
    ids=["grid to points", "grid to points per entry", "points to grid", "one query", "no query", "no key"],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_queries_on_another_domain(query_domain, domain, is_causal):
    check_elsewhere(query_domain, make(domain, is_causal=is_causal))


def test_queries_on_another_domain_than_points_of_which_some_are_missing():
    check_elsewhere(Grid(3, 3), make(Points(uniform(2, 5, 2), mask=keep(2, 5))))


def check_elsewhere(query_domain, problem):
    query = torch.randn(2, query_domain.num_points, problem.kernel.in_dim, dtype=torch.float64)
    check_route(Tiled(SMALL_TILES), changed(problem, query_domain=query_domain, query=query))


def test_toeplitz_with_other_features_on_the_same_grid_and_a_token_on_one_side():
    problem = make(Grid(3, 4))
    problem = changed(
        problem,
        query_domain=Union(token(), Grid(3, 4)),
        query=torch.randn(2, 13, problem.kernel.in_dim, dtype=torch.float64),
    )
    check_route(Toeplitz(SMALL_TILES), problem)
    check_route(Toeplitz(), problem)


@hypothesis.given(
    n=st.integers(1, 37), queries=st.integers(1, 11), batch=st.integers(1, 3), width=st.integers(1, 7),
    elements=st.integers(1, 4000), is_causal=st.booleans(), head_shared=st.booleans(),
)  # fmt: skip
def test_any_tiling_of_any_size(n, queries, batch, width, elements, is_causal, head_shared):
    generator = torch.Generator().manual_seed(n)
    domain = Points(torch.rand(n, 2, generator=generator).double(), weights=torch.rand(batch, n).double())
    problem = make(domain, batch=batch, width=width, is_causal=is_causal, head_shared=head_shared)
    problem = changed(
        problem,
        query_domain=Points(torch.rand(queries, 2).double()),
        query=torch.randn(batch, queries, 6, dtype=torch.float64),
    )
    check_route(Tiled(elements), problem)


@pytest.mark.slow
@hypothesis.given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), batch=st.integers(1, 3),
    elements=st.integers(1, 4000), is_causal=st.booleans(), periodic=st.booleans(), with_token=st.booleans(),
)  # fmt: skip
def test_any_tiling_of_any_grid(shape, batch, elements, is_causal, periodic, with_token):
    domain: Domain = Grid(*shape, periodic=periodic)
    if with_token and not periodic:
        domain = Union(domain, Points(torch.full((1, len(shape)), 0.5, dtype=torch.float64)))
    check_route(Toeplitz(elements), make(domain, batch=batch, is_causal=is_causal))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("route", "domain"), [(Tiled(), Points(uniform(261, 2))), (Toeplitz(), Grid(13, 17))])
def test_low_precision_stays_near_the_float64_oracle(route, domain, dtype):
    problem = make(domain, batch=1, num_heads=1, heads=1, width=16, num_frequencies=8)
    expected = results(Dense(), problem)
    problem.kernel.float()
    problem = changed(problem, u=problem.u.detach().float())
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        got = results(route, problem)
    for name in ("integral", "d/d u", "d/d input_weight", "d/d output_weight", "d/d output_bias", "d/d input_bias"):
        compare({name: got[name]}, {name: expected[name]}, TOLERANCE[dtype])


@pytest.mark.parametrize(("route", "domain"), [(Tiled(), Points(uniform(7, 2))), (Toeplitz(), Grid(2, 3))])
def test_a_module_in_bfloat16_works(route, domain):
    problem = make(domain, dtype=torch.bfloat16)
    out = results(route, problem)
    assert out["integral"].dtype == torch.bfloat16
    assert all(torch.isfinite(value).all() for value in out.values())


@pytest.mark.parametrize("route", [Dense(), Tiled(), Toeplitz()], ids=lambda route: route.name)
def test_nothing_to_integrate_gives_exactly_zero(route: Evaluation):
    domain = Grid(2, 3, mask=torch.zeros(2, 6, dtype=torch.bool))
    found = results(route, make(domain))
    assert not any(value.any() for value in found.values())


@pytest.mark.parametrize(
    ("route", "domain"), [(Tiled(40), Points(uniform(3, 2), weights=uniform(3))), (Toeplitz(40), Grid(2, 2))]
)
@pytest.mark.parametrize("depth", [2, 3])
def test_gradcheck(route, domain, depth):
    problem = make(domain, batch=1, width=2, num_frequencies=1, heads=1, num_heads=1, depth=depth, is_causal=True)
    leaves = [problem.u.requires_grad_(), *problem.kernel.parameters()]
    if isinstance(domain, Points):
        leaves += [domain.pos.requires_grad_(), domain.weights.requires_grad_()]
    assert torch.autograd.gradcheck(lambda *_: route.integrate(Integral(problem.kernel, problem.u, domain)), leaves)


@pytest.mark.parametrize(("route", "size"), [(Tiled(), 1), (Toeplitz(), 2)])
def test_saves_no_more_than_the_inputs(route, size):
    def saved(n: int) -> int:
        domain = Points(uniform(n * n, 2)) if size == 1 else Grid(n, n)
        problem = make(domain, batch=1, width=32)
        of_parameters = {p.untyped_storage().data_ptr() for p in problem.kernel.parameters()}
        total = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            if tensor.untyped_storage().data_ptr() not in of_parameters:
                total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            route.integrate(Integral(problem.kernel, problem.u.requires_grad_(), domain))
        return total

    assert saved(14) < 4.5 * saved(7)


@pytest.mark.parametrize(("route", "domain"), [(Tiled(100), Points(uniform(9, 2))), (Toeplitz(100), Grid(3, 3))])
def test_two_runs_are_identical(route, domain):
    problem = make(domain, dtype=torch.float32)
    first, second = results(route, problem), results(route, problem)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("is_periodic", [False, True])
@pytest.mark.parametrize(
    ("kind", "options"), [(kernels.MLP, {}), (kernels.LowRankMLP, {"rank": 2}), (kernels.SeparableMLP, {})]
)
def test_positions_of_lower_precision_than_the_parameters_are_converted_exactly(kind, options, is_periodic) -> None:
    torch.manual_seed(0)
    kernel = kind(4, 2, 2, width=6, num_frequencies=8, sigma=10.0, **options).double()
    u = torch.randn(1, 7, 4, dtype=torch.float64)
    pos, mass = torch.rand(7, 2), torch.rand(7, dtype=torch.float64)
    wide, coarse = (Points(each, weights=mass, periodic=is_periodic) for each in (pos.double(), pos))
    expected = Dense().integrate(Integral(kernel, u, wide))
    answered = 0
    for route in ROUTES:
        integral = Integral(kernel, u, coarse)
        if route.is_meant_for(integral) and not route.unsupported_reasons(integral):
            answered += 1
            torch.testing.assert_close(route.integrate(integral), expected, rtol=1e-10, atol=1e-12)
    assert answered >= 2
