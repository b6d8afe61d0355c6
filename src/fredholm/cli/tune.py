"""`fredholm tune`: finds the fastest tiles of the fused kernels for a model on this GPU."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fredholm.cli.json_text import json_text
from fredholm.cli.open_run import RunPlace, open_run
from fredholm.cli.parsing import Flag, parse
from fredholm.evaluation import tune
from fredholm.evaluation.triton.machine import INTERPRETING
from fredholm.evaluation.triton.tuning import Tuned, tile_path
from fredholm.training.batches import EpochBatches
from fredholm.training.device import move
from fredholm.training.run import Run


@dataclass(frozen=True, kw_only=True)
class TuneArguments:
    """Measure on this GPU which tiles of the fused kernels are fastest for the model of a run.

    Every later run, prediction or script on this machine uses them. Results may change by rounding.
    """

    run: RunPlace
    """The run folder, or hf://OWNER/NAME, a model on the Hugging Face hub; its data must be where it was trained."""
    budget_s: float = 120.0
    """Seconds after which no further tiles are tried."""
    device: str = "auto"
    """Device: auto, cuda, cuda:1, ..."""
    recipe: str | None = None
    """FILE.py:FUNCTION, where the run's task is not one of the library but of that file."""
    json: Flag = False
    """Print a JSON list with one object per kind of launch."""


def run_command(argv: list[str]) -> None:
    """Runs `fredholm tune` with these arguments."""
    arguments = parse(TuneArguments, "tune", argv)
    if not 0 < arguments.budget_s < float("inf"):
        raise ValueError(f"--budget-s is {arguments.budget_s}; expected a positive number of seconds")
    run = open_run(arguments.run, arguments.recipe, arguments.device)
    if run.device.type != "cuda" and not INTERPRETING:
        raise ValueError(
            f"tiles are those of kernels on an NVIDIA GPU, and this would compute on {run.device}; run it on a machine "
            "with one, by --device cuda"
        )
    if not run.task.learns_by_steps:
        raise ValueError(f"{arguments.run} holds a model that is fitted in closed form, without fused kernels")

    def print_found(found: Tuned) -> None:
        if not arguments.json:
            print(found, flush=True)

    found = tune(_step_of(run), dtype=run.config.training.dtype, budget_s=arguments.budget_s, heard=print_found)
    if arguments.json:
        print(json_text([each.as_json() for each in found], indent=2))
    else:
        print(f"kept in {tile_path()}; a model that is running takes them when it is started again")


def _step_of(run: Run) -> Callable[[], list[Tensor]]:
    """Returns a function that computes the loss and gradients of the run's first batch, the same on each call."""
    task, numbers, device = run.task, run.config.training, run.device
    model = run.model().train().requires_grad_(True)
    batches = EpochBatches(task, numbers.batch_size, run.config.seed, 0)
    batch = move(batches.whole(0), device)
    autocast = torch.autocast(device.type, dtype=numbers.dtype, enabled=numbers.dtype != torch.float32)
    parameters = [p for p in model.parameters() if p.is_floating_point()]

    def step() -> list[Tensor]:
        torch.manual_seed(run.config.seed)  # for dropout and sampling
        with autocast:
            loss = task.loss(model, batch) / max(1, task.num_targets(batch))
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [loss, *(grad for grad in grads if grad is not None)]

    return step
