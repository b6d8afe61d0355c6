"""Every task predicts folders, reports broken files and leaves them out, and prints the same rows in every format."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fredholm import cli
from fredholm.cli import predict
from fredholm.models.closed_form_model import ClosedFormModel
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.tasks import TASKS, Task
from fredholm.training import TaskModel
from tests.command_line import call
from tests.contracts.settings import Subject
from tests.contracts.task_settings import task_subjects
from tests.tasks.image_texts.build import write_folder

pytest.importorskip("kornia")
pytest.importorskip("tokenizers")
pytest.importorskip("trimesh")

WriteInput = Callable[[Path, Path], None]


def image(_: Path, to: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(to.with_suffix(".png"))


def copied(data: Path, to: Path) -> None:
    """Copies the data, a file or a folder."""
    if data.is_dir():
        shutil.copytree(data, to)
    else:
        shutil.copy(data, to.with_name(f"{to.name}{data.suffix}"))


def first_lines(data: Path, to: Path) -> None:
    copied(sorted(data.glob("*.jsonl"))[0], to)


def first_cloud(data: Path, to: Path) -> None:
    copied(sorted(data.rglob("*.off"))[0], to)


def pictures_and_texts(_: Path, to: Path) -> None:
    """Writes lines that name images in the folder of their file."""
    write_folder(to.parent, count=5, num_images=3)


def pairs(_: Path, to: Path) -> None:
    to.with_suffix(".csv").write_text("source,target\nn0,n1\nn2,n9\n")


ROWS: dict[str, tuple[WriteInput, bool]] = {
    "ImageLearning": (image, True),
    "LanguageModelling": (copied, False),
    "MaskedLanguageModelling": (copied, False),
    "SentenceLearning": (copied, True),
    "WordLearning": (first_lines, False),
    "SeriesLearning": (copied, True),
    "Forecasting": (copied, False),
    "Segmentation": (image, False),
    "FieldLearning": (copied, False),
    "OperatorLearning": (copied, False),
    "PointLearning": (first_cloud, True),
    "GraphLearning": (copied, True),
    "NodeLearning": (copied, True),
    "LinkLearning": (pairs, False),
    "ImageTextLearning": (pictures_and_texts, True),
    "TableLearning": (copied, True),
}
"""By task, a function that writes an input to predict, and whether the task predicts a class."""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return {subject.name: subject for subject in task_subjects(tmp_path_factory.mktemp("data"))}


@pytest.fixture(params=ROWS)
def task_and_inputs(
    request: pytest.FixtureRequest, subjects: dict[str, Subject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Task, Path, bool]:
    """A task whose new model the command opens as a run, a folder with two inputs, and whether it predicts a class.

    One of the inputs lies in a subfolder.
    """
    subject = subjects[f"{request.param}.Config"]
    write, predicts_class = ROWS[request.param]
    config = subject.of(**subject.base)
    task: Task = config.build()
    torch.manual_seed(0)
    model = task.model().eval()
    run_config = SimpleNamespace(task=config)
    run: Any = SimpleNamespace(config=run_config, task=task, model=lambda which: model, device=torch.device("cpu"))
    monkeypatch.setattr(predict, "open_run", lambda *_: run)
    for folder in (tmp_path / "inputs", tmp_path / "inputs" / "deep"):
        folder.mkdir()
        write(Path(subject.base["data"]), folder / "one")
    return task, tmp_path / "inputs", predicts_class


def test_every_task_has_a_row() -> None:
    assert ROWS.keys() == {task.__name__ for task in TASKS}


def test_a_broken_file_does_not_stop_the_others(
    task_and_inputs: tuple[Task, Path, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    task, folder, _ = task_and_inputs
    _, whole, _ = call(capsys, "predict", "run", folder, "--format", "json")
    bad = folder / f"bad{task.predicts.suffixes[-1]}"
    bad.write_bytes(b"\xff\x00broken")
    (folder / "notes.none").write_text("of no known kind")
    code, out, err = call(capsys, "predict", "run", folder, "--format", "json", "--batch-size", "2")
    assert code == 1
    assert json.loads(out) == json.loads(whole) != []
    lines = err.splitlines()
    assert sum(line.startswith("error: ") and str(bad) in line for line in lines) == 1
    assert sum(line.startswith("error: ") for line in lines) == 1
    assert any(line.startswith("skipped ") and ".none" in line for line in lines)
    assert lines[-1].startswith("1 of ")
    with pytest.raises((ValueError, ImportError)):
        task.predict(task.model().eval(), [bad], torch.device("cpu"))
    assert call(capsys, "predict", "run", bad)[:2] == (2, "")


def test_formats_agree_and_probabilities_sum_to_one(
    task_and_inputs: tuple[Task, Path, bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder, predicts_class = task_and_inputs
    command = ["predict", "run", folder, *(["--probabilities"] if predicts_class else [])]
    _, out, _ = call(capsys, *command, "--format", "json")
    rows = json.loads(out)
    assert len({row["file"] for row in rows}) >= 2
    assert rows[0]["file"] < rows[-1]["file"] or "deep" in rows[0]["file"]
    for row in rows:
        predicted = {name: value for name, value in row.items() if name.startswith("probability of ")}
        assert bool(predicted) == predicts_class
        if predicted:
            assert sum(predicted.values()) == pytest.approx(1, abs=1e-5)
            assert row["probability"] == max(predicted.values()) == predicted[f"probability of {row['class']}"]
    assert call(capsys, *command, "--output", tmp_path / "a.csv")[1] == f"{tmp_path / 'a.csv'}: {len(rows)} rows\n"
    read = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert read == [{name: str(value) for name, value in row.items()} for row in rows]
    assert call(capsys, *command, "--output", tmp_path / "a.json")[0] == 0
    assert json.loads((tmp_path / "a.json").read_text()) == rows
    table = call(capsys, *command)[1].splitlines()
    assert table[0].split("\t") == list(rows[0])
    assert len(table) == 1 + len(rows)
    if not predicts_class:
        code, _, err = call(capsys, *command, "--probabilities")
        assert code == 2
        assert err.endswith("error: --probabilities has no effect: this run does not predict classes; leave it out\n")


def test_a_model_of_another_dtype_predicts_the_same(task_and_inputs: tuple[Task, Path, bool]) -> None:
    """A task casts the float32 values that it reads to the dtype of the model."""
    task, folder, _ = task_and_inputs
    files = [next(path for path in sorted(folder.iterdir()) if path.name != "deep")]
    found = list[list[float]]()
    for dtype, digits in ((torch.float32, 0.0), (torch.float64, 1e-4), (torch.bfloat16, 0.1)):
        torch.manual_seed(0)
        network, seen = task.model().to(dtype), set[torch.dtype]()
        network.register_forward_hook(
            lambda _, inputs, __, seen=seen: seen.update(
                each.dtype for each in tree_leaves(inputs) if isinstance(each, Tensor) and each.is_floating_point()
            )
        )
        rows = TaskModel(network, task).predict(files)
        found.append([value for row in rows for value in row.row().values() if isinstance(value, float)])
        if isinstance(network, FittedModel):  # these are never rounded to 16 bits
            digits = min(digits, 1e-4)
        assert found[-1] == pytest.approx(found[0], rel=digits, abs=digits)
        parts = [part for part in network.modules() if isinstance(part, ClosedFormModel)]
        kept = {parameter for part in parts for parameter in part.parameters()}
        assert {parameter.dtype for parameter in network.parameters() if parameter not in kept} <= {dtype}
        unwanted = torch.bfloat16 if isinstance(network, FittedModel) else torch.float32
        assert dtype == torch.float32 or unwanted not in seen
    assert found[0]


def test_missing_inputs_and_output_folders_are_one_line(
    task_and_inputs: tuple[Task, Path, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    task, folder, _ = task_and_inputs
    (folder / "empty").mkdir()
    for path, expected in (
        ("absent", "there is no such file or folder"),
        ("empty", "holds no file that this task reads"),
    ):
        code, out, err = call(capsys, "predict", "run", folder / path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"error: {folder / path}: {expected}")
    code, _, err = call(capsys, "predict", "run", folder, "--output", folder / "no" / "a.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "--output: there is no folder" in err
    (folder / "a.txt").write_text("kept")
    code, _, err = call(capsys, "predict", "run", folder, "--output", folder / "a.txt")
    assert (code, (folder / "a.txt").read_text()) == (2, "kept")
    if not task.predicts.has_parts:
        code, _, err = call(capsys, "predict", "run", folder / "one", folder, "--part", "train")
        assert code == 2
        assert "are not in parts; leave --part train out" in err
    assert cli.main(["predict", "run"]) == 2
