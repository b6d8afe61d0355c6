"""`fredholm train`: a run for every seed, and the recipes there are."""

import dataclasses
import inspect
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

from fredholm.cli.command import Command
from fredholm.cli.option_names import with_option_names
from fredholm.cli.parsing import Flag, parse
from fredholm.tasks import TASKS
from fredholm.training.progress import print_line
from fredholm.training.recipes import list_recipes, open_recipe
from fredholm.training.run import Result, Run, refuse_occupied, train
from fredholm.training.trainer import DivergedError


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


def _train(argv: list[str]) -> None:
    if not argv or argv[0].startswith("-"):
        _list_recipes()
        if argv and argv[0] in ("-h", "--help"):
            return
        raise ValueError(f"fredholm train needs a recipe or a task first, not {argv[0] if argv else 'nothing'}")
    recipe = open_recipe(argv[0])
    config, options = recipe.config, argv[1:]
    if options and not options[0].startswith("-") and recipe.name in {task.command for task in TASKS}:
        config = dataclasses.replace(config, task=dataclasses.replace(config.task, data=options.pop(0)))
    config, options = _with_kinds(config, options, known=[part for task in recipe.tasks for part in task.parts])
    arguments = parse(TrainArguments, f"train {argv[0]}", options, TrainArguments(run=config))
    if arguments.seeds and arguments.run.seed != config.seed:
        raise ValueError(f"--seed {arguments.run.seed} has no effect with --seeds; pass one of them")
    seeds = arguments.seeds or (arguments.run.seed,)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds names a seed twice: {' '.join(map(str, seeds))}")
    parent = arguments.run_dir or Path("runs") / recipe.name
    single = arguments.run_dir if not arguments.seeds else None
    paths = {seed: single or parent / f"seed-{seed}" for seed in seeds}
    if not arguments.resume:
        for path in paths.values():
            refuse_occupied(path)
    results: list[Result] = []
    for seed, path in paths.items():
        run = dataclasses.replace(arguments.run, seed=seed)
        said = f"training {recipe.name}, seed {seed}, in {path}"
        try:
            results.append(
                train(
                    run, path, resume=arguments.resume, tasks=recipe.tasks, on_start=lambda said=said: print_line(said)
                )
            )
        except (ValueError, DivergedError) as error:
            error.args = (with_option_names(str(error), run),)
            raise
    _print_results(results, with_spread=bool(arguments.seeds))


def _with_kinds(config: Run.Config, options: list[str], known: list[type]) -> tuple[Run.Config, list[str]]:
    """The config with the kinds that options name, such as ``--task.model gpt2``, and the other options.

    A setting whose type is abstract has several kinds. It takes the name of one, and starts at that kind's defaults,
    which options such as ``--task.model.depth`` then change.

    Raises:
        ValueError: there is no kind of that name.
    """
    rest = [word for option in options for word in (option.split("=", 1) if option.startswith("--") else [option])]
    kinds = {name for name in rest if name.startswith("--task.")}
    for name in sorted(kinds, key=lambda name: name.count(".")):  # a model before its kernel
        path, at = name.removeprefix("--").replace("-", "_").split("."), rest.index(name)
        named = _kinds_at(config, path, known)
        if named and at + 1 < len(rest) and not rest[at + 1].startswith("--"):
            config = _replaced(config, path, _kind_called(rest[at + 1], named, name)())
            del rest[at : at + 2]
    return config, rest


def _kinds_at(config: Any, path: list[str], known: list[type]) -> dict[str, type]:
    """What may stand at a setting of an abstract type, by name; empty for other settings."""
    for part in path[:-1]:
        config = getattr(config, part, None)
    kind = get_type_hints(type(config)).get(path[-1])
    if not inspect.isabstract(kind):
        return {}
    fitting = [one for one in known if isinstance(kind, type) and issubclass(one, kind)]
    return {one.__qualname__.removesuffix("Config").rstrip("."): one for one in fitting}


def _kind_called(word: str, kinds: dict[str, type], option: str) -> type:
    """The kind of that name, or the only one whose name begins so; case and hyphens do not count."""

    def plain(name: str) -> str:
        return name.replace("-", "").replace("_", "").lower()

    exact = [name for name in kinds if plain(name) == plain(word)]
    found = exact or [name for name in kinds if plain(name).startswith(plain(word))]
    if len(found) != 1:
        raise ValueError(f"{option} is {word!r}; expected one of {', '.join(found or kinds)}")
    return kinds[found[0]]


def _replaced(config: Any, path: list[str], value: Any) -> Any:
    """The config with another value at a path of settings."""
    first, *others = path
    return dataclasses.replace(config, **{first: _replaced(getattr(config, first), others, value) if others else value})


def _print_results(results: list[Result], *, with_spread: bool) -> None:
    objective = results[0].objective
    values = [result.metrics[objective.metric] for result in results]
    line = f"{results[0].split} {objective.metric}: {objective.format(statistics.mean(values))}"
    if with_spread:
        # The deviation of the runs themselves (N - 1), as ITNet H.6 reports it.
        deviation = objective.format(statistics.stdev(values) if len(values) > 1 else 0.0).removesuffix(" %")
        line += f" +- {deviation} ({len(values)} seed{'s' if len(values) > 1 else ''})"
    print(line)


def _list_recipes() -> None:
    print("usage: fredholm train RECIPE_OR_TASK ...\n\nrecipes (also FILE.py:FUNCTION):")
    recipes = list_recipes()
    width = max(map(len, recipes), default=0)
    for name, listing in sorted(recipes.items()):
        print(f"  {name:<{width}} {listing.summary}")
    print("\ntasks:")
    for task in TASKS:
        name = f"{task.command} [DATA]"
        print(f"  {name:<15} {(task.__doc__ or '').partition(chr(10))[0]}")
    print("\n`fredholm train NAME --help` lists every setting with its value.")


TRAIN = Command(
    name="train",
    operands="RECIPE_OR_TASK",
    summary="train a model in a run folder",
    run=_train,
)
