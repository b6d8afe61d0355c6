"""Compare kernels on point clouds and graphs: ITNets that differ in the kernel, against networks of each field.

Command:   python recipes/points_and_graphs.py
Hardware:  one core of an AMD EPYC for each process; float32
Time:      some hours of processor time on a machine with other work; not timed as a whole
Score:     accuracy on the test split, which is read once per run; rates and checkpoints are those that were best on the
           validation split: ModelNet10 89.5 % (low rank), MUTAG 83.6 %, ENZYMES 62.3 % (exact on edges), Cora 80.4 %
           (constant on edges); see docs/studies/points_and_graphs.md
"""

import dataclasses
import importlib.util
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import tyro

from fredholm.kernels import KernelInputs
from fredholm.models import (
    AdditiveAttentionConfig,
    AttentionConfig,
    ConstantConfig,
    EdgeConvolution,
    GraphStackConfig,
    ITNet,
    KernelConfig,
    LowRankConfig,
    MessagePassing,
    MLPConfig,
    OnEdgesConfig,
    PointPooling,
    SignalModel,
)
from fredholm.tasks import GraphLearning, NodeLearning, PointLearning
from fredholm.tasks.graphs import GraphInputs
from fredholm.tasks.graphs.batches import graphs_in
from fredholm.tasks.points.augmentation import CloudAugmentation
from fredholm.training import Run, TrainingConfig
from fredholm.training.kept_result import best_on_both, kept_result
from fredholm.training.progress import print_line

CLOUDS, CLOUD_PARTS, CORA = "ModelNet10", "ModelNet10, parts", "Cora"
EPOCHS = {CLOUDS: 12, CLOUD_PARTS: 6, "MUTAG": 40, "PROTEINS": 8, "ENZYMES": 30, CORA: 40}
"""Passes over the training data, the same for all sides of a data set."""
GRAPH_SETS = ("MUTAG", "PROTEINS", "ENZYMES")


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Data sets, models, and the folder of the runs."""

    data: Path = Path("../shared/data")
    """Folder of modelnet10_voxel, tudataset and planetoid."""
    sets: tuple[str, ...] = tuple(EPOCHS)
    """Data sets to compare on."""
    sides: tuple[str, ...] = ()
    """Names of the models to train; (): all."""
    out: Path = Path("runs/points_and_graphs")
    """Folder of the runs and of results.json."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs on ModelNet10 and Cora; the ablation of parts has only the first."""
    folds: tuple[int, ...] = tuple(range(10))
    """Folds of the graph data sets, each tested in a run of seed 0."""
    rates: tuple[float, ...] = (1e-3, 3e-3)
    """Peak learning rates; each side takes the one that is best on the validation split of its first run, the parts of
    ModelNet10 take the last."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.sets if name not in EPOCHS]:
            raise ValueError(f"no data set {unknown[0]!r}; expected some of {', '.join(EPOCHS)}")


Sides = dict[str, list[Run.Config]]
"""The runs of each model, one per seed or fold."""


def cloud_run(config: Config, seed: int, epochs: int, model: SignalModel.Config, **settings: Any) -> Run.Config:
    """A run on ModelNet10 with further settings of the task."""
    defaults: dict[str, Any] = {
        "data": str(config.data / "modelnet10_voxel"),
        "num_points": 512,
        "num_centres": 64,
        "augmentation": CloudAugmentation.Config(scale=(2 / 3, 3 / 2), jitter=0.01),
        "label_smoothing": 0.2,
    }
    task = PointLearning.Config(model=model, **defaults | settings)
    return Run.Config(task=task, training=training(config, epochs, batch_size=32, ema_decay=0.99), seed=seed)


def training(config: Config, epochs: int, **settings: Any) -> TrainingConfig:
    """Training settings of a run."""
    return TrainingConfig(epochs=epochs, learning_rate=config.rates[0], tensorboard=False, **settings)


def cloud_stack(kernel: KernelConfig, embed_dim: int = 64) -> ITNet.Config:
    """An ITNet for point clouds."""
    return ITNet.Config(embed_dim=embed_dim, depth=3, kernel=kernel, dropout=0.0, pool="max")


SIZES: dict[str, Any] = {"num_frequencies": 16, "sigma": 1.0}
LOW_RANK = LowRankConfig(rank=8, width=32, **SIZES)
EXACT = MLPConfig(width=16, head_shared=True, **SIZES)


def clouds(config: Config) -> Sides:
    """Kernels against pooling and edge convolutions, all with about 270,000 parameters."""
    plain = {"num_points": 256, "num_centres": None, "num_neighbours": 0, "position_frequencies": 0}
    sides: dict[str, tuple[SignalModel.Config, dict[str, Any]]] = {
        "ITNet, low rank": (cloud_stack(LOW_RANK), {}),
        "ITNet, attention": (cloud_stack(AttentionConfig(), embed_dim=80), {}),
        "pooling": (PointPooling.Config(widths=(64, 128, 640)), plain),
        "edge convolution": (EdgeConvolution.Config(widths=(64, 64, 128, 448)), {}),
    }
    epochs = EPOCHS[CLOUDS]
    return {
        name: [cloud_run(config, seed, epochs, model, **settings) for seed in config.seeds]
        for name, (model, settings) in sides.items()
    }


def cloud_parts(config: Config) -> Sides:
    """The exact kernel without some of its inputs (ITNet, table 5), and the encoder with others (table 21)."""
    off = dict.fromkeys([field.name for field in dataclasses.fields(KernelInputs)], False)
    content = {"query_content": True, "key_content": True, "product": True}
    position = {"query_position": True, "key_position": True, "relative_position": True, "distance": True}
    kernels = {
        "exact, all inputs": EXACT,
        "exact, content alone": MLPConfig(width=16, head_shared=True, inputs=KernelInputs(**off | content)),
        "exact, position alone": dataclasses.replace(EXACT, inputs=KernelInputs(**off | position)),
        "exact, without relative parts": dataclasses.replace(
            EXACT, inputs=KernelInputs(relative_position=False, distance=False)
        ),
    }
    epochs, first = EPOCHS[CLOUD_PARTS], config.seeds[0]
    found = {name: [cloud_run(config, first, epochs, cloud_stack(kernel))] for name, kernel in kernels.items()}
    for coordinates, settings in {"Fourier": {}, "raw": {"position_frequencies": 0}}.items():
        for count in (0, 8, 16, 32):
            run = cloud_run(config, first, epochs, cloud_stack(LOW_RANK), num_neighbours=count, **settings)
            found[f"{coordinates}, K = {count}"] = [run]
    return found


def graph_stack(kernel: KernelConfig, embed_dim: int = 64, **settings: Any) -> ITNet.Config:
    """An ITNet for graphs."""
    sizes: dict[str, Any] = {"embed_dim": embed_dim, "depth": 3, "expansion": 2}
    return ITNet.Config(kernel=kernel, **sizes | {"dropout": 0.1, "drop_path": 0.0, "pool": "mean"} | settings)


def graphs(config: Config, data: str) -> Sides:
    """Kernels along edges and between all nodes against message passing, all with about 110,000 parameters.

    On the first two folds of ENZYMES the sum over edges was better than the mean on the validation split.
    """
    exact = MLPConfig(width=32, num_frequencies=8, sigma=0.3, head_shared=True)
    sides: dict[str, SignalModel.Config] = {
        "ITNet, exact on edges": graph_stack(OnEdgesConfig(kernel=exact, long_range=None, edge_mass="sum")),
        "ITNet, attention": graph_stack(AttentionConfig()),
        "GCN": MessagePassing.Config(layer="gcn", embed_dim=184),
        "GIN": MessagePassing.Config(layer="gin", embed_dim=128),
        "GAT": MessagePassing.Config(layer="gat", embed_dim=184),
    }

    def run(model: SignalModel.Config, fold: int) -> Run.Config:
        task = GraphLearning.Config(
            data=str(config.data / "tudataset" / f"{data}.npz"),
            num_folds=10,
            fold=fold,
            model=GraphStackConfig(stack=model),
        )
        numbers: dict[str, Any] = {"batch_size": 32, "ema_decay": 0.95, "evaluation_batch_size": 128}
        return Run.Config(task=task, training=training(config, EPOCHS[data], **numbers))

    return {name: [run(model, fold) for fold in config.folds] for name, model in sides.items()}


def cora(config: Config) -> Sides:
    """Kernels along citations against message passing.

    The settings of the first side are the best of 26 by the last validation accuracy, mean of three seeds; those of GCN
    are the best of 7, and GIN and GAT share them.
    """
    inputs = GraphInputs(scale="rows", num_walks=0, degrees=False, positions="none", feature_dropout=0.5)
    same: dict[str, Any] = {"depth": 2, "expansion": 1, "dropout": 0.5, "pool": "none", "diffusion": 0.9}
    passing: dict[str, Any] = {"depth": 2, "residual": False, "dropout": 0.5, "pool": "none"}
    sides: dict[str, SignalModel.Config] = {
        "ITNet, constant on edges": graph_stack(
            OnEdgesConfig(kernel=ConstantConfig(), long_range=None, edge_mass="symmetric"), **same
        ),
        "ITNet, additive on edges": graph_stack(
            OnEdgesConfig(kernel=AdditiveAttentionConfig(), long_range=None), **same
        ),
        "ITNet, attention": graph_stack(AttentionConfig(), **same),
        "GCN": MessagePassing.Config(layer="gcn", **passing),
        "GIN": MessagePassing.Config(layer="gin", **passing),
        "GAT": MessagePassing.Config(layer="gat", **passing),
    }

    def run(model: SignalModel.Config, seed: int) -> Run.Config:
        task = NodeLearning.Config(data=str(config.data / "planetoid" / "cora.npz"), inputs=inputs, model=model)
        numbers: dict[str, Any] = {
            "batch_size": 140,
            "weight_decay": 4.0,
            "ema_decay": 0.9,
            "evaluation_batch_size": 1000,
        }
        # outputs that spread along edges are learnt sooner
        epochs = EPOCHS[CORA] if isinstance(model, ITNet.Config) else 5 * EPOCHS[CORA] // 2
        return Run.Config(task=task, training=training(config, epochs, **numbers), seed=seed)

    return {name: [run(model, seed) for seed in config.seeds] for name, model in sides.items()}


def sides_of(config: Config, data: str) -> Sides:
    """The runs on a data set."""
    makers: dict[str, Callable[[Config], Sides]] = {CLOUDS: clouds, CLOUD_PARTS: cloud_parts, CORA: cora}
    found = graphs(config, data) if data in GRAPH_SETS else makers[data](config)
    return {name: runs for name, runs in found.items() if not config.sides or name in config.sides}


def measured(run: Run) -> dict[str, float]:
    """Accuracy on both splits at the best checkpoint, number of parameters, and for graphs `changed_by_signs`.

    Clouds are predicted by five votes.
    """
    votes = {"votes": 5} if isinstance(run.task, PointLearning) else {}
    found = {split: metrics["accuracy"] for split, metrics in best_on_both(run, **votes).items()}
    if isinstance(run.task, GraphLearning):
        found["changed by signs"] = changed_by_signs(run)
    return found | {"parameters": sum(p.numel() for p in run.model().parameters())}


def reached(rates: Sequence[float], place: Path, runs: list[Run.Config]) -> dict[str, Any]:
    """The results of a side's runs at the best of these rates."""

    def at(rate: float, number: int) -> dict[str, Any]:
        run = runs[number]
        run = dataclasses.replace(run, training=dataclasses.replace(run.training, learning_rate=rate))
        return kept_result(run, place / f"{rate:g}" / f"{number}", measured)

    rate = max(rates, key=lambda rate: at(rate, 0)["valid"])
    return {"rate": rate, "runs": [at(rate, number) for number in range(len(runs))]}


def changed_by_signs(run: Run, draws: int = 5) -> float:
    """Fraction of validation graphs whose predicted class changes with random signs of their Laplacian positions."""
    task, model, generator = run.task, run.model("best"), torch.Generator().manual_seed(0)
    assert isinstance(task, GraphLearning)
    changed, count = 0, 0
    for indices in torch.arange(task.num_held_out("valid")).split(64):
        batch = task.held_out_batch("valid", indices)
        known = model(graphs_in(batch)).argmax(-1)
        for _ in range(draws):
            signs = task.config.inputs.draw_signs(len(indices), batch["pos"].shape[2], generator)
            other = model(graphs_in(batch | {"pos": batch["pos"] * signs[:, None]})).argmax(-1)
            changed, count = changed + int((other != known).sum()), count + len(known)
    return changed / count


def summary(found: dict[str, Any], split: str) -> str:
    """Mean and standard deviation over the runs, in percent."""
    values = [100 * each[split] for each in found["runs"]]
    spread = f" +- {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{split} {statistics.mean(values):.1f}{spread}"


def draw_figure(report: dict[str, dict[str, Any]], path: Path) -> None:
    """Draws a panel per data set: every side's runs and their mean on the test split."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(len(report), 3)
    lines = math.ceil(len(report) / columns)
    longest = max(map(len, report.values()))
    size = 4.2 * columns, lines * (1.1 + 0.25 * longest)
    figure, panels = plt.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in panels.flat[len(report) :]:
        axes.set_visible(False)
    for axes, (data, sides) in zip(panels.flat, report.items(), strict=False):
        for place, (name, found) in enumerate(sides.items()):
            values = [100 * each["test"] for each in found["runs"]]
            colour = "#0072b2" if name.startswith(("ITNet", "exact", "Fourier", "raw")) else "#d55e00"
            axes.plot(values, [place] * len(values), "o", color=colour, markersize=4, alpha=0.4)
            axes.plot(statistics.mean(values), place, "|", color=colour, markersize=14, markeredgewidth=2)
        axes.set(title=data, xlabel="test accuracy, %", yticks=range(len(sides)))
        axes.set_yticklabels(list(sides))
        axes.set_ylim(len(sides) - 0.5, -0.5)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(config: Config) -> None:
    """Runs the comparison, prints its table and writes results.json and points_and_graphs.png.

    Results of other sides in the folder's results.json are kept, and drawn too.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("points_and_graphs: the figure needs matplotlib: pip install 'fredholm[viz]'")
    config.out.mkdir(parents=True, exist_ok=True)
    results = config.out / "results.json"
    report: dict[str, dict[str, Any]] = json.loads(results.read_text()) if results.is_file() else {}
    for data in config.sets:
        report.setdefault(data, {})
        for name, runs in sides_of(config, data).items():
            place = config.out / data.replace(", ", "-") / name.replace(", ", "-").replace(" ", "_")
            found = reached(config.rates[-1:] if data == CLOUD_PARTS else config.rates, place, runs)
            report[data][name] = found
            line = f"{data}, {name}, rate {found['rate']:g}: {summary(found, 'valid')}, {summary(found, 'test')}"
            if "changed by signs" in found["runs"][0]:
                line += f", {summary(found, 'changed by signs')} %"
            print_line(line)
            results.write_text(json.dumps(report, indent=1))
    draw_figure(report, config.out / "points_and_graphs.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
