"""Draws the pictures of the documentation into this folder: `make pictures`. Some minutes on two cores."""

import dataclasses
import math
import pydoc_data.topics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

import fredholm
from fredholm import analysis, domains, encoders, kernels, models, quadrature
from fredholm.evaluation import BasisTiled, Factorisation, HopSeries, Integral, Truncation
from fredholm.kernels.neumann.linear_infinite_attention import CentralForm, central_weights
from fredholm.models.images.infvit import AttentionKind
from fredholm.operators import collect_auxiliary_losses
from fredholm.tasks.targets import NumberTarget

HERE = Path(__file__).resolve().parent
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#666666"


def smooth_signal(pos: Tensor) -> Tensor:
    """Four channels of a smooth signal on the unit square, `(1, N, 4)`."""
    x, y = pos.unbind(-1)
    return torch.stack([torch.exp(x) * torch.cos(2 * y), torch.sin(3 * x * y), 1 / (1 + x + y), x * x - y], -1)[None]


def gauss_legendre(n: int) -> domains.Points:
    """n x n nodes on the unit square with weights, exact for polynomials up to degree 2n - 1 in each coordinate."""
    nodes, weights = (torch.from_numpy(a) / 2 for a in np.polynomial.legendre.leggauss(n))
    pos = torch.cartesian_prod(nodes + 0.5, nodes + 0.5)
    return domains.Points(pos, weights=torch.outer(weights, weights).reshape(-1))


@torch.no_grad()
def refinement_errors(num_frequencies: int, sigma: float, sizes: list[int]) -> list[float]:
    """Relative error of one operator with random weights on n x n grids, asked at twenty points off the grids."""
    torch.manual_seed(0)
    kernel = kernels.MLP(4, pos_dim=2, width=32, num_frequencies=num_frequencies, sigma=sigma, epsilon=1.0)
    kernel.input_weight.mul_(10)  # far into the nonlinear range, so that the kernel is no near-constant
    op = fredholm.IntegralOperator(kernel, residual=False).double()
    at = domains.Points(torch.rand(20, 2, dtype=torch.float64))

    def value(domain: domains.Domain) -> Tensor:
        return op(smooth_signal(domain.pos), domain, query=smooth_signal(at.pos), query_domain=at)

    exact = value(gauss_legendre(120))
    return [((value(domains.Grid(n, n)) - exact).norm() / exact.norm()).item() for n in sizes]


def draw_refinement() -> None:
    """refinement.png: the error against the grid."""
    sizes = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for (frequencies, sigma, label), colour in zip(
        [(0, 10.0, "raw coordinates"), (64, 1.0, "Fourier features, σ = 1"), (64, 10.0, "Fourier features, σ = 10")],
        [BLUE, GREEN, ORANGE],
        strict=True,
    ):
        errors = refinement_errors(frequencies, sigma, sizes)
        print(f"{label}: " + "  ".join(f"{n}: {error:.2e}" for n, error in zip(sizes, errors, strict=True)))
        axes.loglog(sizes, errors, "o-", color=colour, label=label, markersize=4)
    axes.loglog(sizes, [0.2 / n**2 for n in sizes], "--", color=GREY, label="slope −2 (midpoint rule)")
    axes.set_xticks([4, 8, 16, 32, 64], ["4²", "8²", "16²", "32²", "64²"])
    axes.minorticks_off()
    axes.set_xlabel("grid")
    axes.set_ylabel("relative error of the integral")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(HERE / "refinement.png", dpi=120)


def gaussian(displacement: Tensor, length: float = 0.12) -> Tensor:
    """exp(-‖z‖² / 2 length²) of displacements z, `(..., 2)`."""
    return torch.exp(-displacement.square().sum(-1) / (2 * length**2))


def blur_pairs(n: int, count: int) -> tuple[Tensor, Tensor, domains.Grid]:
    """White noise on an n x n grid, and its Gaussian blur: two `(count, n², 1)`."""
    grid = domains.Grid(n, n)
    pos = grid.pos.float()
    noise = torch.randn(count, n * n, 1)
    return noise, (gaussian(pos[:, None] - pos) / n**2) @ noise, grid


def learn_blur() -> fredholm.IntegralOperator:
    """An operator that saw nothing but pairs of noise and its blur on 16 x 16 grids."""
    torch.manual_seed(0)
    inputs = kernels.KernelInputs(
        query_position=False, key_position=False, query_content=False, key_content=False, product=False
    )
    kernel = kernels.MLP(1, pos_dim=2, width=64, inputs=inputs, num_frequencies=32, sigma=1.0, epsilon=1.0)
    op = fredholm.IntegralOperator(kernel, residual=False, bias=False)
    steps = 600
    optimizer = torch.optim.AdamW(op.parameters(), lr=1e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        u, target, grid = blur_pairs(16, 4)
        loss = (op(u, grid) - target).square().mean() / target.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return op


def draw_learned_kernel() -> None:
    """learned_kernel.png: one row of the learned kernel on a grid finer than it was trained on."""
    op = learn_blur().requires_grad_(False)
    for n in (16, 32, 64):
        u, target, grid = blur_pairs(n, 2)
        print(f"learned blur on {n} x {n}: relative error {((op(u, grid) - target).norm() / target.norm()).item():.4f}")
    n = 65
    fine, centre = domains.Grid(n, n), domains.Points(torch.full((1, 2), 0.5))
    nothing = torch.zeros(1, n * n, 1)
    row = op.output_weight.item() * op.kernel.matrix(nothing, fine, nothing[:, :1], centre).reshape(n, n)
    true = gaussian(fine.pos.float() - 0.5).reshape(n, n)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
    image = left.imshow(row, extent=(0, 1, 0, 1), cmap="viridis", vmin=0, vmax=1)
    left.set_title("learned κ(x, ·), x in the middle", fontsize=10)
    figure.colorbar(image, ax=left)
    across = (torch.arange(n) + 0.5) / n
    right.plot(across, true[n // 2], color=GREY, linewidth=4, alpha=0.5, label="the blur's kernel")
    right.plot(across, row[n // 2], color=BLUE, label="learned κ")
    samples = (torch.arange(16) + 0.5) / 16
    right.plot(samples, torch.full((16,), -0.08), "|", color=ORANGE, label="training grid")
    right.set_title("along the middle line", fontsize=10)
    right.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(HERE / "learned_kernel.png", dpi=120)


def learn_proposal(op: fredholm.IntegralOperator, num_samples: int) -> quadrature.PairProposal:
    """A distribution for each query that learned from the integrals of noise on a 16 x 16 grid."""
    torch.manual_seed(0)
    proposal = quadrature.PairProposal(1, 2, harmonics=2)
    sampled = op.with_quadrature(quadrature.MonteCarlo(num_samples, proposal, num_targets=64))
    optimizer = torch.optim.Adam(proposal.parameters(), lr=1e-2)
    for _ in range(250):
        u, _, grid = blur_pairs(16, 2)
        with torch.no_grad():
            u = u.abs() + 0.5
        with collect_auxiliary_losses() as losses:
            sampled(u, grid)
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
    return proposal


@torch.no_grad()
def sampling_errors(op: fredholm.IntegralOperator, choice: quadrature.Quadrature, grid: domains.Grid) -> float:
    """Relative error of a smooth signal's integral, root mean square over 8 calls."""
    torch.manual_seed(0)
    u = smooth_signal(grid.pos)[..., :1].float()
    exact, sampled = op(u, grid), op.with_quadrature(choice)
    errors = [(sampled(u, grid) - exact).square().sum() / exact.square().sum() for _ in range(8)]
    return torch.stack(errors).mean().sqrt().item()


def draw_quadrature() -> None:
    """quadrature.png: where integrals are sampled, and the error that is left."""
    op = learn_blur().requires_grad_(False)
    proposal = learn_proposal(op, 32).requires_grad_(False)
    grid, centre = domains.Grid(24, 24), domains.Points(torch.tensor([[0.3, 0.6]], dtype=torch.float64))
    u = torch.ones(1, 576, 1)
    asked = {"query": u[:, :1], "query_domain": centre}
    figure, places = plt.subplots(1, 4, figsize=(14, 3.7), layout="constrained", width_ratios=[1, 1, 1, 1.4])
    torch.manual_seed(1)
    given = Integral(op.kernel, u, grid, asked["query"], centre)
    kinds = (
        (quadrature.MonteCarlo(64, per_query=True), GREY, "by mass"),
        (quadrature.MonteCarlo(64, proposal), BLUE, "learned"),
    )
    for choice, colour, label in kinds:
        nodes = choice.nodes(given)
        assert isinstance(nodes, quadrature.NodesPerQuery)
        places[0].plot(*grid.pos[nodes.index[0, 0]].T, ".", color=colour, markersize=4, label=label)
    places[0].plot(*centre.pos[0], "*", color=ORANGE, markersize=10, label="query")
    places[0].set_title("64 nodes of a query", fontsize=10)
    places[0].legend(fontsize=7, loc="lower right")
    owner = quadrature.clusters(grid.pos[None], grid.weights[None], 32, 10, grid)[0]
    places[1].scatter(*grid.pos.T, c=(owner * 7) % 20, cmap="tab20", s=5)
    means = torch.stack([grid.pos[owner == c].mean(0) for c in range(32)])
    places[1].plot(*means.T, "k.", markersize=5)
    places[1].set_title("32 anchors", fontsize=10)
    near = (grid.pos - centre.pos).norm(dim=-1) <= 0.2
    places[2].plot(*grid.pos[~near].T, ".", color=GREY, markersize=1)
    places[2].plot(*grid.pos[near].T, ".", color=GREEN, markersize=3)
    places[2].plot(*centre.pos[0], "*", color=ORANGE, markersize=10)
    places[2].set_title("neighbourhood, radius 0.2", fontsize=10)
    for axes in places[:3]:
        axes.set(xticks=[], yticks=[], aspect="equal", xlim=(0, 1), ylim=(0, 1))
    sizes = [8, 16, 32, 64, 128, 256]
    curves = {
        "shared, by mass": (GREY, "-", lambda m: quadrature.MonteCarlo(m)),
        "shared, stratified": (GREY, "--", lambda m: quadrature.MonteCarlo(m, draw="stratified")),
        "shared, quasi-random": (GREY, ":", lambda m: quadrature.MonteCarlo(m, draw="quasi_random")),
        "per query, by mass": (BLUE, "--", lambda m: quadrature.MonteCarlo(m, per_query=True)),
        "per query, learned": (BLUE, "-", lambda m: quadrature.MonteCarlo(m, proposal)),
        "anchors": (ORANGE, "-", lambda m: quadrature.Anchors(m)),
        "nearest neighbours": (GREEN, "-", lambda m: quadrature.Neighbourhood(num_neighbours=m)),
    }
    for label, (colour, style, make) in curves.items():
        errors = [sampling_errors(op, make(m), grid) for m in sizes]
        print(f"{label}: " + "  ".join(f"{m}: {error:.1e}" for m, error in zip(sizes, errors, strict=True)))
        places[3].loglog(sizes, errors, style, marker=".", color=colour, label=label)
    places[3].set(xlabel="nodes M, of 576 points", ylabel="relative error")
    places[3].legend(frameon=False, fontsize=7)
    places[3].grid(alpha=0.3)
    figure.savefig(HERE / "quadrature.png", dpi=110)


def draw_gallery() -> None:
    """gallery.png: |κ| of one layer of each family on sixteen points, query by key."""
    torch.manual_seed(0)
    n, d = 16, 8
    u = torch.randn(1, n, d)
    layers = {
        "Convolution, 5 taps": kernels.Convolution(d, d, 5, 1, padding=2),
        "Attention": kernels.Attention(d, 2, scale=1.5),
        "Attention, causal": kernels.Attention(d, 2, is_causal=True, scale=1.5),
        "LinearRNN": kernels.LinearRNN(d, 4),
        "SelectiveStateSpace": kernels.SelectiveStateSpace(d, 8, min_step=0.1, max_step=0.3, feedthrough=False),
        "LSTM": kernels.LSTM(d, d),
        "MLP": kernels.MLP(d, 2, 1, width=32, num_frequencies=8, sigma=2.0, epsilon=10.0),
    }
    figure, places = plt.subplots(1, len(layers), figsize=(13, 2.3), layout="constrained")
    for axes, (name, kernel) in zip(places, layers.items(), strict=True):
        with torch.no_grad():
            size = kernel.matrix(u, domains.Grid(n)).norm(dim=(-2, -1))[0]
        axes.imshow(size / size.max(), cmap="magma", vmin=0, vmax=1)
        axes.set_title(name, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    places[0].set_ylabel("query")
    places[0].set_xlabel("key")
    figure.savefig(HERE / "gallery.png", dpi=110)


@torch.no_grad()
def torus(count: int, seed: int) -> Tensor:
    """Points drawn evenly on a torus of radii 1 and 0.4, `(count, 3)`."""
    drawn = torch.Generator().manual_seed(seed)
    about, across, keep = torch.rand(3, 4 * count, generator=drawn) * torch.tensor([[6.2832], [6.2832], [1.4]])
    inside = (keep < 1 + 0.4 * across.cos()).nonzero()[:count, 0]
    reach = 1 + 0.4 * across[inside].cos()
    return torch.stack([reach * about[inside].cos(), reach * about[inside].sin(), 0.4 * across[inside].sin()], -1)


@torch.no_grad()
def draw_clouds() -> None:
    """clouds.png: a cloud, the farthest of its points, a neighbourhood, and what a kernel makes of one point."""
    torch.manual_seed(0)
    pos = torus(1500, 0)
    few = encoders.PointCloud.Config(num_centres=200, num_neighbours=0)
    _, whole = encoders.PointCloud(dataclasses.replace(few, num_centres=None), 4)(pos[None])
    _, thinned = encoders.PointCloud(few, 4)(pos[None])
    own = int((whole.pos[0] - torch.tensor([0.5, 0.05, 0.6])).norm(dim=-1).argmin())
    near = domains.nearest(whole.pos[0], whole.pos[0, own : own + 1], k=16).points[0]
    is_near = torch.zeros(1500, dtype=torch.bool).index_fill(0, near, True)
    kernel = kernels.MLP(4, pos_dim=3, width=32, num_frequencies=16, sigma=1.0, epsilon=1.0)
    silent = torch.zeros(1, 1500, 4)
    row = kernel.matrix(silent, whole, silent[:, :1], domains.Points(whole.pos[:, own : own + 1]))[0, 0, :, 0, 0]
    figure, places = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained", subplot_kw={"projection": "3d"})
    panels = [
        (whole.pos[0], BLUE, "1,500 points in the unit box"),
        (thinned.pos[0], BLUE, "200 of them, each farthest from the others"),
        (whole.pos[0], [ORANGE if each else "#bbccdd" for each in is_near.tolist()], "a point and its 15 neighbours"),
        (
            whole.pos[0],
            plt.get_cmap("coolwarm")(((row - row.min()) / (row.max() - row.min())).numpy()),
            "an entry of κ(x, y), the same x, over y",
        ),
    ]
    for axes, (points, colour, title) in zip(places, panels, strict=True):
        size = np.where(is_near, 14, 3) if title.startswith("a point") else 5
        axes.scatter(*points.T.numpy(), c=colour, s=size, depthshade=False, linewidths=0)
        axes.set(xlim=(0, 1), ylim=(0, 1), zlim=(0.3, 0.7))
        axes.set_box_aspect((1, 1, 0.4), zoom=1.3)
        axes.view_init(50, -70)
        axes.set_axis_off()
        axes.set_title(title, fontsize=9, y=1.02)
    figure.savefig(HERE / "clouds.png", dpi=110)


def two_communities() -> Tensor:
    """Edges, both ways, of a ring of 14 and a grid of 4 x 4 nodes with a bridge between them."""
    ring = [(i, (i + 1) % 14) for i in range(14)]
    cells = [(14 + 4 * r + c, 14 + 4 * (r + i) + c + 1 - i) for r in range(4) for c in range(4) for i in (0, 1)]
    grid = [(a, b) for a, b in cells if b < 30 and (b - a == 4 or (b - 14) // 4 == (a - 14) // 4)]
    return domains.undirected(torch.tensor([*ring, *grid, (0, 14)]).T)


@torch.no_grad()
def draw_edges() -> None:
    """edges.png: where a graph's Laplacian puts its nodes, and what a kernel on its edges sums at one node."""
    torch.manual_seed(0)
    edges = two_communities()
    graph = domains.Graph(edges, 30)
    inner = kernels.MLP(4, pos_dim=8, width=32, num_frequencies=16, sigma=0.3, epsilon=30.0)
    u = torch.zeros(1, 30, 4)
    figure, places = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
    x, y = graph.pos[:, 0], graph.pos[:, 1]
    own = 0
    reached = [None, None, 0.05, 0.5]
    titles = ["the first two coordinates", "the third", "‖κ(x, y)‖, λ = 0.05", "‖κ(x, y)‖, λ = 0.5"]
    for axes, share, title in zip(places, reached, titles, strict=True):
        for a, b in edges.T.tolist():
            axes.plot(x[[a, b]], y[[a, b]], color="#bbccdd", linewidth=1, zorder=0)
        colour = graph.pos[:, 2].numpy() if title == titles[1] else torch.zeros(30).numpy()
        if share is not None:
            kernel = kernels.OnEdges(inner, long_range=share, edge_mass="measure")
            colour = kernel.matrix(u, graph)[0, own].norm(dim=(-2, -1)).numpy()
        axes.scatter(x, y, c=colour, s=40, cmap="coolwarm" if share is None else "magma_r", edgecolors=GREY)
        if share is not None:
            axes.scatter(x[own], y[own], s=130, facecolors="none", edgecolors=ORANGE, linewidths=2)
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    figure.savefig(HERE / "edges.png", dpi=110)


@torch.no_grad()
def draw_neighbourhood_bank() -> None:
    """neighbourhood_bank.png: features averaged along edges, and two waves over the neighbourhoods of rings."""
    edges, nodes = two_communities(), 30
    drawn = torch.Generator().manual_seed(3)
    h = (torch.rand(nodes, generator=drawn) < 0.3).float()
    angle = 2 * torch.pi * torch.arange(14) / 14
    grid = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0))
    pos = torch.cat([torch.stack([-2.6 * angle.cos(), 2.6 * angle.sin()], 1), grid * 1.3 + torch.tensor([4.0, -2.0])])
    step = torch.zeros(nodes, nodes).index_put_((edges[1], edges[0]), torch.ones(()))
    step = step / step.sum(1, keepdim=True)
    figure, panels = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained")
    for hops, axes in enumerate(panels[:3]):
        for a, b in edges.T.tolist():
            axes.plot(*pos[[a, b]].T, color=GREY, linewidth=0.5, zorder=0)
        axes.scatter(*pos.T, c=h, s=40, cmap="viridis", vmin=0, vmax=1, edgecolors="white", linewidths=0.5)
        axes.set(title=("features u", "A u", "A² u")[hops], xticks=[], yticks=[])
        h = step @ h
    labels = torch.arange(120) % 2
    turns = 2 * torch.pi * torch.arange(8) / 8 * (1 + labels[:, None])
    phase = 2 * torch.pi * torch.rand(120, 1, generator=drawn)
    features = (turns + phase).sin()[..., None] + 0.3 * torch.randn(120, 8, 1, generator=drawn)
    ring = torch.stack([torch.arange(8), torch.arange(8).roll(1)])
    graphs = encoders.GraphBatch(
        features, torch.cat([ring, ring.flip(0)], 1).expand(120, -1, -1), torch.zeros(120, 8, 1)
    )
    torch.manual_seed(0)
    bank = models.NeighbourhoodBank.Config(num_waves=64).build(models.GraphReading(features=1, pos_dim=1), 2)
    bank.scale.fill_(2.0)
    found = bank.features(graphs)[:, :64]
    one, other = (found[labels == k] for k in (0, 1))
    x, y = (one.mean(0) - other.mean(0)).abs().topk(2).indices.tolist()
    for k, colour in ((0, BLUE), (1, ORANGE)):
        own = found[labels == k]
        panels[3].plot(own[:, x], own[:, y], ".", color=colour, markersize=5, label=("once", "twice")[k])
    panels[3].set(title="rings that wave once or twice", xlabel="mean of one wave", ylabel="mean of another")
    panels[3].legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "neighbourhood_bank.png", dpi=110)


def irregular_errors(sizes: list[int], *, weighed: bool) -> list[float]:
    """Mean relative error of one kernel's integral over [0, 1] by samples at random times, twenty draws each.

    Each weighs half the distance between its neighbours, or all weigh the same.
    """
    torch.manual_seed(0)
    kernel = kernels.ContinuousConvolution(2, 8, spacing=0.01, omega_0=10.0).double()
    end = domains.Sequence(1, spacing=1.0, start=1.0)

    def value(times: Tensor, weights: Tensor) -> Tensor:
        domain = domains.Sequence(times=times, weights=weights / kernel.spacing[0])
        u = torch.stack([torch.sin(3 * times) + 0.3 * times, torch.cos(5 * times)], -1)[None]
        return BasisTiled().integrate(Integral(kernel, u, domain, None, end))

    fine = torch.linspace(0, 1, 4001, dtype=torch.float64)
    exact = value(fine, domains.trapezoid_weights(fine))
    means = []
    for n in sizes:
        errors = []
        for _ in range(20):
            times = torch.cat([torch.rand(n - 2, dtype=torch.float64), fine[[0, -1]]]).sort().values
            weights = domains.trapezoid_weights(times) if weighed else torch.full_like(times, 1 / n)
            errors.append(((value(times, weights) - exact).norm() / exact.norm()).item())
        means.append(sum(errors) / len(errors))
    return means


def draw_continuous_convolution() -> None:
    """continuous_convolution.png: kernels as they start, one kernel at three rates, irregular samples."""
    figure, places = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    fine = torch.linspace(0, 1, 1001)[:, None]
    for omega_0, colour in zip((5.0, 30.0, 100.0), (BLUE, ORANGE, GREY), strict=True):
        torch.manual_seed(1)
        kernel = kernels.ContinuousConvolution(1, 1, omega_0=omega_0).requires_grad_(False)
        psi = kernel.values(fine)[:, 0, 0]
        places[0].plot(fine, psi, color=colour, linewidth=1, label=f"ω₀ = {omega_0:g}")
    places[0].set(xlabel="x − y, as a share of the longest in training", ylabel="κ as it starts", yticks=[])
    places[0].legend(frameon=False, fontsize=8)
    torch.manual_seed(1)
    kernel = kernels.ContinuousConvolution(1, 1, omega_0=20.0, scale=1.0, spacing=1 / 40).requires_grad_(False)
    places[1].plot(fine, kernel.values(fine)[:, 0, 0], color=GREY, linewidth=0.8)
    for n, colour, marker, label in ((40, BLUE, "o", "rate of training"), (20, ORANGE, "s", "half the rate")):
        grid = domains.Sequence(n + 1, spacing=1 / n).grid_blocks[0]
        taps = kernel.filter_weight(grid, grid)[0, 0].flip(0)
        places[1].plot(torch.linspace(0, 1, n + 1), taps, marker, color=colour, markersize=9 - n / 8, label=label)
    places[1].set(xlabel="x − y", ylabel="κ", yticks=[])
    places[1].legend(frameon=False, fontsize=8)
    sizes = [10, 20, 40, 80, 160, 320, 640]
    for weighed, colour, label in ((True, BLUE, "trapezoid weights"), (False, ORANGE, "equal weights")):
        errors = irregular_errors(sizes, weighed=weighed)
        print(f"{label}: " + "  ".join(f"{n}: {error:.2e}" for n, error in zip(sizes, errors, strict=True)))
        places[2].loglog(sizes, errors, "o-", color=colour, markersize=4, label=label)
    places[2].loglog(sizes, [100 / n**2 for n in sizes], "--", color=GREY, label="slope −2")
    places[2].set(xlabel="samples at random times", ylabel="relative error of the integral")
    places[2].legend(frameon=False, fontsize=8)
    places[2].grid(alpha=0.3)
    figure.savefig(HERE / "continuous_convolution.png", dpi=110)


def textured_scenes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Noise with a square of one of four textures: images `(count, 1, 24, 24)`, which texture, and where, as a mask."""
    row, column = torch.arange(8)[:, None], torch.arange(8)
    stripes, blocks = (row // 2 + 0 * column) % 2, (row // 2 + column // 2) % 2
    textures = torch.stack([stripes, stripes.T, blocks, (row + column) // 4 % 2]).float()
    images, labels = torch.rand(count, 1, 24, 24, generator=generator), torch.randint(4, (count,), generator=generator)
    masks = torch.zeros(count, 24, 24, dtype=torch.bool)
    corners = (4 * torch.randint(5, (count, 2), generator=generator)).tolist()
    for image, mask, label, (top, left) in zip(images, masks, labels, corners, strict=True):
        image[0, top : top + 8, left : left + 8] = textures[label]
        mask[top : top + 8, left : left + 8] = True
    return images, labels, masks


def learn_textures(attention: AttentionKind, steps: int = 100) -> models.InfViT:
    """A vision transformer of two layers that learned to name the texture."""
    torch.manual_seed(0)
    config = models.InfViT.Config(embed_dim=32, depth=2, num_heads=4, attention=attention)
    image = encoders.Image.Config(image_size=(24, 24), patch_size=4, channels=1, num_frequencies=8, sigma=1.0)
    net = models.InfViT(encoders.Image(image, config.embed_dim), 4, config)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        images, labels, _ = textured_scenes(64, generator)
        loss = torch.nn.functional.cross_entropy(net(images - 0.5), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def draw_attention_maps() -> None:
    """attention_maps.png: what the class token of three models takes from where, in their first layer."""
    images, labels, masks = textured_scenes(256, torch.Generator().manual_seed(1))
    inside, shown = analysis.patch_labels(masks, (6, 6)), {}
    for attention in ("softmax", "pure", "linear"):
        net = learn_textures(attention)

        def confidence(seen: Tensor, net: models.InfViT = net) -> Tensor:
            return net(seen - 0.5).softmax(-1)[torch.arange(len(seen)), labels]

        with torch.no_grad(), analysis.record_weights(net) as weights:
            right = (net(images - 0.5).argmax(-1) == labels).float().mean().item()
        print(f"{attention}: accuracy {right:.3f}")
        for layer in (0, 1):
            maps = analysis.patch_relevance(weights[f"blocks.{layer}.operator"], (6, 6))
            found = analysis.localisation(maps, inside)
            gone = {
                order: analysis.degradation_curve(confidence, images, maps, order=order, steps=12)
                for order in ("morf", "lerf")
            }
            print(
                f"  layer {layer + 1}: ROC-AUC {found.roc_auc.mean().item():.3f}, "
                f"average precision {found.average_precision.mean().item():.3f}, "
                f"MoRF-AOC {gone['morf'].aoc.mean().item():.3f}, LeRF-AUC {gone['lerf'].auc.mean().item():.3f}"
            )
            if layer == 0:
                shown[attention] = maps[:3]
    analysis.save_overlays(HERE / "attention_maps.png", images[:3], shown, opacity=0.7)


@torch.no_grad()
def draw_infinite_attention() -> None:
    """infinite_attention.png: a chain in one hop and in all, what rows of a hop sum to, and what routes leave over."""
    figure, places = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained", width_ratios=[1, 1, 1.3, 1.5])
    n = 16
    u = torch.nn.functional.one_hot(torch.arange(n), n).double()[None]
    one = kernels.InfiniteAttention(n, form="hop", normaliser="rows", bias=False)
    whole = kernels.InfiniteAttention(n, normaliser="rows", gamma=0.95, bias=False)
    sides = {"one hop": (one, places[0]), "all hops, γ = 0.95": (whole, places[1])}
    for title, (kernel, axes) in sides.items():
        kernel.double()
        kernel.projections.query_weight.copy_(torch.eye(n))
        # each point looks at the one before it
        kernel.projections.key_weight.copy_(torch.eye(n).roll(-1, 1).tril())
        axes.imshow(kernel.coefficients(u, domains.Sequence(n))[0, 0], cmap="magma", vmin=0, vmax=1)
        axes.set_title(title, fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
    places[0].set_ylabel("query")
    places[0].set_xlabel("key")
    torch.manual_seed(0)
    u = torch.randn(1, 256, 64)
    u[:, :, 0] += torch.where(torch.arange(256) < 26, 12.0, 0.0)  # a tenth of the points stand out
    for name, colour in (("frobenius", ORANGE), ("rows", BLUE)):
        torch.manual_seed(1)
        kernel = kernels.InfiniteAttention(64, form="hop", normaliser=name)
        rows = kernel.coefficients(u, domains.Sequence(256))[0, 0].sum(-1).sort(descending=True).values
        print(f"{name}: rows sum to {rows[-1]:.3f} … {rows[0]:.3f}")
        places[2].plot(rows, color=colour, label=name)
    places[2].axhline(1 / 0.7, color=GREY, linestyle="--", label="1/γ, γ = 0.7")
    places[2].set(xlabel="points, by their row", ylabel="sum of a row of A")
    places[2].legend(frameon=False, fontsize=8)
    kernel = kernels.InfiniteAttention(64).double()
    exact, value = (
        HopSeries(Factorisation()).integrate(Integral(kernel, u.double(), domains.Sequence(256))),
        kernel.projections.values(u.double()),
    )
    terms, errors = range(1, 41), []
    for count in terms:
        cut = HopSeries(Truncation(terms=count)).integrate(Integral(kernel, u.double(), domains.Sequence(256)))
        errors.append(((cut - exact).norm() / value.norm()).item())
    print(
        "cut after 1, 10, 40 hops:",
        *(f"{errors[t]:.1e} of at most {Truncation(terms=t + 1).bound(0.7):.1e}" for t in (0, 9, 39)),
    )
    places[3].semilogy(terms, [Truncation(terms=count).bound(0.7) for count in terms], "--", color=GREY, label="bound")
    places[3].semilogy(terms, errors, color=ORANGE, label="left out")
    places[3].set(xlabel="hops before the cut", ylabel="over the size of v", ylim=(1e-9, 3))
    places[3].legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "infinite_attention.png", dpi=110)


@torch.no_grad()
def draw_linear_infinite_attention() -> None:
    """linear_infinite_attention.png: weights of central queries beside the Perron vector that they may come near."""
    form = CentralForm(torch.empty(16, 12, 0), None, 1)  # the weights of queries that are given need no projection

    def compared(mean: float) -> tuple[Tensor, Tensor]:
        q = torch.randn(1, 16, 256, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + mean
        affinity, perron = (q @ q.mT).relu(), torch.ones(1, 16, 256, 1, dtype=torch.float64)
        for _ in range(100):
            perron = affinity @ perron
            perron = perron / perron.sum(2, keepdim=True)
        return central_weights(q, torch.ones(1, 1, 256, dtype=torch.float64), form)[0], perron[0, :, :, 0]

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    means = np.linspace(0, 1, 21)
    cosines = [torch.cosine_similarity(*compared(mean), dim=-1) for mean in means]
    print("cosine at mean 0, 0.25, 0.5, 1:", *(f"{cosines[k].mean():.5f}" for k in (0, 5, 10, 20)))
    left.plot(means, [cosine.mean() for cosine in cosines], color=BLUE)
    lowest, highest = ([pick(cosine) for cosine in cosines] for pick in (torch.min, torch.max))
    left.fill_between(means, lowest, highest, color=BLUE, alpha=0.2, linewidth=0)
    left.set(xlabel="mean of every coordinate of q", ylabel="cosine of a and the Perron vector")
    for mean, colour in ((0.0, ORANGE), (0.5, BLUE)):
        weight, perron = compared(mean)
        right.plot(perron[0], weight[0], ".", color=colour, markersize=4, label=f"mean {mean:g}")
    right.set(xlabel="entry of the Perron vector", ylabel="weight a of the point")
    right.legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "linear_infinite_attention.png", dpi=110)


def learnt_mixture() -> tuple[models.ITNet, encoders.JointBatch]:
    """The model of `mixtures.md` with patches of half the side, trained as there, and examples to look at."""

    def drawn(count: int, seed: int) -> tuple[encoders.JointBatch, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        photo, upright = 0.1 * torch.randn(count, 1, 8, 8, generator=draw), torch.rand(count, generator=draw) < 0.5
        photo[upright, :, :, 2], photo[~upright, :, 2] = 1.0, 1.0
        numbers, categories = torch.randn(count, 2, generator=draw), torch.randint(3, (count, 1), generator=draw)
        notes = torch.randint(1, 50, (count, 12), generator=draw)
        inputs = {"photo": photo, "notes": notes, "row": encoders.TableRowBatch(numbers, categories)}
        return encoders.JointBatch(inputs), (upright ^ (numbers[:, 0] > 0)).long()

    torch.manual_seed(0)
    pixels = encoders.Image.Config(image_size=(8, 8), patch_size=2, channels=1, num_frequencies=8, sigma=1.0)
    parts: dict[str, encoders.Encoder] = {
        "photo": encoders.Image(pixels, 32),
        "notes": encoders.Text(50, 32, context=16, num_frequencies=8, pad=0),
        "row": encoders.TableRow(2, [3], 32),
    }
    encoder = encoders.Joint(parts, mass={"photo": 2.0, "notes": 1.0, "row": 1.0})
    config = models.ITNet.Config(embed_dim=32, depth=2, num_heads=2, kernel=models.AttentionConfig())
    model = models.ITNet(encoder, num_outputs=2, config=config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(200):
        inputs, answers = drawn(64, step)
        loss = torch.nn.functional.cross_entropy(model(inputs), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inputs, answers = drawn(500, 1000)
    print(f"mixture: accuracy {(model.eval()(inputs).argmax(1) == answers).float().mean():.3f}")
    return model, drawn(64, 2000)[0]


def draw_mixtures() -> None:
    """mixtures.png: a joint domain, and the weights of attention between its parts."""
    model, inputs = learnt_mixture()
    with torch.no_grad(), analysis.record_weights(model) as weights:
        model(inputs)
    domain = model.encoder(inputs)[1]
    parts = {"photo": (16, BLUE), "notes": (12, ORANGE), "row": (3, GREEN)}
    figure = plt.figure(figsize=(9.6, 4.2), layout="constrained")
    space, matrix = figure.add_subplot(1, 2, 1, projection="3d"), figure.add_subplot(1, 2, 2)
    start, ticks, bounds = 0, [0.0], [0.5]
    for name, (count, colour) in parts.items():
        pos, mass = domain.pos[start : start + count], domain.weights[0, start : start + count]
        space.scatter(pos[:, 2], pos[:, 0], pos[:, 1], s=900 * mass, color=colour, depthshade=False)
        top = float(pos[:, 1].max()) + 0.12
        space.text(float(pos[0, 2]), float(pos[:, 0].mean()), top, name, color=colour, ha="center")
        ticks.append(1 + start + (count - 1) / 2)
        bounds.append(0.5 + start + count)
        start += count
    space.set(xlabel="part", ylabel="first coordinate", zlabel="second", xticks=[0, 1.5, 3])
    space.view_init(elev=18, azim=-58)
    found = weights["blocks.0.operator"].mean((0, 1))
    matrix.imshow(found.sqrt(), cmap="Greys", vmin=0)
    for bound in bounds[:-1]:
        matrix.axhline(bound, color=GREY, linewidth=0.6)
        matrix.axvline(bound, color=GREY, linewidth=0.6)
    names = ["class token", *parts]
    matrix.set_xticks(ticks, names)
    matrix.set_yticks(ticks, names)
    matrix.set(xlabel="point y", ylabel="point x", title="weight of y at x, dark is much (square root)")
    figure.savefig(HERE / "mixtures.png", dpi=110)


def draw_kernel_machine() -> None:
    """kernel_machine.png: the kernel of a machine before and after it is fitted, and how much coordinates count."""
    x, noise = (torch.rand(480, 10, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    answers = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    answers += noise.sum(1) - noise.sum(1).mean()
    x = (x - x.mean(0)) / x.std(0)
    target = NumberTarget(names=("y",), mean=(float(answers.mean()),), deviation=(float(answers.std()),))
    torch.manual_seed(0)
    machine = models.KernelMachine(10, 1, 480)
    machine.fit(x, target.targets(answers[:, None]), target)
    side = torch.linspace(-2, 2, 81)
    plane = torch.zeros(81 * 81, 10)
    plane[:, 3], plane[:, 7] = torch.cartesian_prod(side, side).T
    figure, (before, after, bars) = plt.subplots(1, 3, figsize=(9.8, 3.3), layout="constrained")
    for axes, weight, title in (
        (before, torch.ones(10), "κ₁ before the fit"),
        (after, machine.relevance[0], "κ₁ after the fit"),
    ):
        found = torch.exp(-(weight * plane).abs().sum(1) / machine.lengths[0]).view(81, 81)
        axes.contourf(side, side, found.T, levels=12, cmap="Blues")
        axes.set(xlabel="fourth coordinate", ylabel="eighth, without effect", title=title, aspect="equal")
    places = torch.arange(10)
    bars.bar(places - 0.2, machine.relevance[0], 0.4, color=BLUE, label="κ₁")
    bars.bar(places + 0.2, machine.relevance[1], 0.4, color=ORANGE, label="κ₂")
    bars.set(xlabel="coordinate", ylabel="relevance w")
    bars.set_xticks(places, [str(k + 1) for k in range(10)])
    bars.legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "kernel_machine.png", dpi=110)


def draw_boosted_trees() -> None:
    """boosted_trees.png: squares of two colours, and what trees and a kernel machine make of drawn examples."""
    x = 4 * torch.rand(500, 5, generator=torch.Generator().manual_seed(0))
    answers = 1 - 2 * (x[:, :2].floor().sum(1) % 2)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    side = torch.linspace(0.01, 3.99, 200)
    plane = torch.full((len(side) ** 2, 5), 2.0)
    plane[:, :2] = torch.cartesian_prod(side, side)
    trees, machine = models.BoostedTrees(5, 1, 300), models.KernelMachine(5, 1, 500)
    figure, (examples, *results) = plt.subplots(1, 3, figsize=(9.8, 3.5), layout="constrained")
    examples.scatter(x[:, 0], x[:, 1], c=answers, cmap="PuOr", s=9, vmin=-1.5, vmax=1.5)
    examples.set(title="500 examples", aspect="equal", xlim=(0, 4), ylim=(0, 4))
    wanted = 1 - 2 * (plane[:, :2].floor().sum(1) % 2)
    for axes, model, title in ((results[0], trees, "boosted trees"), (results[1], machine, "kernel machine")):
        torch.manual_seed(0)
        model.fit(x, answers[:, None], target)
        with torch.no_grad():
            found = model(plane)[:, 0]
        right = 100 * float((found.sign() == wanted).float().mean())
        axes.imshow(found.view(200, 200).T, extent=(0, 4, 0, 4), origin="lower", cmap="PuOr", vmin=-1.5, vmax=1.5)
        axes.set(title=f"{title}: {right:.0f} % right")
    figure.savefig(HERE / "boosted_trees.png", dpi=110)


def draw_series_machine() -> None:
    """series_machine.png: levels that change at some time, and what filters and a series machine say of the time."""
    torch.manual_seed(0)
    at = torch.randint(5, 55, (400, 1))
    values = (torch.arange(60) >= at)[..., None] + 0.5 * torch.randn(400, 60, 1)
    target = NumberTarget(names=("at",), mean=(30.0,), deviation=(14.0,))
    sampling = models.SeriesSampling(channels=1, spacing=1.0, extent=59.0)
    figure, (examples, *results) = plt.subplots(1, 3, figsize=(9.8, 3.3), layout="constrained")
    for number, color in ((0, BLUE), (1, ORANGE)):
        examples.plot(values[number, :, 0] + 4 * number, color=color, lw=1)
        examples.axvline(int(at[number]), color=color, lw=1, ls=":")
    examples.set(title="two of 200 series", xlabel="sample", yticks=[])
    for axes, config, title in (
        (results[0], models.FilterBank.Config(), "filter bank"),
        (results[1], models.SeriesMachine.Config(), "series machine"),
    ):
        torch.manual_seed(0)
        model = config.build(sampling, 1)
        model.fit([(encoders.SeriesBatch(values[:200]), target.targets(at[:200].double()))], target)
        with torch.no_grad():
            found = 30 + 14 * model(encoders.SeriesBatch(values[200:]))
        axes.plot([0, 60], [0, 60], color="0.7", lw=1)
        axes.scatter(at[200:], found, s=8, color=BLUE)
        error = float((found - at[200:]).abs().mean())
        axes.set(title=f"{title}: off by {error:.1f}", xlabel="when the level changes", ylabel="predicted", aspect=1)
    figure.savefig(HERE / "series_machine.png", dpi=110)


def draw_lag_machine() -> None:
    """lag_machine.png: the next sample of a population by the last one, and its predictions."""
    torch.manual_seed(0)
    x, noise = [1.0], 0.1 * torch.randn(500)
    for each in noise.tolist():
        x.append(x[-1] * math.exp(2.6 * (1 - x[-1]) + each))
    windows = torch.tensor(x[1:]).unfold(0, 7, 1)
    values, wanted = windows[:, :-1, None], windows[:, -1:].double()
    target = NumberTarget(names=("next",), mean=(1.0,), deviation=(1.0,))
    sampling, groups = models.SeriesSampling(channels=1, spacing=1.0, extent=5.0), torch.arange(400) // 50
    linear = models.FilterBank.Config(num_thresholds=0, num_groups=0, num_lags=6)
    figure, (course, *maps) = plt.subplots(1, 3, figsize=(9.8, 3.3), layout="constrained")
    course.plot(x[-60:], color=BLUE, lw=1)
    course.set(title="60 of 500 samples", xlabel="sample", ylabel="population")
    for axes, config, title in (
        (maps[0], linear, "linear in six samples"),
        (maps[1], models.LagMachine.Config(bank=linear), "lag machine"),
    ):
        torch.manual_seed(0)
        model = config.build(sampling, 1)
        model.fit([(encoders.SeriesBatch(values[:400]), target.targets(wanted[:400]))], target, groups=groups[:400])
        with torch.no_grad():
            found = 1 + model(encoders.SeriesBatch(values[400:]))
        axes.scatter(values[400:, -1, 0], wanted[400:], s=8, color="0.7", label="truth")
        axes.scatter(values[400:, -1, 0], found, s=8, color=BLUE, label="predicted")
        error = float((found - wanted[400:]).abs().mean())
        axes.set(title=f"{title}: off by {error:.2f}", xlabel="last sample", ylabel="next sample")
    maps[0].legend()
    figure.savefig(HERE / "lag_machine.png", dpi=110)


def draw_image_bank() -> None:
    """image_bank.png: squares on clouds, the filters that a bank learns of them, and what it says of their place."""
    torch.manual_seed(0)
    clouds = torch.nn.functional.avg_pool2d(torch.randn(300, 1, 28, 28), 5, 1)
    images, place = 3 * clouds, torch.randint(0, 19, (300, 2))
    for image, (row, column) in zip(images, place.tolist(), strict=True):
        image[:, row : row + 5, column : column + 5] = 2.0
    at = place[:, 1:].double() + 2
    target = NumberTarget(names=("column",), mean=(11.0,), deviation=(5.5,))
    bank = models.ImageBank.Config().build((24, 24), 1, 1)
    bank.fit([(images[:150], target.targets(at[:150]))], target)
    with torch.no_grad():
        found = 11 + 5.5 * bank(images[150:])
    kernels = dict(bank.named_buffers())["filters.1.kernels"][:48, 0]
    tiles = torch.nn.functional.pad(kernels / kernels.abs().amax((1, 2), keepdim=True), (0, 1, 0, 1))
    figure, (examples, filters, scatter) = plt.subplots(1, 3, figsize=(9.8, 3.3), layout="constrained")
    examples.imshow(torch.cat([torch.cat(list(images[k : k + 2, 0]), 1) for k in (0, 2)]), cmap="gray")
    examples.set(title="four of 150 images", xticks=[], yticks=[])
    filters.imshow(tiles.view(6, 8, 7, 7).transpose(1, 2).reshape(42, 56), cmap="PuOr", vmin=-1, vmax=1)
    filters.set(title="48 of 512 filters", xticks=[], yticks=[])
    scatter.plot([2, 20], [2, 20], color="0.7", lw=1)
    scatter.scatter(at[150:], found, s=8, color=BLUE)
    error = float((found - at[150:]).abs().mean())
    scatter.set(title=f"150 others: off by {error:.1f} pixels", xlabel="where the square is", ylabel="predicted")
    figure.savefig(HERE / "image_bank.png", dpi=110)


def draw_function_regression() -> None:
    """function_regression.png: the Green's function of -u'' = a, and what regressions of few pairs find it to be."""
    grid = domains.UnitGrid((48,), (1 / 48,), (1 / 96,))
    place = grid.domain(is_periodic=False).pos[:, 0]
    green = torch.minimum(place[:, None], place) * (1 - torch.maximum(place[:, None], place))
    noise = torch.randn(300, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    functions = noise @ torch.exp(-((place[:, None] - place) ** 2) / (2 * 0.03**2))
    answers = functions @ green / 48
    figure, (true, *found) = plt.subplots(1, 3, figsize=(9.8, 3.3), layout="constrained")

    def show(axes: plt.Axes, k: Tensor, title: str) -> None:
        axes.imshow(k, extent=(0, 1, 0, 1), origin="lower", cmap="viridis", vmin=0, vmax=0.25)
        axes.set(title=title, xlabel="y", ylabel="x")

    show(true, green, "Green's function of −u″ = a")
    for axes, count in zip(found, (12, 40), strict=True):
        config = models.FunctionRegression.Config(
            given=grid, target=grid, pos_dim=1, num_channels=1, num_outputs=1, num_functions=count
        )
        model = models.FunctionRegression(config)
        model.fit(functions[:count, :, None], answers[:count, :, None])
        predicted = model(encoders.FunctionBatch(functions[100:, :, None], grid.domain(is_periodic=False)))[..., 0]
        error = float(((predicted - answers[100:]).norm(dim=1) / answers[100:].norm(dim=1)).mean())
        show(axes, model.linear_kernel[:, 0, :, 0], f"{count} pairs: {100 * error:.2g} % off")
    figure.savefig(HERE / "function_regression.png", dpi=110)


def draw_n_gram_model() -> None:
    """n_gram_model.png: how many letters before two places agree, and how well longer n-grams predict."""
    whole = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)).encode()
    figure, (agreeing, bits) = plt.subplots(1, 2, figsize=(9.8, 3.6), width_ratios=(1.6, 1), layout="constrained")
    text = b"a function is called with arguments, and a method is a function that is called on an object"
    asked = b"a method is called"
    longest = np.zeros((len(asked), len(text)))
    for i in range(len(asked)):
        for j in range(len(text)):
            while longest[i, j] < min(i, j) + 1 and asked[i - int(longest[i, j])] == text[j - int(longest[i, j])]:
                longest[i, j] += 1
    shown = agreeing.imshow(np.minimum(longest, 9), cmap="viridis", aspect="auto", vmin=0, vmax=9)
    agreeing.set(title="letters before both places that agree", xlabel="the text", ylabel="what is continued")
    agreeing.set_xticks(range(len(text)), list(text.decode()), fontsize=5)
    agreeing.set_yticks(range(len(asked)), list(asked.decode()), fontsize=6)
    figure.colorbar(shown, ax=agreeing)
    other = torch.tensor(list(whole[400_000:440_000]))
    orders = range(1, 10)
    for size, colour in ((20_000, BLUE), (80_000, ORANGE), (320_000, GREEN)):
        learnt, found = torch.tensor(list(whole[:size])), list[float]()
        for order in orders:
            config = models.NGramModel.Config(sizes=models.NGramModel.distinct(learnt, 256, order))
            model = config.build(256, len(other))
            model.fit(learnt)
            chances = model.probabilities(other[None, :-1])[0].gather(1, other[1:, None])
            found.append(float(-chances.log2().mean()))
        bits.plot(orders, found, color=colour, marker="o", ms=4)
        bits.text(9.2, found[-1], f"{size // 1000} kB", color=colour, va="center")
    bits.set(title="bits a byte of other text", xlabel="bytes of the longest n-gram", xlim=(0.7, 11), ylim=(1.5, None))
    figure.savefig(HERE / "n_gram_model.png", dpi=110)


if __name__ == "__main__":
    draw_gallery()
    draw_refinement()
    draw_learned_kernel()
    draw_quadrature()
    draw_continuous_convolution()
    draw_infinite_attention()
    draw_linear_infinite_attention()
    draw_attention_maps()
    draw_clouds()
    draw_edges()
    draw_neighbourhood_bank()
    draw_mixtures()
    draw_kernel_machine()
    draw_boosted_trees()
    draw_series_machine()
    draw_lag_machine()
    draw_image_bank()
    draw_function_regression()
    draw_n_gram_model()
