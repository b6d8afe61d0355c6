"""Memory-mapped arrays, which are read on demand."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.splits.split_files import Split, SplitFiles, find_split_files

from .cache import LARGE
from .npz_arrays import array_names, load_arrays

SHARD_BYTES = 64 << 20
"""Bytes of contiguous examples that are read at about the same time."""


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array, or the base of a view, is mapped from a file."""
    found: object = array
    while isinstance(found, np.ndarray) and not isinstance(found, np.memmap):
        found = found.base
    return isinstance(found, np.memmap)


def shards_of(count: int, row_bytes: float) -> Tensor:
    """Returns the sizes of shards, contiguous runs of rows of about `SHARD_BYTES` each, int64 `(m,)`, all similar."""
    shards = min(count, max(1, math.ceil(count * row_bytes / SHARD_BYTES)))
    ends = torch.arange(1, shards + 1) * count // shards
    return ends.diff(prepend=torch.zeros(1, dtype=torch.int64))


@final
class Rows:
    """Concatenated rows of several arrays, in memory or mapped from files.

    Args:
        arrays: arrays of equal types and shapes, except for their numbers of rows.
        files: name of each array's file.

    Raises:
        ValueError: types or shapes differ.
    """

    def __init__(self, arrays: Sequence[np.ndarray], files: Sequence[str]) -> None:
        first, self._files = arrays[0], tuple(files)
        if first.ndim == 0:
            raise ValueError(
                f"{files[0]}: an array of rows is {first.dtype} (), a single number; expected a row an example"
            )
        for array, file in zip(arrays, files, strict=True):
            if array.dtype != first.dtype or array.shape[1:] != first.shape[1:]:
                raise ValueError(_other(f"{file}: an array of rows", array, files[0], first))
        self._arrays, self._ends = tuple(arrays), np.cumsum([len(array) for array in arrays])
        self.dtype = first.dtype
        self.shape: tuple[int, ...] = (int(self._ends[-1]), *first.shape[1:])

    def __len__(self) -> int:
        """The number of rows."""
        return self.shape[0]

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Returns copies of the rows at these indices, int64 `(n,)`; they are read in the order of the files."""
        found = np.empty((len(indices), *self.shape[1:]), self.dtype)
        order = np.argsort(indices, kind="stable")
        which = np.searchsorted(self._ends, indices[order], side="right")
        for number in np.unique(which):
            own = order[which == number]
            found[own] = self._arrays[number][indices[own] - (self._ends[number] - len(self._arrays[number]))]
        return found

    @property
    def counts(self) -> list[int]:
        """Number of rows in each file."""
        return [len(array) for array in self._arrays]

    def flattened(self, ndim: int) -> "Rows":
        """Merges the first axes so that `ndim` remain, which makes the parts of each row rows of their own."""
        kept = len(self.shape) + 1 - ndim
        return Rows([array.reshape(-1, *array.shape[kept:]) for array in self._arrays], self._files)

    def place(self, index: int) -> tuple[str, int]:
        """Returns the file of a row, and its index there."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        return self._files[number], index - int(self._ends[number]) + len(self._arrays[number])

    @property
    def shards(self) -> Tensor | None:
        """Sizes of contiguous runs of rows on the disk, see `Task.train_shards`; None where all are in memory."""
        if not any(map(is_mapped, self._arrays)):
            return None
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        return torch.cat([shards_of(len(array), row_bytes) for array in self._arrays if len(array)])


def shards_of_some(shards: Tensor | None, numbers: Tensor) -> Tensor | None:
    """Returns the sizes of shards for a subset of rows.

    Args:
        shards: sizes of the shards of all rows.
        numbers: indices of the subset; where they do not increase the result is None, since neighbours lie apart.
    """
    if shards is None or bool((numbers.diff() <= 0).any()):
        return None
    counts = torch.searchsorted(shards.cumsum(0), numbers.contiguous(), right=True).bincount(minlength=len(shards))
    return counts[counts > 0]


def arrays_of_files(
    files: Sequence[Path], *, rows: Sequence[str], shared: Sequence[str]
) -> tuple[list[Rows], dict[str, np.ndarray]]:
    """Returns the concatenated arrays of several .npz files, mapped where they are large in total.

    Args:
        files: at least one file.
        rows: names of the large arrays.
        shared: names of arrays that are equal in all files; others have one row per example.

    Returns:
        rows of each large array, and all other arrays.

    Raises:
        ValueError: a file cannot be read, lacks an array, or does not match the first file.
    """
    map_from = 0 if sum(file.stat().st_size for file in files) >= LARGE else math.inf
    every = [load_arrays(file, map_from=map_from) for file in files]
    for file, arrays in zip(files, every, strict=True):
        if arrays.keys() != every[0].keys() or any(name not in arrays or arrays[name].ndim == 0 for name in rows):
            raise ValueError(
                f"{file}: has the arrays {', '.join(arrays) or 'none'}; expected {' and '.join(map(repr, rows))}, and "
                f"in all files the same as {files[0].name} has: {', '.join(every[0])}"
            )
        for name in shared:
            if name in arrays and not np.array_equal(arrays[name], every[0][name]):
                raise ValueError(f"{file}: {name} are others than in {files[0].name}; give all files the same")
    others = {
        name: every[0][name] if name in shared else _joined(name, files, every) for name in every[0] if name not in rows
    }
    return [Rows([arrays[name] for arrays in every], [file.name for file in files]) for name in rows], others


def arrays_of_folder(
    folder: Path, *, what: str, rows: Sequence[str], shared: Sequence[str]
) -> tuple[list[Rows], dict[str, np.ndarray], Tensor | None]:
    """Returns the arrays of all .npz files in a folder, as `arrays_of_files`, and the splits by the names of the files.

    Args:
        folder: the folder.
        what: noun for the files, in messages; see `find_split_files`.
        rows, shared: see `arrays_of_files`.

    Returns:
        rows of each large array, all other arrays, and the split of each row by its number in `SPLITS`, int64; None
        where the names of the files have no splits.

    Raises:
        ValueError: as of `find_split_files` and `arrays_of_files`, or files have an array `split` although their names
            have splits.
    """
    found = _npz_files(folder, what)
    large, others = arrays_of_files(found.every, rows=rows, shared=shared)
    split = found.split_of_rows(large[0].counts)
    if split is not None and "split" in others:
        raise ValueError(f"{folder}: has an array 'split', but names of files say the splits; leave one out")
    return large, others, split


def arrays_of_each_split(
    folder: Path, *, what: str, rows: Sequence[str], shared: Sequence[str], may_lack: bool = False
) -> Iterator[tuple[Split | None, dict[str, Rows], dict[str, np.ndarray]]]:
    """Yields the arrays of each split by the names of the files; of all files (None) where names have no splits.

    Args:
        folder, what, rows, shared: see `arrays_of_folder`.
        may_lack: take only those of `rows` that the first file of a split has.

    Yields:
        the split, the rows of each large array by name, and all other arrays.

    Raises:
        ValueError: as of `find_split_files` and `arrays_of_files`.
    """
    found = _npz_files(folder, what)
    for split, files in found.parts.items():
        names = [name for name in rows if name in array_names(files[0])] if may_lack else rows
        large, others = arrays_of_files(files, rows=names, shared=shared)
        yield split if found.by_split else None, dict(zip(names, large, strict=True)), others


def _npz_files(folder: Path, what: str) -> SplitFiles:
    return find_split_files(folder, (".npz",), what=what, example=".npz", may_be_alone=True)


def _joined(name: str, files: Sequence[Path], every: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Concatenates an array of all files."""
    first = every[0][name]
    for file, arrays in zip(files, every, strict=True):
        own = arrays[name]
        if own.dtype.kind != first.dtype.kind or own.ndim == 0 or own.shape[1:] != first.shape[1:]:
            raise ValueError(_other(f"{file}: {name}", own, files[0].name, first))
    return np.concatenate([arrays[name] for arrays in every])


def _other(what: str, own: np.ndarray, first: str, of_first: np.ndarray) -> str:
    return (
        f"{what} is {own.dtype} {own.shape}, and in {first} {of_first.dtype} {of_first.shape}; give all the same type "
        "and shape but for the number of rows"
    )
