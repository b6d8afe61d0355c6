"""`fredholm train`: a run for every seed, and the recipes there are."""

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fredholm.cli.command import Command
from fredholm.cli.parsing import Flag, parse
from fredholm.tasks import TASKS
from fredholm.training.progress import print_line
from fredholm.training.recipes import list_recipes, open_recipe
from fredholm.training.run import Result, Run, refuse_occupied, train


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
        print_line(f"training {recipe.name}, seed {seed}, in {path}")
        run = dataclasses.replace(arguments.run, seed=seed)
        results.append(train(run, path, resume=arguments.resume, tasks=recipe.tasks))
    _print_results(results, with_spread=bool(arguments.seeds))


def _print_results(results: list[Result], *, with_spread: bool) -> None:
    objective = results[0].objective
    values = [result.metrics[objective.metric] for result in results]
    line = f"{results[0].measured} {objective.metric}: {objective.format(statistics.mean(values))}"
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
