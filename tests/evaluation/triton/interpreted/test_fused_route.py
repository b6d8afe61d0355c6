"""The fused route equals the dense oracle, forward and in every gradient."""

import pytest
import torch

from fredholm.domains import Domain, Grid, GridBlock, Points, Sequence, Union
from fredholm.evaluation import Dense, Integral, TritonTiled
from fredholm.evaluation.triton import tiled
from fredholm.kernels import KernelInputs
from tests.contracts.routes import changed, check_route, results
from tests.evaluation.triton.interpreted.problems import make, with_queries

pytestmark = pytest.mark.usefixtures("poisoned_memory")
GROUPS = tuple(KernelInputs.__dataclass_fields__)


def token() -> Points:
    return Points(torch.full((1, 2), 0.5))


def keep(*shape: int) -> torch.Tensor:
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(2)) > 0.4
    mask[..., 0] = True
    return mask


SCATTERED: dict[str, Domain] = {
    "points, weights and mask": Points(torch.rand(5, 2), weights=torch.rand(5), mask=keep(5)),
    "points, weights and mask per entry": Points(torch.rand(2, 4, 3), weights=torch.rand(2, 4), mask=keep(2, 4)),
    "coinciding points": Points(torch.rand(2, 2).repeat(2, 1)),
    "one point": Points(torch.rand(1, 2)),
    "times": Sequence(times=torch.rand(5).sort().values),
    "times per entry": Sequence(times=torch.rand(2, 4).sort().values.flip(0), mask=keep(2, 4)),
}
GRIDS: dict[str, Domain] = {
    "sequence": Sequence(5),
    "plane": Grid(2, 3),
    "space": Grid(2, 1, 2),
    "torus": Grid(3, 2, periodic=True),
    "masked per entry": Grid(2, 2, mask=keep(2, 4)),
    "token and grid": Union(token(), Grid(2, 2)),
    "grid between points": Union(Union(Points(torch.rand(2, 2)), Grid(2, 2)), token(), mass=(0.7, 0.3)),
    "grid beside moving points": Union(Points(torch.rand(2, 2, 2)), Grid(1, 3)),
}


IN_BOTH_ORDERS = ("points, weights and mask", "times per entry", "plane", "masked per entry", "grid between points")
"""Domains, one of each kind of geometry, that are tested with and without an order; others alternate."""
AT_LENGTH = (
    *("points, weights and mask per entry", "coinciding points", "times per entry"),
    *("plane", "space", "grid beside moving points"),
)
"""Domains similar to others, which only the long tests cover."""
DOMAINS = [
    pytest.param(name, is_causal, marks=[] if takes_turn and name not in AT_LENGTH else pytest.mark.long)
    for index, name in enumerate((*SCATTERED, *GRIDS))
    for is_causal in (False, True)
    if (takes_turn := is_causal == bool(index % 2)) or name in IN_BOTH_ORDERS
]


@pytest.mark.parametrize(("name", "is_causal"), DOMAINS)
def test_every_domain(name, is_causal):
    domain = {**SCATTERED, **GRIDS}[name]
    batch = domain.batch_size or 1 + (name == "plane")
    check_route(TritonTiled(), make(domain, batch=batch, is_causal=is_causal, head_shared=is_causal))


@pytest.mark.parametrize("name", [pytest.param("plane", marks=pytest.mark.long), "grid between points"])
def test_a_grid_without_a_table_of_displacements(name):
    check_route(TritonTiled(table=False), make(GRIDS[name], is_causal=True))


def test_positions_of_points_beside_a_grid_have_gradients():
    pos, gradients = torch.rand(2, 2, dtype=torch.float64).requires_grad_(), []
    for route in (Dense(), TritonTiled()):
        torch.manual_seed(1)
        out = route.integrate(make(Union(Points(pos), Grid(1, 2))))
        gradients += torch.autograd.grad(out.sin().sum(), pos)
    assert gradients[0].abs().min() > 1e-3
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_layers_share_the_displacements_of_their_domain(monkeypatch):
    domain, count, whole = Union(token(), Grid(2, 2)), [], GridBlock.displacements
    shared, problems = domain.with_cache(), [make(domain) for _ in range(3)]
    expected = [TritonTiled().integrate(problem) for problem in problems]
    monkeypatch.setattr(GridBlock, "displacements", lambda *args: (count.append(1), whole(*args))[1])
    for problem, alone in zip(problems, expected, strict=True):
        assert torch.equal(TritonTiled().integrate(Integral(problem.kernel, problem.u, shared)), alone)
    assert len(count) == 1


@pytest.mark.parametrize(("width", "num_frequencies"), [(3, 1), (1, 6)])
def test_many_points_beside_a_grid_are_processed_in_parts(monkeypatch, width, num_frequencies):
    domain = GRIDS["grid between points"]
    problem = make(domain, width=width, num_frequencies=num_frequencies, num_heads=1)
    (block,) = domain.grid_blocks
    beside = domain.num_points - block.num_points
    largest = beside * 2 * domain.num_points * (4 * width + 8 * num_frequencies)
    for limit, is_table in ((largest, True), (largest - 1, False)):
        monkeypatch.setattr(tiled, "EDGE_BYTES", limit)
        assert (tiled._table_of_all_pairs(problem, block, block) is not None) == is_table
        check_route(TritonTiled(), problem)


@pytest.mark.parametrize("activation", ["gelu_tanh", "relu"])
def test_every_activation(activation):
    check_route(TritonTiled(), make(Grid(1, 2), num_heads=1, activation=activation))


@pytest.mark.parametrize(
    "group",
    [pytest.param(name, marks=[] if name in ("distance", "product") else pytest.mark.long) for name in GROUPS],
)
def test_one_group_of_inputs_alone_and_all_other_groups(group):
    for chosen in (True, False):
        inputs = KernelInputs(**{name: (name == group) == chosen for name in GROUPS})
        check_route(TritonTiled(), make(Points(torch.rand(3, 2)), num_heads=1, inputs=inputs))


def test_raw_coordinates():
    check_route(TritonTiled(), make(Points(torch.rand(3, 2)), num_frequencies=0))


@pytest.mark.parametrize(
    ("query_domain", "domain", "is_causal"),
    [
        pytest.param(Points(torch.rand(2, 3, 2)), Grid(2, 2), False, marks=pytest.mark.long),
        (Points(torch.rand(2, 3, 2)), Grid(2, 2), True),
        (Points(torch.rand(1, 2)), Points(torch.rand(4, 2)), False),
        (Points(torch.rand(0, 2)), Points(torch.rand(3, 2)), True),
        (Points(torch.rand(3, 2)), Points(torch.rand(0, 2)), False),
        pytest.param(Union(token(), Grid(2, 2)), Grid(2, 2), False, marks=pytest.mark.long),
        (Grid(1, 2), Union(Grid(1, 2), token()), True),
    ],
    ids=["grid to points", "in order", "one query", "no query", "no key", "token among queries", "token among keys"],
)
def test_queries_on_another_domain(query_domain, domain, is_causal):
    check_route(TritonTiled(), with_queries(make(domain, batch=2, is_causal=is_causal), query_domain))


def test_nothing_to_integrate_gives_exactly_zero():
    found = results(TritonTiled(), make(Grid(1, 2, mask=torch.zeros(2, 2, dtype=torch.bool)), batch=2))
    assert not any(value.any() for value in found.values())


@pytest.mark.parametrize("domain", [Points(torch.rand(4, 2)), Union(token(), Grid(1, 2))], ids=["points", "grid"])
def test_two_runs_are_identical(domain):
    problem = make(domain, num_heads=1)
    first, second = results(TritonTiled(), problem), results(TritonTiled(), problem)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_signal_that_is_not_contiguous():
    problem = make(Points(torch.rand(2, 2)), batch=2, num_heads=1)
    problem = changed(problem, u=torch.randn(2, 2, 2).permute(2, 0, 1))
    assert not problem.u.is_contiguous()
    check_route(TritonTiled(), problem)
