import pytest
import torch

from fredholm.domains import Grid, Points, Sequence, Union
from fredholm.evaluation import AUTO, Dense, Integral, TermByTerm, Tiled, Toeplitz
from fredholm.kernels import MLP, KernelInputs
from fredholm.kernels.kernel import Kernel


class Mean(Kernel):
    """κ = I: the simplest kernel without a marker."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.in_dim = self.out_dim = dim
        self.pos_dim, self.is_causal, self.reads_query = None, False, False

    def matrix(self, u, domain, query=None, query_domain=None):
        num_queries = (domain if query_domain is None else query_domain).num_points
        return torch.eye(self.in_dim).expand(u.shape[0], num_queries, domain.num_points, -1, -1)


def mlp(pos_dim: int = 2, **options) -> MLP:
    return MLP(4, 2, pos_dim, width=3, num_frequencies=2, **options)


@pytest.mark.parametrize(
    ("kernel", "domain", "route"),
    [
        (mlp(), Grid(3, 3), Toeplitz),
        (mlp(1), Sequence(9), Toeplitz),
        (mlp(), Union(Points(torch.rand(1, 2)), Grid(2, 4)), Toeplitz),
        (mlp(), Grid(3, 3, periodic=True), Toeplitz),
        (mlp(), Points(torch.rand(9, 2)), Tiled),
        (mlp(1), Sequence(times=torch.rand(9).sort().values), Tiled),
        (mlp(inputs=KernelInputs(relative_position=False, distance=False)), Grid(3, 3), Tiled),
        (Mean(4), Grid(3, 3), Dense),
    ],
)
def test_the_fastest_route_that_fits_is_taken(kernel, domain, route):
    choice = AUTO.choose(Integral(kernel, torch.randn(1, 9, 4), domain))
    assert isinstance(choice.route, route)
    assert all(reasons for reasons in choice.refusals.values())
    assert choice.route.name in str(choice)
    assert all(name in str(choice) for name in choice.refusals)


def test_queries_off_a_periodic_grid_are_computed_in_tiles():
    choice = AUTO.choose(
        Integral(mlp(), torch.randn(1, 9, 4), Grid(3, 3, periodic=True), torch.randn(1, 2, 4), Points(torch.rand(2, 2)))
    )
    assert isinstance(choice.route, Tiled)
    assert choice.refusals["Toeplitz"] == ["queries and keys do not hold the same regular grid"]


def test_refuses_with_reasons_when_no_route_fits():
    u = torch.empty(1, 40_000, 4, device="meta")
    with pytest.raises(ValueError, match=r"no route can integrate Mean on .*Dense: κ would need 95\.4 GiB"):
        AUTO.choose(Integral(Mean(4), u, Grid(200, 200)))


def test_lists_only_refusals_of_routes_made_for_the_kernel():
    u = torch.randn(1, 9, 4)
    assert set(AUTO.choose(Integral(mlp(1), u, Sequence(times=torch.rand(9).sort().values))).refusals) == {
        "TritonTiled",
        "Toeplitz",
    }
    assert set(AUTO.choose(Integral(mlp(), u, Grid(3, 3))).refusals) == {"TritonTiled"}
    assert Tiled().unsupported_reasons(Integral(Mean(4), u, Grid(3, 3))) == ["Mean is not marked PairwiseMLP"]
    assert TermByTerm().unsupported_reasons(Integral(Mean(4), u, Grid(3, 3))) == ["Mean is not marked Sum or Scaled"]  # pyright: ignore[reportArgumentType]
