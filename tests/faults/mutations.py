"""Intact files of every kind, damaged at random: they are read, or refused in one short line."""

import gzip
import io
import random
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.faults.contained import Case, broken_cases
from tests.faults.outcome import Outcome
from tests.faults.samples import Sample, samples

_NUMBERS = (
    "-1", "0", "1", "1e309", "-1e308", "nan", "inf", "99999999999", "400000000", "1_0", "", "1e-400",
    "0x10", "9" * 5000, "18446744073709551616", "2147483648", "-9223372036854775808", "\u0663", "1e12", "0.5", "True",
)  # fmt: skip
_PIECES = (
    b"\x1b[31m", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\n", b"\r", b"\r\n", b"\n\n\n", b",", b'"', b"\t", b":", b"|",
    b"(", b")", b"{", b"[" * 3000, b"\xe2\x80\xae", b"\xc2\x85", b"\xed\xa0\x80", b"#", b"@", b"x" * 5000, b"?", b" ",
)  # fmt: skip
_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF)
_SIDES = (0, 1, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_TYPES = (
    "int8",
    "uint8",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "bool",
    "U3",
    "S3",
    "M8[s]",
    "m8[D]",
    ">i4",
)
_TEXTS = (".csv", ".tsv", ".ts", ".txt", ".jsonl", ".json", ".off", ".obj", ".xyz", ".seg", ".ply")


def mutate_files(count: int, seed: int) -> list[Outcome]:
    """Reads `count` damaged files, equally many of each kind; returns a row for each family of kinds."""
    kinds = samples()

    def case(number: int) -> Case:
        return mutated(kinds[number % len(kinds)], random.Random(f"{seed} {number}"), f"{seed} {number}")

    broken: dict[str, list[str]] = {}
    for number, ending in broken_cases(count, case):
        kind = kinds[number % len(kinds)]
        broken.setdefault(family(kind), []).append(f"mutate_files, number {number}, {kind.name}: {ending}")
    tried = Counter(family(kinds[number % len(kinds)]) for number in range(count))
    return [
        Outcome(f"damaged {name}", tried[name], tried[name] - len(broken.get(name, ())), tuple(broken.get(name, ())))
        for name in sorted(tried)
    ]


def family(kind: Sample) -> str:
    """The row of the table for a kind."""
    ends = {Path(name.removesuffix(".gz")).suffix for name in kind.files}
    if ends & {".npz", ".npy"}:
        return "arrays, .npz and .npy"
    if ends & {".png", ".bmp", ".jpg", ".webp", ".tif"} or any("ubyte" in name for name in kind.files):
        return "images, masks and idx files"
    if ends & {".off", ".obj", ".stl", ".ply", ".xyz"}:
        return "meshes and clouds"
    return "tables, series, texts and graphs"


def mutated(kind: Sample, rng: random.Random, name: str) -> Case:
    """A case with one file of the sample damaged in one to three ways."""
    target = rng.choice([file for file in sorted(kind.files) if file.startswith(kind.changed)])
    data = kind.files[target]
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = _damaged(data, target, rng)

    def make(folder: Path) -> None:
        for file, content in kind.files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data if file == target else content)

    return Case(name, make, kind.read)


def _damaged(data: bytes, name: str, rng: random.Random) -> bytes:
    """The file with one change: to its packed content, its text, or its bytes."""
    if rng.random() < 0.65:
        try:
            if name.endswith(".npz"):
                return _members(data, rng)
            if name.endswith(".gz"):
                inner = _damaged(gzip.decompress(data), name.removesuffix(".gz"), rng)
                return gzip.compress(inner, compresslevel=rng.choice((0, 1, 9)))
        except Exception:
            pass  # an earlier change has broken the container
    if name.endswith(_TEXTS) and rng.random() < 0.7:
        return rng.choice(_OF_TEXT)(data, rng)
    return rng.choice(_OF_BYTES)(data, rng)


def _flipped(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 32)) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _with_insertion(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 64))) + data[at:]


def _block(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 8, 64, 512)))


def _twice(data: bytes, rng: random.Random) -> bytes:
    start, end = _block(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 1, 50)) + data[end:]


def _zeroed(data: bytes, rng: random.Random) -> bytes:
    start, end = _block(data, rng)
    return data[:start] + bytes(end - start) + data[end:]


def _without(data: bytes, rng: random.Random) -> bytes:
    start, end = _block(data, rng)
    return data[:start] + data[end:]


def _other_header(data: bytes, rng: random.Random) -> bytes:
    """Changes one byte, or a number of four bytes, among the first hundred."""
    found, at = bytearray(data), rng.randrange(max(1, min(len(data), 100)))
    if rng.random() < 0.5:
        found[at : at + 1] = bytes([rng.choice(_EXTREMES)])
    else:
        found[at : at + 4] = rng.choice(_SIDES).to_bytes(4, rng.choice(("little", "big")))
    return bytes(found)


def _other_number(data: bytes, rng: random.Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if not found:
        return _with_piece(data, rng)
    match = rng.choice(found)
    return data[: match.start()] + rng.choice(_NUMBERS).encode() + data[match.end() :]


def _with_piece(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_PIECES) + data[at:]


def _other_lines(data: bytes, rng: random.Random) -> bytes:
    rows = data.split(b"\n")
    at = rng.randrange(len(rows))
    change = rng.randrange(4)
    if change == 0:
        rows.pop(at)
    elif change == 1:
        rows.insert(at, rng.choice(rows))
    elif change == 2:
        rng.shuffle(rows)
    else:
        rows[at] = rows[at] * rng.choice((2, 300))
    return b"\n".join(rows)


_OF_BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flipped, _cut, _with_insertion, _twice, _zeroed, _without, _other_header,
)  # fmt: skip
_OF_TEXT: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _other_number, _other_number, _other_number, _with_piece, _other_lines,
)  # fmt: skip


def _members(data: bytes, rng: random.Random) -> bytes:
    """Repacks the archive with one array changed, renamed, left out or doubled."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    at = rng.randrange(len(members))
    name, content = members[at]
    change = rng.randrange(10)
    if change == 0:
        members[at] = (rng.choice(("x.npy", name + ".npy", "a.txt", "../y.npy", "\x1b[2J.npy", ".npy")), content)
    elif change == 1:
        members.pop(at)
    elif change == 2:
        members.append((name, rng.choice(members)[1]))
    elif change == 3:
        members[at] = (name, rng.choice(members)[1])
    elif change <= 5:
        members[at] = (name, rng.choice(_OF_BYTES)(content, rng))
    else:
        members[at] = (name, _other_array(content, rng))
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method, compresslevel=rng.choice((1, 9))) as archive:
        for member, inner in members:
            archive.writestr(member, inner)
    return written.getvalue()


def _other_array(content: bytes, rng: random.Random) -> bytes:
    """The array with another dtype, other values or another shape."""
    array = np.load(io.BytesIO(content), allow_pickle=False)
    change = rng.randrange(6)
    with np.errstate(all="ignore"):
        if change == 0:
            array = array.astype(rng.choice(_TYPES))
        elif change == 1 and array.size:
            array = array.copy()
            extreme = rng.choice((-1, 0, 1, 127, 400_000_000, 1e12, float("nan"), float("inf"), -1e300))
            kind, info = array.dtype.kind, np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
            if info is not None:
                extreme = int(np.clip(0 if extreme != extreme else extreme, info.min, info.max))
            array.flat[rng.randrange(array.size)] = str(extreme) if kind in "US" else extreme
        elif change == 2:
            array = array[..., None] if rng.random() < 0.5 else array.reshape(-1)
        elif change == 3 and array.ndim:
            array = array[: rng.randrange(len(array) + 1)]
        elif change == 4:
            array = np.array(array.flat[0]) if array.size else array
        else:
            array = np.asfortranarray(array.T)
    written = io.BytesIO()
    np.save(written, array, allow_pickle=False)
    return written.getvalue()
