"""The benchmark of continuous convolutions at tiny sizes: its gate, its rows, and its peer."""

import dataclasses

import pytest
import torch

from benchmarks import continuous_convolution as benchmark
from benchmarks.harness import DIRECTIONS, GateError, Options
from benchmarks.peers.full_spectra import full_spectra
from fredholm.evaluation import AUTO, BasisFFT, BasisTiled, Integral

pytestmark = pytest.mark.usefixtures("poisoned_memory")
QUICK = dataclasses.replace(
    benchmark.Config(options=Options(quick=True)).sized(),
    options=Options(rounds=1, budget_s=0.001),
    sizes=(),
    irregular_sizes=(24,),
)


@pytest.mark.slow
@pytest.mark.usefixtures("in_one_process")
def test_a_quick_run_has_every_row():
    rows = list(benchmark.measure(QUICK))
    assert {(row.case, row.n, row.peer) for row in rows if row.peer} == {
        ("regular", 31, "full spectra"),
        ("regular", 31, "direct convolution"),
        ("irregular", 17, "κ in full"),
    }
    for case, sizes in (("long", QUICK.long_sizes), ("irregular", QUICK.irregular_sizes)):
        alone = [(row.n, row.direction) for row in rows if row.case == case and row.peer is None]
        assert alone == [(n, direction) for n in sizes for direction in DIRECTIONS]
    assert all(row.max_rel_error is not None and row.max_rel_error < QUICK.tolerance for row in rows)
    assert any(note.startswith("long, forward: time ~ n^") for note in benchmark.BENCHMARK.notes(rows))


@pytest.mark.parametrize(
    ("case", "peer", "route"),
    [("regular", "full spectra", BasisFFT), ("irregular", "κ in full", BasisTiled)],
)
def test_a_wrong_sum_is_not_timed(monkeypatch, case, peer, route):
    right = route.integrate
    monkeypatch.setattr(
        benchmark.Problem, "_ours", lambda self: 1.001 * right(route(), Integral(self.kernel, self.u, self.domain))
    )
    with pytest.raises(GateError, match=f"{case} against {peer}"):
        benchmark.compare(QUICK, case, 17, [peer])
    problem = benchmark.Problem(QUICK, case, 17)
    with pytest.raises(GateError, match="against its formula"):
        problem.error("ours", "forward", problem.step("ours", "forward")())


def test_the_plain_form_is_the_sum():
    u, kernel = torch.randn(2, 5, 3), torch.randn(4, 3, 5)
    expected = torch.zeros(2, 5, 4)
    for t in range(5):
        for s in range(t + 1):
            expected[:, t] += u[:, t - s] @ kernel[..., s].T
    torch.testing.assert_close(full_spectra(u, kernel), expected)


def test_full_sizes_use_the_measured_routes():
    config = benchmark.Config()
    for case, n, route in (
        ("regular", 16_000, BasisFFT),
        ("long", 1 << 16, BasisFFT),
        ("irregular", 100, BasisTiled),
    ):
        problem = benchmark.Problem(config, case, n)
        assert isinstance(AUTO.choose(Integral(problem.kernel, problem.u, problem.domain)).route, route)
