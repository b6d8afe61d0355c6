"""Measure the cost of 8-bit weights for finished runs in the metric of their task.

Command:   python recipes/quantised.py runs/digits/seed-0 runs/linearise/gpt2
Data:      that of the runs, of images or texts
Hardware:  one thread of a two-core AMD EPYC, shared with other work
Time:      seconds per run
Score:     test split. The demo, seed 0: 98.33 % accuracy in float32, with weights, and with weights and signals of 8
           bits. The GPT-2 of recipes/linearise.py: 2.8493 bits a byte in float32, 2.8499 with weights, 2.8508 with
           embeddings too, 2.8515 with weights and signals

The weights of linear maps are found on 32 examples of the training split.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import tyro

from fredholm.pretrained import quantise
from fredholm.tasks import ImageLearning, LanguageModelling
from fredholm.training import Run
from fredholm.training.progress import print_line
from fredholm.training.scoring import score_split

KINDS: dict[str, dict[str, Any]] = {
    "weights": {},
    "weights and embeddings": {"embeddings": True},
    "weights and signals": {"activations": True},
}
READ = {ImageLearning: "images", LanguageModelling: "inputs"}
"""The entry of a batch that the models of a task read."""


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Runs to quantise, and the size of weights."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of finished runs on images or texts."""
    min_size: int = 1000
    """Smallest number of entries of a weight that is quantised."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("quantised: name at least one folder of a run")


def scores(run: Run, min_size: int) -> dict[str, dict[str, float]]:
    """The test metrics in float32 and in every kind of quantisation, with bytes of parameters and errors."""
    model, task = run.model(), run.task
    if type(task) not in READ:
        raise SystemExit(f"quantised: expected a run on images or texts; got one of {type(task).__name__}")
    batches = torch.arange(min(32, task.num_train)).split(8)
    data = [task.train_batch(batch, torch.Generator().manual_seed(0))[READ[type(task)]] for batch in batches]

    def test(module: torch.nn.Module) -> dict[str, float]:
        return score_split(task, "test", module, batch_size=16, device=torch.device("cpu"), dtype=torch.float32)

    found = {"float32": test(model)}
    for kind, settings in KINDS.items():
        new, report = quantise(model, data, min_size=min_size, **settings)
        own = {"bytes before": report.bytes_before, "bytes after": report.bytes_after, "error": report.error}
        found[kind] = test(new) | own
    return found


def main(config: Config) -> None:
    """Prints the scores of every run."""
    torch.set_num_threads(1)
    for path in config.runs:
        print_line(str(path))
        for kind, metrics in scores(Run(path, device="cpu"), config.min_size).items():
            print_line(f"  {kind}: " + ", ".join(f"{name} {value:.6g}" for name, value in metrics.items()))


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
