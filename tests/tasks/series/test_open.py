import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.tasks.series import open_series, read_series
from tests.refusals import refused

HEAD = "@classLabel true a b\n@data\n"
ROWS = "series,time,x,label\n" + "".join(f"{i},{t},{i + t},{'ab'[i % 2]}\n" for i in range(10) for t in range(3))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Gun_TRAIN.ts").write_text(HEAD + "1:a\n2:b\n3:b\n")
    (tmp_path / "Gun_TEST.ts").write_text(HEAD + "1:a\n2:b\n")
    (tmp_path / "notes.txt").write_text("none of this")
    return tmp_path


def test_a_pair_of_files_is_found_by_folder_by_either_file_and_by_its_prefix(folder: Path) -> None:
    for path in (folder, folder / "Gun_TRAIN.ts", folder / "Gun_TEST.ts", folder / "Gun"):
        found = open_series(path)
        assert (len(found.train), len(found.held_out("test"))) == (3, 2)


def test_one_file_is_one_set(tmp_path: Path) -> None:
    (tmp_path / "some.csv").write_text(ROWS)
    for path in (tmp_path, tmp_path / "some.csv"):
        found = open_series(path)
        assert (found.is_given, found.test) == (False, None)
        assert found.train.answers is not None
        assert found.train.keys.strata == found.train.answers.values.tolist()
        assert found.train.keys.names == found.train.names


def test_missing_files_and_folders_are_refused(folder: Path) -> None:
    with refused(ValueError, "no series at", "Gum"):
        open_series(folder / "Gum")
    with refused(ValueError, "is no folder; pass a file or a folder"):
        open_series(folder / "none" / "at_all")
    (folder / "empty").mkdir()
    with refused(ValueError, "no series at", "the folder holds no file of .ts,", ".npz"):
        open_series(folder / "empty")
    with refused(ValueError, "there is no such file or folder; did you mean", "Gun_TRAIN.ts'?"):
        open_series(folder / "Gun_TRAINS.ts")
    with refused(ValueError, "there is no such file or folder; pass a file or a folder of .ts,"):
        open_series(folder / "nothing_alike")
    with refused(ValueError, "notes.txt, line 1: 'of' is no finite number"):
        open_series(folder / "notes.txt")
    (folder / "Other_TRAIN.ts").write_text(HEAD)
    with refused(ValueError, "has the files Gun_TEST.ts, Gun_TRAIN.ts, Other_TRAIN.ts; pass one of them"):
        open_series(folder)


def test_files_without_usable_labels_are_refused(folder: Path) -> None:
    (folder / "some.csv").write_text("time,x\n0,1\n")
    with refused(
        ValueError, "some.csv: the series have no labels; give each one a class, labels or a number, or each row"
    ):
        open_series(folder / "some.csv")
    (folder / "Gun_TEST.ts").write_text("@classLabel true a c\n@data\n1:c\n")
    with refused(ValueError, "Gun_TEST.ts, line 3: class 'c' is none of a, b"):
        open_series(folder / "Gun")


def test_a_file_with_a_split_cannot_be_read_as_one_set(shared_data: Path) -> None:
    path = shared_data / "uea_ucr_small" / "GunPoint.npz"
    with pytest.warns(UserWarning, match=r"GunPoint.npz: holds the parts train, test; the test part is read"):
        of_test = read_series(path)
    assert (len(read_series(path, part="train")), len(of_test)) == (50, 150)
    with refused(ValueError, "GunPoint.npz: holds no valid part; it has train, test"):
        read_series(path, part="valid")


def test_parts_are_read_without_labels(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((5, 6, 1))
    np.savez(tmp_path / "parts.npz", train_values=values, test_values=values[:2])
    np.savez(tmp_path / "told.npz", values=values, is_test=np.arange(5) < 2)
    np.save(tmp_path / "alone.npy", values)
    for name in ("parts.npz", "told.npz"):
        with pytest.warns(UserWarning, match=f"{name}: holds the parts train, test; the test part is read"):
            assert len(read_series(tmp_path / name)) == 2
    assert len(read_series(tmp_path / "parts.npz", part="train")) == 5
    assert len(read_series(tmp_path / "told.npz", part="train")) == 3
    np.testing.assert_allclose(read_series(tmp_path / "alone.npy").values, values, rtol=1e-6)
    with refused(ValueError, "alone.npy: is not in parts; leave --part train out"):
        read_series(tmp_path / "alone.npy", part="train")


def test_columns_give_split_and_group_and_a_group_stays_in_one_split(tmp_path: Path) -> None:
    header, *rows = ROWS.splitlines()
    text = [f"{header},split,group"]
    text += [f"{row},{('train', 'val', 'test')[int(row[0]) % 3]},{int(row[0]) % 3}" for row in rows]
    (tmp_path / "some.csv").write_text("\n".join(text))
    found = open_series(tmp_path / "some.csv")
    assert (len(found.train), len(found.held_out("valid")), len(found.held_out("test"))) == (4, 3, 3)
    assert set(found.train.marks.groups or ()) == {"0"}
    (tmp_path / "some.csv").write_text("\n".join(line[:-1] + "7" if line[-1].isdigit() else line for line in text))
    with refused(ValueError, "some.csv: the group '7' is in two splits"):
        open_series(tmp_path / "some.csv")
    with refused(ValueError, "'a' is no finite number"):
        open_series(tmp_path / "some.csv", kind="number")


def write_idx(folder: Path) -> dict[str, torch.Tensor]:
    """Writes three training and two test images of 3 x 2 pixels."""
    written = {}
    for split, count in (("train", 3), ("t10k", 2)):
        images = torch.randint(0, 256, (count, 3, 2), generator=torch.Generator().manual_seed(count), dtype=torch.uint8)
        labels = torch.arange(count, dtype=torch.uint8)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            (folder / f"{split}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + values.numpy().tobytes()))
        written[split] = images
    return written


def test_images_are_read_pixel_by_pixel_and_row_by_row(tmp_path: Path) -> None:
    written = write_idx(tmp_path)
    splits = open_series(tmp_path)
    for stored, split in ((splits.train, "train"), (splits.held_out("test"), "t10k")):
        series, images = stored.in_memory(), written[split]
        assert series.values.shape == (len(images), 6, 1)
        assert series.values[1, 2, 0] == images[1, 1, 0] / 255
        torch.testing.assert_close(series.values[:, :, 0], images.flatten(1) / 255)
        assert (series.spacing, series.times, series.lengths.unique().tolist()) == (1.0, None, [6])
        assert series.answers is not None
        assert series.answers.values.tolist() == list(range(len(images)))
        assert series.answer_names == ("0", "1", "2")
