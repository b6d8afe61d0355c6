"""Pages of complete and incomplete runs: they show the results of the run and name what is missing."""

import dataclasses
import json
import math
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

from fredholm import analysis, domains, kernels
from fredholm.cli.page import leave_page
from fredholm.models import BlendedImages
from fredholm.models.blended import Blended
from fredholm.operators import IntegralOperator
from fredholm.report import build_page, kernel_pages, page, write_page
from fredholm.report.blocks import Facts, Figure, Gallery, Note, Page, Plot, Share, Table
from fredholm.report.charts import heat
from fredholm.report.curves import training_tab
from fredholm.report.examination import examine
from fredholm.report.examples import _isolated
from fredholm.report.model_card import model_card
from fredholm.report.overview import overview_tab
from fredholm.report.run_record import RunRecord, distinct_names, read_log
from fredholm.tasks import TASKS
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.target_task import Measured
from fredholm.training import Run, TrainingConfig, train
from tests.command_line import TINY, call
from tests.contracts.task_settings import small_tasks
from tests.report.build import digits
from tests.training.toy_task import ToyTask

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")
pytest.importorskip("torchmetrics")
OFF = {"tensorboard": False, "device": "cpu"}
WITH_BANK = ("--task.bank", "100")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits(tmp_path_factory.mktemp("runs") / "first", *WITH_BANK)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("report.html"))
    return tmp_path / "copy"


def blocks_of(found: Page, kind: type) -> list[object]:
    return [
        block for tab in found.tabs for section in tab.sections for block in section.blocks if isinstance(block, kind)
    ]


def notes_of(found: Page) -> str:
    return " ".join(block.text for block in blocks_of(found, Note) if isinstance(block, Note))


class Outline(HTMLParser):
    """The resources that a page loads, and whether its elements are closed properly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in ("meta", "link", "img", "br", "line", "circle", "path", "polyline"):
            self.open.append(tag)
        self.loaded += [str(found[name]) for name in ("src", "href", "data", "srcset") if found.get(name)]
        self.ids += [str(found["id"])] if found.get("id") else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_everything_is_in_one_file(run: Path, tmp_path: Path) -> None:
    path = write_page(run, to=tmp_path / "page.html")
    text = path.read_text()
    assert path.stat().st_size < 5e6
    outline = Outline(text)
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert {address[:5] for address in outline.loaded} <= {"data:", "#part"}
    for spec in re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL):
        assert json.loads(spec)["width"] == "container"


def test_the_headline_is_the_result_of_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "evaluate", run, "--json")
    (figure,) = {block for block in blocks_of(build_page([run]), Figure) if isinstance(block, Figure)}
    assert figure.value == f"{100 * json.loads(out)['accuracy']:.2f} %"
    assert figure.name == "accuracy, test data"
    assert "from 360 examples" in figure.note
    assert "the log has" not in figure.note


def test_the_commands_of_the_run_are_recorded(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = (copy / "commands.txt").read_text()
    assert shlex.split(first)[:-4] == ["fredholm", "train", "images", "digits", *TINY, *WITH_BANK]
    more = ["train", "images", "digits", *TINY, *WITH_BANK, "--run-dir", str(copy), "--resume", "--no-report"]
    more += ["--training.epochs"]
    for epochs in ("3", "3", "4\n"):
        call(capsys, *more, epochs)
    assert (copy / "commands.txt").read_text().splitlines() == [
        first.rstrip("\n"),
        shlex.join(["fredholm", *more, "3"]),
        shlex.join(["fredholm", *more, "4\\n"]),
    ]
    (facts,) = (block for block in blocks_of(build_page([copy]), Facts) if isinstance(block, Facts))
    found = dict(facts.rows)
    assert found["command"] == (first.rstrip("\n"),)
    assert found["gone on with"] == (shlex.join(["fredholm", *more, "4\\n"]),)
    card = model_card(RunRecord.read(copy, "copy"), "best", "there")
    assert "| command | `fredholm train images digits --task.patch-size" in card
    assert "--run-dir copy --resume" in next(row for row in card.splitlines() if row.startswith("| gone on with | "))


def test_a_model_without_its_run_has_a_page(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(capsys, "push", run, tmp_path / "saved")[0] == 0
    found = build_page([tmp_path / "saved"])
    assert [tab.name for tab in found.tabs] == [tab.name for tab in build_page([run]).tabs]
    assert notes_of(found).startswith("It is a model without its run, which its README.md describes. There is no log")
    (facts,) = (block for block in blocks_of(found, Facts) if isinstance(block, Facts))
    notes = dict(facts.rows)
    assert notes["test data read"] == ("not known, without the log",)
    assert notes["weights"] == (f"averaged, of step {Run(run).step():,}",)

    def absent(*_: object, **__: object) -> None:
        raise ValueError("no data: pass others")

    monkeypatch.setattr("fredholm.tasks.images.image_learning.open_images", absent)
    monkeypatch.chdir(tmp_path)
    notes = notes_of(build_page([tmp_path / "saved"]))
    assert "The model cannot be evaluated on examples: nothing is at 'digits', relative to" in notes
    assert "pass others" not in notes
    (tmp_path / "saved" / "model.safetensors").write_bytes(b"")
    assert "Its model cannot be read: " in notes_of(build_page([tmp_path / "saved"]))


def test_tables_are_computed_from_the_predictions(run: Path) -> None:
    found = build_page([run])
    tables = {block.title: block for block in blocks_of(found, Table) if isinstance(block, Table)}
    by_class = tables["Class by class"]
    assert sum(int(row[4]) for row in by_class.rows) == 360  # pyright: ignore
    opened = Run(run, device="cpu")
    outputs, targets, _ = opened.task.outputs_and_targets(opened.model(), "test", torch.arange(360))  # pyright: ignore
    recall = {row[0]: row[2] for row in by_class.rows}
    for k in range(10):
        own = outputs[targets == k].argmax(1)
        shown = recall[str(k)]
        assert isinstance(shown, Share)
        assert shown.value == pytest.approx(float((own == k).float().mean()))
    plots = {block.title: block for block in blocks_of(found, Plot) if isinstance(block, Plot)}
    assert {"Loss", "Accuracy on validation data", "Confusion matrix", "Reliability"} <= plots.keys()
    drawn = [row["count"] for row in plots["Confusion matrix"].spec["data"]["values"]]
    assert (len(drawn), sum(drawn)) == (100, 360)


def test_the_worst_examples_come_first(run: Path) -> None:
    opened = Run(run, device="cpu")
    found = examine(opened, opened.model(), "test")
    galleries = [block for block in blocks_of(build_page([run]), Gallery) if isinstance(block, Gallery)]
    worst, right = (block.cards for block in galleries[:2])
    assert f"loss {float(found.losses.max()):.4g}" in worst[0].lines
    assert worst[0].title == opened.task.shown_example("test", int(found.indices[found.losses.argmax()])).name
    assert {card.is_wrong for card in right} == {False}
    assert all("data:image/png" in card.drawings[0] for card in (*worst, *right))


def test_names_with_equal_beginnings_stay_different_on_an_axis() -> None:
    import vl_convert

    names = [f"class number {k}" for k in range(10, 13)] + ["a very long name of Kaunas", "a very long name of Vilnius"]
    rows = [{"truth": a, "predicted": b, "count": 1, "share": 0.2} for a in names for b in names]
    spec = heat(rows, ("predicted", "predicted"), ("truth", "true"), ("count", "examples"), height=300)
    svg = vl_convert.vegalite_to_svg(spec | {"width": 600})
    for shown in ("class number 10", "class number 11", "class number 12", "a very l… Kaunas", "a very l…Vilnius"):
        assert svg.count(f">{shown}</text>") == 2, shown


ANGLES = {
    ("a", "b", "c"): 0,
    ("slow", "fast"): 0,
    tuple(map(str, range(20))): -90,
    ("setosa", "versicolor", "virginica"): -45,
    tuple(map(str, range(10, 22))): 0,
}


@pytest.mark.parametrize(("names", "angle"), ANGLES.items())
def test_names_below_an_axis_are_horizontal_if_a_phone_has_room_for_them(names: tuple[str, ...], angle: int) -> None:
    rows = [{"truth": a, "predicted": b, "count": 1, "share": 0.2} for a in names for b in names]
    spec = heat(rows, ("predicted", "predicted"), ("truth", "true"), ("count", "examples"), height=300)
    assert spec["layer"][0]["encoding"]["x"]["axis"]["labelAngle"] == angle


def test_names_written_right_to_left_do_not_move_numbers() -> None:
    assert _isolated("שלום") == "\u2068שלום\u2069"
    assert (_isolated("Käse"), _isolated("a\u202eb")) == ("Käse", r"a\u202eb")


@pytest.mark.filterwarnings("ignore:.*taken both ways")
@pytest.mark.slow
def test_every_task_has_a_page(tmp_path: Path) -> None:
    seen = set()
    for number, config in enumerate(small_tasks(tmp_path / "data")):
        steps = config.build().learns_by_steps
        training = TrainingConfig(epochs=1 if steps else 0, tensorboard=False, device="cpu")
        folder = tmp_path / f"run {number}"
        train(Run.Config(task=config, training=training), folder)
        found = build_page([folder])
        assert [tab.name for tab in found.tabs[:4]] == ["Overview", "Training", "Predictions", "Examples"], config
        assert blocks_of(found, Figure)
        cards = [card for block in found.tabs[3].sections[0].blocks if block.kind == "gallery" for card in block.cards]  # pyright: ignore
        assert cards
        assert all(card.drawings for card in cards), config
        assert not [line for card in cards for line in card.lines if "cannot" in line]
        assert Outline(page.rendered(found)).open == []
        seen.add(type(config.build()))
    assert seen == set(TASKS)


@pytest.mark.parametrize("held_out", [("valid", "test"), ("valid",)])
def test_metrics_from_single_examples_equal_that_of_the_split(held_out: tuple[str, ...], tmp_path: Path) -> None:
    config = ToyTask.Config(num_examples=60, held_out=held_out)
    train(Run.Config(task=config, training=TrainingConfig(epochs=1, **OFF)), tmp_path / "run", tasks=[ToyTask])  # pyright: ignore
    run = Run(tmp_path / "run", tasks=[ToyTask], device="cpu")
    split = "test" if "test" in held_out else "valid"
    found = examine(run, run.model(), split)
    assert found.value == pytest.approx(run.evaluate(split)["accuracy"])
    assert len(found.indices) == found.total == run.task.num_held_out(split)
    few = examine(run, run.model(), split, most=5)
    assert len(few.indices) == 5
    every = dict(zip(found.indices.tolist(), found.losses.tolist(), strict=True))
    assert few.losses.tolist() == pytest.approx([every[index] for index in few.indices.tolist()])


def test_all_curves_of_many_kernels_look_different(run: Path) -> None:
    record = RunRecord.read(run, "run")
    many = [dataclasses.replace(record, name=f"{k}, seed {seed}", group=str(k)) for k in range(11) for seed in (0, 1)]
    empty = dataclasses.replace(record, name="empty", group="empty", lines=())
    (section,) = training_tab([*many, empty]).sections
    plots = [block for block in section.blocks if isinstance(block, Plot)]
    assert len(plots) >= 4
    for plot in plots:
        marks = plot.spec["layer"][0]["encoding"]
        looks = list(
            zip(marks["color"]["scale"]["range"], map(str, marks["strokeDash"]["scale"]["range"]), strict=True)
        )
        assert (
            marks["color"]["scale"]["domain"] == marks["strokeDash"]["scale"]["domain"] == [str(k) for k in range(11)]
        )
        assert len(set(looks)) == 11
        assert not plot.is_half
    assert {row["split"] for row in plots[0].spec["data"]["values"]} == {"validation"}
    assert plots[0].note.startswith("On validation data. ")


def test_a_note_says_that_the_loss_is_that_of_the_network_beside_another_model(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note_of_loss(record: RunRecord) -> str:
        (section,) = training_tab([record]).sections
        return next(block.note for block in section.blocks if isinstance(block, Plot) and block.title == "Loss")

    record = RunRecord.read(run, "run")
    assert record.run is not None
    both = record.run.task.model()
    assert isinstance(both, BlendedImages)
    found = "The loss of training is that of the network alone, without the model in closed form beside it."
    assert note_of_loss(record).endswith(found)
    monkeypatch.setattr(record.run.task, "model", lambda: both.network)
    assert found not in note_of_loss(record)


def test_kernels_are_shown_with_costs_routes_and_properties(run: Path) -> None:
    found = build_page([run])
    (tab,) = (tab for tab in found.tabs if tab.name == "Kernels")
    (section,) = tab.sections
    titles = [getattr(block, "title", "") for block in section.blocks]
    assert titles[:2] == ["Routes and costs", "Reasons against other routes"]
    assert {"Singular values", "Receptive fields", "Symmetry, measured"} <= set(titles)
    (costs,) = (block for block in section.blocks if isinstance(block, Table) and block.title == "Routes and costs")
    opened = Run(run, device="cpu")
    model, images = opened.model(), opened.task.held_out_batch("test", torch.tensor([0]))["images"]
    assert isinstance(model, Blended)  # its bank has no kernels of this kind
    with torch.no_grad(), analysis.record_integrals(model.network) as integrals:
        model.network(images)
    assert [row[0] for row in costs.rows] == list(integrals)
    (name,) = (name for name in integrals if "blocks.0" in name)
    profile = analysis.kernel_profile(integrals[name], by="distance")
    (plot,) = (b for b in section.blocks if isinstance(b, Plot) and b.title == f"{name} (MLP): κ by distance")
    drawn = [row["mean"] for row in plot.spec["data"]["values"] if row["head"] == "head 1"]
    assert drawn == pytest.approx(profile.mean[1].tolist())


def test_a_map_shows_stencils_cell_by_cell_and_wide_kernels_in_bins() -> None:
    stencil, attention = kernels.Convolution(3, 3, (3, 5), 2, padding="same"), kernels.Attention(3)
    for kernel, size, shape in (
        (stencil, (20, 41), (5, 7)),
        (attention, (4, 6), (7, 11)),
        (attention, (17, 4), (15, 7)),
    ):
        u = torch.randn(1, math.prod(size), 3, generator=torch.Generator().manual_seed(0))
        integral = IntegralOperator(kernel).prepare(u, domains.Grid(*size))
        found = kernel_pages.flat_profile(integral)
        cells = found.places.mul(1e4).round()
        assert tuple(len(along.unique()) for along in cells.T) == shape
        assert len(cells) == math.prod(shape)
        assert found.mean.shape[1] == found.deviation.shape[1] == len(found.count) == len(cells)
    inner = kernel_pages.flat_profile(IntegralOperator(stencil).prepare(torch.ones(1, 820, 3), domains.Grid(20, 41)))
    norms = stencil.weight.detach().square().sum((0, 1)).div(3).sqrt()
    held = inner.mean[0][inner.mean[0] > 0]
    assert sorted(held.tolist()) == pytest.approx(sorted(norms.flatten().tolist()), rel=1e-4)


def test_a_model_without_operators_has_a_note(tmp_path: Path) -> None:
    config = Run.Config(task=ToyTask.Config(), training=TrainingConfig(epochs=1, **OFF))  # pyright: ignore
    train(config, tmp_path / "run", tasks=[ToyTask])
    assert "no integral operators" in notes_of(build_page([tmp_path / "run"], tasks=[ToyTask]))


def test_parts_that_take_too_long_are_left_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredholm.report.kernel_pages.SECONDS", -1.0)
    assert "there was no time left" in notes_of(build_page([run]))


def test_a_run_without_a_test_split_names_the_split_in_use(tmp_path: Path) -> None:
    config = ToyTask.Config(held_out=("valid",))
    train(Run.Config(task=config, training=TrainingConfig(epochs=1, **OFF)), tmp_path / "run", tasks=[ToyTask])  # pyright: ignore
    found = build_page([tmp_path / "run"], tasks=[ToyTask])
    assert "validation data" in notes_of(found)
    (figure,) = {block for block in blocks_of(found, Figure) if isinstance(block, Figure)}
    assert figure.name == "accuracy, validation data"


def test_a_run_without_held_out_data_has_a_note(tmp_path: Path) -> None:
    config = Run.Config(task=ToyTask.Config(held_out=()), training=TrainingConfig(epochs=2, log_every=1, **OFF))
    train(config, tmp_path / "run", tasks=[ToyTask], needs_measure=False)
    found = build_page([tmp_path / "run"], tasks=[ToyTask])
    assert "nothing is held out" in notes_of(found)
    (loss,) = (block for block in blocks_of(found, Plot) if isinstance(block, Plot) and block.title == "Loss")
    assert "validation" not in loss.note


def test_test_data_are_not_used_for_an_interrupted_run(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunRecord.read(copy, "copy")
    assert record.progress is not None
    record.progress.is_done = False
    monkeypatch.setattr("fredholm.report.run_record.read_progress", lambda *_: record.progress)
    found = build_page([copy])
    assert "interrupted" in notes_of(found)
    figures = [block for block in blocks_of(found, Figure) if isinstance(block, Figure)]
    assert {figure.name for figure in figures} == {"accuracy, validation data"}


def test_shares_are_shown_in_percent(run: Path) -> None:
    record = RunRecord.read(run, "run")
    (plot,) = (plot for plot in blocks_of(build_page([run]), Plot) if plot.title == "Accuracy on validation data")  # pyright: ignore
    assert isinstance(plot, Plot)
    encoding = plot.spec["layer"][0]["encoding"]
    assert "100 * datum.value" in encoding["y"]["axis"]["labelExpr"]
    assert [each["title"] for each in encoding["tooltip"] if "format" in each] == ["accuracy"]
    best = record.logged("valid")
    assert best is not None
    assert Share(best, decimals=2) in [row[-1] for row in plot.table.rows]
    assert f"accuracy {100 * best:.2f} %" in str(overview_tab([record], [None], []))
    assert f"{100 * best:.2f}\u00a0%</td>" in page.rendered(build_page([run]))


def test_numbers_that_were_logged_once_have_no_curves(copy: Path) -> None:
    lines, _ = read_log(copy / "metrics.jsonl")
    first = {line["kind"]: line for line in reversed(lines)}
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in first.values()))
    (tab,) = (tab for tab in build_page([copy]).tabs if tab.name == "Training")
    assert tab.sections[0].blocks == (Note("Each number was logged only once, so that there are no curves."),)


def test_a_run_before_its_first_checkpoint_has_a_page(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    assert "no checkpoint yet" in notes_of(build_page([copy]))


def test_a_damaged_log_is_read_as_far_as_possible(copy: Path) -> None:
    text = (copy / "metrics.jsonl").read_text()
    lines, _ = read_log(copy / "metrics.jsonl")
    (copy / "metrics.jsonl").write_text(f"{text}[1]\nnull\n{{broken\n" + '{"kind": "train", "step": 1, "loss": "x"}\n')
    found, got = read_log(copy / "metrics.jsonl")
    assert found[: len(lines)] == lines
    assert "loss" not in found[-1]
    assert got == ["3 lines of the log metrics.jsonl are damaged and left out."]
    assert "damaged and left out" in notes_of(build_page([copy]))


def test_a_run_without_a_log_has_a_page(copy: Path) -> None:
    (copy / "metrics.jsonl").unlink()
    found = build_page([copy])
    assert "no curves" in notes_of(found)
    assert blocks_of(found, Figure)


def test_with_a_damaged_checkpoint_the_curves_remain(copy: Path) -> None:
    for file in copy.glob("checkpoints/*/*"):
        if file.is_file():
            file.write_bytes(b"broken")
    found = build_page([copy])
    assert "checkpoints cannot be read" in notes_of(found)
    assert blocks_of(found, Plot)


def test_a_folder_of_an_older_version_shows_its_log(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    found = build_page([copy])
    assert "older version" in notes_of(found)
    assert blocks_of(found, Plot)
    assert page.rendered(found)


def test_a_folder_without_a_run_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none").mkdir()
    for place in (tmp_path / "none", tmp_path / "absent"):
        code, out, err = call(capsys, "report", place)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert "nothing of it can be shown" in err
        assert not (place / "report.html").exists()


def test_text_has_its_own_part_and_missing_data_leave_the_rest(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    from fredholm.models.language.gpt2 import GPT2
    from fredholm.tasks import LanguageModelling

    model = GPT2.Config(embed_dim=8, depth=1, num_heads=1)
    config = LanguageModelling.Config(data=str(text), context=16, model=model)
    train(Run.Config(task=config, training=TrainingConfig(epochs=2, **OFF)), tmp_path / "run")  # pyright: ignore
    got = build_page([tmp_path / "run"])
    plots = [block for block in blocks_of(got, Plot) if isinstance(block, Plot)]
    (plot,) = (block for block in plots if block.title == "Loss by position")
    rows = plot.spec["data"]["values"]
    run = Run(tmp_path / "run", device="cpu")
    mean = sum(row["bits"] * row["tokens"] for row in rows) / sum(row["tokens"] for row in rows)
    assert mean == pytest.approx(run.evaluate("test")["loss"] / math.log(2), rel=1e-4)
    galleries = [block for block in blocks_of(got, Gallery) if isinstance(block, Gallery)]
    assert "Continuations" in [block.title for block in galleries]
    text.unlink()
    found = build_page([tmp_path / "run"])
    assert "cannot be evaluated on examples" in notes_of(found)
    assert blocks_of(found, Plot)


def test_a_single_class_is_reported(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fredholm.tasks import ImageLearning

    whole = ImageLearning.outputs_and_targets

    def of_one(self: ImageLearning, *arguments: object) -> Measured:
        found = whole(self, *arguments)  # pyright: ignore
        return found._replace(targets=torch.full_like(found.targets, 3))

    monkeypatch.setattr(ImageLearning, "outputs_and_targets", of_one)
    assert "of one class" in notes_of(build_page([copy]))


def test_a_class_with_one_example_has_a_note(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fredholm.tasks import ImageLearning

    whole = ImageLearning.outputs_and_targets

    batches: list[int] = []

    def with_lone(self: ImageLearning, *arguments: object) -> Measured:
        found = whole(self, *arguments)  # pyright: ignore
        is_first, _ = not batches, batches.append(len(found.targets))
        return found._replace(targets=torch.where((torch.arange(len(found.targets)) == 0) & is_first, 5, 3))

    monkeypatch.setattr(ImageLearning, "outputs_and_targets", with_lone)
    assert "Classes with a single example: 5." in notes_of(build_page([copy]))


def test_the_command_writes_into_the_run_folder(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "report", copy)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"{re.escape(str(copy / 'report.html'))}: \d\.\d MB, \d+\.\d s\n", out)
    assert call(capsys, "report", copy)[0] == 0, "a page is replaced"
    assert call(capsys, "evaluate", copy)[0] == 0, "a page in the run folder is no error"


@pytest.mark.slow
def test_training_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FREDHOLM_REPORT")
    first = digits(tmp_path / "first")
    assert f"page: {first / 'report.html'}" in capsys.readouterr().out.splitlines()
    assert page.MARK in (first / "report.html").read_bytes()[:2000]
    second = digits(tmp_path / "second", "--no-report")
    assert "page: " not in capsys.readouterr().out
    assert not (second / "report.html").exists()
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)
    third = digits(tmp_path / "third")
    (found,) = (line for line in capsys.readouterr().out.splitlines() if "no page" in line)
    assert 'pip install "fredholm[report]"' in found
    assert not (third / "report.html").exists()


FAILURES = {
    RuntimeError("the drawing broke"): "RuntimeError: the drawing broke",
    OSError(28, "No space left on device", "a.html"): "a.html: No space left on device",
}


@pytest.mark.parametrize(("error", "expected"), FAILURES.items())
def test_a_failing_page_is_reported_in_one_line(
    error: Exception, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FREDHOLM_REPORT")

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("fredholm.cli.page.write_page", fails)
    leave_page(tmp_path / "run", TASKS, "cpu")
    assert (
        capsys.readouterr().out == f"no page of the run: {expected}; fredholm report {tmp_path / 'run'} tries again\n"
    )


def test_a_failing_page_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FREDHOLM_REPORT")
    monkeypatch.setattr("fredholm.cli.page.write_page", lambda *_, **__: 1 / 0)
    digits(tmp_path / "run")
    out = capsys.readouterr().out.splitlines()
    assert any(line.startswith("no page of the run: ZeroDivisionError: ") for line in out)
    assert out[-1].startswith("test accuracy: ")


def test_evaluation_writes_a_page_only_on_request(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in copy.iterdir())
    assert call(capsys, "evaluate", copy)[0] == 0
    assert sorted(path.name for path in copy.iterdir()) == before
    code, out, _ = call(capsys, "evaluate", copy, "--report")
    assert (code, out.splitlines()[-1]) == (0, f"page: {copy / 'report.html'}")
    code, out, _ = call(capsys, "evaluate", copy, "--report", "--json")
    assert json.loads(out)["split"] == "test"
    code, _, err = call(capsys, "evaluate", copy, "--report", "--task", "patch-size=2")
    assert code == 2
    assert "--report has no effect with --task" in err


def test_other_files_are_not_replaced(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = tmp_path / "notes.html"
    notes.write_text("mine")
    code, _, err = call(capsys, "report", copy, "--output", notes)
    assert code == 2
    assert "is not a page of this program" in err
    assert notes.read_text() == "mine"


@pytest.mark.slow
def test_several_runs_are_shown_side_by_side(
    run: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "report", run, copy)[0] == 0
    assert (tmp_path / "report.html").exists()
    found = build_page([run, copy])
    assert [tab.name for tab in found.tabs] == ["Overview", "Training", "first", "copy"]
    loss = next(block for block in blocks_of(found, Plot) if isinstance(block, Plot) and block.title == "Loss")
    assert {row["run"] for row in loss.spec["data"]["values"]} == {"first", "copy"}


def test_names_of_folders_are_made_distinct() -> None:
    assert distinct_names([Path("/a/x/seed-0"), Path("/a/y/seed-0")]) == ["x/seed-0", "y/seed-0"]
    assert distinct_names([Path("/a/x"), Path("/a/y")]) == ["x", "y"]


def test_missing_packages_are_reported_in_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None)
    code, out, err = call(capsys, "report", run, "--output", tmp_path / "page.html")
    assert (code, out) == (2, "")
    assert 'pip install "fredholm[report]"' in err
    assert len(err.splitlines()) == 1


def test_the_javascript_library_is_cached_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vl_convert

    made: list[str] = []
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda snippet: made.append(snippet) or "var vega</script>")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = page.library.__wrapped__()
    assert "</script" not in first
    assert page.library.__wrapped__() == first
    assert len(made) == 1
    (kept,) = tmp_path.rglob("vega-*.js")
    kept.write_text(kept.read_text() + "evil()")
    assert page.library.__wrapped__() == first, "a changed file is replaced"
    assert len(made) == 2
    monkeypatch.setattr(page, "_kept_library", lambda: None)
    assert page.library.__wrapped__() == first, "without a home folder it is built each time"
    assert len(made) == 3


def test_after_the_time_limit_no_further_examples_are_predicted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fredholm.tasks import ImageLearning

    opened, sizes, whole = Run(run, device="cpu"), list[int](), ImageLearning.outputs_and_targets

    def counted(self: ImageLearning, model: nn.Module, split: HeldOut, rows: torch.Tensor) -> Measured:
        sizes.append(len(rows))
        return whole(self, model, split, rows)

    monkeypatch.setattr(ImageLearning, "outputs_and_targets", counted)
    found = examine(opened, opened.model(), "test", seconds=0.0)
    assert len(sizes) == 1
    assert len(found.indices) == sizes[0]
