"""Memory-mapped arrays equal those that were written, and damaged files or misfits raise errors."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.tasks.files import mapped, npz_arrays
from fredholm.tasks.files.mapped import Rows, arrays_of_files, is_mapped, shards_of, shards_of_some
from fredholm.tasks.files.npz_arrays import load_arrays
from tests.refusals import refused


def held() -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(0)
    return {
        "x": drawn.integers(0, 256, (7, 5, 3), dtype=np.uint8),
        "fortran": np.asfortranarray(drawn.normal(size=(7, 5)).astype(np.float32)),
        "large_end": drawn.normal(size=(3, 2)).astype(">f8"),
        "names": np.array(["a", "bc"]),
        "none": np.zeros((0, 4)),
        "one": np.array(3.0, np.float32),
    }


def test_uncompressed_arrays_are_mapped(tmp_path: Path) -> None:
    arrays = held()
    np.savez(tmp_path / "a.npz", **arrays)  # pyright: ignore[reportArgumentType]
    np.savez_compressed(tmp_path / "b.npz", **arrays)  # pyright: ignore[reportArgumentType]
    for name, is_there in (("a.npz", {"x", "fortran"}), ("b.npz", set())):
        found = load_arrays(tmp_path / name, map_from=100)
        assert {key for key, array in found.items() if is_mapped(array)} == is_there
        for key, array in arrays.items():
            np.testing.assert_array_equal(found[key], array)
            assert found[key].dtype == array.dtype
            assert found[key].flags.writeable == (key not in is_there)
    assert not any(map(is_mapped, load_arrays(tmp_path / "a.npz").values()))
    np.save(tmp_path / "c.npy", arrays["fortran"])
    found = load_arrays(tmp_path / "c.npy", alone="x", map_from=100)["x"]
    assert is_mapped(found)
    np.testing.assert_array_equal(found, arrays["fortran"])
    assert is_mapped(found[2:5].T)
    assert not is_mapped(np.array(found))


def test_mapped_arrays_are_checked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(5000, dtype=np.int32)
    np.savez(tmp_path / "a.npz", x=x)
    whole = bytearray((tmp_path / "a.npz").read_bytes())
    whole[-9000] ^= 1
    (tmp_path / "a.npz").write_bytes(whole)
    monkeypatch.setattr(npz_arrays, "_CHUNK", 1000)
    with refused(ValueError, "a.npz: cannot be read as an .npz file (Bad CRC-32"):
        load_arrays(tmp_path / "a.npz", map_from=0)
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        np.save(tmp_path / "x.npy", x)
        archive.writestr("x.npy", (tmp_path / "x.npy").read_bytes()[:-4])
    with refused(ValueError, "b.npz: cannot be read", "its header promises int32 (5000,); 19,996 bytes follow"):
        load_arrays(tmp_path / "b.npz", map_from=0)
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-4])
    with refused(ValueError, "x.npy: cannot be read", "19,996 bytes follow"):
        load_arrays(tmp_path / "x.npy", alone="x", map_from=0)


def test_the_error_for_a_compressed_array_that_does_not_fit_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise MemoryError

    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1000))
    np.savez(tmp_path / "b.npz", x=np.zeros(1000))
    monkeypatch.setattr(np, "empty", full)
    with refused(ValueError, "8,000 bytes, which do not fit into memory; save it with numpy.savez, not compressed"):
        load_arrays(tmp_path / "a.npz", map_from=0)
    with refused(ValueError, "the array 'x': it takes 8,000 bytes, which do not fit into memory)"):
        load_arrays(tmp_path / "b.npz")


def test_rows_of_several_arrays_are_numbered_consecutively() -> None:
    whole = np.random.default_rng(0).normal(size=(20, 3))
    rows = Rows([whole[:7], whole[7:7], whole[7:8], whole[8:]], ["a", "b", "c", "d"])
    assert (len(rows), rows.shape, rows.dtype) == (20, (20, 3), whole.dtype)
    for numbers in ([3, 19, 7, 7, 0, 8], [], [6]):
        found = rows[np.array(numbers, np.int64)]
        np.testing.assert_array_equal(found, whole[numbers])
        assert found.base is None
    assert [rows.place(i) for i in (0, 6, 7, 8, 19)] == [("a", 0), ("a", 6), ("c", 0), ("d", 0), ("d", 11)]
    assert rows.shards is None
    with refused(ValueError, "b: an array of rows is float64 (2, 4), and in a float64 (2, 3); give all the same type"):
        Rows([np.zeros((2, 3)), np.zeros((2, 4))], ["a", "b"])
    with refused(ValueError, "a: an array of rows is float64 (), a single number"):
        Rows([np.array(1.0)], ["a"])


def test_shards_are_ranges_of_similar_size_within_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "SHARD_BYTES", 30)
    assert shards_of(7, 10.0).tolist() == [2, 2, 3]
    assert shards_of(2, 1000.0).tolist() == [1, 1]
    assert shards_of(5, 0.1).tolist() == [5]
    for name, count in (("a.npy", 7), ("b.npy", 3)):
        np.save(tmp_path / name, np.zeros((count, 10), np.uint8))
    arrays = [load_arrays(tmp_path / name, alone="x", map_from=0)["x"] for name in ("a.npy", "b.npy")]
    rows = Rows(arrays, ["a", "b"])
    assert rows.shards is not None
    assert rows.shards.tolist() == [2, 2, 3, 3]
    some = shards_of_some(rows.shards, torch.tensor([0, 1, 4, 7, 8, 9]))
    assert some is not None
    assert some.tolist() == [2, 1, 3]
    assert shards_of_some(rows.shards, torch.tensor([1, 0])) is None
    assert shards_of_some(None, torch.tensor([0, 1])) is None


def test_arrays_of_several_files_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.arange(24).reshape(6, 4), np.arange(6)
    for name, part in (("a", slice(0, 2)), ("b", slice(2, 6))):
        np.savez(tmp_path / f"{name}.npz", x=x[part], y=y[part], classes=np.array(["u", "v"]))
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for large in (0, 1 << 30):
        monkeypatch.setattr(mapped, "LARGE", large)
        (rows,), others = arrays_of_files(files, rows=("x",), shared=("classes",))
        assert (rows.shards is None) == (large > 0)
        np.testing.assert_array_equal(rows[np.arange(6)], x)
        assert others["y"].tolist() == y.tolist()
        assert others["classes"].tolist() == ["u", "v"]
        assert others.keys() == {"y", "classes"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"classes": np.array(["u", "w"])}, "b.npz: classes are others than in a.npz"),
        ({"y": np.zeros(4)}, "b.npz: y is float64 (4,), and in a.npz int64 (2,)"),
        ({"x": np.zeros((4, 3), int)}, "b.npz: an array of rows is int64 (4, 3), and in a.npz int64 (2, 4)"),
        (
            {"z": np.zeros(4)},
            "has the arrays x, y, classes, z; expected 'x', and in all files the same as a.npz",
        ),
    ]
    for change, message in cases:
        np.savez(tmp_path / "b.npz", **{"x": x[2:], "y": y[2:], "classes": np.array(["u", "v"]), **change})
        with refused(ValueError, message):
            arrays_of_files(files, rows=("x",), shared=("classes",))
    np.savez(tmp_path / "a.npz", y=y)
    with refused(ValueError, "a.npz: has the arrays y; expected 'x'"):
        arrays_of_files(files[:1], rows=("x",), shared=())
