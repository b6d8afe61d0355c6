"""Fit the small network of a continuous convolution to five functions: sines against ReLU, LeakyReLU and Swish.

Command:   python recipes/kernel_fitting.py
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      115 seconds of processor time, 12 minutes on the clock
Score:     seed 0, mean squared errors on Gaussian, step, sawtooth, chirp and noise: sines 8e-6, 1e-3, 2e-3, 2e-5, 2e-3;
           the best of the others 3e-5, 1e-4, 0.03, 0.28, 0.34
"""

import importlib.util
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro
from torch import Tensor

from fredholm.kernels import ContinuousConvolution
from fredholm.kernels.convolution.kernel_network import KernelActivation
from fredholm.training.progress import print_line

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#999999"


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the fits, and the folder of the results."""

    out: Path = Path("runs/kernel_fitting")
    """Folder of results.json and the figure."""
    num_points: int = 1000
    """Samples of every target on [-1, 1]."""
    steps: int = 500
    """Steps of every fit: Adam on all points, the learning rate falling to 0 along a cosine."""
    learning_rates: tuple[float, ...] = (1e-3, 1e-2)
    """Learning rates to try; the best one counts."""
    omegas: tuple[float, ...] = (30.0, 100.0, 1000.0)
    """Frequencies ω0 of the sines to try; the best one counts."""
    seed: int = 0
    """Seed of the noise and of every initialisation."""


class Variant(NamedTuple):
    """A network of two hidden layers of 32 units."""

    activation: KernelActivation
    spread_bias: bool = True
    layer_norm: bool | None = None


VARIANTS = {
    "sine": Variant("sine"),
    # with layer norm, a ReLU layer with all knots at 0 sees only the sign of its input
    "ReLU, knots at 0": Variant("relu", spread_bias=False, layer_norm=False),
    "ReLU, knots spread": Variant("relu", layer_norm=False),
    "ReLU, spread, normalised": Variant("relu"),
    "LeakyReLU, spread, normalised": Variant("leaky_relu"),
    "Swish, spread, normalised": Variant("swish"),
}


class Fit(NamedTuple):
    """The fit of one network to one target."""

    error: float
    """Mean squared error."""
    learning_rate: float
    omega_0: float | None
    """Frequency of sines; None for other activations."""
    drawn: Tensor
    """The fitted function, `(num_points,)`."""


def targets(num_points: int, seed: int) -> dict[str, Tensor]:
    """Functions on [-1, 1] of growing roughness, `(num_points,)` each."""
    x = torch.linspace(-1, 1, num_points)
    noise = 2 * torch.rand(num_points, generator=torch.Generator().manual_seed(seed)) - 1
    return {
        "Gaussian": torch.exp(-(x**2) / (2 * 0.2**2)),
        "step": torch.where(x > 0, 1.0, -1.0),
        "sawtooth": 2 * torch.remainder(2.5 * (x + 1), 1) - 1,  # 5 teeth
        "chirp": torch.sin(2 * math.pi * 5 * (x + 1) ** 2),  # up to 20 waves a unit
        "noise": noise,
    }


def fit(variant: Variant, target: Tensor, config: Config, learning_rate: float, omega_0: float) -> Fit:
    """Fits ψ, the kernel of one input and one output channel, to a target."""
    torch.manual_seed(config.seed)
    activation, spread_bias, layer_norm = variant
    sines: dict[str, Any] = {"omega_0": omega_0} if activation == "sine" else {}
    kernel = ContinuousConvolution(
        1,
        1,
        is_causal=False,
        num_samples=1,
        activation=activation,
        spread_bias=spread_bias,
        layer_norm=layer_norm,
        **sines,
    )
    x = torch.linspace(-1, 1, len(target))[:, None]
    optimizer = torch.optim.Adam(kernel.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    for _ in range(config.steps):
        loss = (kernel.values(x)[:, 0, 0] - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        drawn = kernel.values(x)[:, 0, 0]
    error = (drawn - target).square().mean().item()
    return Fit(error, learning_rate, omega_0 if variant.activation == "sine" else None, drawn)


def best_fit(variant: Variant, target: Tensor, config: Config) -> Fit:
    """The best fit over the learning rates and, for sines, over ω0."""
    omegas = config.omegas if variant.activation == "sine" else config.omegas[:1]
    fits = [fit(variant, target, config, rate, omega) for rate in config.learning_rates for omega in omegas]
    return min(fits, key=lambda found: found.error)


def draw(goals: dict[str, Tensor], fits: dict[str, dict[str, Fit]], path: Path) -> None:
    """Draws each network's fit over its target, with a row per network and a column per target."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (2.8 * len(goals), 1.35 * len(fits))
    figure, places = plt.subplots(len(fits), len(goals), figsize=size, layout="constrained", squeeze=False)
    for row, (variant, found) in zip(places, fits.items(), strict=True):
        for axes, (name, goal) in zip(row, goals.items(), strict=True):
            x = torch.linspace(-1, 1, len(goal))
            shown = slice(0, len(goal) // 5) if name == "noise" else slice(None)
            axes.plot(x[shown], goal[shown], color=GREY, linewidth=1.6)
            good = found[name].error < 0.01
            axes.plot(x[shown], found[name].drawn[shown], color=BLUE if good else ORANGE, linewidth=0.8)
            axes.set_title(f"{found[name].error:.1e}", fontsize=8, pad=2)
            axes.set(xticks=[], yticks=[], ylim=(-1.3, 1.3))
            if row is places[-1]:
                axes.set_xlabel(name + (", first fifth" if name == "noise" else ""))
        row[0].set_ylabel(variant.replace(", ", ",\n"), fontsize=8)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(config: Config) -> None:
    """Fits every target by every network, prints the errors and writes results.json and kernel_fitting.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("kernel_fitting: the figure needs matplotlib: pip install 'fredholm[viz]'")
    config.out.mkdir(parents=True, exist_ok=True)
    goals = targets(config.num_points, config.seed)
    fits: dict[str, dict[str, Fit]] = {}
    report: dict[str, Any] = {}
    for name, variant in VARIANTS.items():
        fits[name] = {goal: best_fit(variant, target, config) for goal, target in goals.items()}
        print_line(f"{name}: " + "  ".join(f"{goal} {found.error:.1e}" for goal, found in fits[name].items()))
        report[name] = {
            goal: {"error": found.error, "learning rate": found.learning_rate, "omega_0": found.omega_0}
            for goal, found in fits[name].items()
        }
    (config.out / "results.json").write_text(json.dumps(report, indent=1))
    draw(goals, fits, config.out / "kernel_fitting.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
