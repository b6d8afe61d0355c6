"""`torch.compile(fullgraph=True)`: one graph with the same results, forward and backward."""

from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
from torch import Tensor

from fredholm import IntegralOperator, kernels
from fredholm.domains import Domain, Grid, PairList, Points, Sequence, Union
from tests.operators.build import gradients, operator, signal

pytestmark = pytest.mark.usefixtures("fresh_compiler")
POS = torch.rand(2, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MASK = torch.tensor([[True, True, False, True, True, False], [True] * 5 + [False]])
NONE = torch.zeros(2, 6, dtype=torch.bool)


def run(op: IntegralOperator, call: Any, u: Tensor, domain: Domain | None, **more: Any) -> dict[str, Tensor]:
    op.zero_grad()
    leaf = u.clone().requires_grad_()
    out = call(leaf, domain, **more)
    out.square().sum().backward()
    return {"out": out.detach()} | {name: grad.clone() for name, grad in gradients(op, leaf).items()}


def compare(op: IntegralOperator, u: Tensor, domain: Domain | None, **more: Any) -> None:
    expected = run(op, op, u, domain, **more)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        got = run(op, compiled, u, domain, **more)
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, msg=lambda text, name=name: f"{name}: {text}")


CASES = {
    "points of each entry, padded": (Points(POS, mask=MASK), {}),
    "token and grid, padded by the call": (
        Union(Points(POS[0, :2]), Grid(2, 2), (0.5, 0.5)),
        {"key_padding_mask": MASK},
    ),
    "other queries": (Grid(2, 3), {"query": signal(4, seed=1), "query_domain": Points(POS[:, :4])}),
    "torus": (Grid(2, 3, periodic=True), {}),
    "periodic points": (Points(POS, periodic=True), {}),
    "pair weights": (Points(POS).weigh_pairs(torch.randn(2, 6, 6)), {}),
}


AT_LENGTH = ("points of each entry, padded", "torus", "periodic points")
"""Domains similar to others, which only the long tests compile."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in AT_LENGTH else []) for name in CASES]
)
def test_compiles_in_one_graph_with_the_same_results(name: str) -> None:
    domain, more = CASES[name]
    compare(operator(), signal(6), domain, **more)


@pytest.mark.parametrize(
    "domain",
    [None, pytest.param(Sequence(times=POS[0, :, 0].sort().values), marks=pytest.mark.long)],
    ids=["indices", "times"],
)
def test_causal(domain: Domain | None) -> None:
    compare(operator(1, is_causal=True), signal(6), domain)


FACTORISED = {
    "low rank": lambda **options: kernels.LowRankMLP(6, 2, 1, rank=3, width=5, num_frequencies=3, **options),
    "separable": lambda **options: kernels.SeparableMLP(6, 2, 1, width=5, num_frequencies=3, **options),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_causal"),
    [
        ("low rank", False),
        pytest.param("separable", True, marks=pytest.mark.long),
        pytest.param("low rank", True, marks=pytest.mark.long),
        pytest.param("separable", False, marks=pytest.mark.long),
    ],
)
def test_factorised_kernels(name: str, is_causal: bool) -> None:
    op = IntegralOperator(FACTORISED[name](is_causal=is_causal)).double()
    compare(op, signal(6), Sequence(6), key_padding_mask=MASK)
    if is_causal == (name == "low rank"):
        compare(op, signal(6), Sequence(times=POS[0, :, 0].sort().values))


INFINITE = {
    "factorised": kernels.FactorisedInfiniteAttention(6, 2, learn_gamma=True),
    "factorised, causal": kernels.FactorisedInfiniteAttention(6, 2, is_causal=True),
    "linear": kernels.LinearInfiniteAttention(6, 2, power_steps=2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["linear", *(pytest.param(name, marks=pytest.mark.long) for name in ("factorised", "factorised, causal"))],
)
def test_infinite_attention_in_linear_time(name: str) -> None:
    compare(IntegralOperator(INFINITE[name]).double(), signal(6), Sequence(6), key_padding_mask=MASK)


SUMS: dict[str, tuple[kernels.Kernel, Domain | None]] = {
    "a signal alone": (kernels.Attention(6, 2) + kernels.LinearRNN(6, 6), None),
    "points of each entry": (
        kernels.Attention(6, 2) + 0.5 * kernels.MLP(6, 2, 2, width=5, num_frequencies=3),
        Points(POS, mask=MASK),
    ),
    "strided grids": (
        kernels.Convolution(6, 6, 3, 2, stride=2, padding=1) + kernels.Convolution(6, 6, 5, 2, stride=2, padding=2),
        Grid(2, 3),
    ),
    "points and a grid": (
        kernels.Attention(6, 2) + kernels.Convolution(6, 6, 3, 2, padding=1),
        Grid(2, 3),
    ),
}


class OnDomain(torch.nn.Module):
    """An operator on a fixed domain, as a module for exporters."""

    def __init__(self, op: IntegralOperator, domain: Domain | None) -> None:
        super().__init__()
        self.op, self.domain = op, domain

    def forward(self, u: Tensor) -> Tensor:
        return self.op(u, self.domain)


FILTERS: dict[str, tuple[kernels.Kernel, Domain]] = {
    "waves": (kernels.SpectralConvolution(6, 6, 2, num_waves_per_axis=1), Grid(2, 3)),
    "smoothed": (kernels.ContinuousConvolution(6, 6, width=4, spacing=0.5, smoothing=True), Sequence(6, spacing=0.4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["waves", pytest.param("smoothed", marks=pytest.mark.long)])
def test_filters_on_a_grid_of_fixed_size(name: str) -> None:
    """The smoothed one runs in the long tests, since the tests of the continuous convolution compile it on a line."""
    kernel, domain = FILTERS[name]
    compare(IntegralOperator(kernel).double(), signal(domain.num_points), domain)


@pytest.mark.slow
def test_a_convolution_without_padding_at_dynamic_sizes() -> None:
    op = IntegralOperator(kernels.Convolution(6, 6, 3), residual=False).double()

    def call(u: Tensor) -> Tensor:
        return op(u, Grid(u.shape[1]))

    compiled = torch.compile(call, fullgraph=True, backend="eager", dynamic=True)
    for size in (5, 6):  # at some sizes n the compiler's guard computes 1 - n (1 / n) as nonzero
        torch.testing.assert_close(compiled(signal(size)), call(signal(size)))


def test_dynamic_sizes_with_listed_pairs_in_the_model() -> None:
    pairs = PairList.of_index(torch.arange(5).expand(1, 5, 5), torch.rand(1, 5, 5), 5)
    model = OnDomain(operator(), Points(POS[:, :5]).list_pairs(pairs))
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(signal(5)), model(signal(5)))


class AtQueries(torch.nn.Module):
    """An operator on points, evaluated at other points."""

    def __init__(self, operator: IntegralOperator) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, u: Tensor, pos: Tensor, query_pos: Tensor) -> Tensor:
        query = u[:, :1].expand(-1, query_pos.shape[0], -1)
        return self.operator(u, Points(pos), query=query, query_domain=Points(query_pos))


def test_a_graph_takes_more_queries_than_points_and_fewer() -> None:
    open_size, model = torch.export.Dim.DYNAMIC, AtQueries(operator())
    shapes = ({0: open_size, 1: open_size}, {0: open_size}, {0: open_size})
    graph = torch.export.export(model, (signal(6), POS[0, :6], POS[0, :4]), dynamic_shapes=shapes).module()
    for points, queries in ((3, 5), (5, 3)):
        inputs = signal(points), POS[0, :points], POS[0, :queries]
        torch.testing.assert_close(graph(*inputs), model(*inputs))


def test_a_graph_takes_queries_at_the_last_of_any_number_of_points() -> None:
    op, open_size = IntegralOperator(kernels.Attention(4, 2, is_causal=True)).double(), torch.export.Dim.DYNAMIC

    class AtTheEnd(torch.nn.Module):
        def forward(self, u: Tensor) -> Tensor:
            return op(u, Sequence(u.shape[1]), query=u[:, -2:])

    u = torch.randn(2, 9, 4, dtype=torch.float64)
    graph = torch.export.export(AtTheEnd(), (u,), dynamic_shapes=({0: open_size, 1: open_size},)).module()
    for points in (5, 9):
        torch.testing.assert_close(graph(u[:, :points]), op(u[:, :points], Sequence(points))[:, -2:])


@pytest.mark.parametrize("name", ["LinearRNN", "LinearSystem"])
def test_a_graph_of_a_masked_recurrence_takes_any_batch(name: str) -> None:
    op = IntegralOperator(getattr(kernels, name)(6, 3), residual=False).double()

    class Masked(torch.nn.Module):
        def forward(self, u: Tensor, mask: Tensor) -> Tensor:
            return op(u, key_padding_mask=mask)

    masks = torch.tensor([[True, True, False, True], [False] * 4, [True, False, True, True]])
    shapes = ({0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC})
    graph = torch.export.export(Masked(), (signal(4), masks[:2]), dynamic_shapes=shapes).module()
    for batch in (1, 3):
        torch.testing.assert_close(graph(signal(4, batch), masks[:batch]), Masked()(signal(4, batch), masks[:batch]))


@pytest.mark.long
@pytest.mark.parametrize("name", ["points of each entry", "strided grids", "a signal alone", "points and a grid"])
def test_sums(name: str) -> None:
    kernel, domain = SUMS[name]
    op = IntegralOperator(kernel, residual=False).double()
    compare(op, signal(6), domain)
    expected = op(signal(6), domain)
    for strict in (False, True):
        exported = torch.export.export(OnDomain(op, domain), (signal(6),), strict=strict)
        torch.testing.assert_close(exported.module()(signal(6)), expected)


def test_domains_made_inside_the_graph() -> None:
    op, u, pos = operator(), signal(6), POS[0, :1]

    def call(u: Tensor, mask: Tensor) -> Tensor:
        return op(u, Union(Points(pos), Grid(1, 5)).restrict(mask))

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(u, MASK), call(u, MASK))


@pytest.mark.slow
def test_sizes_that_vary() -> None:
    op = operator()
    compiled = torch.compile(op, fullgraph=True, backend="eager")
    for batch, shape in ((2, (2, 3)), (3, (4, 2))):
        u = signal(shape[0] * shape[1], batch)
        torch.testing.assert_close(compiled(u, Grid(*shape)), op(u, Grid(*shape)))


@pytest.mark.slow
def test_autocast() -> None:
    op, u = operator(dtype=torch.float32), signal(6, dtype=torch.float32)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        expected, got = op(u, Grid(2, 3)), compiled(u, Grid(2, 3))
    torch.testing.assert_close(got, expected)


@pytest.mark.slow
def test_with_code_generation() -> None:
    op, u = operator(), signal(6)
    compiled = torch.compile(op, fullgraph=True)
    with torch.no_grad(), inductor.patch(compile_threads=1):  # otherwise it starts processes that import torch
        torch.testing.assert_close(compiled(u, Grid(2, 3), key_padding_mask=MASK), op(u, Grid(2, 3, mask=MASK)))
