"""Exports the tensor form of a model to a file and checks the file's outputs against the model's."""

import contextlib
import copy
import io
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._version import __version__
from fredholm.storage.atomic import PARTIAL_PREFIX, of_place
from fredholm.tasks.tensor_form import BATCH, Sizes, Slot, TensorForm

from .format import BEYOND, Format, Graph, Limits, NoOperatorError, reason_of

DESCRIPTION = "json"
"""Suffix of an exported file's description."""
BATCHES = (2, 3)
"""Batch sizes of the export example and of a second check; the file is also checked with a batch of 1."""
NUDGE = 2.0**-20
"""Relative perturbation of all weights, eight float32 ulps; the output change it causes estimates rounding error."""
EXPLAINED = 16.0
"""Multiple of that output change that is still attributed to rounding."""


@final
class Exported(NamedTuple):
    """The result of an export: its files and the accuracy that was measured.

    Args:
        files: the model first, then its description, then further files that it needs.
        difference: the largest absolute difference between the outputs of the file and of the model.
        largest: the largest absolute output of the model.
        fixed: sizes of open axes that this model's file fixes, by the name of the axis.
        reason: the exporter's reason for fixing them; empty where no axis is fixed.
    """

    files: list[Path]
    difference: float
    largest: float
    fixed: dict[str, int]
    reason: str


@torch.no_grad()
def export_form(
    form: TensorForm, kind: Format, path: str | Path, about: Mapping[str, Any], *, overwrite: bool = False
) -> Exported:
    """Writes a form as a file, with a description in a second file, and checks the file's outputs.

    Names of companion files begin with the file's whole name, as in FILE.json, so that one folder may hold a model

    in each format. Axes of any size stay open where the model allows that for all of them. Otherwise only the batch
    axis stays open, and the others get the fixed size that the form names.

    Args:
        form: the form of a model in evaluation mode, on the format's device.
        kind: the file format, whose `check` has passed.
        path: path of the file; its folder exists.
        about: further entries of the description.
        overwrite: whether files of these names may be replaced.

    Raises:
        ValueError: the model cannot be written in this format, the file computes other numbers, or a file exists.
        OSError: a file cannot be written.
    """
    path = Path(path)
    names = [path.name, _beside(path, DESCRIPTION), *(_beside(path, name) for name in form.files)]
    _refuse_existing([path.with_name(name) for name in names], overwrite=overwrite)
    partial = path.with_name(f"{PARTIAL_PREFIX}{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        written = _written(form, kind, partial / path.name, about)
        for name, text in form.files.items():
            (partial / _beside(path, name)).write_text(text, encoding="utf-8")
        made, former = {each.name for each in partial.iterdir()}, _replaced_files(path, kind)
        _moved(partial, path.parent, [*(name for name in sorted(made) if name != path.name), path.name], overwrite)
        for name in former - made:
            path.with_name(name).unlink(missing_ok=True)
    except OSError as error:
        raise error if error.errno is None else of_place(error, path) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files = [path.with_name(name) for name in [*names, *sorted(made - set(names))]]
    return written._replace(files=files)


def _replaced_files(path: Path, kind: Format) -> set[str]:
    """Names of the companion files of an exported one that is to be replaced: weights, and files in its description."""
    if not path.exists():
        return set()
    listed = list[Any]()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        listed += json.loads(path.with_name(_beside(path, DESCRIPTION)).read_text(encoding="utf-8"))["files"]
    own = {each for each in listed if isinstance(each, str) and each.startswith(_beside(path, "")) and "/" not in each}
    return own | {_beside(path, each) for each in kind.may_have}


def _written(form: TensorForm, kind: Format, path: Path, about: Mapping[str, Any]) -> Exported:
    """Writes and checks the model and its description, first with all axes open, else with only the batch axis open."""
    of_training = {name: axis.fixed for name, axis in form.open_axes.items()}
    reason, cause = "", None
    for fixed in ({}, of_training) if of_training else ({},):
        try:
            with _quiet():
                return _attempted(form, kind, path, about, fixed)._replace(fixed=fixed, reason=reason)
        except (MemoryError, torch.OutOfMemoryError, OSError, _OtherNumbersError, NoOperatorError):
            raise
        except Exception as error:  # exporters raise errors of any type
            reason, cause = reason_of(error), error
            for left in path.parent.iterdir():
                left.unlink()
    raise ValueError(f"the model cannot be written as {kind.name}: {reason}") from cause


def _attempted(form: TensorForm, kind: Format, path: Path, about: Mapping[str, Any], fixed: dict[str, int]) -> Exported:
    """Writes and checks the model with all axes open but the fixed ones."""
    opened = {name: axis for name, axis in form.open_axes.items() if name not in fixed}
    example, other = (
        {BATCH.name: batch} | fixed | {name: axis.tried[number] for name, axis in opened.items()}
        for number, batch in enumerate(BATCHES)
    )
    graph = Graph.of(form, _on(form.example(example), kind.device), {BATCH.name, *opened})
    limits = graph.limits(example)
    _check_open(limits, other)
    description = _description(graph, kind, path, about, fixed, example, limits)
    kind.write(graph, path, json.dumps(description))
    found = _compared(form, kind, path, (example, other, example | {BATCH.name: 1}))
    description["checked"] = {"largest_difference": found.difference, "largest_number": found.largest}
    described = path.with_name(_beside(path, DESCRIPTION))
    described.write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return found


def _beside(path: Path, name: str) -> str:
    """Name of a companion file of an exported one."""
    return f"{path.name}.{name}"


def _check_open(limits: Mapping[str, Limits], sizes: Sizes) -> None:
    """Raises a ValueError where an exported graph is not valid for these sizes of its open axes."""
    for name, (least, most) in limits.items():
        if not least <= sizes[name] <= (most or BEYOND):
            allowed = f"{least} or more" if most is None else str(least) if least == most else f"{least} to {most}"
            raise ValueError(f"its graph holds for {allowed} {name} alone, by the example that it was made with")


class _OtherNumbersError(ValueError):
    """The outputs of a file differ from the model's."""


def _compared(form: TensorForm, kind: Format, path: Path, sizes: Sequence[Sizes]) -> Exported:
    """Compares the outputs of the file and of the model at inputs of several sizes."""
    run, module = kind.load(path, form), form.module().eval()
    nudged = form.module(_nudged(form.model)).eval()
    difference = largest = 0.0
    for seed, size in enumerate(sizes):
        inputs = _on(form.example(size, seed), kind.device)
        wanted, found = module(*inputs), run(*inputs)
        if not bool(wanted.isfinite().all()):
            raise _OtherNumbersError("the model gives numbers that are NaN or infinite; nothing is written")
        if found.shape != wanted.shape:
            shapes = f"of shape {tuple(found.shape)} where the model gives {tuple(wanted.shape)}"
            raise _OtherNumbersError(f"the file gives numbers {shapes}; nothing is written")
        own, most = float((found - wanted).abs().max()), float(wanted.abs().max())
        allowed = EXPLAINED * float((nudged(*inputs) - wanted).abs().max()) + 64 * torch.finfo(torch.float32).eps * most
        if not own <= allowed:
            raise _OtherNumbersError(
                f"the file gives other numbers than the model: they differ by up to {own:.1e}, of which rounding "
                f"explains {allowed:.1e}; nothing is written"
            )
        difference, largest = max(difference, own), max(largest, most)
    return Exported([], difference, largest, {}, "")


def _nudged(model: nn.Module) -> nn.Module:
    """A copy whose weights are perturbed by a relative `NUDGE`."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    for tensor in (*other.parameters(), *other.buffers()):
        if tensor.is_floating_point():
            tensor.mul_((1 + NUDGE * torch.randn(tensor.shape, generator=generator)).to(tensor))
    return other


def _on(inputs: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    return tuple(tensor.to(device) for tensor in inputs)


def _description(
    graph: Graph,
    kind: Format,
    path: Path,
    about: Mapping[str, Any],
    fixed: Mapping[str, int],
    example: Sizes,
    limits: Mapping[str, Limits],
) -> dict[str, Any]:
    form, facts = graph.form, dict(kind.facts)
    versions = {"fredholm": __version__, "torch": str(torch.__version__), **facts.pop("versions", {})}
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in form.example(example)]
    described = [_described(slot, form, fixed, limits) for slot in (*form.inputs, form.output)]
    return {
        "format": kind.name,
        "file": path.name,
        **about,
        "inputs": [
            {"name": each.pop("name"), "dtype": dtype, **each}
            for each, dtype in zip(described[:-1], dtypes, strict=True)
        ],
        "output": {"name": described[-1].pop("name"), "dtype": _output_dtype(form, example, kind), **described[-1]},
        "names": {axis: list(names) for axis, names in form.names.items()},
        "notes": list(form.notes),
        "files": [_beside(path, each) for each in form.files],
        "usage": list(kind.usage(path.name, form)),
        "versions": versions,
        **facts,
    }


def _described(slot: Slot, form: TensorForm, fixed: Mapping[str, int], limits: Mapping[str, Limits]) -> dict[str, Any]:
    axes = list[dict[str, Any]]()
    for axis in slot.axes:
        size = fixed.get(axis.name) if axis.size is None else axis.size
        axes.append({"name": axis.name, "size": size})
        if size is None:
            least, most = limits[axis.name]
            own = form.open_axes[axis.name].most if axis.name in form.open_axes else None
            bounds = [bound for bound in (most, own) if bound is not None]
            axes[-1] |= {"least": least, "most": min(bounds, default=None)}
    return {"name": slot.name, "axes": axes, "about": slot.about}


def _output_dtype(form: TensorForm, example: Sizes, kind: Format) -> str:
    return str(form.module().eval()(*_on(form.example(example), kind.device)).dtype).removeprefix("torch.")


def _refuse_existing(files: Sequence[Path], *, overwrite: bool) -> None:
    for file in files:
        if file.is_dir():
            raise ValueError(f"{file} is a folder; name another file")
        if os.path.lexists(file) and not overwrite:
            raise ValueError(f"{file} exists; name another file, or pass --overwrite")


def _moved(partial: Path, folder: Path, names: Sequence[str], overwrite: bool) -> None:
    """Moves files to their final place, the model last; removes the new ones if one cannot be moved."""
    placed = list[Path]()
    try:
        for name in names:
            _refuse_existing([folder / name], overwrite=overwrite)
            with (partial / name).open("rb") as file:
                os.fsync(file.fileno())
            (partial / name).replace(folder / name)
            placed.append(folder / name)
    except BaseException:
        if not overwrite:
            for file in placed:
                file.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A context that silences the exporters' own warnings and logs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        printed = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
