"""Export to compiled code that PyTorch runs without the model's Python code."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import torch

from fredholm.tasks.tensor_form import TensorForm

from .format import Format, Graph, Runs


@final
class Pt2Package(Format):
    """A package of AOTInductor: a library of machine code with its weights, for one kind of processor.

    Args:
        device: the device that it is compiled for.
    """

    name: ClassVar[str] = "pt2"
    suffix: ClassVar[str] = ".pt2"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def check(self) -> None:
        """See `Format.check`."""
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler as error:
            raise ValueError(
                "a .pt2 package is compiled, and there is no C++ compiler; install one, such as g++, or name it in the "
                "environment variable CXX"
            ) from error

    def write(self, graph: Graph, path: Path, about: str) -> None:
        """See `Format.write`."""
        settings = {"aot_inductor.metadata": {"description": about}}
        torch._inductor.aoti_compile_and_package(graph.program, package_path=str(path), inductor_configs=settings)

    def load(self, path: Path, form: TensorForm) -> Runs:
        """See `Format.load`; uses PyTorch."""
        return torch._inductor.aoti_load_package(str(path))

    def usage(self, name: str, form: TensorForm) -> tuple[str, ...]:
        """See `Format.usage`."""
        # a package does not check its inputs, and reads tensors in another order of memory wrongly
        given = ", ".join(f"{slot.name}.contiguous()" for slot in form.inputs)
        return (
            "import torch",
            f'model = torch._inductor.aoti_load_package("{name}")',
            f"{form.output.name} = model({given})  # tensors on {self.device.type}, of these dtypes",
        )

    @property
    def facts(self) -> Mapping[str, Any]:
        """See `Format.facts`; names the system and processor that the package was compiled for."""
        machine = {"system": platform.system(), "processor": platform.machine(), "device": self.device.type}
        if self.device.type == "cuda":
            machine["gpu"] = torch.cuda.get_device_name(self.device)
        return machine
