"""`fredholm compare`."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

from fredholm.comparison import Request
from fredholm.training import Run
from tests.command_line import call, check_refused
from tests.comparison.build import ROW, found, runs, stripes

pytestmark = pytest.mark.usefixtures("few_rates")
TINY = [
    *("--task.patch-size", "4", "--task.position-frequencies", "2", "--task.stem-depth", "0"),
    *("--task.model.embed-dim", "16", "--task.model.depth", "1", "--task.model.num-heads", "2"),
    *("--task.augmentation.label-smoothing", "0.1", "--training.batch-size", "16", "--training.device", "cpu"),
    *("--processes", "1", "--epochs", "1"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return stripes(tmp_path)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that the command makes; none is carried out."""
    recorded = list[Request]()

    def record(request: Request, *_: object, **__: object) -> None:
        recorded.append(request)
        raise ValueError("noted")

    monkeypatch.setattr("fredholm.cli.compare.compare", record)
    return recorded


def test_a_comparison_without_any_result_ends_with_code_1(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    none = dataclasses.replace(found(), best=None)
    monkeypatch.setattr("fredholm.cli.compare.compare", lambda *_, **__: none)
    code, out, err = call(capsys, "compare", "images", data, "--run-dir", tmp_path / "found", "--no-report")
    assert (code, err) == (1, "")
    assert out.splitlines()[-1] == "no kernel has a result; the reasons stand above"


@pytest.mark.slow
def test_a_table_and_the_command_that_continues_the_best_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "found"
    command = ["compare", "images", data, "--kernels", "attention", "lstm", "yat", "--seeds", "3", "5"]
    command += ["--run-dir", folder]
    code, out, err = call(capsys, *command, *TINY)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    start = lines.index("")
    assert lines[start + 1] == f"accuracy in % of {data}, fredholm images"
    assert lines[start + 2].split() == ["valid", "test", "parameters", "ms/step", "MB/step", "ex/s", "differs"]
    rows = {line.split()[0]: line.split() for line in lines[start + 3 : start + 6]}
    assert rows.keys() == {"attention", "yat", "default"}
    assert all("±" in cells[1] and "±" in cells[2] for cells in rows.values())
    assert [cells[-1] for cells in rows.values()].count("best") == 1
    assert max(map(len, lines[start + 2 : start + 9])) <= 100
    assert any(line.startswith("lstm: left out: LSTM integrates over the past") for line in lines)
    names = [" ".join(line.split()[:2]) for line in lines[start + 6 : start + 9]]
    assert names == ["logistic regression", "nearest neighbours", "commonest class"]
    last = next(line for line in lines if line.startswith("to continue its training")).split("fredholm ")[1].split()
    assert last[:3] == ["train", "images", str(data)]
    assert "--init" in last
    assert call(capsys, *last[:-2], "--dry-run", "--run-dir", tmp_path / "longer")[0] == 0
    code, again, err = call(capsys, *command, *TINY, "--resume", "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(again) == json.loads((folder / "comparison.json").read_text())["comparison"]
    code, out, err = call(capsys, *command, *TINY, "--resume", "--format", "markdown")
    assert out.splitlines()[0] == "|  | valid | test | parameters | ms/step | MB/step | ex/s | differs |"


def test_undefined_metrics_are_null_in_json(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = runs(0.9)
    row = ROW.with_runs((dataclasses.replace(run, test=math.nan, metrics={"auroc": math.nan, "accuracy": 0.9}),))
    compared = dataclasses.replace(found(), rows=(row,))
    monkeypatch.setattr("fredholm.cli.compare.compare", lambda *_, **__: compared)
    command = ("compare", "images", data, "--run-dir", tmp_path / "found", "--format", "json", "--no-report")
    code, out, err = call(capsys, *command)
    assert (code, err) == (0, "")
    (got,) = json.loads(out)["rows"]
    assert (got["test_mean"], got["runs"][0]["test"]) == (None, None)
    assert got["runs"][0]["metrics"] == {"auroc": None, "accuracy": 0.9}


@pytest.mark.parametrize(
    ("more", "expected"), [((), True), (("--kernels", "attention", "mlp"), False), (("--epochs", "2"), False)]
)
def test_slow_kernels_are_left_out_unless_kernels_or_epochs_are_named(
    data: Path, requests: list[Request], capsys: pytest.CaptureFixture[str], more: tuple[str, ...], expected: bool
) -> None:
    assert call(capsys, "compare", "images", data, *more)[2] == "error: noted\n"
    assert [request.leave_out_slow for request in requests] == [expected]


@pytest.mark.parametrize("task", ["images", "nodes", "operator"])
def test_a_number_of_heads_applies_to_the_kernels_with_heads(
    task: str, requests: list[Request], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(capsys, "compare", task, "data", "--task.model.num-heads", "2")[2] == "error: noted\n"
    (request,) = requests
    assert request.run.task.stack.num_heads == 2
    has_heads = task == "images"
    assert isinstance(request.default, Run.Config) == has_heads
    assert has_heads or "--task.model.num-heads 2 has no effect" in str(request.default)


@pytest.mark.parametrize(
    ("more", "expected"), [((), (0, 1, 2)), (("--seeds", "3"), (3,)), (("--seeds", "4", "0"), (4, 0))]
)
def test_seeds_lists_the_seeds_as_in_train(
    data: Path, requests: list[Request], capsys: pytest.CaptureFixture[str], more: tuple[str, ...], expected: tuple[int]
) -> None:
    assert call(capsys, "compare", "images", data, *more)[2] == "error: noted\n"
    assert [request.seeds for request in requests] == [expected]


def test_typed_options_are_fixed_even_at_their_default_values(
    data: Path, requests: list[Request], capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ("--training.learning-rate=0.001", "--training.no-tensorboard", "--task.patch-size", "16")
    assert call(capsys, "compare", "images", data, *typed, "--task.model.dropout", "0.1")[2] == "error: noted\n"
    names = ("task.patch_size", "task.model.dropout", "training.learning_rate", "training.tensorboard")
    assert requests[0].given == names


def test_the_bare_command_lists_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "compare")
    assert code == 2
    assert err == "error: fredholm compare needs a task first, not nothing\n"
    assert "  continuous-convolution  continuous convolution\n" in out
    tasks = next(line for line in out.splitlines() if line.startswith("tasks: "))
    assert {"images", "graphs", "forecast"} <= set(re.split(", |: ", tasks))
    for task in ("table", "field"):  # they have no networks with a choice of kernel
        assert task not in re.split(", |: ", tasks)
        code, _, err = call(capsys, "compare", task)
        assert code == 2
        assert "no kernel can be chosen; " in err


def test_help_shows_the_network_whose_kernel_differs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "compare", "series", "--help")
    assert code == 0
    for flag in ("--task.model.stack.embed-dim", "--kernels", "--minutes", "--seeds", "--resume"):
        assert flag in out


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("no task called 'image'; did you mean images?", ["image"]),
        ("no kernel is called 'atention'; did you mean attention", ["images", "--kernels", "atention", "mlp"]),
        ("mlp alone leaves nothing to compare", ["images", "--kernels", "mlp"]),
        ("--seeds names a seed twice: 4 4", ["images", "--seeds", "4", "4"]),
        ("--seeds is empty; name one or more", ["images", "--seeds"]),
        ("--seeds: seed is -1; expected an integer from 0", ["images", "nowhere", "--seeds", "-1"]),
        ("--kernels is empty; name some", ["images", "nowhere", "--kernels"]),
        ("--processes is 0; expected at least 1", ["images", "nowhere", "--processes", "0"]),
        ("--minutes is -1.0; expected a finite number above 0", ["images", "--minutes", "-1"]),
        ("--minutes is inf; expected a finite number above 0", ["images", "--minutes", "inf"]),
        ("fields are predicted by attention", ["field"]),
        ("no sentences are given", ["sentences"]),
        ("--seed 3 has no effect on a comparison; pass --seeds", ["images", "--seed", "3"]),
        ("--seed 0 has no effect on a comparison; pass --seeds", ["images", "nowhere", "--seed=0"]),
        ("--epochs is 0; expected at least 1", ["images", "nowhere", "--epochs", "0"]),
        ("--epochs 2 and --minutes both say when to end", ["images", "nowhere", "--epochs", "2", "--minutes", "20"]),
        ("--training.epochs has no effect on a comparison; pass --epochs", ["images", "--training.epochs", "3"]),
        ("--training.epochs has no effect on a comparison; pass --epochs", ["images", "--training.epochs=300"]),
        ("--task.model.kernel has no effect on a comparison", ["images", "--task.model.kernel", "attention"]),
        (
            "--task.model.stack.kernel.edge-mass=mean has no effect on a comparison, whose kernels take its place",
            ["graphs", "--task.model.stack.kernel.edge-mass=mean"],
        ),
    ],
)
def test_mistakes_are_one_line(
    message: str,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    check_refused(capsys, tmp_path, message, "compare", *words)


def test_a_missing_path_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "compare", "images", "nowhere")
    assert code == 2
    assert err.count("\n") == 1
    assert "nowhere" in err
    assert list(tmp_path.iterdir()) == []
