import pytest
import torch

from fredholm.domains import GridBlock
from fredholm.kernels.convolution.stationary import boundary_map, relative_lattice


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("zeros", [-1, -1, -1, -1, 0, 1, 2, -1, -1, -1, -1]),
        ("replicate", [0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2]),
        ("circular", [2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0]),
        ("reflect", [0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2]),
    ],
)
def test_boundary_modes_extend_three_keys(mode, expected):
    assert boundary_map(torch.arange(-4, 7), 3, mode).tolist() == expected


def test_boundary_modes_repeat_a_single_key():
    for mode in ("replicate", "circular", "reflect"):
        assert boundary_map(torch.arange(-2, 3), 1, mode).tolist() == [0] * 5


def block(n: int, spacing: float, origin: float) -> GridBlock:
    return GridBlock(0, (n,), (spacing,), (origin,), False)


def test_a_grid_on_the_lattice_of_another():
    keys = block(7, 0.1, 0.05)
    assert relative_lattice(keys, block(3, 0.2, -0.05), (1,)) == [(2, pytest.approx(-1))]
    assert relative_lattice(keys, block(3, 0.05, 0.3), (2,)) == [(1, pytest.approx(5))]
    # one point has no spacing
    assert relative_lattice(keys, block(1, 0.123, 0.25), (1,)) == [(1, pytest.approx(2))]


def test_grids_that_share_no_lattice():
    keys = block(7, 0.1, 0.05)
    assert relative_lattice(keys, block(3, 0.15, 0.05), (1,)) is None
    assert relative_lattice(keys, block(3, 0.05, 0.05), (1,)) is None
    assert relative_lattice(keys, block(4000, 0.1001, 0.05), (1,)) is None  # close at first, then off
    assert relative_lattice(keys, GridBlock(0, (3, 3), (0.1, 0.1), (0.0, 0.0), False), (1,)) is None
