"""The command line on labels of words: train, evaluate, predict."""

import json
from pathlib import Path

import pytest

from fredholm import cli
from tests.command_line import call, check_refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences, a run on them, and broken files."""
    folder = tmp_path_factory.mktemp("words")
    places = ["Rome", "Oslo", "Bern", "Kyiv"]
    clauses = [[f"{places[i % 3]} O", "is O", "in O", f"{places[i % 4]} B-place", ""] for i in range(24)]
    rows = [line for i, clause in enumerate(clauses) for line in clause[2 * (i % 2) :]]
    (folder / "places.conll").write_text("\n".join(rows))
    (folder / "new.jsonl").write_text('{"tokens": ["in", "Lima"]}\n')
    (folder / "broken.conll").write_text("in O\nOslo\n")
    (folder / "alone.conll").write_text("in\nOslo\n")
    command = ["train", "words", str(folder / "places.conll"), "--run-dir", str(folder / "run"), "--no-report"]
    assert cli.main(command) == 0
    return folder


def test_evaluate_and_predict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "evaluate", folder / "run", "--json")
    assert code == 0
    assert {"span_f1", "span_precision", "span_recall", "accuracy", "macro_f1", "loss"} <= json.loads(out).keys()
    code, out, err = call(capsys, "predict", folder / "run", folder / "new.jsonl", "--save", folder / "out")
    assert (code, err) == (0, f"wrote 1 file in {folder / 'out'}\n")
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert header == ["file", "line", "number", "word", "label", "probability"]
    assert [row[1:5] for row in rows] == [["1", "1", "in", "O"], ["1", "2", "Lima", "B-place"]]


def test_mistakes_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    train = ["train", "words"]
    for arguments, message in (
        (train, "no words are given; pass a .conll or .jsonl file or a folder of them"),
        ([*train, "broken.conll"], "broken.conll, line 2: has 1 columns; the first word has 2"),
        ([*train, "alone.conll"], "alone.conll, line 1: words and labels are both in column 1 of 1"),
        ([*train, "places.conll", "--task.label-column", "3"], "places.conll, line 1: has 2 columns, and no column 3"),
        ([*train, "places.conll", "--task.objective", "auroc"], "objective is 'auroc'; expected one of span_f1"),
        (
            ["compare", "words", "places.conll"],
            "labels of words are predicted by a conditional random field: no",
        ),
        (["export", "run", "--format", "onnx"], "labels of words have no form for other programs: which operations it"),
    ):
        check_refused(capsys, folder, message, *arguments)
