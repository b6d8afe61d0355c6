"""The study of the claims on neural fields: what is covered moves to rounding, what is not does not, and it is told."""

import json
from pathlib import Path

import pytest
import torch

from recipes import field_claims as study
from recipes.field_claims import SETTINGS, Config


@pytest.mark.slow
def test_it_runs_tells_and_takes_up_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    config = Config(out=tmp_path, seeds=(0, 1), steps=1, embed_dim=8, depth=1)
    study.main(config)
    results = json.loads((tmp_path / "results.json").read_text())
    groups = [r for r in results if r["part"] == "groups"]
    assert len(groups) == 2 * 2 * len(SETTINGS)
    for r in groups:
        covered = r["name"].endswith("axes")
        assert (r["relative_float64"] < 1e-12) == covered
        assert (r["relative_float32"] < 1e-5) == covered
        assert r["norm"] > 1e-2
    for r in results:
        if r["part"] == "temperature":
            assert r["remainder_exponent"] == pytest.approx(2, abs=0.1)
            assert r["error_exponent"] == pytest.approx(1, abs=0.1)
            assert all(row["decorrelation"] < 1e-3 for row in r["rows"] if row["temperature"] >= 100)
        if r["part"] != "groups":
            assert all(0 < row["remainder_over_bound"] <= 1 for row in r["rows"])
    (first, *_) = [r["rows"] for r in results if r["part"] == "samples"]
    assert [(row["samples"], row["temperature"]) for row in first[::5]] == [(n, 10) for n in study.SAMPLES]
    assert (tmp_path / "softmax.png").stat().st_size > 10_000
    told = capsys.readouterr().out
    assert "SO(3) softmax, no frame" in told
    assert "(2 seeds)" in told
    assert "samples 256, temperature 200" in told
    assert "remainder_exponent: 2" in told
    monkeypatch.setattr(study, "measure_group", None)
    monkeypatch.setattr(study, "beside_the_gradient", None)
    study.main(config)
    assert json.loads((tmp_path / "results.json").read_text()) == results


def test_other_settings_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study.main(Config(out=tmp_path, seeds=(0,), steps=1, embed_dim=8, depth=1, parts=("groups",)))
    study.main(Config(out=tmp_path, seeds=(1,), steps=2, embed_dim=8, depth=1, parts=("groups",)))
    assert "(2 seeds)" not in capsys.readouterr().out


def test_functions_are_of_order_one_on_skewed_places() -> None:
    x, y = study.draw_functions(50, 2, torch.Generator().manual_seed(0))
    assert 0.3 < y.square().mean().sqrt() < 3
    assert bool((x.pow(3).mean((0, 1)) > 0).all())


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="steps must be at least 1; got 0"):
        Config(steps=0)
