"""Each kind of mesh file is read exactly, to its last byte, or refused with its line or byte."""

import struct
from pathlib import Path

import numpy as np
import pytest

from fredholm.tasks.points.mesh_file import read_mesh
from tests.refusals import refused

SQUARE = [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, 0.0), (0.0, 1.0, 0.0)]
HALVES = [[0, 1, 2], [0, 2, 3]]
ROOF = [*SQUARE, (-1.0, 0.5, 0.0)]
XYZ = "property float x\nproperty float y\nproperty float z\n"
CORNERS = "property list uchar int vertex_indices\n"


def rows(vertices: list[tuple[float, ...]], before: str = "", behind: str = "") -> str:
    return "".join(f"{before}{' '.join(map(str, each))}{behind}\n" for each in vertices)


def off(faces: str, *, head: str = "OFF", vertices: str = rows(SQUARE), count: int = 2) -> str:
    return f"{head}\n{vertices.count(chr(10))} {count} 0\n{vertices}{faces}"


def ply(body: str | bytes, *, of_faces: str = CORNERS, kind: str = "ascii", vertices: int = 4, faces: int = 2) -> bytes:
    head = f"ply\nformat {kind} 1.0\ncomment a\nelement vertex {vertices}\n{XYZ}element face {faces}\n{of_faces}"
    return f"{head}end_header\n".encode() + (body.encode() if isinstance(body, str) else body)


def stl(triangles: list[list[tuple[float, ...]]], name: str = "a") -> str:
    facets = "".join(
        f" facet normal 0 0 1\n  outer loop\n{rows(corners, '   vertex ')}  endloop\n endfacet\n"
        for corners in triangles
    )
    return f"solid {name}\n{facets}endsolid {name}\n"


def binary_stl(triangles: list[list[tuple[float, ...]]], count: int | None = None) -> bytes:
    records = [struct.pack("<12fH", 0, 0, 1, *np.ravel(corners), 0) for corners in triangles]
    return b"solid".ljust(80) + struct.pack("<I", len(records) if count is None else count) + b"".join(records)


def binary(faces: list[list[int]], order: str, more: bytes = b"") -> bytes:
    of_faces = b"".join(struct.pack(f"{order}B{len(face)}i", len(face), *face) + more for face in faces)
    return b"".join(struct.pack(f"{order}3f", *vertex) for vertex in SQUARE) + of_faces


def read(folder: Path, name: str, content: str | bytes) -> tuple[list[tuple[float, ...]], list[list[int]]]:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    mesh = read_mesh(path)
    assert (mesh.vertices.dtype, mesh.triangles.dtype) == (np.float64, np.int64)
    return [*map(tuple, mesh.vertices.tolist())], mesh.triangles.tolist()


FAN = [[0, 1, 2], [0, 2, 3], [0, 3, 4]]
OBJ = rows(SQUARE, "v ")
SAME: dict[str, tuple[str | bytes, list[list[int]]]] = {
    "triangles.off": (off("3 0 1 2\n3 0 2 3\n"), HALVES),
    "a quad.off": (off("4 0 1 2 3\n", count=1), HALVES),
    "colours.off": (off("3 0 1 2 9 9 9\n3 0 2 3 1\n", head="COFF", vertices=rows(SQUARE, behind=" 1 2 3 4")), HALVES),
    "normals.off": (off("3 0 1 2\n3 0 2 3\n", head="NOFF", vertices=rows(SQUARE, behind=" 0 0 1")), HALVES),
    "comments.off": ("# an OFF\n\n" + off("3 0 1 2 # a\n3 0 2 3\n").replace("\n", "\r\n"), HALVES),
    "counts beside the word.off": (off("3 0 1 2\n3 0 2 3\n").replace("OFF\n", "OFF"), HALVES),
    "triangles.obj": (OBJ + "f 1 2 3\nf 1 3 4\n", HALVES),
    "a quad.obj": (OBJ + "f 1 2 3 4\n", HALVES),
    "counted back.obj": (rows(SQUARE[:3], "v ") + "f -3 -2 -1\nv 0 1 0\nf -4 -2 -1\n", HALVES),
    "textures and normals.obj": (OBJ + "vt 0 0\nvn 0 0 1\nf 1/1 2/1 3/1\nf 1//1 3//1 4//1\n", HALVES),
    "blanks and comments.obj": ("\to a\n" + OBJ.replace(" ", "\t") + "  f 1 2 \\\n 3 # a\nf\t1 3 4\n", HALVES),
    "weights and colours.obj": (
        rows(SQUARE[:2], "v ", " 1") + rows(SQUARE[2:], "v ", " .1 .2 .3") + "f 1 2 3 4",
        HALVES,
    ),
    "text.ply": (ply(rows(SQUARE) + "3 0 1 2\n3 0 2 3\n"), HALVES),
    "another name.ply": (
        ply(rows(SQUARE) + "4 0 1 2 3\n", of_faces=CORNERS.replace("vertex_indices", "at"), faces=1),
        HALVES,
    ),
    "colours before.ply": (
        ply(rows(SQUARE) + "9 3 0 1 2\n9 3 0 2 3\n", of_faces="property uchar red\n" + CORNERS),
        HALVES,
    ),
    "little.ply": (ply(binary(HALVES, "<"), kind="binary_little_endian"), HALVES),
    "big.ply": (ply(binary(HALVES, ">"), kind="binary_big_endian"), HALVES),
    "little mixed.ply": (
        ply(binary([[0, 1, 2, 3], [0, 1, 2]], "<"), kind="binary_little_endian"),
        [*HALVES, [0, 1, 2]],
    ),
    "big mixed.ply": (
        ply(
            binary([[0, 1, 2], [0, 1, 2, 3]], ">", b"\7"),
            of_faces=CORNERS + "property uchar red\n",
            kind="binary_big_endian",
        ),
        [[0, 1, 2], *HALVES],
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_a_square_in_every_form(tmp_path: Path, name: str) -> None:
    content, triangles = SAME[name]
    assert read(tmp_path, name, content) == (SQUARE, triangles)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.off", off("5 0 1 2 3 4\n", vertices=rows(ROOF), count=1)),
        ("a.obj", rows(ROOF, "v ") + "f 1 2 3 4 5\n"),
        ("a.ply", ply(rows(ROOF) + "5 0 1 2 3 4\n", vertices=5, faces=1)),
    ],
)
def test_polygons_are_triangulated_from_their_first_corner(tmp_path: Path, name: str, content: str | bytes) -> None:
    assert read(tmp_path, name, content) == (ROOF, FAN)


def test_faces_of_several_sizes_stay_in_their_order(tmp_path: Path) -> None:
    found = read(tmp_path, "a.off", off("3 0 3 4\n5 0 1 2 3 4\n4 0 1 2 3\n", vertices=rows(ROOF), count=3))
    assert found == (ROOF, [[0, 3, 4], *FAN, *HALVES])


def test_triangles_that_share_no_corners(tmp_path: Path) -> None:
    corners = [[SQUARE[k] for k in face] for face in HALVES]
    expected = [vertex for each in corners for vertex in each], [[0, 1, 2], [3, 4, 5]]
    assert read(tmp_path, "a.stl", binary_stl(corners)) == expected
    assert read(tmp_path, "b.stl", stl(corners, "vertex normal of a solid")) == expected
    assert read(tmp_path, "c.stl", stl(corners).upper().replace("\n", "\r\n")) == expected
    assert read(tmp_path, "d.stl", stl(corners[:1]) + stl(corners[1:], "b")) == expected


def test_other_elements_are_skipped(tmp_path: Path) -> None:
    head = [
        *("ply", "format ascii 1.0", "element camera 1", "property float at", "element face 1"),
        *("property list uchar uint vertex_index", "element vertex 4", "property float y", "property float x"),
        *("property float z", "property list uchar int seen", "element edge 1", "property int a", "property int b"),
    ]
    body = ["7", "4 0 1 2 3", rows([(y, x, z) for x, y, z in SQUARE], behind=" 2 5 6").strip(), "0 1", ""]
    assert read(tmp_path, "a.ply", "\n".join([*head, "end_header", *body])) == (SQUARE, HALVES)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.off", off("3 0 1 2\n3 0 2\n"), ", line 8: face 2 promises 3 vertices; 2 follow"),
        ("a.off", off("4 0 1 2 3\n3 0 2\n"), ", line 8: face 2 promises 3 vertices; 2 follow"),
        ("a.off", off("3 0 1 2\n2 0 3\n"), ", line 8: a face has 2 vertices; expected at least 3"),
        ("a.off", off("3 0 1 2\n3 0 2 -1\n"), ", line 8: a face has the vertex number -1; expected 0 to 3"),
        ("a.off", off("3 0 1 2\n3 0 2 2.0\n"), ", line 8: '2.0' is no whole number"),
        ("a.off", off("3 0 1 2\n3 0 2 3\n3 0 1 3\n"), ", line 9: goes on behind the last of 4 vertices and 2 faces"),
        ("a.off", off("3 0 1 2\n"), ": promises 4 vertices and 2 faces; it has 4 and 1"),
        (
            "a.off",
            off("3 0 1 2\n3 0 2 3\n").replace("4 2 0", "5 2 0"),
            ", line 7: vertex 4 (from 0) has 4 numbers",
        ),
        (
            "a.off",
            off("3 0 1 2\n3 0 2 3\n", head="4OFF", vertices=rows(SQUARE, behind=" 1")),
            ", line 1: is of the kind",
        ),
        ("a.off", off("3 0 1 2\n3 0 2 3\n").replace("\n", " "), ", line 1: '0.0' is no whole number"),
        ("a.off", "OFF BINARY\n1 0 0\n", ", line 1: is of the kind OFF BINARY"),
        ("a.obj", OBJ + "f 0 1 2\n", ", line 5: a face has the vertex number 0, of 4 vertices so far"),
        ("a.obj", OBJ + "f 1 2 -5\n", ", line 5: a face has the vertex number -5, of 4 vertices so far"),
        ("a.obj", OBJ + "f 1 2 3\nf 1 2 5\n", ", line 6: a face has the vertex number 5; expected 1 to 4"),
        ("a.obj", OBJ + "f 1 2 3\nf 1 2\n", ", line 6: a face has 2 vertices; expected at least 3"),
        ("a.obj", OBJ + "f\nf 1 2 3\n", ", line 5: a face has 0 vertices; expected at least 3"),
        ("a.obj", "v 0 0\n", ", line 1: vertex 1 has 2 numbers; expected 3"),
        ("a.obj", "v 0 0 1_0\n", ", line 1: '1_0' is no number"),
        (
            "a.obj",
            "v 0 0 1e99\n",
            ": vertex 1 (from 1): its coordinates are 0, 0, 1e+99; expected",
        ),
        ("a.stl", stl([SQUARE]), ", line 7: begins with 'vertex'; expected endloop"),
        ("a.stl", stl([SQUARE[:2]]), ", line 6: begins with 'endloop'; expected vertex"),
        ("a.stl", stl([SQUARE[:3]]).partition("endsolid")[0], ": ends too early; expected facet or endsolid"),
        ("a.stl", binary_stl([SQUARE[:3]]) + b"more", ": promises 1 triangles, so 134 bytes; it has 138"),
        ("a.stl", binary_stl([SQUARE[:3]])[:-5], ": promises 1 triangles, so 134 bytes; it has 129"),
        ("a.stl", binary_stl([SQUARE[:3]], 2), ": promises 2 triangles, so 184 bytes; it has 134"),
        ("a.stl", b"hello", ": has 5 bytes; a binary .stl file has at least 84"),
        (
            "a.ply",
            ply(rows(SQUARE) + "4 0 1 2 3\n3 0 1\n"),
            ", line 16: face 2 ends within its property 'vertex_indices'",
        ),
        (
            "a.ply",
            ply(rows(SQUARE) + "3 0 1 2\n3 0 1 4\n"),
            ", face 2: a face has the vertex number 4; expected 0 to 3",
        ),
        ("a.ply", ply(rows(SQUARE) + "3 0 1 2\n3 0 2 3 3\n"), ", line 16: face 2 has 5 words; expected 4"),
        ("a.ply", ply(rows(SQUARE) + "3 0 1 2\n"), ": promises 2 of 'face'; it has 1"),
        ("a.ply", ply(rows(SQUARE) + "3 0 1 2\n3 0 2 3\nhi\n"), ", line 17: goes on behind the last of the elements"),
        ("a.ply", ply(rows(SQUARE) + "3 0 1 2\n300 0 2 3\n"), ", line 16: face 2 ends within"),
        ("a.ply", ply(binary(HALVES, "<") + b"a", kind="binary_little_endian"), ", byte 254: goes on behind the last"),
        (
            "a.ply",
            ply(binary(HALVES, "<")[:-1], kind="binary_little_endian"),
            ": promises 2 of 'face', but ends before",
        ),
        ("a.ply", ply(binary([[0, 1, 2], []], "<"), kind="binary_little_endian"), ", face 2: a face has 0 vertices"),
        (
            "a.ply",
            ply("", of_faces="property float red\n", vertices=0, faces=0).replace(b"ascii", b"text"),
            ", line 2: ",
        ),
        (
            "a.ply",
            ply("").replace(b"element face", b"element edge 0\nelement edge"),
            "the element 'edge' is there twice",
        ),
        ("a.ply", ply("").partition(b"end_header")[0], ": ends within its header; expected end_header"),
        (
            "a.ply",
            ply("").replace(b"list uchar", b"list float"),
            ", line 9: the list 'vertex_indices' is counted by float",
        ),
    ],
)
def test_the_error_for_a_broken_file_says_where_it_breaks(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with refused(ValueError, f"{path}", message):
        read_mesh(path)


def test_the_error_names_triangle_strips(tmp_path: Path) -> None:
    body = ply(rows(SQUARE) + "4 0 1 2 3\n", faces=0)
    strips = body.replace(b"end_header\n", b"element tristrips 1\nproperty list int int vertex_indices\nend_header\n")
    with refused(ValueError, "has tristrips, which are not read; write triangles as faces"):
        read(tmp_path, "a.ply", strips)


@pytest.mark.parametrize("kind", ["off", "obj", "stl", "stl_ascii", "ply", "ply_ascii"])
def test_files_of_another_writer(tmp_path: Path, kind: str) -> None:
    trimesh = pytest.importorskip("trimesh")
    ball = trimesh.creation.icosphere(subdivisions=2, radius=3.0)
    ending = kind.partition("_")[0]
    path = tmp_path / f"a.{ending}"
    written = {"encoding": "ascii"} if kind == "ply_ascii" else {}
    ball.export(path, file_type="stl_ascii" if kind == "stl_ascii" else ending, **written)
    mesh = read_mesh(path)
    corners = mesh.vertices[mesh.triangles]
    np.testing.assert_allclose(corners, ball.vertices[ball.faces], rtol=0, atol=1e-6)
