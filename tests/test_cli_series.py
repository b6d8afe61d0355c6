"""The command line on time series: train, evaluate, predict."""

import json
from pathlib import Path

import pytest

from fredholm import cli
from tests.command_line import call, check_refused
from tests.tasks.series.test_series_learning import write_npz

TINY = [
    *(
        "--task.model",
        "ckcnn",
        "--task.model.embed-dim",
        "6",
        "--task.model.depth",
        "1",
        "--task.model.kernel-width",
        "8",
    ),
    *("--training.epochs", "2", "--training.batch-size", "10", "--training.no-tensorboard"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Series and a run on them."""
    folder = tmp_path_factory.mktemp("series")
    write_npz(folder)
    (folder / "new.csv").write_text("series,time,up,down\na,0,1,2\nb,0,3,1\na,0.5,2,1\nb,0.5,1,1\n")
    assert cli.main(["train", "series", str(folder / "waves.npz"), "--run-dir", str(folder / "run"), *TINY]) == 0
    return folder


def test_evaluate_at_the_runs_settings_and_at_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for name, more in {
        "whole": [],
        "same": ["--task", "test-every=1"],
        "half": ["--task", "test-every=2"],
        "few": ["--task", "test_drop=0.7", "dropped=absent"],
    }.items():
        code, out, err = call(capsys, "evaluate", folder / "run", "--json", *more)
        assert (code, err.partition(":")[0]) in ((0, ""), (0, "warning"))
        found[name] = json.loads(out)
    assert {"accuracy", "loss", "auroc"} <= found["whole"].keys()
    assert found["whole"] == found["same"]
    assert len({found[name]["loss"] for name in ("whole", "half", "few")}) == 3


def test_predict_prints_a_class_for_every_series(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "predict", folder / "run", folder / "new.csv", "--format", "json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert [list(row) for row in rows] == [["file", "series", "class", "probability"]] * 2
    assert [row["series"] for row in rows] == ["a", "b"]
    code, out, _ = call(capsys, "predict", folder / "run", folder / "new.csv")
    first = out.splitlines()[1].split("\t")
    assert first == [str(folder / "new.csv"), "a", rows[0]["class"], f"{rows[0]['probability']:.4f}"]


def test_the_default_model_is_fitted_and_read_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--task.model.bank.num-thresholds", "8", "--task.model.bank.num-groups", "8", "--training.epochs", "0"]
    code, out, err = call(
        capsys, "train", "series", folder / "waves.npz", "--run-dir", tmp_path / "run", *small, *TINY[-1:]
    )
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "test accuracy: 100.00 %"
    code, out, _ = call(capsys, "evaluate", tmp_path / "run", "--json")
    assert (code, json.loads(out)["accuracy"]) == (0, 1.0)
    code, out, _ = call(capsys, "predict", tmp_path / "run", folder / "new.csv", "--format", "json")
    assert (code, [row["series"] for row in json.loads(out)]) == (0, ["a", "b"])


@pytest.mark.parametrize("kernel", ["mlp", "recurrence", "sum"])
def test_an_itnet_and_its_kernel_by_name(
    kernel: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = "--task.model.stack"
    sizes = [f"{stack}.embed-dim", "4", f"{stack}.depth", "1", f"{stack}.kernel", kernel]
    steps = ["--training.epochs", "1", "--training.batch-size", "20", *TINY[-1:]]
    where = ["--run-dir", tmp_path / "run", "--task.model", "itnet"]
    code, out, _ = call(capsys, "train", "series", folder / "waves.npz", *where, *sizes, *steps)
    assert (code, "test accuracy" in out) == (0, True)
    assert call(capsys, "evaluate", tmp_path / "run", "--json")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "run", "text.csv"], "text.csv, line 3: column 'up': 'abc' is no finite number"),
        (["predict", "run", "less.csv"], "less.csv, line 1: no column 'down'; the columns are time, up"),
        (["predict", "run", "absent.csv"], "absent.csv: there is no such file"),
        (["predict", "run", "waves.npz", "--part", "valid"], "waves.npz: holds no valid part; it has train, test"),
        (["evaluate", "run", "--task", "test-every"], "--task test-every lacks a value; expected 1"),
        (["evaluate", "run", "--task", "test-evry=2"], "unknown option --task test-evry"),
        (["evaluate", "run", "--task", "test-every=0"], "--task test-every is 0; expected at least 1"),
        (["evaluate", "run", "--task", "train-every=2"], "--task train-every=2 chooses other training data"),
        (["evaluate", "run", "--task", "permute-seed=2"], "--task permute-seed=2 makes another model"),
        (["train", "series", *TINY], "no series are given"),
        (["train", "series", "wave.npz", *TINY], "no series at 'wave.npz'"),
        (["train", "series", "waves.npz", "--task.train-drop", "1"], "--task.train-drop is 1.0; expected a share"),
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
    (tmp_path / "text.csv").write_text("time,up,down\n0,1,2\n1,abc,3\n")
    (tmp_path / "less.csv").write_text("time,up\n0,1\n")
    for name in ("run", "waves.npz"):
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    check_refused(capsys, tmp_path, message, *arguments)
