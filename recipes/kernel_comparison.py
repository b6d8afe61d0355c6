"""Compare twelve kernels on nine data sets under one protocol: `fredholm compare` on each, three seeds.

Command:   python -m recipes.kernel_comparison
Hardware:  two cores of an AMD EPYC, one process per core; float32
Time:      some 8 hours of two cores, half of them shared with other work; a call resumes an interrupted one
Score:     see docs/studies/kernel_comparison.md
Data:      the folders of ../shared/data that `SETS` names

The network, its width, its dropout and its batches are those recommended for the data, with the epochs of `SETS`, the
kernel in place of the default's and as many parameters as with attention. Learning rates are searched, and the best row
is chosen, on the validation split; the test split is read once per final run. Kernels that would take most of the time
are left out of a set by name.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import tyro

from fredholm.comparison import Comparison, Request, compare, read_comparison
from fredholm.comparison.comparison import COMPARISON
from fredholm.comparison.kernels import KERNELS_BY_NAME
from fredholm.comparison.table import text_table
from fredholm.tasks import (
    GraphLearning,
    ImageLearning,
    ImageTextLearning,
    OperatorLearning,
    PointLearning,
    SentenceLearning,
    SeriesLearning,
)
from fredholm.tasks.task import Task
from fredholm.training import Run, TrainingConfig
from fredholm.training.progress import print_line
from recipes import nlvr


class DataSet(NamedTuple):
    """A data set with its task and the length of its runs."""

    task: type[Task.Config]
    path: str
    """Path in the folder of data; NLVR is prepared from it by `recipes/nlvr.py`."""
    epochs: int
    """Epochs of a final run."""
    too_slow: tuple[str, ...] = ()
    """Kernels that are left out."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings of the task that differ from its defaults."""


SETS: dict[str, DataSet] = {
    "digits": DataSet(ImageLearning.Config, "digits", 32),
    "ENZYMES": DataSet(GraphLearning.Config, "tudataset/ENZYMES.npz", 31),
    "SST-2": DataSet(
        SentenceLearning.Config, "sentence_classification/stsa.binary", 5, ("mlp",), (("columns", ("label", "text")),)
    ),
    "Darcy": DataSet(OperatorLearning.Config, "neuralop_pde/neuralop_pde.npz", 16, ("mlp",)),
    "PhysioNet 2012": DataSet(SeriesLearning.Config, "physionet2012", 6, ("mlp",), (("bin", 1.0),)),
    "NLVR": DataSet(ImageTextLearning.Config, "nlvr", 6, ("mlp", "continuous-convolution")),
    "CharacterTrajectories": DataSet(SeriesLearning.Config, "character_trajectories", 8, ("mlp",)),
    "CIFAR-10": DataSet(ImageLearning.Config, "cifar10_subset/cifar10_11k.npz", 6),
    "ModelNet10": DataSet(PointLearning.Config, "modelnet10_voxel", 5, ("mlp", "continuous-convolution")),
}


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Data sets and kernels to compare, and the folder of the comparisons."""

    data: Path = Path("../shared/data")
    sets: tuple[str, ...] = tuple(SETS)
    """Data sets; results of other sets stay in results.json."""
    kernels: tuple[str, ...] = tuple(KERNELS_BY_NAME)
    out: Path = Path("runs/kernel_comparison")
    """Folder of the comparisons, of results.json and of kernel_comparison.png."""
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int | None = None
    """Epochs of a final run, in place of those of the data set."""
    processes: int | None = None
    """Parallel processes. Default: one per core."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.sets if name not in SETS]:
            raise ValueError(f"no data set {unknown[0]!r}; expected some of {', '.join(SETS)}")


def task_config(config: Config, name: str) -> Task.Config:
    """The task of a data set."""
    chosen = SETS[name]
    path = str(config.data / chosen.path)
    if chosen.task is ImageTextLearning.Config:
        path = str(nlvr.prepared(nlvr.Config(data=config.data / chosen.path, out=config.out)))
    elif not (config.data / chosen.path.partition("/")[0]).exists():
        path = chosen.path  # a set that comes with a library
    return chosen.task(data=path, **dict(chosen.settings))


def kernels(config: Config, name: str) -> tuple[str, ...]:
    """The kernels that are not too slow on a data set."""
    return tuple(kernel for kernel in config.kernels if kernel not in SETS[name].too_slow)


def request(config: Config, name: str) -> Request:
    """The request for the comparison on a data set."""
    task, epochs = task_config(config, name), config.epochs or SETS[name].epochs
    stacked = task.with_stack(task.stack)
    usual = stacked.recommended("small").schedule.adjusted(epochs=epochs)
    training = TrainingConfig(tensorboard=False, device="cpu", batch_size=usual.batch_size, ema_decay=usual.ema_decay)
    kept_dropout = ("task.model.dropout",) if isinstance(task, ImageLearning.Config) else ()
    return Request(
        run=Run.Config(task=stacked, training=training),
        given=("training.batch_size", "training.ema_decay", *kept_dropout),
        default=Run.Config(task=task, training=training),
        kernels=kernels(config, name),
        seeds=config.seeds,
        minutes=None,
        epochs=epochs,
    )


def summary(found: Comparison, too_slow: Sequence[str]) -> dict[str, Any]:
    """The results of a comparison that the study keeps."""
    rows = {
        row.name: {
            "valid": [run.valid for run in row.runs],
            "test": [run.test for run in row.runs],
            "parameters": row.parameters,
            "rate": row.learning_rate,
            "seconds per step": row.seconds_per_step,
            "differs from best": row.differs_from_best,
        }
        for row in found.rows
    }
    reasons = {row.name: row.reason for row in found.rows if row.reason}
    reasons |= {each.name: each.reason for each in found.left_out}
    return {
        "metric": dataclasses.asdict(found.objective),
        "examples": [found.num_train, found.num_valid, found.num_test],
        "epochs": found.budget.epochs,
        "seeds": found.seeds,
        "machine": found.machine,
        "best": found.best,
        "rows": rows,
        "baselines": {each.name: {"valid": each.valid, "test": each.test} for each in found.baselines},
        "left out": reasons | dict.fromkeys(too_slow, "takes too long"),
    }


def table(report: dict[str, dict[str, Any]]) -> list[str]:
    """A Markdown table with a column per data set: test metric, mean ± deviation; the chosen row is bold."""
    lines = ["| | " + " | ".join(report) + " |", "|---" * (len(report) + 1) + "|"]

    def cell(values: Sequence[float | None], percent: bool) -> str:
        known = [(100.0 if percent else 1.0) * value for value in values if value is not None]
        if not known:
            return "–"
        spread = f" ± {statistics.stdev(known):.{1 if percent else 4}f}" if len(known) > 1 else ""
        return f"{statistics.mean(known):.{1 if percent else 4}f}{spread}"

    for name in (*KERNELS_BY_NAME, "default"):
        cells = list[str]()
        for found in report.values():
            text = cell(found["rows"].get(name, {"test": []})["test"], found["metric"]["percent"])
            cells.append(f"**{text}**" if name == found["best"] else text)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for name in dict.fromkeys(name for found in report.values() for name in found["baselines"]):
        values = [found["baselines"].get(name, {"test": None})["test"] for found in report.values()]
        texts = [
            cell([value], found["metric"]["percent"]) for value, found in zip(values, report.values(), strict=True)
        ]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return lines


def draw(report: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws a panel per data set: the test metric of every run, means, and the best baseline as a line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [*KERNELS_BY_NAME, "default"]
    columns = min(len(report), 3)
    lines = math.ceil(len(report) / columns)
    size = 1.4 + 3.2 * columns, 3.4 * lines
    figure, panels = plt.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False, sharey=True)
    for axes in panels.flat[len(report) :]:
        axes.set_visible(False)
    for axes, (data, found) in zip(panels.flat, report.items(), strict=False):
        scale = 100.0 if found["metric"]["percent"] else 1.0
        for place, name in enumerate(names):
            values = [scale * each for each in found["rows"].get(name, {"test": []})["test"] if each is not None]
            if not values:
                axes.text(0.5, place, "left out", transform=axes.get_yaxis_transform(), color="gray", **CENTRED)
                continue
            colour = "#009e73" if name == found["best"] else "#555555" if name == "default" else "#0072b2"
            axes.plot(values, [place] * len(values), "o", color=colour, markersize=4, alpha=0.5)
            axes.plot(sum(values) / len(values), place, "|", color=colour, markersize=14, markeredgewidth=2)
        known = [each for each in found["baselines"].values() if each["valid"] is not None]
        if known:
            choose = max if found["metric"]["maximise"] else min
            best = choose(known, key=lambda each: each["valid"])
            axes.axvline(scale * best["test"], color="#d55e00", linestyle="--", linewidth=1)
        metric = found["metric"]["metric"].replace("_", " ") + (", %" if scale == 100 else "")
        axes.set(title=data, xlabel=f"test {metric}", yticks=range(len(names)))
        axes.set_yticklabels(names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}


def main(config: Config) -> None:
    """Compares on every data set, and rewrites results.json and the picture after each."""
    config.out.mkdir(parents=True, exist_ok=True)
    results = config.out / "results.json"
    report: dict[str, dict[str, Any]] = json.loads(results.read_text()) if results.is_file() else {}
    for name in config.sets:
        folder = config.out / name.replace(" ", "_")
        if (folder / COMPARISON).is_file() and read_comparison(folder).is_complete:
            found = read_comparison(folder)
        else:
            print_line(f"== {name}")
            found = compare(request(config, name), folder, resume=True, processes=config.processes)
        for line in text_table(found):
            print_line(line)
        report[name] = summary(found, SETS[name].too_slow)
        report = {each: report[each] for each in SETS if each in report}
        results.write_text(json.dumps(report, indent=1) + "\n")
        draw(report, config.out / "kernel_comparison.png")
    for line in table(report):
        print_line(line)


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
