"""The command line on sentences: train, evaluate, predict."""

import json
from pathlib import Path

import pytest

from fredholm import cli
from fredholm.tasks.text import MarkedTokenizer
from tests.command_line import call, check_refused

TINY = [
    *("--task.model", "sentence-stack", "--task.model.stack.embed-dim", "8", "--task.model.stack.depth", "1"),
    *("--task.model.stack.num-heads", "2", "--task.model.stack.kernel", "mlp", "--task.model.stack.kernel.width", "8"),
    *("--task.model.stack.kernel.num-frequencies", "4", "--task.context", "32"),
    *("--training.epochs", "2", "--training.batch-size", "16", "--training.no-tensorboard"),
]
TRAIN = ["train", "sentences"]
SMALL = ["--task.tokens.vocab-size", "120"]


def rows(count: int) -> list[str]:
    return [
        f"{'good' if i % 2 else 'bad'} film number {i % 7},{'so' if i % 3 else 'not so'},{i % 2}" for i in range(count)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reviews, a run on them, a run on pairs with numbers as labels, and broken files."""
    folder = tmp_path_factory.mktemp("sentences")
    (folder / "reviews.csv").write_text("\n".join(["text,verdict,label", *rows(60)]))
    (folder / "new.jsonl").write_text('{"text": "a good film"}\n{"text": "bad, bad"}\n')
    bare = ["\t".join((row.split(",")[2], *row.split(",")[:2])) for row in rows(60)]
    (folder / "pairs.tsv").write_text("\n".join(bare))
    data, run = str(folder / "reviews.csv"), str(folder / "run")
    assert cli.main(["train", "sentences", data, "--run-dir", run, *TINY, *SMALL]) == 0
    numbers = ["--task.columns", "label", "text", "second", "--task.target", "number", "--task.objective", "spearman"]
    data, run = str(folder / "pairs.tsv"), str(folder / "numbers")
    assert cli.main(["train", "sentences", data, "--run-dir", run, *TINY, *numbers, "--task.tokens.kind", "bytes"]) == 0
    return folder


def test_evaluate_measures_on_both_held_out_splits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for name, more in {"valid": ["--split", "valid"], "test": []}.items():
        code, out, err = call(capsys, "evaluate", folder / "run", "--json", *more)
        assert (code, err) == (0, "")
        found[name] = json.loads(out)
        code, out, _ = call(capsys, "evaluate", folder / "run", *more)
        assert out.startswith(f"{name} accuracy: {100 * found[name]['accuracy']:.2f} %\n{name} balanced_accuracy: ")
    assert {"accuracy", "macro_f1", "matthews", "loss"} <= found["valid"].keys()
    assert (found["valid"]["examples"], found["test"]["examples"]) == (6, 12)


def test_predict_prints_every_class_of_every_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(
        capsys,
        "predict",
        folder / "run",
        folder / "new.jsonl",
        folder / "reviews.csv",
        "--probabilities",
        "--format",
        "json",
    )
    found = json.loads(out)
    assert (code, err, len(found)) == (0, "", 62)
    assert list(found[0]) == ["file", "line", "class", "probability", "probability of 0", "probability of 1"]
    assert [row["line"] for row in found[:4]] == [1, 2, 2, 3]
    code, out, _ = call(capsys, "predict", folder / "run", folder / "new.jsonl")
    predicted = [str(folder / "new.jsonl"), "1", found[0]["class"], f"{found[0]['probability']:.4f}"]
    assert out.splitlines()[1].split("\t") == predicted


def test_numbers_of_pairs_without_a_header(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "evaluate", folder / "numbers", "--json")
    assert code == 0
    assert {"pearson", "spearman", "root_mean_squared_error", "loss"} <= json.loads(out).keys()
    code, out, _ = call(capsys, "evaluate", folder / "numbers")
    assert out.startswith("test spearman: ")
    (folder / "pairs.tsv").write_text("a good film\tso\n")
    options = ["--task", "columns=text,second", "--format", "json"]
    code, out, err = call(capsys, "predict", folder / "numbers", folder / "pairs.tsv", *options)
    assert (code, err) == (0, "")
    assert [list(row) for row in json.loads(out)] == [["file", "line", "label"]]


def test_the_tokenizer_of_a_run_serves_another(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = folder / "run" / "tokenizer.json"
    data = [str(folder / "reviews.csv"), "--run-dir", str(tmp_path / "run"), "--task.tokens.file", str(kept)]
    assert cli.main(["train", "sentences", *data, *TINY]) == 0
    assert MarkedTokenizer.load(tmp_path / "run" / "tokenizer.json").state == kept.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TRAIN, *TINY], "no sentences are given; pass a .csv, .tsv or .jsonl file"),
        ([*TRAIN, "review.csv", *TINY], "no table at 'review.csv': did you mean 'reviews.csv'?"),
        ([*TRAIN, "empty.csv", *TINY], "empty.csv: is empty"),
        ([*TRAIN, "latin.csv", *TINY], "latin.csv: is no UTF-8 text: byte 0xe9 at offset 14, in line 2"),
        ([*TRAIN, "cut.jsonl", *TINY], "cut.jsonl, line 2: does not parse as JSON"),
        ([*TRAIN, "cells.csv", *TINY], "cells.csv, line 3: has 3 cells; expected 2: text, label"),
        ([*TRAIN, "blank.csv", *TINY], "blank.csv, line 2: column 'text': the text is empty"),
        ([*TRAIN, "one.csv", *TINY], "one.csv has the classes ['a']; expected at least 2"),
        (
            [*TRAIN, "one.csv", *TINY, "--task.target", "number"],
            "one.csv, line 2: column 'label': 'a' is",
        ),
        (
            [*TRAIN, "reviews.csv", *TINY, "--task.label-columns", "lable"],
            "reviews.csv: no column 'lable'",
        ),
        ([*TRAIN, "reviews.csv", *TINY, "--task.tokens.vocab-size", "9"], "--task.tokens.vocab-size is 9; expected at"),
        (
            [*TRAIN, "reviews.csv", *TINY, "--task.tokens.file", "no.json"],
            "no.json: this tokenizer has no",
        ),
        (
            [*TRAIN, "reviews.csv", *TINY, "--task.tokens.file", "one.csv"],
            "one.csv: this is no tokenizer",
        ),
        (
            [*TRAIN, "reviews.csv", "--task.objective", "pearson"],
            "objective is 'pearson'; expected one of accuracy",
        ),
        (["evaluate", "run", "--task", "context=64"], "context is 64; the run was made with 32"),
        (["evaluate", "run", "--task", "split-seed=1"], "--task split-seed=1 chooses other training data"),
        (["predict", "run", "other.csv"], "other.csv, line 2: column 'label': class '2' is none of 0, 1, those of"),
        (["predict", "run", "one.txt"], "one.txt: is of no known kind; expected .csv"),
        (["predict", "run", "phrases.csv"], "phrases.csv: has no column 'text'; the columns are phrase"),
        (["predict", "numbers", "other.tsv"], "other.tsv, line 1: column 'label': 'two' is no finite number"),
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
    (tmp_path / "empty.csv").touch()
    (tmp_path / "latin.csv").write_bytes(b"text,label\ncaf\xe9,1\n")
    no_marks = json.loads((folder / "run" / "tokenizer.json").read_text())
    no_marks["added_tokens"] = []
    del no_marks["model"]["vocab"]["[MASK]"]
    no_marks["post_processor"] = None
    for name, text in {
        "cut.jsonl": '{"text": "a", "label": 1}\n{"text": "b",\n',
        "cells.csv": "text,label\na,1\nb, c,0\n",
        "blank.csv": 'text,label\n"",1\n',
        "one.csv": "text,label\n" + "".join(f"b {i},a\n" for i in range(20)),
        "no.json": json.dumps(no_marks),
        "other.csv": "text,label\na,2\n",
        "other.tsv": "two\ta\tb\n",
        "one.txt": "a",
        "phrases.csv": "phrase\na\n",
    }.items():
        (tmp_path / name).write_text(text)
    for name in ("run", "numbers", "reviews.csv"):
        (tmp_path / name).symlink_to(folder / name)
    monkeypatch.chdir(tmp_path)
    check_refused(capsys, tmp_path, message, *arguments)
