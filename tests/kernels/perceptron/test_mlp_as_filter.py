"""A perceptron of displacement alone is a filter between regular grids, and otherwise refuses with a reason."""

import pytest
import torch

from fredholm.domains import Domain, Grid, Sequence
from fredholm.evaluation import AUTO, FFT, Integral
from fredholm.kernels import MLP, KernelInputs
from tests.contracts.routes import check_route, randomise

ALONE = {"query_position": False, "key_position": False, "query_content": False, "key_content": False, "product": False}


def perceptron(pos_dim: int, inputs: dict[str, bool] | None = None, **options) -> MLP:
    read = KernelInputs(**(ALONE if inputs is None else inputs))
    kernel = MLP(4, 2, pos_dim, width=5, num_frequencies=3, sigma=1.0, inputs=read, **options)
    return randomise(kernel.double())


@pytest.mark.parametrize(
    ("domain", "queries", "options"),
    [
        (Grid(5, 4), None, {}),
        (Grid(5, 4, periodic=True), None, {}),
        (Grid(6, 4, periodic=True), Grid(3, 2, periodic=True), {}),
        (Grid(6, 4), Grid(3, 9, spacing=(2 / 6, 1 / 4), origin=(0.1, -0.7)), {"head_shared": True}),
        (Grid(4, 3, weights=torch.rand(12), mask=torch.rand(2, 12) > 0.3), None, {"depth": 4}),
        (Sequence(7), None, {"is_causal": True}),
        (Sequence(7, mask=torch.tensor([False, True, True, False, True, True, True])), None, {"is_causal": True}),
        (Sequence(7), None, {"is_causal": True, "causal_measure": "total"}),
    ],
)
def test_the_filter_is_the_integral(domain: Domain, queries: Domain | None, options):
    kernel = perceptron(domain.pos_dim, **options)
    u = torch.randn(2, domain.num_points, 4, dtype=torch.float64)
    u = u if domain.mask is None else u * domain.mask[..., None]
    check_route(FFT(), Integral(kernel, u, domain, None, queries), 1e-9)


@pytest.mark.parametrize(
    ("kernel", "domain", "queries", "expected"),
    [
        (perceptron(2, {"product": False}), Grid(3, 3), None, "more than the displacement of a pair: query_position, "),
        (perceptron(2, is_causal=True), Grid(3, 3), None, "the past of a query is not given by displacements"),
        (perceptron(1, is_causal=True), Grid(9, periodic=True), None, "the past of a query"),
        (perceptron(1, is_causal=True), Grid(9), Grid(3), "the past of a query"),
        (perceptron(2), Grid(3, 3), Grid(4, 4), "not spaced by whole cells"),
        (perceptron(2), Grid(3, 3), Grid(3, 3, periodic=True), "one is periodic"),
    ],
)
def test_refusals(kernel: MLP, domain: Domain, queries: Domain | None, expected: str):
    u = torch.randn(1, 9, 4, dtype=torch.float64)
    (reason,) = FFT().unsupported_reasons(Integral(kernel, u, domain, None, queries))
    assert expected in reason


def test_large_grids_use_the_fft_and_small_ones_a_direct_sum():
    kernel = perceptron(2)
    for cells, route in ((4, "Toeplitz"), (32, "FFT")):
        u = torch.randn(1, cells**2, 4, dtype=torch.float64)
        assert AUTO.choose(Integral(kernel, u, Grid(cells, cells))).route.name == route


def test_explain_omits_the_fft_for_kernels_of_more_than_displacement():
    u, grid = torch.randn(1, 16, 4, dtype=torch.float64), Grid(4, 4)
    assert "FFT" not in AUTO.explain(Integral(perceptron(2, {"product": False}), u, grid))
    assert "not FFT: the direct sum costs" in AUTO.explain(Integral(perceptron(2), u, grid))
