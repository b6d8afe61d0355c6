import gzip
import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fredholm.tasks.images import idx_folder
from fredholm.tasks.images.idx import read_idx
from tests.tasks.images.known import labels_of


def idx_bytes(values: Tensor) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(side.to_bytes(4, "big") for side in values.shape)
    return header + bytes(values.flatten().tolist())


def write_folder(folder: Path, *, suffix: str = "", separator: str = "-", size: tuple[int, int] = (4, 5)) -> Tensor:
    """Writes six training and three test images; returns them all."""
    images = torch.randint(256, (9, *size), dtype=torch.uint8)
    labels = (torch.arange(9) % 3).byte()
    pack: Callable[[bytes], bytes] = gzip.compress if suffix == ".gz" else bytes
    for split, part in (("train", slice(0, 6)), ("t10k", slice(6, 9))):
        for kind, values in (("images", images[part]), ("labels", labels[part])):
            path = folder / f"{split}-{kind}{separator}idx{values.ndim}-ubyte{suffix}"
            path.write_bytes(pack(idx_bytes(values)))
    return images


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("separator", ["-", "."])
def test_folder_round_trip(tmp_path: Path, suffix: str, separator: str) -> None:
    images = write_folder(tmp_path, suffix=suffix, separator=separator)
    splits = idx_folder(tmp_path)
    for data, part in ((splits.train, images[:6]), (splits.held_out("test"), images[6:])):
        indices = torch.arange(len(data))
        assert torch.equal(data.images(indices), part.unsqueeze(1))
        assert labels_of(data, indices).tolist() == [index % 3 for index in range(len(part))]
        assert (data.answer_names, data.channels, data.image_size) == (("0", "1", "2"), 1, (4, 5))
    assert splits.held_out("test").name(2) == f"t10k-images{separator}idx3-ubyte{suffix}[2]"


def test_folder_in_another_size(tmp_path: Path) -> None:
    write_folder(tmp_path)
    splits = idx_folder(tmp_path, image_size=(8, 8))
    assert splits.train.images(torch.arange(6)).shape == (6, 1, 8, 8)


def test_a_plain_file_takes_precedence_over_its_gzipped_twin(tmp_path: Path) -> None:
    images = write_folder(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"not even gzip")
    assert torch.equal(idx_folder(tmp_path).train.images(torch.arange(6)), images[:6].unsqueeze(1))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=4), zipped=st.booleans(), data=st.data())
def test_file_round_trip_and_every_cut(tmp_path: Path, shape: list[int], zipped: bool, data: st.DataObject) -> None:
    values = torch.randint(256, shape, dtype=torch.uint8)
    whole = idx_bytes(values)
    path = tmp_path / ("file.gz" if zipped else "file")
    path.write_bytes(gzip.compress(whole) if zipped else whole)
    assert torch.equal(read_idx(path, len(shape)), values)

    cut = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(gzip.compress(whole[:cut]) if zipped else whole[:cut])
    with pytest.raises(ValueError, match="truncated"):
        read_idx(path, len(shape))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=11), zipped=st.booleans())
def test_any_other_bytes_give_a_one_line_error(tmp_path: Path, content: bytes, zipped: bool) -> None:
    path = tmp_path / ("file.gz" if zipped else "file")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)) as caught:
        read_idx(path, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated: 0 bytes, but the header alone has 8"),
        (bytes([0, 0, 8]), "truncated: 3 bytes"),
        (b"\x89PNG\r\n", "not an idx file: it starts 89 50 4e 47, expected 00 00 08 01"),
        (bytes([0, 0, 0x0D, 1, 0, 0, 0, 1, 0, 0, 0, 0]), r"type code 0x0d \(float32\); expected 0x08 \(uint8\)"),
        (bytes([0, 0, 0x77, 1, 0, 0, 0, 1, 0]), r"type code 0x77 \(unknown\)"),
        (bytes([0, 0, 8, 3]) + bytes(12), "3 dimensions; expected 1"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 0]), "holds nothing: its dimensions are 0"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 2, 7]), r"truncated: its header promises 2 bytes \(2\), only 1 follow"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 7, 7]), r"over-long: its header promises 2 bytes \(2\), more follow"),
        (bytes([0, 0, 8, 1, 255, 255, 255, 255, 7]), "truncated: its header promises 4,294,967,295 bytes"),
    ],
)
def test_bad_content(tmp_path: Path, content: bytes, message: str) -> None:
    for path, packed in ((tmp_path / "file", content), (tmp_path / "file.gz", gzip.compress(content))):
        path.write_bytes(packed)
        with pytest.raises(ValueError, match=f"{path}: {message}"):
            read_idx(path, 1)


def test_corrupt_gzip(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    values = torch.randint(256, (500,), dtype=torch.uint8)
    whole = gzip.compress(idx_bytes(values))

    path.write_bytes(idx_bytes(values))
    with pytest.raises(ValueError, match="not a sound gzip file"):
        read_idx(path, 1)
    path.write_bytes(whole[:-20])
    with pytest.raises(ValueError, match="the gzip stream ends too early"):
        read_idx(path, 1)
    path.write_bytes(whole[:-8] + bytes(4) + whole[-4:])  # the checksum
    with pytest.raises(ValueError, match="not a sound gzip file"):
        read_idx(path, 1)
    path.write_bytes(whole[:30] + bytes([whole[30] ^ 0xFF] * 20) + whole[50:])
    with pytest.raises(ValueError, match=str(path)):
        read_idx(path, 1)


def test_unreadable_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent: cannot be read \(No such file or directory\)"):
        read_idx(tmp_path / "absent", 1)
    with pytest.raises(ValueError, match="cannot be read"):
        read_idx(tmp_path, 1)


@pytest.mark.parametrize("name", ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"])
def test_missing_file(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path)
    (tmp_path / f"{name}-ubyte").unlink()
    with pytest.raises(ValueError, match=rf"no {name}-ubyte \(or \.gz\)"):
        idx_folder(tmp_path)


def test_counts_that_differ(tmp_path: Path) -> None:
    write_folder(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(idx_bytes(torch.zeros(4).byte()))
    with pytest.raises(ValueError, match=f"{path}: 4 labels, but t10k-images-idx3-ubyte holds 3 images"):
        idx_folder(tmp_path)


def test_label_unknown_in_training(tmp_path: Path) -> None:
    write_folder(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(idx_bytes(torch.tensor([0, 7, 9]).byte()))
    with pytest.raises(ValueError, match=f"{path}: label 7 at position 1; expected 0 to 2"):
        idx_folder(tmp_path)


def test_sizes_that_differ(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(torch.zeros(3, 5, 4).byte()))
    with pytest.raises(ValueError, match=r"image size differ: \(4, 5\) in training, \(5, 4\) in test"):
        idx_folder(tmp_path)


def test_real_mnist(shared_data: Path) -> None:
    splits = idx_folder(shared_data / "mnist")
    assert (len(splits.train), len(splits.held_out("test")), splits.train.image_size) == (60_000, 10_000, (28, 28))
    assert labels_of(splits.train, torch.arange(5)).tolist() == [5, 0, 4, 1, 9]
    counts = labels_of(splits.held_out("test"), torch.arange(10_000)).bincount().tolist()
    assert counts == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # the published checksum of the unpacked file
    pixels = splits.held_out("test").images(torch.arange(10_000))
    assert math.prod(pixels.shape) == 7_840_000
    digest = hashlib.md5(idx_bytes(pixels.squeeze(1)), usedforsecurity=False).hexdigest()
    assert digest == "2646ac647ad5339dbf082846283269ea"
