"""Files of sharded tensors, each with the parts of one process.

``weights-00002-of-00004.safetensors`` holds the second of four processes' parts of the tensors of
``weights.safetensors``; its header gives the place of each part in its tensor.
"""

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fredholm.storage.tensors import read_noted, tensor_bytes


class Part(NamedTuple):
    """A part of a tensor: a box of its entries."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offset: tuple[int, ...]
    """Index of the box's first entry."""
    values: Tensor


def part_names(name: str, count: int) -> list[str]:
    """Returns the names of the part files of ``count`` processes for the file ``name``."""
    stem, suffix = Path(name).stem, Path(name).suffix
    return [f"{stem}-{number:05d}-of-{count:05d}{suffix}" for number in range(1, count + 1)]


def files_of(name: str, listed: Collection[str]) -> list[str]:
    """Returns the files that hold the tensors of the file ``name``: itself, or its parts.

    Args:
        name: name of the file.
        listed: names of existing files.

    Raises:
        ValueError: there are none, or parts of one save are missing; the message is about files only.
    """
    if name in listed:
        return [name]
    pattern = re.compile(rf"{re.escape(Path(name).stem)}-\d{{5}}-of-(\d{{5}}){re.escape(Path(name).suffix)}")
    found = sorted(other for other in listed if pattern.fullmatch(other))
    counts = {int(match[1]) for other in found if (match := pattern.fullmatch(other))}
    if not found:
        raise ValueError(f"neither {name} nor parts of it")
    if len(counts) > 1:
        raise ValueError(f"parts of {name} of {' and of '.join(map(str, sorted(counts)))} processes")
    if found != part_names(name, *counts):
        raise ValueError(f"{len(found)} of the {min(counts)} parts of {name}")
    return found


def part_bytes(parts: Mapping[str, Part], step: int) -> bytes:
    """Encodes a file of parts, by the names of their tensors."""
    places = {name: {"shape": part.shape, "offset": part.offset} for name, part in parts.items()}
    return tensor_bytes({name: part.values for name, part in parts.items()}, {"step": step, "parts": places})


def read_parts(paths: Sequence[Path], step: int) -> dict[str, list[Part]]:
    """Reads the parts in the files of one name, by tensor; a file without parts holds whole tensors. Files are mapped.

    Args:
        paths: all files of the name, from `files_of`, already compared with their checksums.
        step: step of the files.

    Raises:
        ValueError: a file is of another step, or the parts do not make up whole tensors.
        OSError: a file cannot be read.
    """
    found: dict[str, list[Part]] = {}
    for path in paths:
        tensors, notes = read_noted(path)
        if notes.get("step") != step:
            raise ValueError(f"{path} is of another step than {step}")
        for name, values in tensors.items():
            shape = tuple(values.shape)
            whole: Any = {"shape": shape, "offset": (0,) * len(shape)}
            place = notes["parts"][name] if "parts" in notes else whole
            found.setdefault(name, []).append(Part(tuple(place["shape"]), tuple(place["offset"]), values))
    for name, parts in found.items():
        if not _are_whole(parts):
            raise ValueError(f"{paths[0]} and its other parts do not make up the tensor {name:.80}")
    return found


def joined(parts: Sequence[Part]) -> Tensor:
    """Assembles the whole tensor."""
    (first, *_) = parts
    if first.values.shape == first.shape:
        return first.values
    whole = torch.empty(first.shape, dtype=first.values.dtype)
    for part in parts:
        whole[_box(part)] = part.values
    return whole


def _box(part: Part) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in zip(part.offset, part.values.shape, strict=True))


def _are_whole(parts: Sequence[Part]) -> bool:
    """Whether the parts cover every entry of one tensor."""
    shape = parts[0].shape
    if len({(part.shape, part.values.dtype, len(part.offset), part.values.ndim) for part in parts}) > 1:
        return False
    boxes = [_box(part) for part in parts if part.values.numel()]
    are_inside = all(
        side.start >= 0 and side.stop <= size for box in boxes for side, size in zip(box, shape, strict=True)
    )
    are_apart = all(
        any(a.stop <= b.start or b.stop <= a.start for a, b in zip(one, other, strict=True))
        for one, other in itertools.combinations(boxes, 2)
    )
    return are_inside and are_apart and sum(part.values.numel() for part in parts) == math.prod(shape)
