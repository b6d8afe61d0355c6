"""The study of claims on neural fields: covered motions are exact up to rounding, others are not; both are reported."""

import json
from pathlib import Path

import pytest
import torch

from recipes import field_claims as study
from recipes.field_claims import FRAMED, SETTINGS, Config

TURNS = {"rotations", "translations", "scalings"}
COVERED = {
    "axes": TURNS | {"orthogonal maps"},
    "centroid and size": {"translations", "scalings"},
    "isotropic": {"translations", "scalings"},
    "diagonal": {"translations", "scalings", "scalings of axes"},
    "rotational": TURNS | {"orthogonal maps"},
    "proper": TURNS,
    "affine": TURNS | {"scalings of axes", "orthogonal maps", "linear maps"},
    "periodic": {"translations"},
    "no frame": set(),
    "absolute positions": set(),
}
"""Covered motions by the last word of a setting's name; the order of samples is covered by all."""


@pytest.mark.long
def test_it_runs_reports_and_reuses_finished_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(study, "MOVES", 2)
    config = Config(out=tmp_path, seeds=(0, 1), steps=1, embed_dim=8, depth=1)
    study.main(config)
    results = json.loads((tmp_path / "results.json").read_text())
    moved = [r for r in results if r["part"] in ("groups", "frames")]
    assert len(moved) == 2 * (2 * len(SETTINGS) + len(FRAMED))
    for r in moved:
        assert r["norm"] > 1e-2
        for group, errors in r["errors"].items():
            covered = group in COVERED[r["name"].split(", ")[-1]] | {"permutations"}
            assert (errors["float64"] < 1e-12) == covered, (r["name"], group, errors)
            assert (errors["float32"] < 1e-5) == covered, (r["name"], group, errors)
    for r in results:
        if r["part"] == "temperature":
            assert r["remainder_exponent"] == pytest.approx(2, abs=0.1)
            assert r["error_exponent"] == pytest.approx(1, abs=0.1)
            assert all(row["decorrelation"] < 1e-3 for row in r["rows"] if row["temperature"] >= 100)
        if r["part"] in ("temperature", "samples"):
            assert all(0 < row["remainder_over_bound"] <= 1 for row in r["rows"])
    (first, *_) = [r["rows"] for r in results if r["part"] == "samples"]
    assert [(row["samples"], row["temperature"]) for row in first[::5]] == [(n, 10) for n in study.SAMPLES]
    assert (tmp_path / "softmax.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "groups, 3 dimensions, softmax, no frame" in printed
    assert "(2 seeds)" in printed
    assert "samples 256, temperature 200" in printed
    assert "remainder_exponent: 2" in printed
    monkeypatch.setattr(study, "measure_moves", None)
    monkeypatch.setattr(study, "against_gradient", None)
    study.main(config)
    assert json.loads((tmp_path / "results.json").read_text()) == results


def test_results_of_different_settings_are_not_combined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "SETTINGS", SETTINGS[:1])
    study.main(Config(out=tmp_path, seeds=(0,), steps=1, embed_dim=8, depth=1, parts=("groups",)))
    study.main(Config(out=tmp_path, seeds=(1,), steps=2, embed_dim=8, depth=1, parts=("groups",)))
    assert "(2 seeds)" not in capsys.readouterr().out


def test_functions_are_of_order_one_at_skewed_points() -> None:
    x, y = study.draw_functions(50, 2, torch.Generator().manual_seed(0))
    assert 0.3 < y.square().mean().sqrt() < 3
    assert bool((x.pow(3).mean((0, 1)) > 0).all())


def test_functions_on_the_torus_are_continuous_where_it_wraps_around() -> None:
    x, y = study.draw_functions(20, 2, torch.Generator().manual_seed(0), wraps=True)
    assert bool(((x >= 0) & (x < 1)).all())
    difference = x[:, :, None] - x[:, None]
    across = (difference.norm(dim=-1) > 0.9) & ((difference - difference.round()).norm(dim=-1) < 0.02)
    assert across.sum() > 20
    assert (y - y.mT).abs()[across].max() < 0.1 * y.abs().max()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="steps must be at least 1; got 0"):
        Config(steps=0)
