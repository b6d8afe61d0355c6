"""`fredholm export`: the model of a finished run, as a file that runs without this library."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fredholm.cli.open_run import RunPlace, open_run
from fredholm.cli.parsing import Flag, parse
from fredholm.export import Exported, Format, OnnxFile, Pt2Package, export_form
from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.outputs import refuse_absent_parent, with_ending
from fredholm.tasks.tensor_form import TensorForm
from fredholm.training.device import choose_device
from fredholm.training.progress import print_line
from fredholm.training.storage.checkpoint import Which

FormatName = Literal["onnx", "pt2"]


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """Write the model of a finished run as a file that runs without this library.

    The file maps the content of a data file, such as pixels or token numbers, to the output of `fredholm predict`, such
    as probabilities. FILE.json beside it describes its inputs and outputs, and how to run it. The result is compared
    with the model before any file is written.
    """

    run: RunPlace
    """The run folder, a folder that `fredholm push` saved, or hf://OWNER/NAME, a model on the Hugging Face hub."""
    format: FormatName
    """onnx, for onnxruntime and other programs, or pt2, compiled code for PyTorch
    on this machine's kind of processor.
    """
    output: Path | None = None
    """The file to write. Default: the name of the run with the suffix of the format."""
    overwrite: Flag = False
    """Replace existing files."""
    device: str | None = None
    """Device of a .pt2 package, cpu or cuda. Default: cpu."""
    checkpoint: Which = "best"
    """The checkpoint that was best on the validation split, or the last one."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not one of the library but of that file."""


def run_command(argv: list[str]) -> None:
    """Runs `fredholm export` with these arguments."""
    arguments = parse(ExportArguments, "export", argv)
    if arguments.device is not None and arguments.format == OnnxFile.name:
        raise ValueError("--device has no effect with --format onnx, which runs on any device; leave it out")
    device = choose_device(arguments.device or "cpu")
    kind = FORMATS[arguments.format](str(device))
    kind.check()
    output = arguments.output or Path(Path(arguments.run).absolute().name)
    if arguments.output is None:
        output = output.with_name(f"{output.name}{kind.suffix}")
    output = with_ending("--output", user_path(output), (kind.suffix,))
    refuse_absent_parent("--output", output)
    run = open_run(arguments.run, arguments.recipe, str(device))
    run.check_finished()
    form = run.task.tensor_form(run.model(arguments.checkpoint))
    about = {"task": run.task.command, "step": run.step(arguments.checkpoint)}
    _print_written(export_form(form, kind, output, about, overwrite=arguments.overwrite), form)


FORMATS: Mapping[FormatName, Callable[[str], Format]] = {
    "onnx": lambda device: OnnxFile(),
    "pt2": lambda device: Pt2Package(choose_device(device)),
}
"""Constructors of the export formats by name, given a device."""


def _print_written(written: Exported, form: TensorForm) -> None:
    """Prints the written files, the model's inputs and outputs, and the largest difference."""
    size = sum(file.stat().st_size for file in written.files) / 1e6
    print_line(f"{written.files[0]}: {size:,.1f} MB; how to run it: {written.files[1]}")
    for word, slot in (*(("takes", slot) for slot in form.inputs), ("gives", form.output)):
        axes = ", ".join(
            f"{axis.name} {size}" if (size := axis.size or written.fixed.get(axis.name)) else axis.name
            for axis in slot.axes
        )
        print_line(f"  {word} {slot.name} ({axes}): {slot.about}")
    for name, count in written.fixed.items():
        print_line(f"  {name}: {count}, and no other number ({written.reason})")
    for note in form.notes:
        print_line(f"  note: {note}")
    print_line(f"  differs from the model by at most {written.difference:.1e}, of numbers up to {written.largest:.3g}")
