"""Every benchmark of the GPU script on a pretended GPU: its rows are complete and pass its gates."""

import pytest

from benchmarks import roofline
from benchmarks.__main__ import BENCHMARKS
from benchmarks.harness import Options
from tests.pretended_device import pretending

SHORT = ("linear_infinite_attention", "roofline", "scan", "yat_attention", "yat_dense", "neural_fields")
LONGER = (
    "itnet", "large_domains", "exact_mlp", "graphs", "one_kernel", "continuous_convolution", "infinite_attention",
    "infvit", "converted_layers",
)  # fmt: skip


@pytest.mark.parametrize("name", [*SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in LONGER)])
def test_a_benchmark_runs_on_a_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "_activations", lambda device: 1.0)  # measured with a Triton kernel
    benchmark = {each.name: each for each in BENCHMARKS}[name]
    with pretending():
        report = benchmark.run(benchmark.config(options=Options(device="cuda", quick=True, budget_s=0.0)))
    assert report.rows
    assert report.device == "cuda"
