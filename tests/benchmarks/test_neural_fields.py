import pytest

from benchmarks import neural_fields as benchmark
from benchmarks.harness import GateError, Options
from fredholm.evaluation import BilinearSum, FusedAttention

pytestmark = pytest.mark.usefixtures("poisoned_memory")
QUICK = benchmark.Config(options=Options(quick=True)).sized()


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_a_quick_run_has_every_row():
    rows = list(benchmark.measure(QUICK))
    assert {(row.case, row.peer) for row in rows} == {
        ("field operator, softmax", benchmark.ALL_WEIGHTS),
        ("field operator, linear", benchmark.SOFTMAX),
        (benchmark.SUM, benchmark.WRITTEN),
        (benchmark.SUM, benchmark.FUSED),
        (f"{benchmark.SUM}, alone", None),
    }
    assert {row.n for row in rows} == {QUICK.batch, QUICK.points, *QUICK.own_points}
    advice = list(benchmark.BENCHMARK.notes(rows))
    fast = next(row for row in rows if row.case == "field operator, linear" and row.direction == "forward")
    assert f"field operator, linear, 2 at a time: {60 * 2 / fast.ours_s:,.0f} fields a minute" in advice


@pytest.mark.parametrize(
    ("route", "named"), [(FusedAttention, "field operator"), (BilinearSum, "without a normaliser")]
)
def test_a_wrong_route_is_not_timed(monkeypatch, route, named):
    right = route.compute
    monkeypatch.setattr(route, "compute", lambda *args: 1.01 * right(*args))
    with pytest.raises(GateError, match=named):
        benchmark.compare(QUICK)
