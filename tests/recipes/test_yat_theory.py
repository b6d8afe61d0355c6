"""The numbers of the Yat study: tangent kernels against a wide layer, spectra against quadrature, and a run."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fredholm.kernels import yat
from recipes import yat_theory as study

ROOT = Path(__file__).resolve().parents[2]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_tangent_kernel_matches_a_wide_layer() -> None:
    """⟨∇f(x), ∇f(x')⟩ over readout and prototypes of Σ a_i yat(w_i, x) / √m, signs for a."""
    m, x = 500, draw(2, 6)
    w, readout = draw(m, 6, seed=1).requires_grad_(), draw(m, seed=2).sign().requires_grad_()
    out = yat(x, w, epsilon=0.3) @ readout / math.sqrt(m)
    first, second = (torch.autograd.grad(value, (w, readout), retain_graph=True) for value in out)
    expected = sum((a * b).sum().item() for a, b in zip(first, second, strict=True))
    assert sum(study.tangent_parts(x[0], x[1], w.detach(), 0.3)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sigma", [0.25, 1.0, 3.0])
def test_in_high_dimension_the_tangent_kernel_approaches_its_limit(sigma: float) -> None:
    angles = torch.tensor([0.0, 0.5, math.pi / 2, 2.5], dtype=torch.float64)
    values = study.tangent_kernel(angles, 1.0, sigma * draw(2000, 500), 0.1)
    torch.testing.assert_close(values / values[0], study.large_dimension_limit(angles, sigma), rtol=0, atol=0.08)


def test_theorem_17_at_a_right_angle() -> None:
    """It does not vanish: the part from the units keeps a third of its value, and the total is σ²/(4 + 3 σ²)."""
    right = torch.tensor([math.pi / 2], dtype=torch.float64)
    for sigma in (0.1, 1.0, 10.0):
        limit = study.large_dimension_limit(right, sigma).item()
        assert limit == pytest.approx(sigma**2 / (4 + 3 * sigma**2), rel=1e-9)
    first, second = torch.eye(1000, dtype=torch.float64)[:2]
    w = draw(4000, 1000)
    at_right, at_zero = (study.tangent_parts(first, other, w, 0.1) for other in (second, first))
    assert at_right.units / at_zero.units == pytest.approx(1 / 3, abs=0.04)
    assert abs(at_right.gradients / at_zero.gradients) < 0.02
    assert sum(at_right) / sum(at_zero) == pytest.approx(1 / 7, abs=0.02)
    relu = study.relu_tangent_kernel(torch.tensor([0.0, math.pi / 2], dtype=torch.float64), 1.0)
    assert (relu[1] / relu[0]).item() == pytest.approx(1 / (2 * math.pi))


@pytest.mark.parametrize("angle", [0.0, 0.4, 2.0])
def test_the_relu_kernel_is_its_expectation(angle: float) -> None:
    w = 0.7 * draw(200_000, 2)
    x, other = torch.tensor([1.0, 0.0]).double(), torch.tensor([math.cos(angle), math.sin(angle)]).double()
    a, b = w @ x, w @ other
    mean = (a.relu() * b.relu() + ((a > 0) & (b > 0)) * (x @ other)).mean().item()
    assert study.relu_tangent_kernel(torch.tensor([angle]).double(), 0.7).item() == pytest.approx(mean, abs=6e-3)


def test_the_spectrum_on_the_circle_sums_to_the_kernel() -> None:
    values = study.circle_spectrum(0.5, 64)
    w = draw(100_000, 2)
    for angle in (0.0, 0.8, 2.5):
        k = torch.arange(64, dtype=torch.float64)
        series = values[0] + 2 * (values[1:] * torch.cos(angle * k[1:])).sum()
        sampled = study.tangent_kernel(torch.tensor([angle]).double(), 1.0, w, 0.5).item()
        assert series.item() == pytest.approx(sampled, abs=0.03 * values.sum().item())


def test_eigenvalues_decay_exponentially_and_those_of_relu_quadratically() -> None:
    """Proposition 7 gives k^(-2/d) and, for ReLU, k^(-1/d), whose sum would not even be finite."""
    found = study.spectra(study.Config(quick=True))
    assert found["relu exponent"] == pytest.approx(-2, abs=0.05)
    for epsilon in (0.1, 1.0):
        law = found["yat"][epsilon]
        assert law["rate"] == pytest.approx(law["predicted rate"], rel=0.15)


def test_the_yat_kernel_itself_decays_at_the_rate_of_its_pole() -> None:
    """cos² θ / (2 - 2 cos θ + ε), 2 cosh η = 2 + ε: coefficients e^(-η k), so that no bound as in corollary 3 holds."""
    eta = math.acosh(1.05)
    ratios = [study.squared_norm_ratio(k, 0.1) for k in (20, 40, 60)]
    for k, (first, second) in zip((20, 40), itertools.pairwise(ratios), strict=True):
        power = ((k + 20) / k) ** -4  # features of ReLU: k^(-4)
        assert second / first == pytest.approx(math.exp(20 * eta) * power, rel=0.02)
    assert ratios[-1] > 1e2 * ratios[0]


@pytest.mark.long
def test_a_quick_run_writes_its_results_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "recipes/yat_theory.py", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads((tmp_path / "results.json").read_text())
    assert report["claims"]["maximum over the bound of proposition 11, ‖w‖ = 1"]["1.0"] == pytest.approx(2)
    for name in ("yat_response.png", "yat_tangent_kernel.png"):
        assert (tmp_path / name).stat().st_size > 10_000
