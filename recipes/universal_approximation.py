"""Fit ITNet to nonlinear operators and measure the error by kernel width and nodes (ITNet, appendix F, eq. 184).

Command:   python recipes/universal_approximation.py
Hardware:  two cores of an AMD EPYC, shared with other work; float32, quadrature errors in float64
Time:      18 minutes of processor time, 25 on the clock
Score:     relative L2 error on test fields at width 32, seed 0, four times the steps: antiderivative 0.0062; Burgers
           flow 0.0095 with one layer and an MLP, 0.0116 with two layers, 0.061 with one layer alone
"""

import concurrent.futures
import importlib.util
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
import tyro
from torch import Tensor, nn

import fredholm
from fredholm import domains, kernels
from fredholm.training.progress import print_line, progress_bar

NUM_MODES = 3
VISCOSITY, TIME = 0.02, 0.3
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#666666"

Model = Literal[
    "antiderivative, causal kernel",
    "antiderivative, step learned",
    "Burgers, one layer, bare signal",
    "Burgers, one layer, lifted",
    "Burgers, one layer, lifted, perceptron after",
    "Burgers, two layers, lifted",
]
CAUSAL, STEP, BARE, LIFTED, PERCEPTRON, TWO = Model.__args__


@dataclass(frozen=True, kw_only=True)
class Config:
    """Length of the study, seed, and the folder of the results."""

    out: Path = Path("runs/universal_approximation")
    """Folder of results.json and the figure."""
    quick: bool = False
    """Tiny fits, in seconds: checks the recipe itself, the numbers mean nothing."""
    seed: int = 0
    """Seed of inputs and initial weights."""
    workers: int = 2
    """Processes that fit in parallel, with one thread each."""


def random_fields(count: int, generator: torch.Generator) -> Tensor:
    """Coefficients `(2, count, NUM_MODES)` of smooth periodic functions of mean 0, from a compact set.

    Mode k has a cosine and a sine with 0.4 / k times a normal number that is clamped to ±2.
    """
    normal = torch.randn(2, count, NUM_MODES, generator=generator, dtype=torch.float64)
    return 0.4 * normal.clamp(-2, 2) / torch.arange(1, NUM_MODES + 1)


def values(fields: Tensor, x: Tensor) -> Tensor:
    """u(x) of every field at the points `(N,)`: `(count, N)`."""
    phase = 2 * math.pi * x[:, None] * torch.arange(1, NUM_MODES + 1)
    return fields[0] @ phase.cos().T + fields[1] @ phase.sin().T


def antiderivative(fields: Tensor, x: Tensor) -> Tensor:
    """∫_0^x sin(π u(y)) dy, from the Fourier series of the integrand: `(count, N)`."""
    fine = torch.arange(512, dtype=torch.float64) / 512
    coefficients = torch.fft.rfft(torch.sin(math.pi * values(fields, fine)), norm="forward")[:, :-1]
    k = 2j * math.pi * torch.arange(1, coefficients.shape[1]).to(torch.complex128)
    waves = (torch.exp(k * x[:, None]) - 1) / k
    return coefficients[:, :1].real * x + 2 * (coefficients[:, 1:] @ waves.T).real


def cole_hopf(u: Tensor, x: Tensor, *, viscosity: float = VISCOSITY, time: float = TIME) -> Tensor:
    """The solution of Burgers' equation u_t + u u_x = ν u_xx on the torus, by the Cole-Hopf transform.

    φ = exp(-∫u / 2ν) solves the heat equation, which is exact in Fourier space, and u = -2ν φ_x / φ. A mean m of u
    advects the rest with speed m.

    Args:
        u: the solution at time 0 at the points j / n, `(count, n)`.
        x: points at which the solution is computed, `(N,)`.

    Returns:
        `(count, N)`.
    """
    n = u.shape[1]
    k = 2 * math.pi * torch.arange(n // 2 + 1, dtype=torch.float64)
    mean = u.mean(1, keepdim=True)
    primitive = torch.fft.rfft(u - mean, norm="forward") / (1j * k.clamp_min(1))
    heat = torch.fft.rfft(torch.exp(-torch.fft.irfft(primitive, n, norm="forward") / (2 * viscosity)), norm="forward")
    heat = heat * torch.exp(-viscosity * time * k**2)
    heat[:, 1:] *= 2
    waves = torch.exp(1j * k * (x - mean * time)[..., None])  # (count, N, n // 2 + 1)
    phi, slope = ((c[:, None] * waves).sum(-1).real for c in (heat, 1j * k * heat))
    return mean - 2 * viscosity * slope / phi


def burgers(fields: Tensor, x: Tensor) -> Tensor:
    """The flow map u(·, 0) -> u(·, TIME) of Burgers' equation, at the points `(N,)`: `(count, N)`."""
    return cole_hopf(values(fields, torch.arange(512, dtype=torch.float64) / 512), x)


def four_glued_bumps(n: int = 512) -> tuple[Tensor, Tensor]:
    """Points j / n, and the signals a + b, a, b and 0 for bumps a > 0 > b with disjoint support: `(n,)`, `(4, n)`."""
    x = torch.arange(n, dtype=torch.float64) / n

    def bump(centre: float) -> Tensor:
        z = ((x - centre) / 0.22).clamp(-1, 1)
        return torch.where(z.abs() < 1, torch.exp(1 - 1 / (1 - z.square()).clamp_min(1e-9)), 0.0)

    a, b = bump(0.25), -bump(0.75)
    return x, torch.stack([a + b, a, b, torch.zeros_like(a)])


def defect(images: Tensor) -> Tensor:
    """|F(a + b) - F(a) - F(b) + F(0)| of the images of four glued signals.

    Where a and b are both 0, the defect of a single layer is 0 for every kernel: each y contributes only through u(y),
    and at each y the signals a + b and 0 have together the same values as a and b. A quarter of an operator's defect
    there is therefore a lower bound on the error of any single layer on one of the four signals, at any width and with
    any pointwise linear lift and projection.
    """
    both, first, second, zero = images
    return (both - first - second + zero).abs()


def lower_bound() -> float:
    """The smallest sup error over four glued bumps that a single layer can reach on the Burgers flow."""
    x, bumps = four_glued_bumps()
    outside = bumps[0] == 0
    return defect(cole_hopf(bumps, x))[outside].max().item() / 4


@final
class Net(nn.Module):
    """Lift, one or two integral operators with MLP kernels, projection.

    Args:
        model: architecture and domain; see `Model`.
        width: hidden units w of the kernels.
    """

    def __init__(self, model: Model, width: int) -> None:
        super().__init__()
        self.on_torus = model.startswith("Burgers")
        channels = 4 if "lifted" in model else 1
        layers = [_operator(model, channels, width) for _ in range(2 if model == TWO else 1)]
        self.layers = nn.ModuleList(layers)
        self.lift = nn.Linear(1, channels) if channels > 1 else nn.Identity()
        self.projection: nn.Module = nn.Linear(channels, 1) if channels > 1 else nn.Identity()
        if model == PERCEPTRON:
            self.projection = nn.Sequential(nn.Linear(channels, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, u: Tensor, domain: domains.Domain, query: Tensor, query_domain: domains.Domain) -> Tensor:
        """`(B, M, 1)` on M nodes to `(B, M, 1)` at the points of `query_domain`, where the signal is `query`."""
        u, query = self.lift(u), self.lift(query)
        for layer in self.layers:
            u = query = layer(u, domain) if self.on_torus else layer(u, domain, query=query, query_domain=query_domain)
        return self.projection(u)


def _operator(model: Model, channels: int, width: int) -> fredholm.IntegralOperator:
    on_torus = model.startswith("Burgers")
    inputs = kernels.KernelInputs(query_position=not on_torus, key_position=not on_torus)
    kernel = kernels.MLP(
        channels,
        width=width,
        inputs=inputs,
        num_frequencies=6 if on_torus else 0,
        is_causal=model == CAUSAL,
        # an antiderivative is an integral over the whole measure, not a mean over the past
        causal_measure="total" if model == CAUSAL else None,
        epsilon=0.3 if channels > 1 else 1.0,
    )
    assert kernel.input_weight is not None
    with torch.no_grad():
        kernel.get_parameter("input_weight").mul_(5)  # deviation 0.1 instead of 0.02, nearer to the nonlinear range
        kernel.input_bias.uniform_(-1, 1)
        if on_torus:
            kernel.frequencies.copy_(torch.arange(1, 7)[:, None])  # whole cycles: κ is smooth on the torus
    return fredholm.IntegralOperator(kernel, output_projection=False)


class Samples(NamedTuple):
    """Signals on M nodes, the same signals at M queries, and the operator's exact values there, `(B, M, 1)` each."""

    u: Tensor
    domain: domains.Domain
    query: Tensor
    query_domain: domains.Domain
    exact: Tensor


def sample(model: Model, fields: Tensor, nodes: int, dtype: torch.dtype, *, at_nodes: bool = False) -> Samples:
    """Samples on midpoint nodes.

    On the interval queries lie at the right ends of the cells, unless `at_nodes`; on the torus they lie at the nodes. A
    causal sum up to the end of a cell is the midpoint rule; up to a node it counts half a cell too many.
    """
    on_torus = model.startswith("Burgers")
    domain = query_domain = domains.Grid(nodes, periodic=on_torus)
    if not on_torus and not at_nodes:
        query_domain = domains.Grid(nodes, spacing=[1 / nodes], origin=[1 / nodes])
    y, x = domain.pos[:, 0], query_domain.pos[:, 0]
    exact = (burgers if on_torus else antiderivative)(fields, x)
    u, query, exact = (t[..., None].to(dtype) for t in (values(fields, y), values(fields, x), exact))
    return Samples(u, domain, query, query_domain, exact)


class Job(NamedTuple):
    """One fit, with the numbers of nodes at which it is tested."""

    purpose: Literal["width", "models", "nodes", "longer"]
    model: Model
    width: int
    seed: int
    nodes: int = 32
    fields: int = 128
    adam: int = 300
    lbfgs: int = 150
    tested_at: tuple[int, ...] = (8, 16, 32, 64, 128)


def fit(net: Net, job: Job, generator: torch.Generator) -> float:
    """Fits by Adam, then by L-BFGS on all training fields; returns the relative L2 training error."""
    data = sample(job.model, random_fields(job.fields, generator), job.nodes, torch.float32)
    scale = data.exact.square().mean()

    def loss(index: Tensor | slice) -> Tensor:
        out = net(data.u[index], data.domain, data.query[index], data.query_domain)
        return (out - data.exact[index]).square().mean() / scale

    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, job.adam, eta_min=1e-3)
    for _ in range(job.adam):
        value = loss(torch.randint(job.fields, (min(16, job.fields),), generator=generator))
        adam.zero_grad()
        value.backward()
        adam.step()
        schedule.step()
    lbfgs = torch.optim.LBFGS(
        net.parameters(), max_iter=job.lbfgs, history_size=50, line_search_fn="strong_wolfe", tolerance_change=0.0
    )

    def closure() -> Tensor:
        lbfgs.zero_grad()
        value = loss(slice(None))
        value.backward()
        return value

    lbfgs.step(closure)  # pyright: ignore[reportArgumentType]  # the stub wants a float; torch takes the tensor
    with torch.no_grad():
        return loss(slice(None)).sqrt().item()


@torch.no_grad()
def quadrature_error(net: Net, job: Job, nodes: int, *, at_nodes: bool = False) -> float:
    """Relative L2 distance of the trained operator on ``nodes`` nodes from itself on nine times as many."""
    fields = random_fields(8, torch.Generator().manual_seed(10**6 + 1))
    coarse, fine = (sample(job.model, fields, m, torch.float64, at_nodes=at_nodes) for m in (nodes, 9 * nodes))
    net.double()
    first, second = (net(s.u, s.domain, s.query, s.query_domain) for s in (coarse, fine))
    offset = 4 if net.on_torus or at_nodes else 8  # of the first coarse query among the fine ones
    second = second[:, offset::9]
    net.float()
    return ((first - second).norm() / second.norm()).item()


def run(job: Job) -> dict[str, Any]:
    """Fits one net and tests it on 64 test fields."""
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    started = time.perf_counter()
    net = Net(job.model, job.width)
    train_error = fit(net, job, torch.Generator().manual_seed(job.seed))
    tested: dict[int, dict[str, float]] = {}
    with torch.no_grad():
        for nodes in job.tested_at:
            test = sample(job.model, random_fields(64, torch.Generator().manual_seed(10**6)), nodes, torch.float32)
            error = net(test.u, test.domain, test.query, test.query_domain) - test.exact
            tested[nodes] = {"sup": error.abs().max().item(), "l2": (error.norm() / test.exact.norm()).item()}
    result = job._asdict() | {"train_l2": train_error, "test": tested, "seconds": time.perf_counter() - started}
    if job.purpose == "nodes":
        sizes = [m for m in job.tested_at if m <= 64]
        result["quadrature"] = {m: quadrature_error(net, job, m) for m in sizes}
        if not net.on_torus:
            result["quadrature_at_nodes"] = {m: quadrature_error(net, job, m, at_nodes=True) for m in sizes}
    return result


def jobs(config: Config) -> list[Job]:
    """Every fit of the study, the longest first."""
    if config.quick:
        tiny = {"fields": 4, "adam": 2, "lbfgs": 2, "nodes": 8, "tested_at": (4, 8)}
        planned = [Job("width", model, w, config.seed, **tiny) for model in (CAUSAL, STEP, PERCEPTRON) for w in (1, 2)]
        planned += [Job("models", model, 2, config.seed, **tiny) for model in (BARE, LIFTED, TWO)]
        planned += [Job("longer", CAUSAL, width, config.seed, **tiny) for width in (1, 2)]
        return planned + [Job("nodes", model, 2, config.seed, **tiny) for model in (CAUSAL, PERCEPTRON)]
    seeds = range(3 * config.seed, 3 * config.seed + 3)
    widths = (1, 2, 4, 8, 16, 32, 64)
    planned = [Job("width", m, w, seed) for m in (CAUSAL, STEP, PERCEPTRON) for w in widths for seed in seeds]
    planned += [Job("models", model, 32, seed) for model in (BARE, LIFTED, TWO) for seed in seeds]
    longer = [(model, 32) for model in Model.__args__] + [(m, w) for m in (CAUSAL, PERCEPTRON) for w in (2, 4, 8, 16)]
    planned += [Job("longer", model, width, seeds[0], adam=1200, lbfgs=600) for model, width in longer]
    planned += [Job("nodes", model, 16, seeds[0], nodes=m) for model in (CAUSAL, PERCEPTRON) for m in (8, 16, 32, 64)]
    return sorted(planned, key=lambda job: job.width * job.nodes**2 * job.lbfgs, reverse=True)


def run_all(config: Config) -> list[dict[str, Any]]:
    """All results, in the order of the jobs."""
    planned = jobs(config)
    with progress_bar("fits", len(planned), unit="fit") as bar:
        if config.workers == 1 or config.quick:
            done: Iterator[dict[str, Any]] = map(run, planned)
            return [result for result in done if bar.update() or True]
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(config.workers, mp_context=context) as pool:
            return [result for result in pool.map(run, planned) if bar.update() or True]


def slope(sizes: Sequence[float], errors: Sequence[float]) -> float:
    """Slope of the least-squares line through log error against log size."""
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def longer_fits(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fits with four times the steps, by model and width."""
    order = list(Model.__args__)
    return sorted((r for r in results if r["purpose"] == "longer"), key=lambda r: (order.index(r["model"]), r["width"]))


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean errors by width, by model and by nodes, and the fitted slopes."""
    means: dict[str, dict[int, dict[str, float]]] = {}
    swept = [r for r in results if r["purpose"] in ("width", "models")]
    for model in Model.__args__:
        for width in sorted({r["width"] for r in swept if r["model"] == model}):
            same = [r for r in swept if (r["model"], r["width"]) == (model, width)]
            tests = [r["test"][r["nodes"]] for r in same]
            means.setdefault(model, {})[width] = {
                "sup": statistics.mean(t["sup"] for t in tests),
                "l2": statistics.mean(t["l2"] for t in tests),
                "train_l2": statistics.mean(r["train_l2"] for r in same),
            }
    slopes: dict[str, float] = {}
    for model in (CAUSAL, STEP, PERCEPTRON):
        widths = sorted(means[model])
        for name, part in (("all widths", widths), ("up to 8", [w for w in widths if w <= 8])):
            for error in ("sup", "l2"):
                slopes[f"{model}: {error} against width, {name}"] = slope(part, [means[model][w][error] for w in part])
        longer = {r["width"]: r["test"][r["nodes"]] for r in longer_fits(results) if r["model"] == model}
        if len(longer) > 1:
            for error in ("sup", "l2"):
                errors = [e[error] for e in longer.values()]
                slopes[f"{model}: {error} against width, four times the steps"] = slope(list(longer), errors)
    for result in results:
        for kind in ("quadrature", "quadrature_at_nodes"):
            sizes = list(result.get(kind, {}))[1:]  # the coarsest does not resolve the fields
            if len(sizes) > 1:
                at = ", asked at nodes" if kind == "quadrature_at_nodes" else ""
                name = f"{result['model']}, trained on {result['nodes']} nodes: quadrature error against nodes{at}"
                slopes[name] = slope(sizes, [result[kind][m] for m in sizes])
    return {"means": means, "slopes": slopes, "lower_bound_one_layer": lower_bound()}


def draw_figure(results: list[dict[str, Any]], means: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Draws three panels: error against width, error against nodes, quadrature error against nodes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {CAUSAL: BLUE, STEP: GREEN, PERCEPTRON: ORANGE, BARE: PURPLE, LIFTED: GREY, TWO: "black"}
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13.5, 6.2), layout="constrained")
    for model, by_width in means.items():
        widths = list(by_width)
        marker = "o-" if len(widths) > 1 else "s"
        left.loglog(widths, [e["l2"] for e in by_width.values()], marker, color=colours[model], label=model, ms=4)
        longer = {r["width"]: r["test"][r["nodes"]]["l2"] for r in longer_fits(results) if r["model"] == model}
        left.loglog(list(longer), list(longer.values()), "*:", color=colours[model], ms=9)
    left.loglog([], [], "*:", color=GREY, ms=9, label="four times the steps")
    widths = list(means[CAUSAL])
    left.loglog(widths, [0.5 * w**-0.5 for w in widths], "--", color=GREY, label="slope −1/2 (eq. 184)")
    left.set_xlabel("kernel width w")
    left.set_ylabel("relative L2 error on other fields")
    trained = sorted((r for r in results if r["purpose"] == "nodes"), key=lambda r: r["nodes"])
    for model in (CAUSAL, PERCEPTRON):
        for result, style in zip([r for r in trained if r["model"] == model], (":", "-.", "--", "-"), strict=False):
            nodes, label = list(result["test"]), f"{model.split(',')[0]}, trained on {result['nodes']}"
            errors = [e["l2"] for e in result["test"].values()]
            middle.loglog(nodes, errors, style, marker="o", ms=3, color=colours[model], label=label)
    middle.set_xlabel("nodes M in the test")
    middle.set_ylabel("relative L2 error on other fields")
    for model in (CAUSAL, PERCEPTRON):
        result = [r for r in trained if r["model"] == model][-1]
        for kind, label in (("quadrature", model), ("quadrature_at_nodes", f"{model}, asked at the nodes")):
            if kind in result:
                style = "o-" if kind == "quadrature" else "s--"
                right.loglog(list(result[kind]), list(result[kind].values()), style, color=colours[model], label=label)
    nodes = list(trained[0]["quadrature"])
    right.loglog(nodes, [1.5 / m for m in nodes], "--", color=GREY, label="slope −1 (eq. 184)")
    right.loglog(nodes, [3 / m**2 for m in nodes], ":", color=GREY, label="slope −2 (midpoint rule)")
    right.set_xlabel("nodes M")
    right.set_ylabel("relative distance from nine times the nodes")
    for axes, ticks in ((left, widths), (middle, list(trained[0]["test"])), (right, nodes)):
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main(config: Config) -> None:
    """Runs the study, prints its table and writes results.json and universal_approximation.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("universal_approximation: the figure needs matplotlib: pip install 'fredholm[viz]'")
    if config.workers < 1:
        raise SystemExit(f"universal_approximation: --workers counts processes, at least 1; got {config.workers}")
    config.out.mkdir(parents=True, exist_ok=True)
    results = run_all(config)
    found = summary(results)
    report = {"seed": config.seed, "quick": config.quick} | found | {"runs": results}
    (config.out / "results.json").write_text(json.dumps(report, indent=1))
    print_line(f"{'model':<46} {'width':>5} {'sup error':>10} {'L2 error':>9} {'in training':>11}")
    for model, by_width in found["means"].items():
        for width, e in by_width.items():
            print_line(f"{model:<46} {width:>5} {e['sup']:10.4f} {e['l2']:9.4f} {e['train_l2']:11.4f}")
    for result in longer_fits(results):
        e = result["test"][result["nodes"]]
        name = f"{result['model']}, 4 x the steps"
        print_line(f"{name:<61} {result['width']:>5} {e['sup']:10.4f} {e['l2']:9.4f} {result['train_l2']:11.4f}")
    for name, value in found["slopes"].items():
        print_line(f"slope {value:6.2f}  {name}")
    bound = found["lower_bound_one_layer"]
    print_line(f"no single layer is nearer to the Burgers flow of all four glued bumps than {bound:.4f}")
    draw_figure(results, found["means"], config.out / "universal_approximation.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
