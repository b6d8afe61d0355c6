"""The content kernel of `docs/extending.md` is computed in tiles although it only defines its score."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm.evaluation import AUTO, Dense, Integral, ScoreTiled, Weighted
from fredholm.kernels import Score, Softermax, Softmax
from tests.contracts.routes import check_route, randomise
from tests.contracts.weighed_domains import DOMAINS, PAIRS, domain
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("poisoned_memory")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "extending.md"
SOURCE = next(part.split("```")[0] for part in PAGE.read_text().split("```python\n")[1:] if "class RationalQ" in part)


def kernel(embed_dim: int = 8, num_heads: int = 4) -> Any:
    torch.manual_seed(0)
    namespace: dict[str, type] = {}
    exec(SOURCE[: SOURCE.index("op = ")], namespace)
    return randomise(namespace["RationalQuadraticAttention"](embed_dim, num_heads)).double()


def test_the_kernel_is_short() -> None:
    assert SOURCE.count("\n") <= 60


@pytest.mark.parametrize("name", DOMAINS + PAIRS)
def test_tiles_equal_dense(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("fredholm.evaluation.pair_tiles.PairTiles.ROWS", 3)
    where = domain(name)
    u = torch.randn(2, where.num_points, 8, dtype=torch.float64)
    made = Integral(kernel(), u if where.mask is None else torch.where(where.mask[..., None], u, 0.0), where)
    assert isinstance(AUTO.choose(made).route, ScoreTiled)
    for route in (ScoreTiled(tile_elements=6), ScoreTiled(), Weighted(tile_elements=50)):
        check_route(route, made)


@pytest.mark.parametrize("largest", [0.0, 1e12])
def test_scores_of_any_sign_have_a_softmax(monkeypatch: pytest.MonkeyPatch, largest: float) -> None:
    """Rows whose scores all lie far below 0 keep their softmax weights."""
    monkeypatch.setattr("fredholm.evaluation.attention.score_tiled.LARGEST", largest)

    class Below(Score):
        """s = q·k / 4 - 900."""

        def value(self, dot, distance, *numbers):
            return 0.25 * dot - 900.0

    where = domain("masked")
    scored = kernel()
    scored.score, scored.normaliser = Below(), Softmax()
    u = torch.where(torch.as_tensor(where.mask)[..., None], torch.randn(2, where.num_points, 8).double(), 0.0)
    made = Integral(scored, u, where)
    q, k, v = scored.projections.queries(u), scored.projections.keys(u), scored.projections.values(u)
    scores = torch.where(torch.as_tensor(where.mask)[..., None, None, :], 0.25 * q @ k.mT - 900.0, -torch.inf)
    expected = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2)
    for route in (ScoreTiled(tile_elements=6), Dense()):
        torch.testing.assert_close(route.integrate(made), expected)
    scored.normaliser = Softermax()
    with refused(ValueError, "Softermax takes scores >= 0", "is_nonnegative = True"):
        ScoreTiled().integrate(made)


@pytest.mark.long
def test_memory_grows_linearly_with_the_points() -> None:
    """Measured in a separate process for each size: forward and backward, 96 channels in 6 heads, float32."""
    program = (
        SOURCE[: SOURCE.index("op = ")]
        + """
import sys
from fredholm.operators.cost import PeakMemory
torch.set_num_threads(1)
n = int(sys.argv[1])
op = fredholm.IntegralOperator(RationalQuadraticAttention(embed_dim=96, num_heads=6))
assert op.explain(torch.zeros(1, n, 96)).startswith("ScoreTiled")
u = torch.randn(1, n, 96, requires_grad=True)
op(u[:, :64]).sum().backward()
with PeakMemory(u.device) as peak:
    op(u).sum().backward()
print(peak.megabytes)
"""
    )
    small, large = (
        float(
            subprocess.run([sys.executable, "-c", program, str(n)], capture_output=True, text=True, check=True).stdout
        )
        for n in (1024, 2048)
    )
    assert large < 2.5 * small, (small, large)
    # six heads of 2,048² scores are 101 MB
    assert large < 60, (small, large)
