"""The comparison of kernels on clouds and graphs, at a tiny size."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from recipes import points_and_graphs
from recipes.points_and_graphs import CLOUD_PARTS, CLOUDS, CORA, Config
from tests.refusals import refused

pytest.importorskip("torch_geometric")
pytest.importorskip("matplotlib")

SIDES = ("ITNet, exact on edges", "ITNet, constant on edges", "GIN", "GCN", "pooling", "raw, K = 8")


def write_clouds(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, stretch in (("ball", (1, 1, 1)), ("rod", (5, 1, 1))):
            (folder / split / name).mkdir(parents=True)
            for i in range(12):
                np.savetxt(folder / split / name / f"{i}.xyz", rng.normal(size=(70, 3)) * stretch)


def write_molecules(file: Path) -> None:
    file.parent.mkdir()
    ends = [(6 * g + a, 6 * g + (a + 1) % 6) for g in range(40) for a in range(5 + g % 2)]
    edges = np.array(ends + [(b, a) for a, b in ends])
    known = {"graph_indicator": np.arange(240) // 6, "node_labels": np.zeros(240, int)}
    np.savez(file, edges=edges, graph_labels=np.arange(40) % 2, **known)


def write_papers(file: Path) -> None:
    file.parent.mkdir()
    ends = [(a, (a + step) % 30) for a in range(30) for step in (2, 4)]
    edges = np.array(ends + [(b, a) for a, b in ends]).T
    split = np.array(["train", "valid", "test"])[np.arange(30) // 2 % 3]
    np.savez(file, edge_index=edges, features=np.eye(30), labels=np.arange(30) % 2, split=split)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    write_clouds(tmp_path / "modelnet10_voxel")
    write_molecules(tmp_path / "tudataset" / "MUTAG.npz")
    write_papers(tmp_path / "planetoid" / "cora.npz")
    sets = (CLOUDS, CLOUD_PARTS, "MUTAG", CORA)
    for name in sets:
        monkeypatch.setitem(points_and_graphs.EPOCHS, name, 1)
    return Config(data=tmp_path, sets=sets, sides=SIDES, out=tmp_path / "out", seeds=(0, 1), folds=(0, 3))


@pytest.mark.long
def test_every_side_is_measured_on_validation_and_test(tiny: Config) -> None:
    points_and_graphs.main(tiny)
    report = json.loads((tiny.out / "results.json").read_text())
    assert {data: {name: len(found["runs"]) for name, found in sides.items()} for data, sides in report.items()} == {
        CLOUDS: {"pooling": 2},
        CLOUD_PARTS: {"raw, K = 8": 1},
        "MUTAG": {"ITNet, exact on edges": 2, "GCN": 2, "GIN": 2},
        CORA: {"ITNet, constant on edges": 2, "GCN": 2, "GIN": 2},
    }
    for data, sides in report.items():
        of_graphs = {"changed by signs"} if data == "MUTAG" else set()
        for found in sides.values():
            assert found["rate"] in tiny.rates
            assert all(run.keys() == {"valid", "test", "parameters"} | of_graphs for run in found["runs"])
            assert all(0 <= run[split] <= 1 for run in found["runs"] for split in ("valid", "test"))
    assert all(run["changed by signs"] == 0 for run in report["MUTAG"]["GIN"]["runs"])
    assert (tiny.out / "points_and_graphs.png").stat().st_size > 1000
    (tiny.out / "results.json").write_text(json.dumps({"Other": {"a side": report[CORA]["GCN"]}} | report))
    points_and_graphs.main(dataclasses.replace(tiny, sets=(CORA,)))  # reads the existing results
    got = json.loads((tiny.out / "results.json").read_text())
    assert got == {"Other": {"a side": report[CORA]["GCN"]}} | report


def test_sides_of_a_set_have_similar_numbers_of_parameters(tiny: Config) -> None:
    for data in (CLOUDS, "MUTAG"):
        sides = points_and_graphs.sides_of(Config(data=tiny.data, out=tiny.out), data)
        sizes = [sum(p.numel() for p in runs[0].task.build().model().parameters()) for runs in sides.values()]
        assert max(sizes) < 1.12 * min(sizes)


def test_the_error_for_an_unknown_set_names_it() -> None:
    with refused(ValueError, "no data set 'Pubmed'", "MUTAG"):
        Config(sets=("Pubmed",))
