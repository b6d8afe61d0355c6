"""Checkpoints: what a run needs to go on, in folders that are whole or absent.

``checkpoints/step-00000120/`` holds ``weights.safetensors``, the trained weights and buffers; ``ema.safetensors``,
their moving average, which evaluation uses; ``state.pt``, the optimiser, random states and progress.
"""

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fredholm.tasks.task import Meanings
from fredholm.training.atomic import PARTIAL_PREFIX, remove_folder, write_file, write_folder

SCHEMA = 1
NOTES = "fredholm"
"""The header entry of our safetensors files."""

WEIGHTS, AVERAGE, STATE = "weights.safetensors", "ema.safetensors", "state.pt"
Which = Literal["best", "last"]


@final
class Checkpoints:
    """The checkpoints of one run folder; keeps the last and the best.

    Args:
        folder: created at the first save.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self, step: int, weights: dict[str, Tensor], average: dict[str, Tensor], state: dict[str, Any], best_step: int
    ) -> None:
        """Writes the checkpoint of ``step``, then removes all others but that of ``best_step``.

        Within a run a step's weights are fixed, so a second save of one step replaces only its state.

        Raises:
            OSError: it cannot be written; the earlier checkpoints are intact and nothing partial has a final name.
        """
        buffer = io.BytesIO()
        torch.save({"schema": SCHEMA, "step": step, **state}, buffer)
        target = self._path(step)
        try:
            if target.is_dir():
                write_file(target / STATE, buffer.getvalue())
            else:
                notes = {"schema": SCHEMA, "step": step}
                files = {
                    WEIGHTS: tensor_bytes(weights, notes),
                    AVERAGE: tensor_bytes(average, notes),
                    STATE: buffer.getvalue(),
                }
                write_folder(target, files)
        except OSError as error:
            kept = max((other for other in self.steps() if other != step), default=None)
            rest = "there is no earlier one" if kept is None else f"the one of step {kept} is intact"
            raise OSError(
                error.errno, f"cannot save the checkpoint of step {step} ({error.strerror}); {rest}", str(self.folder)
            ) from error
        for other in self.steps():
            if other not in (step, best_step):
                remove_folder(self._path(other))

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        matches = (re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.iterdir() if path.is_dir())
        return sorted(int(match[1]) for match in matches if match)

    def last_step(self) -> int | None:
        """The newest whole checkpoint's step."""
        return max(self.steps(), default=None)

    def load_state(self, step: int) -> dict[str, Any]:
        """Everything but the weights.

        Raises:
            ValueError: the file is damaged or no checkpoint of this library.
        """
        path = self._path(step) / STATE
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
        except FileNotFoundError as error:
            raise ValueError(f"{path} is missing; the checkpoint is not whole") from error
        except Exception as error:  # a damaged archive fails in many ways: zip, pickle, key and runtime errors
            raise ValueError(f"{path} is not a readable checkpoint state; it is damaged or of another kind") from error
        if not isinstance(state, dict) or state.get("schema") != SCHEMA or state.get("step") != step:
            raise ValueError(f"{path} is no state of step {step} in schema {SCHEMA} of this library")
        return state

    def load_weights(self, step: int, model: nn.Module, name: str = AVERAGE) -> None:
        """Fills ``model`` from the weights file ``name`` of ``step``; see ``load_weights``."""
        load_weights(self._path(step) / name, model)

    def average_file(self, step: int) -> Path:
        """Where the averaged weights of a step are."""
        return self._path(step) / AVERAGE

    def clear_partial(self) -> None:
        """Removes what a crash may have left half-written."""
        if self.folder.is_dir():
            for path in self.folder.glob(f"{PARTIAL_PREFIX}*"):
                remove_folder(path)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each tensor once (a shared one under its first name)."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach().contiguous()
    return tensors


def load_weights(path: Path, model: nn.Module) -> None:
    """Copies the tensors of a safetensors file into ``model``, which must have exactly those.

    Raises:
        ValueError: the file is damaged, or of another model; ``model`` is then unchanged.
    """
    stored = _read_tensors(path)
    wanted = dict(model.state_dict(keep_vars=True))
    names = model_tensors(model).keys()
    missing, extra = sorted(names - stored.keys()), sorted(stored.keys() - names)
    if missing or extra:
        parts = [f"lacks {len(missing)} of them, as {missing[0]}"] if missing else []
        parts += [f"has {len(extra)} others, as {extra[0]}"] if extra else []
        raise ValueError(f"{path} is of another model: of the {len(names)} tensors here it {' and '.join(parts)}")
    for name, tensor in stored.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            came, expected = (f"{t.dtype} {tuple(t.shape)}" for t in (tensor, wanted[name]))
            raise ValueError(f"{path} is of another model: {name} is {came}, expected {expected}")
    fill(model, stored)


@torch.no_grad()
def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copies tensors into those of a model by name, in place: one that has several names is given under any of them."""
    own = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


class Matched(NamedTuple):
    """What the entries along an axis stand for, by name."""

    both: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]

    @classmethod
    def of(cls, here: tuple[str, ...], there: tuple[str, ...]) -> Self:
        """From the names in the model and in the weights."""
        known, wanted = set(there), set(here)
        both = tuple(name for name in here if name in known)
        return cls(both, tuple(n for n in here if n not in known), tuple(n for n in there if n not in wanted))


class Start(NamedTuple):
    """What of some weights a model starts from."""

    fitting: dict[str, Tensor]
    """The model's tensors, whole; where entries have meanings, those without an equal there are as they are."""
    matched: dict[tuple[str, int], Matched]
    """What entries stand for along an axis of a tensor."""
    misfits: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """Shapes here and there of tensors that do not fit."""
    new: list[str]
    """Names of the model's tensors that are not among the weights."""
    left: list[str]
    """Names of weights that the model does not have."""


def start_from(
    weights: Mapping[str, Tensor], model: nn.Module, here: Meanings | None = None, there: Meanings | None = None
) -> Start:
    """The weights whose name, shape and dtype are those of the model's.

    Args:
        weights: of another model, by name.
        model: the model.
        here, there: what entries of tensors stand for. Those of equal meaning are taken over; tensors whose entries
            have a meaning in one of the models alone do not fit.
    """
    here, there, wanted = here or {}, there or {}, model_tensors(model)
    fitting: dict[str, Tensor] = {}
    matched: dict[tuple[str, int], Matched] = {}
    for name in (name for name in wanted if name in weights):
        own, other = wanted[name], weights[name]
        axes, axes_there = here.get(name, {}), there.get(name, {})
        sides = [[n for axis, n in enumerate(each.shape) if axis not in axes] for each in (own, other)]
        if (
            own.dtype != other.dtype
            or own.ndim != other.ndim
            or sides[0] != sides[1]
            or axes.keys() != axes_there.keys()
        ):
            continue
        found = {(name, axis): Matched.of(names, axes_there[axis]) for axis, names in axes.items()}
        matched |= found
        if all(each.both for each in found.values()):
            fitting[name] = _with_entries(own, other, axes, axes_there) if axes else other
    misfits = {
        name: (tuple(own.shape), tuple(weights[name].shape))
        for name, own in wanted.items()
        if name in weights and name not in fitting
    }
    new, left = ([name for name in own if name not in others] for own, others in ((wanted, weights), (weights, wanted)))
    return Start(fitting, matched, misfits, new, left)


def _with_entries(
    own: Tensor, other: Tensor, here: dict[int, tuple[str, ...]], there: dict[int, tuple[str, ...]]
) -> Tensor:
    """A tensor whose entries are another's where they stand for the same."""
    places: list[list[Tensor]] = [[], []]
    for axis, size in enumerate(own.shape):
        names = here.get(axis, tuple(map(str, range(size))))
        names_there = there.get(axis, names)
        both = Matched.of(names, names_there).both
        for each, order in zip(places, (names, names_there), strict=True):
            number = {name: n for n, name in enumerate(order)}
            each.append(torch.tensor([number[name] for name in both], device=own.device))
    to, taken = (torch.meshgrid(*each, indexing="ij") for each in places)
    return own.index_put(to, other[taken])


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            if NOTES not in (file.metadata() or {}):
                raise ValueError(f"{path} is a safetensors file of another program, not a checkpoint of this library")
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing; the checkpoint is not whole") from error
    except SafetensorError as error:
        raise ValueError(f"{path} is not a readable checkpoint; it is damaged or of another kind ({error})") from error


def tensor_bytes(tensors: dict[str, Tensor], notes: dict[str, Any]) -> bytes:
    """Tensors as a safetensors file of this library, with ``notes`` as JSON in its header; equal input, equal bytes."""
    # One entry only: the format writes several in random order.
    return save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {NOTES: json.dumps(notes)}
    )
