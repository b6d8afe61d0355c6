"""The frame of first runs, and the models and data of their peers."""

import csv
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression

from benchmarks.first_runs import FirstRun, Row, forecasts, images, measure, points, table
from benchmarks.first_runs.__main__ import FIRST_RUNS, main
from benchmarks.first_runs.first_run import accuracy, learnable, write_json
from benchmarks.first_runs.sentences import texts
from fredholm.tasks import TASKS, Forecasting, ImageLearning, PointLearning


def test_the_list_names_every_run_with_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [[first.name, first.task] for first in FIRST_RUNS]
    assert len({first.name for first in FIRST_RUNS}) == len(FIRST_RUNS)
    assert {first.task for first in FIRST_RUNS} == {task.command for task in TASKS}


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packages"]) == 2
    assert "no first run 'packages'" in capsys.readouterr().err


def _few_sentences(folder: Path, seed: int) -> Path:
    path = folder / f"{seed}.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((f"word {i % 2} of {i}", "ab"[i % 2]) for i in range(40))])
    return path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_row_has_the_scores_of_the_command_and_its_peers(tmp_path: Path) -> None:
    peers = {"commonest": accuracy(DummyClassifier(strategy="constant", constant=0), texts)}
    first = FirstRun(name="few", task="sentences", data="few words", make=_few_sentences, peers=peers)
    row = measure(first, tmp_path / "few", 7, "test")
    assert (row.command, row.data_seed, row.examples) == ("fredholm train sentences 7.csv", 7, (32, 0, 8))
    assert (row.metric, row.split, row.peers["commonest"][0]) == ("accuracy", "test", 0.5)
    assert 0 <= row.ours <= 1
    assert row.parameters > 50
    assert row.megabytes > 0
    found = table([row]).splitlines()[-1]
    assert found.startswith("| `fredholm train sentences 7.csv`: few words | 32 + 0 + 8 | accuracy, test | **")
    assert "commonest 50.0 %" in found
    write_json(tmp_path / "rows.json", [row])
    saved = json.loads((tmp_path / "rows.json").read_text())[0]
    assert Row(**{**saved, "examples": tuple(saved["examples"])}).ours == row.ours


def test_peers_also_learn_from_validation_data_if_the_test_split_is_scored() -> None:
    task = SimpleNamespace(splits=SimpleNamespace(train=1, valid=2, test=3))
    assert learnable(task, "valid") == [1]
    assert learnable(task, "test") == [1, 2]


@pytest.mark.slow
def test_the_peer_network_learns_image_classes(tmp_path: Path) -> None:
    draw, sides = np.random.default_rng(0), np.arange(24) % 2
    shown = draw.integers(0, 100, (24, 8, 8), dtype=np.uint8)
    shown[sides == 0, :, :4] += 100
    shown[sides == 1, :, 4:] += 100
    np.savez(tmp_path / "sides.npz", x=shown, y=sides)
    task = ImageLearning.Config(data=str(tmp_path / "sides.npz")).build()
    assert images.network(task, "test") == 1.0


@pytest.mark.parametrize("make", [points.turned_solids, points.parts_of_things])
def test_the_seed_decides_the_clouds(make: Any, tmp_path: Path) -> None:
    for name in ("one", "again", "other"):
        (tmp_path / name).mkdir()
    one, again, other = (
        np.load(make(tmp_path / name, seed)) for name, seed in (("one", 0), ("again", 0), ("other", 1))
    )
    assert np.array_equal(one["x"], again["x"])
    assert not np.array_equal(one["x"], other["x"])
    task = PointLearning.Config(data=str(next((tmp_path / "one").iterdir()))).build()
    assert len(Counter(task.target.names)) in (4, 6)


def test_points_lie_on_their_solids() -> None:
    draw = np.random.default_rng(0)
    x, y, z = points.cone(draw, 400).T
    is_side = z > 0
    assert np.ptp((np.hypot(x, y) + z / z.max())[is_side]) < 0.1
    assert np.hypot(x, y)[~is_side].max() <= 1
    cylinder = points.cylinder(draw, 400)
    on_lid = np.isin(cylinder[:, 2], (0, cylinder[:, 2].max()))
    assert np.allclose(np.hypot(*cylinder[~on_lid, :2].T), 1)


def test_peers_of_forecasts_are_scored_like_the_task(tmp_path: Path) -> None:
    values = [f"{t},{3 + t / 50 + np.sin(2 * np.pi * t / 7):.6f}" for t in range(200)]
    (tmp_path / "wave.csv").write_text("\n".join(["time,y", *values]))
    task = Forecasting.Config(data=str(tmp_path / "wave.csv"), season=7).build()
    assert isinstance(task, Forecasting)
    model, metrics = task.model(), task.metrics()
    task.initialise(model, torch.device("cpu"))
    task.score(model, task.held_out_batch("test", torch.arange(task.num_held_out("test"))), metrics)
    naive = float(metrics["seasonal_naive_mase"].compute())
    assert naive > 0.5
    assert forecasts.last_season(task, "test") == pytest.approx(naive)
    assert forecasts.on_lags(LinearRegression)(task, "test") < 0.01


@pytest.mark.parametrize("make", [forecasts.sales, forecasts.load])
def test_the_seed_decides_the_series_and_their_season_is_found(make: Any, tmp_path: Path) -> None:
    for name in ("one", "again", "other"):
        (tmp_path / name).mkdir()
    one, again, other = (make(tmp_path / name, seed) for name, seed in (("one", 0), ("again", 0), ("other", 1)))
    assert one.read_bytes() == again.read_bytes()
    assert one.read_bytes() != other.read_bytes()
    assert Forecasting.Config(data=str(one)).build().facts.season in (7, 24)
