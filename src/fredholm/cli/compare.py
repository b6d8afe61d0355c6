"""`fredholm compare`: finds the best kernel for a data set."""

import contextlib
import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fredholm.cli.json_text import json_text
from fredholm.cli.kinds import list_kinds, with_kinds
from fredholm.cli.option_names import with_option_names
from fredholm.cli.page import leave_page
from fredholm.cli.parsing import Flag, check_minutes, check_seeds, parse, refuse_unknown_homes, typed_settings
from fredholm.cli.streams import FAILURE
from fredholm.comparison.compare import compare
from fredholm.comparison.comparison import Comparison
from fredholm.comparison.kernels import KERNELS_BY_NAME, MEASURE, chosen, kernel_of
from fredholm.comparison.protocol import Request
from fredholm.comparison.table import conclusion, markdown_table, text_table
from fredholm.storage.config_json import to_json
from fredholm.tasks import TASKS
from fredholm.tasks.schedule import Preset
from fredholm.tasks.task import Task
from fredholm.training.config import TrainingConfig
from fredholm.training.progress import muted, print_line
from fredholm.training.run import Run

Format = Literal["text", "markdown", "json"]


@dataclass(frozen=True, kw_only=True)
class CompareArguments:
    """Train the same network with one kernel after the other, and print which is best on validation data."""

    run: Annotated[Run.Config, tyro.conf.arg(name="")]
    kernels: tuple[str, ...] | None = None
    """Names of kernels, which the bare command lists. Default: all that can run on the data;
    with --minutes, without those whose epochs take over 3 times the median of all kernels.
    """
    seeds: tuple[int, ...] = (0, 1, 2)
    """Train each kernel once for each of these seeds."""
    minutes: float = 20.0
    """Minutes of training in all. Epochs follow from the measured time of a step."""
    epochs: int | None = None
    """Epochs of each final run, in place of minutes; results then do not depend on the machine's speed."""
    preset: Preset = "small"
    """Size of the network: small, for two cores, or base, for a GPU."""
    run_dir: Path | None = None
    """Folder of the comparison, the parent of its runs. Default: comparisons/TASK."""
    processes: int | None = None
    """Runs side by side, with one thread each. Default: one per core, and one in all on a GPU."""
    resume: Flag = False
    """Continue the comparison in the folder, if there is one."""
    format: Format = "text"
    """Format of the table; markdown and json print nothing else."""
    report: Flag = True
    """Write report.html, a page about the comparison, into the folder at the end; --no-report writes none."""


def run_command(argv: list[str]) -> None:
    """Runs `fredholm compare` with these arguments."""
    if not argv or argv[0].startswith("-"):
        _list()
        if argv and argv[0] in ("-h", "--help"):
            return
        raise ValueError(f"fredholm compare needs a task first, not {argv[0] if argv else 'nothing'}")
    refuse_unknown_homes(argv)
    task, options = _task_called(argv[0]), argv[1:]
    config = task.Config()  # pyright: ignore[reportAbstractUsage, reportCallIssue] - every field has a default
    if options and not options[0].startswith("-"):
        config = dataclasses.replace(config, data=options.pop(0))
    training = TrainingConfig(tensorboard=False)
    own = Run.Config(task=config, training=training)
    stack = dataclasses.replace(config.stack, kernel=kernel_of(MEASURE, config.kernel_sigma))
    network = Run.Config(task=config.with_stack(stack), training=training)
    for option in options:
        if option.startswith("--task.") and "kernel" in option.partition("=")[0].split("."):
            raise ValueError(f"{option} has no effect on a comparison, whose kernels take its place; pass --kernels")
    command = f"compare {argv[0]}"
    try:
        arguments, given = _parsed(network, options, task, command)
        _refuse_idle_options(arguments, [option.partition("=")[0] for option in options])
        request = _request(arguments, given, _own_model(own, options, task, command))
        _run(arguments, request, task, ("compare", *argv))
    except SystemExit as end:
        if not end.code:  # help was printed
            list_kinds(network, list(task.parts))
        raise
    except ValueError as error:
        error.args = (with_option_names(str(error), network, argv),)
        raise


def _list() -> None:
    """Prints the kernels and the tasks that can be compared."""
    print("usage: fredholm compare TASK [DATA] ...\n\nkernels:")
    width = max(map(len, KERNELS_BY_NAME))
    for name, (title, _) in KERNELS_BY_NAME.items():
        print(f"  {name:<{width}}  {title}")
    # tasks that override this method can exchange the kernel of their network
    with_kernels = [task.command for task in TASKS if task.Config.with_stack is not Task.Config.with_stack]
    print(f"\ntasks: {', '.join(with_kernels)}")
    print("\n`fredholm compare TASK --help` lists every setting.")


def _task_called(word: str) -> type[Task]:
    words = {task.command: task for task in TASKS}
    if word not in words:
        close = difflib.get_close_matches(word, words, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(words)}"
        raise ValueError(f"no task called {word!r}; {hint}")
    return words[word]


def _parsed(
    config: Run.Config, options: list[str], task: type[Task], command: str
) -> tuple[CompareArguments, tuple[str, ...]]:
    """Returns the arguments, with the kinds that options select, and the names of all other typed settings."""
    config, rest = with_kinds(config, list(options), list(task.parts))
    given = [f"{owner}.{name}" for owner in ("task", "training") for name in typed_settings(rest, owner)]
    return parse(CompareArguments, command, rest, CompareArguments(run=config)), tuple(given)


def _own_model(own: Run.Config, options: list[str], task: type[Task], command: str) -> Run.Config | str:
    """Returns the run of the task's own model by the same options, or the reason why there is none."""
    try:
        return _parsed(own, options, task, command)[0].run
    except ValueError as error:
        return with_option_names(str(error), own)


def _refuse_idle_options(arguments: CompareArguments, typed: Sequence[str]) -> None:
    """Raises a ValueError for typed options that have no effect, alone or with others."""
    if "--seed" in typed:
        raise ValueError(f"--seed {arguments.run.seed} has no effect on a comparison; pass --seeds")
    if arguments.epochs is not None and "--minutes" in typed:
        raise ValueError(f"--epochs {arguments.epochs} and --minutes both say when to end; pass one of them")


def _request(arguments: CompareArguments, given: tuple[str, ...], default: Run.Config | str) -> Request:
    """Returns the settings of the comparison; `given` names the settings that were typed."""
    run = arguments.run
    check_seeds(arguments.seeds)
    if arguments.kernels == ():
        raise ValueError("--kernels is empty; name some, or leave it out for all")
    if arguments.processes is not None and arguments.processes < 1:
        raise ValueError(f"--processes is {arguments.processes}; expected at least 1")
    if arguments.epochs is None:
        check_minutes(arguments.minutes)
    elif arguments.epochs < 1:
        raise ValueError(f"--epochs is {arguments.epochs}; expected at least 1")
    if run.init is not None:
        raise ValueError(f"--init {run.init} has no effect on a comparison, whose networks start from new weights")
    if "training.epochs" in given:
        raise ValueError("--training.epochs has no effect on a comparison; pass --epochs")
    return Request(
        run=run,
        given=given,
        default=default,
        kernels=chosen(arguments.kernels or ()),
        seeds=arguments.seeds,
        preset=arguments.preset,
        minutes=arguments.minutes if arguments.epochs is None else None,
        epochs=arguments.epochs,
        leave_out_slow=arguments.kernels is None and arguments.epochs is None,
    )


def _run(arguments: CompareArguments, request: Request, task: type[Task], words: tuple[str, ...]) -> None:
    """Compares, and prints the result."""
    folder = arguments.run_dir or Path("comparisons") / task.command
    with contextlib.nullcontext() if arguments.format == "text" else muted():
        found = compare(request, folder, resume=arguments.resume, processes=arguments.processes, command_line=words)
    _print(found, folder, arguments.format)
    if arguments.report:
        with contextlib.nullcontext() if arguments.format == "text" else muted():
            leave_page(folder, (task,), arguments.run.training.device)
    if found.best is None:
        raise SystemExit(FAILURE)


def _print(found: Comparison, folder: Path, form: Format) -> None:
    if form == "json":
        print(json_text(to_json(found, with_words=False), indent=2))
        return
    for line in text_table(found) if form == "text" else markdown_table(found):
        print_line(line)
    for line in conclusion(found, folder) if form == "text" else ():
        print_line(line)
