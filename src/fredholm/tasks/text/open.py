"""Opening of text data: a file, a folder, or files with a common prefix."""

from dataclasses import dataclass
from pathlib import Path

from fredholm._settings import refuse_idle
from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.split_files import find_split_files
from fredholm.tasks.splits.stratified_split import DEFAULT_VALID_FRACTION

from .documents import DOCUMENT_SUFFIXES, ROW_SUFFIXES, Documents, Separator

DEFAULT_TEST_FRACTION = 0.1


@dataclass(frozen=True)
class TextSplits:
    """The documents of each split; None where there is none."""

    train: Documents
    valid: Documents | None
    test: Documents | None


@reads_data
def open_text(
    data: str | Path,
    *,
    documents: Separator = "file",
    text_column: str | None = None,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    valid_fraction: float = DEFAULT_VALID_FRACTION,
) -> TextSplits:
    """Opens text as training, validation and test documents.

    Files end in .txt or .txt.gz, or have a document per row and end in .jsonl, .jsonl.gz, .parquet or .arrow. Their
    split is a word of their names: train; valid, validation, val or dev; test. Words are separated by dots, hyphens and
    underscores.

    Args:
        data: a file, a folder, or a common prefix of the names of files with splits (``folder/ptb`` for
            ``folder/ptb.train.txt.gz``); or a folder saved by Hugging Face's datasets. A file, and a folder in which no
            name has a split, or all have that of training, are cut at their end: the last part is the test split, the
            one before it the validation split. With only a training and a test split, the end of the training split is
            the validation split.
        documents: end of a document in text files.
        text_column: column of rows with the document; None: one with a usual name, text, content or document, or the
            only one.
        test_fraction: share of the characters in the test split where names have no splits, above 0 and below 1.
        valid_fraction: share in the validation split, likewise, of all or of the training files; 0: no validation
            split.

    Raises:
        ValueError: the path does not exist, a file is empty, unreadable or no UTF-8, or fractions are given although
            the files have splits.
    """
    path = data_path(data)
    found = find_split_files(path, DOCUMENT_SUFFIXES, what="text", example=".txt", may_be_alone=True)
    files = [file for part in (*found.by_split.values(), found.unsplit) for file in part]
    have_rows = [file.name.lower().endswith(ROW_SUFFIXES) for file in files]
    if all(have_rows):
        refuse_idle("", open_text, f"{path}, each row of which is a document", "pass a .txt", documents=documents)
    if not any(have_rows):
        refuse_idle("", open_text, f"{path}, which is text without columns", "pass rows", text_column=text_column)
    if len(found.by_split) > 1:
        shares = {"test_fraction": test_fraction}
        if "valid" in found.by_split:
            shares["valid_fraction"] = valid_fraction
        refuse_idle("", open_text, f"{path}, which has splits", "pass text without splits", **shares)
        parts = {split: Documents(files, documents, text_column) for split, files in found.by_split.items()}
        if "valid" in parts or valid_fraction == 0:
            return TextSplits(parts["train"], parts.get("valid"), parts.get("test"))
        if not 0 < valid_fraction < 1:
            raise ValueError(f"valid_fraction is {valid_fraction}; pass a number from 0 to below 1")
        train, valid = _cut(parts["train"], path, valid_fraction)
        return TextSplits(train, valid, parts.get("test"))
    whole = Documents(files, documents, text_column)
    if not 0 <= valid_fraction < 1 or not 0 < test_fraction < 1 or valid_fraction + test_fraction >= 1:
        raise ValueError(
            f"test_fraction is {test_fraction} and valid_fraction {valid_fraction}; pass numbers from 0 (the first "
            "above 0) that leave some text to train on"
        )
    rest, test = _cut(whole, path, test_fraction)
    if valid_fraction == 0:
        return TextSplits(rest, None, test)
    train, valid = _cut(rest, path, valid_fraction / (1 - test_fraction))
    return TextSplits(train, valid, test)


def _cut(documents: Documents, path: Path, fraction: float) -> tuple[Documents, Documents]:
    try:
        return documents.cut(fraction)
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
