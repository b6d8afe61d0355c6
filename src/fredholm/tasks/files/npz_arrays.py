"""Reading of .npz and .npy files from users.

Header, type, shape and size of each array are checked before its memory is allocated. Nothing is unpickled.
"""

import contextlib
import io
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.terminal_text import first_few
from fredholm.tasks.splits.split_files import SPLIT_WORDS, SPLITS, Split

from .array_names import hint, no_array, short
from .data_files import open_file, size_of_file
from .limits import ROW_BYTES, check_expansion

ARRAY_SUFFIXES = (".npz", ".npy")
_NPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"
_MAGIC = len(_NPY) + 2  # with the version
_LONGEST_HEADER = 10_000
_MOST_AXES = 8
_CHUNK = 1 << 20
_KINDS = "biufcUSMm"
_NUMBERS = "biuf"
_LENGTHS = 26
"""Bytes of a local file header in a zip archive before the lengths of the name and of the extra field."""
_ENCRYPTED = 1
_LAST_LETTER = 0x10FFFF
_INSTEAD, _ANEW = "pass one without objects", "write it again with numpy.savez"
_UNPACKED = "save it with numpy.savez, not compressed"


def load_arrays(path: Path, *, alone: str | None = None, map_from: float = math.inf) -> dict[str, np.ndarray]:
    """Reads all arrays of an .npz file; object arrays are refused.

    Args:
        path: path of the file.
        alone: name for the array of an .npy file; None: such files are refused.
        map_from: uncompressed arrays of numbers with at least so many bytes are mapped, read-only, instead of read.
            Their checksums are compared all the same.

    Raises:
        ValueError: it cannot be read as an .npz file.
    """
    if alone is not None and path.suffix.lower() == ".npy":
        return {alone: _single(path, map_from)}
    arrays: dict[str, np.ndarray] = {}
    with _opened(path) as (archive, members, given):
        for name, member in members.items():
            is_stored = member.compress_type == zipfile.ZIP_STORED
            with archive.open(member) as file:
                try:
                    header = _Header.of(file, member.file_size, given)
                    if is_stored and header.num_bytes >= map_from and header.dtype.kind in _NUMBERS:
                        _check_rest(file, header)
                        arrays[name] = _mapped(archive, member, header)
                    else:
                        arrays[name] = _array(file, header, "" if is_stored else f"; {_UNPACKED}")
                except ValueError as error:
                    raise ValueError(f"the array {short(name)}: {error}") from error
    return arrays


def array_names(path: Path) -> tuple[str, ...]:
    """Returns the names of the arrays without reading them; errors as for `load_arrays`."""
    with _opened(path) as (_, members, _):
        return tuple(members)


def needed_array(
    arrays: Mapping[str, np.ndarray], name: str, kinds: Literal["biuf", "iu", "U"], *shape: int | None
) -> np.ndarray:
    """Returns the array of that name.

    Args:
        arrays: arrays of the file.
        name: name of the array.
        kinds: numbers, integers or texts, by NumPy's letters.
        shape: length of each axis; None: any.

    Raises:
        ValueError: it is missing, or of another type or shape.
    """
    if name not in arrays:
        raise no_array(name, arrays, (name,))
    found = arrays[name]
    fits = found.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, found.shape, strict=True))
    if not fits or found.dtype.kind not in kinds:
        what = {"biuf": "numbers", "iu": "integers", "U": "texts"}[kinds]
        wanted = ", ".join("any" if side is None else str(side) for side in shape)
        raise ValueError(f"{name} is {found.dtype} {found.shape}; expected {what} ({wanted})")
    return found


def refuse_unread(
    arrays: Iterable[str],
    known: Sequence[str],
    *,
    of_splits: Sequence[str] = (),
    form: str = "{name}_{word}",
    besides: Sequence[str] = (),
) -> None:
    """Raises a ValueError where a file has an array of another name, since its author expects it to be read.

    Args:
        arrays: names of the arrays.
        known: allowed names, the most likely first.
        of_splits: names that are allowed once per split.
        form: form of these names, with a word of `SPLIT_WORDS`; "": there are none.
        besides: names allowed in other files, for hints.
    """
    arrays = tuple(arrays)
    named = {form.format(name=name, word=word) for name in of_splits for word in SPLIT_WORDS}
    unread = [name for name in arrays if name not in known and name not in named]
    if unread:
        names = first_few([*map(short, unread)])
        meant = hint(unread, (*of_splits, *known, *besides), arrays, form)
        do = f"{meant}; rename them" if meant else "rename what was meant"
        rest = [name for name in known if name not in of_splits]
        parts = [", ".join(rest)]
        if of_splits:
            affixes = ", ".join(form.format(name="", word=split) for split in SPLITS)
            alone = ", ".join(form.format(name=of_splits[0], word=split) for split in SPLITS)
            parts.append(alone if len(of_splits) == 1 else f"{', '.join(of_splits)} with {affixes}")
        if len(of_splits) > len(rest):  # the longer list comes first
            parts.reverse()
        words = ", and ".join(filter(None, parts))
        raise ValueError(f"has {names}, which nothing reads; {do}, or leave them out; known are {words}")


def split_words(has: Callable[[str], bool]) -> dict[Split, str]:
    """Returns the word that each split is named by in a file, such as val.

    Args:
        has: whether there are arrays with a word of `SPLIT_WORDS`.

    Raises:
        ValueError: two words mean the same split.
    """
    found: dict[Split, str] = {}
    for word, split in SPLIT_WORDS.items():
        if has(word):
            if split in found:
                raise ValueError(f"has arrays of {found[split]} and of {word}, which are one split; keep one")
            found[split] = word
    return {split: found[split] for split in SPLITS if split in found}


def arrays_of_splits(
    arrays: Mapping[str, np.ndarray], known: Sequence[str], *, whole: Sequence[str]
) -> dict[Split, dict[str, np.ndarray]]:
    """Returns the arrays of each split, without the prefix word and _ of their names, and the shared ones.

    Empty where no name begins with train_. Errors as for `split_words`.

    Args:
        arrays: arrays of the file.
        known: allowed names, per split or shared.
        whole: further names, allowed in a file without such splits.

    Raises:
        ValueError: a name is not allowed, or an array is both shared and per split.
    """
    if not any(name.startswith("train_") for name in arrays):
        refuse_unread(arrays, (*known, *whole), form="{word}_{name}")
        return {}
    refuse_unread(arrays, known, of_splits=known, form="{word}_{name}", besides=whole)
    words = split_words(lambda word: any(name.startswith(f"{word}_") for name in arrays))
    starts = tuple(f"{word}_" for word in words.values())
    shared = {name: array for name, array in arrays.items() if not name.startswith(starts)}
    if idle := [name for name in shared if all(f"{start}{name}" in arrays for start in starts)]:
        raise ValueError(f"has {idle[0]} beside {starts[0]}{idle[0]}; keep one of these")
    return {
        split: shared
        | {name.removeprefix(f"{word}_"): own for name, own in arrays.items() if name.startswith(f"{word}_")}
        for split, word in words.items()
    }


def split_of_rows(arrays: Mapping[str, np.ndarray], count: int, *, is_test: Sequence[str] = ()) -> Tensor | None:
    """Returns the array `split` as indices into `SPLITS`, int64 `(count,)`, -1 for rows in none; None without a split.

    The entries are words of `SPLIT_WORDS`, or "" for rows in no split; or the numbers 0 train, 1 valid, 2 test.

    Args:
        arrays: arrays of the file.
        count: number of rows.
        is_test: synonyms of `split` for boolean arrays, which are True in the test split and False in training.

    Raises:
        ValueError: it is no valid split.
    """
    if (named := next((name for name in is_test if name in arrays), None)) is not None:
        if arrays[named].dtype.kind != "b" or arrays[named].shape != (count,):
            raise ValueError(f"{named} is {arrays[named].dtype} {arrays[named].shape}; expected bool ({count},)")
        return SPLITS.index("test") * torch.from_numpy(arrays[named]).long()
    if "split" not in arrays:
        return None
    split = arrays["split"]
    if split.shape != (count,) or split.dtype.kind not in "iuU":
        raise ValueError(f"split is {split.dtype} {split.shape}; expected words or integers ({count},), one a row")
    if split.dtype.kind != "U":
        for i in np.flatnonzero((split < 0) | (split > 2))[:1].tolist():
            raise ValueError(f"split[{i}] is {split[i]}; expected 0 (train), 1 (valid) or 2 (test)")
        return torch.from_numpy(split.astype(np.int64))
    numbers = {"": -1} | {word: SPLITS.index(each) for word, each in SPLIT_WORDS.items()}
    for i, word in enumerate(split.tolist()):
        if word.lower() not in numbers:
            raise ValueError(f"split[{i}] is {word!r}; expected train, valid or test, or '' where a row is in none")
    return torch.tensor([numbers[word.lower()] for word in split.tolist()], dtype=torch.int64)


def _single(path: Path, map_from: float) -> np.ndarray:
    try:
        with open_file(path) as file:
            if file.read(len(_ZIP)) == _ZIP:
                raise _OtherKindError("is an .npz file by its content; rename it")
            file.seek(0)
            header = _Header.of(file, size_of_file(file), size_of_file(file))
            if header.num_bytes < map_from or header.dtype.kind not in _NUMBERS:
                return _array(file, header)
            return np.memmap(file, header.dtype, "r", file.tell(), header.shape, header.order).view(np.ndarray)
    except _OtherKindError as error:
        raise ValueError(f"{path}: {error}") from error
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: cannot be read as an .npy file ({_reason(error)}); {_instead(error)}") from error


@final
class _OtherKindError(Exception):
    """The file is intact, but of another kind than its suffix says."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo], int]]:
    """Opens an .npz file; yields the archive, the member of each array, and the size of the file in bytes.

    Raises:
        ValueError: it is no archive; a member is no array, is encrypted or compressed in another way than NumPy's; two
            members have one name; together they decompress to too much; or the data read meanwhile are damaged.
    """
    try:
        with open_file(path) as file:
            if file.read(len(_NPY)) == _NPY:
                raise _OtherKindError("is an .npy file by its content; rename it")
            with zipfile.ZipFile(file) as archive:
                members = _members(archive)
                total = sum(member.file_size for member in members.values())
                given = size_of_file(file)
                check_expansion("unpacked it", total, given, _UNPACKED)
                yield archive, members, given
    except _OtherKindError as error:
        raise ValueError(f"{path}: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # a broken archive makes zipfile raise almost anything
        raise ValueError(f"{path}: cannot be read as an .npz file ({_reason(error)}); {_instead(error)}") from error


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise ValueError(f"it holds {short(name)}, which is no array")
        if name in found:
            raise ValueError(f"it holds two arrays {short(name)}")
        if member.flag_bits & _ENCRYPTED:
            raise ValueError(f"the array {short(name)} is encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"the array {short(name)} is packed by method {member.compress_type}; expected deflate")
        found[name] = member
    return found


@final
class _Header(NamedTuple):
    """The header of an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    size: int
    """Bytes of the header itself."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, file: IO[bytes], size: int, given: int) -> Self:
        """Reads the header of the array in a stream of `size` bytes, from a file of `given` bytes.

        Raises:
            ValueError: it is damaged, its array has objects, does not fill the stream exactly, or has more rows or
                columns than the limit for such a file.
        """
        start = file.read(_MAGIC + 4)
        is_long = start[len(_NPY) : _MAGIC] == b"\2\0"
        if start[: len(_NPY)] != _NPY or not (is_long or start[len(_NPY) : _MAGIC] == b"\1\0"):
            raise ValueError(f"it begins with {start[:_MAGIC].hex(' ')}, which is no .npy header of version 1 or 2")
        length = int.from_bytes(start[_MAGIC : _MAGIC + (4 if is_long else 2)], "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"its .npy header has {length} bytes; the limit is {_LONGEST_HEADER}")
        parse = np.lib.format.read_array_header_2_0 if is_long else np.lib.format.read_array_header_1_0
        header = start[_MAGIC:] + file.read(length - (0 if is_long else 2))
        try:
            shape, is_fortran, dtype = parse(io.BytesIO(header))
        except Exception as error:  # a broken header makes Python's parser raise almost anything
            raise ValueError("its .npy header does not parse") from error
        if dtype.kind not in _KINDS or dtype.names is not None or dtype.subdtype is not None:
            raise ValueError(f"it holds {'objects' if dtype.hasobject else str(dtype)[:40]}, no numbers or texts")
        found = cls(dtype, shape, "F" if is_fortran else "C", _MAGIC + len(header))
        filled = size - found.size
        if any(side < 0 for side in shape) or found.num_bytes != filled or len(shape) > _MOST_AXES:
            raise ValueError(f"its header promises {dtype} {str(shape)[:80]}; {max(filled, 0):,} bytes follow")
        check_expansion(f"names for {str(shape)[:80]}", ROW_BYTES * max(shape, default=0), given, _UNPACKED)
        return found


def _array(file: IO[bytes], header: _Header, instead: str = "") -> np.ndarray:
    """Reads the array after a header.

    Raises:
        ValueError: it does not end with the stream, does not fit into memory, or has invalid texts.
    """
    try:
        found = np.empty(math.prod(header.shape), header.dtype)
    except MemoryError as error:
        raise ValueError(f"it takes {header.num_bytes:,} bytes, which do not fit into memory{instead}") from error
    place = memoryview(found.view(np.uint8).data) if header.num_bytes else memoryview(b"")
    done = 0
    while done < len(place):
        part = file.read(min(_CHUNK, len(place) - done))
        if not part:
            raise ValueError(f"it ends after {done:,} of {len(place):,} bytes")
        place[done : done + len(part)] = part
        done += len(part)
    _check_end(file)
    if header.dtype.kind == "U" and len(place):
        codes = found.view(np.dtype(np.uint32).newbyteorder(header.dtype.byteorder))
        if int(codes.max()) > _LAST_LETTER:
            raise ValueError(f"its texts have the number {codes.max()}, which is no letter")
    return found.reshape(header.shape, order=header.order)


def _check_rest(file: IO[bytes], header: _Header) -> None:
    """Reads an array without keeping it, and compares its checksum."""
    done = 0
    while part := file.read(min(_CHUNK, header.num_bytes - done)):
        done += len(part)
    if done < header.num_bytes:
        raise ValueError(f"it ends after {done:,} of {header.num_bytes:,} bytes")
    _check_end(file)


def _check_end(file: IO[bytes]) -> None:
    if file.read(1):  # which also has zipfile compare the checksum
        raise ValueError("it goes on after its array")


def _mapped(archive: zipfile.ZipFile, member: zipfile.ZipInfo, header: _Header) -> np.ndarray:
    """Maps an uncompressed array in an archive."""
    file = archive.fp
    assert file is not None
    file.seek(member.header_offset + _LENGTHS)
    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    start = member.header_offset + _LENGTHS + 4 + name + extra + header.size
    return np.memmap(file, header.dtype, "r", start, header.shape, header.order).view(np.ndarray)


def _instead(error: Exception) -> str:
    return _INSTEAD if "objects" in str(error) else _ANEW


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
