"""The command line: train, evaluate, predict, generate, verify, info."""

import contextlib
import dataclasses
import difflib
import io
import json
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import tyro

from fredholm._version import __version__
from fredholm.models import Sampling
from fredholm.tasks import TASKS, LanguageModelling
from fredholm.tasks.text import Piece, read_text
from fredholm.training.checkpoint import Which
from fredholm.training.interruption import InterruptedRunError
from fredholm.training.machine import describe_machine
from fredholm.training.progress import print_line, progress_bar
from fredholm.training.random_state import seeded_generator
from fredholm.training.recipes import list_recipes, open_recipe
from fredholm.training.run import Result, Run, refuse_occupied, train
from fredholm.training.trainer import DivergedError
from fredholm.verification import table, verify

Arguments = TypeVar("Arguments")
Flag = tyro.conf.FlagCreatePairsOff[bool]

USAGE = """usage: fredholm COMMAND ...

  train RECIPE_OR_TASK   train a model in a run folder
  evaluate RUN           measure a trained model on its test split
  predict RUN FILES...   apply a trained model to files
  generate RUN           let a trained language model go on with a text
  verify                 check that every classical layer is an exact instance
  info                   versions, devices, evaluation routes, extras

`fredholm COMMAND --help` says more. With FREDHOLM_TRACEBACK=1 in the environment errors show where they arose."""

USER_ERROR, FAILURE, INTERRUPTED = 2, 1, 130


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """Train a model. The options below show this recipe's values; each can be changed."""

    run: Annotated[Run.Config, tyro.conf.arg(name="")]
    run_dir: Path | None = None
    """The run folder; with --seeds their common parent. Default: runs/RECIPE/seed-SEED."""
    resume: Flag = False
    """Go on with the run in the folder, if there is one."""
    seeds: tuple[int, ...] = ()
    """Train once for each of these seeds, in place of --seed, and print mean and standard deviation."""


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments:
    """Measure a trained model on its test split."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    checkpoint: Which = "last"
    """The last checkpoint, or the one that was best on the test split (which flatters it)."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, ..."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not the library's but that file's."""
    json: Flag = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class PredictArguments:
    """Apply a trained model to files. Prints file, class and probability, separated by tabs."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    files: tyro.conf.Positional[tuple[Path, ...]]
    """The files."""
    checkpoint: Which = "last"
    """The last checkpoint, or the one that was best on the test split."""
    batch_size: int = 64
    """Files at a time."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, ..."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not the library's but that file's."""
    json: Flag = False
    """Print a JSON list, one object a file."""


@dataclass(frozen=True, kw_only=True)
class GenerateArguments:
    """Let a trained language model go on with a text. Prints the prompt and, token by token, what follows it.

    It ends at an end-of-text token or after --max-tokens. When the model's context is full it starts again from the
    latest half of a context.
    """

    run: tyro.conf.Positional[Path]
    """The run folder."""
    prompt: str = ""
    """The text to go on with; without one a document starts."""
    prompt_file: Path | None = None
    """A file with that text."""
    max_tokens: int = 256
    """Tokens to add at most."""
    temperature: float = 1.0
    """Below 1 prefers likely tokens; 0 takes the likeliest."""
    top_k: int | None = None
    """Draw among so many of the likeliest tokens."""
    top_p: float = 1.0
    """Draw among the likeliest tokens that together have this probability."""
    seed: int = 0
    """Of the draws."""
    num_samples: int = 1
    """Texts, one after the other, with a line of --- between them."""
    cache: Flag = True
    """Keep what the model computed for earlier tokens; --no-cache computes it again for each, to the same text."""
    checkpoint: Which = "last"
    """The last checkpoint, or the one that was best on the test split."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, ..."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not the library's but that file's."""
    json: Flag = False
    """Print a JSON list, one object a text."""


@dataclass(frozen=True, kw_only=True)
class VerifyArguments:
    """Check, in float64 on random instances, that every classical layer is an exact instance of the operator.

    Prints a table, and ends with code 1 if any error exceeds its bound.
    """

    seed: int = 0
    """Of all random instances."""
    json: Flag = False
    """Print a JSON list, one object a check."""


@dataclass(frozen=True, kw_only=True)
class InfoArguments:
    """Print versions, devices, evaluation routes and installed extras."""

    json: Flag = False
    """Print one JSON object."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0; 2 for a mistake in what the user gave, 1 for a run that failed (loss not finite, disk full), 130 after
        Ctrl-C. Errors are one line on stderr.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except InterruptedRunError as error:
        print(error, file=sys.stderr)
        return 128 + error.signal_number
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; without this Python complains once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except (DivergedError, torch.OutOfMemoryError) as error:
        return _report(error, FAILURE)
    except OSError as error:
        return _report(error, USER_ERROR if isinstance(error, FileNotFoundError | PermissionError) else FAILURE)
    except (ValueError, TypeError, ImportError) as error:
        return _report(error, USER_ERROR)


def _dispatch(argv: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": _train,
        "evaluate": _evaluate,
        "predict": _predict,
        "generate": _generate,
        "verify": _verify,
        "info": _info,
    }
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if argv else USER_ERROR
    if argv[0] == "--version":
        print(f"fredholm {__version__}")
        return 0
    if argv[0] not in commands:
        close = difflib.get_close_matches(argv[0], commands, n=1) or [", ".join(commands)]
        raise ValueError(f"no command {argv[0]!r}; expected {close[0]}")
    try:
        commands[argv[0]](argv[1:])
    except SystemExit as end:  # help was printed
        return int(end.code or 0)
    return 0


def _train(argv: list[str]) -> None:
    if not argv or argv[0].startswith("-"):
        _list_recipes()
        if argv and argv[0] in ("-h", "--help"):
            return
        raise ValueError(f"fredholm train needs a recipe or a task first, not {argv[:1] or 'nothing'}")
    recipe = open_recipe(argv[0])
    config, options = recipe.config, argv[1:]
    if options and not options[0].startswith("-") and recipe.name in {task.command for task in TASKS}:
        config = dataclasses.replace(config, task=dataclasses.replace(config.task, data=options.pop(0)))
    arguments = _parse(TrainArguments, f"train {argv[0]}", options, TrainArguments(run=config))
    seeds = arguments.seeds or (arguments.run.seed,)
    parent = arguments.run_dir or Path("runs") / recipe.name
    single = arguments.run_dir if not arguments.seeds else None
    paths = {seed: single or parent / f"seed-{seed}" for seed in seeds}
    if not arguments.resume:
        for path in paths.values():
            refuse_occupied(path)
    results: list[Result] = []
    for seed, path in paths.items():
        print_line(f"training {recipe.name}, seed {seed}, in {path}")
        run = dataclasses.replace(arguments.run, seed=seed)
        results.append(train(run, path, resume=arguments.resume, tasks=recipe.tasks))
    _print_results(results, with_spread=bool(arguments.seeds))


def _print_results(results: list[Result], *, with_spread: bool) -> None:
    objective = results[0].objective
    values = [result.metrics[objective.metric] for result in results]
    line = f"test {objective.metric}: {objective.format(statistics.mean(values))}"
    if with_spread:
        # The deviation of the runs themselves (N - 1), as ITNet H.6 reports it.
        deviation = objective.format(statistics.stdev(values) if len(values) > 1 else 0.0).removesuffix(" %")
        line += f" +- {deviation} ({len(values)} seed{'s' if len(values) > 1 else ''})"
    print(line)


def _list_recipes() -> None:
    print("usage: fredholm train RECIPE_OR_TASK ...\n\nrecipes (also FILE.py:FUNCTION):")
    for name, listing in sorted(list_recipes().items()):
        print(f"  {name:<12} {listing.summary}")
    print("\ntasks:")
    for task in TASKS:
        name = f"{task.command} [DATA]"
        print(f"  {name:<15} {(task.__doc__ or '').partition(chr(10))[0]}")
    print("\n`fredholm train NAME --help` lists every setting with its value.")


def _evaluate(argv: list[str]) -> None:
    arguments = _parse(EvaluateArguments, "evaluate", argv)
    run = _open(arguments.run, arguments.recipe, arguments.device)
    step, metrics = run.step(arguments.checkpoint), run.evaluate(arguments.checkpoint)
    if arguments.json:
        print(json.dumps({"run": str(arguments.run), "step": step, "examples": run.task.num_test, **metrics}))
        return
    objective = run.task.objective
    print(f"test {objective.metric}: {objective.format(metrics.pop(objective.metric))}")
    for name, value in metrics.items():
        print(f"test {name}: {value:.4f}")
    print(f"{run.task.num_test} examples, averaged weights of step {step}")


def _predict(argv: list[str]) -> None:
    arguments = _parse(PredictArguments, "predict", argv)
    if not arguments.files:
        raise ValueError("fredholm predict needs at least one file after the run folder")
    if arguments.batch_size < 1:
        raise ValueError(f"batch_size is {arguments.batch_size}; expected at least 1")
    run = _open(arguments.run, arguments.recipe, arguments.device)
    model, files, size = run.model(arguments.checkpoint), arguments.files, arguments.batch_size
    rows: list[dict[str, str | float]] = []
    with progress_bar("predict", len(files), unit="file") as bar:
        for start in range(0, len(files), size):
            part = run.task.predict(model, files[start : start + size], run.device)
            bar.update(len(part))
            rows += part
            if not arguments.json:
                for row in part:
                    cells = (f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values())
                    print_line("\t".join(cells))
    if arguments.json:
        print(json.dumps(rows, indent=2))


def _generate(argv: list[str]) -> None:
    arguments = _parse(GenerateArguments, "generate", argv)
    if arguments.prompt and arguments.prompt_file:
        raise ValueError("a prompt and a prompt file are given; pass one of them")
    if arguments.num_samples < 1:
        raise ValueError(f"num_samples is {arguments.num_samples}; expected at least 1")
    sampling = Sampling(temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p)
    prompt = read_text(arguments.prompt_file) if arguments.prompt_file else arguments.prompt
    generator = seeded_generator(arguments.seed)
    run = _open(arguments.run, arguments.recipe, arguments.device)
    task = run.task
    if not isinstance(task, LanguageModelling):
        raise ValueError(f"{arguments.run} is a run of the task {task.command!r}; expected one of 'text'")
    model = run.model(arguments.checkpoint)
    texts: list[dict[str, Any]] = []
    for number in range(arguments.num_samples):
        pieces = task.generate(
            model,
            prompt,
            max_tokens=arguments.max_tokens,
            sampling=sampling,
            generator=generator,
            device=run.device,
            cache=arguments.cache,
        )
        if not arguments.json:
            _stream(("\n---\n" if number else "") + prompt, pieces)
            continue
        drawn = list(pieces)
        ended = "end_of_text" if drawn[-1].token == task.tokenizer.end_of_text else "max_tokens"
        text = "".join(piece.text for piece in drawn)
        texts.append({"prompt": prompt, "text": text, "tokens": [piece.token for piece in drawn], "ended_by": ended})
    print(json.dumps(texts, indent=2, ensure_ascii=False) if arguments.json else "")


def _stream(start: str, pieces: Iterator[Piece]) -> None:
    print(start, end="", flush=True)
    for piece in pieces:
        print(piece.text, end="", flush=True)


def _verify(argv: list[str]) -> None:
    arguments = _parse(VerifyArguments, "verify", argv)
    with progress_bar("verify", None, unit="check") as bar:
        rows = []
        for row in verify(arguments.seed):
            rows.append(row)
            bar.update()
    print(json.dumps([row.as_json() for row in rows], indent=2) if arguments.json else table(rows))
    if not all(row.ok for row in rows):
        raise SystemExit(FAILURE)


def _info(argv: list[str]) -> None:
    arguments = _parse(InfoArguments, "info", argv)
    facts = describe_machine()
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return
    for topic, entries in facts.items():
        print(f"{topic}:")
        for name, value in entries.items():
            print(f"  {name:<14} {value}")


def _open(path: Path, recipe: str | None, device: str) -> Run:
    tasks = open_recipe(recipe).tasks if recipe else TASKS
    return Run(path, tasks=tasks, device=device)


def _parse(kind: type[Arguments], command: str, argv: list[str], default: Arguments | None = None) -> Arguments:
    """The arguments; help is printed and exits, a mistake becomes a one-line ValueError."""
    given: dict[str, Any] = {} if default is None else {"default": default}
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            return tyro.cli(kind, prog=f"fredholm {command}", args=argv, **given)
    except SystemExit as end:
        if not end.code:
            raise
        raise ValueError(f"{_one_line(caught.getvalue())}; see fredholm {command} --help") from None


def _one_line(box: str) -> str:
    """The message of an error box and the options it suggests.

    A box is a title and sections between rules; on terminals without line-drawing characters the title is a section.
    """
    lines = [line.strip(" │") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    sections: list[list[str]] = [[]]
    for line in filter(None, lines):
        if set(line) <= set("─-"):
            sections.append([])
        else:
            sections[-1].append(line)
    if "╭" not in box and len(sections) > 1:
        sections.pop(0)
    text = " ".join(sections[0])
    near = [
        line.split()[0] for part in sections if part[:1] == ["Perhaps you meant:"] for line in part if line[0] == "-"
    ]
    return f"{text} (perhaps {' or '.join(near)})" if near else text


def _report(error: BaseException, code: int) -> int:
    if os.environ.get("FREDHOLM_TRACEBACK"):
        raise error
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        text = " ".join(str(error).split()) or type(error).__name__
    print(f"error: {text}", file=sys.stderr)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)
