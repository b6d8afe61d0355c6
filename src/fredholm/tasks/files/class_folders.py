"""Folders with one subfolder per class, perhaps within folders of splits."""

import warnings
from pathlib import Path
from typing import NamedTuple, final

from fredholm.tasks.files.terminal_text import first_few
from fredholm.tasks.splits.split_files import SPLIT_WORDS, Split, split_folders

from .data_files import files_below


@final
class ClassFiles(NamedTuple):
    """Files of several classes, in splits."""

    classes: tuple[str, ...]
    """Class names, sorted."""
    parts: dict[Split, tuple[list[Path], list[int]]]
    """Files of each split with the class number of each; without folders of splits all are in train."""


def class_folders(root: Path, suffixes: tuple[str, ...], what: str, example: str) -> ClassFiles:
    """Finds the files of every class.

    Folders of splits are ``train``, ``valid`` and ``test``, or other words of `SPLIT_WORDS`, in any case; one of the
    last two may be absent. A folder called ``train`` among others is a class. Classes are sorted by name. Files of the
    given kinds are found at any depth below a class folder; hidden files and folders are ignored, and a warning reports
    the number of other files that are skipped.

    Args:
        root: the folder.
        suffixes: suffixes of the files in lower case; upper case is accepted too.
        what: noun for the files, in messages.
        example: an example path, for messages.

    Raises:
        ValueError: there is no class folder, only one, or one without such files; a class is missing from training; or
            a split has two folders.
    """
    roots = _split_roots(root)
    found = {split: _subfolders(where) for split, where in roots.items()}
    for split, where in roots.items():
        if not found[split]:
            raise ValueError(f"{where}: no class folder; put the {what} into one subfolder a class, such as {example}")
    classes = tuple(found["train"])
    if len(classes) == 1:
        raise ValueError(f"{roots['train']}: only one class folder, {classes[0]!r}; at least two classes are needed")
    parts: dict[Split, tuple[list[Path], list[int]]]
    parts = {split: _of_split(where, found[split], classes, suffixes, what) for split, where in roots.items()}
    _warn_of_skipped(root, {file for files, _ in parts.values() for file in files}, what)
    return ClassFiles(classes, parts)


def files_of_kinds(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Returns the files of these kinds at any depth of a folder, except for hidden ones, sorted by name."""
    return sorted(path for path in files_below(folder) if path.name.lower().endswith(suffixes))


def _split_roots(root: Path) -> dict[Split, Path]:
    """Returns the parent of the class folders of each split."""
    if any(name.lower() not in SPLIT_WORDS for name in _subfolders(root)):
        return {"train": root}
    return split_folders(root) or {"train": root}


def _subfolders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _of_split(
    root: Path, names: list[str], classes: tuple[str, ...], suffixes: tuple[str, ...], what: str
) -> tuple[list[Path], list[int]]:
    files, labels = list[Path](), list[int]()
    for name in names:
        if name not in classes:
            raise ValueError(f"{root / name}: class {name!r} is not among the training classes ({', '.join(classes)})")
        found = files_of_kinds(root / name, suffixes)
        if not found:
            kinds = ", ".join(suffixes)
            raise ValueError(f"{root / name}: no {what} ({kinds}) in this class folder; add some or remove it")
        files += found
        labels += [classes.index(name)] * len(found)
    return files, labels


def _warn_of_skipped(root: Path, read: set[Path], what: str) -> None:
    skipped = [path for path in files_below(root) if path not in read]
    if skipped:
        kinds = sorted({path.suffix.lower() or path.name for path in skipped})
        endings = first_few(kinds)
        count = f"{len(skipped)} files that hold" if len(skipped) > 1 else "1 file that holds"
        warnings.warn(f"{root}: skipped {count} no {what} of a class ({endings})", stacklevel=4)
