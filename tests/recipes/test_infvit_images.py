"""The study of InfViT on images: settings match their names, and it runs from end to end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.models.images.infvit import InfViT
from fredholm.tasks import ImageLearning
from recipes import infvit_images as study
from recipes.infvit_images import Config, Job, jobs


def model_of(job: Job) -> InfViT.Config:
    task = job.config(Config()).task
    assert isinstance(task, ImageLearning.Config)
    assert isinstance(task.model, InfViT.Config)
    return task.model


def test_jobs_differ_only_in_the_attention() -> None:
    for part in ("mnist", "cifar10"):
        configs = [Job(part, name, 0).config(Config()) for name in study.ATTENTIONS]
        assert len({run.training for run in configs}) == 1
        assert [model_of(Job(part, name, 0)).attention for name in study.ATTENTIONS] == list(study.ATTENTIONS)


def test_ablations_change_the_setting_in_their_name() -> None:
    assert [model_of(Job("gamma", name, 0)).gamma for name in study.GAMMAS] == [0.3, 0.5, 0.7, 0.9, 0.7]
    assert [model_of(Job("gamma", name, 0)).learn_gamma for name in study.GAMMAS] == [False] * 4 + [True]
    found = [model_of(Job("activation", name, 0)) for name in study.ACTIVATIONS]
    assert [(model.attention, model.activation) for model in found] == [("pure", name) for name in study.ACTIVATIONS]
    assert Job("gamma", "0.3", 0).config(Config()).training.epochs == 2


def test_every_run_has_its_own_folder() -> None:
    every = list(jobs(Config()))
    assert len({job.folder(Path("out")) for job in every}) == len(every) == 3 * (5 + 5 + 5 + 3)
    assert len(list(jobs(Config(parts=("mnist", "cifar10"), names=("pure",), seeds=(1,))))) == 2
    with pytest.raises(ValueError, match="no setting 'soft'; the parts have"):
        Config(names=("soft",))


def test_it_runs_reports_and_reuses_finished_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    arrays: dict[str, Any] = {}
    for split, count in (("train", 8), ("test", 4)):
        images = np.random.default_rng(count).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
        arrays |= {f"x_{split}": images, f"y_{split}": np.arange(count) % 2}
    np.savez(tmp_path / "set.npz", **arrays)
    config = Config(
        out=tmp_path / "out",
        parts=("cifar10",),
        seeds=(0, 1),
        names=("linear",),
        cifar10=str(tmp_path / "set.npz"),
        epochs=1,
    )
    study.main(config)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(r["name"], r["seed"], len(r["gamma"])) for r in results] == [("linear", 0, 8), ("linear", 1, 8)]
    assert all(0 <= r["accuracy"] <= 100 for r in results)
    assert "cifar10    linear" in capsys.readouterr().out
    monkeypatch.setattr(study, "measure", None)
    study.main(config)
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
