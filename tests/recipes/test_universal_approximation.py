"""The study of approximation: its references are exact, its lower bound holds, and it runs."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fredholm
from fredholm import domains, kernels
from recipes import universal_approximation as study

ROOT = Path(__file__).resolve().parents[2]


def fields(count: int = 3) -> torch.Tensor:
    return study.random_fields(count, torch.Generator().manual_seed(5))


def test_fields_are_bounded_and_follow_their_coefficients() -> None:
    some = fields(200)
    assert some.abs().max() <= 0.8
    x = torch.tensor([0.0, 0.25], dtype=torch.float64)
    at = study.values(some, x)
    torch.testing.assert_close(at[:, 0], some[0].sum(-1), rtol=0, atol=1e-14)
    torch.testing.assert_close(at[:, 1], some[1, :, 0] - some[0, :, 1] - some[1, :, 2], rtol=0, atol=1e-14)


def test_the_antiderivative_equals_gauss_legendre_quadrature() -> None:
    some, x = fields(), torch.tensor([0.0, 0.1, 0.37, 1.0], dtype=torch.float64)
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(60))
    for column, end in zip(study.antiderivative(some, x).T, x.tolist(), strict=True):
        integrand = torch.sin(math.pi * study.values(some, end * (nodes + 1) / 2))
        torch.testing.assert_close(column, integrand @ weights * end / 2, rtol=0, atol=1e-12)


def test_the_burgers_solver_equals_the_cole_hopf_integral_on_the_line() -> None:
    """u = ∫ (x - y)/t G dy / ∫ G dy with G = exp(-(∫_0^y u0 + (x - y)² / 2t) / 2ν), by quadrature over the line."""
    viscosity, time, count = 0.05, 0.2, 40_000
    some, x = fields(2), torch.tensor([0.03, 0.4, 0.8], dtype=torch.float64)
    y = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 8 - 3.5  # the Gaussian is 1e-30 at its ends
    k = 2 * math.pi * torch.arange(1, study.NUM_MODES + 1, dtype=torch.float64)
    mean = 0.3
    primitive = (some[0] / k) @ (k[:, None] * y).sin() + (some[1] / k) @ (1 - (k[:, None] * y).cos()) + mean * y
    exponent = -(primitive[:, None] + (x[:, None] - y).square() / (2 * time)) / (2 * viscosity)
    g = torch.exp(exponent - exponent.amax(-1, keepdim=True))
    exact = ((x[:, None] - y) / time * g).sum(-1) / g.sum(-1)
    start = study.values(some, torch.arange(256, dtype=torch.float64) / 256) + mean
    torch.testing.assert_close(study.cole_hopf(start, x, viscosity=viscosity, time=time), exact, rtol=0, atol=1e-10)


def test_the_burgers_solver_equals_a_pseudo_spectral_solution() -> None:
    integrate = pytest.importorskip("scipy.integrate")
    n = 128
    x = torch.arange(n, dtype=torch.float64) / n
    start = study.values(fields(1), x)[0].numpy()
    k = 2 * np.pi * np.fft.rfftfreq(n, 1 / n)

    def velocity(_: float, u: np.ndarray) -> np.ndarray:
        return np.fft.irfft(-0.5j * k * np.fft.rfft(u * u) - study.VISCOSITY * k**2 * np.fft.rfft(u), n)

    solved = integrate.solve_ivp(velocity, (0, study.TIME), start, method="DOP853", rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(study.burgers(fields(1), x)[0], torch.from_numpy(solved.y[:, -1]), rtol=0, atol=1e-8)


def test_no_single_layer_has_an_additivity_defect_and_burgers_has_one() -> None:
    """For any weights, one layer with a linear lift and projection is additive over signals with separate supports."""
    x, bumps = study.four_glued_bumps(64)
    outside = bumps[0] == 0
    assert outside.sum() > 4
    grid = domains.Grid(64, spacing=[1 / 64], origin=[0.0])
    lift, project = torch.nn.Linear(1, 4).double(), torch.nn.Linear(4, 1).double()
    kernel = kernels.MLP(4, width=16, num_frequencies=3, sigma=1.0, epsilon=1.0).double()
    with torch.no_grad():
        kernel.get_parameter("input_weight").mul_(50)
    layers = [fredholm.IntegralOperator(kernel).double() for _ in range(2)]
    with torch.no_grad():
        once = layers[0](lift(bumps[..., None]), grid)
        twice = layers[1](once, grid)
    assert study.defect(project(once)[..., 0])[outside].max() < 1e-12
    assert study.defect(project(twice)[..., 0])[outside].max() > 1e-3
    assert study.defect(study.cole_hopf(bumps, x))[outside].max() > 0.1
    assert study.lower_bound() == pytest.approx(0.0429, abs=1e-4)


@torch.no_grad()
def test_a_causal_sum_to_the_end_of_a_cell_is_the_midpoint_rule() -> None:
    """With κ = 1 the operator is ∫_0^x u: exact to M^-2 at the ends of cells, to M^-1 at nodes."""
    some = fields()
    k = 2 * math.pi * torch.arange(1, study.NUM_MODES + 1, dtype=torch.float64)
    kernel = kernels.MLP(1, width=1, is_causal=True, causal_measure="total", epsilon=0.0)  # κ = 1 where y is before x
    op = fredholm.IntegralOperator(kernel, residual=False, bias=False, output_projection=False).double()
    errors: dict[tuple[bool, int], float] = {}
    for at_nodes in (False, True):
        for nodes in (16, 32):
            data = study.sample(study.CAUSAL, some, nodes, torch.float64, at_nodes=at_nodes)
            phase = data.query_domain.pos * k
            exact = (some[0] / k) @ phase.sin().T + (some[1] / k) @ (1 - phase.cos()).T
            value = op(data.u, data.domain, query=data.query, query_domain=data.query_domain)[..., 0]
            errors[at_nodes, nodes] = (value - exact).square().mean().sqrt().item()
    assert errors[False, 16] / errors[False, 32] == pytest.approx(4, rel=0.2)
    assert errors[True, 16] / errors[True, 32] == pytest.approx(2, rel=0.2)


def test_slopes_are_fitted_on_a_log_log_scale() -> None:
    assert study.slope([1, 2, 8], [3.0, 3 / 4, 3 / 64]) == pytest.approx(-2)


@pytest.mark.long
def test_a_quick_run_writes_its_results_and_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "recipes/universal_approximation.py", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads((tmp_path / "results.json").read_text())
    assert len(report["means"]) == 6
    assert all(math.isfinite(value) for value in report["slopes"].values())
    assert (tmp_path / "universal_approximation.png").stat().st_size > 10_000
    assert "no single layer" in done.stdout
