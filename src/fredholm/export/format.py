"""What a kind of file has to do: to be written from a model's form, and to compute by its own runtime."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor
from torch.export import Dim

from fredholm.tasks.tensor_form import Sizes, Slot, TensorForm

BEYOND = 2**24
"""What holds for so many along an axis is taken to hold for any number."""
Runs = Callable[..., Tensor]
"""The inputs of a form in their order, to its output."""


@final
class Limits(NamedTuple):
    """How many there may be along an open axis; None: there is no upper limit."""

    least: int
    most: int | None


@final
class Graph(NamedTuple):
    """The operations of a form.

    Args:
        form: of which they are.
        program: them.
        places: of each input the dimensions that are open, with the names of their axes.
    """

    form: TensorForm
    program: torch.export.ExportedProgram
    places: tuple[dict[int, str], ...]

    @classmethod
    def of(cls, form: TensorForm, example: tuple[Tensor, ...], sizes: set[str]) -> Self:
        """That of a form, whose axes of some names stay open.

        Raises:
            Exception: what `torch.export` raises.
        """
        places = tuple(
            {place: axis.name for place, axis in enumerate(slot.axes) if axis.size is None and axis.name in sizes}
            for slot in form.inputs
        )
        shapes = tuple(dict.fromkeys(each, Dim.DYNAMIC) for each in places)
        program = torch.export.export(form.module().eval(), example, dynamic_shapes=(shapes,))
        return cls(form, program, places)

    def limits(self, sizes: Sizes) -> dict[str, Limits]:
        """Of each open axis, by its name: a graph may hold for some numbers alone, which not every runtime checks.

        Args:
            sizes: those of the example.
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
    """The ending of its files."""
    may_have: ClassVar[tuple[str, ...]] = ()
    """What the names of files end in that some models need beside the file, such as "data" of NAME.onnx.data."""

    device: torch.device
    """Where it computes."""

    @abstractmethod
    def check(self) -> None:
        """Raises what says that something is not installed, and how to get it.

        Raises:
            ImportError: a package.
            ValueError: a compiler.
        """

    @abstractmethod
    def write(self, graph: Graph, path: Path, about: str) -> None:
        """Writes the file, and others beside it where it needs some.

        Args:
            graph: the model, on `device`.
            path: of the file.
            about: what is said of it, as JSON, to be kept in it.

        Raises:
            NoOperatorError: the format has no such file of this model, whatever the sizes.
            Exception: what the exporter raises.
        """

    @abstractmethod
    def load(self, path: Path, form: TensorForm) -> Runs:
        """The file as its runtime reads it; tensors are on `device`."""

    @abstractmethod
    def usage(self, name: str, form: TensorForm) -> tuple[str, ...]:
        """Lines of Python that run the file of this name."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What else is to be known of it, such as the versions of its tools."""


def reason_of(error: BaseException) -> str:
    """What is at the bottom of an exporter's error, in one line."""
    while (inner := error.__cause__) is not None:
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return first if isinstance(error, ValueError | RuntimeError) and first else f"{type(error).__name__}: {first}"


class NoOperatorError(ValueError):
    """A format lacks an operation of the model, whatever the sizes of its inputs."""
