"""One cloud from a file: meshes by their surface, points by their columns."""

import csv
import dataclasses
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from fredholm.tasks.files.arrow_table import PARQUET
from fredholm.tasks.files.cells import parse_present
from fredholm.tasks.files.data_files import open_file
from fredholm.tasks.files.table_text import csv_text, first_twice, told_of_csv
from fredholm.tasks.text import read_text

from .point_set import AXES, NORMAL, Cloud

if TYPE_CHECKING:
    from trimesh import Trimesh

SURFACES = (".ply", ".off", ".obj", ".stl")
TABLES = (".xyz", ".csv", PARQUET)
LABELS = (".seg", ".labels")
"""The kinds of files beside a cloud with a class of each point, a line each."""
WEIGHT, LABEL = "weight", "label"
"""The columns that are no features."""
NUM_SAMPLES = 2048
_SEED = 0
_ELEMENT = re.compile(rb"^element[ \t]+(vertex|face)[ \t]+(\d{1,18})[ \t\r]*$", re.MULTILINE)


def read_cloud(
    path: Path, *, num_samples: int = NUM_SAMPLES, normals: bool = False, channels: tuple[str, ...] | None = None
) -> Cloud:
    """Read one cloud.

    - `.ply`, `.off`, `.obj`, `.stl`: where there are faces, points drawn evenly on their surface, the same ones each
      time; else the vertices. Of a `.ply` without faces, `weight`, `label` and all other properties of vertices are
      read too.
    - `.xyz`: lines of numbers, x, y, z and any features, separated by blanks or commas; # starts a comment.
    - `.csv`, `.parquet`: columns by name: x, y, z, `weight` and `label` where they are there, and features.

    A file beside it that ends in .seg or .labels has the class of each point, a line each.

    Args:
        path: the file.
        num_samples: points drawn on a surface.
        normals: add the normals of faces as features nx, ny and nz.
        channels: the features to read, in this order, or, of an .xyz file, their names; None: all.

    Raises:
        ValueError: it is of no known kind or cannot be read; there are no points, a coordinate or weight is none, a
            feature is missing, labels are not one a point; or normals of what has no faces. The message names the file.
        ImportError: the file is a mesh, and trimesh is not installed.
    """
    kind = path.suffix.lower()
    if kind in SURFACES:
        cloud = _read_mesh(path, kind, num_samples, normals)
    elif kind == ".xyz":
        cloud = _read_xyz(path, channels)
    elif kind in (".csv", PARQUET):
        cloud = _read_csv(path, channels)
    else:
        raise ValueError(f"{path}: is of no known kind; expected {', '.join((*SURFACES, *TABLES, '.npz'))}")
    if normals and not cloud.is_sampled:
        raise ValueError(f"{path}: has no faces to take normals from; leave normals out, or pass a mesh")
    if not len(cloud.pos):
        raise ValueError(f"{path}: has no points; expected at least one")
    return _with_labels_beside(_chosen(cloud, channels, path), path)


def _chosen(cloud: Cloud, channels: tuple[str, ...] | None, path: Path) -> Cloud:
    """The cloud with these features in this order."""
    if channels is None or channels == cloud.channels:
        return cloud
    if absent := [name for name in channels if name not in cloud.channels]:
        has = ", ".join(cloud.channels) or "none"
        raise ValueError(f"{path}: has no feature {', '.join(map(repr, absent))}; its features are {has}")
    columns = [cloud.channels.index(name) for name in channels]
    return dataclasses.replace(cloud, features=cloud.features[:, columns], channels=channels)


def _with_labels_beside(cloud: Cloud, path: Path) -> Cloud:
    beside = [file for kind in LABELS if (file := path.with_suffix(kind)).is_file()]
    if not beside:
        return cloud
    if len(beside) > 1 or cloud.point_labels is not None:
        other = beside[1] if len(beside) > 1 else f"those of {path.name}"
        raise ValueError(f"{beside[0]}: gives labels beside {other}; keep one of them")
    if cloud.is_sampled:
        raise ValueError(
            f"{beside[0]}: {path.name} has faces, and points drawn on them have no labels; remove the faces"
        )
    labels = read_text(beside[0]).split()
    if len(labels) != len(cloud.pos):
        raise ValueError(f"{beside[0]}: has {len(labels)} labels; {path.name} has {len(cloud.pos)} points")
    return dataclasses.replace(cloud, point_labels=np.array(labels))


def _read_mesh(path: Path, kind: str, num_samples: int, normals: bool) -> Cloud:
    try:
        import trimesh
    except ImportError as error:
        raise ImportError('meshes need trimesh; get it with: pip install "fredholm[data]"') from error
    try:
        with open_file(path) as file:
            promised = _promised(kind, file)
            loaded = trimesh.load(file, file_type=kind[1:], process=False, skip_materials=True)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); pass a file of points") from error
    except Exception as error:  # a broken file is whatever trips the parser
        told = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(f"{path}: cannot be read as {kind} ({told}); repair the file, or leave it out") from error
    parts = list(loaded.dump()) if isinstance(loaded, trimesh.Scene) else [loaded]
    shown = [part for part in parts if isinstance(part, (trimesh.Trimesh, trimesh.PointCloud))]
    came = (
        sum(len(part.vertices) for part in shown),
        sum(len(part.faces) for part in shown if isinstance(part, trimesh.Trimesh)),
    )
    if came[0] < promised[0] or came[1] < promised[1]:
        raise ValueError(
            f"{path}: promises {promised[0]} vertices and {promised[1]} faces; it has {came[0]} and {came[1]}"
        )
    meshes = [part for part in parts if isinstance(part, trimesh.Trimesh) and len(part.faces)]
    for mesh in meshes:
        if not 0 <= int(mesh.faces.min()) <= int(mesh.faces.max()) < len(mesh.vertices):
            wrong = mesh.faces[(mesh.faces < 0) | (mesh.faces >= len(mesh.vertices))][0]
            raise ValueError(f"{path}: a face has the vertex number {wrong}, of {len(mesh.vertices)} vertices")
    if meshes:
        return _sampled(meshes, path, num_samples, normals)
    vertices = [np.asarray(part.vertices, np.float64).reshape(-1, 3) for part in shown]
    pos = np.concatenate(vertices) if vertices else np.empty((0, 3))
    columns = {}
    if kind == ".ply" and len(parts) == 1:
        vertex = parts[0].metadata.get("_ply_raw", {}).get("vertex", {"properties": {}})
        columns = {name: np.asarray(vertex["data"][name]).reshape(-1) for name in vertex["properties"]}
        columns = {name: column for name, column in columns.items() if name not in AXES and len(column) == len(pos)}
    return _of_columns(path, pos, columns)


def _promised(kind: str, file: IO[bytes]) -> tuple[int, int]:
    """How many vertices and faces an .off or .ply file says that it has; of other kinds 0, as of what does not parse.

    Raises:
        ValueError: an .off file has fewer numbers than that takes.
    """
    data = file.read() if kind in (".off", ".ply") else b""
    file.seek(0)
    if kind == ".ply":
        elements = dict(_ELEMENT.findall(data.partition(b"end_header")[0]))
        return int(elements.get(b"vertex", 0)), int(elements.get(b"face", 0))
    words = data.upper().partition(b"OFF")[2]
    numbers = b" ".join(line.partition(b"#")[0] for line in words.splitlines()).split()
    counts = [int(number) for number in numbers[:2] if number.lstrip(b"-").isdigit() and len(number) < 20]
    if len(counts) < 2:
        return 0, 0
    if min(counts) < 0 or 3 * counts[0] + 4 * counts[1] > len(numbers):
        raise ValueError(f"promises {counts[0]} vertices and {counts[1]} faces; {len(numbers)} numbers follow")
    return counts[0], counts[1]


def _sampled(meshes: "list[Trimesh]", path: Path, num_samples: int, normals: bool) -> Cloud:
    """Points drawn evenly on the surface of all meshes together."""
    import trimesh

    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    vertices = np.concatenate([mesh.vertices for mesh in meshes])
    faces = np.concatenate([mesh.faces + start for mesh, start in zip(meshes, starts[:-1], strict=True)])
    mesh = trimesh.Trimesh(vertices, faces, process=False)
    for i in np.flatnonzero(~np.isfinite(mesh.vertices).all(1))[:1]:
        told = ", ".join(f"{value:g}" for value in mesh.vertices[i])
        raise ValueError(f"{path}: vertex {i + 1}: its coordinates are {told}; expected finite numbers")
    pos, drawn = trimesh.sample.sample_surface(mesh, num_samples, seed=_SEED)[:2]
    features = mesh.face_normals[drawn] if normals else np.empty((num_samples, 0))
    return Cloud(
        pos=np.asarray(pos),
        features=np.asarray(features),
        channels=NORMAL if normals else (),
        name=str(path),
        is_sampled=True,
    )


def _of_columns(path: Path, pos: np.ndarray, columns: dict[str, np.ndarray]) -> Cloud:
    """A cloud whose other columns are told by their names."""
    by_word = {name.lower(): column for name, column in columns.items()}
    features = {name: column for name, column in columns.items() if name.lower() not in (WEIGHT, LABEL)}
    return Cloud(
        pos=pos,
        features=np.stack([column.astype(np.float64) for column in features.values()], axis=1)
        if features
        else np.empty((len(pos), 0)),
        channels=tuple(features),
        weights=by_word.get(WEIGHT),
        point_labels=by_word[LABEL].astype(str) if LABEL in by_word else None,
        name=str(path),
    )


def _read_xyz(path: Path, channels: tuple[str, ...] | None) -> Cloud:
    lines = [line.partition("#")[0].replace(",", " ").split() for line in read_text(path).splitlines()]
    rows = [(number, words) for number, words in enumerate(lines, 1) if words]
    width = len(rows[0][1]) if rows else 3
    for number, words in rows:
        if len(words) != width or width < 3:
            expected = "at least 3" if width < 3 else f"{width}, as in line {rows[0][0]}"
            raise ValueError(f"{path}, line {number}: has {len(words)} numbers; expected {expected}")
    values = np.empty((len(rows), width))
    for i, (number, words) in enumerate(rows):
        try:
            values[i] = [parse_present(word) for word in words]
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    names = tuple(f"feature_{k}" for k in range(width - 3)) if channels is None else channels
    if len(names) != width - 3:
        raise ValueError(f"{path}: has {width - 3} features; expected {len(names)}: {', '.join(names) or 'none'}")
    return Cloud(pos=values[:, :3], features=values[:, 3:], channels=names, name=str(path))


def _read_csv(path: Path, channels: tuple[str, ...] | None) -> Cloud:
    rows = csv.reader(io.StringIO(csv_text(path), newline=""))
    try:
        header = [name.strip() for name in next(rows, [])]
        words = [name.lower() if name.lower() in (*AXES, WEIGHT, LABEL) else name for name in header]
        if (i := first_twice(words)) is not None:
            raise ValueError(f"column {header[i]!r} is there twice")
        if absent := [axis for axis in AXES if axis not in words]:
            raise ValueError(f"no column {absent[0]!r}; the columns are {', '.join(header) or 'none'}")
        features = [name for name in words if name not in (*AXES, WEIGHT, LABEL)]
        wanted = list(features if channels is None else channels)
        if absent := sorted(set(wanted) - set(features)):
            raise ValueError(f"no column {', '.join(map(repr, absent))}; the columns are {', '.join(header)}")
        asked, place = {*AXES, WEIGHT, *wanted}, {name: i for i, name in enumerate(words)}
        read = [name for name in words if name in asked]
        cells: dict[str, list[float]] = {name: [] for name in read}
        labels: list[str] = []
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise ValueError(f"has {len(row)} cells; the header has {len(header)}")
            for name in read:
                try:
                    cells[name].append(parse_present(row[place[name]]))
                except ValueError as error:
                    raise ValueError(f"column {name!r}: {error}") from error
            if LABEL in place:
                labels.append(row[place[LABEL]].strip())
                if not labels[-1]:
                    raise ValueError("column 'label' is empty; expected the point's class")
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}, line {max(rows.line_num, 1)}: {told_of_csv(error)}") from error
    pos = np.stack([np.array(cells.pop(axis), np.float64) for axis in AXES], axis=1)
    columns = {name: np.array(values) for name, values in cells.items()}
    return _of_columns(path, pos, columns | ({LABEL: np.array(labels)} if LABEL in words else {}))


def csv_of(pos: Sequence[Sequence[float]], labels: Sequence[str]) -> bytes:
    """A table of coordinates and a class of each point, which `read_cloud` reads again."""
    content = io.StringIO(newline="")
    rows = csv.writer(content)
    rows.writerow([*AXES, LABEL])
    rows.writerows([*coordinates, label] for coordinates, label in zip(pos, labels, strict=True))
    return content.getvalue().encode()
