"""Measure the claims of the paper on the Yat product: bounds, response curves, and the tangent kernel against ReLU's.

Command:   python recipes/yat_theory.py
Hardware:  one core of an Intel Xeon, shared with other work; float64
Time:      30 seconds of processor time, 3 minutes on the clock
Score:     seed 0: the bound of proposition 11 is exceeded by the factor 1 + ε/‖w‖²; the tangent kernel at a right angle
           is 0.13 of its maximum for w of variance 1 (ReLU's 0.16), 0.003 for variance 1/64 (ReLU's 0.005)
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

from fredholm.kernels import yat
from fredholm.training.progress import print_line

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#666666"


@dataclass(frozen=True, kw_only=True)
class Config:
    """Length of the study, seed, and the folder of the results."""

    out: Path = Path("runs/yat_theory")
    """Folder of results.json and the figures."""
    quick: bool = False
    """Few samples, in seconds: checks the recipe itself, the numbers mean little."""
    seed: int = 0
    """Seed of all samples."""


class TangentParts(NamedTuple):
    """The two expectations whose sum is the tangent kernel: of products of units, and of their gradients in w."""

    units: float
    gradients: float


def gradient(x: Tensor, w: Tensor, epsilon: float, *, sign: float = -1.0) -> Tensor:
    """∇_x yat(x, w) row by row, `(..., d)`: theorem 5. A `sign` of +1 gives the formula of proposition 12."""
    s, difference = (x * w).sum(-1, keepdim=True), x - w
    D = difference.square().sum(-1, keepdim=True) + epsilon
    return 2 * s / D * (w + sign * s / D * difference)


def tangent_parts(x: Tensor, other: Tensor, w: Tensor, epsilon: float) -> TangentParts:
    """Proposition 6 at one pair of points, as means over the given prototypes `(m, d)`; the readout has variance 1."""
    units = yat(torch.stack([x, other]), w, epsilon=epsilon)
    gradients = [gradient(w, point, epsilon) for point in (x, other)]
    return TangentParts((units[0] * units[1]).mean().item(), (gradients[0] * gradients[1]).sum(-1).mean().item())


def tangent_kernel(angles: Tensor, size: float, w: Tensor, epsilon: float) -> Tensor:
    """The tangent kernel between a point of length ``size`` and others of the same length, at the given angles."""
    first = torch.zeros_like(w[0])
    first[0] = size
    values = []
    for angle in angles.tolist():
        other = torch.zeros_like(first)
        other[0], other[1] = size * math.cos(angle), size * math.sin(angle)
        values.append(sum(tangent_parts(first, other, w, epsilon)))
    return torch.tensor(values, dtype=w.dtype)


def large_dimension_limit(angles: Tensor, sigma: float) -> Tensor:
    """K(θ)/K(0) of the tangent kernel for d → ∞, where all denominators are equal.

    The units have (1 + 2 cos² θ)/3 of their value at 0, the gradients cos² θ; at 0 the ratio of both is 3 σ² / 4.
    """
    share, cos = 0.75 * sigma**2, angles.cos().square()
    return (share * (1 + 2 * cos) / 3 + cos) / (1 + share)


def relu_tangent_kernel(angles: Tensor, sigma: float) -> Tensor:
    """K(θ) of Σ α_i relu(w_i·x) for unit vectors and w of variance σ²: remark 8 and the part of the gradients."""
    units = sigma**2 * (angles.sin() + (math.pi - angles) * angles.cos())
    return (units + (math.pi - angles) * angles.cos()) / (2 * math.pi)


def circle_spectrum(epsilon: float, frequencies: int, sigma: float = 1.0) -> Tensor:
    """Eigenvalues of the Yat tangent kernel on the unit circle, one per frequency; those beyond 0 count twice.

    For w of length r a unit is a function of the angle to w, and so is its gradient in the frame of w. The kernel is
    the mean over the direction of w of their products, hence λ_k = ∫ p(r) Σ |Fourier coefficient k|² dr.
    """
    angles = torch.arange(8 * frequencies, dtype=torch.float64) * (2 * math.pi / (8 * frequencies))
    x = torch.stack([angles.cos(), angles.sin()], -1)
    radii = (torch.arange(1000, dtype=torch.float64) + 0.5) * (8 * sigma / 1000)
    density = radii / sigma**2 * torch.exp(-(radii**2) / (2 * sigma**2)) * (8 * sigma / 1000)
    total = torch.zeros(frequencies, dtype=torch.float64)
    for radius, mass in zip(radii, density, strict=True):
        w = torch.stack([radius, torch.zeros_like(radius)])
        profiles = torch.cat([yat(x, w[None], epsilon=epsilon), gradient(w.expand_as(x), x, epsilon)], -1)
        coefficients = torch.fft.fft(profiles, dim=0)[:frequencies] / len(x)
        total += mass * coefficients.abs().square().sum(-1)
    return total


def relu_circle_spectrum(frequencies: int) -> Tensor:
    """Eigenvalues of the ReLU tangent kernel on the unit circle, one per frequency, for w of variance 1."""
    angles = torch.arange(1 << 18, dtype=torch.float64) * (2 * math.pi / (1 << 18))
    values = relu_tangent_kernel(torch.minimum(angles, 2 * math.pi - angles), 1.0)
    return torch.fft.rfft(values).real[:frequencies] / len(angles)


def squared_norm_ratio(frequency: int, epsilon: float) -> float:
    """‖cos kθ‖² in the space of the Yat kernel over that in the space of ReLU's features; unit circle, k even."""
    angles = torch.arange(1 << 14, dtype=torch.float64) * (2 * math.pi / (1 << 14))
    points, folded = torch.stack([angles.cos(), angles.sin()], -1), torch.minimum(angles, 2 * math.pi - angles)
    relu = folded.sin() + (math.pi - folded) * folded.cos()
    kernels = torch.stack([relu / (2 * math.pi), yat(points, points[:1], epsilon=epsilon)[:, 0]])
    of_relu, of_yat = torch.fft.rfft(kernels).real[:, frequency].tolist()
    return of_relu / of_yat


def slope(x: Tensor, y: Tensor) -> float:
    """Slope of the least-squares line through (x, y)."""
    x, y = x - x.mean(), y - y.mean()
    return ((x * y).sum() / x.square().sum()).item()


def claims(config: Config) -> dict[str, Any]:
    """A number for each claim, by name."""
    generator = torch.Generator().manual_seed(config.seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    w = torch.nn.functional.normalize(draw(8), dim=0)
    found: dict[str, Any] = {}
    found["maximum over the bound of proposition 11, ‖w‖ = 1"] = {
        epsilon: yat((1 + epsilon) * w, w[None], epsilon=epsilon).item() * epsilon
        for epsilon in (0.001, 0.1, 1.0, 10.0)
    }
    x, many = draw(1000, 8), w.expand(1000, 8)
    right = gradient(many, x, 0.3)
    wrong = gradient(many, x, 0.3, sign=1.0)
    found["error of the gradient of proposition 12, relative"] = ((wrong - right).norm() / right.norm()).item()
    s = x @ w
    D = (x - w).square().sum(-1) + 0.3
    norms = (2 * (s / D).square())[:, None] * w
    found["error of the gradient of theorem 19, relative"] = (norms.norm() / right.norm()).item()
    found["yat(-w, x) / yat(w, x): quantiles 0.05, 0.5, 0.95"] = (
        (yat(x, -w[None], epsilon=0.3) / yat(x, w[None], epsilon=0.3))
        .quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
        .tolist()
    )
    along = torch.linspace(0, 1, 200_001, dtype=torch.float64)[:, None] * w
    found["steepest gradient on the unit ball, its bound of proposition 3, the smaller bound"] = {
        epsilon: (
            gradient(along, w, epsilon).norm(dim=1).max().item(),
            2 / epsilon + 4 / epsilon**2,
            2 / epsilon + 3 * math.sqrt(3) / 8 * epsilon**-1.5,
        )
        for epsilon in (0.001, 0.01, 0.1, 1.0)
    }
    found["‖cos kθ‖² in the Yat space over that in ReLU's, ε = 0.1, by k"] = {
        k: squared_norm_ratio(k, 0.1) for k in (4, 16, 32, 64)
    }
    pairs = 200 if config.quick else 4000
    found["mean response for variance 1, and d / (2 (d - 2))"] = {
        dim: (yat(draw(pairs, dim), draw(pairs, dim), epsilon=1e-9).mean().item(), dim / (2 * (dim - 2)))
        for dim in (8, 64, 512)
    }
    p, q = torch.tensor([[0.6, 0.3, 0.1], [0.7, 0.25, 0.05]], dtype=torch.float64)
    found["yat(p, p) and yat(p, q) on the simplex, epsilon 0.3"] = yat(torch.stack([p, q]), p[None], epsilon=0.3)[
        :, 0
    ].tolist()
    return found


def tangent_table(config: Config) -> list[dict[str, float]]:
    """K at a right angle and at two opposite points over K(0), for several widths of the prior and sizes of points."""
    rows = []
    for dim, sigma, size in (
        (2, 1.0, 1.0),
        (8, 1.0, 1.0),
        (64, 1.0, 1.0),
        (64, 1.0, 8.0),
        (64, 0.125, 1.0),
        (64, 0.125, 8.0),
    ):
        generator = torch.Generator().manual_seed(config.seed)
        count = 2000 if config.quick else 100_000
        w = sigma * torch.randn(count, dim, generator=generator, dtype=torch.float64)
        angles = torch.tensor([0.0, math.pi / 2, math.pi], dtype=torch.float64)
        values, relu = tangent_kernel(angles, size, w, 0.1), relu_tangent_kernel(angles, sigma)
        rows.append(
            {
                "dim": dim,
                "sigma": sigma,
                "size": size,
                "yat_orthogonal": (values[1] / values[0]).item(),
                "limit": large_dimension_limit(angles, sigma)[1].item(),
                "relu_orthogonal": (relu[1] / relu[0]).item(),
                "yat_opposite": (values[2] / values[0]).item(),
                "relu_opposite": (relu[2] / relu[0]).item(),
            }
        )
    return rows


def spectra(config: Config) -> dict[str, Any]:
    """Eigenvalues on the circle, with the fitted and predicted laws of their decay."""
    number = 64 if config.quick else 512
    k = torch.arange(number, dtype=torch.float64)
    relu = relu_circle_spectrum(number)
    even = slice(number // 8, None, 2)
    report: dict[str, Any] = {
        "relu": relu.tolist(),
        "relu exponent": slope(k[even].log(), relu[even].abs().log()),
        "yat": {},
    }
    for epsilon in (0.01, 0.1, 1.0):
        values = circle_spectrum(epsilon, number)
        seen = (values > 1e-26 * values.max()) & (k > 10)
        report["yat"][epsilon] = {
            "values": values.tolist(),
            "rate": -slope(k[seen], values[seen].log()),
            "predicted rate": 2 * math.acosh(math.sqrt(1 + epsilon)),
        }
    return report


def draw_response(path: Path) -> None:
    """Draws the response by angle, by radius, across the prototype for several ε, and in the plane."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    w = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    figure, (by_angle, by_radius, across, plane) = plt.subplots(1, 4, figsize=(15, 3.7), layout="constrained")
    angle = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], -1)
    for radius, colour in ((0.5, GREEN), (1.0, BLUE), (2.0, ORANGE), (100.0, GREY)):
        by_angle.semilogy(
            angle.rad2deg(), yat(radius * circle, w, epsilon=0.1), color=colour, label=f"‖x‖ = {radius:g}"
        )
    by_angle.set(title="‖w‖ = 1, ε = 0.1", xlabel="angle to w, degrees", ylabel="yat(w, x)", ylim=(1e-3, 20))
    by_angle.set_xticks([0, 90, 180, 270, 360])
    radii = torch.logspace(-1.5, 3, 500, dtype=torch.float64)
    for degrees, colour in ((0, BLUE), (30, GREEN), (60, ORANGE), (120, PURPLE)):
        u = torch.tensor([math.cos(math.radians(degrees)), math.sin(math.radians(degrees))], dtype=torch.float64)
        by_radius.loglog(radii, yat(radii[:, None] * u, w, epsilon=0.1), color=colour, label=f"{degrees}°")
        by_radius.axhline(u[0].item() ** 2, color=colour, linewidth=0.7, linestyle=":")
    by_radius.set(title="and its limit ‖w‖² cos² θ", xlabel="‖x‖", ylim=(1e-4, 20))
    t = torch.linspace(-1, 4, 1001, dtype=torch.float64)
    for epsilon, colour in ((0.1, BLUE), (0.5, GREEN), (1.0, ORANGE), (2.0, PURPLE)):
        across.plot(t, yat(t[:, None] * w, w, epsilon=epsilon), color=colour, label=f"ε = {epsilon:g}")
        across.plot(1 + epsilon, 1 / epsilon + 1, "o", color=colour, markersize=5)
        across.plot(1, 1 / epsilon, "x", color=colour, markersize=6)
    across.set(title="maxima (dots) lie beyond w (crosses)", xlabel="t, at x = t w", ylim=(0, 4))
    for axes in (by_angle, by_radius, across):
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.3)
    axis = torch.linspace(-3, 3, 301, dtype=torch.float64)
    field = yat(torch.cartesian_prod(axis, axis), w, epsilon=0.1).reshape(301, 301).T
    image = plane.pcolormesh(axis, axis, (field + 1e-3).log10(), cmap="cividis")
    plane.plot(1, 0, "*", color="white", markeredgecolor="black", markersize=13)
    plane.set(title="log₁₀(yat + 0.001), w the star", aspect="equal")
    figure.colorbar(image, ax=plane, shrink=0.85)
    figure.savefig(path, dpi=85)
    plt.close(figure)


def draw_tangent_kernel(config: Config, found: dict[str, Any], path: Path) -> None:
    """Draws K(θ)/K(0) with ReLU's for two priors, and the spectra on the circle."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, places = plt.subplots(1, 3, figsize=(13, 3.9), layout="constrained")
    angles = torch.linspace(0, math.pi, 25, dtype=torch.float64)
    for axes, sigma in zip(places, (1.0, 0.125), strict=False):
        generator = torch.Generator().manual_seed(config.seed)
        w = sigma * torch.randn(2000 if config.quick else 40_000, 64, generator=generator, dtype=torch.float64)
        relu = relu_tangent_kernel(angles, sigma)
        axes.plot(angles.rad2deg(), relu / relu[0], color=GREY, label="ReLU")
        axes.plot(angles.rad2deg(), large_dimension_limit(angles, sigma), ":", color=BLUE, label="Yat, d → ∞")
        for size, colour in ((1.0, BLUE), (8.0, ORANGE)):
            values = tangent_kernel(angles, size, w, 0.1)
            axes.plot(angles.rad2deg(), values / values[0], ".-", color=colour, label=f"Yat, d = 64, ‖x‖ = {size:g}")
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set(title=f"w of variance {sigma * sigma:g}", xlabel="angle of two points, degrees", ylim=(-0.25, 1.05))
        axes.set_xticks([0, 45, 90, 135, 180])
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.3)
    places[0].set_ylabel("tangent kernel, relative to angle 0")
    relu = torch.tensor(found["relu"]).abs()
    k = torch.arange(len(relu))
    kept = (k > 0) & (relu > 1e-12)
    places[2].loglog(k[kept], relu[kept] / relu[0], ".", color=GREY, markersize=3, label="ReLU")
    for (epsilon, spectrum), colour in zip(found["yat"].items(), (ORANGE, GREEN, BLUE), strict=True):
        values = torch.tensor(spectrum["values"])
        kept = (k > 0) & (values > 1e-14 * values.max())
        places[2].loglog(k[kept], values[kept] / values[0], "-", color=colour, label=f"Yat, ε = {epsilon:g}")
    places[2].set(title="eigenvalues on the circle", xlabel="frequency", ylim=(1e-12, 3))
    places[2].legend(frameon=False, fontsize=8)
    places[2].grid(alpha=0.3)
    figure.savefig(path, dpi=85)
    plt.close(figure)


def main(config: Config) -> None:
    """Prints the numbers and writes results.json, yat_response.png and yat_tangent_kernel.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("yat_theory: the figures need matplotlib: pip install 'fredholm[viz]'")
    config.out.mkdir(parents=True, exist_ok=True)
    found, table, spectrum = claims(config), tangent_table(config), spectra(config)
    for name, value in found.items():
        print_line(f"{name}: {value}")
    for row in table:
        print_line("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    print_line(f"ReLU on the circle: exponent {spectrum['relu exponent']:.3f}")
    for epsilon, law in spectrum["yat"].items():
        print_line(f"Yat on the circle, ε {epsilon:g}: rate {law['rate']:.3f}, predicted {law['predicted rate']:.3f}")
    report = {"seed": config.seed, "claims": found, "tangent kernel": table, "spectra": spectrum}
    (config.out / "results.json").write_text(json.dumps(report, indent=1))
    draw_response(config.out / "yat_response.png")
    draw_tangent_kernel(config, spectrum, config.out / "yat_tangent_kernel.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
