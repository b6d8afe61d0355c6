"""Measure continuous convolutions on series: other rates, dropped samples, other kernels, depth, archive sets.

Command:   python recipes/continuous_series.py
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      see docs/studies/continuous_series.md
Score:     see docs/studies/continuous_series.md
Paper:     CKConv (arXiv 2102.02611), tables 4 to 7
Data:      ../shared/data/character_trajectories and ../shared/data/uea_ucr_small

Parts    rates     CharacterTrajectories trained on every, every 2nd, 4th, 8th sample, and tested on every 1st to 16th
         drops     the same with 30, 50 and 70 % of the samples missing in training and test
         kernels   the same with ReLU, LeakyReLU and Swish in the kernels' networks; a quarter of the epochs
         depth     the same with 1 to 8 blocks, of one width and of one size; a quarter of the epochs
         archive   small sets of the UEA and UCR archives on their own splits, all with one setting

Deviations: see recipes/character_trajectories.py. The paper's ablations of kernels and depth are on other data. At a
rate of 1/8 omega_0 is 12.59, as in the authors' published commands; the paper has 21.45. No test chose a setting.
"""

import dataclasses
import importlib.util
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro

from fredholm.models.series.ckcnn import CKCNN
from fredholm.tasks import SeriesLearning
from fredholm.training import Run, TrainingConfig, kept_result
from fredholm.training.kept_result import RESULT_FILE, read_result
from fredholm.training.progress import print_line
from fredholm.training.recipes import open_recipe
from fredholm.training.scoring import score_split

Part = Literal["rates", "drops", "kernels", "depth", "archive"]
PARTS: tuple[Part, ...] = Part.__args__
SEEDS = (0, 1, 2)
RATES = {"1": 21.45, "1/2": 21.45, "1/4": 21.45, "1/8": 12.59}
"""omega_0 for each sampling rate of training."""
TEST_RATES = ("1", "1/2", "1/4", "1/8", "1/16")
ACTIVATIONS = ("sine", "relu", "leaky_relu", "swish")
WIDTHS = {1: 52, 2: 30, 4: 19, 8: 12}
"""Channels with which a number of blocks has some 100,000 parameters."""
ARCHIVE = ("ItalyPowerDemand", "GunPoint", "ArrowHead", "OSULeaf", "BasicMotions", "JapaneseVowels", "PLAID")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Runs of the study, and the folder of the results."""

    out: Path = Path("runs/continuous_series")
    """Folder of the run folders, results.json and continuous_series.png. Finished runs are only read."""
    parts: tuple[Part, ...] = PARTS
    """Parts to run; tables and picture show all finished runs."""
    names: tuple[str, ...] | None = None
    """Settings of the parts to run, such as 1/2 or GunPoint; None: all."""
    seeds: tuple[int, ...] = SEEDS
    """Seeds, with a run for each."""
    archive: Path = Path("../shared/data/uea_ucr_small")
    """Folder with an .npz file per set; missing sets are skipped."""
    epochs: int | None = None
    """Upper limit of epochs, to shorten all runs; None: no limit."""
    draw: Path | None = None
    """Only redraw the picture from this results.json."""


class Job(NamedTuple):
    """One training run."""

    part: Part
    name: str
    seed: int

    def folder(self, out: Path) -> Path:
        """The run folder; an unchanged recipe has the folder of `fredholm train`."""
        if self.part == "drops" or self.name == "1":
            return out.parent / self._recipe() / f"seed-{self.seed}"
        name = self.name.replace("/", "-of-").replace(" ", "-").replace("%", "percent")
        return out / f"{self.part}-{name}-seed-{self.seed}".lower()

    def config(self, config: Config) -> Run.Config:
        """The recipe with the settings of this run."""
        base = _archive(config.archive / f"{self.name}.npz") if self.part == "archive" else self._letters()
        training = base.training
        if self.part in ("kernels", "depth"):
            training = dataclasses.replace(training, epochs=training.epochs // 4)
        if config.epochs is not None:
            training = dataclasses.replace(training, epochs=min(config.epochs, training.epochs))
        return dataclasses.replace(base, training=training, seed=self.seed)

    def _recipe(self) -> str:
        return "character_trajectories" + ("_" + self.name.split()[0] if self.part == "drops" else "")

    def _letters(self) -> Run.Config:
        base = open_recipe(self._recipe()).config
        task = base.task
        assert isinstance(task, SeriesLearning.Config)
        model = task.model
        if self.part == "rates":
            every = _every(self.name)
            task = dataclasses.replace(task, train_every=every, test_every=every)
            model = dataclasses.replace(model, omega_0=RATES[self.name])
        elif self.part == "kernels":
            activation: Any = self.name
            sines = {} if activation == "sine" else {"omega_0": CKCNN.Config.omega_0}  # others have no omega_0
            model = dataclasses.replace(model, activation=activation, **sines)
        elif self.part == "depth":
            blocks, channels = (int(word) for word in self.name.split()[::2])
            model = dataclasses.replace(model, depth=blocks, embed_dim=channels)
        return dataclasses.replace(base, task=dataclasses.replace(task, model=model))

    def tests(self) -> dict[str, dict[str, Any]]:
        """Tests of a trained model: settings of the task by the name of the test."""
        if self.part == "rates":
            return {rate: {"test_every": _every(rate)} for rate in TEST_RATES}
        return {"own": {}}


def names_of(part: Part, archive: Path) -> list[str]:
    """The names of a part's settings."""
    if part == "rates":
        return list(RATES)
    if part == "drops":
        return ["30 %", "50 %", "70 %"]
    if part == "kernels":
        return list(ACTIVATIONS)
    if part == "depth":
        wide = [(blocks, WIDTHS[2]) for blocks in WIDTHS]
        return [f"{blocks} blocks {channels} channels" for blocks, channels in dict.fromkeys([*wide, *WIDTHS.items()])]
    return [name for name in ARCHIVE if (archive / f"{name}.npz").is_file()]


def _every(rate: str) -> int:
    return int(rate.rpartition("/")[2])


def _archive(path: Path) -> Run.Config:
    """One setting for all sets, tuned to none of them: they are too small to choose on their training split."""
    return Run.Config(
        task=SeriesLearning.Config(
            valid_fraction=0.0,
            data=str(path),
            model=CKCNN.Config(embed_dim=30, depth=2, omega_0=20.0, dropout=0.1, pool="mean"),
        ),
        training=TrainingConfig(
            epochs=300,
            batch_size=16,
            learning_rate=1e-3,
            final_learning_rate=0.0,
            warmup_fraction=0.0,
            weight_decay=0.0,
            ema_decay=0.99,
            evaluate_every=300,
            evaluation_batch_size=128,
        ),
    )


def run(job: Job, config: Config) -> dict[str, Any]:
    """Trains and tests; a finished run is only read."""
    return kept_result(job.config(config), job.folder(config.out), lambda done: measure(job, done))


def measure(job: Job, done: Run) -> dict[str, Any]:
    """Accuracy of a trained run in each of the job's tests, in percent."""
    assert isinstance(done.task, SeriesLearning)
    model, training = done.model(), done.config.training
    tests = {}
    for name, settings in job.tests().items():
        task = dataclasses.replace(done.task.config, **settings).build(done.task.facts)
        found = score_split(
            task, "test", model, batch_size=training.evaluation_batch_size, device=done.device, dtype=training.dtype
        )
        tests[name] = 100 * found["accuracy"]
    print_line(f"{job.part} {job.name}, seed {job.seed}: {tests}")
    size = sum(p.numel() for p in model.parameters())
    return {**job._asdict(), "parameters": size, "tests": tests, "epochs": training.epochs}


def result_of(job: Job, out: Path) -> dict[str, Any] | None:
    """The result of a run; None if it is not finished."""
    path = job.folder(out)
    return read_result(path) if (path / RESULT_FILE).is_file() else None


def jobs(config: Config, parts: Sequence[Part] = PARTS) -> Iterator[Job]:
    """Runs of some parts, seed by seed."""
    for part in parts:
        for seed in config.seeds:
            for name in names_of(part, config.archive):
                if config.names is None or name in config.names:
                    yield Job(part, name, seed)


def spread(results: Sequence[dict[str, Any]], test: str) -> str:
    """Mean and standard deviation over seeds, in percent."""
    values = [r["tests"][test] for r in results]
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} +- {statistics.stdev(values):.2f}"


def print_results(results: Sequence[dict[str, Any]]) -> None:
    """Prints a line for every setting."""
    for part, name in dict.fromkeys((r["part"], r["name"]) for r in results):
        own = [r for r in results if (r["part"], r["name"]) == (part, name)]
        tests = ", ".join(
            f"{spread(own, test)} %" + (f" at {test}" if test != "own" else "") for test in own[0]["tests"]
        )
        print_line(
            f"{part:<8} {name:<24} {tests} ({len(own)} seeds, {own[0]['parameters']} parameters, "
            f"{own[0]['epochs']} epochs)"
        )


def draw_figure(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws accuracy against the rate of the test, with a line per rate of training."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    for rate, colour in zip(RATES, ("#000000", "#0072b2", "#009e73", "#d55e00"), strict=True):
        own = [r for r in results if (r["part"], r["name"]) == ("rates", rate)]
        if own:
            columns = [[r["tests"][test] for r in own] for test in TEST_RATES]
            places = range(len(TEST_RATES))
            axes.plot(places, [statistics.mean(c) for c in columns], "o-", color=colour, label=f"trained at {rate}")
            axes.fill_between(places, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.15)
    axes.set_xticks(range(len(TEST_RATES)), TEST_RATES)
    axes.set(title="One kernel at every rate: CharacterTrajectories", xlabel="rate of the test", ylabel="accuracy, %")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(config: Config) -> None:
    """Runs the parts, prints their tables and writes results.json and continuous_series.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("continuous_series: the figure needs matplotlib: pip install 'fredholm[viz]'")
    config.out.mkdir(parents=True, exist_ok=True)
    if config.draw is not None:
        results = json.loads(config.draw.read_text())
    else:
        torch.set_num_threads(1)
        for job in jobs(config, config.parts):
            run(job, config)
        everything = dataclasses.replace(config, names=None)
        found = (result_of(job, config.out) for job in jobs(everything))
        results = [result for result in found if result is not None]
        (config.out / "results.json").write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
    print_results(results)
    if any(r["part"] == "rates" for r in results):
        draw_figure(results, config.out / "continuous_series.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
