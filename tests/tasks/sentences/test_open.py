from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fredholm.models import SentenceStackConfig
from fredholm.tasks import SentenceLearning
from fredholm.tasks.sentences import Columns, SentenceSet, open_sentences
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.splits.splitting import divided
from tests.faults.samples import columns
from tests.refusals import refused
from tests.tasks.files.test_arrow_table import SAVED


def write(path: Path, count: int, *, start: int = 0) -> Path:
    """Writes rows, of which every third has class b."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"sentence {i},{'aab'[i % 3]}" for i in range(start, start + count)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def opened(data: str | Path, **settings: Any) -> Splits[SentenceSet]:
    """The splits that a task makes."""
    reading = {name: settings.pop(name) for name in ("text_column", "kind", "columns") if name in settings}
    config = SentenceLearning.Config(data=str(data), model=SentenceStackConfig(), **settings)
    return divided(open_sentences(data, **reading).splits, config)


def texts(part: SentenceSet | None) -> list[str]:
    return [] if part is None else [sentence.first for sentence in part.sentences]


def test_one_file_is_split_by_label_and_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 60)
    splits = opened(path)
    assert open_sentences(path).columns == Columns(text="text", second=None, labels=("label",))
    parts = (splits.train, splits.held_out("valid"), splits.held_out("test"))
    assert [Counter(part.answers.names[code] for code in part.answers.values.tolist()) for part in parts] == [
        {"a": 28, "b": 14},
        {"a": 4, "b": 2},
        {"a": 8, "b": 4},
    ]
    assert sorted(text for part in parts for text in texts(part)) == sorted(f"sentence {i}" for i in range(60))
    assert texts(opened(path).test) == texts(splits.test)
    assert texts(opened(path, split_seed=1).test) != texts(splits.test)
    wider = opened(path, test_fraction=0.5, valid_fraction=0.25)
    assert list(map(len, (wider.train, wider.valid or (), wider.test or ()))) == [15, 15, 30]


def test_a_split_depends_on_the_sentences_not_on_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 60)
    lines = path.read_text().splitlines()
    other = tmp_path / "other.csv"
    other.write_text("\n".join([lines[0], *reversed(lines[1:]), ""]))
    assert sorted(texts(opened(other).test)) == sorted(texts(opened(path).test))


def test_numeric_targets_are_not_used_for_splitting(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["text,score", *(f"sentence {i},{i / 7}" for i in range(20))]))
    splits = opened(path)
    assert list(map(len, (splits.train, splits.valid or (), splits.test or ()))) == [14, 2, 4]
    with refused(ValueError, f"{path}: 20 examples in 20 classes leave none to hold out"):
        opened(path, kind="class")


def test_the_names_of_files_give_their_splits(tmp_path: Path) -> None:
    for split, start in (("train", 0), ("dev", 30), ("test", 40)):
        write(tmp_path / "own" / f"my.set.{split}.csv", 10, start=start)
    for data in (tmp_path / "own", str(tmp_path / "own" / "my.set")):
        splits = opened(data)
        assert [texts(part)[0] for part in (splits.train, splits.valid, splits.test)] == [
            "sentence 0",
            "sentence 30",
            "sentence 40",
        ]
    (tmp_path / "own" / "my.set.test.csv").unlink()
    assert opened(tmp_path / "own").test is None


def test_a_missing_validation_split_is_taken_from_training(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", 40)
    write(tmp_path / "test.csv", 7, start=50)
    splits = opened(tmp_path, valid_fraction=0.25, split_seed=3)
    assert (len(splits.train), len(splits.valid or ())) == (30, 10)
    assert texts(splits.test) == [f"sentence {i}" for i in range(50, 57)]


def test_a_training_file_alone_has_no_test_set(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", 40)
    splits = opened(tmp_path, valid_fraction=0.25)
    assert (len(splits.train), len(splits.valid or ()), splits.test) == (30, 10, None)
    assert len(opened(tmp_path, valid_fraction=0).train) == 40


def test_files_without_splits_form_one_set(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", 30)
    write(tmp_path / "b.csv", 30, start=30)
    splits = opened(tmp_path)
    assert list(map(len, (splits.train, splits.valid or (), splits.test or ()))) == [42, 6, 12]


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        (["train", "test"], {"test_fraction": 0.3}, "test_fraction=0.3 has no effect with"),
        (["train", "valid"], {"valid_fraction": 0.3}, "valid_fraction=0.3 has no effect with"),
        (["train", "valid", "test"], {"split_seed": 1}, "split_seed=1 has no effect with"),
        (["a"], {"test_fraction": 0.6, "valid_fraction": 0.4}, "a number that leaves some to train on"),
        (["a"], {"valid_fraction": -0.1}, "valid_fraction is -0.1; pass 0, or a number that leaves"),
        (["a"], {"text_column": "txt"}, "a.csv: no column 'txt' for the text; did you mean 'text'?"),
        (["train"], {"test_fraction": 0.3}, "test_fraction=0.3 has no effect with"),
        (["x.train", "y.train", "y.test"], {}, "has splits of several tables, x, y; pass"),
        ([], {}, "holds no .csv, .csv.gz, .tsv, .tsv.gz, .jsonl, .jsonl.gz, .arrow or .parquet file"),
    ],
)
def test_data_that_cannot_be_split_are_refused(
    tmp_path: Path, files: list[str], settings: dict[str, Any], message: str
) -> None:
    for name in files:
        write(tmp_path / f"{name}.csv", 30)
    with refused(ValueError, message):
        opened(tmp_path, **settings)


def test_other_splits_need_the_columns_of_training(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", 20)
    (tmp_path / "valid.csv").write_text("text,class\nx,a\n")
    with refused(ValueError, "valid.csv: has no column 'label'; the columns are text, class"):
        opened(tmp_path)


def test_the_shared_sets(shared_data: Path) -> None:
    folder = shared_data / "sentence_classification"
    splits = opened(folder / "stsa.binary", columns=("label", "text"))
    assert list(map(len, (splits.train, splits.valid or (), splits.test or ()))) == [6920, 872, 1821]
    columns = ("label", "premise", "hypothesis")
    assert open_sentences(folder / "RTE", columns=columns).columns.second == "hypothesis"
    pairs = opened(folder / "RTE", columns=columns)
    assert pairs.test is None
    assert list(map(len, (pairs.train, pairs.valid or ()))) == [2490, 277]
    reviews = opened(folder / "rt-polarity.tsv.gz", columns=("label", "text"))
    assert list(map(len, (reviews.train, reviews.valid or (), reviews.test or ()))) == [7462, 1067, 2133]


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_columnar_tables_are_read_like_text_tables(tmp_path: Path, kind: str) -> None:
    rows = {"text": [f"sentence {i}" for i in range(12)], "label": [i % 2 for i in range(12)], "extra": [None] * 12}
    names = {"label": ["no", "yes"]}
    (tmp_path / f"a.{kind}").write_bytes(columns(f".{kind}", names, **rows))
    lines = [f"sentence {i},{'no' if i % 2 == 0 else 'yes'}" for i in range(12)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *lines]))
    found, expected = (open_sentences(tmp_path / name) for name in (f"a.{kind}", "a.csv"))
    assert texts(found.splits.train) == texts(expected.splits.train)
    assert found.splits.train.answer_names == expected.splits.train.answer_names == ("no", "yes")
    assert found.splits.train.answers.values.tolist() == expected.splits.train.answers.values.tolist()
    with refused(ValueError, f"a.{kind}", "columns=('a', 'b') has no effect here, where columns have names"):
        open_sentences(tmp_path / f"a.{kind}", columns=("a", "b"))


def test_several_labels_and_splits_saved_by_datasets() -> None:
    splits = open_sentences(SAVED / "splits", label_columns=("labels",), kind="labels").splits
    assert (texts(splits.train), texts(splits.valid), splits.test) == (["g", "a b", "c", "d é"], ["e", "f"], None)
    assert splits.train.answers.names == ("x", "y")
    assert splits.train.answers.values.tolist() == [[True, True], [True, False], [True, True], [False, False]]
    assert open_sentences(SAVED / "whole.parquet").splits.train.answer_names == ("ant", "zebra")
