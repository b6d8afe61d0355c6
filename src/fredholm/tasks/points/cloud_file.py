"""Reading one cloud from a file: a mesh, sampled on its surface, or a table of points."""

import csv
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fredholm.tasks.files.arrow_table import PARQUET
from fredholm.tasks.files.cells import cells_of_line, parse_present
from fredholm.tasks.files.delimited import NO_RECORD, DelimitedFile
from fredholm.tasks.files.table_text import first_repeated
from fredholm.tasks.text import read_text

from .mesh_file import SURFACES, read_mesh
from .point_set import AXES, NORMAL, Cloud

TABLES = (".xyz", ".csv", PARQUET)
LABELS = (".seg", ".labels")
"""Suffixes of files beside a cloud that list the class of each point, one a line."""
WEIGHT, LABEL = "weight", "label"
"""Columns that are not features."""
_USUAL = (*AXES, *NORMAL, WEIGHT, LABEL)
"""Columns whose names are matched in any case."""
NUM_SAMPLES = 2048
_SEED = 0


def read_cloud(
    path: Path, *, num_samples: int = NUM_SAMPLES, normals: bool = False, channels: tuple[str, ...] | None = None
) -> Cloud:
    """Read one cloud.

    - `.ply`, `.off`, `.obj`, `.stl`: where there are faces, points drawn evenly on their surface, the same ones each
      time; else the vertices. Of a `.ply` without faces, `weight`, `label` and all other properties of vertices are
      read too.
    - `.xyz`: lines of numbers, x, y, z and any features, separated by blanks or commas; # starts a comment.
    - `.csv`, `.parquet`: columns x, y and z; if they exist, `weight`, `label` and the normal nx, ny, nz, with all these
      names in any case; and other features.

    A file beside it that ends in .seg or .labels has the class of each point, a line each.

    Args:
        path: the file.
        num_samples: points drawn on a surface.
        normals: add the normals of faces as features nx, ny and nz.
        channels: the features to read, in this order, or, of an .xyz file, their names; None: all.

    Raises:
        ValueError: it is of no known kind or cannot be read; there are no points, a coordinate or weight is invalid, a
            feature is missing, a point lacks its label; or normals are requested without faces. The message names the
            file.
        ImportError: the file is a mesh, and trimesh is not installed.
    """
    kind = path.suffix.lower()
    if kind in SURFACES:
        cloud = _drawn_on(path, num_samples, normals)
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


def _drawn_on(path: Path, num_samples: int, normals: bool) -> Cloud:
    """Points drawn evenly on the surface of a mesh; of one without faces its vertices."""
    try:
        import trimesh
    except ImportError as error:
        raise ImportError('meshes need trimesh; get it with: pip install "fredholm[data]"') from error
    mesh = read_mesh(path)
    if not len(mesh.triangles):
        return _of_columns(path, mesh.vertices, mesh.columns)
    surface = trimesh.Trimesh(mesh.vertices, mesh.triangles, process=False)
    pos, drawn = trimesh.sample.sample_surface(surface, num_samples, seed=_SEED)[:2]
    features = surface.face_normals[drawn] if normals else np.empty((num_samples, 0))
    return Cloud(
        pos=np.asarray(pos),
        features=np.asarray(features),
        channels=NORMAL if normals else (),
        name=str(path),
        is_sampled=True,
    )


def _of_columns(path: Path, pos: np.ndarray, columns: dict[str, np.ndarray]) -> Cloud:
    """A cloud from positions and named columns: weight, label, and features."""
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
    rows = list[tuple[int, list[str]]]()
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            words = cells_of_line(line.partition("#")[0])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if words:
            rows.append((number, words))
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
    file = DelimitedFile(path)
    rows = file.records()
    with file.naming_lines():
        header = [name.strip() for name in next(rows, NO_RECORD).cells]
        words = [name.lower() if name.lower() in _USUAL else name for name in header]
        if (i := first_repeated(words)) is not None:
            raise ValueError(f"column {header[i]!r} is there twice")
        if absent := [axis for axis in AXES if axis not in words]:
            raise ValueError(f"no column {absent[0]!r}; the columns are {', '.join(header) or 'none'}")
        features = [name for name in words if name not in (*AXES, WEIGHT, LABEL)]
        wanted = list(features if channels is None else channels)
        if absent := sorted(set(wanted) - set(features)):
            raise ValueError(f"no column {', '.join(map(repr, absent))}; the columns are {', '.join(header)}")
        known, place = {*AXES, WEIGHT, *wanted}, {name: i for i, name in enumerate(words)}
        read = [name for name in words if name in known]
        cells: dict[str, list[float]] = {name: [] for name in read}
        labels: list[str] = []
        for _, row in rows:
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
    pos = np.stack([np.array(cells.pop(axis), np.float64) for axis in AXES], axis=1)
    columns = {name: np.array(values) for name, values in cells.items()}
    return _of_columns(path, pos, columns | ({LABEL: np.array(labels)} if LABEL in words else {}))


def csv_bytes(pos: Sequence[Sequence[float]], labels: Sequence[str]) -> bytes:
    """A table of coordinates and a class of each point, which `read_cloud` reads again."""
    content = io.StringIO(newline="")
    rows = csv.writer(content)
    rows.writerow([*AXES, LABEL])
    rows.writerows([*coordinates, label] for coordinates, label in zip(pos, labels, strict=True))
    return content.getvalue().encode()
