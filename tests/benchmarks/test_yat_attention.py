import dataclasses

import pytest
import torch

from benchmarks import yat_attention
from benchmarks.harness import GateError, Options
from fredholm.evaluation import ScoreTiled

pytestmark = pytest.mark.usefixtures("poisoned_memory")
QUICK = yat_attention.Config(options=Options(quick=True)).sized()


@pytest.mark.usefixtures("in_one_process")
def test_a_quick_run_has_every_row():
    config = dataclasses.replace(QUICK, heads=(2,))
    rows = list(yat_attention.measure(config))
    assert {(row.case, row.peer) for row in rows if row.peer} == {
        ("Yat attention, 2 heads", "softmax attention"),
        ("Yat attention, 2 heads", "dense form"),
    }
    assert {row.n for row in rows} == {config.points, *config.own_points}
    assert all((row.max_rel_error or 1.0) < config.tolerance for row in rows if row.peer == "dense form")
    assert all(line for line in yat_attention.BENCHMARK.notes(rows))


@pytest.mark.usefixtures("in_one_process")
def test_rows_in_bfloat16():
    config = dataclasses.replace(QUICK, heads=(2,), precisions=("bfloat16",), batch=2)
    rows = list(yat_attention.measure(config))
    assert {(row.case, row.peer) for row in rows} == {
        ("Yat attention bf16, 2 heads", "softmax attention"),
        ("Yat attention bf16, 2 heads", None),
        ("softmax attention bf16, 2", None),
    }
    errors = [row.max_rel_error for row in rows if row.peer]
    assert all(error is not None and 1e-4 < error < config.rounded_tolerance for error in errors)


@pytest.mark.parametrize(
    ("precision", "factor", "message"),
    [
        ("float32", 1.001, "Yat attention against dense form"),
        ("bfloat16", 1.02, "Yat attention bf16, 2 heads against dense form in float64, n=31: error 2"),
    ],
)
def test_a_wrong_sum_is_not_timed(monkeypatch, precision, factor, message):
    right = ScoreTiled.compute
    monkeypatch.setattr(ScoreTiled, "compute", lambda *given: factor * right(*given))
    with pytest.raises(GateError, match=message):
        yat_attention.compare(QUICK, 2, precision)


def test_the_dense_form_follows_the_formula():
    problem = yat_attention.Problem(QUICK, 2, 5)
    q, k, v = problem.u[0].detach().view(5, 3, 2, 6).permute(1, 2, 0, 3)
    distance = (q[:, :, None] - k[:, None]).square().sum(-1)
    share = ((q @ k.mT).square() / (distance + 1)).softmax(-1)
    torch.testing.assert_close(problem.step("dense form", "forward")()[0][0], (share @ v).transpose(0, 1).flatten(1))
