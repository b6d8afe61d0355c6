"""Compare the default model on the UEA and UCR archives with MiniRocket, Hydra and nearest neighbours.

Command:   pip install aeon
           python recipes/series_archives.py
           python recipes/series_archives.py --cross-validate   (the check of the filter bank's settings)
Hardware:  one core of an AMD EPYC, shared with other work; float32; aeon 1.6.0
Time:      some seconds per set and seed for the default, up to minutes for nearest neighbours
Score:     see docs/studies/series_archives.md
Data:      ../shared/data/uea_ucr_small, or others by --data: .npz files with a split, or folders of .ts pairs

Sides    filter_bank     this library's default, fitted as by `fredholm train series`
         ckcnn           the network of CKConv, trained as in recipes/continuous_series.py on archives; slow
         minirocket      aeon's MiniRocket at its defaults; series of several lengths are padded with zeros
         hydra           aeon's Hydra, likewise
         multirocket_hydra   aeon's MultiRocket and Hydra together, likewise
         dtw             1 nearest neighbour by dynamic time warping within 10 % of the length (aeon)

Nothing was chosen by a test split: see the study for the cross-validation on training splits.
"""

import dataclasses
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
import tyro

from fredholm.models import CKCNN, FilterBank, RidgeHead
from fredholm.tasks import SeriesLearning
from fredholm.tasks.series import SeriesSet
from fredholm.tasks.series.batches import series_of
from fredholm.tasks.splits.stratified_split import stratified_folds
from fredholm.tasks.targets import ClassTarget
from fredholm.training.progress import print_line
from fredholm.training.random_state import seed_everything

Side = Literal["filter_bank", "ckcnn", "minirocket", "hydra", "multirocket_hydra", "dtw"]
TITLES: dict[Side, str] = {
    "filter_bank": "filter bank (default)",
    "ckcnn": "CKCNN",
    "minirocket": "MiniRocket",
    "hydra": "Hydra",
    "multirocket_hydra": "MultiRocket-Hydra",
    "dtw": "1-NN DTW",
}
CPU = torch.device("cpu")


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Data sets, sides, and the folder of the results."""

    data: tuple[Path, ...] = (Path("../shared/data/uea_ucr_small"),)
    """.npz files with a split, folders of such files, or folders of a set in the format of `fredholm train series`."""
    sides: tuple[Side, ...] = ("filter_bank", "minirocket", "hydra", "multirocket_hydra", "dtw")
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds, with a run for each; nearest neighbours are not random and run once."""
    out: Path = Path("runs/series_archives")
    """Folder of results.json and series_archives.png; finished results are only read."""
    epochs: int = 300
    """Epochs of the CKCNN."""
    cross_validate: bool = False
    """Only compare variants of the filter bank by cross-validation on the training splits; no test split is read."""


VARIANTS: dict[str, FilterBank.Config] = {
    "default": FilterBank.Config(),
    "without groups": FilterBank.Config(num_groups=0),
    "without thresholds": FilterBank.Config(num_thresholds=0),
    "without differences": FilterBank.Config(differences=False),
    "half of both": FilterBank.Config(num_thresholds=24, num_groups=32),
}
FOLDS = 3


def sets_of(data: Sequence[Path]) -> list[Path]:
    """The data sets: files, files of folders in the order of their names, and folders without .npz files."""
    for path in data:
        if not path.exists():
            raise SystemExit(f"series_archives: {path} does not exist; pass --data FILE_OR_FOLDER")
    return [file for path in data for file in (sorted(path.glob("*.npz")) or [path])]


def filter_bank(path: Path, seed: int, config: Config) -> float:
    """Test accuracy of the default filter bank."""
    seed_everything(seed)
    task = SeriesLearning.Config(data=str(path), model=FilterBank.Config()).build()
    model = task.model()
    task.initialise(model, CPU)
    return _accuracy(task, model)


def ckcnn(path: Path, seed: int, config: Config) -> float:
    """Test accuracy of a CKCNN after the last epoch, with one setting for all sets."""
    network = CKCNN.Config(embed_dim=30, depth=2, omega_0=20.0, dropout=0.1, pool="mean")
    seed_everything(seed)
    task = SeriesLearning.Config(data=str(path), model=network, valid_fraction=0.0).build()
    model, size = task.model(), 16
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps = config.epochs * math.ceil(task.num_train / size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(config.epochs):
        for indices in torch.randperm(task.num_train).split(size):
            loss = task.loss(model, task.train_batch(indices, torch.Generator())) / len(indices)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return _accuracy(task, model)


def cross_validated(path: Path, seed: int, variant: FilterBank.Config) -> tuple[float, float]:
    """Cross-validated accuracy on the training split by heads fitted to one third of it, and to two thirds.

    Each third of three divisions into thirds serves once. Thresholds are fitted to the whole training split.
    """
    seed_everything(seed)
    task = SeriesLearning.Config(data=str(path), model=variant).build()
    model = task.model()
    assert isinstance(model, FilterBank)
    task.initialise(model, CPU)
    train = task.splits.train
    assert isinstance(task.target, ClassTarget)
    assert train.answers is not None
    labels = train.answers.values
    batches = [task.train_batch(indices, torch.Generator()) for indices in torch.arange(len(train)).split(64)]
    features = torch.cat([model.features(series_of(batch)) for batch in batches])
    found: tuple[list[float], list[float]] = ([], [])
    for division in range(3):
        for third in stratified_folds(train.names, labels.tolist(), FOLDS, division):
            is_third = torch.isin(torch.arange(len(train)), torch.tensor(third))
            for accuracies, used in zip(found, (is_third, ~is_third), strict=True):
                head = RidgeHead(features.shape[1], task.target.num_outputs, further=model.head.blocks[1:])
                head.fit(features[used], labels[used], task.target, equal_in_doubt=True)
                right = head(features[~used]).argmax(-1) == labels[~used]
                accuracies.append(float(right.float().mean()))
    return statistics.mean(found[0]), statistics.mean(found[1])


def compare_variants(config: Config) -> None:
    """Prints a line per variant: accuracy with one and with two thirds of each training split, and the means."""
    paths = sets_of(config.data)
    print_line(f"{'':<22}" + "".join(f"{path.stem:>18}" for path in paths) + f"{'mean':>18}")
    for name, variant in VARIANTS.items():
        pairs = [
            [
                statistics.mean(values)
                for values in zip(*(cross_validated(path, s, variant) for s in config.seeds), strict=True)
            ]
            for path in paths
        ]
        pairs.append([statistics.mean(values) for values in zip(*pairs, strict=True)])
        print_line(f"{name:<22}" + "".join(f"{100 * few:>10.2f} {100 * many:.2f}".rjust(18) for few, many in pairs))


@torch.no_grad()
def _accuracy(task: SeriesLearning, model: torch.nn.Module) -> float:
    model.eval()
    metrics = {"accuracy": task.metrics()["accuracy"], "loss": task.metrics()["loss"]}
    for indices in torch.arange(task.num_held_out("test")).split(64):
        task.score(model, task.held_out_batch("test", indices), metrics)
    return float(metrics["accuracy"].compute())


def minirocket(path: Path, seed: int, config: Config) -> float:
    """Test accuracy of aeon's classifier."""
    from aeon.classification.convolution_based import (  # pyright: ignore[reportMissingImports]  (a peer that is installed apart)
        MiniRocketClassifier,
    )

    return _peer(MiniRocketClassifier(random_state=seed), path, is_padded=True)


def hydra(path: Path, seed: int, config: Config) -> float:
    """See `minirocket`."""
    from aeon.classification.convolution_based import (  # pyright: ignore[reportMissingImports]  (a peer that is installed apart)
        HydraClassifier,
    )

    return _peer(HydraClassifier(random_state=seed), path, is_padded=True)


def multirocket_hydra(path: Path, seed: int, config: Config) -> float:
    """See `minirocket`."""
    from aeon.classification.convolution_based import (  # pyright: ignore[reportMissingImports]  (a peer that is installed apart)
        MultiRocketHydraClassifier,
    )

    return _peer(MultiRocketHydraClassifier(random_state=seed), path, is_padded=True)


def dtw(path: Path, seed: int, config: Config) -> float:
    """See `minirocket`; series keep their lengths."""
    from aeon.classification.distance_based import (  # pyright: ignore[reportMissingImports]  (a peer that is installed apart)
        KNeighborsTimeSeriesClassifier,
    )

    peer = KNeighborsTimeSeriesClassifier(distance="dtw", distance_params={"window": 0.1}, n_neighbors=1)
    return _peer(peer, path, is_padded=False)


def _peer(peer: Any, path: Path, *, is_padded: bool) -> float:
    splits = SeriesLearning.Config(data=str(path)).build().splits
    assert splits.test is not None
    longest = max(int(split.lengths.max()) for split in (splits.train, splits.test))
    (train, train_labels), (test, test_labels) = (
        _arrays(split.in_memory(), longest if is_padded else None) for split in (splits.train, splits.test)
    )
    peer.fit(train, train_labels)
    return float((peer.predict(test) == test_labels).mean())


def _arrays(series: SeriesSet, longest: int | None) -> tuple[Any, np.ndarray]:
    """Values and labels: `(C, T)` arrays of varying length, or one array `(n, C, T)` padded with zeros."""
    assert series.answers is not None
    values, lengths = series.values.nan_to_num(0.0).double(), series.lengths.tolist()
    labels = series.answers.values.numpy()
    if longest is None:
        return [one[:n].T.contiguous().numpy() for one, n in zip(values, lengths, strict=True)], labels
    wide = torch.nn.functional.pad(values, (0, 0, 0, longest - values.shape[1]))
    return wide.transpose(1, 2).contiguous().numpy(), labels


RUN: dict[Side, Callable[[Path, int, Config], float]] = {
    "filter_bank": filter_bank,
    "ckcnn": ckcnn,
    "minirocket": minirocket,
    "hydra": hydra,
    "multirocket_hydra": multirocket_hydra,
    "dtw": dtw,
}


def run(config: Config) -> list[dict[str, Any]]:
    """Runs the missing results, and returns all results of the folder."""
    file = config.out / "results.json"
    results: list[dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else []
    done = {(r["set"], r["side"], r["seed"]) for r in results}
    for path in sets_of(config.data):
        for side in config.sides:
            for seed in config.seeds if side != "dtw" else (0,):
                if (path.stem, side, seed) in done:
                    continue
                start = time.process_time()
                accuracy = RUN[side](path, seed, config)
                seconds = time.process_time() - start
                results.append(
                    {"set": path.stem, "side": side, "seed": seed, "accuracy": accuracy, "seconds": round(seconds, 1)}
                )
                print_line(f"{path.stem}, {TITLES[side]}, seed {seed}: {100 * accuracy:.2f} % in {seconds:.0f} s")
                file.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
    return results


def table_of(results: Sequence[dict[str, Any]]) -> dict[str, dict[Side, float]]:
    """Mean accuracy over seeds by set and side, for the sets with results of all sides."""
    sides: list[Side] = [side for side in TITLES if any(r["side"] == side for r in results)]
    table: dict[str, dict[Side, float]] = {}
    for name in dict.fromkeys(r["set"] for r in results):
        own: dict[Side, list[float]] = {
            side: [r["accuracy"] for r in results if (r["set"], r["side"]) == (name, side)] for side in sides
        }
        if all(own.values()):
            table[name] = {side: statistics.mean(values) for side, values in own.items()}
    return table


def mean_ranks(table: dict[str, dict[Side, float]]) -> dict[Side, float]:
    """Mean rank of each side over the sets, 1 for the best accuracy; ties share their mean rank."""
    ranks: dict[Side, list[float]] = {}
    for row in table.values():
        for side, value in row.items():
            above, equal = (sum(test(v) for v in row.values()) for test in (value.__lt__, value.__eq__))
            ranks.setdefault(side, []).append(above + (equal + 1) / 2)
    return {side: statistics.mean(values) for side, values in ranks.items()}


def critical_difference(num_sides: int, num_sets: int) -> float:
    """Critical difference of mean ranks at 5 %, by the Nemenyi test (Demsar, 2006)."""
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(0.95, num_sides, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(num_sides * (num_sides + 1) / (6 * num_sets))


def print_results(table: dict[str, dict[Side, float]]) -> None:
    """Prints a line per set, the means, and the mean ranks."""
    if not table:
        return
    sides = list(next(iter(table.values())))
    print_line(f"{'':<24}" + "".join(f"{TITLES[side]:>24}" for side in sides))
    means = {side: statistics.mean(row[side] for row in table.values()) for side in sides}
    for name, row in [*table.items(), ("mean", means)]:
        print_line(f"{name:<24}" + "".join(f"{100 * row[side]:>24.2f}" for side in sides))
    ranks = mean_ranks(table)
    print_line(f"{'mean rank':<24}" + "".join(f"{ranks[side]:>24.2f}" for side in sides))


def draw(table: dict[str, dict[Side, float]], path: Path) -> None:
    """Draws mean ranks on a line, with the critical difference."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ranks = sorted(mean_ranks(table).items(), key=lambda item: item[1])
    gap = critical_difference(len(ranks), len(table))
    figure, axes = plt.subplots(figsize=(7, 0.42 * len(ranks) + 1.4), layout="constrained")
    for height, (side, rank) in enumerate(ranks):
        colour = "#d55e00" if side == "filter_bank" else "#333333"
        axes.plot([rank, rank, len(ranks) + 0.2], [0, -height - 1, -height - 1], color=colour, lw=1.2)
        axes.text(len(ranks) + 0.25, -height - 1, f"{TITLES[side]}  {rank:.2f}", va="center", color=colour)
    low = -len(ranks) - 1
    axes.plot([1, 1 + gap], [low, low], color="#0072b2", lw=3)
    axes.text(1, low + 0.2, f"critical difference {gap:.2f} ({len(table)} sets)", color="#0072b2", fontsize=8)
    axes.set(xlim=(0.9, len(ranks) + 2.6), ylim=(low - 0.4, 0))
    axes.xaxis.set_ticks(range(1, len(ranks) + 1))
    axes.xaxis.tick_top()
    axes.yaxis.set_visible(False)
    axes.spines[["left", "right", "bottom"]].set_visible(False)
    axes.set_title("Mean rank by accuracy; 1 is best", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(config: Config) -> None:
    """Runs the missing results, prints the table, and draws the ranks."""
    torch.set_num_threads(1)
    if config.cross_validate:
        compare_variants(config)
        return
    own: set[Side] = {"filter_bank", "ckcnn"}
    if importlib.util.find_spec("aeon") is None and not own.issuperset(config.sides):
        raise SystemExit("series_archives: the peers need aeon: pip install aeon; or pass --sides filter_bank")
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("series_archives: the picture needs matplotlib: pip install 'fredholm[viz]'")
    config = dataclasses.replace(config, out=config.out.expanduser())
    config.out.mkdir(parents=True, exist_ok=True)
    table = table_of(run(config))
    print_results(table)
    if table:
        draw(table, config.out / "series_archives.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
