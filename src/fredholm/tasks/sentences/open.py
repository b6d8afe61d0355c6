"""One entry for every source of sentences: a file, a folder, or files that share the start of their names."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from fredholm._settings import refuse_idle
from fredholm.tasks.split_files import Split, find_split_files
from fredholm.tasks.stratified_split import DEFAULT_TEST_FRACTION, DEFAULT_VALID_FRACTION, stratified_split

from .columns import Columns, choose_columns
from .sentence import Sentence, sentences_of
from .table import TABLE_SUFFIXES, Table, read_table

_Part = tuple[Sentence, ...]


@final
@dataclass(frozen=True)
class SentenceSplits:
    """The sentences of each split, all with labels, and the columns that they stand in; None where there are none."""

    train: tuple[Sentence, ...]
    valid: tuple[Sentence, ...] | None
    test: tuple[Sentence, ...] | None
    columns: Columns


def open_sentences(
    data: str | Path,
    *,
    text_column: str | None = None,
    second_column: str | None = None,
    label_column: str | None = None,
    columns: tuple[str, ...] = (),
    by_label: bool = True,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    valid_fraction: float = DEFAULT_VALID_FRACTION,
    split_seed: int = 0,
) -> SentenceSplits:
    """Open labelled sentences as training, validation and test sets.

    Args:
        data: a file (`read_table`), a folder of them, or the start of the names of files with splits
            (`find_split_files`). Where names tell no splits, all rows are one set, from which a test and a validation
            set are split off by `stratified_split`; where they tell no validation set, it is split off from the
            training set. A split depends on the sentences and the seed, not on their order.
        text_column: the sentence; None: a usual name; see `choose_columns`.
        second_column: the second sentence of a pair; None: likewise, or there are no pairs.
        label_column: the label; None: a usual name.
        columns: names of all columns of files without a header.
        by_label: whether splits are to have like shares of every label.
        test_fraction: share of the test set where one is split off.
        valid_fraction: share of the validation set, of all examples that are split; 0: there is none.
        split_seed: picks one of many such splits.

    Raises:
        ValueError: nothing of that name, what `read_table`, `choose_columns` and `sentences_of` refuse, shares out of
            range, or settings of a split that the files have.
    """
    path = Path(data).expanduser()
    found = find_split_files(path, TABLE_SUFFIXES, what="table", example=".csv", may_be_alone=True)
    tables: dict[Split, list[Table]] = {
        split: [read_table(file, columns) for file in files]
        for split, files in (found.by_split or {"train": found.unsplit}).items()
    }
    first = tables["train"][0]
    try:
        chosen = choose_columns(first.names, text=text_column, second=second_column, label=label_column)
    except ValueError as error:
        raise ValueError(f"{first.path}: {error}") from error
    parts: dict[Split, _Part] = {split: _sentences(each, chosen) for split, each in tables.items()}
    if found.by_split:
        own = f"{path}, which has its own splits"
        refuse_idle("", open_sentences, own, "pass one file", test_fraction=test_fraction)
        if "valid" in parts:
            given = {"valid_fraction": valid_fraction, "split_seed": split_seed}
            refuse_idle("", open_sentences, own, "pass files without a validation split", **given)
    try:
        share = None if found.by_split else test_fraction
        train, valid, test = _split_off(parts, by_label, share, valid_fraction, split_seed)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return SentenceSplits(train, valid, test, chosen)


def _split_off(
    parts: dict[Split, _Part], by_label: bool, test_fraction: float | None, valid_fraction: float, seed: int
) -> tuple[_Part, _Part | None, _Part | None]:
    """The three splits, where some may have to be split off from the training set: no test set without a fraction."""
    rest, test = parts["train"], parts.get("test")
    if "valid" in parts:
        return rest, parts["valid"], test
    share = 0.0 if test_fraction is None else test_fraction
    if not 0 <= valid_fraction < 1 or test_fraction == 0 or not 0 <= share < 1 or share + valid_fraction >= 1:
        first = "" if test_fraction is None else f"test_fraction is {test_fraction} and "
        above = "" if test_fraction is None else " (the first above 0)"
        raise ValueError(
            f"{first}valid_fraction {valid_fraction}; pass numbers{above} that leave some sentences to train on"
        )
    if test_fraction is not None:
        rest, test = _split(rest, by_label, test_fraction, seed)
    if valid_fraction == 0:
        return rest, None, test
    train, valid = _split(rest, by_label, valid_fraction / (1 - share), seed)
    return train, valid, test


def _sentences(tables: Sequence[Table], columns: Columns) -> _Part:
    return tuple(sentence for table in tables for sentence in sentences_of(table, columns, need_labels=True))


def _split(sentences: _Part, by_label: bool, fraction: float, seed: int) -> tuple[_Part, _Part]:
    """All but a share of them, and this share."""
    seen: Counter[tuple[str, str | None]] = Counter()
    names = []
    for sentence in sentences:
        text = (sentence.first, sentence.second)
        names.append(f"{text}, {seen[text]}")
        seen[text] += 1
    numbers = {label: i for i, label in enumerate(sorted({str(sentence.label) for sentence in sentences}))}
    labels = [numbers[str(sentence.label)] if by_label else 0 for sentence in sentences]
    parts = stratified_split(names, labels, fraction, seed)
    before, after = (tuple(sentences[i] for i in part) for part in parts)
    return before, after
