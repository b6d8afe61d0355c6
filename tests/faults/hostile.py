"""Crafted files that promise or hide large sizes: each is refused in one short line, or read within limited memory."""

import gzip
import io
import json
import os
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fredholm.tasks.fields.open import open_fields, open_functions, read_fields, read_places
from fredholm.tasks.forecasts import open_long
from fredholm.tasks.graphs.open import open_graphs
from fredholm.tasks.images import read_image_arrays, read_images
from fredholm.tasks.images.idx import read_idx
from fredholm.tasks.inputs import Kinds
from fredholm.tasks.masks.read import read_mask
from fredholm.tasks.points.open import open_points, read_points
from fredholm.tasks.sentences.open import open_sentences
from fredholm.tasks.series import open_series
from fredholm.tasks.series.open import read_series
from fredholm.tasks.text import MarkedTokenizer, open_text, read_text
from tests.faults.contained import Case, broken_cases
from tests.faults.outcome import Outcome
from tests.faults.samples import all_images, all_masks, all_pairs, idx, lines, npy, npz, on, picture

Reader = Callable[[Path], object]
Maker = Callable[[], bytes]


def hostile_files(count: int, seed: int) -> list[Outcome]:
    """Reads the first `count` crafted sources; they are not random, so that `seed` changes nothing."""
    cases = hostile_cases()[:count] if count < 150 else hostile_cases()
    broken = tuple(
        f"hostile_files, {cases[number].name}: {ending}"
        for number, ending in broken_cases(len(cases), cases.__getitem__)
    )
    return [Outcome("crafted hostile files", len(cases), len(cases) - len(broken), broken)]


def hostile_cases() -> list[Case]:
    """All cases, each with its own name."""
    return [
        *_bombs(),
        *_of_npz(),
        *_images(),
        *_tables(),
        *_of_series(),
        *_of_graphs(),
        *_of_clouds(),
        *_of_texts(),
        *_of_the_disk(),
    ]


def _file(name: str, file: str, data: bytes | Maker, read: Reader, *, is_read: bool = False) -> Case:
    """One file; `is_read`: it may be read, since it is only unusual."""

    def make(folder: Path) -> None:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data())

    return Case(name, make, on(file, read), must_fail=not is_read)


def _header(descr: str, shape: str, *, version: bytes = b"\1\0", order: str = "False") -> bytes:
    """The header of an .npy file with any content."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode("latin-1", "replace") + b"\n"
    size = len(text).to_bytes(2 if version == b"\1\0" else 4, "little")
    return b"\x93NUMPY" + version + size + text


def _zip(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return written.getvalue()


def _zeros(count: int) -> bytes:
    """A gzip file of `count` zero bytes."""
    return _gzip_of(bytes(1 << 20), count >> 20)


def _gzip_of(piece: bytes, times: int, start: bytes = b"") -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    found = [packer.compress(start), *(packer.compress(piece) for _ in range(times)), packer.flush()]
    return b"".join(found)


def _npz_of_zeros(descr: str, shape: tuple[int, ...], name: str = "x", **others: Any) -> bytes:
    """An .npz whose array of zeros is written piece by piece."""
    written = io.BytesIO()
    size = int(np.prod(shape, dtype=object)) * np.dtype(descr).itemsize
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            member.write(_header(repr(descr), str(shape)))
            while size > 0:
                member.write(bytes(min(size, 1 << 22)))
                size -= 1 << 22
        for other, array in others.items():
            archive.writestr(f"{other}.npy", npy(np.asarray(array)))
    return written.getvalue()


def _bombs() -> list[Case]:
    huge = 1 << 27
    return [
        _file("bomb.csv.gz", "a.csv.gz", lambda: _gzip_of(b"1,1\n" * 4096, 4_000, b"time,v\n"), open_series),
        _file("bomb.txt.gz", "a.txt.gz", lambda: _zeros(huge), open_text),
        _file("bomb.jsonl.gz", "a.jsonl.gz", lambda: _gzip_of(b'{"text":"a"}\n' * 4096, 1_500), open_sentences),
        _file(
            "bomb.ts.gz",
            "a.ts.gz",
            lambda: _gzip_of(b"1,2:a\n" * 4096, 4_000, b"@classLabel true a\n@data\n"),
            open_series,
        ),
        _file("bomb.tsv.gz", "a.tsv.gz", lambda: _gzip_of(b"1\t2\n" * 4096, 4_000), open_series),
        _file("small bomb.tsv.gz", "a.tsv.gz", lambda: _gzip_of(b"1\t2\n" * 4096, 120), open_series, is_read=True),
        _file("bomb in a bomb.txt.gz", "a.txt.gz", lambda: gzip.compress(_zeros(huge)), open_text),
        _file(
            "bomb.idx.gz",
            "a.gz",
            lambda: _gzip_of(bytes(1 << 20), 192, b"\0\0\x08\3" + struct.pack(">3I", 192, 1024, 1024)),
            lambda p: read_idx(p, 3),
        ),
        _file(
            "promise.idx.gz", "a.gz", gzip.compress(b"\0\0\x08\3" + b"\xff" * 12 + bytes(99)), lambda p: read_idx(p, 3)
        ),
        _file("promise.idx", "a-ubyte", b"\0\0\x08\3" + b"\xff" * 12 + bytes(99), lambda p: read_idx(p, 3)),
        _file("idx of 255 axes", "a-ubyte", b"\0\0\x08\xff" + b"\1" * 99, lambda p: read_idx(p, 3)),
        _file(
            "bomb.npz",
            "a.npz",
            lambda: _npz_of_zeros("|u1", (192, 1024, 1024), y=np.zeros(192, np.int64)),
            all_images,
        ),
        _file("row bomb.npz", "a.npz", lambda: _npz_of_zeros("|u1", (60_000_000, 1, 1), y=[0]), all_images),
        _file(
            "column bomb.npz",
            "a.npz",
            lambda: _npz_of_zeros("|u1", (1, 60_000_000), "features", edges=[[0, 0]]),
            open_graphs,
        ),
        _file("series bomb.npz", "a.npz", lambda: _npz_of_zeros("|i1", (9_000_000, 9), "values"), read_series),
        _file("field bomb.npz", "a.npz", lambda: _npz_of_zeros("|b1", (2, 1 << 26), "values"), read_fields),
        _file("cloud bomb.npz", "a.npz", lambda: _npz_of_zeros("<f8", (1 << 23, 3)), open_points),
        _file(
            "large but allowed.npz",
            "a.npz",
            lambda: _npz_of_zeros("|i1", (9, 1000, 10_000), "values"),
            read_series,
            is_read=True,
        ),
        _file("overlapping members.npz", "a.npz", lambda: _overlapping(2000), all_images),
        _file("bomb classes.txt", "masks/classes.txt.gz", lambda: _zeros(huge), read_text),
    ]


def _overlapping(count: int) -> bytes:
    """An archive whose directory lists one packed member many times."""
    data = _zip({"x.npy": _header("'|u1'", "(8388608,)") + bytes(8 << 20)})
    start = data.rindex(b"PK\1\2")
    end = data.rindex(b"PK\5\6")
    entry = data[start:end]
    entries = b"".join(
        entry.replace(b"x.npy", b"%05d.npy" % i).replace(struct.pack("<H", 5), struct.pack("<H", 9), 1)
        for i in range(count)
    )
    tail = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(entries), start, 0)
    return data[:start] + entries + tail


def _of_npz() -> list[Case]:
    x, y = npy(np.zeros((4, 2, 2), np.uint8)), npy(np.array([0, 1, 0, 1]))
    headers = {
        "negative side": _header("'|u1'", "(-1, 2, 2)"),
        "huge sides": _header("'<f8'", "(99999999999, 99999999999)"),
        "overflowing sides": _header("'<f8'", "(4294967296, 4294967296)"),
        "thousand axes": _header("'|u1'", f"({'1, ' * 1000})"),
        "float side": _header("'|u1'", "(2.0,)"),
        "text side": _header("'|u1'", "('2',)"),
        "no tuple": _header("'|u1'", "3"),
        "objects": _header("'|O'", "(1,)") + b"\x80\x04cos\nsystem\n",
        "objects in a structure": _header("[('a', '|O')]", "(1,)"),
        "structure": _header("[('a', '<i4'), ('b', '<f8')]", "(1,)") + bytes(12),
        "sub-array": _header("('<i4', (1000000000,))", "(1,)"),
        "void": _header("'|V1000000000'", "(1,)"),
        "wide text": _header("'<U1000000000'", "(1,)"),
        "unknown type": _header("'<q17'", "(1,)"),
        "control characters": _header("'\\x1b[2J\\x07'", "(1,)"),
        "code": _header("__import__('os').system('true')", "(1,)"),
        "nested": _header("(" * 3000 + ")" * 3000, "(1,)"),
        "many signs": _header("'|u1'", "-" * 9000 + "1"),
        "unclosed": b"\x93NUMPY\1\0" + struct.pack("<H", 20) + b"{'descr': '<f8', 'sh",
        "long header": b"\x93NUMPY\2\0" + struct.pack("<I", 0xFFFFFFF0) + b"{",
        "version 9": b"\x93NUMPY\x09\0" + bytes(99),
        "version 3": _header("'|u1'", "(1,)", version=b"\3\0") + b"\1",
        "no key": b"\x93NUMPY\1\0" + struct.pack("<H", 18) + b"{'descr': '|u1'}  ",
        "python 2": _header("'|u1'", "(2L, 99L)"),
        "order": _header("'|u1'", "(1,)", order="'yes'") + b"\1",
        "empty": b"",
        "magic alone": b"\x93NUMPY",
        "more than promised": npy(np.zeros(3)) + b"more",
        "less than promised": npy(np.zeros(30))[:-9],
        "no letters": _header("'<U1'", "(1,)") + b"\xff\xff\xff\x7f",
    }
    found = [
        _file(f"npz: {name}", "a.npz", _zip({"x.npy": data, "y.npy": y}), all_images) for name, data in headers.items()
    ]
    found += [
        _file(f"npy: {name}", "a.npy", data, lambda p: read_image_arrays(p, 1, (8, 8)))
        for name, data in headers.items()
    ]
    encrypted = bytearray(_zip({"x.npy": x, "y.npy": y}))
    for sign, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        encrypted[encrypted.index(sign) + offset] |= 1
    flipped = bytearray(_zip({"x.npy": x, "y.npy": y}, zipfile.ZIP_STORED))
    flipped[flipped.index(x) + len(x) - 1] ^= 1
    archives: dict[str, bytes] = {
        "encrypted": bytes(encrypted),
        "bzip2": _zip({"x.npy": x, "y.npy": y}, zipfile.ZIP_BZIP2),
        "lzma": _zip({"x.npy": x, "y.npy": y}, zipfile.ZIP_LZMA),
        "checksum": bytes(flipped),
        "a member that is no array": _zip({"x.npy": x, "y.npy": y, "readme.txt": b"hello"}),
        "a pickle": _zip({"x.pkl": b"\x80\x04cos\nsystem\n.", "y.npy": y}),
        "names up the tree": _zip({"../../x.npy": x, "/etc/y.npy": y}),
        "names with escapes": _zip({"\x1b[2Jx.npy": x, "\x07y.npy": y}),
        "long names": _zip({"x" * 60_000 + ".npy": x}),
        "many members": _zip({f"{i}.npy": x for i in range(3000)}),
        "no member": _zip({}),
        "an .npy by its content": npy(np.zeros(3)),
        "a folder in it": _zip({"x.npy/": b"", "y.npy": y}),
        "an image": picture(np.zeros((4, 4), np.uint8)),
        "a gzip": gzip.compress(x),
        "no bytes": b"",
        "labels of 4e8": npz(x=np.zeros((2, 2, 2), np.uint8), y=np.array([0, 400_000_000])),
        "labels below 0": npz(x=np.zeros((2, 2, 2), np.uint8), y=np.array([0, -9])),
        "labels beyond int64": npz(x=np.zeros((2, 2, 2), np.uint8), y=np.array([0, 2**64 - 1], np.uint64)),
        "class names with escapes": npz(
            x=np.zeros((2, 2, 2), np.uint8), y=np.array(["a\x1b[2J" * 99, "b"]), classes=np.array(["c"])
        ),
        "images of 0 pixels": npz(x=np.zeros((2, 0, 3), np.uint8), y=np.array([0, 1])),
    }
    found += [_file(f"npz: {name}", "a.npz", data, all_images) for name, data in archives.items()]
    doubled = _zip({"x.npy": x, "z.npy": y}).replace(b"z.npy", b"x.npy")
    found += [
        _file("npz: one name twice", "a.npz", doubled, all_images),
        _file("npz: in .npy", "a.npy", npz(x=np.zeros(3)), lambda p: read_image_arrays(p, 1, (8, 8))),
        _file("complex Darcy", "neuralop_pde.npz", _darcy(np.complex64), open_functions),
        _file("Darcy of texts", "neuralop_pde.npz", _darcy(np.str_), open_functions),
        _file("complex fields", "a.npz", npz(values=np.zeros((3, 4), complex)), open_fields),
        _file("complex places", "a.npz", npz(pos=np.zeros((3, 2), complex)), lambda p: read_places(p, ("x", "y"))),
        _file("series without steps", "a.npz", npz(values=np.zeros((3, 0, 2))), read_series),
        _file(
            "series of times beyond float",
            "a.npz",
            npz(values=np.zeros((1, 2)), times=np.array([[1e308, np.inf]])),
            read_series,
        ),
        _file("one long series of many", "a.npz", _long_series, read_series),
        _file("one long function of many", "a.npz", _long_function, read_fields),
    ]
    return found


def _darcy(kind: type) -> bytes:
    arrays = {
        f"darcy_{split}_16_{name}": np.ones((2, 16, 16)).astype(kind) for split in ("train", "test") for name in "xy"
    }
    return npz(**arrays)


def _long_series() -> bytes:
    lengths = np.array([1] * 16_000 + [200_000])
    return npz(values=np.zeros(int(lengths.sum()), np.int8), offsets=np.concatenate([[0], np.cumsum(lengths)]))


def _long_function() -> bytes:
    lengths = np.array([1] * 16_000 + [200_000])
    pos = np.zeros((int(lengths.sum()), 1), np.int8)
    return npz(values=pos[:, 0], pos=pos, offsets=np.concatenate([[0], np.cumsum(lengths)]))


def _png(width: int, height: int, *chunks: tuple[bytes, bytes], rows: int | None = None, depth: int = 8) -> bytes:
    """A grey PNG of zeros, with the given number of rows."""
    row = bytes(1 + (width * depth + 7) // 8)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(height if rows is None else rows)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    found = b"\x89PNG\r\n\x1a\n"
    for kind, content in ((b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")):
        found += struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    return found


def _images() -> list[Case]:
    def read(path: Path) -> object:
        return read_images([path], 3, (32, 32))

    bmp = bytearray(picture(np.zeros((4, 4, 3), np.uint8), "bmp"))
    bmp[18:26] = struct.pack("<ii", 100_000, 100_000)
    tiff = struct.pack("<2sHIH", b"II", 42, 8, 3) + b"".join(
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in ((256, 200_000), (257, 200_000), (273, 8))
    )
    gif = b"GIF89a" + bytes(20)
    bomb = zlib.compress(bytes(100 << 20), 9)
    return [
        _file("png of 170 megapixels", "a.png", lambda: _png(17_000, 10_000, rows=9), read),
        _file("png of 170 megapixels, whole", "a.png", lambda: _png(17_000, 10_000), read),
        _file("png of 400 megapixels", "a.png", lambda: _png(20_000, 20_000, rows=9), read),
        _file("png of 2^31 pixels a side", "a.png", lambda: _png(2**31 - 1, 2**31 - 1, rows=0, depth=1), read),
        _file("png of 60,000 x 1", "a.png", lambda: _png(60_000, 1), lambda p: read_images([p], 3, (224, 224))),
        _file("png of 1 x 60,000", "a.png", lambda: _png(1, 60_000), lambda p: read_images([p], 3, (224, 224))),
        _file("png of 88 megapixels", "a.png", lambda: _png(11_000, 8_000), read, is_read=True),
        _file("mask of 88 megapixels", "a.png", lambda: _png(11_000, 8_000), read_mask, is_read=True),
        _file("mask of 170 megapixels", "a.png", lambda: _png(17_000, 10_000, rows=9), read_mask),
        _file("png of no pixels", "a.png", lambda: _png(0, 0), read),
        _file("png with a bomb of text", "a.png", lambda: _png(4, 4, (b"zTXt", b"a\0\0" + bomb)), read, is_read=True),
        _file(
            "png with a bomb of colours", "a.png", lambda: _png(4, 4, (b"iCCP", b"a\0\0" + bomb)), read, is_read=True
        ),
        _file("png of a huge chunk", "a.png", b"\x89PNG\r\n\x1a\n\xff\xff\xff\xf0IHDR" + bytes(40), read),
        _file("bmp of 10 gigapixels", "a.bmp", bytes(bmp), read),
        _file("tiff of 40 gigapixels", "a.tif", tiff + bytes(99), read),
        _file("gif called png", "a.png", gif, read),
        _file("text called jpg", "a.jpg", b"hello\x1b[2J", read),
        _file("svg called png", "a.png", b"<svg><image href='/etc/passwd'/></svg>", read),
        _file("empty image", "a.webp", b"", read),
        _tree("image folder with a bomb", {"a/1.png": _png(9, 9), "b/1.png": _png(17_000, 10_000, rows=9)}, all_images),
        _tree(
            "labels.csv up the tree",
            {"labels.csv": lines("file,label", "../../../etc/passwd,a", "/etc/passwd,b")},
            all_images,
        ),
        _tree("labels.csv with NUL", {"labels.csv": b"file,label\na\0b.png,x\n"}, all_images),
        _tree("labels.csv with a long name", {"labels.csv": lines("file,label", "x" * 5000 + ".png,x")}, all_images),
        _tree(
            "many class names",
            {f"images/{i}.png": _png(2, 2) for i in range(2)}
            | {f"masks/{i}.png": _png(2, 2) for i in range(2)}
            | {"classes.txt": lines(*range(100_000))},
            all_masks,
        ),
        _tree(
            "idx with other counts",
            {
                "train-images-idx3-ubyte": idx(np.zeros((3, 2, 2))),
                "train-labels-idx1-ubyte": idx(np.zeros(2)),
                "t10k-images-idx3-ubyte": idx(np.zeros((3, 2, 2))),
                "t10k-labels-idx1-ubyte": idx(np.zeros(3)),
            },
            all_images,
        ),
        _file(
            "images up the tree",
            "a.jsonl",
            lines(json.dumps({"images": "../../../../etc/passwd", "text": "t", "label": 1})),
            all_pairs,
        ),
    ]


def _tree(name: str, files: dict[str, bytes], read: Reader, *, is_read: bool = False) -> Case:
    """A folder of files."""

    def make(folder: Path) -> None:
        for file, data in files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    return Case(name, make, read, must_fail=not is_read)


def _tables() -> list[Case]:
    wide = ",".join(f"c{i}" for i in range(20_000))
    numbers = ",".join("1" * 20_000)
    return [
        _file(
            "wide series.csv",
            "a.csv",
            lambda: lines(f"time,label,{wide}", f"0,x,{numbers}", f"1,x,{numbers}"),
            open_series,
            is_read=True,
        ),
        _file(
            "wide field.csv",
            "a.csv",
            lambda: lines(f"x,field,{wide}", f"0,a,{numbers}", f"1,b,{numbers}"),
            open_fields,
            is_read=True,
        ),
        _file("wide cloud.csv", "a.csv", lambda: lines(f"x,y,z,{wide}", f"0,0,0,{numbers}"), read_points, is_read=True),
        _file(
            "wide sentences.csv",
            "a.csv",
            lambda: lines(f"text,label,{wide}", f"a,x,{numbers}", f"b,y,{numbers}"),
            open_sentences,
            is_read=True,
        ),
        _file(
            "wide cells that are none", "a.csv", lambda: lines(f"time,{wide}", "0," + "x," * 19_999 + "x"), open_series
        ),
        _file("no time among many columns", "a.csv", lambda: lines(wide, numbers), open_series),
        _file(
            "a cell of a megabyte", "a.csv", lambda: lines("text,label", "x" * (1 << 20) + ",a", "y,b"), open_sentences
        ),
        _file("a quote without an end", "a.csv", lambda: lines("text,label", '"' + "x\n" * 50_000), open_sentences),
        _file("NUL in a table", "a.csv", b"text,label\na\0b,x\nc,y\n", open_sentences, is_read=True),
        _file("escapes in a header", "a.csv", b"t\x1b[2Jxt,l\x07bel\na,b\n", open_sentences),
        _file("turned text in a header", "a.csv", "t\u202ext,\u2028label\na,b\n".encode(), open_sentences),
        _file("a number of a megabyte", "a.csv", lambda: lines("time,v", "0," + "9" * (1 << 17)), open_series),
        _file("digits of other scripts", "a.csv", "time,v\n0,\u0661\u0662\n".encode(), open_series),
        _file(
            "many labels",
            "a.csv",
            lambda: lines("text,label", *(f"t{i},a{i}|b{i}" for i in range(20_000))),
            lambda p: open_sentences(p, kind="labels"),
        ),
        _file(
            "labels of 4e8 in a table", "a.csv", lines("text,label", "a,400000000", "b,0"), open_sentences, is_read=True
        ),
        _file("a table of commas", "a.csv", lambda: b"," * 500_000, open_sentences),
        _file("a table of line ends", "a.csv", lambda: b"\n" * 500_000, open_sentences),
        _file("deep JSON", "a.jsonl", lambda: b"[" * 200_000, open_sentences),
        _file("deep JSON object", "a.jsonl", lambda: b'{"a":' * 100_000, open_sentences),
        _file(
            "a huge integer in JSON",
            "a.jsonl",
            lambda: b'{"text": "a", "label": ' + b"9" * 100_000 + b"}",
            open_sentences,
        ),
        _file(
            "infinity in JSON",
            "a.jsonl",
            b'{"text": "a", "label": 1e999}\n{"text": "b", "label": NaN}\n',
            open_sentences,
            is_read=True,
        ),
        _file(
            "half a letter in JSON",
            "a.jsonl",
            b'{"text": "\\ud800", "label": "\\udfff"}\n',
            open_sentences,
            is_read=True,
        ),
        _file("keys of a megabyte", "a.jsonl", lambda: json.dumps({"k" * (1 << 20): 1}).encode(), open_sentences),
        _file(
            "times before all calendars",
            "a.csv",
            lines("time,v", "0001-01-01T00:00+23:59,1", "9999-12-31T23:59-23:59,2"),
            open_long,
        ),
        _file("times far apart", "a.csv", lines("time,v", "0,1", "1,1", "1e15,2"), open_long),
    ]


def _of_series() -> list[Case]:
    pems = ":".join(",".join(f"0.{k % 10}{c % 10}" for k in range(144)) for c in range(963))
    apart = ":".join(",".join(f"({1000 * k + c},1)" for k in range(20)) for c in range(1500))
    ragged = ["1,1:a"] * 16_000 + [",".join("1" * 100_000) + ":b"]
    return [
        _file("@dimensions 300000000", "a.ts", b"@dimensions 300000000\n@data\n1:2\n", open_series),
        _file("@dimensions of many digits", "a.ts", b"@dimensions " + b"9" * 5000 + b"\n@data\n1:2\n", open_series),
        _file("@dimensions below 0", "a.ts", b"@dimensions -1\n@data\n1:2\n", open_series),
        _file(
            "963 channels of 144 values",
            "a.ts",
            lambda: lines("@classLabel true 1", "@data", *[f"{pems}:1"] * 4),
            open_series,
            is_read=True,
        ),
        _file(
            "100,000 channels",
            "a.ts",
            lambda: lines("@classLabel true a", "@data", "1:" * 100_000 + "a"),
            open_series,
            is_read=True,
        ),
        _file(
            "many parentheses",
            "a.ts",
            lambda: lines("@timeStamps true", "@classLabel true a", "@data", "(" * 100_000 + ":" * 100_000 + ":a"),
            open_series,
        ),
        _file(
            "channels at other times",
            "a.ts",
            lambda: lines("@timeStamps true", "@classLabel true a", "@data", f"{apart}:a"),
            open_series,
        ),
        _file("one long row of 16,000", "a.ts", lambda: lines("@classLabel true a b", "@data", *ragged), open_series),
        _file(
            "one long row of 16,000.tsv", "a.tsv", lambda: lines(*["a\t1"] * 16_000, "b" + "\t1" * 100_000), open_series
        ),
        _file(
            "one long series of 16,000.csv",
            "a.csv",
            lambda: lines(
                "series,time,v,label", *(f"{i},0,1,x" for i in range(16_000)), *(f"y,{t},1,x" for t in range(100_000))
            ),
            open_series,
        ),
        _file("escapes in a class", "a.ts", b"@classLabel true a\n@data\n1:\x1b[2Jb\n", open_series),
        _file(
            "a class of a megabyte",
            "a.ts",
            lambda: lines("@classLabel true a", "@data", "1:" + "b" * (1 << 20)),
            open_series,
        ),
        _file("a header alone", "a.ts", b"@data\n", open_series),
    ]


def _of_graphs() -> list[Case]:
    def tu(**changed: bytes) -> dict[str, bytes]:
        files = {"A": lines("1, 2"), "graph_indicator": lines(1, 1, 2), "graph_labels": lines(0, 1)} | changed
        return {f"T_{name}.txt": data for name, data in files.items()}

    edges = np.array([[0, 1], [1, 0]])
    return [
        _tree("TU: node 1e12", tu(A=lines("1, 1000000000000")), open_graphs),
        _tree("TU: graph 1e12", tu(graph_indicator=lines(1, 1, 10**12)), open_graphs),
        _tree("TU: node beyond int64", tu(A=lines("1, 1e300")), open_graphs),
        _tree("TU: infinite node", tu(A=lines("1, inf")), open_graphs),
        _tree(
            "TU: many labels",
            tu(graph_indicator=lines(*[1] * 30_000, 2), node_labels=lines(*range(30_001))),
            open_graphs,
        ),
        _tree("TU: an empty file", tu(A=b""), open_graphs),
        _tree("TU: a long line", tu(A=lines("1, " * 100_000)), open_graphs),
        _file("npz: node 1e12", "a.npz", npz(edge_index=edges * 10**12, num_nodes=2), open_graphs),
        _file("npz: 1e12 nodes", "a.npz", npz(edge_index=edges, num_nodes=10**12), open_graphs),
        _file("npz: -1 nodes", "a.npz", npz(edge_index=edges, num_nodes=-1), open_graphs),
        _file("npz: nodes in a matrix", "a.npz", npz(edge_index=edges, num_nodes=np.ones((2, 2), int)), open_graphs),
        _file(
            "npz: graph 1e12",
            "a.npz",
            npz(edge_index=edges, graph=np.array([0, 10**12]), labels=np.array([0, 1])),
            open_graphs,
        ),
        _file(
            "npz: node beyond int64",
            "a.npz",
            npz(edge_index=edges.astype(np.uint64) * (2**64 - 1), num_nodes=2),
            open_graphs,
        ),
        _file(
            "npz: sparse column 1e12",
            "a.npz",
            npz(x_indptr=np.array([0, 1]), x_indices=np.array([10**12]), x_data=np.ones(1), edges=edges),
            open_graphs,
        ),
        _file(
            "npz: sparse column -1",
            "a.npz",
            npz(x_indptr=np.array([0, 1]), x_indices=np.array([-1]), x_data=np.ones(1), edges=edges),
            open_graphs,
        ),
        _file(
            "npz: sparse shape 1e12",
            "a.npz",
            npz(
                x_indptr=np.array([0, 0]),
                x_indices=np.zeros(0, int),
                x_data=np.ones(0),
                x_shape=np.array([1, 10**12]),
                edges=edges,
            ),
            open_graphs,
        ),
        _file(
            "npz: classes 4e8",
            "a.npz",
            npz(edge_index=edges, num_nodes=2, labels=np.array([0, 400_000_000])),
            open_graphs,
            is_read=True,
        ),
        _tree(
            "edges.csv: nodes of a megabyte",
            {"edges.csv": lines("source,target", "a" * 100_000 + ",b")},
            open_graphs,
            is_read=True,
        ),
        _tree(
            "edges.csv: many columns",
            {"edges.csv": lines("source,target," + ",".join(f"c{i}" for i in range(20_000)), "a,b" + ",1" * 20_000)},
            open_graphs,
            is_read=True,
        ),
        _tree(
            "graphs.csv: many graphs",
            {
                "edges.csv": lines("graph,source,target", *(f"{i},a,b" for i in range(20_000))),
                "nodes.csv": lines("graph,id", *(f"{i},{n}" for i in range(20_000) for n in "ab")),
                "graphs.csv": lines("graph,label", *(f"{i},{i % 2}" for i in range(20_000))),
            },
            open_graphs,
            is_read=True,
        ),
    ]


def _of_clouds() -> list[Case]:
    ply = [
        "ply",
        "format binary_little_endian 1.0",
        "element vertex {}",
        "property float x",
        "property float y",
        "property float z",
        "end_header",
    ]
    ascii_ply = [ply[0], "format ascii 1.0", *ply[2:]]
    faces = [*ascii_ply[:-1], "element face {}", "property list uchar int vertex_indices", "end_header"]
    stl = bytes(80) + (2**32 - 1).to_bytes(4, "little") + bytes(100)
    return [
        _file("off of 1e9 vertices", "a.off", lines("OFF", "1000000000 1 0", "0 0 0"), read_points),
        _file(
            "off of 1e9 faces",
            "a.off",
            lines("OFF", "3 1000000000 0", "0 0 0", "1 0 0", "0 1 0", "3 0 1 2"),
            read_points,
        ),
        _file("off of 1e18 vertices", "a.off", lines("OFF", "1000000000000000000 1 0", "0 0 0"), read_points),
        _file("off of -1 vertices", "a.off", lines("OFF", "-1 -1 0", "0 0 0"), read_points),
        _file(
            "off with a face of 1e9 corners",
            "a.off",
            lines("OFF", "3 1 0", "0 0 0", "1 0 0", "0 1 0", "1000000000 0 1 2"),
            read_points,
            is_read=True,
        ),
        _file("ply of 1e9 vertices", "a.ply", lines(*ply).replace(b"{}", b"1000000000") + bytes(24), read_points),
        _file("ply of 1e18 vertices", "a.ply", lines(*ply).replace(b"{}", b"1" + b"0" * 18) + bytes(24), read_points),
        _file("ply of -1 vertices", "a.ply", lines(*ply).replace(b"{}", b"-1") + bytes(24), read_points),
        _file(
            "ascii ply of 1e9 vertices", "a.ply", lines(*ascii_ply, "0 0 0").replace(b"{}", b"1000000000"), read_points
        ),
        _file(
            "ascii ply of 1e9 faces",
            "a.ply",
            lines(*faces, "0 0 0", "3 0 0 0").replace(b"{}", b"1", 1).replace(b"{}", b"1000000000"),
            read_points,
        ),
        _file(
            "ply with a list of 255",
            "a.ply",
            lines(*faces, "0 0 0", "255 0 0 0").replace(b"{}", b"1"),
            read_points,
            is_read=True,
        ),
        _file(
            "ply with a face below 0",
            "a.ply",
            lines(*faces, "0 0 0", "3 0 -2147483648 0").replace(b"{}", b"1"),
            read_points,
        ),
        _file("stl of 4e9 faces", "a.stl", stl, read_points),
        _file("obj with a face of 1e9", "a.obj", lines("v 0 0 0", "f 1 1000000000 2"), read_points),
        _file(
            "obj that names files",
            "a.obj",
            lines("mtllib /etc/passwd", "usemtl x", "v 0 0 0", "v 1 0 0", "v 0 1 0", "f 1 2 3"),
            read_points,
            is_read=True,
        ),
        _file("obj of NaN", "a.obj", lines("v nan inf 0", "v 1 0 0", "v 0 1 0", "f 1 2 3"), read_points),
        _file("xyz of long lines", "a.xyz", lambda: lines("1 " * 100_000, "1 " * 99_999), read_points),
        _file("xyz of escapes", "a.xyz", b"0 0 \x1b[2J0\n", read_points),
        _file(
            "npz: cloud beyond its points",
            "a.npz",
            npz(x=np.zeros((4, 3)), offsets=np.array([0, 10**12, 4]), y=np.array([0, 1])),
            open_points,
        ),
        _file(
            "npz: lengths beyond int64",
            "a.npz",
            npz(x=np.zeros((4, 3)), lengths=np.array([2**63, 2**63], np.uint64), y=np.array([0, 1])),
            open_points,
        ),
        _file(
            "npz: many clouds of none",
            "a.npz",
            lambda: npz(x=np.zeros((0, 3)), offsets=np.zeros(100_000, int)),
            open_points,
        ),
    ]


def _of_texts() -> list[Case]:
    state = json.loads(MarkedTokenizer.bytes().state)

    def changed(**model: object) -> bytes:
        return json.dumps({**state, "model": {**state["model"], **model}}).encode()

    load = MarkedTokenizer.load
    return [
        _file(
            "tokenizer: token 4e8",
            "tokenizer.json",
            lambda: changed(vocab={**state["model"]["vocab"], "a": 400_000_000}),
            load,
        ),
        _file(
            "tokenizer: added token 4e9",
            "tokenizer.json",
            lambda: json.dumps({**state, "added_tokens": [{**state["added_tokens"][0], "id": 4_000_000_000}]}).encode(),
            load,
        ),
        _file("tokenizer: unknown merges", "tokenizer.json", lambda: changed(merges=[["zzz", "yyy"]]), load),
        _file("tokenizer: deep", "tokenizer.json", b"[" * 100_000, load),
        _file("tokenizer: no object", "tokenizer.json", b"3", load),
        _file("tokenizer: another model", "tokenizer.json", lambda: changed(type="Unigram"), load),
        _file("text of byte order marks", "a.txt", b"\xff\xfea\0b\0", open_text),
        _file("text of NUL", "a.txt", bytes(1000), open_text, is_read=True),
        _file("text of one letter", "a.txt", b"a", open_text),
        _file("half a letter", "a.txt", "é".encode()[:1], open_text),
        _file("gzip of nothing", "a.txt.gz", gzip.compress(b""), open_text),
        _file("half a gzip", "a.txt.gz", gzip.compress(b"text" * 99)[:20], open_text),
        _file("gzip with a tail", "a.txt.gz", gzip.compress(b"text") + b"tail", open_text),
        _file("text called gz", "a.txt.gz", b"plain", open_text),
    ]


def _of_the_disk() -> list[Case]:
    """Pipes, sockets, devices, loops and deep folders with the names of data."""

    def pipe(name: str) -> Callable[[Path], None]:
        return lambda folder: os.mkfifo(folder / name)

    def a_socket(name: str) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            here = os.getcwd()  # noqa: PTH109  # a socket's path is short
            os.chdir(folder)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(name)
            os.chdir(here)

        return make

    def link(name: str, target: str) -> Callable[[Path], None]:
        return lambda folder: (folder / name).symlink_to(target)

    def folder_called(name: str) -> Callable[[Path], None]:
        return lambda folder: (folder / name).mkdir()

    def deep(start: str) -> Callable[[Path], None]:
        def make(folder: Path) -> None:
            here = os.getcwd()  # noqa: PTH109  # so deep that only parts of the path can be named
            os.chdir(folder)
            for name in (start, *["d"] * 1900):
                os.mkdir(name)  # noqa: PTH102
                os.chdir(name)
            Path("1.png").write_bytes(_png(4, 4))
            os.chdir(here)

        return make

    def loops(folder: Path) -> None:
        (folder / "a").mkdir()
        (folder / "a" / "1.csv").write_bytes(lines("x,y,z", "0,0,0"))
        for name in "pqr":
            (folder / "a" / name).symlink_to(folder / "a")

    readers: dict[str, Reader] = {
        "a.csv": read_series,
        "a.npz": read_series,
        "a.npy": read_series,
        "a.ts": read_series,
        "a.tsv.gz": read_series,
        "a.txt": read_text,
        "a.off": read_points,
        "a.xyz": read_points,
        "a.png": lambda p: read_images([p], 1, (4, 4)),
        "mask.png": read_mask,
        "tokenizer.json": MarkedTokenizer.load,
        "x-ubyte": lambda p: read_idx(p, 1),
    }
    found = [Case(f"pipe called {name}", pipe(name), on(name, read), True) for name, read in readers.items()]
    found += [
        Case(f"folder called {name}", folder_called(name), on(name, read), True) for name, read in readers.items()
    ]
    found += [
        Case(f"device called {name}", link(name, "/dev/zero"), on(name, read), True) for name, read in readers.items()
    ]
    found += [
        Case("socket called a.csv", a_socket("a.csv"), on("a.csv", read_series), True),
        Case("terminal called a.csv", link("a.csv", "/dev/tty"), on("a.csv", read_series), True),
        Case("link to itself", link("a.csv", "a.csv"), on("a.csv", read_series), True),
        Case("link to nothing", link("a.csv", "absent"), on("a.csv", read_series), True),
        Case("pipe among images", lambda f: (deep_folder(f), os.mkfifo(f / "b" / "1.png")), all_images, True),
        Case(
            "deep folder of images",
            lambda f: (deep("a")(f), (f / "b").mkdir(), (f / "b" / "1.png").write_bytes(_png(4, 4))),
            all_images,
        ),
        Case("deep folder of clouds", deep("a"), lambda f: open_points(f), True),
        Case("deep folder to predict", deep("a"), lambda f: Kinds(suffixes=(".png",)).listed([f])),
        Case("folders that hold themselves", loops, lambda f: Kinds(suffixes=(".csv",)).listed([f])),
        Case("clouds in folders that hold themselves", loops, lambda f: open_points(f)),
        Case("no home", lambda f: None, lambda f: open_series(f"~nobody-{f.name}/a.csv"), True),
        Case("NUL in a path", lambda f: None, lambda f: open_series(f"{f}/a\0b.csv"), True),
        Case("a name of 5,000 letters", lambda f: None, lambda f: open_series(f / ("x" * 5000)), True),
    ]
    return found


def deep_folder(folder: Path) -> None:
    """A class folder with an image, and one that is empty."""
    (folder / "a").mkdir()
    (folder / "a" / "1.png").write_bytes(_png(4, 4))
    (folder / "b").mkdir()
