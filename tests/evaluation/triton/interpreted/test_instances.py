"""The fused routes in cells of the instance table."""

from collections import Counter

import pytest

from tests.contracts.instances import accepted, case_of, disagreements, quick_cells

FUSED = {"MLP": "TritonTiled", "LowRankMLP": "TritonFeatureSum", "SeparableMLP": "TritonFeatureSum"}
FUSED |= {"YatAttention": "TritonYat"}


@pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FUSED)
def test_the_fused_route_agrees_with_the_definition(name: str, count: int) -> None:
    """Few cells, because the interpreter takes seconds for them."""
    in_float32 = [cell for cell in quick_cells(name) if cell.precision.startswith("float32")]
    each = len(in_float32) // count
    exercised = Counter[str]()
    for start in range(0, count * each, each):
        cell = next(c for c in in_float32[start : start + each] if FUSED[name] in dict(accepted(case_of(c))))
        wrong = disagreements(cell, exercised, only=FUSED[name])
        assert not wrong, "\n".join(map(str, wrong))
    assert exercised[FUSED[name]]
