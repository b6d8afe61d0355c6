"""Sampled functions from files: arrays are read as written, and errors name the file and the place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.domains import Grid
from fredholm.tasks.fields import (
    FieldSet,
    Samples,
    field_set,
    neuralop,
    npz_file,
    open_fields,
    open_functions,
    read_csv,
    read_fields,
    read_npz,
)
from fredholm.tasks.fields.batches import moments
from fredholm.tasks.fields.open import read_places
from fredholm.tasks.files import mapped
from fredholm.tasks.splits.splits import Splits
from tests.refusals import refused


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape)


@pytest.mark.parametrize("unit", [1.0, 2.0**-60, 2.0**60])
def test_moments_follow_the_unit(unit: float) -> None:
    values = torch.from_numpy(drawn(7, 11, 2))
    values[..., 1] = 0.7  # in float64 its mean is rounded
    pos, exists = torch.zeros(7, 11, 1), torch.ones(7, 11, dtype=torch.bool)
    found, usual = (moments(lambda k=k: [Samples(pos, k * values, exists)]) for k in (unit, 1.0))
    assert found.deviation[0] == pytest.approx(unit * usual.deviation[0])
    assert found.mean == pytest.approx([unit * mean for mean in usual.mean])
    assert found.deviation[1] == 1.0


def write(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "set.npz", **arrays)
    return folder / "set.npz"


def read(folder: Path, **arrays: Any) -> FieldSet:
    found = read_npz(write(folder, **arrays))
    assert isinstance(found, FieldSet)
    return found


def test_points_may_be_shared_or_belong_to_each_function(tmp_path: Path) -> None:
    values, own, shared = drawn(3, 5, 2), drawn(3, 5, 1), drawn(5, 1)
    for pos in (own, shared):
        found = read(tmp_path, values=values, pos=pos)
        assert torch.equal(found.given.values, torch.from_numpy(values).float())
        assert torch.equal(found.given.pos, torch.from_numpy(np.broadcast_to(pos, (3, 5, 1)).copy()))
        assert (found.coordinates, found.channels) == (("x",), ("value 1", "value 2"))
        assert found.given.mask is None
        assert found.targets is found.given
    assert read(tmp_path, values=values[..., 0], pos=own).channels == ("value",)


def test_functions_may_differ_in_their_number_of_samples(tmp_path: Path) -> None:
    values, pos, offsets = drawn(6), drawn(6, 2), np.array([0, 2, 6])
    found = read(tmp_path, values=values, pos=pos, offsets=offsets)
    assert found.given.mask is not None
    assert found.given.mask.tolist() == [[True, True, False, False], [True] * 4]
    for i, (start, end) in enumerate(((0, 2), (2, 6))):
        assert torch.equal(found.given.pos[i, : end - start], torch.from_numpy(pos[start:end]))
        assert torch.equal(found.given.values[i, : end - start, 0], torch.from_numpy(values[start:end]).float())


def test_values_without_positions_lie_on_a_grid(tmp_path: Path) -> None:
    plane = read(tmp_path, values=drawn(2, 3, 4))
    assert torch.equal(plane.given.pos[1], Grid(3, 4).pos)
    assert plane.given.values.shape == (2, 12, 1)
    for shape in ((2, 3, 12), (2, 12, 3)):
        with pytest.warns(
            UserWarning, match="read as functions on .* points; if an axis is of channels, make it the last"
        ):
            read(tmp_path, values=drawn(*shape))
    coloured = read(tmp_path, values=drawn(2, 3, 4), channels=["a", "b", "c", "d"])
    assert torch.equal(coloured.given.pos[0], Grid(3).pos)
    assert coloured.given.values.shape == (2, 3, 4)


STORED: dict[str, dict[str, Any]] = {
    "a grid": {"values": drawn(7, 3, 4), "target_values": drawn(7, 5, 2)},
    "channels": {
        "values": drawn(7, 3, 4),
        "channels": list("abcd"),
        "target_values": drawn(7, 6, 2),
        "target_channels": ["u", "v"],
    },
    "points of all": {
        "values": drawn(7, 5, 2),
        "pos": drawn(5, 2),
        "target_values": drawn(7, 4),
        "target_pos": drawn(4, 2),
    },
    "trajectories": {"trajectories": drawn(7, 4, 3, 5)},
    "trajectories of points": {"trajectories": drawn(7, 4, 5, 2), "pos": drawn(5, 1)},
    "whole numbers": {"values": np.arange(28).reshape(7, 4)},
}
IN_MEMORY: dict[str, dict[str, Any]] = {
    "missing": {"values": np.where(np.arange(28).reshape(7, 4) == 9, np.nan, 1.0)},
    "points of each": {"values": drawn(7, 5), "pos": drawn(7, 5, 1)},
}


@pytest.mark.parametrize("name", [*STORED, *IN_MEMORY])
def test_large_arrays_stay_in_their_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {**STORED, **IN_MEMORY}[name]
    expected = read(tmp_path, **arrays)
    monkeypatch.setattr(npz_file, "LARGE", 0)
    found = read(tmp_path, **arrays)
    assert (found.given.stored is not None) == (name in STORED)
    some = torch.tensor([5, 0, 5])
    for own, other in ((found, expected), (found.select(some), expected.select(some))):
        for samples, theirs in ((own.given, other.given), (own.targets, other.targets)):
            assert torch.equal(samples.values, theirs.values)
            assert torch.equal(samples.pos, theirs.pos)
            assert torch.equal(samples.exists, theirs.exists)
            assert torch.equal(samples.counts, theirs.exists.sum(1))
            assert samples.share_places == theirs.share_places
            assert all(map(torch.equal, samples.places, theirs.places))
        assert (own.names, own.channels, own.target_channels) == (other.names, other.channels, other.target_channels)
        assert own.num_steps == other.num_steps
    rows = found.select(torch.tensor([1, 2, 4])).shards
    assert (rows is None) == (name in IN_MEMORY)
    assert rows is None or rows.tolist() == [3]
    monkeypatch.setattr(field_set, "CHUNK", 1)
    assert [len(part) for part in found.parts()] == [1] * 7


@pytest.mark.parametrize("name", STORED)
def test_files_of_arrays_are_one_set(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = STORED[name]
    expected = read(tmp_path, **arrays)
    for large in (0, 1 << 30):
        for module in (mapped, npz_file):
            monkeypatch.setattr(module, "LARGE", large)
        for names, order in ((("0", "1"), range(7)), (("test", "train"), range(3, 7))):
            folder = tmp_path / f"{names[0]} {large}"
            folder.mkdir()
            for file, part in zip(names, (slice(0, 3), slice(3, 7)), strict=True):
                own = {key: array[part] if key in npz_file.ROWS else array for key, array in arrays.items()}
                np.savez(folder / f"{file}.npz", **own)
            opened = open_fields(folder) if name == "whole numbers" else open_functions(folder)
            found = opened.train if isinstance(opened, Splits) else opened
            wanted = expected.select(torch.tensor(list(order)))
            assert torch.equal(found.given.values, wanted.given.values)
            assert torch.equal(found.targets.values, wanted.targets.values)
            assert (found.given.stored is not None) == (large == 0)
            assert found.names[0] == ("0.npz, function 0" if names[0] == "0" else "train.npz, function 0")
            if names[0] == "test":
                assert isinstance(opened, Splits)
                assert torch.equal(opened.held_out("test").given.values, expected.given.values[:3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pos": drawn(5, 1)}, "b.npz: pos are others than in a.npz"),
        ({"values": drawn(2, 6)}, "b.npz: an array of rows is float64 (2, 6), and in a.npz float64 (2, 5)"),
        ({"values": np.full((2, 5), np.inf)}, "b.npz, function 0: the value of sample 0 of the samples is inf"),
        ({"offsets": np.array([0, 5, 10])}, "b.npz: has the arrays values, pos, offsets"),
    ],
)
def test_files_of_arrays_that_do_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays = {"values": drawn(2, 5), "pos": np.arange(5.0)[:, None]}
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez(tmp_path / "b.npz", **{**arrays, **change})
    with refused(ValueError, message):
        open_fields(tmp_path)


def test_values_that_are_nan_are_no_samples(tmp_path: Path) -> None:
    values = drawn(2, 3, 2)
    values[1, 2] = np.nan
    found = read(tmp_path, values=values, pos=drawn(3, 1))
    assert found.given.mask is not None
    assert found.given.mask.tolist() == [[True] * 3, [True, True, False]]
    assert bool(found.given.values.isfinite().all())


@pytest.mark.parametrize(("order", "shares"), [([0, 1, 2, 3], True), ([0, 2, 1, 3], False)])
def test_rows_of_a_grid_may_be_missing_in_a_table(tmp_path: Path, order: list[int], *, shares: bool) -> None:
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    rows = [f"{name},{places[k][0]},{places[k][1]},{n}{k}" for n, name in enumerate("abc") for k in order if k != n]
    (tmp_path / "t.csv").write_text("\n".join(["field,x,y,heat", *rows]))
    given = read_csv(tmp_path / "t.csv").given
    assert given.share_places == shares
    assert given.exists.shape == (3, 4 if shares else 3)
    for n, (pos, there, values) in enumerate(zip(given.pos, given.exists, given.values, strict=True)):
        found = [([*map(int, at)], int(value)) for at, value in zip(pos[there].tolist(), values[there], strict=True)]
        assert found == [([*places[k]], 10 * n + k) for k in order if k != n]


def test_targets_may_lie_at_other_points_and_have_other_channels(tmp_path: Path) -> None:
    arrays = {"values": drawn(2, 3), "pos": drawn(3, 2), "target_values": drawn(2, 4, 2), "target_pos": drawn(2, 4, 2)}
    found = read(tmp_path, **arrays, target_channels=["u", "v"], coordinates=["lon", "lat"])
    assert found.targets.values.shape == (2, 4, 2)
    assert (found.coordinates, found.target_channels) == (("lon", "lat"), ("u", "v"))
    assert torch.equal(found.select(torch.tensor([1])).targets.pos[0], torch.from_numpy(arrays["target_pos"][1]))


def test_a_split_is_given_by_names_of_arrays_or_by_is_test(tmp_path: Path) -> None:
    values, pos = drawn(5, 3), drawn(3, 1)
    named = read_npz(write(tmp_path, train_values=values[:3], test_values=values[3:], pos=pos))
    flagged = read_npz(write(tmp_path, values=values, pos=pos, is_test=np.arange(5) >= 3))
    assert isinstance(named, Splits)
    assert isinstance(flagged, Splits)
    for found in (named, flagged):
        assert torch.equal(found.train.given.values[..., 0], torch.from_numpy(values[:3]).float())
        assert len(found.held_out("test")) == 2
    whole = open_fields(write(tmp_path, values=values, pos=pos))
    assert (len(whole.train), whole.test, whole.is_given) == (5, None, False)
    assert whole.train.keys.names == whole.train.names
    assert whole.train.keys.strata == [0] * 5


def test_a_table_has_one_row_per_sample(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("field,y,x,heat\na,1,2,3\nb,4,5,6\na,7,8,9\n")
    found = read_csv(path)
    assert (found.coordinates, found.channels, found.names) == (
        ("x", "y"),
        ("heat",),
        ("t.csv, field a", "t.csv, field b"),
    )
    assert found.given.pos[0].tolist() == [[2, 1], [8, 7]]
    assert found.given.values[..., 0].tolist() == [[3, 9], [6, 0]]
    assert found.given.mask is not None
    assert found.given.mask.tolist() == [[True, True], [True, False]]
    other = read_csv(path, coordinates=("heat",), channels=("x",))
    assert other.given.pos[1, 0].tolist() == [6]
    assert other.channels == ("x",)


def test_images_are_functions_of_the_plane() -> None:
    found = open_fields("digits")
    assert (len(found.train), found.train.coordinates, found.train.channels) == (1437, ("y", "x"), ("grey",))
    assert found.train.given.pos.stride(0) == 0  # one grid for all
    assert found.train.given.values.shape == (1437, 64, 1)
    assert 0.9 < float(found.train.given.values.max()) <= 1


def test_darcy_flow_predicts_the_solution_from_the_coefficient(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    for split, n, size in (("train", 3, 16), ("test", 2, 16), ("test", 2, 32)):
        arrays[f"darcy_{split}_{size}_x"] = drawn(n, size, size) > 0
        arrays[f"darcy_{split}_{size}_y"] = drawn(n, size, size).astype(np.float32)
    path = tmp_path / "neuralop_pde.npz"
    np.savez(path, **arrays)
    coarse, fine = open_fields(path).held_out("test"), neuralop(path, resolution=32).held_out("test")
    assert set(coarse.given.values.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(coarse.targets.values.reshape(2, 16, 16), torch.from_numpy(arrays["darcy_test_16_y"]))
    even = fine.given.pos[0].reshape(32, 32, 2)[::2, ::2].reshape(-1, 2)
    assert torch.equal(even, coarse.given.pos[0])
    with pytest.raises(ValueError, match="resolution is 64; darcy has 16, 32"):
        neuralop(path, resolution=64)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pos": drawn(3, 1)}, "has no array 'values'; the arrays are pos"),
        ({"values": np.array(["a"])}, "values is <U1; expected real numbers$"),
        ({"values": drawn(2, 3) * 1j}, "values is complex128; expected real numbers, such as the real and"),
        ({"values": np.array(1.0)}, r"values is \(\) without positions; expected a grid"),
        (
            {"values": drawn(2, 3), "target_values": drawn(2, 1, 3)},
            "if it is of channels, make it the last and name the channels in the array target_channels$",
        ),
        ({"values": drawn(2, 3), "pos": drawn(3)}, r"pos is \(3,\); .* a single coordinate is an axis too, \(3, 1\)"),
        ({"values": drawn(2, 3), "pos": drawn(4, 1)}, r"values is \(2, 3\) and pos is \(4, 1\); expected"),
        ({"values": drawn(0, 5)}, r"values is \(0, 5\), which holds no function; expected at least one"),
        ({"values": drawn(2)}, r"values is \(2,\) without positions; expected a grid"),
        ({"values": drawn(4), "pos": drawn(4, 1), "offsets": [0, 3]}, "offsets do not rise from 0 to the 4 samples"),
        ({"values": drawn(4), "pos": drawn(4, 1), "offsets": [0.0, 4.0]}, "offsets is float64"),
        ({"values": drawn(4), "pos": drawn(4, 1), "offsets": [0, 4, 4]}, "function 1: has no samples"),
        (
            {"values": np.inf * drawn(2, 3), "pos": drawn(3, 1)},
            "function 0: the value of sample 0 of the samples is -?inf",
        ),
        ({"values": drawn(2, 3), "pos": drawn(3, 1) * np.nan}, "the position of sample 0 of the samples is nan"),
        ({"values": drawn(2, 3), "pos": drawn(3, 1), "channels": ["a", "b"]}, "expected 1 different names"),
        ({"values": drawn(2, 3), "pos": drawn(3, 1), "is_test": [1, 0]}, "is_test is int64"),
        ({"values": drawn(2, 3), "pos": drawn(3, 1), "is_test": [True, True]}, "the split has nothing to train on"),
        (
            {"values": drawn(2, 3), "target_values": drawn(3, 4)},
            "hold 3 functions of 1 coordinates, and values 2 of 1; expected as many of both$",
        ),
        (
            {"values": drawn(2, 3), "target_values": drawn(2, 3, 4)},
            "of both; a last axis of channels needs their names",
        ),
        (
            {"values": drawn(2, 3), "pos": drawn(3, 1), "target_values": drawn(2, 3)},
            r"has pos and target_values, and no target_pos; expected where the target values are, \(N, 1\)",
        ),
        (
            {f"{split}_pos": drawn(3, dim) for split, dim in (("train", 1), ("test", 2))}
            | {f"{split}_values": drawn(2, 3) for split in ("train", "test")},
            r"coordinates differ: \('x',\) in training, \('x', 'y'\) in test; make them equal",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_npz(write(tmp_path, **arrays))
    assert str(caught.value).startswith(str(tmp_path / "set.npz"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "line 1: no column x, y or z; the columns are a, b; name the coordinates"),
        ("x,v,v\n1,2,3\n", "line 1: column 'v' is there twice"),
        ("x,v\n1,2\n3\n", "line 3: has 1 cells; the header has 2"),
        ("x,v\n1,2\n3,hot\n", "line 3: column 'v': 'hot' is no number"),
        ("x,v\n,2\n", "line 2: column 'x': '' is no number; write one"),
        ("x,field\n1,a\n", "line 1: no column with values; the columns are x, field"),
        ("x,v\n", "has no rows below its header"),
    ],
)
def test_a_table_names_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_csv(path)


def test_an_extra_coordinate_is_refused_where_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y,z,u\n1,2,3,4\n")
    assert read_csv(path, coordinates=("x", "y"), channels=("z", "u")).channels == ("z", "u")
    with pytest.raises(ValueError, match="line 1: column 'z' is a coordinate; expected samples with x, y alone"):
        read_csv(path, coordinates=("x", "y"), channels=("u",))


def test_sources_that_are_not_usable_are_refused(tmp_path: Path) -> None:
    cases: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: open_fields(tmp_path / "none.npz"), "no data called"),
        (lambda: read_fields(tmp_path / "set.png"), "is of no known kind"),
        (
            lambda: read_fields(write(tmp_path, values=drawn(2, 3)), part="test"),
            "is not in parts; leave --part test out",
        ),
        (lambda: read_fields(write(tmp_path, values=drawn(2, 3)), channels=("a", "b")), "has the channels value; exp"),
        (lambda: open_fields(write(tmp_path, values=drawn(1, 3))), "holds one function; expected one to learn from"),
    )
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_one_part_of_a_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, train_values=drawn(2, 3), test_values=drawn(1, 3))
    with pytest.warns(UserWarning, match="holds the parts train, test; the test part is read"):
        assert len(read_fields(path)) == 1
    assert len(read_fields(path, part="train")) == 2


def test_sets_that_do_not_agree_are_refused() -> None:
    samples = Samples(torch.zeros(2, 3, 1, dtype=torch.float64), torch.zeros(2, 3, 1), None)
    good: dict[str, Any] = {"given": samples, "coordinates": ("x",), "channels": ("u",), "names": ("a", "b")}
    FieldSet(**good)
    for change, message in (
        ({"names": ("a",)}, "for 1 names"),
        ({"coordinates": ("x", "y")}, r"pass float64 \(2, 3, 2\)"),
        ({"given": Samples(samples.pos, samples.values, torch.ones(2, 3))}, "the mask of the samples is torch.float32"),
        ({"other_channels": ("v",)}, "but no target samples"),
        ({"given": Samples(samples.pos, samples.values, torch.zeros(2, 3, dtype=torch.bool))}, "a: has no samples"),
    ):
        with pytest.raises(ValueError, match=message):
            FieldSet(**{**good, **change})


def test_query_points_are_read_without_values(tmp_path: Path) -> None:
    (tmp_path / "at.csv").write_text("y,x\n1,2\n3,4\n")
    pos = drawn(5, 2)
    assert read_places(tmp_path / "at.csv", ("x", "y")).tolist() == [[2, 1], [4, 3]]
    assert torch.equal(read_places(write(tmp_path, pos=pos), ("x", "y")), torch.from_numpy(pos))
    (tmp_path / "two.csv").write_text("field,x\na,2\nb,4\n")
    for call, message in (
        (lambda: read_places(tmp_path / "two.csv", ("x",)), "holds the places of 2 functions; expected those of one"),
        (lambda: read_places(write(tmp_path, pos=pos), ("x",)), r"pos is float64 \(5, 2\); expected .* \(N, 1\) of x"),
        (lambda: read_places(write(tmp_path, pos=pos * np.nan), ("x", "y")), "expected finite numbers"),
        (lambda: read_places(write(tmp_path, pos=pos[:0]), ("x", "y")), r"pos is float64 \(0, 2\)"),
        (lambda: read_places(write(tmp_path, values=pos), ("x", "y")), r"pos is float64 \(0,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_names_of_arrays_must_match_those_of_the_model(tmp_path: Path) -> None:
    path = write(tmp_path, values=drawn(2, 3, 4, 2), channels=["age", "heat"])
    assert read_fields(path, coordinates=("y", "x"), channels=("age", "heat")).channels == ("age", "heat")
    assert read_fields(path, channels=("value 1", "value 2")).channels == ("age", "heat")  # of a model without names
    with refused(ValueError, "has the channels age, heat; expected heat, age, in this order"):
        read_fields(path, channels=("heat", "age"))
    path = write(tmp_path, values=drawn(2, 3), pos=drawn(3, 2), coordinates=["y", "x"])
    with refused(ValueError, "has the coordinates y, x; expected x, y, in this order"):
        read_fields(path, coordinates=("x", "y"), channels=("value",))
