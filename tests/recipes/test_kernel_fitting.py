"""Targets and fits of the study of kernel networks, and a run of the study."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recipes import kernel_fitting as study

ROOT = Path(__file__).resolve().parents[2]
QUICK = study.Config(num_points=100, steps=150, omegas=(20.0,), learning_rates=(1e-2,))


def test_targets_follow_their_formulas() -> None:
    goals = study.targets(1001, 3)
    assert goals["Gaussian"][500] == 1
    assert goals["Gaussian"][600] == pytest.approx(torch.e**-0.5, rel=1e-4)
    assert goals["step"][[0, 500, 501, 1000]].tolist() == [-1, -1, 1, 1]
    assert (goals["sawtooth"].diff() < -1).sum() == 5
    assert goals["chirp"].abs().max() > 0.99
    assert (goals["chirp"][:-1] * goals["chirp"][1:] < 0).sum() == 39  # 20 waves in total
    assert torch.equal(goals["noise"], study.targets(1001, 3)["noise"])
    assert not torch.equal(goals["noise"], study.targets(1001, 4)["noise"])


def test_the_error_is_that_of_the_drawn_fit_and_the_best_fit_is_kept() -> None:
    goal = study.targets(100, 0)["chirp"]
    config = study.Config(num_points=100, steps=30, omegas=(1.0, 40.0), learning_rates=(1e-3, 1e-2))
    tried = [
        study.fit(study.VARIANTS["sine"], goal, config, rate, omega)
        for rate in config.learning_rates
        for omega in config.omegas
    ]
    best = study.best_fit(study.VARIANTS["sine"], goal, config)
    assert best.error == min(found.error for found in tried)
    assert best.error == pytest.approx((best.drawn - goal).square().mean().item())
    assert best.omega_0 == 40.0


@pytest.mark.long
def test_only_sines_fit_a_sawtooth() -> None:
    goal = study.targets(100, 0)["sawtooth"]
    errors = {name: study.best_fit(variant, goal, QUICK).error for name, variant in study.VARIANTS.items()}
    assert errors["sine"] < 0.05
    assert min(error for name, error in errors.items() if name != "sine") > 3 * errors["sine"]


@pytest.mark.long
def test_a_quick_run_writes_its_results_and_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--steps", "5", "--num-points", "60", "--omegas", "9", "--learning-rates", "0.1", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "recipes/kernel_fitting.py", *options], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads((tmp_path / "results.json").read_text())
    assert list(report) == list(study.VARIANTS)
    assert (tmp_path / "kernel_fitting.png").stat().st_size > 10_000
