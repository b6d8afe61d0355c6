"""Checkpoints of other libraries: a configuration in JSON and tensors in safetensors files, in a folder or a hub."""

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
    """A local folder, or of `hf://owner/name` the files of the hub that `from_pretrained` reads, downloaded once.

    Raises:
        ValueError, OSError: it is neither, or the hub cannot be reached.
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
        wanted = ["*.json", "*.safetensors", "*vocab.txt", "*merges.txt"]  # of folders within too
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
    """The configuration of a checkpoint; what a model cannot do is refused by the field's name.

    Args:
        values: the object in config.json.
        source: where that is, in messages.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values, self.source = values, source

    def get(self, name: str, default: Any = None) -> Any:
        """A field; the default where it is missing or null."""
        value = self._values.get(name)
        return default if value is None else value

    def names(self, name: str) -> bool:
        """Whether the field is there, be it null."""
        return name in self._values

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`.

        Raises:
            ValueError: it is none, or missing without a default.
        """
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{self.source}: {name} must be a whole number of at least {least}; got {value!r}")
        return value

    def depth(self, name: str, default: int, tensors: "Tensors") -> int:
        """How many blocks a model has, of which each has tensors among those of the checkpoint.

        Raises:
            ValueError: it is no number of at least 1, or there are fewer tensors than blocks.
        """
        value, most = self.count(name, default), len(list(tensors))
        if value > most:
            raise ValueError(
                f"{self.source}: {name} is {value}, and the checkpoint has {most} tensors in all; fetch it again"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number.

        Raises:
            ValueError: it is none, or missing without a default.
        """
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise ValueError(f"{self.source}: {name} must be a positive number; got {value!r}")
        return float(value)

    def rate(self, name: str, default: float = 0.0) -> float:
        """A number from 0 to below 1.

        Raises:
            ValueError: it is none.
        """
        value = self.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
            raise ValueError(f"{self.source}: {name} must be a number from 0 to below 1; got {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false.

        Raises:
            ValueError: it is neither.
        """
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.source}: {name} must be true or false; got {value!r}")
        return value

    def choice(self, name: str, choices: Mapping[str, Any], default: str) -> Any:
        """What a named choice stands for.

        Raises:
            ValueError: another choice.
        """
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{self.source}: {name}={value!r} is not supported; supported: {', '.join(choices)}")
        return choices[value]

    def require(self, **supported: Any) -> None:
        """Raises ValueError, naming the field, unless each field is missing, null, or has the one value supported."""
        for name, value in supported.items():
            found = self.get(name, value)
            if found != value:
                raise ValueError(f"{self.source}: {name}={found!r} is not supported; supported: {value!r}")


class Place(NamedTuple):
    """Where a tensor lies."""

    file: Path
    name: str


@final
class Tensors:
    """The tensors of a checkpoint, read when they are asked for.

    Args:
        places: where each lies, by its name.
        source: the folder, in messages.
    """

    def __init__(self, places: Mapping[str, Place], source: str) -> None:
        self._places, self.source = dict(places), source
        self._read: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def without_prefix(self, prefix: str) -> "Tensors":
        """The same, where names that start with a prefix lose it: what a model with a head calls its stack."""
        named = {name.removeprefix(prefix): place for name, place in self._places.items()}
        return Tensors(named, self.source)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading its values; see `__getitem__`."""
        file, stored = self._place(name)
        with safe_open(file, framework="pt") as opened:
            return tuple(opened.get_slice(stored).get_shape())

    def __getitem__(self, name: str) -> Tensor:
        """A tensor.

        Raises:
            ValueError: there is none of that name.
        """
        file, stored = self._place(name)
        self._read.add(name)
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(stored)

    def ignore(self, *endings: str) -> None:
        """Takes tensors whose names end so for read: what a peer keeps without using it."""
        self._read |= {name for name in self._places if name.endswith(endings)}

    @property
    def files(self) -> tuple[Path, ...]:
        """That they lie in."""
        return tuple(dict.fromkeys(place.file for place in self._places.values()))

    def unread(self) -> list[str]:
        """The names of tensors that nobody asked for."""
        return sorted(set(self._places) - self._read)

    def _place(self, name: str) -> Place:
        if name not in self._places:
            raise ValueError(f"{self.source}: there is no tensor {name!r}, which the configuration asks for")
        return self._places[name]


def read_config(folder: Path) -> dict[str, Any]:
    """The object in config.json.

    Raises:
        ValueError, OSError: there is none, or it is no JSON object.
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
    """The tensors of one safetensors file, or of the shards that an index names.

    Raises:
        ValueError, OSError: there are none, a shard is missing, a file is damaged, or the folder holds pickles alone.
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
"""What a tensor of ours is made of: a tensor of the checkpoint by its name, or by a rule."""


def part(name: str, index: int, parts: int, *, transposed: bool = False) -> Source:
    """One of equal parts, along the first axis, of a tensor of the checkpoint, which may be transposed there."""

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
    """A matrix of the checkpoint in the order in memory that drawing tokens reads fastest."""
    return lambda tensors: _laid_out(tensors[name])


def _laid_out(weight: Tensor) -> Tensor:
    """The matrix with its longer axis in one piece: so it is read fastest where one token is drawn after the other."""
    return weight.mT.contiguous().mT if weight.shape[0] >= weight.shape[1] else weight.contiguous()


def linear(mine: str, theirs: str, *, bias: bool = True) -> dict[str, Source]:
    """Weight and constant of a map or a norm, under two names."""
    return {f"{mine}.{kind}": f"{theirs}.{kind}" for kind in ("weight", *(("bias",) if bias else ()))}


class Converted(NamedTuple):
    """A model of this library, and the tensors of a checkpoint that it gets."""

    build: Callable[[], nn.Module]
    tensors: Tensors
    sources: Mapping[str, Source]
    pooler: Mapping[str, Source] = MappingProxyType({})
    """The map before the classes of a BERT, where the checkpoint has one."""
    pooling: Literal["tanh", "relu"] = "tanh"
    """What bends that map's channels."""
    marks_second: bool = True
    """Whether the second sentence of a pair has a segment of its own."""


def fill(model: nn.Module, tensors: Tensors, sources: Mapping[str, Source], dtype: torch.dtype | None) -> None:
    """Gives each parameter of a model its tensor of a checkpoint.

    Args:
        model: on the meta device.
        tensors: of the checkpoint; every one must be asked for, or ignored before.
        sources: where each tensor of the model comes from, by its name there.
        dtype: of the parameters; None: as they are kept.

    Raises:
        ValueError: a tensor is missing, has another shape, is no floating-point tensor, not finite, or left over.
    """
    expected = model.state_dict()
    assert set(expected) == set(sources), sorted(set(expected) ^ set(sources))
    found: dict[str, Tensor] = {}
    for name, like in expected.items():
        source = sources[name]
        value = tensors[source] if isinstance(source, str) else source(tensors)
        what = repr(source) if isinstance(source, str) else f"what becomes {name!r}"
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
