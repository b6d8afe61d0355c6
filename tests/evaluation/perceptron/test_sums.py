import pytest
import torch

from fredholm.domains import Grid, Points
from fredholm.evaluation import Integral, Tiled, Toeplitz
from fredholm.evaluation.perceptron import tiled
from fredholm.evaluation.perceptron.tiles import Block, choose_tiling, split_at_block
from fredholm.evaluation.tiling import ranges
from fredholm.kernels import MLP
from tests.contracts.routes import randomise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "domain"),
    [(Tiled(50), Points(torch.rand(2, 5, 2))), (Toeplitz(50), Grid(2, 3))],
    ids=["tiled", "toeplitz"],
)
@pytest.mark.parametrize("is_causal", [False, pytest.param(True, marks=pytest.mark.long)])
def test_operator_registration(monkeypatch, route, domain, is_causal):
    """`opcheck`: schema, fake tensors, autograd and the compiler's view of the operator."""
    calls = []
    original = tiled.mlp_integral
    monkeypatch.setattr(tiled, "mlp_integral", lambda *args: (calls.append(args), original(*args))[1])
    kernel = randomise(MLP(4, 2, 2, width=3, num_frequencies=2, is_causal=is_causal))
    route.integrate(Integral(kernel, torch.randn(2, domain.num_points, 4), domain))
    tensors, *rest = calls[0]
    leaves = [t if t is None or t.dtype == torch.int64 else t.detach().requires_grad_() for t in tensors]
    report = torch.library.opcheck(torch.ops.fredholm.mlp_integral.default, (leaves, *rest))
    assert set(report.values()) == {"SUCCESS"}


@pytest.mark.parametrize("elements", [1, 100, 10_000])
def test_tiles_cover_every_pair_once(elements):
    tiling = choose_tiling(3, 17, 29, 4, 2, elements)
    assert min(tiling) >= 1
    assert tiling.chunk_queries % tiling.queries == 0
    block = Block(4, 5, (3, 4))
    for start, total, multiple in ((4, 20, 1), (5, 29, 4)):
        runs = list(split_at_block(total, 3, start, block, multiple))
        assert [i for run, _ in runs for i in range(run.start, run.stop)] == list(range(total))
        assert all((start <= run.start and run.stop <= start + 12) == inside for run, inside in runs)
    assert [i for run in ranges(11, 4) for i in range(run.start, run.stop)] == list(range(11))
