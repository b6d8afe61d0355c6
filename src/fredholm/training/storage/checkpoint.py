"""Checkpoints: what a run needs to go on, in folders that are whole or absent.

``checkpoints/step-00000120/`` holds ``weights.safetensors``, the trained weights and buffers; ``ema.safetensors``,
their moving average, which evaluation uses; ``optimizer.safetensors``, the optimiser's tensors; and ``manifest.json``,
the state (progress, random states, where the log stands) with the size and SHA-256 of the others and of itself.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from fredholm.storage.atomic import clear_partial, remove_folder, write_file, write_folder
from fredholm.storage.integrity import check_listed, check_listing, listed, seal, unseal
from fredholm.storage.tensors import fill_wholly, model_tensors, read_tensors, tensor_bytes
from fredholm.tasks.task import Meanings

SCHEMA = 2
WEIGHTS, AVERAGE, OPTIMIZER = "weights.safetensors", "ema.safetensors", "optimizer.safetensors"
MANIFEST = "manifest.json"
Which = Literal["best", "last"]


@final
class Checkpoints:
    """The checkpoints of one run folder; keeps the last and the best.

    All that is read is compared with the manifest first: another byte, another file or another run is an error.

    Args:
        folder: created at the first save.
        run: what tells the run (`RunFolder.run`), which its checkpoints name; None: any is read.
    """

    def __init__(self, folder: Path, run: str | None = None) -> None:
        self.folder = folder
        self._run = run

    def save(
        self, step: int, tensors: Mapping[str, dict[str, Tensor]], state: Mapping[str, Any], best_step: int
    ) -> None:
        """Writes the checkpoint of ``step``, then removes all others but that of ``best_step``.

        Within a run a step's tensors are fixed, so a second save of one step replaces only its state.

        Args:
            step: names it.
            tensors: those of the files WEIGHTS, AVERAGE and OPTIMIZER.
            state: what else there is, in types that JSON has.
            best_step: another to keep.

        Raises:
            OSError: it cannot be written; the earlier checkpoints are intact and nothing partial has a final name.
        """
        target = self._path(step)
        files = {name: tensor_bytes(tensors[name], {"step": step}) for name in (WEIGHTS, AVERAGE, OPTIMIZER)}
        listing = {name: listed(data) for name, data in files.items()}
        manifest = seal({"schema": SCHEMA, "run": self._run, "step": step, "state": state, "files": listing})
        try:
            if self._lists(step, listing):
                write_file(target / MANIFEST, manifest)
            else:
                if target.exists():
                    remove_folder(target)
                write_folder(target, {**files, MANIFEST: manifest})
        except OSError as error:
            kept = max((other for other in self.steps() if other != step), default=None)
            rest = "there is no earlier one" if kept is None else f"the one of step {kept} is intact"
            raise OSError(
                error.errno, f"cannot save the checkpoint of step {step} ({error.strerror}); {rest}", str(self.folder)
            ) from error
        self.keep((step, best_step))

    def keep(self, steps: Collection[int]) -> None:
        """Removes the checkpoints of all other steps."""
        for other in self.steps():
            if other not in steps:
                remove_folder(self._path(other))

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, ascending."""
        try:
            names = [path.name for path in self.folder.iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []
        steps = [int(name.removeprefix("step-")) for name in names if re.fullmatch(r"step-[0-9]{8,40}", name)]
        return sorted(step for step in steps if self._path(step).name in names)

    def last_step(self) -> int | None:
        """The newest whole checkpoint's step."""
        return max(self.steps(), default=None)

    def load_state(self, step: int) -> dict[str, Any]:
        """Everything but the tensors.

        Raises:
            ValueError: the manifest is damaged, of another run or no checkpoint of this library; the message says
                which other checkpoint is whole.
            OSError: it cannot be read.
        """
        with self._advising(step):
            return self._manifest(step)["state"]

    def load_tensors(self, step: int, name: str) -> dict[str, Tensor]:
        """The tensors of the file ``name``, which is first compared with the manifest; errors as of ``load_state``."""
        path = self._path(step) / name
        with self._advising(step):
            check_listed(path, self._manifest(step)["files"][name])
            return read_tensors(path)

    def load_weights(self, step: int, model: nn.Module, name: str = AVERAGE) -> None:
        """Fills ``model`` from the file ``name`` of ``step``; errors as of ``load_state`` and ``load_weights``."""
        fill_wholly(model, self.load_tensors(step, name), self._path(step) / name)

    def check(self, step: int) -> None:
        """Reads the whole checkpoint; errors as of ``load_state``."""
        with self._advising(step):
            self._check(step)

    def average_file(self, step: int) -> Path:
        """Where the averaged weights of a step are."""
        return self._path(step) / AVERAGE

    def clear_partial(self) -> None:
        """Removes what a crash may have left half-written."""
        clear_partial(self.folder)
        for step in self.steps():
            clear_partial(self._path(step))

    def _check(self, step: int) -> None:
        for name, entry in self._manifest(step)["files"].items():
            check_listed(self._path(step) / name, entry)

    def _manifest(self, step: int) -> dict[str, Any]:
        path = self._path(step) / MANIFEST
        content = unseal(path)
        if content.get("schema") != SCHEMA or content.get("step") != step:
            raise ValueError(f"{path} is no manifest of step {step} in schema {SCHEMA} of this library")
        if self._run is not None and content.get("run") != self._run:
            raise ValueError(f"{path} is of another run")
        if check_listing(path, content.get("files")).keys() != {WEIGHTS, AVERAGE, OPTIMIZER}:
            raise ValueError(f"{path} does not list the three files of a checkpoint")
        if not isinstance(content.get("state"), dict):
            raise ValueError(f"{path} has no state")
        return content

    def _lists(self, step: int, listing: dict[str, Any]) -> bool:
        """Whether there is a checkpoint of just these files."""
        try:
            return self._manifest(step)["files"] == listing
        except (ValueError, OSError):
            return False

    @contextlib.contextmanager
    def _advising(self, step: int) -> Iterator[None]:
        """Adds to an error of a checkpoint what can be done."""
        try:
            yield
        except ValueError as error:
            whole = [other for other in self.steps() if other != step and self._is_whole(other)]
            earlier = [other for other in whole if other < step]
            if earlier:
                advice = (
                    f"the checkpoint of step {earlier[-1]} is whole: remove {self._path(step).name} to go on from it"
                )
            else:
                later = f", but that of step {whole[-1]} is (--checkpoint last)" if whole else ""
                advice = f"no earlier one is whole{later}: remove the folder {self.folder.name} to begin the run again"
            raise ValueError(f"{error}; {advice}") from error

    def _is_whole(self, step: int) -> bool:
        try:
            self._check(step)
        except (ValueError, OSError):
            return False
        return True

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"


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
