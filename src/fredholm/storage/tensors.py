"""Tensors of a module, and reading and writing them as files."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fredholm.storage.integrity import file_size, parse_object

NOTES = "fredholm"
"""Name of the header entry of this library's safetensors files."""


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Returns parameters and persistent buffers by name, each tensor once (a shared one under its first name)."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach().contiguous()
    return tensors


def load_weights(path: str | Path, model: nn.Module) -> None:
    """Copies the tensors of a safetensors file into ``model``, which must have exactly those.

    Raises:
        ValueError: the file is damaged, or of another model; ``model`` is then unchanged.
        OSError: it cannot be read.
    """
    path = Path(path)
    file_size(path)
    fill_wholly(model, read_tensors(path), path)


def fill_wholly(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copies the tensors of a file into a model, which must have exactly those; errors as of `refuse_misfits`."""
    refuse_misfits(tensors, model_tensors(model), path)
    fill(model, tensors)


def refuse_misfits(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: Path | str) -> None:
    """Raises a ValueError unless the tensors of a file have the names, shapes and dtypes of those of a model."""
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or extra:
        parts = [f"lacks {len(missing)} of them, as {missing[0]}"] if missing else []
        parts += [f"has {len(extra)} others, as {extra[0]:.80}"] if extra else []
        raise ValueError(f"{path} is of another model: of the {len(wanted)} tensors here it {' and '.join(parts)}")
    for name, tensor in found.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            got, expected = (f"{t.dtype} {tuple(t.shape)}" for t in (tensor, wanted[name]))
            raise ValueError(f"{path} is of another model: {name} is {got:.80}, expected {expected}")


@torch.no_grad()
def refuse_non_finite(model: nn.Module, place: Path | str) -> None:
    """Raises a ValueError where a parameter is NaN, infinite or on the meta device, so that outputs would be NaN.

    Buffers are not checked: some are NaN until they are computed, such as the penalty of a fit.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(f"{place}: {name} is on the meta device and has no numbers; load the weights first")
        numbers = parameter if parameter.element_size() > 1 else parameter.float()  # isfinite lacks 8-bit formats
        if not bool(numbers.isfinite().all()):
            raise ValueError(
                f"{place}: {name} holds NaN or infinite numbers; expected finite weights: take others, or train "
                "again with a lower learning rate"
            )


@torch.no_grad()
def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copies tensors into those of a model by name, in place; a shared tensor may be given under any of its names."""
    own = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Reads the tensors of a safetensors file of this library, by name.

    Raises:
        ValueError: it is damaged, or of another program.
        OSError: it cannot be read.
    """
    return read_noted(path)[0]


def read_noted(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads the tensors of a safetensors file, and the notes in its header; errors as of `read_tensors`.

    The file is mapped, so only accessed parts of tensors are read.
    """
    path.open("rb").close()  # first, since safetensors reports any file that it cannot open as missing
    try:
        with safe_open(path, framework="pt") as file:
            notes = (file.metadata() or {}).get(NOTES)
            if notes is None:
                raise ValueError(f"{path} is a safetensors file of another program, not a checkpoint of this library")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except RuntimeError as error:  # torch maps the file once more, which the system may refuse
        if os.strerror(errno.EMFILE) not in str(error):
            raise
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path)) from error
    except SafetensorError as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} is not a readable checkpoint; it is damaged or of another kind ({reason:.160})"
        ) from error
    return tensors, parse_object(path, notes.encode())


@torch.no_grad()
def copied_to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies tensors into host memory, independent of the originals; copies from a GPU are pinned."""
    copies = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda).copy_(
            tensor, non_blocking=tensor.is_cuda
        )
        for name, tensor in tensors.items()
    }
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.synchronize(device)
    return copies


def tensor_bytes(tensors: dict[str, Tensor], notes: dict[str, Any]) -> bytes:
    """Encodes tensors as a safetensors file, with ``notes`` as JSON in its header; equal input gives equal bytes."""
    # One entry only, since the format writes several in random order.
    return save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {NOTES: json.dumps(notes)}
    )
