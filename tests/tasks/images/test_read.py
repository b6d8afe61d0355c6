import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.tasks.images import read_images
from fredholm.tasks.images.read import is_grey, size_of

COLOURS = torch.tensor([[[200, 30, 0], [10, 220, 90]], [[0, 0, 255], [250, 250, 250]]], dtype=torch.uint8)


def read_one(path: Path, channels: int) -> torch.Tensor:
    height, width = size_of(path)
    return read_images([path], channels, (height, width))[0]


def png(path: Path, width: int, depth: int, colour_type: int, rows: list[bytes], *extra: tuple[bytes, bytes]) -> Path:
    """Writes a PNG of a kind that pillow cannot write."""
    header = struct.pack(">IIBBBBB", width, len(rows), depth, colour_type, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        *extra,
        (b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))),
        (b"IEND", b""),
    ]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


def test_colour_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(COLOURS.numpy()).save(path)
    assert not is_grey(path)
    assert torch.equal(read_one(path, 3), COLOURS.permute(2, 0, 1))
    luma = (COLOURS.double() @ torch.tensor([0.299, 0.587, 0.114]).double()).round()
    assert (read_one(path, 1)[0].double() - luma).abs().max() <= 1


def test_grey_round_trip_and_repetition(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    grey = torch.randint(256, (3, 5), dtype=torch.uint8)
    Image.fromarray(grey.numpy()).save(path)
    assert is_grey(path)
    assert torch.equal(read_one(path, 1)[0], grey)
    assert torch.equal(read_one(path, 3), grey.expand(3, 3, 5))


@pytest.mark.parametrize("grey", [True, False])
def test_jpeg(tmp_path: Path, grey: bool) -> None:
    path = tmp_path / "a.JPG"
    Image.new("L" if grey else "RGB", (8, 16), 90 if grey else (200, 30, 60)).save(path, "JPEG", quality=95)
    assert is_grey(path) == grey
    expected = torch.tensor([90, 90, 90] if grey else [200, 30, 60]).view(3, 1, 1)
    assert (read_one(path, 3).int() - expected).abs().max() <= 3


def test_cmyk_jpeg(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(path)
    assert not is_grey(path)
    assert (read_one(path, 3).int() - torch.tensor([255, 0, 0]).view(3, 1, 1)).abs().max() <= 3
    assert read_one(path, 1).shape == (1, 8, 8)


def test_sixteen_bits_are_scaled_not_truncated(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    deep = np.array([[0, 128, 129, 257], [32768, 40000, 65406, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(path)
    assert is_grey(path)
    assert read_one(path, 1)[0].tolist() == np.round(deep / 257).astype(int).tolist()
    assert read_one(path, 3).shape == (3, 2, 4)


def test_sixteen_bits_with_a_transparent_value(tmp_path: Path) -> None:
    rows = [struct.pack(">HH", 1000, 30000)]
    path = png(tmp_path / "a.png", 2, 16, 0, rows, (b"tRNS", struct.pack(">H", 1000)))
    assert read_one(path, 1)[0].tolist() == [[255, round(30000 / 257)]]


@pytest.mark.parametrize(("depth", "top"), [(1, 1), (2, 3), (4, 15)])
def test_few_bits_span_the_whole_range(tmp_path: Path, depth: int, top: int) -> None:
    path = png(tmp_path / "a.png", 1, depth, 0, [bytes([0]), bytes([top << (8 - depth)])])
    assert is_grey(path)
    assert read_one(path, 1).flatten().tolist() == [0, 255]


def test_transparent_parts_lie_over_white(tmp_path: Path) -> None:
    colour, grey = tmp_path / "colour.png", tmp_path / "grey.png"
    Image.fromarray(np.array([[[0, 0, 0, 0], [100, 0, 0, 255], [0, 100, 0, 128]]], dtype=np.uint8)).save(colour)
    assert read_one(colour, 3)[:, 0].T.tolist() == [[255, 255, 255], [100, 0, 0], [127, 177, 127]]
    pixels = np.array([[[0, 0], [100, 255], [100, 128]]], dtype=np.uint8)
    Image.frombytes("LA", (3, 1), pixels.tobytes()).save(grey)
    deep = png(tmp_path / "deep.png", 3, 16, 4, [struct.pack(">6H", *(257 * pixels.astype(int)).ravel())])
    for path in (grey, deep):
        assert is_grey(path)
        assert read_one(path, 1)[0].tolist() == [[255, 100, 177]]


@pytest.mark.parametrize("depth", [1, 8])
def test_one_transparent_grey_value_lies_over_white(tmp_path: Path, depth: int) -> None:
    path = png(tmp_path / "a.png", 1, depth, 0, [bytes([0])], (b"tRNS", struct.pack(">H", 0)))
    assert read_one(path, 1).item() == 255


@pytest.mark.parametrize("channels", [1, 3])
def test_palettes(tmp_path: Path, channels: int) -> None:
    grey, colour = tmp_path / "grey.png", tmp_path / "colour.png"
    for path, palette in ((grey, bytes([0, 0, 0, 77, 77, 77])), (colour, bytes([0, 0, 0, 255, 0, 0]))):
        png(path, 2, 8, 3, [bytes([1, 0])], (b"PLTE", palette), (b"tRNS", bytes([0, 255])))
    assert is_grey(grey)
    assert not is_grey(colour)
    assert read_one(grey, channels)[:, 0].T.tolist() == [[77] * channels, [255] * channels]
    if channels == 3:
        assert read_one(colour, 3)[:, 0].T.tolist() == [[255, 0, 0], [255] * 3]


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_camera_orientation(tmp_path: Path, suffix: str, orientation: int) -> None:
    upright = torch.zeros(16, 24, dtype=torch.uint8)
    upright[:8, :8] = 255  # the top left corner marks the orientation
    stored = {
        1: upright,
        2: upright.flip(1),
        3: upright.flip(0, 1),
        4: upright.flip(0),
        5: upright.T,
        6: upright.rot90(1),
        7: upright.flip(0, 1).T,
        8: upright.rot90(-1),
    }[orientation]
    path = tmp_path / f"a{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored.contiguous().numpy()).save(path, exif=exif)
    assert size_of(path) == (16, 24)
    assert (read_one(path, 1)[0].int() - upright.int()).abs().max() <= 3


def test_many_files_keep_their_order_and_take_one_size(tmp_path: Path) -> None:
    paths = []
    for value in range(20):
        paths.append(tmp_path / f"{value}.png")
        Image.new("L", (3 + value, 30 - value), value * 10).save(paths[-1])
    images = read_images(paths, 1, (6, 4))
    assert images.shape == (20, 1, 6, 4)
    assert images.dtype == torch.uint8
    assert [image.unique().tolist() for image in images] == [[value * 10] for value in range(20)]


def test_no_files() -> None:
    assert read_images([], 3, (4, 4)).shape == (0, 3, 4, 4)


@pytest.mark.parametrize("read", [lambda path: read_images([path], 1, (4, 4)), is_grey, size_of])
def test_not_an_image(tmp_path: Path, read) -> None:
    path = tmp_path / "a.png"
    with pytest.raises(ValueError, match=rf"{path}: cannot be read as an image \(No such file or directory\)"):
        read(path)
    with pytest.raises(ValueError, match=rf"{tmp_path}: cannot be read as an image \(Is a directory\)"):
        read(tmp_path)
    for content in (b"", b"hello", b"GIF89a"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path}: not a PNG, JPEG, BMP, WebP or TIFF image"):
            read(path)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_truncated_image(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)).save(path)
    whole = path.read_bytes()
    for kept in range(0, len(whole) - 12, 29):  # a PNG without its last 12 bytes, the end mark, still has every pixel
        path.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match=f"{path}: ") as caught:
            read_images([path], 1, (32, 32))
        assert "\n" not in str(caught.value)


def test_corrupt_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)).save(path)
    whole = bytearray(path.read_bytes())
    whole[100:140] = bytes(40)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=f"{path}: cannot be read as an image"):
        read_images([path], 1, (32, 32))


@pytest.mark.parametrize("channels", [0, 2, 4])
def test_bad_channels(channels: int) -> None:
    with pytest.raises(ValueError, match=rf"channels is {channels}; pass 1 \(grey\) or 3 \(RGB\)"):
        read_images([], channels, (4, 4))


def test_bad_image_size() -> None:
    with pytest.raises(ValueError, match=r"image_size is \(0, 4\)"):
        read_images([], 1, (0, 4))


def test_missing_pillow_gives_an_install_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'pip install "fredholm\[data\]"'):
        read_images([tmp_path / "a.png"], 1, (4, 4))
