"""The command line on operators: train, evaluate on a finer grid, predict at chosen points, and errors."""

import json
from pathlib import Path

import numpy as np
import pytest

from fredholm import cli
from tests.command_line import call
from tests.tasks.fields.test_operator_learning import waves, write

TINY = [
    *("--task.model.embed-dim", "8", "--task.model.depth", "1", "--task.position-frequencies", "2"),
    *("--task.model.kernel.num-waves-per-axis", "2"),
]
SHORT = ["--training.epochs", "1", "--training.batch-size", "10", "--training.no-tensorboard"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of functions on two grids, and a run on the coarse one."""
    folder = tmp_path_factory.mktemp("operators")
    (folder / "fine").mkdir()
    write(folder / "fine", (16, 12))
    assert cli.main(["train", "operator", str(write(folder)), "--run-dir", str(folder / "run"), *SHORT, *TINY]) == 0
    return folder


def test_evaluate_reads_the_test_part_and_finer_grids_on_demand(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for more in (["--split", "valid"], [], ["--task", f"data={folder / 'fine' / 'waves.npz'}"]):
        code, out, err = call(capsys, "evaluate", folder / "run", "--json", *more)
        assert (code, err) == (0, "")
        found.append(json.loads(out)["relative_l2"])
    assert len(set(found)) == 3


def test_predict_answers_at_chosen_points_and_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values, _, targets = waves(1, (8, 6))
    np.savez(folder / "one.npz", values=values, target_values=targets)
    code, out, err = call(capsys, "predict", folder / "run", folder / "one.npz", "--task", "answer.grid=3,2")
    assert (code, err, len(out.splitlines())) == (0, "", 7)
    picture = folder / "one.png"
    code, out, err = call(capsys, "predict", folder / "run", folder / "one.npz", "--comparison", picture)
    assert (code, err, len(out.splitlines())) == (0, f"wrote {picture}\n", 49)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"values": np.zeros((3, 4, 4, 2)), "channels": ["a", "b"]}, "channels a, b; expected value"),
        ({"values": np.zeros((3, 9))}, "coordinates x; expected x, y"),
        ({"values": np.zeros((1, 2)), "pos": np.zeros((2, 2))}, "samples 1 and 2 lie at one place"),
        ({"values": np.zeros((1, 2)), "pos": np.array([[0, np.nan], [1, 1]])}, "position of sample 0"),
        ({"values": np.full((1, 4, 4), np.inf)}, "value of sample 0"),
    ],
)
def test_functions_that_do_not_fit_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arrays: dict[str, object], message: str
) -> None:
    np.savez(folder / "bad.npz", **arrays)  # pyright: ignore[reportArgumentType]
    code, out, err = call(capsys, "predict", folder / "run", folder / "bad.npz")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"values": np.zeros((5, 4))}, "has no target functions"),
        ({"values": np.zeros((5, 4)), "target_values": np.zeros((4, 4))}, "target_values hold 4 functions"),
        (
            {"pos": np.zeros((4, 2)), "values": np.zeros((5, 4)), "target_values": np.zeros((5, 4))},
            "has pos and target_values, and no target_pos; expected where the target values are, (N, 2)",
        ),
        ({"trajectories": np.zeros((5, 1, 4))}, "at least two times"),
        ({"trajectories": np.zeros((5, 3, 4)), "values": np.zeros((5, 4))}, "both trajectories and values"),
    ],
)
def test_data_that_do_not_fit_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: dict[str, object], message: str
) -> None:
    np.savez(tmp_path / "bad.npz", **data)  # pyright: ignore[reportArgumentType]
    code, _, err = call(capsys, "train", "operator", tmp_path / "bad.npz", "--run-dir", tmp_path / "run")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()
