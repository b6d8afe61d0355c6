"""Every task has a tensor form with the results of `predict`, or a reason why its model takes no tensors."""

import csv
import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from fredholm.cli import export
from fredholm.models.blended import Blended
from fredholm.tasks import TASKS, Task
from fredholm.tasks.fields import read_fields
from fredholm.tasks.forecasts import open_long
from fredholm.tasks.image_texts import read_image_texts
from fredholm.tasks.points import read_points
from fredholm.tasks.series import read_series
from fredholm.tasks.tensor_form import BATCH, TensorForm
from tests.command_line import call
from tests.contracts.settings import Subject
from tests.contracts.task_settings import task_subjects
from tests.tasks.image_texts.build import write_folder

pytest.importorskip("kornia")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("trimesh")

CPU = torch.device("cpu")
REFUSED = ("GraphLearning", "NodeLearning", "LinkLearning", "WordLearning")


class TaskCase(NamedTuple):
    """A task with a model, the path of its data, and a folder for new files."""

    task: Any
    model: nn.Module
    data: Path
    folder: Path

    @property
    def form(self) -> TensorForm:
        return self.task.tensor_form(self.model)

    def typed(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Inputs in the dtypes of the form."""
        form = self.form
        example = form.example({BATCH.name: 2} | {name: axis.example for name, axis in form.open_axes.items()})
        return tuple(tensor.to(like.dtype) for tensor, like in zip(inputs, example, strict=True))

    def predict(self, file: Path) -> list[Any]:
        return self.task.predict(self.model, [file], CPU)

    def probabilities(self, file: Path) -> Tensor:
        return torch.tensor([list(each.probabilities.values()) for each in self.predict(file)])

    def numbers(self, file: Path, *names: str) -> Tensor:
        rows = [[float(each[name]) for name in names] for each in self.predict(file)]
        return torch.tensor(rows, dtype=torch.float64)

    def tokens(self, texts: list[tuple[str, str | None]]) -> Tensor:
        """Tokens of texts by the tokenizer file of the form, without this library."""
        library = tokenizers.Tokenizer.from_str(self.form.files["tokenizer.json"])
        library.enable_truncation(self.form.open_axes["tokens"].most, strategy="longest_first")
        library.enable_padding(pad_id=library.token_to_id("[PAD]"), pad_token="[PAD]")
        return torch.tensor([each.ids for each in library.encode_batch([t if t[1] else t[0] for t in texts])])


class Example(NamedTuple):
    """Inputs of a form, the results of `predict` on them, and a function from the form's output to these results."""

    inputs: tuple[Tensor, ...]
    expected: Tensor
    read: Callable[[Tensor], Tensor] = lambda output: output


def pixels_of(path: Path) -> Tensor:
    found = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(found).save(path)
    return torch.from_numpy(found).permute(2, 0, 1)[None]


def images(case: TaskCase) -> Example:
    grey = np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)
    Image.fromarray(grey).save(file := case.folder / "one.png")
    return Example((torch.from_numpy(grey)[None, None],), case.probabilities(file))


def segmentation(case: TaskCase) -> Example:
    pixels, classes = pixels_of(file := case.folder / "one.png"), case.task.target.names
    shares = case.numbers(file, *(f"share {name}" for name in classes))
    return Example((pixels,), shares, lambda out: F.one_hot(out.argmax(-1), len(classes)).float().mean((1, 2)))


def sentences(case: TaskCase) -> Example:
    columns = case.task.facts.columns
    with case.data.open() as file:
        rows = list(csv.DictReader(file))
    texts = [(row[columns.text], row[columns.second] if columns.second else None) for row in rows]
    return Example((case.tokens(texts),), case.probabilities(case.data))


def table(case: TaskCase) -> Example:
    columns = json.loads(case.form.files["columns.json"])
    with case.data.open() as file:
        rows = list(csv.DictReader(file))

    def number(row: dict[str, str], column: str, part: str = "") -> float:
        cell = row[column]
        if not part:
            return float(cell or "nan")
        date = datetime.datetime.fromisoformat(cell).replace(tzinfo=datetime.UTC)
        return {"seconds since 1970": date.timestamp(), "month": date.month, "weekday": date.weekday()}[part]

    numbers = [[number(row, **of) for of in columns["numbers"]] for row in rows]
    codes = [
        [of["levels"].index(row[of["column"]]) if row[of["column"]] else -1 for of in columns["categories"]]
        for row in rows
    ]
    inputs = torch.tensor(numbers, dtype=torch.float64), torch.tensor(codes)
    return Example(inputs, case.probabilities(case.data))


def image_texts(case: TaskCase) -> Example:
    write_folder(case.folder, count=5, num_images=3)
    (file,), facts = case.folder.glob("*.jsonl"), case.task.facts
    found = read_image_texts(
        file, num_images=facts.num_images, channels=facts.channels, image_size=facts.image_size, part=None
    )
    tokens = case.tokens([(example.text, None) for example in found.examples])
    return Example((found.images(torch.arange(len(found))), tokens), case.probabilities(file))


def series(case: TaskCase) -> Example:
    found = read_series(case.data, channels=case.task.facts.channels, part=None)
    values = torch.where(found.exists[..., None], found.values, 0.0)
    times = () if found.times is None else (found.times,)
    return Example((values, found.exists, *times), case.probabilities(case.data))


def forecasts(case: TaskCase) -> Example:
    found, _, _ = open_long(case.data)
    count, outputs = case.task.facts.num_read, case.task.facts.predicted
    values = torch.stack([each.values[-count:] for each in found])
    expected = case.numbers(case.data, *outputs).view(len(found), -1, len(outputs))
    step = case.task.facts.clock.step
    newest = torch.tensor([each.start + step * (len(each) - 1) for each in found], dtype=torch.float64)
    return Example((values, newest), expected)  # the calendar is read from the time of the newest sample


def fields(case: TaskCase) -> Example:
    facts = case.task.facts
    given = read_fields(case.data, coordinates=facts.coordinates, channels=facts.channels, part=None).given
    expected = case.numbers(case.data, *facts.target_channels).view(len(given.pos), -1, len(facts.target_channels))
    return Example((given.pos, given.values, given.exists, given.pos), expected)


def operators(case: TaskCase) -> Example:
    values = torch.from_numpy(np.load(case.data)["values"])[..., None]
    expected = case.numbers(case.data, *case.task.facts.target_channels)
    return Example((values,), expected.view(values.shape))


def points(case: TaskCase) -> Example:
    file = sorted(case.data.rglob("*.off"))[0]
    config = case.task.config
    found = read_points(file, num_samples=config.num_samples, normals=False, channels=(), part=None)
    pos = found.pos[None]
    return Example((pos, torch.ones(pos.shape[:2], dtype=torch.bool)), case.probabilities(file))


def nats(case: TaskCase, file: Path, inputs: Tensor, targets: Tensor) -> Example:
    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)[None, None]

    return Example((inputs,), case.numbers(file, "loss"), loss)


def text(case: TaskCase) -> Example:
    (file := case.folder / "one.txt").write_text("abcdefg")
    tokens = torch.tensor([[256, *b"abcdefg"]])
    return nats(case, file, tokens[:, :-1], tokens[:, 1:])


def masked(case: TaskCase) -> Example:
    (file := case.folder / "one.txt").write_text(case.data.read_text()[:40])
    blocks = case.task._read(file)
    batch = case.task._fixed(blocks, torch.arange(len(blocks)))
    return nats(case, file, batch["inputs"], batch["targets"])


ROWS: dict[str, Callable[[TaskCase], Example]] = {
    "ImageLearning": images,
    "LanguageModelling": text,
    "MaskedLanguageModelling": masked,
    "SentenceLearning": sentences,
    "SeriesLearning": series,
    "Forecasting": forecasts,
    "Segmentation": segmentation,
    "FieldLearning": fields,
    "OperatorLearning": operators,
    "PointLearning": points,
    "ImageTextLearning": image_texts,
    "TableLearning": table,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "PointLearning": {"num_points": None},
    "OperatorLearning": {"regression": 6},
    "ImageLearning": {"bank": 6},
    "LanguageModelling": {"ngrams": 3, "recall": 9},
}
"""Changes of the settings in `task_settings.py`: all points are read, so that none is drawn at random, and networks are
blended with a regression, a bank or n-grams."""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return {subject.name: subject for subject in task_subjects(tmp_path_factory.mktemp("data"))}


@pytest.fixture
def case(request: pytest.FixtureRequest, subjects: dict[str, Subject], tmp_path: Path) -> TaskCase:
    name = request.param
    subject = subjects[f"{name}.Config"]
    settings = subject.of(**{**subject.base, **OPTIONS.get(name, {})})
    facts = settings.build().facts
    task: Task = settings.build(facts)
    torch.manual_seed(0)
    model = task.model().eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    if isinstance(model, Blended):
        task.initialise(model, torch.device("cpu"))
        model.share.fill_(0.5)
    return TaskCase(task, model, Path(settings.data), tmp_path)


def check_near(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert expected.numel() == 1 or float(expected.std()) > 0
    torch.testing.assert_close(found.float(), expected.float(), rtol=1e-4, atol=1e-5)


def test_every_task_has_a_row_or_a_reason() -> None:
    assert ROWS.keys() | {*REFUSED} == {task.__name__ for task in TASKS}
    assert all(task.tensor_form is not Task.tensor_form for task in TASKS)


@pytest.mark.parametrize("case", REFUSED, indirect=True)
def test_tasks_without_a_form_refuse_it_with_a_reason(case: TaskCase) -> None:
    with pytest.raises(ValueError, match="which operations it takes depends on"):
        case.task.tensor_form(case.model)


@pytest.mark.parametrize("case", ROWS, indirect=True)
def test_a_form_gives_the_results_of_predict(case: TaskCase) -> None:
    example = ROWS[type(case.task).__name__](case)
    check_near(example.read(case.form.module()(*case.typed(example.inputs))), example.expected)


@pytest.mark.parametrize("case", ["SeriesLearning", "OperatorLearning", "FieldLearning"], indirect=True)
def test_a_form_takes_numbers_that_float32_would_round(case: TaskCase) -> None:
    drawn, file = np.random.default_rng(0), case.folder / "far.npz"
    on_grid, values = (1e8 + drawn.normal(size=shape) for shape in ((12, 4, 4), (12, 6)))
    arrays: dict[str, dict[str, Any]] = {
        "operator": {"values": on_grid, "target_values": on_grid},
        "field": {"values": values, "pos": drawn.uniform(size=(12, 6, 2))},
        "series": {"values": values, "labels": np.arange(12) % 2},
    }
    np.savez(file, **arrays[case.task.command])
    settings = dataclasses.replace(case.task.config, data=str(file))
    task = settings.build(settings.build().facts)
    torch.manual_seed(0)
    model = task.model().eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    far = TaskCase(task, model, file, case.folder)
    example = ROWS[type(task).__name__](far)
    # predictions of functions have the same large offset
    mean = example.expected.double().mean() if float(example.expected.max()) > 1e7 else 0.0
    found = example.read(far.form.module()(*far.typed(example.inputs))) - mean
    check_near(found, example.expected - mean)


@pytest.mark.parametrize("case", ROWS, indirect=True)
def test_a_form_needs_no_data_and_has_the_described_shapes(case: TaskCase) -> None:
    config = dataclasses.replace(case.task.config, data=str(case.folder / "absent"))
    form = config.build(case.task.facts).tensor_form(case.model)
    for number, batch in enumerate((2, 3)):
        sizes = {BATCH.name: batch} | {name: axis.tried[number] for name, axis in form.open_axes.items()}
        inputs = form.example(sizes)
        assert len(inputs) == len(form.inputs)
        output = form.module()(*inputs)
        for tensor, slot in zip((*inputs, output), (*form.inputs, form.output), strict=True):
            expected = tuple(sizes[axis.name] if axis.size is None else axis.size for axis in slot.axes)
            assert tuple(tensor.shape) == expected, slot
            assert slot.name.isidentifier()
        assert bool(output.isfinite().all())
        for name, names in form.names.items():
            assert {axis.size for axis in form.output.axes if axis.name == name} == {len(names)}
        torch.testing.assert_close(inputs, form.example(sizes), rtol=0, atol=0, equal_nan=True)


ALWAYS = ("OperatorLearning",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(row, marks=[] if row in ALWAYS else pytest.mark.long) for row in ROWS], indirect=True
)
def test_an_onnx_file_gives_the_results_of_predict(
    case: TaskCase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run: Any = SimpleNamespace(
        task=case.task, model=lambda which: case.model, step=lambda which: 3, check_finished=lambda: None
    )
    monkeypatch.setattr(export, "open_run", lambda *_: run)
    file = case.folder / "model.onnx"
    code, out, err = call(capsys, "export", "run", "--format", "onnx", "--output", file)
    assert (code, err) == (0, "")
    assert "differs from the model by at most" in out
    example, form = ROWS[type(case.task).__name__](case), case.form
    session = onnxruntime.InferenceSession(file)
    assert [each.name for each in session.get_inputs()] == [slot.name for slot in form.inputs]
    assert [each.name for each in session.get_outputs()] == [form.output.name]
    for each, slot in zip(session.get_inputs(), form.inputs, strict=True):
        assert each.shape == [axis.name if axis.size is None else axis.size for axis in slot.axes]
    names = [slot.name for slot in form.inputs]
    arrays = {name: tensor.numpy() for name, tensor in zip(names, case.typed(example.inputs), strict=True)}
    (found,) = session.run(None, arrays)
    check_near(example.read(torch.from_numpy(found)), example.expected)
    got = json.loads((case.folder / "model.onnx.json").read_text())
    assert json.loads(session.get_modelmeta().custom_metadata_map["description"])["inputs"] == got["inputs"]
    assert [each["dtype"] for each in got["inputs"]] == [str(array.dtype) for array in arrays.values()]
    for name, words in form.files.items():
        assert (case.folder / f"model.onnx.{name}").read_text() == words
