"""The command line on sampled functions: train, evaluate refined, predict where and how it is asked."""

import json
from pathlib import Path

import numpy as np
import pytest

from fredholm import cli
from tests.command_line import call
from tests.tasks.test_field_learning import write

TINY = [
    *("--task.width", "6", "--task.omega-0", "4", "--task.model.embed-dim", "8", "--task.model.depth", "1"),
    *("--task.model.num-heads", "2", "--task.model.num-seeds", "2", "--task.model.head-dim", "8"),
    *("--training.epochs", "1", "--training.batch-size", "10", "--training.no-tensorboard"),
    *("--task.refine-steps", "1"),  # in place of a spline, which tells these functions well at once
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Functions and a run on them."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "new.csv").write_text("x,height\n0.1,5\n1.9,3\n")
    assert cli.main(["train", "field", str(write(folder)), "--run-dir", str(folder / "run"), *TINY]) == 0
    return folder


def test_evaluate_as_it_is_and_refined(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for more in ([], ["--task", "refine-steps=40", "refine-rate=0.05"]):
        code, out, err = call(capsys, "evaluate", folder / "run", "--json", *more)
        assert (code, err) == (0, "")
        found.append(json.loads(out))
    assert {"relative_error", "loss"} <= found[0].keys()
    assert found[1]["loss"] < 0.5 * found[0]["loss"]


def test_predict_answers_where_it_is_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "predict", folder / "run", folder / "new.csv", "--task", "answer.grid=3")
    assert (code, err) == (0, "")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[2] for row in rows] == ["x", "0.1000", "1.0000", "1.9000"]
    saved = folder / "out.npz"
    code, out, _ = call(
        capsys, "predict", folder / "run", folder / "new.csv", "--task", f"answer.save={saved}", "--format", "json"
    )
    assert (code, list(json.loads(out)[0])) == (0, ["file", "field", "saved", "least height", "largest height"])
    with np.load(saved) as opened:
        assert opened["pos"].tolist() == [[0.1], [1.9]]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("answer.grid=3,3", "answer.grid has 2 numbers; expected one each of x"),
        ("answer.gird=3", "perhaps --task.answer.grid"),
        ("answer.at=none.csv", "none.csv: cannot be read"),
        ("frame=round", "'round'"),
    ],
)
def test_a_wrong_question_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str, told: str
) -> None:
    code, out, err = call(capsys, "predict", folder / "run", folder / "new.csv", "--task", setting)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1
