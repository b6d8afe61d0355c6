"""Every task says which tensors its model takes, or why there are none; they tell what `predict` tells."""

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
REFUSED = ("GraphLearning", "NodeLearning", "LinkLearning")


class Asked(NamedTuple):
    """A task with a model, and where its data lie and files may be made."""

    task: Any
    model: nn.Module
    data: Path
    folder: Path

    @property
    def form(self) -> TensorForm:
        return self.task.tensor_form(self.model)

    def typed(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Inputs in the types that the form takes."""
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
        """By the file that goes with the form, and by nothing of this library."""
        library = tokenizers.Tokenizer.from_str(self.form.files["tokenizer.json"])
        library.enable_truncation(self.form.open_axes["tokens"].most, strategy="longest_first")
        library.enable_padding(pad_id=library.token_to_id("[PAD]"), pad_token="[PAD]")
        return torch.tensor([each.ids for each in library.encode_batch([t if t[1] else t[0] for t in texts])])


class Answered(NamedTuple):
    """What a form is given, what `predict` tells of the same, and how that is read off the form's output."""

    inputs: tuple[Tensor, ...]
    wanted: Tensor
    read: Callable[[Tensor], Tensor] = lambda output: output


def pixels_of(path: Path) -> Tensor:
    found = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(found).save(path)
    return torch.from_numpy(found).permute(2, 0, 1)[None]


def images(asked: Asked) -> Answered:
    grey = np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)
    Image.fromarray(grey).save(file := asked.folder / "one.png")
    return Answered((torch.from_numpy(grey)[None, None],), asked.probabilities(file))


def segmentation(asked: Asked) -> Answered:
    pixels, classes = pixels_of(file := asked.folder / "one.png"), asked.task.target.names
    shares = asked.numbers(file, *(f"share {name}" for name in classes))
    return Answered((pixels,), shares, lambda out: F.one_hot(out.argmax(-1), len(classes)).float().mean((1, 2)))


def sentences(asked: Asked) -> Answered:
    columns = asked.task.facts.columns
    with asked.data.open() as file:
        rows = list(csv.DictReader(file))
    texts = [(row[columns.text], row[columns.second] if columns.second else None) for row in rows]
    return Answered((asked.tokens(texts),), asked.probabilities(asked.data))


def table(asked: Asked) -> Answered:
    columns = json.loads(asked.form.files["columns.json"])
    with asked.data.open() as file:
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
    return Answered(inputs, asked.probabilities(asked.data))


def image_texts(asked: Asked) -> Answered:
    write_folder(asked.folder, count=5, num_images=3)
    (file,), facts = asked.folder.glob("*.jsonl"), asked.task.facts
    found = read_image_texts(
        file, num_images=facts.num_images, channels=facts.channels, image_size=facts.image_size, part=None
    )
    tokens = asked.tokens([(example.text, None) for example in found.examples])
    return Answered((found.images(torch.arange(len(found))), tokens), asked.probabilities(file))


def series(asked: Asked) -> Answered:
    found = read_series(asked.data, channels=asked.task.facts.channels, part=None)
    values = torch.where(found.exists[..., None], found.values, 0.0)
    times = () if found.times is None else (found.times,)
    return Answered((values, found.exists, *times), asked.probabilities(asked.data))


def forecasts(asked: Asked) -> Answered:
    found, _, _ = open_long(asked.data)
    count, outputs = asked.task.facts.num_read, asked.task.facts.predicted
    values = torch.stack([each.values[-count:] for each in found])
    wanted = asked.numbers(asked.data, *outputs).view(len(found), -1, len(outputs))
    return Answered((values,), wanted)


def fields(asked: Asked) -> Answered:
    facts = asked.task.facts
    given = read_fields(asked.data, coordinates=facts.coordinates, channels=facts.channels, part=None).given
    wanted = asked.numbers(asked.data, *facts.target_channels).view(len(given.pos), -1, len(facts.target_channels))
    return Answered((given.pos, given.values, given.exists, given.pos), wanted)


def operators(asked: Asked) -> Answered:
    values = torch.from_numpy(np.load(asked.data)["values"])[..., None]
    wanted = asked.numbers(asked.data, *asked.task.facts.target_channels)
    return Answered((values,), wanted.view(values.shape))


def points(asked: Asked) -> Answered:
    file = sorted(asked.data.rglob("*.off"))[0]
    config = asked.task.config
    found = read_points(file, num_samples=config.num_samples, normals=False, channels=(), part=None)
    pos = found.pos[None]
    return Answered((pos, torch.ones(pos.shape[:2], dtype=torch.bool)), asked.probabilities(file))


def nats(asked: Asked, file: Path, inputs: Tensor, targets: Tensor) -> Answered:
    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)[None, None]

    return Answered((inputs,), asked.numbers(file, "loss"), loss)


def text(asked: Asked) -> Answered:
    (file := asked.folder / "one.txt").write_text("abcdefg")
    tokens = torch.tensor([[256, *b"abcdefg"]])
    return nats(asked, file, tokens[:, :-1], tokens[:, 1:])


def masked(asked: Asked) -> Answered:
    (file := asked.folder / "one.txt").write_text(asked.data.read_text()[:40])
    blocks = asked.task._read(file)
    batch = asked.task._fixed(blocks, torch.arange(len(blocks)))
    return nats(asked, file, batch["inputs"], batch["targets"])


ROWS: dict[str, Callable[[Asked], Answered]] = {
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
"""What differs from the settings of `task_settings.py`: all points are seen, so that none is drawn; and networks have a
regression, a bank or n-grams beside them."""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return {subject.name: subject for subject in task_subjects(tmp_path_factory.mktemp("data"))}


@pytest.fixture
def asked(request: pytest.FixtureRequest, subjects: dict[str, Subject], tmp_path: Path) -> Asked:
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
    return Asked(task, model, Path(settings.data), tmp_path)


def check_near(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    assert wanted.numel() == 1 or float(wanted.std()) > 0
    torch.testing.assert_close(found.float(), wanted.float(), rtol=1e-4, atol=1e-5)


def test_every_task_has_a_row_or_a_reason() -> None:
    assert ROWS.keys() | {*REFUSED} == {task.__name__ for task in TASKS}
    assert all(task.tensor_form is not Task.tensor_form for task in TASKS)


@pytest.mark.parametrize("asked", REFUSED, indirect=True)
def test_the_reason_is_refused(asked: Asked) -> None:
    with pytest.raises(ValueError, match="which operations it takes depends on"):
        asked.task.tensor_form(asked.model)


@pytest.mark.parametrize("asked", ROWS, indirect=True)
def test_a_form_tells_what_predict_tells(asked: Asked) -> None:
    answered = ROWS[type(asked.task).__name__](asked)
    check_near(answered.read(asked.form.module()(*asked.typed(answered.inputs))), answered.wanted)


@pytest.mark.parametrize("asked", ["SeriesLearning", "OperatorLearning", "FieldLearning"], indirect=True)
def test_a_form_takes_numbers_that_float32_would_round(asked: Asked) -> None:
    drawn, file = np.random.default_rng(0), asked.folder / "far.npz"
    on_grid, values = (1e8 + drawn.normal(size=shape) for shape in ((12, 4, 4), (12, 6)))
    arrays: dict[str, dict[str, Any]] = {
        "operator": {"values": on_grid, "wanted_values": on_grid},
        "field": {"values": values, "pos": drawn.uniform(size=(12, 6, 2))},
        "series": {"values": values, "labels": np.arange(12) % 2},
    }
    np.savez(file, **arrays[asked.task.command])
    settings = dataclasses.replace(asked.task.config, data=str(file))
    task = settings.build(settings.build().facts)
    torch.manual_seed(0)
    model = task.model().eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    far = Asked(task, model, file, asked.folder)
    answered = ROWS[type(task).__name__](far)
    # answers of functions lie as far away
    mean = answered.wanted.double().mean() if float(answered.wanted.max()) > 1e7 else 0.0
    found = answered.read(far.form.module()(*far.typed(answered.inputs))) - mean
    check_near(found, answered.wanted - mean)


@pytest.mark.parametrize("asked", ROWS, indirect=True)
def test_a_form_needs_no_data_and_is_as_it_says(asked: Asked) -> None:
    config = dataclasses.replace(asked.task.config, data=str(asked.folder / "absent"))
    form = config.build(asked.task.facts).tensor_form(asked.model)
    for number, batch in enumerate((2, 3)):
        sizes = {BATCH.name: batch} | {name: axis.tried[number] for name, axis in form.open_axes.items()}
        inputs = form.example(sizes)
        assert len(inputs) == len(form.inputs)
        output = form.module()(*inputs)
        for tensor, slot in zip((*inputs, output), (*form.inputs, form.output), strict=True):
            wanted = tuple(sizes[axis.name] if axis.size is None else axis.size for axis in slot.axes)
            assert tuple(tensor.shape) == wanted, slot
            assert slot.name.isidentifier()
        assert bool(output.isfinite().all())
        for name, names in form.names.items():
            assert {axis.size for axis in form.output.axes if axis.name == name} == {len(names)}
        torch.testing.assert_close(inputs, form.example(sizes), rtol=0, atol=0, equal_nan=True)


ALWAYS = ("LanguageModelling", "OperatorLearning")


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", [pytest.param(row, marks=[] if row in ALWAYS else pytest.mark.long) for row in ROWS], indirect=True
)
def test_an_onnx_file_tells_what_predict_tells(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run: Any = SimpleNamespace(
        task=asked.task, model=lambda which: asked.model, step=lambda which: 3, check_finished=lambda: None
    )
    monkeypatch.setattr(export, "open_run", lambda *_: run)
    file = asked.folder / "model.onnx"
    code, out, err = call(capsys, "export", "run", "--format", "onnx", "--output", file)
    assert (code, err) == (0, "")
    assert "differs from the model by at most" in out
    answered, form = ROWS[type(asked.task).__name__](asked), asked.form
    session = onnxruntime.InferenceSession(file)
    assert [given.name for given in session.get_inputs()] == [slot.name for slot in form.inputs]
    assert [each.name for each in session.get_outputs()] == [form.output.name]
    for given, slot in zip(session.get_inputs(), form.inputs, strict=True):
        assert given.shape == [axis.name if axis.size is None else axis.size for axis in slot.axes]
    names = [slot.name for slot in form.inputs]
    arrays = {name: tensor.numpy() for name, tensor in zip(names, asked.typed(answered.inputs), strict=True)}
    (found,) = session.run(None, arrays)
    check_near(answered.read(torch.from_numpy(found)), answered.wanted)
    got = json.loads((asked.folder / "model.onnx.json").read_text())
    assert json.loads(session.get_modelmeta().custom_metadata_map["description"])["inputs"] == got["inputs"]
    assert [each["dtype"] for each in got["inputs"]] == [str(array.dtype) for array in arrays.values()]
    for name, words in form.files.items():
        assert (asked.folder / f"model.onnx.{name}").read_text() == words
