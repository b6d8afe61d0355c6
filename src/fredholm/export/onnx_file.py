"""Export to ONNX, for onnxruntime and other runtimes."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fredholm._version import __version__
from fredholm.tasks.tensor_form import TensorForm

from .format import Format, Graph, NoOperatorError, Runs, reason_of

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_LACKING = re.compile(r"No ONNX function found for <OpOverload\(op='(\w+\.\w+)'")
LARGEST = 2_000_000_000
"""Most bytes of weights inside the file; larger ones go into a second file, as a protobuf holds at most 2 GiB."""


def _stably_sorted(values: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """`torch.sort` as ONNX's TopK, which is stable: of equal values the one of the lower index comes first."""
    import onnxscript

    op: Any = onnxscript.opset18
    count = op.Reshape(op.Gather(op.Shape(values), op.Constant(value_ints=[dim])), op.Constant(value_ints=[1]))
    return op.TopK(values, count, axis=dim, largest=int(descending), sorted=1)


@final
class OnnxFile(Format):
    """A graph of ONNX operators with its weights. It is written and checked on the CPU, and runs on any device."""

    name: ClassVar[str] = "onnx"
    suffix: ClassVar[str] = ".onnx"
    may_have: ClassVar[tuple[str, ...]] = ("data",)

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def check(self) -> None:
        """See `Format.check`."""
        for package in PACKAGES:
            try:
                importlib.import_module(package)
            except ImportError as error:
                raise ImportError(f'ONNX needs {package}; get it with: pip install "fredholm[export]"') from error

    def write(self, graph: Graph, path: Path, about: str) -> None:
        """See `Format.write`; weights of more than `LARGEST` bytes go into NAME.onnx.data."""
        try:
            program = torch.onnx.export(
                graph.program,
                dynamo=True,
                dynamic_shapes=(graph.places,),
                input_names=[slot.name for slot in graph.form.inputs],
                output_names=[graph.form.output.name],
                custom_translation_table={torch.ops.aten.sort.stable: _stably_sorted},
                verbose=False,
            )
        except RuntimeError as error:
            if (lacking := _LACKING.search(reason_of(error))) is None:
                raise
            raise NoOperatorError(
                f"the model cannot be written as onnx, which has no operator for {lacking[1]} of PyTorch; "
                "--format pt2 may hold it"
            ) from error
        assert program is not None
        model = program.model
        model.producer_name, model.producer_version = "fredholm", __version__
        model.metadata_props["description"] = about
        weights = [value.const_value for value in model.graph.initializers.values()]
        size = sum(each.nbytes for each in weights if each is not None)
        program.save(path, external_data=size > LARGEST)

    def load(self, path: Path, form: TensorForm) -> Runs:
        """See `Format.load`; uses onnxruntime."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised as well, so that printing them would repeat them
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [slot.name for slot in form.inputs]

        def run(*inputs: Tensor) -> Tensor:
            given = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
            (found,) = session.run(None, given)
            return torch.from_numpy(found)

        return run

    def usage(self, name: str, form: TensorForm) -> tuple[str, ...]:
        """See `Format.usage`."""
        given = ", ".join(f'"{slot.name}": {slot.name}' for slot in form.inputs)
        return (
            "import onnxruntime",
            f'session = onnxruntime.InferenceSession("{name}")',
            f"({form.output.name},) = session.run(None, {{{given}}})  # arrays of NumPy",
        )

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `Format.facts`."""
        return {"versions": {name: importlib.import_module(name).__version__ for name in PACKAGES}}
