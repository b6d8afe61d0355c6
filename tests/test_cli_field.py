"""The command line on sampled functions: train, evaluate with refinement, predict at chosen points."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fredholm import cli
from fredholm.training import RunFolder
from tests.command_line import call, check_refused
from tests.tasks.fields.test_field_learning import write

TINY = [
    *("--task.width", "6", "--task.omega-0", "4", "--task.model.embed-dim", "8", "--task.model.depth", "1"),
    *("--task.model.num-heads", "2", "--task.model.num-seeds", "2", "--task.model.head-dim", "8"),
    *("--training.epochs", "1", "--training.batch-size", "10", "--training.no-tensorboard"),
    *("--task.refine-steps", "1"),  # in place of a spline, which predicts these functions well without refinement
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Functions and a run on them."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "new.csv").write_text("x,height\n0.1,5\n1.9,3\n")
    assert cli.main(["train", "field", str(write(folder)), "--run-dir", str(folder / "run"), *TINY]) == 0
    return folder


def test_evaluate_with_and_without_refinement(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for more in ([], ["--task", "refine-steps=40", "refine-rate=0.05"]):
        code, out, err = call(capsys, "evaluate", folder / "run", "--json", *more)
        assert (code, err) == (0, "")
        found.append(json.loads(out))
    assert {"relative_error", "loss"} <= found[0].keys()
    assert found[1]["loss"] < 0.5 * found[0]["loss"]


def test_predict_answers_on_a_chosen_grid(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "predict", folder / "run", folder / "new.csv", "--task", "answer.grid=3")
    assert (code, err) == (0, "")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[2] for row in rows] == ["x", "0.1000", "1.0000", "1.9000"]


def test_predict_answers_at_the_points_of_a_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("places.csv").write_text("x\n0.5\n")
    command = ("predict", folder / "run", folder / "new.csv", "--at")
    code, out, err = call(capsys, *command, "places.csv")
    assert (code, err) == (0, "")
    assert [line.split("\t")[2] for line in out.splitlines()] == ["x", "0.5000"]
    for more, message in (
        (("none.csv",), "none.csv: cannot be read"),
        (("places.csv", "--task", "answer.grid=3"), "answer.grid and --at both set the points; pass one of them"),
        (("places.csv", "--output", "places.csv", "--overwrite"), "--output: places.csv is one of the files"),
    ):
        code, out, err = call(capsys, *command, *more)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    assert Path("places.csv").read_text() == "x\n0.5\n"


def test_a_saved_answer_holds_all_files_and_is_not_overwritten(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [folder / "new.csv", shutil.copy(folder / "new.csv", tmp_path / "more.csv")]
    command = ["predict", folder / "run", *files, "--batch-size", "1", "--save", tmp_path / "out", "--format", "json"]
    code, out, err = call(capsys, *command)
    assert (code, err) == (0, f"wrote {tmp_path / 'out.npz'}\n")
    assert [list(row) for row in json.loads(out)] == 2 * [["file", "field", "saved", "least height", "largest height"]]
    with np.load(tmp_path / "out.npz") as opened:
        assert opened["pos"].tolist() == 2 * [[0.1], [1.9]]
        assert opened["offsets"].tolist() == [0, 2, 4]
    before = (tmp_path / "out.npz").read_bytes()
    check_refused(capsys, tmp_path, f"--save: {tmp_path / 'out.npz'} exists; name another", *map(str, command))
    assert (tmp_path / "out.npz").read_bytes() == before
    (tmp_path / "out.npz").write_bytes(b"")
    code, _, err = call(capsys, *command, "--overwrite")
    assert (code, (tmp_path / "out.npz").read_bytes()) == (0, before)


def test_a_config_cannot_name_a_file_that_a_prediction_reads_or_writes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(folder / "run", tmp_path / "run")
    whole = json.loads((run / "config.json").read_text())
    for name in ("save", "picture", "at"):
        planted = json.loads(json.dumps(whole))
        planted["run"]["task"]["answer"][name] = str(tmp_path / "planted.npz")
        RunFolder(run).put({"config.json": json.dumps(planted)})  # with valid checksums, as in a folder from a stranger
        message = f"{run / 'config.json'}: run.task.answer has unknown fields '{name}'"
        check_refused(capsys, tmp_path, message, "predict", str(run), str(folder / "new.csv"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("answer.save=out.npz", "unknown option --task answer.save"),
        ("answer.grid=3,3", "answer.grid has 2 numbers; expected one each of x"),
        ("answer.gird=3", "perhaps --task answer.grid"),
        ("frame=round", "'round'"),
    ],
)
def test_a_bad_setting_of_a_prediction_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str, message: str
) -> None:
    code, out, err = call(capsys, "predict", folder / "run", folder / "new.csv", "--task", setting)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
