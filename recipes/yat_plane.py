"""Measure Yat units in the plane: XOR by one unit, and the regions of a few prototypes, near and far.

Command:   python recipes/yat_plane.py
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      25 seconds of processor time, 2 minutes on the clock
Score:     seed 0: of 100 starts 94 Yat units learn XOR, no linear and no ReLU unit; at radius 3000, 99.8 % of the
           directions have the class of the opposite direction
"""

import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import tyro
from torch import Tensor, nn

from fredholm.kernels import yat
from fredholm.training.progress import print_line

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
XOR_POINTS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
XOR_LABELS = torch.tensor([0.0, 1.0, 1.0, 0.0])
XOR_UNITS = ("linear", "ReLU", "Yat", "Yat with constant")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Length of the study, seed, and the folder of the results."""

    out: Path = Path("runs/yat_plane")
    """Folder of results.json and the figures."""
    starts: int = 100
    """Random starts of each unit on XOR."""
    steps: int = 2000
    """Steps of every run."""
    seed: int = 0
    """Seed of starts and points."""


@final
class Units(nn.Module):
    """Many independent one-unit classifiers: logit s φ(x) + c, with φ one of `XOR_UNITS`.

    Args:
        kind: one of `XOR_UNITS`.
        starts: number of classifiers.
        epsilon: ε of the Yat product.
        generator: source of the initial values: w and, if present, b are standard normal, s = 1, c = 0.
    """

    def __init__(self, kind: str, starts: int, epsilon: float, generator: torch.Generator) -> None:
        super().__init__()
        self.kind, self.epsilon = kind, epsilon
        self.w = nn.Parameter(torch.randn(starts, 2, generator=generator))
        self.b = nn.Parameter(torch.randn(starts, generator=generator), requires_grad=kind != "Yat")
        self.s, self.c = nn.Parameter(torch.ones(starts)), nn.Parameter(torch.zeros(starts))

    def forward(self, x: Tensor) -> Tensor:
        """Logits `(n, starts)` of points `(n, 2)`."""
        if self.kind in ("linear", "ReLU"):
            value = x @ self.w.T + self.b
            value = value.relu() if self.kind == "ReLU" else value
        else:
            value = yat(x, self.w, self.b if self.b.requires_grad else None, self.epsilon)
        return self.s * value + self.c


def train_xor(kind: str, config: Config, epsilon: float = 0.1) -> Units:
    """Trains all starts at once, by Adam at 0.05 on the cross-entropy of the four points."""
    units = Units(kind, config.starts, epsilon, torch.Generator().manual_seed(config.seed))
    optimizer = torch.optim.Adam([p for p in units.parameters() if p.requires_grad], lr=0.05)
    targets = XOR_LABELS[:, None].expand(4, config.starts)
    for _ in range(config.steps):
        loss = nn.functional.binary_cross_entropy_with_logits(units(XOR_POINTS), targets, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return units


def xor_right(units: Units) -> Tensor:
    """Number of the four points that each start classifies correctly, `(starts,)`."""
    with torch.no_grad():
        return ((units(XOR_POINTS) > 0) == (XOR_LABELS[:, None] > 0.5)).sum(0)


@final
class PlaneClassifier(nn.Module):
    """Logits of a few classes with one vector each: w·x + c, or s yat(x, w) without an offset.

    Args:
        starts: initial w, `(classes, 2)`.
        epsilon: ε of the Yat product; None for the linear one.
    """

    def __init__(self, starts: Tensor, epsilon: float | None) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.w = nn.Parameter(starts.clone())
        self.s, self.c = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(len(starts)))

    def forward(self, x: Tensor) -> Tensor:
        """`(n, 2)` to `(n, classes)`."""
        if self.epsilon is None:
            return x @ self.w.T + self.c
        return self.s * yat(x, self.w, epsilon=self.epsilon)


def clusters(seed: int, count: int = 60) -> tuple[Tensor, Tensor]:
    """Points of four clusters, `(4 count, 2)`, and labels: two clusters on one ray, one opposite, one aside."""
    centres = torch.tensor([[1.0, 0.6], [2.6, 1.6], [-1.5, -1.0], [-0.8, 1.8]])
    noise = torch.randn(4, count, 2, generator=torch.Generator().manual_seed(seed))
    return (centres[:, None] + 0.3 * noise).flatten(0, 1), torch.arange(4).repeat_interleave(count)


def train_regions(config: Config, epsilon: float | None) -> PlaneClassifier:
    """Trains from the class means, by Adam at 0.02 on the cross-entropy of all points."""
    x, labels = clusters(config.seed)
    model = PlaneClassifier(torch.stack([x[labels == c].mean(0) for c in range(4)]), epsilon)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(config.steps):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False)


def on_circle(model: nn.Module, radius: float, count: int = 3600) -> tuple[Tensor, Tensor]:
    """The predicted class and its probability at points on a circle around the origin."""
    angles = torch.arange(count) * (2 * math.pi / count)
    probability, winner = model(radius * torch.stack([angles.cos(), angles.sin()], -1)).softmax(-1).max(-1)
    return winner, probability


def far_field(model: nn.Module) -> dict[str, list[float]]:
    """Classes of directions at radii 3 to 3000.

    Returns:
        By name, for each radius: the fraction of directions with their class at radius 30,000, the fraction with the
        class of the opposite direction, and the mean and largest probability of the class.
    """
    last, _ = on_circle(model, 3e4)
    report: dict[str, list[float]] = {name: [] for name in ("as at the end", "as opposite", "mean p", "largest p")}
    for radius in (3.0, 30.0, 300.0, 3000.0):
        winner, probability = on_circle(model, radius)
        report["as at the end"].append((winner == last).float().mean().item())
        report["as opposite"].append((winner == winner.roll(len(winner) // 2)).float().mean().item())
        report["mean p"].append(probability.mean().item())
        report["largest p"].append(probability.max().item())
    return report


def draw_xor(units: dict[str, Units], path: Path) -> None:
    """Draws the response of the paper's unit, and the best trained start of each kind."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axis = torch.linspace(-1.5, 2.5, 201)
    x = torch.cartesian_prod(axis, axis)
    on_paper = yat(x, torch.tensor([[1.0, -1.0]]), epsilon=0.1)[:, 0]
    surfaces = {"w = (1, −1): log₁₀(yat + 0.01)": (on_paper + 0.01).log10()}
    for kind in ("linear", "ReLU", "Yat"):
        best = int(xor_right(units[kind]).argmax())
        with torch.no_grad():
            surfaces[f"{kind}, trained: probability"] = units[kind](x)[:, best].sigmoid()
    figure, places = plt.subplots(1, 4, figsize=(14, 3.6), layout="constrained")
    for axes, (title, surface) in zip(places, surfaces.items(), strict=True):
        trained = "probability" in title
        levels = [step / 20 for step in range(21)] if trained else 24
        image = axes.contourf(axis, axis, surface.reshape(201, 201).T, levels, cmap="cividis")
        if trained:
            axes.contour(axis, axis, surface.reshape(201, 201).T, [0.5], colors="white", linewidths=1.2)
        for point, label in zip(XOR_POINTS.tolist(), XOR_LABELS.tolist(), strict=True):
            axes.plot(*point, "o" if label else "X", color="white", markeredgecolor="black", markersize=9)
        axes.set_title(title, fontsize=10)
        axes.set_aspect("equal")
        figure.colorbar(image, ax=axes, shrink=0.8, ticks=[0, 0.5, 1] if trained else [-2, -1, 0, 1])
    figure.savefig(path, dpi=85)
    plt.close(figure)


def draw_regions(models: dict[str, PlaneClassifier], seed: int, path: Path) -> None:
    """Draws the regions of each classifier, near the data and a hundred times farther out."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    points, labels = clusters(seed)
    figure, places = plt.subplots(1, 2 * len(models), figsize=(15, 4), layout="constrained")
    views = [(name, model, half) for name, model in models.items() for half in (5.0, 500.0)]
    for axes, (name, model, half) in zip(places, views, strict=True):
        axis = torch.linspace(-half, half, 301)
        probability, winner = model(torch.cartesian_prod(axis, axis)).softmax(-1).max(-1)
        axes.pcolormesh(
            axis, axis, winner.reshape(301, 301).T, cmap=ListedColormap(COLOURS), vmin=0, vmax=3, alpha=0.75
        )
        certain = axes.contour(
            axis, axis, probability.reshape(301, 301).T, [0.5, 0.9], colors="white", linewidths=(0.6, 1.2)
        )
        axes.clabel(certain, fontsize=7)
        if half < 10:
            for c, colour in enumerate(COLOURS):
                axes.plot(*points[labels == c].T, ".", color=colour, markeredgecolor="white", markeredgewidth=0.3)
            axes.plot(*model.w.T, "*", color="white", markeredgecolor="black", markersize=13)
        axes.set(title=f"{name}, half-width {half:g}", aspect="equal", xlim=(-half, half), ylim=(-half, half))
    figure.savefig(path, dpi=85)
    plt.close(figure)


def study(config: Config) -> tuple[dict[str, Any], dict[str, Units], dict[str, PlaneClassifier]]:
    """The report, the units trained on XOR and the classifiers of the plane."""
    units = {kind: train_xor(kind, config) for kind in XOR_UNITS}
    models = {"linear": train_regions(config, None), "Yat": train_regions(config, 0.1)}
    points, labels = clusters(config.seed)

    def solved(right: Tensor) -> int:
        return int((right == 4).sum())

    report = {
        "xor on paper": yat(XOR_POINTS, torch.tensor([[1.0, -1.0]]), epsilon=0.1)[:, 0].tolist(),
        "xor solved": {kind: solved(xor_right(unit)) for kind, unit in units.items()},
        "xor solved by Yat, by epsilon": {
            epsilon: solved(xor_right(train_xor("Yat", config, epsilon))) for epsilon in (1e-3, 1e-2, 0.1, 1.0)
        },
        "regions": {
            name: {"accuracy": (model(points).argmax(-1) == labels).float().mean().item()} | far_field(model)
            for name, model in models.items()
        },
    }
    return report, units, models


def _lines(report: dict[str, Any]) -> Sequence[str]:
    return [f"{name}: {value}" for name, value in report.items()]


def main(config: Config) -> None:
    """Runs both studies, prints their numbers and writes results.json, yat_xor.png and yat_regions.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("yat_plane: the figures need matplotlib: pip install 'fredholm[viz]'")
    config.out.mkdir(parents=True, exist_ok=True)
    report, units, models = study(config)
    for line in _lines(report):
        print_line(line)
    (config.out / "results.json").write_text(json.dumps(report, indent=1))
    draw_xor(units, config.out / "yat_xor.png")
    draw_regions(models, config.seed, config.out / "yat_regions.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
