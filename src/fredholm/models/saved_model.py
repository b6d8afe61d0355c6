"""Saving of models with all that is needed to rebuild them, and loading.

A file names classes; they are looked up among the library's own models, encoders, fields, kernels and configurations,
and nothing else is imported or run. Operators whose kernels differ from the model's settings, such as those of
`pretrained.linearise`, are saved with their kernels.
"""

import dataclasses
import functools
import inspect
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from fredholm import encoders, fields, kernels
from fredholm.kernels import Kernel
from fredholm.operators import IntegralOperator
from fredholm.storage.config_json import from_json, to_json
from fredholm.storage.hub import HUB, push_folder
from fredholm.storage.model_folder import MODEL, SHARD_BYTES, ModelFolder
from fredholm.storage.rebuildable import Rebuildable


class SavedModel(nn.Module, Rebuildable):
    """A model that remembers its constructor's arguments, so that it can be saved whole."""

    @final
    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False, shard_bytes: int = SHARD_BYTES) -> None:
        """Saves the model: class and settings as config.json, weights as safetensors, and README.md.

        `fredholm.from_pretrained` reads it.

        Args:
            folder: a new or an empty folder.
            overwrite: whether existing files of the same names may be replaced.
            shard_bytes: most bytes of weights in one file; larger models are split into several files.

        Raises:
            ValueError: the folder is not empty; the model is not of the library, or was changed after construction in
                more than the kernels of its operators, so that its settings do not describe it.
            OSError: the disk is full or the folder cannot be written.
        """
        ModelFolder(Path(folder).expanduser()).write(
            {"kind": MODEL, **_described(self)},
            self,
            _card(self, str(folder)),
            overwrite=overwrite,
            shard_bytes=shard_bytes,
        )

    @final
    def push_to_hub(
        self, repo: str, *, private: bool = False, token: str | None = None, overwrite: bool = False
    ) -> str:
        """Saves the model to a repository of the Hugging Face hub; see `save_pretrained`.

        Args:
            repo: `owner/name`.
            private: whether a new repository is private.
            token: access token of the hub; None: the one of `hf auth login` or HF_TOKEN.
            overwrite: whether files of an existing repository may be replaced.

        Returns:
            The URL of the commit.

        Raises:
            ValueError: as in `save_pretrained`; or the name of the repository is invalid, or it has files.
            ModuleNotFoundError, OSError: there is no huggingface_hub, no network or no token.
        """
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            self.save_pretrained(folder)
            (folder / "README.md").write_text(_card(self, f"{HUB}{repo}"), encoding="utf-8")
            return push_folder(folder, repo, private=private, token=token, overwrite=overwrite)


def load_model(folder: Path, dtype: torch.dtype | None) -> SavedModel:
    """Loads a model of `SavedModel.save_pretrained`, on the CPU.

    Args:
        folder: folder of the model.
        dtype: dtype of the tensors that are float32 in a new model; None: as saved.

    Raises:
        ValueError: the folder is damaged or of a newer version, or its config does not fit: it names an unknown class
            or field, or the tensors are of another model.
        OSError: the folder cannot be read.
    """
    place = ModelFolder(folder)
    content = place.content
    if content["kind"] != MODEL:
        raise ValueError(f"{folder} holds the model of a run; read it with fredholm.from_pretrained")
    try:
        with torch.random.fork_rng(devices=[]):  # the random initial weights are replaced
            model = _built(content)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place.config_file}: {error}") from error
    place.fill(model, dtype)
    return model


def unfilled_model(folder: Path) -> SavedModel:
    """Builds a model of `SavedModel.save_pretrained` from its settings, on the meta device, without its weights.

    Raises:
        ValueError, OSError: as in `load_model`; or it has kernels other than those of its settings.
    """
    content = ModelFolder(folder).content
    if content.get("operators"):
        raise ValueError(
            f"{folder} holds a model with other kernels than in its settings; take the model that it was made from"
        )
    with torch.device("meta"):
        return _built(content)


def _built(content: Mapping[str, Any]) -> SavedModel:
    """Builds the model that `_described` describes, with new weights; raises a ValueError or TypeError if it cannot."""
    model: SavedModel = from_json(content.get("model"), SavedModel, known_classes(), "model")
    changed: dict[str, Any] = from_json(
        content.get("operators", {}), dict[str, _Operator], known_classes(), "operators"
    )
    there = _operators(model)
    for name, operator in changed.items():
        if name not in there:
            raise ValueError(f"operators names {name!r:.80}, and {type(model).__name__} has no operator of that name")
        package, _, last = name.rpartition(".")
        setattr(model.get_submodule(package), last, operator.build())
    return model


def _described(model: SavedModel) -> dict[str, Any]:
    """Describes a model by the JSON value that `_built` builds it from.

    Raises:
        ValueError: the library cannot rebuild the model.
    """
    name = type(model).__name__
    if type(model) not in known_classes():
        raise ValueError(f"{name} is no model of the library, so that it could not be loaded; save its state_dict")
    content: dict[str, Any] = {"model": to_json(model)}
    with torch.random.fork_rng(devices=[]):
        built = _built(content)
        before = _operators(built)
        changed = {
            place: to_json(_Operator.of(operator, place))
            for place, operator in _operators(model).items()
            if place in before and _kernel_json(operator.kernel) != _kernel_json(before[place].kernel)
        }
        if changed:
            content["operators"] = changed
            built = _built(content)
    if (change := _first_change(model, built)) is not None:
        raise ValueError(
            f"{name} was changed after it was built, so that its settings do not describe it: {change}; build it so, "
            "or save its state_dict"
        )
    return content


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Operator:
    """Description of an operator without its route, nodes and weights."""

    kernel: Kernel
    residual: bool
    bias: bool
    output_projection: bool

    @classmethod
    def of(cls, operator: IntegralOperator, place: str) -> "_Operator":
        """Describes an operator; raises a ValueError, with its name `place`, if its kernel cannot be described."""
        kinds = {type(part) for part in operator.kernel.modules() if isinstance(part, Kernel)}
        if _kernel_json(operator.kernel) is None or not kinds <= set(known_classes()):
            raise ValueError(
                f"the kernel of {place}, {type(operator.kernel).__name__}, is not of the library, or has arguments "
                "other than numbers, strings and kernels, so that it could not be loaded; save the model's "
                "state_dict"
            )
        return cls(
            kernel=operator.kernel,
            residual=operator.residual_weight is not None,
            bias=operator.bias is not None,
            output_projection=operator.output_weight is not None,
        )

    def build(self) -> IntegralOperator:
        return IntegralOperator(
            self.kernel, residual=self.residual, bias=self.bias, output_projection=self.output_projection
        )


def _operators(model: nn.Module) -> dict[str, IntegralOperator]:
    return {name: part for name, part in model.named_modules() if isinstance(part, IntegralOperator)}


def _kernel_json(kernel: Kernel) -> Any:
    """A kernel's class and arguments as JSON; None if an argument has no JSON form, such as a function."""
    try:
        return to_json(kernel)
    except TypeError:
        return None


@functools.cache
def known_classes() -> tuple[type, ...]:
    """The classes that a file may name: the library's models, encoders, fields, kernels, and their configurations."""
    from fredholm import models

    packages = (models, encoders, fields, kernels)
    exported = [getattr(package, name) for package in packages for name in package.__all__]
    classes = [kind for kind in exported if isinstance(kind, type)]
    classes += [part for kind in classes for part in vars(kind).values() if isinstance(part, type)]
    return tuple(kind for kind in classes if _is_described(kind) and not inspect.isabstract(kind))


def _is_described(kind: type) -> bool:
    return issubclass(kind, Rebuildable) or dataclasses.is_dataclass(kind)


def _first_change(model: nn.Module, built: nn.Module) -> str | None:
    """Describes the first difference of a model from a newly built one, apart from the values of tensors."""
    own, new = dict(model.named_modules()), dict(built.named_modules())
    for name in own.keys() | new.keys():
        kinds = [type(parts[name]).__name__ if name in parts else "nothing" for parts in (own, new)]
        if name not in own or name not in new or type(own[name]) is not type(new[name]):
            return f"{name or 'it'} is {kinds[0]} in place of {kinds[1]}"
        if (change := _other_setting(vars(own[name]), vars(new[name]), name)) is not None:
            return change
    own_kinds, new_kinds = ({name: _kind(each) for name, each in part.state_dict().items()} for part in (model, built))
    for name in sorted(own_kinds.keys() | new_kinds.keys()):
        if own_kinds.get(name) != new_kinds.get(name):
            return f"{name} is {own_kinds.get(name)} in place of {new_kinds.get(name)}"
    own_places, new_places = _first_names(model), _first_names(built)
    for name, first in own_places.items():
        if first != new_places[name]:
            return f"{name} is the tensor {first} in place of {new_places[name]}"
    return None


def _first_names(model: nn.Module) -> dict[str, str]:
    """For each saved tensor, by its name, the first name of the same tensor, which differs for tied weights."""
    firsts, tensors = dict[int, str](), model.state_dict(keep_vars=True)
    return {name: firsts.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def _kind(tensor: Tensor) -> str:
    """The shape of a tensor, with its class if that is not `torch.Tensor`."""
    return f"{'' if type(tensor) is Tensor else type(tensor).__name__}{tuple(tensor.shape)}"


OF_EVERY_MODULE = frozenset({*vars(nn.Module()), "_arguments"})


def _other_setting(own: Mapping[str, Any], new: Mapping[str, Any], where: str) -> str | None:
    """Describes the first plain value that differs, including those in nested objects of the library."""
    for name in (own.keys() & new.keys()) - OF_EVERY_MODULE:
        place, value, before = f"{where}.{name}".lstrip("."), own[name], new[name]
        if isinstance(value, Tensor | nn.Module) or isinstance(before, Tensor | nn.Module):
            continue
        numbers = isinstance(value, int | float) and isinstance(before, int | float)  # 4 is read back as 4.0
        if type(value) is not type(before) and not numbers:
            return f"{place} is {type(value).__name__} in place of {type(before).__name__}"
        if _is_plain(value) and _is_plain(before) and value != before:
            return f"{place} is {value!r:.40} in place of {before!r:.40}"
        is_ours = type(value).__module__.startswith("fredholm.")
        if is_ours and (change := _other_setting(_inner(value), _inner(before), place)):
            return change
    return None


def _is_plain(value: object) -> bool:
    """Whether a value is a number, a string, or a tuple of these."""
    return isinstance(value, bool | int | float | str) or (type(value) is tuple and all(map(_is_plain, value)))


def _inner(value: object) -> Mapping[str, Any]:
    return getattr(value, "__dict__", {})


def _card(model: SavedModel, place: str) -> str:
    name, count = type(model).__name__, sum(parameter.numel() for parameter in model.parameters())
    return f"""---
library_name: fredholm
tags:
- fredholm
- integral-operator
- {name.lower()}
---

# {name}

`models.{name}` of fredholm, a library of learnable integral operators: {count:,} parameters. `config.json` has its
settings, `model.safetensors` its weights.

```python
import fredholm

model = fredholm.from_pretrained("{place}")
```
"""
