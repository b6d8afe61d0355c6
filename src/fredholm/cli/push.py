"""`fredholm push`: shares the model of a finished run, in a folder or on the Hugging Face hub."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fredholm.cli.open_run import RunPlace, find_run, open_run
from fredholm.cli.parsing import Flag, parse
from fredholm.report.model_card import model_card
from fredholm.report.run_record import RunRecord
from fredholm.storage.hub import hub_hint, hub_name, push_folder
from fredholm.tasks import TASKS
from fredholm.tasks.files.data_files import user_path
from fredholm.training.recipes import open_recipe
from fredholm.training.storage.checkpoint import Which


@dataclass(frozen=True, kw_only=True)
class PushArguments:
    """Share the model of a finished run: settings, weights, class names or tokenizer, and a model card.

    `fredholm predict`, `evaluate` and `generate` read the result in place of a run, and so does
    `fredholm.from_pretrained`. Optimiser, log and data are not included; paths are cut to their last components.
    """

    run: RunPlace
    """The run folder, or hf://OWNER/NAME, a model on the Hugging Face hub."""
    to: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TO")]
    """A folder, or hf://OWNER/NAME, a repository of the Hugging Face hub."""
    private: Flag = False
    """Make a new repository private."""
    token: str | None = None
    """Write token of the hub. Default: HF_TOKEN, or that of hf auth login. Other users may see it in the command."""
    overwrite: Flag = False
    """Replace existing files."""
    checkpoint: Which = "best"
    """The checkpoint that was best on the validation split, or the last one."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not one of the library but of that file."""


def run_command(argv: list[str]) -> None:
    """Runs `fredholm push` with these arguments."""
    arguments = parse(PushArguments, "push", argv)
    to, repo = arguments.to, hub_name(arguments.to)
    if not to.strip():  # an unset shell variable would name the current folder
        raise ValueError("TO is empty; expected a folder, or hf://OWNER/NAME")
    if repo is None and (hint := hub_hint(to)) and not Path(to).parent.is_dir():
        raise ValueError(f"there is no folder {str(Path(to).parent)!r} to make {to} in; make it first{hint}")
    if repo is None and (arguments.private or arguments.token is not None):
        name = "--private" if arguments.private else "--token"
        raise ValueError(f"{name} has no effect on the folder {to}; leave it out")
    path = find_run(arguments.run)
    run = open_run(str(path), arguments.recipe, "cpu")
    run.check_finished()
    tasks = open_recipe(arguments.recipe).tasks if arguments.recipe is not None else TASKS
    card = model_card(RunRecord.read(path, path.name, tasks, "cpu"), arguments.checkpoint, to)
    if repo is None:
        run.save_pretrained(user_path(to), card, arguments.checkpoint, overwrite=arguments.overwrite)
        which = f" of step {run.step(arguments.checkpoint):,}" if run.task.learns_by_steps else ""
        print(f"{to}: the model{which}")
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run.save_pretrained(folder, card, arguments.checkpoint)
        address = push_folder(
            folder, repo, private=arguments.private, token=arguments.token, overwrite=arguments.overwrite
        )
        print(address)
