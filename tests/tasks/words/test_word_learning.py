import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm.models import ConditionalRandomField
from fredholm.report.blocks import Plot, Table
from fredholm.report.examination import examine
from fredholm.report.predictions import prediction_section
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import WordLearning
from fredholm.tasks.outputs import Outputs
from fredholm.tasks.views import TextView
from fredholm.training import Run, TrainingConfig, train
from tests.faults.samples import columns
from tests.refusals import refused

CPU = torch.device("cpu")
MODEL = ConditionalRandomField.Config(window=1, num_features=200)
NAMES = ["Rome", "Oslo", "Bern", "Kyiv", "Lima"]


def write(folder: Path, count: int = 40) -> Path:
    """Writes sentences in which the words after "in" are places, of two words every third time."""
    lines = list[str]()
    for i in range(count):
        place = ["New B-place", f"{NAMES[i % 5]} I-place"] if i % 3 == 0 else [f"{NAMES[i % 5]} B-place"]
        subject = [f"{NAMES[i % 4]} O", "is O"][: i % 3]
        lines += [*subject, "in O", *place, ""]
    (path := folder / "places.conll").write_text("\n".join(lines))
    return path


def config(folder: Path, **settings: Any) -> WordLearning.Config:
    return WordLearning.Config(**{"data": str(write(folder)), "model": MODEL} | settings)


def run(folder: Path, **settings: Any) -> Run:
    folder.mkdir(exist_ok=True)
    training = TrainingConfig(epochs=0, device="cpu", tensorboard=False)
    train(Run.Config(task=config(folder, **settings), training=training), folder / "run")
    return Run(folder / "run", device="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("places"))


def test_a_run_learns_and_measures_words_and_spans(trained: Run) -> None:
    found = trained.evaluate("test")
    assert found["span_f1"] == found["accuracy"] == 1
    assert found["loss"] < 0.2
    assert trained.task.objective.metric == "span_f1"
    again = from_json(to_json(trained.task.facts), WordLearning.Facts, (WordLearning.Facts,))
    assert again == trained.task.facts


def test_metrics_are_those_of_the_predicted_sequences(tmp_path: Path) -> None:
    """Of five words two are right, and a third has no known label; one of two true spans is found."""
    rows = [{"tokens": ["a", "b", "c"], "tags": ["B-x", "I-x", "O"]}, {"tokens": ["d", "e"], "tags": ["B-y", None]}]
    rows += [{"tokens": ["f"], "tags": ["O"]}] * 3
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task = WordLearning.Config(data=str(tmp_path / "a.jsonl"), split_seed=3).build()
    metrics, names = task.metrics(), task.facts.names
    assert names == ("B-x", "B-y", "I-x", "O")
    predicted = torch.tensor([[0, 2, 0], [0, 0, 0]])
    targets = torch.tensor([[0, 2, 3], [1, -100, -100]])
    task.score_labels(predicted, targets, metrics)
    assert float(metrics["accuracy"].compute()) == 0.5
    # F1 of B-x 1/2 (of three predicted one is right, and it is all there are), of I-x 1, of B-y and O 0
    assert float(metrics["macro_f1"].compute()) == pytest.approx((1 / 2 + 1 + 0 + 0) / 4)
    assert float(metrics["span_precision"].compute()) == pytest.approx(1 / 3)
    assert float(metrics["span_recall"].compute()) == pytest.approx(1 / 2)


def test_the_loss_is_of_each_word(trained: Run) -> None:
    task, model = trained.task, trained.model()
    batch = task.held_out_batch("test", torch.arange(3))
    chances = model(batch["words"])
    losses = [
        -float(chances[i, j, k]) for i, row in enumerate(batch["targets"].tolist()) for j, k in enumerate(row) if k >= 0
    ]
    assert float(task.loss(model, batch)) == pytest.approx(sum(losses), rel=1e-5)
    assert task.num_targets(batch) == len(losses)


def test_predictions_are_rows_and_files(trained: Run, tmp_path: Path) -> None:
    columns, rows = tmp_path / "new.conll", tmp_path / "new.jsonl"
    columns.write_text("in\nNew\nParis\n\n\nOslo\nis\n")
    rows.write_text('{"tokens": ["in", "Paris"]}\n{"tokens": []}\n')
    found = [dict(each) for each in trained.predict([columns, rows], outputs=Outputs(save=tmp_path / "out"))]
    assert [(each["line"], each["number"], each["word"], each["label"]) for each in found] == [
        (1, 1, "in", "O"),
        (2, 2, "New", "B-place"),
        (3, 3, "Paris", "I-place"),
        (6, 1, "Oslo", "O"),
        (7, 2, "is", "O"),
        (1, 1, "in", "O"),
        (1, 2, "Paris", "B-place"),
    ]
    assert all(isinstance(each["probability"], float) and 0.5 < each["probability"] <= 1 for each in found)
    saved = [line.split("\t") for line in (tmp_path / "out" / "new.conll").read_text().splitlines()]
    first = [["in", "O"], ["New", "B-place"], ["Paris", "I-place"], [""]]
    assert [line[::2] for line in saved] == [*first, ["Oslo", "O"], ["is", "O"], [""]]
    lines = [json.loads(line) for line in (tmp_path / "out" / "new.jsonl").read_text().splitlines()]
    assert [line["tags"] for line in lines] == [["O", "B-place"], []]
    assert lines[0]["probabilities"][1] == pytest.approx(found[-1]["probability"], abs=1e-6)
    with refused(ValueError, "exists; name another file"):
        trained.predict([columns], outputs=Outputs(save=tmp_path / "out"))


def test_labels_of_rows_are_saved_as_lines(trained: Run, tmp_path: Path) -> None:
    (tmp_path / "new.parquet").write_bytes(columns(".parquet", tokens=[["in", "Paris"], ["is"]]))
    trained.predict([tmp_path / "new.parquet"], outputs=Outputs(save=tmp_path / "out"))
    lines = (tmp_path / "out" / "new.jsonl").read_text().splitlines()
    assert [json.loads(line)["tags"] for line in lines] == [["O", "B-place"], ["O"]]


def test_the_report_counts_confused_words(trained: Run) -> None:
    task, model = trained.task, trained.model()
    order = task.held_out_batch("test", torch.arange(task.num_held_out("test")))["targets"]
    found = examine(trained, model, "test")
    known = order[order >= 0]
    assert found.counts is not None
    assert found.counts.tolist() == known.bincount(minlength=3).diag().tolist()
    assert isinstance(model, ConditionalRandomField)
    with torch.no_grad():
        model.bias[0] = 1e6  # all words are B-place
    found = examine(trained, model, "test")
    assert found.counts is not None
    assert found.counts[:, 0].tolist() == known.bincount(minlength=3).tolist()
    blocks = prediction_section(task, found, None).blocks
    assert [block.title for block in blocks if isinstance(block, Plot)][:2] == ["Confusion matrix", "Reliability"]
    rows = next(block for block in blocks if isinstance(block, Table)).rows
    assert [row[0] for row in rows] == ["B-place", "I-place", "O"]


def test_files_with_predicted_labels_can_be_learnt_from(trained: Run, tmp_path: Path) -> None:
    data = write(tmp_path)
    trained.predict([data], outputs=Outputs(save=tmp_path / "out"))
    facts = WordLearning.Config(data=str(tmp_path / "out" / data.name)).build().facts
    assert facts == trained.task.facts


def test_an_objective_of_spans_needs_labels_that_mark_them(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("the\tDET\n\ncat\tNOUN\n\nsat\tVERB\n\na\tDET\n")
    task = WordLearning.Config(data=str(tmp_path / "a.tsv")).build()
    assert task.objective.metric == "accuracy"
    assert "span_f1" not in task.metrics()
    with refused(ValueError, "expected one of accuracy, macro_f1, loss; the labels mark no spans"):
        WordLearning.Config(data=str(tmp_path / "a.tsv"), objective="span_f1").build()
    with refused(ValueError, "has the labels ['DET']; expected at least 2"):
        (tmp_path / "a.tsv").write_text("the\tDET\n\na\tDET\n")
        WordLearning.Config(data=str(tmp_path / "a.tsv")).build()


def test_data_with_other_labels_are_refused(trained: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("the\tDET\n\ncat\tNOUN\n\nsat\tVERB\n\na\tDET\n")
    other = WordLearning.Config(data=str(tmp_path / "a.tsv")).build(trained.task.facts)
    with refused(ValueError, "the labels of", "are DET, NOUN, VERB; the run was made with B-place, I-place, O"):
        _ = other.splits


def test_baselines_are_of_counts(tmp_path: Path) -> None:
    for name, text in (("train", "a x\na x\na y\nb y\nb y\nc y\n"), ("valid", "a x\nb y\nd y\na y\n")):
        (tmp_path / f"{name}.tsv").write_text(text.replace(" ", "\t"))
    of_word, of_all = WordLearning.Config(data=str(tmp_path)).build().baselines
    assert of_word.fitted(0.0)("valid") == 3 / 4  # all but the last
    assert of_all.fitted(0.0)("valid") == 3 / 4  # all but the first
    of_word, _ = WordLearning.Config(data=str(tmp_path), objective="loss").build().baselines
    shares = (2 / 3, 1, 4 / 6, 1 / 3)
    assert of_word.fitted(0.0)("valid") == pytest.approx(-sum(map(math.log, shares)) / 4)


def test_recommended_settings_count_features_that_occur_twice(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("ab\tx\n\nab\tx\n\ncd\ty\n")
    settings = WordLearning.Config(data=str(tmp_path / "a.tsv"), model=ConditionalRandomField.Config(window=0))
    found: Any = settings.recommended("small")
    assert found.schedule.epochs == 0
    train_words = [each.words for each in WordLearning.Config(data=settings.data).build().splits.train.sentences]
    # the word, its lower case, two shapes, and its ending and beginning of one letter; both words have the same shapes
    assert found.config.model.num_features == (6 if train_words.count(("ab",)) == 2 else 2)


def test_an_example_shows_where_the_prediction_differs(trained: Run) -> None:
    task, model = trained.task, trained.model()
    (view,) = task.shown_example("test", 0, model).views
    assert isinstance(view, TextView)
    assert [part.weight for part in view.parts] == [0.0] * len(view.parts)
    assert isinstance(model, ConditionalRandomField)
    with torch.no_grad():
        model.bias[0] += 100  # every word is B-place
    (view,) = task.shown_example("test", 0, model).views
    assert isinstance(view, TextView)
    assert view.parts[0].note.endswith("O, predicted B-place")
    assert view.parts[0].text.endswith("/O → B-place ")
    assert view.parts[0].weight == 1
    assert (view.unit, view.legend) == ("", "darker: predicted wrongly")
