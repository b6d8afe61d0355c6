"""The command line on point clouds: train, evaluate, predict."""

import json
from pathlib import Path

import numpy as np
import pytest

from fredholm import cli
from tests.command_line import call, check_refused
from tests.tasks.points.build import FLAT_FACES, write_folder, write_off, write_xyz

pytest.importorskip("trimesh")

TINY = [
    *("--task.model.embed-dim", "8", "--task.model.depth", "1", "--task.model.num-heads", "2"),
    *("--task.num-neighbours", "3", "--task.num-points", "10", "--training.epochs", "2", "--training.batch-size", "4"),
    *("--training.no-tensorboard", "--task.no-align"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Meshes and clouds of three classes with a run on them, and clouds with labelled points with another run."""
    folder = tmp_path_factory.mktemp("points")
    shapes, parts = folder / "shapes", folder / "parts"
    write_folder(shapes, 12)
    for i in range(6):
        write_off(shapes / "cube" / f"{i}.off", scale=1.0 + i)
    assert cli.main(["train", "points", str(shapes), "--run-dir", str(folder / "run"), *TINY]) == 0
    write_folder(parts, 6, folders=("{label}",))
    for file in parts.rglob("*.xyz"):
        right = np.loadtxt(file)[:, 0] > 0
        file.with_suffix(".labels").write_text("".join(f"{int(each)}\n" for each in right))
    assert cli.main(["train", "points", str(parts), "--run-dir", str(folder / "labelled"), *TINY]) == 0
    return folder


def test_evaluate_at_the_runs_settings_and_at_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for name, more in {
        "whole": [],
        "same": ["--task", "votes=1"],
        "votes": ["--task", "votes=3", "augmentation.rotation=all"],
        "points": ["--task", "num-points=4"],
        "valid": ["--split", "valid", "--task", "votes=1"],
    }.items():
        code, out, err = call(capsys, "evaluate", folder / "run", "--json", *more)
        assert (code, err) == (0, "")
        found[name] = json.loads(out)
    assert {"accuracy", "balanced_accuracy", "loss"} <= found["whole"].keys()
    assert found["whole"] == found["same"]
    assert len({found[name]["loss"] for name in ("whole", "votes", "points", "valid")}) == 4
    code, out, _ = call(capsys, "evaluate", folder / "labelled", "--json")
    assert code == 0
    assert {"accuracy", "mean_iou", "loss"} <= json.loads(out).keys()


def test_predict_prints_a_class_for_every_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [folder / "shapes" / name for name in ("cube/1.off", "rod/1.xyz")]
    code, out, err = call(capsys, "predict", folder / "run", *files, "--format", "json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert [list(row) for row in rows] == [["file", "cloud", "class", "probability"]] * 2
    assert [row["file"] for row in rows] == [str(file) for file in files]
    assert {row["class"] for row in rows} <= {"ball", "rod", "cube"}


def test_predict_prints_or_saves_a_class_for_every_point(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "parts" / "rod" / "1.xyz"
    code, out, _ = call(capsys, "predict", folder / "labelled", file, "--format", "json")
    rows = json.loads(out)
    assert code == 0
    assert len(rows) == len(np.loadtxt(file)) == 13
    assert list(rows[0]) == ["file", "cloud", "x", "y", "z", "class", "probability"]
    code, out, _ = call(capsys, "predict", folder / "labelled", file, "--save", tmp_path / "out")
    assert (code, out.splitlines()[1].split("\t")[2]) == (0, str(tmp_path / "out" / "1.csv"))
    saved = (tmp_path / "out" / "1.csv").read_text().splitlines()
    assert saved[0] == "x,y,z,label"
    assert [line.split(",")[3] for line in saved[1:]] == [row["class"] for row in rows]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "run", "nan.xyz"], "nan.xyz, line 2: 'nan' is no finite number"),
        (["predict", "run", "more.xyz"], "more.xyz: has 1 features; expected 0: none"),
        (["predict", "run", "empty.off"], "empty.off: has no points"),
        (["predict", "run", "a.vtk"], "a.vtk: is of no known kind"),
        (["predict", "run", "mesh.off", "--save", "here"], "--save has no effect where clouds are classified"),
        (
            ["predict", "labelled", "mesh.off", "--save", "absent/out"],
            "--save: there is no folder 'absent'; make it first",
        ),
        (["predict", "labelled", "mesh.off", "--save", "mesh.off"], "--save: mesh.off is a file; expected a folder"),
        (["predict", "run", "mesh.off", "--task", "align"], "--task align makes another model than the one"),
        (
            ["predict", "run", "mesh.off", "--task", "sizes=True"],
            "--task sizes=True: a switch takes no value; write --task sizes or --task no-sizes",
        ),
        (["train", "points", *TINY], "no clouds are given"),
        (["train", "points", "absent", *TINY], "no clouds at 'absent'"),
        (["train", "points", "one", *TINY], "one has the classes ['ball']; expected at least 2"),
        (
            ["train", "points", "shapes", "--task.target", "points", *TINY],
            "target is 'points', but the points of shapes",
        ),
        (["train", "points", "bad", *TINY], "bad/ball/0.labels: has 2 labels; 0.xyz has 12 points"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_xyz(tmp_path / "nan.xyz", np.array([[0.0, 1, 2], [3, np.nan, 5]]))
    write_xyz(tmp_path / "more.xyz", np.ones((2, 4)))
    write_off(tmp_path / "empty.off", [], [])
    write_off(tmp_path / "mesh.off", faces=FLAT_FACES)
    (tmp_path / "a.vtk").write_text("")
    write_folder(tmp_path / "one", folders=("ball",))
    write_folder(tmp_path / "bad")
    (tmp_path / "bad" / "ball" / "0.labels").write_text("1\n2\n")
    for name in ("run", "labelled", "shapes"):
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    check_refused(capsys, tmp_path, message, *arguments)
