"""The study of continuous convolutions on series: settings match their names, and it runs from end to end."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.encoders.series import Series
from fredholm.models.series.ckcnn import CKCNN
from fredholm.tasks import SeriesLearning
from fredholm.training.recipes import open_recipe
from recipes import continuous_series as study
from recipes.continuous_series import PARTS, Config, Job, Part, jobs, names_of


def task_of(part: Part, name: str) -> SeriesLearning.Config:
    task = Job(part, name, 0).config(Config()).task
    assert isinstance(task, SeriesLearning.Config)
    return task


def test_models_are_trained_at_one_rate_and_tested_at_all() -> None:
    for name, every in (("1", 1), ("1/2", 2), ("1/8", 8)):
        assert task_of("rates", name).train_every == every
        assert [own["test_every"] for own in Job("rates", name, 0).tests().values()] == [1, 2, 4, 8, 16]
    assert task_of("drops", "50 %").train_drop == task_of("drops", "50 %").test_drop == 0.5


def test_kernels_differ_only_in_their_activation() -> None:
    models = [task_of("kernels", name).model for name in study.ACTIVATIONS]
    assert [m.activation for m in models if isinstance(m, CKCNN.Config)] == list(study.ACTIVATIONS)
    assert Job("kernels", "relu", 0).config(Config()).training.epochs == 50


def test_networks_of_all_depths_have_about_100_000_parameters() -> None:
    names = names_of("depth", Path("none"))
    assert len(names) == 7
    for name in names:
        model = task_of("depth", name).model
        assert isinstance(model, CKCNN.Config)
        net = CKCNN(Series(3), 20, model, extent=200.0, spacing=1.0)
        size = sum(parameter.numel() for parameter in net.parameters())
        assert f"{model.depth} blocks {model.embed_dim} channels" == name
        assert model.embed_dim == 30 or 93_000 < size < 102_000


def test_unchanged_recipes_use_the_folders_of_the_command_line() -> None:
    assert Job("rates", "1", 2).folder(Path("runs/own")) == Path("runs/character_trajectories/seed-2")
    assert Job("drops", "30 %", 0).folder(Path("runs/own")) == Path("runs/character_trajectories_30/seed-0")
    for job, recipe in ((Job("rates", "1", 1), ""), (Job("drops", "70 %", 1), "_70")):
        assert job.config(Config()) == dataclasses.replace(
            open_recipe("character_trajectories" + recipe).config, seed=1
        )


def test_every_run_has_its_own_folder(tmp_path: Path) -> None:
    every = list(jobs(Config(archive=tmp_path)))
    folders = {job.folder(Path("out")) for job in every}
    assert len(folders) == len(every) == 3 * (4 + 3 + 4 + 7)
    assert {job.part for job in every} == set(PARTS) - {"archive"}


def test_it_runs_reports_and_reuses_finished_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    arrays = {}
    for split, count in (("train", 8), ("test", 4)):
        values = torch.randn(count, 20, 1, generator=torch.Generator().manual_seed(count)).numpy()
        arrays |= {f"{split}_values": values, f"{split}_labels": np.arange(count) % 2}
    np.savez(tmp_path / "GunPoint.npz", **arrays)
    config = Config(out=tmp_path / "out", parts=("archive",), archive=tmp_path, seeds=(0, 1), epochs=1)
    study.main(config)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(r["name"], r["seed"]) for r in results] == [("GunPoint", 0), ("GunPoint", 1)]
    assert all(0 <= r["tests"]["own"] <= 100 for r in results)
    rates = [{"part": "rates", "name": "1/2", "tests": dict.fromkeys(study.TEST_RATES, 90.0)}]
    study.draw_figure(rates, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").is_file()
    assert "archive  GunPoint" in capsys.readouterr().out
    monkeypatch.setattr(study, "measure", None)
    study.main(config)
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
