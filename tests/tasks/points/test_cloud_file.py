import struct
from pathlib import Path

import numpy as np
import pytest

from fredholm.tasks.points import csv_bytes, read_cloud
from tests.refusals import refused
from tests.tasks.points.build import FLAT_FACES, write_off, write_xyz

pytest.importorskip("trimesh")


def test_a_mesh_gives_points_drawn_evenly_on_its_surface(tmp_path: Path) -> None:
    path = write_off(tmp_path / "cube.off", scale=2.0)
    cloud = read_cloud(path, num_samples=6000, normals=True)
    assert (cloud.pos.shape, cloud.channels, cloud.is_sampled) == ((6000, 3), ("nx", "ny", "nz"), True)
    on_face = np.isclose(cloud.pos, 0) | np.isclose(cloud.pos, 2)
    assert on_face.any(1).all()
    assert np.allclose(np.abs(cloud.features).sum(1), 1)
    assert (np.abs(cloud.features)[~on_face] < 1e-6).all()
    for axis in range(3):
        for side in (0, 2):
            assert abs(np.isclose(cloud.pos[:, axis], side).mean() - 1 / 6) < 0.02
    again = read_cloud(path, num_samples=6000)
    assert np.array_equal(again.pos, cloud.pos)
    assert again.channels == ()
    assert np.array_equal(read_cloud(path, num_samples=5).pos.shape, (5, 3))


def test_large_faces_get_more_points(tmp_path: Path) -> None:
    path = write_off(
        tmp_path / "a.off", [(0, 0, 0), (3, 0, 0), (0, 1, 0), (3, 0, 5), (4, 0, 5), (3, 1, 5)], [(0, 1, 2), (3, 4, 5)]
    )
    drawn = read_cloud(path, num_samples=4000).pos
    assert abs((drawn[:, 2] == 0).mean() - 3 / 4) < 0.03


def test_several_meshes_of_one_file_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "two.obj"
    path.write_text(
        "mtllib none.mtl\no a\nv 0 0 0\nv 1 0 0\nv 0 1 0\nusemtl a\nf 1 2 3\n"
        "o b\nv 0 0 9\nv 1 0 9\nv 0 1 9\nusemtl b\nf 4 5 6\nl 1 2\n"
    )
    drawn = read_cloud(path, num_samples=500).pos
    assert set(drawn[:, 2].tolist()) == {0.0, 9.0}


def test_a_mesh_without_faces_gives_its_vertices(tmp_path: Path) -> None:
    pos = np.arange(12.0).reshape(4, 3)
    off = write_off(tmp_path / "a.off", pos, [])
    obj = tmp_path / "a.OBJ"
    obj.write_text("".join(f"v {x} {y} {z}\n" for x, y, z in pos))
    for path in (off, obj):
        cloud = read_cloud(path)
        assert np.array_equal(cloud.pos, pos)
        assert (cloud.channels, cloud.is_sampled, cloud.weights) == ((), False, None)


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian"])
def test_properties_of_the_vertices_of_a_ply_file(tmp_path: Path, kind: str) -> None:
    names = ["x", "y", "z", "nx", "weight", "red"]
    rows = [(0.0, 1.0, 2.0, 0.5, 3.0, 7, 2), (3.0, 4.0, 5.0, 0.25, 4.0, 9, 11)]
    header = ["ply", f"format {kind} 1.0", "element vertex 2", *(f"property float {name}" for name in names[:5])]
    header += ["property uchar red", "property int label", "end_header", ""]
    if kind == "ascii":
        body = "".join(" ".join(map(str, row)) + "\n" for row in rows).encode()
    else:
        body = b"".join(struct.pack("<5fBi", *row) for row in rows)
    (tmp_path / "a.ply").write_bytes("\n".join(header).encode() + body)
    cloud = read_cloud(tmp_path / "a.ply")
    assert np.array_equal(cloud.pos, [[0, 1, 2], [3, 4, 5]])
    assert cloud.channels == ("nx", "red")
    assert np.array_equal(cloud.features, [[0.5, 7], [0.25, 9]])
    assert cloud.weights is not None
    assert cloud.point_labels is not None
    assert (cloud.weights.tolist(), cloud.point_labels.tolist()) == ([3, 4], ["2", "11"])
    assert np.array_equal(read_cloud(tmp_path / "a.ply", channels=("red",)).features, [[7], [9]])


def test_lines_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.xyz"
    path.write_text("# a comment\n1 2 3 4\n\n5,6, 7,8 # more\n")
    cloud = read_cloud(path)
    assert np.array_equal(cloud.pos, [[1, 2, 3], [5, 6, 7]])
    assert (cloud.features.tolist(), cloud.channels) == ([[4], [8]], ("feature_0",))
    assert read_cloud(path, channels=("heat",)).channels == ("heat",)


def test_columns_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label,Z,heat,y,x,Weight,cold\nleg,3,7,2,1,0.5,8\nseat,6,9,5,4,0,10\n")
    cloud = read_cloud(path)
    assert np.array_equal(cloud.pos, [[1, 2, 3], [4, 5, 6]])
    assert (cloud.features.tolist(), cloud.channels) == ([[7, 8], [9, 10]], ("heat", "cold"))
    assert cloud.weights is not None
    assert cloud.point_labels is not None
    assert (cloud.weights.tolist(), cloud.point_labels.tolist()) == ([0.5, 0], ["leg", "seat"])
    assert read_cloud(path, channels=("cold", "heat")).features.tolist() == [[8, 7], [10, 9]]


def test_labels_beside_a_cloud(tmp_path: Path) -> None:
    path = write_xyz(tmp_path / "a.xyz", np.ones((3, 3)))
    (tmp_path / "a.seg").write_text("2\n1\nleg\n\n")
    found = read_cloud(path).point_labels
    assert found is not None
    assert found.tolist() == ["2", "1", "leg"]


def test_written_points_are_read_again(tmp_path: Path) -> None:
    pos = [[0.1, -2.0, 1e-9], [5e6 + 0.25, 1.0, 0.0]]
    (tmp_path / "a.csv").write_bytes(csv_bytes(pos, ["a, b", "c"]))
    cloud = read_cloud(tmp_path / "a.csv")
    assert cloud.point_labels is not None
    assert (cloud.pos.tolist(), cloud.point_labels.tolist()) == (pos, ["a, b", "c"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.off", "OFF\n0 0 0\n", "a.off: has no points; expected at least one"),
        ("a.obj", "# nothing\n", "a.obj: has no points; expected at least one"),
        ("a.off", "hello\n", "a.off, line 1: begins with 'hello'; expected OFF"),
        ("a.off", "", "a.off: is empty"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 7\n", "a.off, line 6: a face has the vertex number 7"),
        (
            "a.off",
            "OFF\n3 1 0\n0 0 0\n1 0 nan\n0 1 0\n3 0 1 2\n",
            "a.off: vertex 1 (from 0): its coordinates are 1, 0, ",
        ),
        (
            "a.ply",
            "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\n0\n",
            "a.ply: its vertices have no property 'y'; they have x",
        ),
        ("a.xyz", "1 2 3\n4 five 6\n", "a.xyz, line 2: 'five' is no number; write one"),
        ("a.xyz", "1 2 3\n4 1_0 6\n", "a.xyz, line 2: '1_0' is no number; write one"),
        ("a.xyz", "1 2 3\n\n4 5\n", "a.xyz, line 3: has 2 numbers; expected 3, as in line 1"),
        ("a.xyz", "1 2\n", "a.xyz, line 1: has 2 numbers; expected at least 3"),
        ("a.xyz", "", "a.xyz: is empty"),
        ("a.xyz", "# only this\n", "a.xyz: has no points"),
        ("a.csv", "x,y\n1,2\n", "a.csv, line 1: no column 'z'; the columns are x, y"),
        ("a.csv", "x,y,z,X\n1,2,3,4\n", "a.csv, line 1: column 'X' is there twice"),
        ("a.csv", "x,y,z\n1,2,3\n1,2\n", "a.csv, line 3: has 2 cells; the header has 3"),
        ("a.csv", "x,y,z\n1,b,3\n", "a.csv, line 2: column 'y': 'b' is no number"),
        ("a.csv", "x,y,z,label\n1,2,3,\n", "a.csv, line 2: column 'label' is empty; expected the point's class"),
        ("a.csv", "x,y,z\n", "a.csv: has no points"),
        ("a.vtk", "", "a.vtk: is of no known kind; expected .ply, .off, .obj, .stl, .xyz, .csv, .parquet, .npz"),
    ],
)
def test_broken_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with refused(ValueError, str(path), message):
        read_cloud(path)


def test_misfits_are_refused(tmp_path: Path) -> None:
    with refused(ValueError, "absent.off: cannot be read (No such file or directory)"):
        read_cloud(tmp_path / "absent.off")
    xyz = write_xyz(tmp_path / "a.xyz", np.ones((3, 4)))
    with refused(ValueError, "a.xyz: has no faces to take normals from; leave normals out, or pass a mesh"):
        read_cloud(xyz, normals=True)
    with refused(ValueError, "a.xyz: has 1 features; expected 2: a, b"):
        read_cloud(xyz, channels=("a", "b"))
    mesh = write_off(tmp_path / "mesh.off", faces=FLAT_FACES)
    with refused(ValueError, "mesh.off: has no feature 'nx', 'ny', 'nz'; its features are none"):
        read_cloud(mesh, channels=("nx", "ny", "nz"))
    (tmp_path / "a.labels").write_text("1\n2\n")
    with refused(ValueError, "a.labels: has 2 labels; a.xyz has 3 points"):
        read_cloud(xyz)
    (tmp_path / "a.seg").write_text("1\n2\n3\n")
    with refused(ValueError, "a.seg: gives labels beside ", "a.labels; keep one of them"):
        read_cloud(xyz)
    (tmp_path / "mesh.seg").write_text("1\n")
    with refused(ValueError, "mesh.seg: mesh.off has faces, and points drawn on them have no labels"):
        read_cloud(mesh)


def test_normals_are_recognised_by_uppercase_column_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("X,Y,Z,NX,NY,NZ,Heat,Weight,LABEL\n1,2,3,1,0,0,7,0.5,a\n")
    cloud = read_cloud(tmp_path / "a.csv")
    assert cloud.channels == ("nx", "ny", "nz", "Heat")
    assert cloud.features.tolist() == [[1, 0, 0, 7]]
    assert read_cloud(tmp_path / "a.csv", channels=("nz", "nx")).features.tolist() == [[0, 1]]
