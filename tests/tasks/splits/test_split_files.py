"""Splits of data sets saved by Hugging Face's datasets."""

import json
from pathlib import Path

import pytest

from fredholm.tasks.files.arrow_table import ARROW
from fredholm.tasks.splits.split_files import SplitFiles, find_split_files, split_folders
from tests.refusals import refused
from tests.tasks.files.test_arrow_table import SAVED


def save(folder: Path, *names: str) -> tuple[Path, ...]:
    """Writes the state of a split with files of these names; the files are not created."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return tuple(folder / name for name in names)


def save_splits(folder: Path, *names: str) -> dict[str, tuple[Path, ...]]:
    folder.mkdir()
    files = {name: save(folder / name, "b.arrow", "a.arrow") for name in names}
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(names)}))
    return files


def found(folder: Path, suffix: str = ARROW) -> SplitFiles:
    return find_split_files(folder, (suffix,), what="table", example=".arrow", may_be_alone=True)


def test_saved_splits_are_found(tmp_path: Path) -> None:
    files = save_splits(tmp_path / "all", "test", "train", "validation")
    got = found(tmp_path / "all")
    assert got == SplitFiles({"train": files["train"], "valid": files["validation"], "test": files["test"]}, ())
    assert list(got.by_split) == ["train", "valid", "test"]
    alone = save_splits(tmp_path / "alone", "everything")
    assert found(tmp_path / "alone") == SplitFiles({}, alone["everything"])
    assert found(tmp_path / "alone" / "everything") == SplitFiles({}, alone["everything"])
    files = save_splits(tmp_path / "more", "train", "unsupervised", "test")
    with pytest.warns(UserWarning, match="left out, since the names are of no split: unsupervised"):
        assert found(tmp_path / "more") == SplitFiles({"train": files["train"], "test": files["test"]}, ())


def test_splits_saved_by_datasets_are_found() -> None:
    got = found(SAVED / "splits").by_split
    assert [path.name for path in got["train"]] == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    assert got.keys() == {"train", "valid"}
    assert all(path.is_file() for files in got.values() for path in files)
    assert found(SAVED / "splits" / "validation").unsplit == got["valid"]


def test_incomplete_splits_are_refused(tmp_path: Path) -> None:
    save_splits(tmp_path / "untrained", "test", "validation")
    save_splits(tmp_path / "twice", "train", "val", "dev")
    save(tmp_path / "none")
    save(tmp_path / "above", "../a.arrow")
    save(tmp_path / "pickled", "a.pkl")
    cases = {
        "untrained": "has no split 'train'; the splits are test, validation",
        "twice": "has several valid splits: train, val, dev; keep one",
        "none": "'_data_files' is no list of at least one; save the data again",
        "above": "'../a.arrow' is no name of a .arrow file; save the data again",
        "pickled": "'a.pkl' is no name of a .arrow file",
    }
    for name, text in (("text", "{"), ("list", "[1]"), ("empty", ""), ("other", "{}")):
        save(tmp_path / name)
        (tmp_path / name / "state.json").write_text(text)
        cases[name] = "state.json"
    for name, splits in (("number", [1, "train"]), ("outside", ["../x"]), ("outside_too", ["train", ".."])):
        save_splits(tmp_path / name)
        (tmp_path / name / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
        cases[name] = "is no name of a split; save the data again"
    for name, message in cases.items():
        with refused(ValueError, name, message):
            found(tmp_path / name)
    with refused(ValueError, "holds no", ".csv"):
        found(tmp_path / "above", ".csv")


def test_folders_of_splits_may_be_uppercase(tmp_path: Path) -> None:
    for name in ("TEST", "Valid", "other"):
        (tmp_path / name).mkdir()
    assert split_folders(tmp_path) == {}
    (tmp_path / "Train").mkdir()
    assert split_folders(tmp_path) == {
        "train": tmp_path / "Train",
        "valid": tmp_path / "Valid",
        "test": tmp_path / "TEST",
    }
    (tmp_path / "val").mkdir()
    with refused(ValueError, "has the folders Valid and val, which are one split; keep one"):
        split_folders(tmp_path)


def test_validation_and_test_folders_alone_are_not_classes(tmp_path: Path) -> None:
    for name in ("test", "val", ".cache"):
        (tmp_path / name).mkdir()
    with refused(ValueError, "has the folders test and val, and none of examples to learn from; call one train"):
        split_folders(tmp_path)
    (tmp_path / "val").rmdir()  # a test set alone
    assert split_folders(tmp_path) == {}
    (tmp_path / "val").mkdir()
    (tmp_path / "other").mkdir()  # with another folder they are classes
    assert split_folders(tmp_path) == {}


def test_folders_called_training_and_testing_are_splits(tmp_path: Path) -> None:
    for name in ("Training", "testing"):
        (tmp_path / name).mkdir()
    assert split_folders(tmp_path) == {"train": tmp_path / "Training", "test": tmp_path / "testing"}
