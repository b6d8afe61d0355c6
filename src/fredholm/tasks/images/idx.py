"""Folders in the format of MNIST: four idx files, plain or gzipped."""

import contextlib
import gzip
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fredholm.tasks.files.data_files import open_file, size_of_file
from fredholm.tasks.files.limits import check_expansion, max_expanded_bytes
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import ClassAnswers

from .dataset import ImageDataset
from .in_memory import InMemoryImages

_FILE_NAME = re.compile(r"(train|t10k)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
_TYPES = {0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
_CHUNK = 1 << 20


def is_idx_folder(folder: Path) -> bool:
    """Whether a file directly in ``folder`` has the name of an MNIST file."""
    return any(_FILE_NAME.fullmatch(path.name) for path in folder.iterdir())


@reads_data
def idx_folder(folder: str | Path, image_size: tuple[int, int] | None = None) -> Splits[ImageDataset]:
    """Read a folder of ``train-`` and ``t10k-`` ``images-idx3-ubyte`` and ``labels-idx1-ubyte`` files.

    Each may be gzipped (``.gz``; a plain file takes precedence) and may be spelt ``images.idx3-ubyte``. The classes are
    the numbers from 0 to the largest training label.

    Args:
        folder: the folder of the four files.
        image_size: height and width to deliver; default: the size the files hold.

    Raises:
        ValueError: a file is missing or broken (see `read_idx`), counts differ, or a test label is unknown in training.
    """
    folder = Path(folder)
    arrays: dict[tuple[str, str], tuple[Path, Tensor]] = {}
    for split in ("train", "t10k"):
        for kind, num_dims in (("images", 3), ("labels", 1)):
            path = _find(folder, split, kind, num_dims)
            arrays[split, kind] = path, read_idx(path, num_dims)

    labels_path, train_labels = arrays["train", "labels"]
    classes = tuple(str(label) for label in range(int(train_labels.max()) + 1))
    splits = []
    for split in ("train", "t10k"):
        images_path, images = arrays[split, "images"]
        labels_path, labels = arrays[split, "labels"]
        if len(images) != len(labels):
            raise ValueError(f"{labels_path}: {len(labels)} labels, but {images_path.name} holds {len(images)} images")
        if int(labels.max()) >= len(classes):
            position = int((labels >= len(classes)).nonzero()[0])
            raise ValueError(
                f"{labels_path}: label {int(labels[position])} at position {position}; expected 0 to "
                f"{len(classes) - 1}, the labels of the training set"
            )
        name = _namer(images_path.name)
        answers = ClassAnswers(names=classes, values=labels.to(torch.int64))
        splits.append(InMemoryImages(images.unsqueeze(1), answers, name, image_size))
    return Splits(*splits)


@reads_data
def read_idx(path: str | Path, num_dims: int) -> Tensor:
    """Read one idx file of unsigned bytes, gzipped if its name ends in ``.gz``.

    The file is two zero bytes, a type code (8: unsigned byte), the number of dimensions, each dimension as a big-endian
    32-bit integer, and then exactly the elements, last dimension fastest.

    Args:
        path: the file.
        num_dims: how many dimensions it must have.

    Returns:
        uint8 tensor of the dimensions the file states, none of them 0.

    Raises:
        ValueError: unreadable, corrupt, truncated, too long, empty, of another format, type or number of dimensions, or
            a gzip that unpacks to too much.
    """
    path = Path(path)
    try:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open_file(path))
            given = size_of_file(file)
            is_packed = path.suffix == ".gz"
            stream = opened.enter_context(gzip.GzipFile(fileobj=file)) if is_packed else file
            header = stream.read(4 + 4 * num_dims)
            shape = _read_header(path, header, num_dims)
            size = math.prod(shape)
            most = max_expanded_bytes(given) if is_packed else given
            # in pieces: a broken header must not reserve more memory than the file can fill
            data = bytearray()
            while len(data) <= min(size, most) and (chunk := stream.read(min(_CHUNK, size + 1 - len(data)))):
                data += chunk
    except EOFError as error:
        raise ValueError(f"{path}: the gzip stream ends too early; fetch the file again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a sound gzip file ({error}); fetch the file again") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) > most:
        check_expansion(f"{path}: unpacked it", size, given, "unpack it yourself")
    if len(data) != size:
        found = f"only {len(data):,}" if len(data) < size else "more"
        problem = "truncated" if len(data) < size else "over-long"
        raise ValueError(
            f"{path}: {problem}: its header promises {size:,} bytes ({' x '.join(map(str, shape))}), {found} follow"
        )
    return torch.frombuffer(data, dtype=torch.uint8).reshape(shape)


def _read_header(path: Path, header: bytes, num_dims: int) -> tuple[int, ...]:
    if len(header) >= 4 and header[:2] != b"\0\0":
        raise ValueError(f"{path}: not an idx file: it starts {header[:4].hex(' ')}, expected 00 00 08 0{num_dims}")
    if len(header) >= 4 and header[2] != 0x08:
        type_name = _TYPES.get(header[2], "unknown")
        raise ValueError(f"{path}: type code {header[2]:#04x} ({type_name}); expected 0x08 (uint8)")
    if len(header) >= 4 and header[3] != num_dims:
        raise ValueError(f"{path}: {header[3]} dimensions; expected {num_dims}")
    if len(header) < 4 + 4 * num_dims:
        raise ValueError(f"{path}: truncated: {len(header)} bytes, but the header alone has {4 + 4 * num_dims}")
    shape = tuple(int.from_bytes(header[start : start + 4], "big") for start in range(4, len(header), 4))
    if 0 in shape:
        raise ValueError(f"{path}: holds nothing: its dimensions are {' x '.join(map(str, shape))}")
    return shape


def _find(folder: Path, split: str, kind: str, num_dims: int) -> Path:
    for name in (f"{split}-{kind}-idx{num_dims}-ubyte", f"{split}-{kind}.idx{num_dims}-ubyte"):
        for suffix in ("", ".gz"):
            if (path := folder / f"{name}{suffix}").is_file():
                return path
    raise ValueError(f"{folder}: no {split}-{kind}-idx{num_dims}-ubyte (or .gz) among the four files of an idx folder")


def _namer(file_name: str) -> Callable[[int], str]:
    return lambda index: f"{file_name}[{index}]"
