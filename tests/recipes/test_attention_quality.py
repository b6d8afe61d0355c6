"""The study of attention maps: maps that find the object score higher than others, and it runs to its end."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fredholm import analysis, encoders, models
from recipes import attention_quality as study
from recipes.attention_quality import ATTENTIONS, MEASURES, PARTS, Config, Job, Scene, jobs
from tests.recipes.test_object_images import write_mnist


class Bright(nn.Module):
    """Predicts class 1 with a confidence that grows with brightness."""

    def forward(self, images: Tensor) -> Tensor:
        bright = images.mean((1, 2, 3))
        return torch.stack([-20 * bright, 20 * bright], dim=-1)


def test_a_map_that_finds_the_object_scores_above_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = torch.zeros(6, 4, 4, dtype=torch.bool)
    inside[:, 1, 2:] = True
    images = inside[:, None].float().repeat_interleave(3, 2).repeat_interleave(3, 3)
    maps = {"right": inside.float(), "wrong": 1 - inside.float()}
    monkeypatch.setattr(study, "maps_of", lambda *_: maps)
    found = study.measure(Scene(Bright(), images, images, inside), degraded=4)
    assert list(found["right"]) == list(MEASURES)
    assert found["right"]["roc_auc"] == found["right"]["average_precision"] == 1
    assert found["wrong"]["roc_auc"] == 0
    assert found["right"]["lerf_auc"] >= found["wrong"]["lerf_auc"]


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_has_a_map_for_each_layer(attention: str) -> None:
    config = models.InfViT.Config(embed_dim=8, depth=2, num_heads=2, attention=attention)  # pyright: ignore[reportArgumentType]
    image = encoders.Image.Config(image_size=(8, 8), patch_size=4, channels=1, sigma=1.0, any_size=True)
    net = models.InfViT(encoders.Image(image, 8), 3, config).eval()
    images = torch.rand(study.CHUNK + 1, 1, 12, 8)
    maps = study.maps_of(net, images, (3, 2))
    assert list(maps) == ["layer 1", "layer 2", "rollout", "random"]
    with torch.no_grad(), analysis.record_weights(net) as weights:
        net(images[-1:])
    one = weights["blocks.1.operator"][0, :, 0, 1:].mean(0)
    torch.testing.assert_close(maps["layer 2"][-1].flatten(), one / one.sum(), atol=1e-5, rtol=1e-4)


def test_jobs_differ_only_in_what_their_names_say() -> None:
    every = list(jobs(Config()))
    assert len({job.folder(Path("out")) for job in every}) == len(every) == 3 * 5 * 3
    for part in PARTS:
        runs = [Job(part, attention, 1).recipe(Config(data=Path("d"), epochs=2)).config for attention in ATTENTIONS]
        assert {run.seed for run in runs} == {1}
        assert {run.training.epochs for run in runs} == {2}
        assert [run.task.model.attention for run in runs] == list(ATTENTIONS)  # pyright: ignore[reportAttributeAccessIssue]
        assert all(run.task.scene == part and run.task.data == "d" for run in runs)  # pyright: ignore[reportAttributeAccessIssue]
        assert len({run.training for run in runs}) == 1


@pytest.mark.long
def test_it_runs_reports_draws_and_reuses_finished_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("torchmetrics")
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(study, "STEPS", 2)
    write_mnist(tmp_path / "mnist", 64, 6)
    out = tmp_path / "out"
    config = Config(out=out, parts=("canvas",), attentions=("softmax", "linear"), seeds=(0,), epochs=1, data=tmp_path)
    study.main(config)
    results = json.loads((out / "results.json").read_text())
    assert [(r["attention"], r["images"]) for r in results] == [("softmax", 6), ("linear", 6)]
    assert results[0]["foreground"] == pytest.approx(4 / 36)
    for r in results:
        assert list(r["maps"]) == ["layer 1", "layer 2", "layer 3", "layer 4", "rollout", "random"]
        assert all(0 <= value <= 1 for own in r["maps"].values() for value in own.values())
    assert results[0]["alignment"] is None
    assert [own["samples"] for own in results[1]["alignment"].values()] == [24] * 4
    assert {path.name for path in out.glob("*.png")} == {f"canvas-{m}.png" for m in ("layer-1", "layer-4", "rollout")}
    printed = capsys.readouterr().out
    assert "canvas linear: accuracy" in printed
    assert "blocks.3.operator: 24 samples" in printed
    monkeypatch.setattr(study, "measure", None)
    study.main(dataclasses.replace(config, attentions=("softmax",)))
    assert json.loads((out / "results.json").read_text()) == results  # all finished jobs, not only the requested ones
    with pytest.raises(ValueError, match="config"):
        study.main(dataclasses.replace(config, epochs=2))
