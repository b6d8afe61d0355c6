"""One unit and XOR, regions of prototypes nearby and far away, and a run of the study."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fredholm.kernels import yat
from recipes import yat_plane as study

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 7.0])
def test_the_unit_of_the_paper_separates_xor(epsilon: float) -> None:
    response = yat(study.XOR_POINTS.double(), torch.tensor([[1.0, -1.0]]).double(), epsilon=epsilon)[:, 0]
    expected = torch.tensor([0.0, 1 / (5 + epsilon), 1 / (1 + epsilon), 0.0]).double()
    torch.testing.assert_close(response, expected, rtol=1e-7, atol=0)
    assert torch.equal(response > 0, study.XOR_LABELS > 0)


def test_units_follow_their_formulas() -> None:
    x = torch.randn(5, 2)
    for kind in study.XOR_UNITS:
        units = study.Units(kind, 3, 0.2, torch.Generator().manual_seed(0))
        dot = x @ units.w.T
        b = units.b if kind != "Yat" else torch.zeros(3)
        squared = (x[:, None] - units.w).square().sum(-1)
        phi = {"linear": dot + b, "ReLU": (dot + b).relu()}.get(kind, (dot + b).square() / (squared + 0.2))
        torch.testing.assert_close(units(x), units.s * phi + units.c)


def test_most_yat_units_learn_xor_but_no_linear_or_relu_unit() -> None:
    config = study.Config(starts=20, steps=400)
    solved = {kind: int((study.xor_right(study.train_xor(kind, config)) == 4).sum()) for kind in study.XOR_UNITS[:3]}
    assert solved["linear"] == solved["ReLU"] == 0
    assert solved["Yat"] >= 15


def test_far_regions_of_yat_prototypes_are_double_cones_with_bounded_confidence() -> None:
    config = study.Config(steps=300)
    model, linear = study.train_regions(config, 0.1), study.train_regions(config, None)
    x, labels = study.clusters(config.seed)
    for classifier in (model, linear):
        assert (classifier(x).argmax(-1) == labels).float().mean() > 0.9
    far = study.far_field(model)
    assert far["as opposite"][-1] > 0.99
    assert far["as opposite"][0] < 0.6  # near the data a region is not a double cone
    assert far["mean p"][-1] == pytest.approx(far["mean p"][-2], abs=0.01)
    assert study.far_field(linear)["as opposite"][-1] < 0.01
    assert study.far_field(linear)["mean p"][-1] > 0.999
    # and each direction belongs to the prototype with the largest |w·u|
    angle = torch.linspace(0, 6, 100)
    u = torch.stack([angle.cos(), angle.sin()], -1)
    by_limit = (u @ model.w.T).square().argmax(-1)
    assert (model(1e6 * u).argmax(-1) == by_limit).float().mean() > 0.97


@pytest.mark.long
def test_a_quick_run_writes_its_results_and_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--steps", "30", "--starts", "5", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "recipes/yat_plane.py", *options], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads((tmp_path / "results.json").read_text())["xor on paper"][1:3] == pytest.approx([1 / 5.1, 1 / 1.1])
    for name in ("yat_xor.png", "yat_regions.png"):
        assert (tmp_path / name).stat().st_size > 10_000
