"""A folder with a model to be shared: its settings, its tensors, and a model card.

config.json has the version of its format, the description of the model, the sizes and SHA-256 of the files beside it,
and the SHA-256 of its own text. Tensors are in model.safetensors, or in shards and model.safetensors.index.json.
README.md is the card, which anyone may change.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from fredholm._version import __version__
from fredholm.storage.atomic import PARTIAL_PREFIX, of_place, write_file
from fredholm.storage.integrity import (
    check_listed,
    check_listing,
    listed,
    parse_object,
    read_bytes,
    read_listed,
    seal,
    unseal,
)
from fredholm.storage.tensors import model_tensors, read_tensors, refuse_misfits, refuse_non_finite, tensor_bytes

FORMAT = 1
LIBRARY = "fredholm"
CONFIG, CARD = "config.json", "README.md"
MODEL, RUN = KINDS = ("model", "run")
"""Kinds of content: a model by itself, or the model of a run with its task."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
"""Largest amount of tensor data in one file, unless a single tensor has more."""


@final
class ModelFolder:
    """A folder with a saved model.

    Args:
        path: path of the folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether this library saved a model in the folder, complete or not."""
        try:
            return parse_object(path / CONFIG, read_bytes(path / CONFIG)).get("library") == LIBRARY
        except (ValueError, OSError):
            return False

    @property
    def config_file(self) -> Path:
        """File with the description of the model."""
        return self.path / CONFIG

    @property
    def content(self) -> dict[str, Any]:
        """Reads the content that `write` was given.

        Raises:
            ValueError: it is missing, damaged, of a newer format, or of an unknown kind.
            OSError: it cannot be read.
        """
        found = parse_object(self.config_file, read_bytes(self.config_file))
        version = found.get("format")
        if type(version) is int and version > FORMAT:
            raise ValueError(
                f"{self.config_file} has format {version}, of fredholm {found.get('version')!s:.40}, and this version "
                f"reads formats up to {FORMAT}; update fredholm"
            )
        if found.get("library") != LIBRARY or version != FORMAT:
            raise ValueError(f"{self.config_file} is no config of a model that this library saved")
        try:
            content = unseal(self.config_file)
        except ValueError as error:
            raise ValueError(f"{error}; fetch it again") from error
        if content.get("kind") not in KINDS:
            raise ValueError(
                f"{self.config_file} is of kind {content.get('kind')!r:.40}; expected one of {', '.join(KINDS)}: fetch "
                "it again, or update fredholm"
            )
        return content

    def write(
        self,
        content: Mapping[str, Any],
        model: nn.Module,
        card: str,
        *,
        texts: Mapping[str, str] | None = None,
        overwrite: bool = False,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """Writes the folder, completely or not at all.

        Args:
            content: description of the model in JSON types; its entry `kind` is one of KINDS.
            model: module whose tensors are written.
            card: text of README.md.
            texts: texts of further files, by name.
            overwrite: whether existing files of these names may be replaced; others stay.
            shard_bytes: largest amount of tensor data in one file.

        Raises:
            ValueError: the path is a file or a folder that is not empty; it has a config.json of something else,
                even with `overwrite`; or a parameter is not finite.
            OSError: it cannot be written.
        """
        if shard_bytes < 1:
            raise ValueError(f"a file must have room for at least 1 byte of tensors; got {shard_bytes}")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; expected a new or an empty folder")
        refuse_non_finite(model, f"the model for {self.path}")
        if self.path.is_dir():
            if not overwrite and any(self.path.iterdir()):
                raise ValueError(
                    f"{self.path} is not empty; choose another folder, or replace its files with overwrite=True "
                    "(--overwrite)"
                )
            if self.config_file.exists() and not self.is_one(self.path):
                raise ValueError(
                    f"{self.config_file} is of no saved model, but of a run or another program, and would be lost; "
                    "name another folder"
                )
            before = self._listed_names()
            names = _put(self.path, content, model, card, texts or {}, shard_bytes)
            for name in before - names:
                (self.path / name).unlink(missing_ok=True)
            return
        partial = self.path.with_name(f"{PARTIAL_PREFIX}{self.path.name}")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            _put(partial, content, model, card, texts or {}, shard_bytes)
            partial.rename(self.path)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError):
                raise of_place(error, self.path) from error
            raise

    def text(self, name: str) -> str | None:
        """Reads a further file; None where there is none of that name. Errors as of `content`."""
        entry = self._files().get(name)
        return None if entry is None else read_listed(self.path / name, entry, CONFIG).decode()

    def fill(self, model: nn.Module, dtype: torch.dtype | None = None) -> None:
        """Loads the tensors into a model, each file after comparing it with its SHA-256.

        Args:
            model: a model as the content describes it.
            dtype: dtype of tensors that are float32 in a new model; None: as saved.

        Raises:
            ValueError: a file is missing or damaged; a tensor is missing, of another shape, or left over; a parameter
                is not finite.
            OSError: a file cannot be read.
        """
        found: dict[str, Tensor] = {}
        for name, entry in self._files().items():
            if name.endswith(".safetensors"):
                try:
                    check_listed(self.path / name, entry, CONFIG)
                except ValueError as error:
                    raise ValueError(f"{error}; fetch it again") from error
                found |= read_tensors(self.path / name)
        wanted = model_tensors(model)
        # other floating-point dtypes fit, as the model may have been converted
        alike = {
            name: tensor.to("meta", wanted[name].dtype)
            if name in wanted and tensor.is_floating_point() and wanted[name].is_floating_point()
            else tensor
            for name, tensor in found.items()
        }
        refuse_misfits(alike, wanted, self.path)
        own = model.state_dict(keep_vars=True)
        for name, tensor in found.items():
            is_default = own[name].dtype == torch.float32 and dtype is not None
            # a copy, since the tensor may be a view of the mapped file at an unaligned address
            own[name].data = tensor.to(torch.float32 if is_default else tensor.dtype, copy=True)
        refuse_non_finite(model, self.path)
        if dtype is not None and dtype != torch.float32:
            # each model says which of its tensors may be rounded
            model._apply(lambda tensor: tensor.to(dtype) if tensor.dtype == torch.float32 else tensor)

    def _files(self) -> dict[str, dict[str, Any]]:
        return check_listing(self.config_file, self.content.get("files"))

    def _listed_names(self) -> set[str]:
        """Returns the names of the files of an existing model."""
        try:
            return set(self._files())
        except (ValueError, OSError):
            return set()


def _put(
    folder: Path,
    content: Mapping[str, Any],
    model: nn.Module,
    card: str,
    texts: Mapping[str, str],
    shard_bytes: int,
) -> set[str]:
    """Writes all files into a folder, config.json last, and returns the names that it lists."""
    tensors, files = model_tensors(model), dict[str, dict[str, Any]]()
    shards = list(_shards(tensors, shard_bytes))
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        data = tensor_bytes({name: tensors[name] for name in names}, {"format": FORMAT})
        write_file(folder / file, data)
        files[file] = listed(data)
        weight_map |= dict.fromkeys(names, file)
    further = {name: text.encode() for name, text in texts.items()}
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(map(_bytes, tensors.values()))}, "weight_map": weight_map}
        further[INDEX] = (json.dumps(index, indent=2) + "\n").encode()
    for name, data in further.items():
        write_file(folder / name, data)
        files[name] = listed(data)
    write_file(folder / CARD, card.encode())
    whole = {"library": LIBRARY, "format": FORMAT, "version": __version__, **content, "files": files}
    write_file(folder / CONFIG, seal(whole))
    return set(files)


def _shards(tensors: Mapping[str, Tensor], most: int) -> Iterator[list[str]]:
    """Yields the names of the tensors of each file."""
    names, size = list[str](), 0
    for name, tensor in tensors.items():
        if names and size + _bytes(tensor) > most:
            yield names
            names, size = [], 0
        names.append(name)
        size += _bytes(tensor)
    yield names


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
