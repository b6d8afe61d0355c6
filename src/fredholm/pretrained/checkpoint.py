"""Reads checkpoints of other libraries: a JSON configuration and safetensors files, in a folder or on the hub."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fredholm.storage.hub import HUB, hub_hint, hub_name
from fredholm.storage.model_folder import INDEX, SINGLE
from fredholm.storage.tensors import refuse_non_finite

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")


def find_folder(place: str | Path, revision: str | None = None) -> Path:
    """Returns a local folder, or the download (cached) of the files of `hf://owner/name` that `from_pretrained` reads.

    Raises:
        ValueError, OSError: the place is neither, or the hub cannot be reached.
    """
    name = hub_name(str(place))
    if name is None:
        return _local(place, revision)
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{place} is on the hub, which needs huggingface_hub; pip install 'fredholm[hub]', or pass a folder"
        ) from error
    try:
        wanted = ["*.json", "*.safetensors", "*vocab.txt", "*merges.txt"]  # patterns match in subfolders too
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except Exception as error:  # the hub's client raises errors of several libraries
        reason = str(error).strip().partition("\n")[0]
        raise OSError(
            f"{place}: the hub gave no such repository ({type(error).__name__}: {reason}); check the name and the "
            "network, or pass a folder"
        ) from error


def _local(place: str | Path, revision: str | None) -> Path:
    path = Path(place).expanduser()
    if path.is_dir():
        if revision is not None:
            raise ValueError(f"revision={revision!r} has no effect on the folder {path}; leave it out")
        return path
    if path.exists():
        raise ValueError(f"{path} is a file; pass the folder that holds it beside its config.json")
    hint = hub_hint(str(place)) or f", or {HUB}owner/name"
    raise FileNotFoundError(f"no folder {str(place)!r}; pass a folder with config.json{hint}")


@final
class Fields:
    """The fields of a checkpoint's configuration; unsupported values raise errors with the field's name.

    Args:
        values: the object in config.json.
        source: path of the file, for messages.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values, self.source = values, source

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a field, or the default where it is missing or null."""
        value = self._values.get(name)
        return default if value is None else value

    def names(self, name: str) -> bool:
        """Whether the configuration has the field, even if it is null."""
        return name in self._values

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Returns an integer of at least `least`.

        Raises:
            ValueError: the field is not such a number, or is missing without a default.
        """
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{self.source}: {name} must be a whole number of at least {least}; got {value!r}")
        return value

    def depth(self, name: str, default: int, tensors: "Tensors") -> int:
        """Returns the number of blocks of a model, each of which has tensors in the checkpoint.

        Raises:
            ValueError: the field is not an integer of at least 1, or there are fewer tensors than blocks.
        """
        value, most = self.count(name, default), len(list(tensors))
        if value > most:
            raise ValueError(
                f"{self.source}: {name} is {value}, and the checkpoint has {most} tensors in all; fetch it again"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a positive number.

        Raises:
            ValueError: the field is not such a number, or is missing without a default.
        """
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise ValueError(f"{self.source}: {name} must be a positive number; got {value!r}")
        return float(value)

    def rate(self, name: str, default: float = 0.0) -> float:
        """Returns a number in [0, 1).

        Raises:
            ValueError: the field is not such a number.
        """
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
            raise ValueError(f"{self.source}: {name} must be a number from 0 to below 1; got {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Returns a bool.

        Raises:
            ValueError: the field is not true or false.
        """
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.source}: {name} must be true or false; got {value!r}")
        return value

    def choice(self, name: str, choices: Mapping[str, Any], default: str) -> Any:
        """Returns the value that a named choice maps to.

        Raises:
            ValueError: the choice is not supported.
        """
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{self.source}: {name}={value!r} is not supported; supported: {', '.join(choices)}")
        return choices[value]

    def require(self, **supported: Any) -> None:
        """Raises a ValueError unless each field is missing, null, or has the one supported value."""
        for name, value in supported.items():
            found = self.get(name, value)
            if found != value:
                raise ValueError(f"{self.source}: {name}={found!r} is not supported; supported: {value!r}")


class Place(NamedTuple):
    """Location of a tensor: a file and the tensor's name in it."""

    file: Path
    name: str


@final
class Tensors:
    """The tensors of a checkpoint, read on access.

    Args:
        places: location of each tensor by its name.
        source: the folder, for messages.
    """

    def __init__(self, places: Mapping[str, Place], source: str) -> None:
        self._places, self.source = dict(places), source
        self._read: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def without_prefix(self, prefix: str) -> "Tensors":
        """The same tensors with a prefix removed from names, as models with a head prefix their stack."""
        named = {name.removeprefix(prefix): place for name, place in self._places.items()}
        return Tensors(named, self.source)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape, without reading its values; raises as `__getitem__`."""
        file, stored = self._place(name)
        with safe_open(file, framework="pt") as opened:
            return tuple(opened.get_slice(stored).get_shape())

    def __getitem__(self, name: str) -> Tensor:
        """Reads a tensor.

        Raises:
            ValueError: there is no tensor of that name.
        """
        file, stored = self._place(name)
        self._read.add(name)
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(stored)

    def ignore(self, *endings: str) -> None:
        """Marks tensors with these endings as read: buffers that the other library saves and this one does not use."""
        self._read |= {name for name in self._places if name.endswith(endings)}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the tensors."""
        return tuple(dict.fromkeys(place.file for place in self._places.values()))

    def unread(self) -> list[str]:
        """Names of the tensors that were neither read nor ignored."""
        return sorted(set(self._places) - self._read)

    def _place(self, name: str) -> Place:
        if name not in self._places:
            raise ValueError(f"{self.source}: there is no tensor {name!r}, which the configuration asks for")
        return self._places[name]


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the object in config.json.

    Raises:
        ValueError, OSError: there is no such file, or it is not a JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no config.json; pass the folder that a model was saved in")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error}); save the model again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds {type(found).__name__}; expected an object with the fields of a configuration")
    return found


def find_tensors(folder: Path) -> Tensors:
    """Locates the tensors of one safetensors file, or of the shards that an index names.

    Raises:
        ValueError, OSError: there are no tensors, a shard is missing, a file is damaged, or the folder holds pickles
            alone.
    """
    index = folder / INDEX
    files = [folder / SINGLE]
    weight_map: Mapping[str, str] | None = None
    if index.is_file():
        weight_map = _weight_map(index)
        files = [folder / name for name in sorted(set(weight_map.values()))]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(_why_missing(folder, file, is_shard=weight_map is not None))
    places: dict[str, Place] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                names = list(opened.keys())
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is damaged or no safetensors file ({error}); fetch it again") from error
        places |= {name: Place(file, name) for name in names}
    absent = sorted(set(weight_map or ()) - set(places))
    if weight_map is not None and absent:
        raise ValueError(
            f"{index} names the tensor {absent[0]!r} in {weight_map[absent[0]]}, which has none; fetch it again"
        )
    return Tensors(places, str(folder))


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        sound = isinstance(weight_map, dict) and all(isinstance(name, str) for name in weight_map.values())
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{index} is no index of shards ({error}); fetch it again") from error
    if not sound or any(Path(name).name != name for name in weight_map.values()):
        raise ValueError(f"{index} is no index of shards: its weight_map must name files of the same folder")
    return weight_map


def _why_missing(folder: Path, file: Path, *, is_shard: bool) -> str:
    if is_shard:
        return f"{folder} lacks the shard {file.name}, which {INDEX} names; fetch it, or save the model again"
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        return (
            f"{folder} holds {pickles[0]}, which can run code when it is read, and no {SINGLE}; save the model as "
            "safetensors (save_pretrained of transformers does), or take a revision that has them"
        )
    return f"{folder} has no {SINGLE} and no {INDEX}; pass the folder that a model was saved in"


Source = str | Callable[[Tensors], Tensor]
"""Source of a parameter: the name of a tensor of the checkpoint, or a function of the checkpoint's tensors."""


def part(name: str, index: int, parts: int, *, transposed: bool = False) -> Source:
    """One of `parts` equal slices, along the first axis, of a tensor that may be stored transposed."""

    def read(tensors: Tensors) -> Tensor:
        whole = tensors[name]
        if transposed and whole.ndim == 2:
            return _laid_out(whole.chunk(parts, dim=1)[index].mT)
        return whole.chunk(parts)[index].contiguous()

    return read


def transposed(name: str) -> Source:
    """A matrix of the checkpoint, transposed."""
    return lambda tensors: _laid_out(tensors[name].mT)


def laid_out(name: str) -> Source:
    """A matrix of the checkpoint in the memory layout that is fastest for token-by-token generation."""
    return lambda tensors: _laid_out(tensors[name])


def _laid_out(weight: Tensor) -> Tensor:
    """The matrix stored contiguously along its longer axis, the fastest layout for token-by-token generation."""
    return weight.mT.contiguous().mT if weight.shape[0] >= weight.shape[1] else weight.contiguous()


def linear(mine: str, theirs: str, *, bias: bool = True) -> dict[str, Source]:
    """Sources of the weight and bias of a linear map or norm, by our name and the checkpoint's."""
    return {f"{mine}.{kind}": f"{theirs}.{kind}" for kind in ("weight", *(("bias",) if bias else ()))}


class Converted(NamedTuple):
    """A model of this library and the sources of its parameters in a checkpoint."""

    build: Callable[[], nn.Module]
    tensors: Tensors
    sources: Mapping[str, Source]
    pooler: Mapping[str, Source] = MappingProxyType({})
    """Sources of a BERT's pooler, the map before the classifier, where the checkpoint has one."""
    pooling: Literal["tanh", "relu"] = "tanh"
    """Activation of the pooler."""
    marks_second: bool = True
    """Whether the second sentence of a pair has its own segment embedding."""


def fill(model: nn.Module, tensors: Tensors, sources: Mapping[str, Source], dtype: torch.dtype | None) -> None:
    """Loads the parameters of a model from the tensors of a checkpoint.

    Args:
        model: the model, on the meta device.
        tensors: tensors of the checkpoint; each must have been read, or ignored, at the end.
        sources: source of each parameter of the model, by its name.
        dtype: dtype of the parameters; None: as stored.

    Raises:
        ValueError: a tensor is missing, has another shape, is no floating-point tensor, not finite, or left over.
    """
    expected = model.state_dict()
    assert set(expected) == set(sources), sorted(set(expected) ^ set(sources))
    found: dict[str, Tensor] = {}
    for name, like in expected.items():
        source = sources[name]
        value = tensors[source] if isinstance(source, str) else source(tensors)
        what = repr(source) if isinstance(source, str) else f"the source of {name!r}"
        if not value.is_floating_point():
            raise ValueError(f"{tensors.source}: {what} is {value.dtype}; expected floating-point numbers")
        if value.shape != like.shape:
            raise ValueError(
                f"{tensors.source}: {what} has shape {tuple(value.shape)}; by the configuration it has "
                f"{tuple(like.shape)}"
            )
        found[name] = value.to(value.dtype if dtype is None else dtype)
    if left := tensors.unread():
        more = f" and {len(left) - 1} others" if len(left) > 1 else ""
        raise ValueError(
            f"{tensors.source}: the tensor {left[0]!r}{more} has no place in {type(model).__name__}; this variant of "
            "the architecture is not supported"
        )
    model.load_state_dict(found, assign=True)
    refuse_non_finite(model, tensors.source)
