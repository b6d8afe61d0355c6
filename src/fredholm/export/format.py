"""The interface of an export format: writing a file from a model's form and running it by its own runtime."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor
from torch.export import Dim

from fredholm.tasks.tensor_form import Sizes, Slot, TensorForm

BEYOND = 2**24
"""Size of an open axis up to which a graph's guards are probed; a graph that is valid here counts as unbounded."""
Runs = Callable[..., Tensor]
"""A function from the inputs of a form, in their order, to its output."""


@final
class Limits(NamedTuple):
    """The least and the greatest size of an open axis; `most` is None without an upper limit."""

    least: int
    most: int | None


@final
class Graph(NamedTuple):
    """The exported graph of a form.

    Args:
        form: the form that was exported.
        program: its operations.
        places: for each input, its open dimensions with the names of their axes.
    """

    form: TensorForm
    program: torch.export.ExportedProgram
    places: tuple[dict[int, str], ...]

    @classmethod
    def of(cls, form: TensorForm, example: tuple[Tensor, ...], sizes: set[str]) -> Self:
        """Exports a form; the axes named in `sizes` stay open.

        Raises:
            Exception: any error of `torch.export`.
        """
        places = tuple(
            {place: axis.name for place, axis in enumerate(slot.axes) if axis.size is None and axis.name in sizes}
            for slot in form.inputs
        )
        shapes = tuple(dict.fromkeys(each, Dim.DYNAMIC) for each in places)
        program = torch.export.export(form.module().eval(), example, dynamic_shapes=(shapes,))
        return cls(form, program, places)

    def limits(self, sizes: Sizes) -> dict[str, Limits]:
        """Returns the valid sizes of each open axis, by its name; not every runtime checks them.

        Args:
            sizes: sizes of the example that the graph was exported with.
        """
        module = self.program.module()
        check = getattr(module, "_guards_fn", None)

        def holds(axis: str, size: int) -> bool:
            shapes = [self._shape(slot, {**sizes, axis: size}) for slot in self.form.inputs]
            try:
                if check is not None:
                    check(*(torch.empty(shape, device="meta") for shape in shapes))
            except AssertionError:
                return False
            return True

        found = dict[str, Limits]()
        for axis in dict.fromkeys(name for each in self.places for name in each.values()):
            least = most = sizes[axis]
            while least > 1 and holds(axis, least - 1):
                least -= 1
            while most < BEYOND and holds(axis, 2 * most):
                most *= 2
            above = 2 * most
            while most < BEYOND and above - most > 1:
                middle = (most + above) // 2
                most, above = (middle, above) if holds(axis, middle) else (most, middle)
            found[axis] = Limits(least, None if most >= BEYOND else most)
        return found

    def _shape(self, slot: Slot, sizes: Sizes) -> tuple[int, ...]:
        return tuple(sizes[axis.name] if axis.size is None else axis.size for axis in slot.axes)


class Format(ABC):
    """A kind of file that holds a model."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    """File name extension, with its dot."""
    may_have: ClassVar[tuple[str, ...]] = ()
    """Suffixes of companion files that some models need, such as "data" of NAME.onnx.data."""

    device: torch.device
    """The device that exported files compute on."""

    @abstractmethod
    def check(self) -> None:
        """Checks that the tools of the format are installed; the error says how to get a missing one.

        Raises:
            ImportError: a package is missing.
            ValueError: a compiler is missing.
        """

    @abstractmethod
    def write(self, graph: Graph, path: Path, about: str) -> None:
        """Writes the file, and companion files where it needs some.

        Args:
            graph: the model, on `device`.
            path: path of the file.
            about: description of the model as JSON, stored in the file.

        Raises:
            NoOperatorError: the format lacks an operator of this model, whatever the sizes.
            Exception: any error of the exporter.
        """

    @abstractmethod
    def load(self, path: Path, form: TensorForm) -> Runs:
        """Loads the file with its runtime; inputs and outputs are tensors on `device`."""

    @abstractmethod
    def usage(self, name: str, form: TensorForm) -> tuple[str, ...]:
        """Returns lines of Python that run the file of this name."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Further facts for the description, such as the versions of the tools."""


def reason_of(error: BaseException) -> str:
    """Returns the root cause of an exporter's error, in one line."""
    while (inner := error.__cause__) is not None:
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return first if isinstance(error, ValueError | RuntimeError) and first else f"{type(error).__name__}: {first}"


class NoOperatorError(ValueError):
    """A format lacks an operation of the model, whatever the sizes of its inputs."""
