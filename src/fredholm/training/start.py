"""Initial weights of a new run from other runs or checkpoints, matched by meaning, name and shape."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from fredholm.encoders.encoder import Encoder
from fredholm.models.blended import Blended
from fredholm.storage.tensors import model_tensors
from fredholm.tasks.task import EntryNames, PretrainedWeights, Source, Task

from .progress import print_line
from .random_state import seed_everything


class SourceRun(Protocol):
    """A run that another one starts from."""

    config: Any
    """Its settings, with `task` among them."""
    task: Task

    def model(self) -> nn.Module:
        """Returns its trained model."""
        ...


class MatchedEntries(NamedTuple):
    """Names of the entries along an axis: in both models (`both`), here alone (`new`) and there alone (`left`)."""

    both: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]

    @classmethod
    def of(cls, here: tuple[str, ...], there: tuple[str, ...]) -> Self:
        """Matches the names in the model with those in the weights."""
        known, wanted = set(there), set(here)
        both = tuple(name for name in here if name in known)
        return cls(both, tuple(n for n in here if n not in known), tuple(n for n in there if n not in wanted))


class InitialWeights(NamedTuple):
    """Weights of another model, matched with the tensors of a new one."""

    fitting: dict[str, Tensor]
    """Initial tensors of the model; entries whose names are not among the weights keep their initial values."""
    matched: dict[tuple[str, int], MatchedEntries]
    """Matched entry names by tensor and axis."""
    misfits: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """Shapes in the model and among the weights, of the tensors that do not fit."""
    new: list[str]
    """Names of the model's tensors that are missing from the weights."""
    left: list[str]
    """Names of weights that the model does not have."""


def starting_tensors(
    task: Task, seed: int, init: str | None, open_run: Callable[[str], SourceRun]
) -> dict[str, Tensor]:
    """Returns the tensors that replace a new run's initial weights; prints those that do not fit.

    They come from a checkpoint, or from ``init``; those of the task's sources take precedence.

    Args:
        task: task of the run.
        seed: seed of the run.
        init: folder of another run; None: no other run.
        open_run: opens the run in a folder.

    Raises:
        ValueError: another run's inputs have another meaning, or requested weights do not fit.
    """
    seed_everything(seed)  # new entries are drawn as without another run
    model, place = _learning(task.model())
    elsewhere = task.pretrained_weights()
    found = {} if elsewhere is None else _of_checkpoint(elsewhere, model)
    if init is not None:
        other = open_run(init)
        if not task.learns_by_steps:
            raise ValueError(
                f"init={init!r} has no effect: this model is fitted in closed form; leave it out, or take one that "
                "learns by steps"
            )
        _check_input_meaning(task, other.task, task.input_meaning, init)
        trained, _ = _learning(other.model())
        scaled = _resampled(trained, model)
        start = start_from(
            model_tensors(trained) | scaled, model, task.entry_names(model), other.task.entry_names(trained)
        )
        if not start.fitting:
            raise ValueError(f"no weight of {init} fits this model; give both the same sizes")
        _print_start(init, start, [name for name in scaled if name in start.fitting])
        found |= start.fitting
    for source in task.sources:
        found |= _part_from(source, task, model, open_run)
    return {place + name: tensor for name, tensor in found.items()}


def _learning(model: nn.Module) -> tuple[nn.Module, str]:
    """Returns the part of a model that learns in steps, and the prefix of its tensors; other parts are fitted anew."""
    return (model.network, "network.") if isinstance(model, Blended) else (model, "")


def _of_checkpoint(elsewhere: PretrainedWeights, model: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint; prints the model's tensors that are new.

    Raises:
        ValueError: a tensor does not fit the model.
    """
    start = start_from(elsewhere.tensors, model)
    for name, (here, there) in start.misfits.items():
        raise ValueError(f"{elsewhere.place}: {name} has shape {there}; expected {here}: fetch it again")
    assert not start.left, start.left
    _print_start(elsewhere.place, start)
    return start.fitting


def _resampled(there: nn.Module, here: nn.Module) -> dict[str, Tensor]:
    """Returns tensors of a model's encoders, resampled from the encoders at the same places in another model."""
    encoders = {name: part for name, part in here.named_modules() if isinstance(part, Encoder)}
    others = {name: part for name, part in there.named_modules() if type(encoders.get(name)) is type(part)}
    pairs = ((name, encoders[name], part) for name, part in others.items() if isinstance(part, Encoder))
    return {
        f"{name}.{tensor}".lstrip("."): value
        for name, own, other in pairs
        for tensor, value in own.resampled(other).items()
    }


def _part_from(source: Source, task: Task, model: nn.Module, open_run: Callable[[str], SourceRun]) -> dict[str, Tensor]:
    """Returns the tensors of a part of the model from another run; prints those that do not fit."""
    other = open_run(source.run)
    _check_input_meaning(task, other.task, source.input_meaning, source.run)
    weights: dict[str, Tensor] = {}
    for name, tensor in model_tensors(_learning(other.model())[0]).items():
        for there, here in source.names.items():
            if name.startswith(there):
                weights[here + name.removeprefix(there)] = tensor
    start = start_from(weights, model)
    wanted = {name: tensor for name, tensor in model_tensors(model).items() if name.startswith(source.whole)}
    learned = dict(model.named_parameters())
    # missing tensors first, which show a run of another kind, and parameters before buffers
    for name in sorted(wanted, key=lambda name: (name in weights, name not in learned)):
        if name not in start.fitting:
            own = name.removeprefix(source.whole)
            found = f"its {own} is {tuple(weights[name].shape)}" if name in weights else f"it has no {own}"
            raise ValueError(
                f"{source.setting}: {source.run} does not fit this model: {found}, expected "
                f"{tuple(wanted[name].shape)}; {_to_pass(source.alike, other.config.task)}"
            )
    places = tuple(source.names.values())
    _print_start(source.run, start._replace(new=[name for name in start.new if name.startswith(places)]))
    return start.fitting


def _to_pass(names: Sequence[str], there: Task.Config) -> str:
    """Returns advice for a message: the options that copy the named settings of another run's task."""
    options = list[str]()
    for name in names:
        value: Any = there
        for part in name.split("."):
            value = getattr(value, part, _ABSENT)
        if value is not _ABSENT:
            words = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            options.append(f"--task.{name.replace('_', '-')} {words}")
    return f"pass {' '.join(options)}, as in that run" if options else "give both the same sizes"


_ABSENT = object()


def _check_input_meaning(task: Task, other: Task, names: Iterable[str], run: str) -> None:
    """Raises a ValueError where inputs of another run, by their names in `Task.input_meaning`, have another meaning."""
    for name in names:
        own = task.input_meaning[name]
        if other.input_meaning.get(name, own) != own:
            way = (
                f"pass --task.tokens.file {Path(run) / 'tokenizer.json'}"
                if name == "tokenizer"
                else f"pass --task.{name} {other.input_meaning[name]}"
            )
            raise ValueError(f"the {name} of {run} is not this run's; {way}")


def _print_start(run: str, start: InitialWeights, resampled: Sequence[str] = ()) -> None:
    """Prints the weights taken from another run, and those that do not fit."""
    by_meaning: dict[MatchedEntries, list[str]] = {}
    for (name, _), found in start.matched.items():
        by_meaning.setdefault(found, []).append(name)
    named = {name for names in by_meaning.values() for name in names}
    shapes = [f"{name} {here}, there {there}" for name, (here, there) in start.misfits.items() if name not in named]
    lines = {
        "resampled": resampled,
        "of other shapes, so new": shapes,
        "new here": start.new,
        "left there": start.left,
    }
    print_line(f"from {run}: {len(start.fitting)} tensors")
    for found, names in by_meaning.items():
        if found.new or found.left:
            groups = ((_some(found.both), "as there"), (_some(found.new), "new"), (_some(found.left), "left there"))
            print_line(f"  {_some(names)}: {'; '.join(f'{what}: {which}' for which, what in groups if which)}")
    for what, names in lines.items():
        if names:
            print_line(f"  {what}: {_some(names)}")


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:6])}{f', ... ({len(names)})' if len(names) > 6 else ''}"


def start_from(
    weights: Mapping[str, Tensor], model: nn.Module, here: EntryNames | None = None, there: EntryNames | None = None
) -> InitialWeights:
    """Matches weights with a model's tensors by name, shape and dtype.

    Args:
        weights: weights of another model by name.
        model: the model.
        here, there: names of the entries of tensors. Entries of equal names are copied; a tensor whose entries have
            names in only one of the models does not fit.
    """
    here, there, wanted = here or {}, there or {}, model_tensors(model)
    fitting: dict[str, Tensor] = {}
    matched: dict[tuple[str, int], MatchedEntries] = {}
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
        found = {(name, axis): MatchedEntries.of(names, axes_there[axis]) for axis, names in axes.items()}
        matched |= found
        if all(each.both for each in found.values()):
            fitting[name] = _with_entries(own, other, axes, axes_there) if axes else other
    misfits = {
        name: (tuple(own.shape), tuple(weights[name].shape))
        for name, own in wanted.items()
        if name in weights and name not in fitting
    }
    new, left = ([name for name in own if name not in others] for own, others in ((wanted, weights), (weights, wanted)))
    return InitialWeights(fitting, matched, misfits, new, left)


def _with_entries(
    own: Tensor, other: Tensor, here: dict[int, tuple[str, ...]], there: dict[int, tuple[str, ...]]
) -> Tensor:
    """Returns `own` with the entries of `other` copied where their names are equal."""
    places: list[list[Tensor]] = [[], []]
    for axis, size in enumerate(own.shape):
        names = here.get(axis, tuple(map(str, range(size))))
        names_there = there.get(axis, names)
        both = MatchedEntries.of(names, names_there).both
        for each, order in zip(places, (names, names_there), strict=True):
            number = {name: n for n, name in enumerate(order)}
            each.append(torch.tensor([number[name] for name in both], device=own.device))
    to, taken = (torch.meshgrid(*each, indexing="ij") for each in places)
    return own.index_put(to, other[taken])
