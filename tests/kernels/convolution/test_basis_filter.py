"""`BasisFilter`, the base of kernels that are sums of basis functions: extent and taps of its filter."""

from typing import final

import pytest
import torch
from torch import Tensor, nn

from fredholm.domains import Grid, GridBlock, Points, Sequence, whole_grid
from fredholm.evaluation import Dense, Integral, NativeConvolution
from fredholm.kernels import BasisFilter
from tests.contracts.routes import check_route
from tests.refusals import refused


@final
class Cubic(BasisFilter):
    """κ(x, y) = M_0 + M_1 d + M_2 d³ of the first coordinate's displacement d."""

    num_basis = 3

    def __init__(self, pos_dim: int = 1, *, groups: int = 1, is_causal: bool = False, horizon: float | None = None):
        super().__init__()
        self.in_dim, self.out_dim, self.pos_dim, self.groups = 4, 6, pos_dim, groups
        self.is_causal, self.horizon = is_causal, horizon
        self.weight = nn.Parameter(torch.randn(3, 6, 4 // groups, dtype=torch.float64))

    def basis(self, displacement: Tensor) -> Tensor:
        d = displacement.double()[..., 0]
        seen = (displacement.double().abs() < (self.horizon or torch.inf) - 1e-9).all(-1)
        if self.is_causal:
            seen = seen & (d > -1e-9)
        return torch.where(seen[..., None], torch.stack([torch.ones_like(d), d, d**3], -1), 0.0)

    def basis_weight(self) -> Tensor:
        return self.weight


def block(domain: Grid | Sequence) -> GridBlock:
    found = whole_grid(domain)
    assert found is not None
    return found


KEYS = block(Sequence(7, spacing=0.5))


@pytest.mark.parametrize(
    ("options", "queries", "size", "padding"),
    [
        # x - y runs over 3 … -3
        ({}, KEYS, 13, (6, 6)),
        # over 3 … 0
        ({"is_causal": True}, KEYS, 7, (6, 0)),
        # up to the horizon, where the basis is 0: 1, 1/2 and 0
        ({"is_causal": True, "horizon": 1.0}, KEYS, 3, (2, 0)),
        ({"horizon": 1.0}, KEYS, 5, (2, 2)),
        ({"is_causal": True, "horizon": 0.1}, KEYS, 1, (0, 0)),
        # queries far beyond: one tap, which is 0, and no padding up to the distance
        ({"horizon": 1.0}, block(Sequence(7, spacing=0.5, start=1e6)), 1, (-6, 6)),
        ({"is_causal": True}, block(Sequence(7, spacing=0.5, start=-1e6)), 1, (6, -6)),
        # every second point, from 1/4 before the third: displacements 0.75 + k - j/2
        ({}, block(Sequence(2, spacing=1.0, start=0.75)), 9, (2, 2)),
        ({"is_causal": True}, block(Sequence(2, spacing=1.0, start=0.75)), 4, (2, -3)),
    ],
)
def test_taps_for_every_displacement_within_reach(options, queries, size, padding):
    kernel = Cubic(**options)
    geometry = kernel.filter_geometry(KEYS, queries)
    assert not isinstance(geometry, str)
    step = queries.spacing[0] / KEYS.spacing[0]
    assert (geometry.size, geometry.stride, geometry.padding) == ((size,), (step,), (padding,))
    displacement = queries.origin[0] + 0.5 * (padding[0] - torch.arange(size, dtype=torch.float64))
    torch.testing.assert_close(kernel.lattice_basis(KEYS, queries), kernel.basis(displacement[:, None]))
    weight = kernel.filter_weight(KEYS, queries)
    torch.testing.assert_close(weight, kernel.values(displacement[:, None]).movedim(0, -1))


@pytest.mark.pairs
@pytest.mark.parametrize("horizon", [None, 0.7])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("first", [0.0, 0.21, -1.3, 30.0])
@pytest.mark.parametrize(("m", "step"), [(7, 1), (3, 2), (1, 1)])
def test_two_aligned_grids_have_one_filter_between_them(m, step, first, is_causal, horizon):
    kernel = Cubic(groups=2, is_causal=is_causal, horizon=horizon)
    u = torch.randn(2, 7, 4, dtype=torch.float64)
    queries = Sequence(m, spacing=0.3 * step, start=first)
    check_route(NativeConvolution(), Integral(kernel, u, Sequence(7, spacing=0.3), None, queries), 1e-9)


def test_in_the_plane_with_masks_and_weights():
    keys = Grid(4, 3, spacing=(0.5, 0.2), weights=torch.rand(12), mask=torch.rand(2, 12) > 0.3)
    queries = Grid(2, 5, spacing=(1.0, 0.2), origin=(0.1, -0.3))
    for horizon in (None, 0.6):
        u = torch.randn(2, 12, 4, dtype=torch.float64)
        check_route(NativeConvolution(), Integral(Cubic(2, horizon=horizon), u, keys, None, queries))


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (block(Sequence(7, spacing=0.25)), "not spaced by whole cells"),
        (block(Sequence(7, spacing=0.6)), "not spaced by whole cells"),
        (block(Grid(2, 2)), "not spaced by whole cells"),
    ],
)
def test_grids_without_a_filter(queries, message):
    kernel = Cubic()
    assert message in str(kernel.filter_geometry(KEYS, queries))
    with refused(ValueError, "Cubic: no filter leads from the grid", message):
        kernel.lattice_basis(KEYS, queries)


def test_a_torus_has_no_finite_filter():
    torus, line = block(Grid(7, periodic=True)), block(Grid(7))
    kernel = Cubic()
    assert not isinstance(kernel.filter_geometry(line, line), str)
    for keys, queries in ((torus, torus), (torus, line), (line, torus)):
        assert kernel.filter_geometry(keys, queries) == "on a torus the filter does not end"


def test_queries_that_see_nothing_get_exactly_zero():
    for kernel in (Cubic(is_causal=True), Cubic(horizon=0.5)):
        queries = Sequence(3, spacing=0.3, start=-30.0)
        u = torch.randn(1, 7, 4, dtype=torch.float64, requires_grad=True)
        out = NativeConvolution().integrate(Integral(kernel, u, Sequence(7, spacing=0.3), None, queries))
        (gradient,) = torch.autograd.grad(out.sum(), u)
        assert not out.any()
        assert not gradient.any()


def test_the_matrix_has_zeros_between_groups_and_takes_positions_of_each_entry():
    kernel = Cubic(groups=2)
    pos, at = torch.rand(2, 5, 1, dtype=torch.float64), torch.rand(2, 3, 1, dtype=torch.float64)
    kappa = kernel.matrix(torch.randn(2, 5, 4).double(), Points(pos), None, Points(at))
    assert kappa.shape == (2, 3, 5, 6, 4)
    assert not kappa[..., :3, 2:].any()
    assert not kappa[..., 3:, :2].any()
    d = at[1, 2, 0] - pos[1, 4, 0]
    expected = kernel.weight[0] + kernel.weight[1] * d + kernel.weight[2] * d**3
    torch.testing.assert_close(kappa[1, 2, 4, 3:, 2:], expected[3:])


def test_rounding_of_positions_moves_no_tap():
    # 0.1 k and 0.3 j differ by rounding where they are the same position
    kernel, u = Cubic(is_causal=True), torch.randn(1, 10, 4, dtype=torch.float64)
    keys, queries = Sequence(10, spacing=0.1), Sequence(4, spacing=0.3)
    out = Dense().integrate(Integral(kernel, u, keys, None, queries))
    kappa = kernel.matrix(u, keys, None, queries)
    assert kappa[0, 1, :4].any(-1).any(-1).all()  # the key at 0.3 is not after the query at 0.3
    torch.testing.assert_close(NativeConvolution().integrate(Integral(kernel, u, keys, None, queries)), out)
