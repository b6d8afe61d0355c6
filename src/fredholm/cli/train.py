"""`fredholm train`: trains a run for every seed, and lists tasks and recipes."""

import contextlib
import dataclasses
import functools
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, final

import tyro

from fredholm._settings import filled
from fredholm.cli.kinds import list_kinds, with_kinds, with_kinds_needed
from fredholm.cli.launching import refuse_devices, train_on
from fredholm.cli.option_names import with_option_names
from fredholm.cli.page import leave_page
from fredholm.cli.parsing import (
    Flag,
    check_minutes,
    check_seeds,
    parse,
    refuse_unknown_homes,
    typed_settings,
)
from fredholm.distributed.processes import Processes, is_restarted, joined, leave, num_started
from fredholm.tasks import TASKS
from fredholm.tasks.schedule import Preset, Schedule, names_model
from fredholm.tasks.task import Task, inherited_settings
from fredholm.training.batches import LostWorkerError
from fredholm.training.config import TrainingConfig
from fredholm.training.plan import epochs_within, first_steps, plan, share_within
from fredholm.training.progress import muted, print_line
from fredholm.training.recipes import Recipe, open_recipe, recipes_by_modality
from fredholm.training.run import Result, Run, read_trained, refuse_occupied, refuse_unusable, train
from fredholm.training.step_cost import StepCost
from fredholm.training.storage.run_folder import RunFolder
from fredholm.training.trainer import DivergedError

LONG = 3600.0
"""Seconds of a planned run above which a shorter one is suggested."""


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """Train a model. The options below show the values of a recipe; each can be changed.

    For a task they show the defaults of its Python classes, which a run replaces by values that suit the data.
    """

    run: Annotated[Run.Config, tyro.conf.arg(name="")]
    run_dir: Path | None = None
    """The run folder; with --seeds their common parent. Default: runs/RECIPE/seed-SEED."""
    preset: Preset | None = None
    """Compute budget of a task: small, for a CPU, or base, for a GPU. Default: small.
    Settings that are left out follow from it and from the data. Refused with a recipe, which has all settings.
    """
    minutes: float | None = None
    """Train for about this many minutes, all seeds together.
    Uses fewer epochs and, if needed, a narrower model, by the time of two measured steps, and fits the schedule.
    Default: no limit. A resumed run keeps its length.
    """
    dry_run: Flag = False
    """Print what would be trained, and the time estimated from two measured steps, without training."""
    resume: Flag = False
    """Continue the run in the folder, if there is one."""
    accept_new_data: Flag = False
    """With --resume: continue on changed data, with the settings of the run."""
    seeds: tuple[int, ...] | None = None
    """Train once for each of these seeds, in place of --seed, and print mean and standard deviation."""
    report: Flag = True
    """Write report.html, a page about the run, into its folder at the end; --no-report writes none."""
    devices: int = 1
    """Train on this many GPUs, or processes without a GPU, each of which computes a part of every batch.
    Starts torchrun, which you can use yourself for several machines and restarts.
    """


def run_command(argv: list[str]) -> None:
    """Runs `fredholm train` with these arguments."""
    processes = joined()
    with _only_first_prints(processes):
        devices = _train_here(argv, processes)
    leave()
    if devices > 1:
        train_on(devices, argv)


@contextlib.contextmanager
def _only_first_prints(processes: Processes) -> Iterator[None]:
    """Hides the output of all processes but the first while entered."""
    if processes.is_first:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere), muted():
        yield


def _train_here(argv: list[str], processes: Processes) -> int:
    """Trains, unless several devices are requested.

    Returns:
        number of processes to start; 1 where the training is done.
    """
    if not argv or argv[0].startswith("-"):
        _list_recipes()
        if argv and argv[0] in ("-h", "--help"):
            return 1
        raise ValueError(f"fredholm train needs a recipe or a task first, not {argv[0] if argv else 'nothing'}")
    refuse_unknown_homes(argv)
    recipe = open_recipe(argv[0])
    config, options = recipe.config, argv[1:]
    is_task = recipe.name in {task.command for task in TASKS}
    has_data = any(option.partition("=")[0] == "--task.data" for option in options)
    if is_task and options and not options[0].startswith("-"):
        config, has_data = _with_data(config, options.pop(0)), True
    if is_task:
        config = dataclasses.replace(config, task=_inheriting_init(config.task, options, recipe.tasks))
    known = [part for task in recipe.tasks if isinstance(config.task, task.Config) for part in task.parts]
    try:
        config, options = with_kinds(config, options, known)
        return _train_as(_Call(recipe, config, options, argv, known, is_task, has_data), processes)
    except SystemExit:  # help was printed
        list_kinds(config, known)
        raise
    except (ValueError, DivergedError, LostWorkerError) as error:
        usual = "the default" if is_task else "the recipe's"
        error.args = (with_option_names(str(error), config, argv, usual=usual),)
        raise


@final
class _Call(NamedTuple):
    """A recipe or a task with the typed options."""

    recipe: Recipe
    config: Run.Config
    """Config of the recipe, before the options."""
    options: list[str]
    argv: list[str]
    """All words after `train`."""
    known: list[type]
    """Kinds of models, kernels and other parts that options can name."""
    is_task: bool
    """Whether it is a task, whose unset settings follow from the data."""
    has_data: bool

    def parse(self, run: Run.Config) -> TrainArguments:
        """Parses the options; options that are left out take the run's settings."""
        try:
            return parse(TrainArguments, f"train {self.argv[0]}", self.options, TrainArguments(run=run))
        except ValueError as error:
            error.args = (with_kinds_needed(str(error), run, self.known),)
            raise


def _with_data(config: Run.Config, data: str) -> Run.Config:
    """Returns the run with other data."""
    return dataclasses.replace(config, task=dataclasses.replace(config.task, data=data))


def _train_as(call: _Call, processes: Processes) -> int:
    """Trains by the options, and prints the plan and the result; see `_train_here`."""
    recipe, arguments = call.recipe, call.parse(call.config)
    typed = typed_settings(call.options, "training")
    fixed = {name: getattr(arguments.run.training, name) for name in ("epochs", "batch_size") if name in typed}
    fixed["keeps_model"] = names_model(typed_settings(call.argv, "task"))
    _refuse_idle_options(arguments, recipe, call.options, fixed.get("epochs"), is_task=call.is_task)
    paths = _run_folders(arguments, recipe)
    refuse_devices(arguments.devices, arguments.run.training)
    resume = arguments.resume or is_restarted()
    for path in () if resume else paths.values():
        processes.on_first(functools.partial(refuse_unusable if arguments.dry_run else refuse_occupied, path))
    recipe.refuse_absent_data(arguments.run)
    if arguments.devices > 1 and not arguments.dry_run:
        return arguments.devices
    saved, facts = _saved(list(paths.values()), recipe.tasks) if resume else (None, None)
    sharing, cost = max(processes.size, arguments.devices), None
    if saved is not None:
        arguments = call.parse(_resumed(arguments, saved, call, sharing=sharing))
    elif call.is_task:
        run, cost = _sized_by_data(arguments, call, fixed, processes, sharing, resume=resume)
        arguments = call.parse(run)
    if (arguments.dry_run or not resume) and processes.is_first:
        is_open = call.is_task and saved is None
        _print_plan(arguments, facts, cost, num_seeds=len(paths), sharing=sharing, may_be_shorter=is_open)
    results = [] if arguments.dry_run else _run(arguments, recipe, paths, processes, call.argv, resume=resume)
    if results and results[0].split is not None:
        _print_results(results, with_spread=bool(arguments.seeds))
    return 1


def _run_folders(arguments: TrainArguments, recipe: Recipe) -> dict[int, Path]:
    """Returns the run folder of each seed."""
    parent = arguments.run_dir or Path("runs") / recipe.name
    single = arguments.run_dir if not arguments.seeds else None
    return {seed: single or parent / f"seed-{seed}" for seed in arguments.seeds or (arguments.run.seed,)}


def _resumed(arguments: TrainArguments, saved: Run.Config, call: _Call, *, sharing: int) -> Run.Config:
    """Returns the settings of a run that continues; prints the options that are ignored."""
    if arguments.accept_new_data:
        run = _with_data(saved, arguments.run.task.data)
    else:
        run = _with_saved_settings(arguments.run, saved) if call.is_task else _with_saved_end(arguments.run, saved)
    run, _ = with_kinds(run, call.argv[1:], call.known)  # another kind than the run's is refused later
    if sharing == 1:  # one process cannot shard; a typed --training.shard is refused later
        run = dataclasses.replace(run, training=dataclasses.replace(run.training, shard=False))
    for name, kept in (("minutes", "its length"), ("preset", "its sizes")):
        if getattr(arguments, name) is not None:
            print_line(f"the run keeps {kept}: --{name} is for a new one")
    return run


def _sized_by_data(
    arguments: TrainArguments, call: _Call, fixed: dict[str, Any], processes: Processes, sharing: int, *, resume: bool
) -> tuple[Run.Config, StepCost | None]:
    """Returns a task's run with settings that suit its data and the minutes, and the cost of its steps, where measured.

    Args:
        arguments: parsed arguments.
        call: recipe or task with its options.
        fixed: settings typed by the user that affect the sizes.
        processes: processes of this run.
        sharing: number of processes that share each batch.
        resume: whether the run continues, so that notes on the data were printed before.
    """
    preset = arguments.preset or "small"
    sized = functools.cache(functools.partial(_recommended, arguments.run, preset, call.recipe.tasks, **fixed))
    with processes.first_ahead():
        found = sized()
    notes = found.notes
    if not call.has_data and call.config.task.data:
        notes = (f"no DATA is given: these are {call.config.task.data}, built in, to try; pass your own", *notes)
    for note in () if resume else notes:
        print_line(with_option_names(note, call.config))
    if arguments.minutes is None:
        return found.run, None
    num_seeds, seed = len(arguments.seeds or (0,)), (arguments.seeds or (arguments.run.seed,))[0]
    return _within(arguments.minutes / num_seeds, arguments.run, sized, seed, sharing, processes)


def _print_plan(
    arguments: TrainArguments,
    facts: Task.Facts | None,
    cost: StepCost | None,
    *,
    num_seeds: int,
    sharing: int,
    may_be_shorter: bool,
) -> None:
    """Prints the planned run and its duration; for a long run also how to shorten it, where possible."""
    run = arguments.run
    task = run.task.build(facts)
    seed = arguments.seeds[0] if arguments.seeds else run.seed
    planned = plan(task, run.training, cost or first_steps(task, run.training, seed, sharing))
    for line in str(planned).splitlines():
        print_line(line)
    if may_be_shorter and planned.seconds * num_seeds > LONG and arguments.minutes is None:
        print_line("--minutes 30, or another number, trains by fewer epochs in about so long")


def _refuse_idle_options(
    arguments: TrainArguments, recipe: Recipe, options: Sequence[str], asked_epochs: int | None, *, is_task: bool
) -> None:
    """Raises a ValueError for options that have no effect with others, or are invalid."""
    if not is_task and arguments.preset is not None:
        raise ValueError(f"--preset has no effect with the recipe {recipe.name}, which says everything itself")
    if not is_task and arguments.minutes is not None:
        raise ValueError(
            f"--minutes has no effect with the recipe {recipe.name}, which says everything itself; pass "
            "--training.epochs"
        )
    if arguments.minutes is not None:
        _check_minutes(arguments.minutes, asked_epochs)
    if arguments.accept_new_data and not arguments.resume:
        raise ValueError("--accept-new-data has no effect without --resume; pass both, or leave it out")
    for name, given in (("preset", arguments.preset), ("minutes", arguments.minutes)):
        if arguments.accept_new_data and given is not None:
            raise ValueError(f"--{name} {given} has no effect with --accept-new-data: the run keeps its settings")
    if arguments.seeds is not None:
        check_seeds(arguments.seeds)
    if arguments.seeds and "--seed" in [option.partition("=")[0] for option in options]:
        raise ValueError(f"--seed {arguments.run.seed} has no effect with --seeds; pass one of them")
    if arguments.devices != 1 and num_started() > 1:
        raise ValueError(
            f"--devices {arguments.devices} has no effect: torchrun started {num_started()} processes; leave it out"
        )


def _run(
    arguments: TrainArguments,
    recipe: Recipe,
    paths: dict[int, Path],
    processes: Processes,
    argv: list[str],
    *,
    resume: bool,
) -> list[Result]:
    """Trains once for each seed; `argv` are the words after `train`."""
    results: list[Result] = []
    for seed, path in paths.items():
        message = f"training {recipe.name}, seed {seed}, in {path}"
        run = dataclasses.replace(arguments.run, seed=seed)
        results.append(
            train(
                run,
                path,
                resume=resume,
                accept_new_data=arguments.accept_new_data,
                tasks=recipe.tasks,
                on_start=functools.partial(print_line, message),
                processes=processes,
                words=("train", *argv),
            )
        )
        if arguments.report and processes.size == 1:
            leave_page(path, recipe.tasks, run.training.device)
    leave()
    if arguments.report and processes.size > 1 and processes.is_first:
        for path in paths.values():
            leave_page(path, recipe.tasks, arguments.run.training.device)
    return results


def _saved(paths: list[Path], tasks: Sequence[type[Task]]) -> tuple[Run.Config, Task.Facts] | tuple[None, None]:
    """Returns the settings of the first run in some folders and the facts of its data; None and None without a run."""
    folder = next((folder for folder in map(RunFolder, paths) if not folder.is_new()), None)
    return (None, None) if folder is None else folder.read(Run.Config, tasks)


def _with_saved_settings(run: Run.Config, saved: Run.Config) -> Run.Config:
    """Returns the run with a saved run's settings in place of those that are not given, except for the data.

    So resuming needs neither the minutes and the preset that chose them, nor the checkpoint that the run started from.
    """
    if type(saved.task) is not type(run.task):  # refused once the folder is read
        return run
    kind: Any = type(run.task)
    return dataclasses.replace(
        run,
        init=run.init or saved.init,
        task=dataclasses.replace(inherited_settings(run.task, kind(), saved.task), data=run.task.data),
        training=inherited_settings(run.training, TrainingConfig(), saved.training),
    )


def _with_saved_end(run: Run.Config, saved: Run.Config) -> Run.Config:
    """Returns the run with the epochs of a saved one, which may have been changed, and settings that depend on them."""
    kept = {name: getattr(saved.training, name) for name in ("epochs", "patience", "ema_decay", "evaluate_every")}
    return dataclasses.replace(run, training=dataclasses.replace(run.training, **kept))


@final
class _Recommended(NamedTuple):
    """A run with settings that suit its data and start in place of defaults."""

    run: Run.Config
    schedule: Schedule
    """Schedule that suits the data, whatever was requested."""
    notes: tuple[str, ...]


def _recommended(
    run: Run.Config,
    preset: Preset,
    tasks: Sequence[type[Task]],
    share: float = 1.0,
    epochs: int | None = None,
    *,
    batch_size: int | None = None,
    keeps_model: bool = False,
) -> _Recommended:
    """Returns the run with the settings that its task recommends.

    Args:
        run: the run as requested.
        preset, share, epochs, keeps_model: see `Task.Config.recommended`.
        tasks: known task classes, for the run of its initial weights.
        batch_size: requested batch size; None: the recommended one.
    """
    start = None if run.init is None else read_trained(Path(run.init), tasks)
    task, schedule, notes = run.task.recommended(
        preset, start, share=share, epochs=epochs or None, keeps_model=keeps_model
    )
    schedule = schedule.adjusted(epochs=epochs or None, batch_size=batch_size)
    training = filled(run.training, [TrainingConfig()], **schedule.settings)
    return _Recommended(dataclasses.replace(run, task=task, training=training), schedule, notes)


def _check_minutes(minutes: float, asked_epochs: int | None) -> None:
    """Raises a ValueError for invalid minutes, or minutes together with epochs."""
    check_minutes(minutes)
    if asked_epochs is not None:
        raise ValueError(f"--training.epochs {asked_epochs} and --minutes both say when to end; pass one of them")


def _within(
    minutes: float,
    given: Run.Config,
    sized: Callable[..., _Recommended],
    seed: int,
    sharing: int,
    processes: Processes,
) -> tuple[Run.Config, StepCost | None]:
    """Returns the run with the most epochs that fit into the minutes and, on the first process, the cost of its steps.

    Args:
        minutes: duration of the run.
        given: the run as requested.
        sized: returns the run that suits a share of the examples, by default all, in a number of epochs, where these
            are known; see `_recommended`.
        seed: seed of the run.
        sharing: number of processes that share each batch.
        processes: processes of this run.
    """
    whole, schedule, _ = sized()
    if schedule.epochs == 0:
        raise ValueError("--minutes has no effect with a model that is fitted in closed form; leave it out")

    def in_epochs(epochs: int, schedule: Schedule) -> TrainingConfig:
        return filled(given.training, [TrainingConfig()], **schedule.adjusted(epochs=epochs).settings)

    def has_all_sizes(run: Run.Config) -> bool:
        return (run.task, run.training.batch_size) == (whole.task, whole.training.batch_size)

    @functools.cache
    def measured(share: float) -> tuple[TrainingConfig, StepCost]:
        run = whole if share == 1 else sized(share).run
        if share < 1 and has_all_sizes(run):  # such as a checkpoint of fixed size
            return run.training, measured(1.0)[1]
        return run.training, first_steps(run.task.build(), run.training, seed, sharing)

    def chosen() -> tuple[StepCost, float, int]:
        share = share_within(minutes, schedule.num_train, measured)
        cost, (run, own, _) = measured(share)[1], sized(share)
        share = 1.0 if has_all_sizes(run) else share
        return cost, share, epochs_within(minutes, schedule.epochs, functools.partial(in_epochs, schedule=own), cost)

    found = processes.on_first(chosen)
    cost = None if found is None else found[0]
    share, epochs = processes.from_first((1.0, schedule.epochs) if found is None else found[1:])
    if epochs == schedule.epochs and share == 1:
        return whole, cost
    smaller = f", by a model and batches as for {share * schedule.num_train:,.0f} examples" if share < 1 else ""
    print_line(f"{epochs} of the {schedule.epochs} epochs that suit the data, for {minutes:.4g} minutes{smaller}")
    with processes.first_ahead():
        # with the batch size whose steps were measured
        own, run = sized(share).schedule, sized(share, epochs).run
    return dataclasses.replace(run, training=in_epochs(epochs, own)), cost


def _inheriting_init(config: Task.Config, options: list[str], tasks: Sequence[type[Task]]) -> Task.Config:
    """Returns a task's defaults; with --init among the options, with the model settings of that run."""
    words = [word for option in options for word in option.split("=", 1)]
    at = words.index("--init") + 1 if "--init" in words else len(words)
    if at == len(words):
        return config
    if not words[at].strip():
        raise ValueError("--init is empty; name the folder of a run, or leave it out")
    return config.inheriting(read_trained(Path(words[at]), tasks))


def _print_results(results: list[Result], *, with_spread: bool) -> None:
    objective = results[0].objective
    values = [result.metrics[objective.metric] for result in results]
    line = f"{results[0].split} {objective.metric}: {objective.format(statistics.mean(values))}"
    if with_spread and len(values) > 1 and not any(map(math.isnan, values)):
        # The sample deviation of the runs (N - 1), as in ITNet H.6; undefined for one run.
        deviation = objective.format(statistics.stdev(values)).removesuffix(" %")
        line += f" +- {deviation} ({len(values)} seeds)"
    print(line)


def _list_recipes() -> None:
    print("usage: fredholm train RECIPE_OR_TASK ...\n\ntasks, on data of your own:")
    for task in TASKS:
        name = f"{task.command} [DATA]"
        print(f"  {name:<19} {(task.__doc__ or '').partition(chr(10))[0]}")
    print("\nrecipes (also FILE.py:FUNCTION):")
    groups = recipes_by_modality()
    width = max((len(name) for group in groups.values() for name in group), default=0)
    for modality, group in groups.items():
        print(f"\n {modality or 'others'}:")
        for name, listing in sorted(group.items()):
            print(f"  {name:<{width}} {listing.summary}")
            needs = [f"{what}: {value}" for what, value in (("data", listing.data), ("time", listing.time)) if value]
            if needs:
                print(f"  {'':<{width}} {'; '.join(needs)}")
    print("\n`fredholm train NAME --help` lists every setting with its value.")
