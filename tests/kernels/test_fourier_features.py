import functools
import math
from typing import Any

import pytest
import torch

from fredholm.domains import Grid, Points, Sequence
from fredholm.kernels import MLP, KernelInputs, LowRankMLP
from fredholm.kernels import fourier_features as module
from fredholm.kernels.fourier_features import SHARED_POINTS, Lifting, fourier_features, lift_together, phases
from fredholm.operators import IntegralOperator


def test_phases_keep_float32_under_autocast():
    pos, frequencies = torch.rand(50, 3), 10 * torch.randn(64, 3)
    with torch.autocast("cpu", torch.bfloat16):
        theta = phases(pos, frequencies)
    assert theta.dtype == torch.float32
    torch.testing.assert_close(
        theta, (2 * math.pi * pos.double() @ frequencies.double().T).float(), rtol=1e-5, atol=1e-4
    )
    assert fourier_features(pos, frequencies).shape == (50, 128)


def lifting(kind: str, pos_dim: int = 2, num_frequencies: int = 3) -> Lifting:
    if kind == "MLP":
        return MLP(4, 2, pos_dim, width=3, num_frequencies=num_frequencies)
    return LowRankMLP(4, 2, pos_dim, rank=1, width=3, num_frequencies=num_frequencies).features


@pytest.mark.parametrize("kind", ["MLP", "low rank"])
def test_many_points_are_lifted_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = lifting(kind, 1)
    pos = torch.rand(2, 21, 1, dtype=torch.float64)
    sizes, found = [], fourier_features
    monkeypatch.setattr(module, "PIECE_BYTES", 8 * 8 * kernel.num_frequencies)
    monkeypatch.setattr(
        module, "fourier_features", lambda pos, *rest: (sizes.append(pos.shape[-2]), found(pos, *rest))[1]
    )
    expected = fourier_features(pos, kernel.frequencies).float()
    assert torch.equal(kernel.lift(Points(pos)), expected)
    assert torch.equal(kernel.lift(Points(pos[0])), expected[:1])
    assert sizes == 2 * [8, 8, 5]


@pytest.mark.parametrize("kind", [MLP, functools.partial(LowRankMLP, rank=1)], ids=["MLP", "low rank"])
def test_an_exported_graph_holds_for_few_points_and_for_many(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 8 * 8 * 3)
    operator = IntegralOperator(kind(4, 2, 2, width=3, num_frequencies=3)).eval()
    sizes = {1: torch.export.Dim("n", min=2, max=64)}
    signal, pos = torch.rand(1, 20, 4), torch.rand(1, 20, 2)

    class OnPoints(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.operator = operator

        def forward(self, u: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
            return self.operator(u, Points(pos))

    graph = torch.export.export(OnPoints(), (signal, pos), dynamic_shapes=(sizes, sizes)).module()
    for n in (3, 50):
        inputs = torch.rand(1, n, 4), torch.rand(1, n, 2)
        torch.testing.assert_close(graph(*inputs), OnPoints()(*inputs))


def test_positions_are_lifted_for_several_kernels_at_once() -> None:
    kernels = [lifting(kind, num_frequencies=count) for kind, count in (("MLP", 3), ("low rank", 5), ("low rank", 3))]
    kernels.append(lifting("MLP", num_frequencies=0))
    for domain in (Grid(2, 3), Points(torch.rand(2, 5, 2)), Points(torch.rand(5, 2).requires_grad_())):
        together = domain.with_cache()
        lift_together(kernels, together)
        for kernel in kernels:
            is_found = kernel.num_frequencies > 0 and not domain.pos.requires_grad
            assert (kernel in (together._cache or {})) == is_found
            assert torch.equal(kernel.lift(together), kernel.lift(domain))


@pytest.mark.parametrize("kind", ["MLP", "low rank"])
def test_many_points_are_lifted_kernel_by_kernel_and_not_cached(kind: str) -> None:
    kernel, domain = lifting(kind, 1), Sequence(SHARED_POINTS + 1).with_cache()
    lift_together([kernel], domain)
    kernel.lift(domain)
    assert domain._cache == {}
    few = Sequence(SHARED_POINTS).with_cache()
    assert kernel.lift(few) is kernel.lift(few)


def test_a_kernel_that_reads_no_position_lifts_nothing() -> None:
    inputs = KernelInputs(query_position=False, key_position=False, relative_position=False)
    assert MLP(2, inputs=inputs).lift(Sequence(5)).shape == (1, 5, 0)
