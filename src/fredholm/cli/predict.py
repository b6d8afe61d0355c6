"""`fredholm predict`: applies a trained model to files."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fredholm._progress import ProgressBar
from fredholm.cli.changed_task import changed_task, pair_names
from fredholm.cli.error_reporting import error_line
from fredholm.cli.open_run import RunPlace, open_run
from fredholm.cli.parsing import Flag, parse
from fredholm.cli.row_formats import FORMATS, FormatName, RowFormat
from fredholm.cli.streams import FAILURE, USER_ERROR
from fredholm.tasks import Prediction
from fredholm.tasks.files.terminal_text import counted, first_few, visible
from fredholm.tasks.inputs import Listed
from fredholm.tasks.outputs import Outputs
from fredholm.tasks.splits.split_files import Split
from fredholm.training.progress import print_line, print_row, progress_bar
from fredholm.training.run import Run
from fredholm.training.storage.checkpoint import Which


@dataclass(frozen=True, kw_only=True)
class PredictArguments:
    """Apply a trained model to files. Prints a header and a row for each result.

    A folder stands for all files in it, at any depth and in the order of their names, that the run's task reads; the
    number of skipped files is printed. Arrays (.npz, .npy) and tables are laid out as for training, without labels.

    A file that cannot be read is reported in a line, and the others are predicted. The exit code is then 1, or 2 where
    no file could be predicted.
    """

    run: RunPlace
    """The run folder, or hf://OWNER/NAME, a model on the Hugging Face hub."""
    files: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FILES...")]
    """Files and folders."""
    probabilities: Flag = False
    """Add the probability of every class to a row, not only of the likeliest."""
    format: FormatName | None = None
    """A table with tabs between its cells, CSV, or a JSON list of objects.
    Default: by the suffix of --output (.csv, .json), else a table.
    """
    output: Path | None = None
    """A file for the rows, in place of printing them; written completely or not at all."""
    save: Path | None = None
    """Where to write predictions that are more than a row:
    a folder for masks of images or classes of points, an .npz file for values of functions.
    """
    picture: Path | None = None
    """A picture to draw (.png, .pdf, .svg): images with their masks, or functions on answer.grid."""
    comparison: Path | None = None
    """A picture of an operator's predictions beside the true functions, which the files must contain."""
    at: Path | None = None
    """A table or .npz file of the points to predict functions at. Default: their samples, or answer.grid."""
    overwrite: Flag = False
    """Replace existing files."""
    part: Split | None = None
    """The part to read from files with several. Default: the test part, with a warning that names it."""
    checkpoint: Which = "best"
    """The checkpoint that was best on the validation split, or the last one."""
    batch_size: int = 64
    """Files at a time; with --save, --picture or --comparison all."""
    device: str = "auto"
    """Device: auto, cpu, cuda, ..."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not one of the library but of that file."""
    task: tuple[str, ...] = ()
    """Settings of the task to predict with, such as answer.grid=64,64 (a switch has no value).
    Others are those of the run.
    """


def run_command(argv: list[str]) -> None:
    """Runs `fredholm predict` with these arguments."""
    arguments = parse(PredictArguments, "predict", argv)
    if not arguments.files:
        raise ValueError("fredholm predict needs at least one file after the run folder; see fredholm predict --help")
    if arguments.batch_size < 1:
        raise ValueError(f"--batch-size is {arguments.batch_size}; expected at least 1")
    run = open_run(arguments.run, arguments.recipe, arguments.device)
    if arguments.task:
        run.task = changed_task(run, arguments.task, "predict", measures=False)
    failures = _Failures(run)
    outputs = Outputs(
        save=arguments.save,
        picture=arguments.picture,
        comparison=arguments.comparison,
        overwrite=arguments.overwrite,
    )
    if arguments.overwrite and arguments.output is None and not outputs.named:
        raise ValueError("--overwrite has no effect where nothing is written; leave it out, or name a file")
    listed = run.task.predicts.listed(arguments.files)
    files = listed.files
    if arguments.output is not None:
        outputs.check("--output", arguments.output, [*files, *([arguments.at] if arguments.at else [])])
    _report_left_out(listed, failures)
    rows = _Rows(FORMATS[_format(arguments)](), arguments.output, outputs)
    for prediction in _predictions(run, files, arguments, outputs, failures):
        if arguments.probabilities and not prediction.probabilities:
            raise ValueError("--probabilities has no effect: this run does not predict classes; leave it out")
        rows.add(prediction.row(all_probabilities=arguments.probabilities))
    written = list(outputs.written)
    if rows.count or not failures.count:
        rows.end()
    _report_written(written, outputs)
    if failures.count:
        if (inputs := failures.count + failures.num_good) > 1:
            print(f"{failures.count} of {inputs} inputs failed", file=sys.stderr)
        raise SystemExit(FAILURE if failures.num_good else USER_ERROR)


def _predictions(
    run: Run, files: Sequence[Path], arguments: PredictArguments, outputs: Outputs, failures: "_Failures"
) -> Iterator[Prediction]:
    """Yields the predictions of all files, some files at a time; all at once where one file holds all predictions."""
    if not files:
        return
    model, size = run.model(arguments.checkpoint), len(files) if outputs.named else arguments.batch_size
    with progress_bar("predict", len(files), unit="file") as bar:
        for start in range(0, len(files), size):
            batch, before = files[start : start + size], failures.count
            try:
                yield from run.task.predict(
                    model,
                    batch,
                    run.device,
                    part=arguments.part,
                    failed=failures.add,
                    outputs=outputs,
                    at=arguments.at,
                )
            except ValueError as error:
                raise ValueError(pair_names(str(error), run)) from error
            failures.num_good += len(batch) - (failures.count - before)
            bar.update(len(batch))


class _Failures:
    """Files that could not be predicted, reported on stderr as they occur."""

    def __init__(self, run: Run) -> None:
        self.count, self.num_good, self._run = 0, 0, run
        self._reported: set[str] = set()

    def add(self, path: Path, error: Exception) -> None:
        """Prints why a file failed, unless the same message was printed for another."""
        self.count += 1
        line = pair_names(error_line(error), self._run)
        if line not in self._reported:
            self._reported.add(line)
            _print_stderr(f"error: {line}")


class _Rows:
    """Rows to be printed or written to a file.

    Args:
        form: format of the rows.
        output: file; None: the rows are printed.
        outputs: writer of the file.
    """

    def __init__(self, form: RowFormat, output: Path | None, outputs: Outputs) -> None:
        self.count = 0
        self._form, self._output, self._outputs = form, output, outputs
        self._kept: list[str] = []

    def add(self, row: dict[str, str | float]) -> None:
        self.count += 1
        self._write(self._form.lines(row))

    def end(self) -> None:
        """Writes the remaining lines, and the file."""
        self._write(self._form.last_lines())
        if self._output is not None:
            content = "".join(f"{line}\n" for line in self._kept).encode(errors="backslashreplace")
            self._outputs.write("--output", self._output, content)
            print_line(f"{self._output}: {self.count} row{'' if self.count == 1 else 's'}")

    def _write(self, lines: Iterator[str]) -> None:
        if self._output is None:
            for line in lines:
                print_row(line)
        else:
            self._kept += lines


def _report_left_out(listed: Listed, failures: _Failures) -> None:
    """Prints the files that are left out."""
    for path, error in listed.failures:
        failures.add(path, error)
    if listed.skipped:
        kinds = sorted({path.suffix or path.name for path in listed.skipped})
        _print_stderr(f"skipped {counted(len(listed.skipped), 'file')} of other kinds ({first_few(kinds)})")


def _print_stderr(line: str) -> None:
    ProgressBar.write(visible(line), file=sys.stderr)


def _format(arguments: PredictArguments) -> FormatName:
    if arguments.format is not None:
        return arguments.format
    suffix = "" if arguments.output is None else arguments.output.suffix.lower()
    return "csv" if suffix == ".csv" else "json" if suffix == ".json" else "table"


def _report_written(written: Sequence[Path], outputs: Outputs) -> None:
    """Prints the files that were written besides the rows."""
    in_folder = [path for path in written if path.parent == outputs.save]
    for path in written:
        if path not in in_folder:
            _print_stderr(f"wrote {path}")
    if in_folder:
        _print_stderr(f"wrote {counted(len(in_folder), 'file')} in {outputs.save}")
