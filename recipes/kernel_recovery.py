"""Measure whether a kernel on a torus stays, or becomes, a function of x - y: a test of ITNet, appendix G.

Command:   python recipes/kernel_recovery.py
Hardware:  one core of an AMD EPYC, shared with other work; float64
Time:      6 minutes of processor time, 12 on the clock
Score:     one minus the stationary fraction, seed 0, from a stationary start: 6e-32 by gradient descent, 3e-3
           by AdamW, 0.3 by gradient descent under an invariant readout whose stationary kernels are a saddle
"""

import importlib.util
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
import tyro
from torch import Tensor, nn

import fredholm
from fredholm import domains, kernels
from fredholm.training.progress import print_line, progress_bar

FEATURES = (-1.0, 0.0, 1.0)  # the values of u(x) and u(y) at which a kernel that reads them is sampled
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#666666"
BLACK, SKY = "#000000", "#56b4e9"


@dataclass(frozen=True, kw_only=True)
class Config:
    """Length of the study, seed, and the folder of the results."""

    out: Path = Path("runs/kernel_recovery")
    """Folder of results.json and the figures."""
    quick: bool = False
    """A tiny torus and few steps, in seconds: checks the recipe itself, the numbers mean little."""
    seed: int = 0
    """Seed of signals, targets and initial values."""


class Run(NamedTuple):
    """The course of one training run: recorded steps, and at each of them ‖Pκ‖, ‖κ - Pκ‖ and the loss.

    The norms are means over the features at which κ is sampled (roots of mean squares).
    """

    steps: list[int]
    stationary: list[float]
    remainder: list[float]
    loss: list[float]

    @property
    def fractions(self) -> list[float]:
        """‖κ - Pκ‖² / ‖κ‖², one minus the stationary fraction."""
        return [r * r / (r * r + s * s) for s, r in zip(self.stationary, self.remainder, strict=True)]


def displacement_index(shape: Sequence[int]) -> Tensor:
    """The flat index of the cell i - j for cells i and j of a periodic grid, `(N, N)`."""
    cells = torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape))
    index = torch.zeros(len(cells), len(cells), dtype=torch.long)
    for axis, n in enumerate(shape):
        index = index * n + (cells[:, None, axis] - cells[None, :, axis]) % n
    return index


def stationary_part(kappa: Tensor, shape: Sequence[int]) -> Tensor:
    """Pκ, the mean of κ(x + δ, y + δ) over all shifts δ of the torus: the part of κ that depends on x - y alone.

    Args:
        kappa: `(B, N, N, d_out, d_in)`, κ on a periodic grid.
        shape: the grid's cells along each axis.
    """
    index = displacement_index(shape)
    by_displacement = kappa[:, torch.arange(len(index))[:, None], index].mean(1)  # (B, z, d_out, d_in), y = x - z
    return by_displacement[:, index]


def with_all_shifts(u: Tensor, shape: Sequence[int]) -> Tensor:
    """Every signal in all its N shifts: `(B, N, C)` to `(B N, N, C)`."""
    return u[:, displacement_index(shape).T].flatten(0, 1)


@final
class SampledKernel(kernels.Kernel):
    """κ whose values at the pairs of points of one domain are its parameters: the free parametrisation.

    Args:
        values: `(N, N, d_out, d_in)`, the values at the start.
    """

    pos_dim = None
    is_causal = False
    reads_query = False

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = nn.Parameter(values.clone())
        self.out_dim, self.in_dim = values.shape[2:]

    def matrix(
        self,
        u: Tensor,
        domain: domains.Domain,
        query: Tensor | None = None,
        query_domain: domains.Domain | None = None,
    ) -> Tensor:
        """The values; see `Kernel.matrix`."""
        num_queries = (domain if query_domain is None else query_domain).num_points
        if self.values.shape[:2] != (num_queries, domain.num_points):
            raise ValueError(
                f"SampledKernel: holds values for {tuple(self.values.shape[:2])} pairs of query and point; "
                f"got {(num_queries, domain.num_points)}"
            )
        return self.values.expand(u.shape[0], *self.values.shape)


def perceptron(
    shape: Sequence[int], *, whole_frequencies: bool, stationary: bool, generator: torch.Generator
) -> kernels.MLP:
    """An MLP kernel of all inputs, absolute positions included, in float64.

    With `whole_frequencies` the features have whole cycles on the unit box, so that a shift of the torus rotates them;
    otherwise they are drawn as in the library. With `stationary` the weights of γ(x) and γ(y) start at zero.
    """
    dim, num_frequencies = len(shape), 4
    kernel = kernels.MLP(1, pos_dim=dim, width=32, num_frequencies=num_frequencies, epsilon=1.0).double()
    assert kernel.input_weight is not None
    with torch.no_grad():
        for parameter in (kernel.get_parameter("input_weight"), kernel.output_weight):
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
        kernel.get_parameter("input_weight").mul_(0.5)
        kernel.output_weight.mul_(1 / math.sqrt(kernel.width))
        kernel.frequencies.copy_(10 * torch.randn(num_frequencies, dim, generator=generator))
        if whole_frequencies:
            whole = torch.tensor([[1], [2], [3], [4]] if dim == 1 else [[1, 0], [0, 1], [1, 1], [1, -1]])
            kernel.frequencies.copy_(whole)
        if stationary:
            kernel.get_parameter("input_weight")[..., : 2 * 2 * num_frequencies] = 0
    return kernel


def sampled(kernel: kernels.Kernel, grid: domains.Grid) -> Tensor:
    """κ on the grid at fixed features u(x) = a, u(y) = b: `(B, N, N, d_out, d_in)`, one batch entry per pair (a, b)."""
    dtype = next(kernel.parameters()).dtype
    pairs = torch.cartesian_prod(torch.tensor(FEATURES), torch.tensor(FEATURES)).to(dtype)
    a, b = (value[:, None, None].expand(-1, grid.num_points, 1) for value in pairs.T)
    return kernel.matrix(b, grid, query=a, query_domain=grid)


def low_pass(noise: Tensor, band: float) -> Tensor:
    """Noise `(count, n_1, ..., n_s)` without frequencies above a share ``band`` of the Nyquist frequency.

    Returns:
        `(count, N)`, each signal with mean square 1.
    """
    axes = tuple(range(1, noise.ndim))
    spectrum = torch.fft.fftn(noise, dim=axes)
    for axis in axes:
        n = noise.shape[axis]
        kept = torch.fft.fftfreq(n, 1 / n).abs() <= band * n / 2
        spectrum = spectrum * kept.reshape([-1 if a == axis else 1 for a in range(noise.ndim)])
    u = torch.fft.ifftn(spectrum, dim=axes).real.flatten(1)
    return u / u.square().mean(1, keepdim=True).sqrt()


@final
class Problem:
    """Signals on a torus in all their shifts, with an equivariant and an invariant target.

    Args:
        shape: cells of the torus along each axis.
        count: number of signals, without their shifts.
        band: 1: white noise; below 1: only frequencies up to this share of the Nyquist frequency.
        generator: source of randomness.
    """

    def __init__(self, shape: Sequence[int], count: int, band: float, generator: torch.Generator) -> None:
        self.shape, self.grid = tuple(shape), domains.Grid(*shape, periodic=True)
        self.band, self.count = band, count
        filters = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
        self.first, self.second = 2 * low_pass(filters, band)[:, displacement_index(shape)]  # k(x - y), `(N, N)`
        self.u = with_all_shifts(self.draw(generator), shape)

    def draw(self, generator: torch.Generator) -> Tensor:
        """New signals of the distribution, `(count, N, 1)`."""
        noise = torch.randn(self.count, *self.shape, generator=generator, dtype=torch.float64)
        return low_pass(noise, self.band)[..., None]

    def equivariant(self, op: nn.Module, u: Tensor) -> Tensor:
        """Mean squared distance of K u from y(x) = tanh ∫ k(x - y) u(y) dy."""
        target = torch.tanh(self.first.to(u.dtype) @ u / len(self.first))
        return (op(u, self.grid) - target).square().mean()

    def invariant(self, op: nn.Module, u: Tensor) -> Tensor:
        """Relative mean squared distance of the readout ∫ (K u)³ from the label ½ ∫ (k ∗ u)³ + ½ ∫ (k' ∗ u)³."""
        n = len(self.first)
        label = 0.5 * ((self.first @ u / n) ** 3 + (self.second @ u / n) ** 3).mean(1)
        return ((op(u, self.grid) ** 3).mean(1) - label).square().mean() / label.square().mean()

    @property
    def alternating(self) -> Tensor:
        """k for every other x and k' for the rest, `(N, N, 1, 1)`; 1-D.

        Where three times the signals' highest frequency is below the Nyquist frequency, a mean over every other x is
        that over all x: this kernel, which is not stationary, then meets the invariant loss exactly.
        """
        values = self.first.clone()
        values[1::2] = self.second[1::2]
        return values[:, :, None, None]


Loss = Callable[[nn.Module, Tensor], Tensor]


def bare(kernel: kernels.Kernel) -> fredholm.IntegralOperator:
    """An operator that is only the integral."""
    return fredholm.IntegralOperator(kernel, residual=False, bias=False, output_projection=False)


def train(
    kernel: kernels.Kernel,
    problem: Problem,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    steps: int,
    draw: Callable[[], Tensor] | None = None,
) -> Run:
    """Trains on all shifts of all signals at once, or on the signals of `draw`, and records κ some fifty times."""
    op = bare(kernel)
    run = Run([], [], [], [])
    recorded = {0, steps, *(round(steps ** (i / 50)) for i in range(51))}
    with progress_bar(type(kernel).__name__, steps, unit="step") as bar:
        for step in range(steps + 1):
            value = loss(op, problem.u if draw is None else draw())
            if step in recorded:
                with torch.no_grad():
                    kappa = sampled(kernel, problem.grid)
                part = stationary_part(kappa, problem.shape)
                run.steps.append(step)
                run.stationary.append(part.norm().item() / len(kappa) ** 0.5)
                run.remainder.append((kappa - part).norm().item() / len(kappa) ** 0.5)
                run.loss.append(value.item())
            if step < steps:
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                bar.update()
    return run


def gradient_remainder(kernel: SampledKernel, problem: Problem, loss: Loss) -> float:
    """‖G - PG‖ / ‖G‖ of the gradient G of the loss by the values of κ, which equation 186 claims to be 0 everywhere."""
    (gradient,) = torch.autograd.grad(loss(bare(kernel), problem.u), kernel.values)
    part = stationary_part(gradient[None], problem.shape)[0]
    return ((gradient - part).norm() / gradient.norm()).item()


def predicted_remainder(
    start: Tensor, problem: Problem, rate: float, decay: float, steps: Sequence[int]
) -> list[float]:
    """‖κ - Pκ‖ after numbers of steps of gradient descent on the equivariant loss, from `start` `(N, N, 1, 1)`.

    The loss is quadratic in κ, and the moment C = mean u uᵀ over all shifts is a function of x - y. The remainder is
    therefore multiplied by (1 - rate·decay) I - (2 rate / N³) C at every step, whatever the target is.
    """
    n = len(start)
    remainder = (start[None] - stationary_part(start[None], problem.shape))[0, :, :, 0, 0]
    moment = problem.u[..., 0].T @ problem.u[..., 0] / len(problem.u)
    values, vectors = torch.linalg.eigh(moment)
    factors = 1 - rate * decay - 2 * rate / n**3 * values
    return [(remainder @ vectors * factors**step).norm().item() for step in steps]


def free(problem: Problem, *, stationary: bool, generator: torch.Generator) -> SampledKernel:
    """A free kernel with random values, or with their stationary part scaled to the same norm."""
    n = problem.grid.num_points
    values = 2 * torch.randn(1, n, n, 1, 1, generator=generator, dtype=torch.float64)
    if stationary:
        part = stationary_part(values, problem.shape)
        values = part * values.norm() / part.norm()
    return SampledKernel(values[0])


def descend(kernel: nn.Module, rate: float, decay: float = 0.0) -> torch.optim.Optimizer:
    """Gradient descent, the discrete gradient flow; decay shrinks every parameter by rate·decay per step."""
    return torch.optim.SGD(kernel.parameters(), lr=rate, weight_decay=decay)


def study(config: Config) -> dict[str, Any]:
    """All runs by name, gradients at stationary and random points, and predicted remainders by run."""
    shape = (6,) if config.quick else (16,)
    free_steps, readout_steps, steps = (20, 20, 10) if config.quick else (2000, 8000, 1000)

    def seeded(offset: int) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * config.seed + offset)

    runs: dict[str, Run] = {}
    gradients: dict[str, float] = {}
    predicted: dict[str, list[float]] = {}
    white, band = (Problem(shape, 16, band, seeded(0)) for band in (1.0, 0.5))
    largest = torch.linalg.eigvalsh(white.u[..., 0].T @ white.u[..., 0] / len(white.u))[-1].item()
    rate = 0.25 * white.grid.num_points**3 / largest  # half the rate that solves the steepest direction in one step
    for point, stationary in (("stationary", True), ("random", False)):
        kernel = free(white, stationary=stationary, generator=seeded(1))
        gradients[f"{point} point, equivariant target"] = gradient_remainder(kernel, white, white.equivariant)
        gradients[f"{point} point, invariant target"] = gradient_remainder(kernel, white, white.invariant)
    kernel = free(white, stationary=True, generator=seeded(1))
    runs["free, stationary start"] = train(kernel, white, white.equivariant, descend(kernel, rate), free_steps)
    for data, problem in (("white", white), ("band-limited", band)):
        for decay in (0.0, 2e-3):
            name = f"free, random start, {data}, decay {decay:g} a step"
            kernel = free(problem, stationary=False, generator=seeded(1))
            start = kernel.values.detach().clone()
            optimizer = descend(kernel, rate, decay / rate)
            runs[name] = train(kernel, problem, problem.equivariant, optimizer, free_steps)
            predicted[name] = predicted_remainder(start, problem, rate, decay / rate, runs[name].steps)
    runs |= readout_runs(1 if config.quick else 5, readout_steps, seeded)
    runs |= perceptron_runs(shape, steps, seeded)
    return {"runs": runs, "gradients": gradients, "predicted": predicted}


def readout_runs(targets: int, steps: int, seeded: Callable[[int], torch.Generator]) -> dict[str, Run]:
    """Free kernels that start at the mean of the target's two filters, or 1e-4 away from it."""
    runs: dict[str, Run] = {}
    for number in range(targets):
        problem = Problem((32,), 16, 0.25, seeded(10 + number))
        middle = (problem.first + problem.second)[:, :, None, None] / 2
        away = 1e-4 * torch.randn(middle.shape, generator=seeded(1), dtype=middle.dtype)
        for start, values in (("near", middle + away), ("stationary", middle)):
            if start == "near" or number == 0:
                kernel = SampledKernel(values)
                name = f"readout, {start} start, target {number}"
                optimizer = descend(kernel, 0.01 * 32**2)
                runs[name] = train(kernel, problem, problem.invariant, optimizer, steps)
    return runs


def perceptron_runs(shape: tuple[int, ...], steps: int, seeded: Callable[[int], torch.Generator]) -> dict[str, Run]:
    """The runs of `kernels.MLP` with absolute positions, by gradient descent unless their name has AdamW."""
    white, band = (Problem(shape, 4, band, seeded(0)) for band in (1.0, 0.5))
    plane = Problem((3, 3) if steps < 100 else (5, 5), 2, 1.0, seeded(0))
    fresh = seeded(2)
    runs: dict[str, Run] = {}

    def one_shift() -> Tensor:
        return torch.cat([white.draw(fresh) for _ in range(white.grid.num_points)])

    def add(
        name: str,
        problem: Problem = white,
        *,
        whole: bool = True,
        stationary: bool = True,
        decay: float = 0.0,
        draw: Callable[[], Tensor] | None = None,
    ) -> None:
        kernel = perceptron(problem.shape, whole_frequencies=whole, stationary=stationary, generator=seeded(1))
        if "float32" in name:
            kernel.float()
        optimizer = descend(kernel, 0.2, decay / 0.2)
        if "AdamW" in name:
            optimizer = torch.optim.AdamW(kernel.parameters(), lr=3e-3, weight_decay=decay / 3e-3)
        runs[name] = train(kernel, problem, problem.equivariant, optimizer, steps, draw)

    add("MLP, stationary start")
    add("MLP, stationary start, 2-D", plane)
    add("MLP, stationary start, float32", draw=lambda: white.u.float())
    add("MLP, stationary start, every signal in one shift", draw=one_shift)
    add("MLP, stationary start, random frequencies", whole=False)
    add("MLP, stationary start, AdamW")
    for data, problem in (("white", white), ("band-limited", band)):
        for decay in (0.0, 2e-3):
            add(f"MLP, random start, {data}, decay {decay:g} a step", problem, stationary=False, decay=decay)
    for decay in (0.0, 2e-3):
        add(f"MLP, random start, white, AdamW, decay {decay:g} a step", stationary=False, decay=decay)
    return runs


def draw_figure(runs: dict[str, Run], predicted: dict[str, list[float]], path: Path) -> None:
    """Draws four panels: stationary starts, free kernels, MLP kernels, and an invariant readout."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = (
        ("stationary start, equivariant target", "", ("free, stationary", "MLP, stationary"), 1e-35),
        ("random start, free kernel (dots: predicted)", "free, random start, ", ("free, random",), 1e-35),
        ("random start, kernels.MLP", "MLP, random start, ", ("MLP, random",), 1e-6),
        ("free kernel, invariant readout", "readout, ", ("readout",), 1e-35),
    )
    colours = (GREY, BLUE, GREEN, PURPLE, ORANGE, BLACK, SKY)
    figure, grid = plt.subplots(2, 2, figsize=(10, 8), layout="constrained")
    for axes, (title, common, prefixes, lowest) in zip(grid.flat, panels, strict=True):
        for name, colour in zip([n for n in runs if n.startswith(prefixes)], colours, strict=False):
            run, label = runs[name], name.removeprefix(common).replace("MLP, stationary start, ", "MLP, ")
            axes.plot(run.steps, run.fractions, color=colour, label=label, linewidth=1.3)
            if name in predicted:
                dots = [p * p / (p * p + s * s) for p, s in zip(predicted[name], run.stationary, strict=True)]
                axes.plot(run.steps[::3], dots[::3], "o", color=colour, markersize=3)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_yscale("log")
        axes.set_ylim(lowest, 10)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        axes.set_ylabel("1 − stationary fraction of κ")
        axes.legend(frameon=False, fontsize=7, loc="lower left", bbox_to_anchor=(0.0 if common else 0.5, 0.1))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=85)
    plt.close(figure)


def main(config: Config) -> None:
    """Runs the study, prints its table and writes results.json and kernel_recovery.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("kernel_recovery: the figure needs matplotlib: pip install 'fredholm[viz]'")
    config.out.mkdir(parents=True, exist_ok=True)
    found = study(config)
    runs: dict[str, Run] = found["runs"]
    report = {"seed": config.seed, "quick": config.quick} | found
    report["runs"] = {name: run._asdict() | {"fractions": run.fractions} for name, run in runs.items()}
    (config.out / "results.json").write_text(json.dumps(report, indent=1))
    for name, value in found["gradients"].items():
        print_line(f"‖G - PG‖ / ‖G‖ at a {name}: {value:.2e}")
    print_line(f"{'run':<55} {'loss: start':>11} {'end':>9}   {'1 - fraction: start':>19} {'end':>9}")
    for name, run in runs.items():
        numbers = f"{run.loss[0]:11.2e} {run.loss[-1]:9.2e}   {run.fractions[0]:19.2e} {run.fractions[-1]:9.2e}"
        print_line(f"{name:<55} {numbers}")
    draw_figure(runs, found["predicted"], config.out / "kernel_recovery.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
