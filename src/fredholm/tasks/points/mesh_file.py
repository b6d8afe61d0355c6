"""Readers of meshes and their vertices from .off, .obj, .stl and .ply files, each read to its last byte.

The content of a file is taken literally, or refused with its line or byte; nothing is guessed, and no part of the
surface is left out. Polygons are cut into triangles round their first corner, which is right for convex ones.
"""

import itertools
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self, final

import numpy as np

from fredholm.tasks.files.cells import LARGEST, parse_number
from fredholm.tasks.files.data_files import open_file

from .point_set import AXES

SURFACES = (".ply", ".off", ".obj", ".stl")


@final
@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Vertices and the triangles between them.

    Args:
        vertices: float64 `(V, 3)`, finite.
        triangles: int64 `(T, 3)`, numbers of vertices.
        columns: further values of each vertex, `(V,)` each: the other properties in a .ply file.
    """

    vertices: np.ndarray
    triangles: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)


def read_mesh(path: Path) -> Mesh:
    """Read the vertices and faces of one file.

    Raises:
        ValueError: the file does not have the format of its suffix, ends too early or has data after its end, or a
            coordinate or a vertex number is invalid. The message names the file, and the line or byte.
    """
    try:
        with open_file(path) as file:
            data = file.read()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); pass a file of points") from error
    if not data.strip():
        raise ValueError(f"{path}: is empty; expected a mesh or points")
    try:
        vertices, faces, columns = _READERS[path.suffix.lower()](data)
    except _PlacedError as error:
        raise ValueError(f"{path}, {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for i in np.flatnonzero(~(np.abs(vertices) <= LARGEST).all(1))[:1]:
        vertex = ", ".join(f"{value:g}" for value in vertices[i])
        expected = f"finite numbers of at most {LARGEST:.2g} in size"
        first = int(path.suffix.lower() == ".obj")  # the number of the first vertex in faces
        raise ValueError(
            f"{path}: vertex {i + first} (from {first}): its coordinates are {vertex}; expected {expected}"
        )
    return Mesh(vertices=vertices, triangles=faces.triangles, columns=columns)


class _PlacedError(ValueError):
    """An error in a file, whose message begins with the line or byte."""


class _Faces(NamedTuple):
    """Polygons: the numbers of their vertices, counted from 0 and concatenated, and the number of vertices of each."""

    corners: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, faces: Sequence[Sequence[float]]) -> Self:
        sizes = np.fromiter(map(len, faces), np.int64, len(faces))
        return cls(np.fromiter(itertools.chain.from_iterable(faces), np.int64, int(sizes.sum())), sizes)

    def check(self, count: int, place: Callable[[int], str], *, first: int = 0) -> Self:
        """Raises where a face has fewer than three vertices, or a vertex number out of range.

        Args:
            count: number of vertices.
            place: maps a face to its line or byte, for messages.
            first: the number of the first vertex in the file.
        """
        for i in np.flatnonzero(self.sizes < 3)[:1].tolist():
            raise _PlacedError(f"{place(i)}: a face has {self.sizes[i]} vertices; expected at least 3")
        for k in np.flatnonzero((self.corners < 0) | (self.corners >= count))[:1].tolist():
            where = place(int(np.searchsorted(self.sizes.cumsum(), k, side="right")))
            message = f"a face has the vertex number {self.corners[k] + first}"
            raise _PlacedError(f"{where}: {message}; expected {first} to {count - 1 + first}")
        return self

    @property
    def triangles(self) -> np.ndarray:
        """`(T, 3)`: between the first corner of each face and each side that it does not touch."""
        face = np.repeat(np.arange(len(self.sizes)), self.sizes - 2)
        start = (self.sizes.cumsum() - self.sizes)[face]
        side = np.arange(len(face)) - ((self.sizes - 2).cumsum() - (self.sizes - 2))[face]
        return np.stack([self.corners[start], self.corners[start + side + 1], self.corners[start + side + 2]], axis=1)


NO_FACES = _Faces(np.empty(0, np.int64), np.empty(0, np.int64))


class _Read(NamedTuple):
    vertices: np.ndarray
    faces: _Faces
    columns: dict[str, np.ndarray]


def _at_line(number: int, message: str) -> _PlacedError:
    return _PlacedError(f"line {number}: {message}")


def _lines(data: bytes) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, decoded as Latin-1, since only comments and names may be beyond ASCII."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    yield from enumerate(re.split(r"\r\n|\r|\n", text), 1)


def _uncommented(data: bytes) -> Iterator[tuple[int, list[str]]]:
    """The words of each line that is not blank, up to #."""
    for number, line in _lines(data):
        if words := line.partition("#")[0].split():
            yield number, words


def _numbers(words: Sequence[str], line: int) -> list[float]:
    try:
        return [parse_number(word) for word in words]
    except ValueError as error:
        raise _at_line(line, str(error)) from None


def _whole(word: str, line: int) -> int:
    if not word.removeprefix("-").isdecimal() or len(word) > 18:
        raise _at_line(line, f"{word[:40]!r} is no whole number")
    return int(word)


# .off: a line of words, one of counts, a line a vertex, a line a face

_OFF = re.compile(r"(ST)?(C)?(N)?(4)?(N)?OFF", re.IGNORECASE)


def _off(data: bytes) -> _Read:
    lines = _uncommented(data)
    number, words = next(lines, (1, [""]))
    header = _OFF.match(words[0])
    if header is None:
        raise _at_line(number, f"begins with {words[0][:40]!r}; expected OFF")
    if header[4] or header[5] or "BINARY" in (word.upper() for word in words):
        raise _at_line(number, f"is of the kind {' '.join(words)[:40]}; expected vertices of three coordinates as text")
    words = [rest for rest in (words[0][header.end() :], *words[1:]) if rest]  # in ModelNet such as OFF490 518 0
    if not words:
        number, words = next(lines, (number, []))
    counts = [_whole(word, number) for word in words]
    if len(counts) not in (2, 3) or min(counts) < 0:
        raise _at_line(number, f"{' '.join(words)[:40]!r} are no numbers of vertices, faces and edges")
    num_vertices, num_faces = counts[:2]
    rows, faces, places = list[list[float]](), list[list[int]](), list[int]()
    width = 3 + 3 * bool(header[3]) + 2 * bool(header[1])
    wanted = {width, width + 3, width + 4}  # with colours
    for number, words in lines:
        if len(rows) < num_vertices:
            if len(words) not in wanted:
                expected = " or ".join(map(str, sorted(wanted)))
                raise _at_line(number, f"vertex {len(rows)} (from 0) has {len(words)} numbers; expected {expected}")
            wanted = {len(words)}
            rows.append(_numbers(words[:3], number))
        elif len(faces) < num_faces:
            size = _whole(words[0], number)
            if not 0 <= len(words) - 1 - size <= 4 or size < 0:  # a colour has up to four numbers
                raise _at_line(number, f"face {len(faces) + 1} promises {size} vertices; {len(words) - 1} follow")
            faces.append([_whole(word, number) for word in words[1 : size + 1]])
            places.append(number)
        else:
            raise _at_line(number, f"goes on behind the last of {num_vertices} vertices and {num_faces} faces")
    if (len(rows), len(faces)) != (num_vertices, num_faces):
        raise ValueError(f"promises {num_vertices} vertices and {num_faces} faces; it has {len(rows)} and {len(faces)}")
    found = _Faces.of(faces).check(num_vertices, lambda i: f"line {places[i]}")
    return _Read(np.array(rows, np.float64).reshape(-1, 3), found, {})


# .obj: statements, of which vertices (v) and faces (f) matter


def _obj(data: bytes) -> _Read:
    rows, faces, places, before = list[list[float]](), list[list[int]](), list[int](), list[str]()
    for number, line in _lines(data):
        words = [*before, *line.partition("#")[0].split()]
        if words and words[-1].endswith("\\"):
            before = [*words[:-1], *filter(None, [words[-1][:-1]])]
            continue
        before = []
        keyword = words[0].lower() if words else ""
        if keyword == "v":
            if len(words) - 1 not in (3, 4, 6, 7):  # with a weight, with a colour
                raise _at_line(number, f"vertex {len(rows) + 1} has {len(words) - 1} numbers; expected 3")
            rows.append(_numbers(words[1:4], number))
        elif keyword in ("f", "fo"):
            faces.append([_referred(word, len(rows), number) for word in words[1:]])
            places.append(number)
    if before:
        raise ValueError("ends within a line that goes on (\\)")
    found = _Faces.of(faces).check(len(rows), lambda i: f"line {places[i]}", first=1)
    return _Read(np.array(rows, np.float64).reshape(-1, 3), found, {})


def _referred(word: str, count: int, line: int) -> int:
    """The vertex, counted from 0, of a corner such as 3/1/2; negative numbers count back from the last one so far."""
    vertex = _whole(word.partition("/")[0], line)
    if vertex == 0 or vertex < -count:
        raise _at_line(line, f"a face has the vertex number {vertex}, of {count} vertices so far")
    return vertex - 1 if vertex > 0 else count + vertex


# .stl: triangles with corners of their own, as records or as text

_RECORD = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
_HEAD = 84


def _stl(data: bytes) -> _Read:
    count = int.from_bytes(data[_HEAD - 4 : _HEAD], "little") if len(data) >= _HEAD else 0
    whole = _HEAD + count * _RECORD.itemsize
    if len(data) == whole:
        corners = np.frombuffer(data, _RECORD, offset=_HEAD)["corners"].astype(np.float64).reshape(-1, 3)
    elif data.lstrip()[:5].lower() == b"solid" and b"\0" not in data:
        corners = _corners(data)
    elif len(data) < _HEAD:
        raise ValueError(
            f"has {len(data)} bytes; a binary .stl file has at least {_HEAD}, and a text begins with solid"
        )
    else:
        raise ValueError(f"promises {count} triangles, so {whole:,} bytes; it has {len(data):,}")
    return _Read(corners, _Faces(np.arange(len(corners)), np.full(len(corners) // 3, 3)), {})


def _corners(data: bytes) -> np.ndarray:
    """The corners of all triangles of a text STL file, `(3 T, 3)`."""
    expected, rows = ("solid",), list[list[float]]()
    follows = {"solid": ("facet", "endsolid"), "facet": ("outer",), "outer": ("vertex",), "endloop": ("endfacet",)}
    follows |= {"endfacet": ("facet", "endsolid"), "endsolid": ("solid",)}
    for number, line in _lines(data):
        words = line.split()
        if not words:
            continue
        keyword = words[0].lower()
        if keyword not in expected:
            raise _at_line(number, f"begins with {words[0][:40]!r}; expected {' or '.join(expected)}")
        if keyword == "vertex":
            if len(words) != 4:
                raise _at_line(number, f"a vertex has {len(words) - 1} numbers; expected 3")
            rows.append(_numbers(words[1:], number))
            expected = ("vertex",) if len(rows) % 3 else ("endloop",)
        else:
            expected = follows[keyword]
    if expected != ("solid",):
        raise ValueError(f"ends too early; expected {' or '.join(expected)}")
    return np.array(rows, np.float64).reshape(-1, 3)


# .ply: a header that declares the elements and their properties, then their values as text or in binary form

_TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"),
    **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    "int64": "i8",
    "uint64": "u8",
    "float16": "f2",
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}
_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
_CODES: dict[str, str] = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}
_CODES |= {"f2": "e", "f4": "f", "f8": "d"}
_CORNERS = ("vertex_indices", "vertex_index")
Values = list[Sequence[float]] | np.ndarray


class _Property(NamedTuple):
    """A number, or a list of numbers with its length before them."""

    name: str
    kind: np.dtype
    counts: np.dtype | None = None


@dataclass(frozen=True)
class _Element:
    name: str
    count: int
    properties: list[_Property]


class _Header(NamedTuple):
    order: str
    """The byte order of numbers, `<` or `>`; empty: numbers are text."""
    elements: list[_Element]
    num_lines: int
    num_bytes: int


def _ply(data: bytes) -> _Read:
    header = _header(data)
    found = dict[str, dict[str, Values]]()
    goes_on = "goes on behind the last of the elements that the header promises"
    if header.order:
        at = header.num_bytes
        for element in header.elements:
            found[element.name], at = _binary_rows(element, data, at, header.order)
        if at != len(data):
            raise _PlacedError(f"byte {at + 1:,}: {goes_on}")
        return _of_elements(header.elements, found)
    body = _lines(data[header.num_bytes :])
    lines = ((number + header.num_lines, words) for number, line in body if (words := line.split()))
    for element in header.elements:
        found[element.name] = _text_rows(element, lines)
    for number, _ in lines:
        raise _at_line(number, goes_on)
    return _of_elements(header.elements, found)


def _of_elements(elements: Sequence[_Element], found: dict[str, dict[str, Values]]) -> _Read:
    if strips := [each.name for each in elements if each.name == "tristrips" and each.count]:
        raise ValueError(f"has {strips[0]}, which are not read; write triangles as faces")
    kinds = {each.name: {part.name: part for part in each.properties} for each in elements}
    of_vertices, own = found.get("vertex", {}), kinds.get("vertex", {})
    count = next((each.count for each in elements if each.name == "vertex"), 0)
    plain = {name: np.asarray(of_vertices[name]) for name, part in own.items() if part.counts is None}
    if count and (absent := [axis for axis in AXES if axis not in plain]):
        raise ValueError(f"its vertices have no property {absent[0]!r}; they have {', '.join(own) or 'none'}")
    vertices = np.stack([plain.pop(axis) for axis in AXES], 1).astype(np.float64) if count else np.empty((0, 3))
    lists = [name for name, part in kinds.get("face", {}).items() if part.counts is not None]
    named = [name for name in lists if name in _CORNERS] or (lists if len(lists) == 1 else [])
    if not named and any(each.name == "face" and each.count for each in elements):
        raise ValueError(f"its faces have no list vertex_indices; they have {', '.join(kinds['face']) or 'nothing'}")
    faces = found["face"][named[0]] if named else []
    if isinstance(faces, np.ndarray):
        corners = _Faces(faces.astype(np.int64).ravel(), np.full(len(faces), faces.shape[1]))
    else:
        corners = _Faces.of(faces)
    return _Read(vertices, corners.check(count, lambda i: f"face {i + 1}"), plain)


def _header(data: bytes) -> _Header:
    elements, order, number, end = list[_Element](), None, 0, 0
    while end < len(data):
        number, start = number + 1, end
        end = data.find(b"\n", start) + 1 or len(data)
        words = data[start:end].decode("latin-1").split()
        keyword = words[0] if words else ""
        if number == 1:
            if keyword != "ply":
                raise _at_line(number, f"begins with {keyword[:40]!r}; expected ply")
        elif keyword == "format" and len(words) == 3 and words[1] in _ORDERS:
            order = words[1]
        elif keyword == "element" and len(words) == 3:
            if any(each.name == words[1] for each in elements):
                raise _at_line(number, f"the element {words[1]!r} is there twice")
            elements.append(_Element(words[1], _whole(words[2], number), []))
            if elements[-1].count < 0:
                raise _at_line(number, f"{words[2]} is no number of elements")
        elif keyword == "property" and elements and order is not None:
            elements[-1].properties.append(_property(words, _ORDERS[order], elements[-1], number))
        elif keyword == "end_header" and order is not None:
            return _Header(_ORDERS[order], elements, number, end)
        elif keyword not in ("comment", "obj_info", ""):
            raise _at_line(number, f"{' '.join(words)[:40]!r} is no line of a header of ply")
    raise ValueError("ends within its header; expected end_header")


def _property(words: Sequence[str], order: str, element: _Element, line: int) -> _Property:
    kinds, name = words[1:-1], words[-1]
    is_list = len(kinds) == 3 and kinds[0] == "list"
    if not (len(kinds) == 1 or is_list) or any(each not in _TYPES for each in kinds[is_list:]):
        found_kinds = " ".join(kinds)[:40]
        raise _at_line(line, f"{found_kinds!r} is no type of a property; expected one such as float, or list uchar int")
    if any(each.name == name for each in element.properties):
        raise _at_line(line, f"the property {name!r} is there twice")
    types = [np.dtype(order + _TYPES[each]) for each in kinds[is_list:]]
    if is_list and types[0].kind == "f":
        raise _at_line(line, f"the list {name!r} is counted by {kinds[1]}; expected whole numbers")
    return _Property(name, types[-1], types[0] if is_list else None)


def _text_rows(element: _Element, lines: Iterator[tuple[int, list[str]]]) -> dict[str, Values]:
    """The values of each property, from one line per row."""
    rows = {part.name: list[Sequence[float]]() for part in element.properties}
    for i in range(element.count if element.properties else 0):
        number, words = next(lines, (0, []))
        if not words:
            raise ValueError(f"promises {element.count} of {element.name!r}; it has {i}")
        at = 0
        for part in element.properties:
            size = 1
            if part.counts is not None and at < len(words):
                size, at = _whole(words[at], number), at + 1
            if size < 0 or at + size > len(words):
                raise _at_line(number, f"{element.name} {i + 1} ends within its property {part.name!r}")
            rows[part.name].append(_typed(words[at : at + size], part, number))
            at += size
        if at != len(words):
            raise _at_line(number, f"{element.name} {i + 1} has {len(words)} words; expected {at}")
    single = {part.name: part.kind for part in element.properties if part.counts is None}
    return {
        name: np.array(values, single[name] if single[name].kind in "iu" else np.float64).reshape(-1)
        if name in single
        else values
        for name, values in rows.items()
    }


def _typed(words: Sequence[str], part: _Property, line: int) -> Sequence[float]:
    """Parses numbers, and checks that integers are within the range of the property's type."""
    if part.kind.kind == "f":
        return _numbers(words, line)
    values, held = [_whole(word, line) for word in words], np.iinfo(part.kind)
    for value in values:
        if not held.min <= value <= held.max:
            raise _at_line(line, f"{value} is beyond what the type of {part.name!r} holds")
    return values


def _alike(element: _Element, data: bytes, at: int, order: str) -> tuple[dict[str, Values], int] | None:
    """`_binary_rows` without a loop, for lists that have equal lengths in all rows; None where lengths differ."""
    fields, offset = list[tuple[Any, ...]](), at
    for part in element.properties:
        size = 1
        if part.counts is not None:
            if offset + part.counts.itemsize > len(data):
                return None
            size = int(np.frombuffer(data, part.counts, 1, offset)[0])
            fields.append((f"number of {part.name}", part.counts))
            offset += part.counts.itemsize
        if size < 0 or offset + size * part.kind.itemsize > len(data):
            return None
        fields.append((part.name, part.kind) if part.counts is None else (part.name, part.kind, (size,)))
        offset += size * part.kind.itemsize
    end = at + element.count * (offset - at)
    if end > len(data) or not fields:
        return None if fields else ({}, at)
    rows = np.frombuffer(data, np.dtype(fields), element.count, at)
    counts = [rows[f"number of {part.name}"] for part in element.properties if part.counts is not None]
    if any((each != each[:1]).any() for each in counts):
        return None
    return {part.name: rows[part.name] for part in element.properties}, end


def _binary_rows(element: _Element, data: bytes, at: int, order: str) -> tuple[dict[str, Values], int]:
    """The values of each property from the bytes at index `at`, and the index of the end of the rows."""
    ends = f"promises {element.count} of {element.name!r}, but ends before the last one"
    if (alike := _alike(element, data, at, order)) is not None:
        return alike
    if all(part.counts is None for part in element.properties):
        raise ValueError(ends)
    found = {part.name: list[Sequence[float]]() for part in element.properties}
    for _ in range(element.count):
        for part in element.properties:
            try:
                size = 1
                if part.counts is not None:
                    (size,) = struct.unpack_from(order + _CODES[part.counts.str[1:]], data, at)
                    at += part.counts.itemsize
                if size < 0 or at + size * part.kind.itemsize > len(data):
                    raise ValueError(ends)
                found[part.name].append(struct.unpack_from(f"{order}{size}{_CODES[part.kind.str[1:]]}", data, at))
            except struct.error:
                raise ValueError(ends) from None
            at += size * part.kind.itemsize
    return {
        part.name: found[part.name] if part.counts is not None else np.array(found[part.name], part.kind).reshape(-1)
        for part in element.properties
    }, at


_READERS = {".off": _off, ".obj": _obj, ".stl": _stl, ".ply": _ply}
