"""Draws the pictures of fields into this folder: part of `make pictures`. A minute or two on one core."""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

from fredholm import fields, models
from fredholm.domains import Points

HERE = Path(__file__).resolve().parent
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#666666"
LAYERS = (1, 2, 3, 5, 8, 12, 18, 27, 40)
TRAINED_LAYERS = 10


def draw_bumps(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """100 places in a slanted cloud, `(count, 100, 2)`, and the values there of three bumps, `(count, 100, 1)`."""
    x = torch.rand(count, 100, 2, generator=generator) ** 2 * torch.tensor([2.0, 1.0])
    x = x - x.mean(1, keepdim=True)
    heights = torch.randn(count, 3, generator=generator)
    distances = (x[:, :, None] - x[:, None, :3]).square().sum(-1)
    return x, 2 * torch.exp(-4 * distances) @ heights[..., None]


def learn_bumps(frame: fields.Frame, steps: int = 800) -> models.FieldOperator:
    """A small operator that predicts them from their samples, in float64."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    config = models.FieldOperator.Config(embed_dim=64, depth=2, num_heads=4)
    operator = models.FieldOperator(2, fields.SIREN(2, omega_0=5.0), frame, config)
    optimiser = torch.optim.AdamW(operator.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, steps)
    for _ in range(steps):
        x, y = draw_bumps(8, generator)
        loss = (operator(y, Points(x))(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return operator.double().eval()


def turn(degrees: float) -> Tensor:
    """The rotation of the plane by that angle."""
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).reshape(2, 2)


def draw_turned_fields() -> None:
    """turned_fields.png: fields of turned samples, by a frame that turns with them and by one that does not."""
    frames = {"axes": fields.Rotational(), "centroid and size": fields.Isotropic()}
    operators = {name: learn_bumps(frame).requires_grad_(False) for name, frame in frames.items()}
    x, y = (part.double() for part in draw_bumps(1, torch.Generator().manual_seed(9)))
    axis = torch.linspace(-1.6, 1.6, 120, dtype=torch.float64)
    plane = torch.cartesian_prod(axis, axis)
    angles = (0, 50, 130, 230)
    figure, panels = plt.subplots(2, len(angles), figsize=(11, 5.8), layout="constrained")
    limit = y.abs().max().item()
    for row, (name, operator) in zip(panels, operators.items(), strict=True):
        still = operator(y, Points(x))(x)
        print(f"{name}: misfit {((still - y).norm() / y.norm()).item():.2g}")
        for axes, degrees in zip(row, angles, strict=True):
            turned = x @ turn(degrees).mT
            field = operator(y, Points(turned))
            error = ((field(turned) - still).norm() / still.norm()).item()
            values = field(plane)[0, :, 0].reshape(120, 120).T.numpy()
            axes.contourf(axis, axis, values, levels=np.linspace(-limit, limit, 17), cmap="RdBu_r", extend="both")
            axes.scatter(
                *turned[0].T, c=y[0, :, 0], s=12, cmap="RdBu_r", vmin=-limit, vmax=limit, edgecolors=GREY, lw=0.4
            )
            axes.set(
                aspect="equal",
                xticks=[],
                yticks=[],
                title=f"{name}, {degrees}°: {error:.0e}" if degrees else f"{name}, 0°",
            )
    figure.savefig(HERE / "turned_fields.png", dpi=80)


def draw_waves(count: int, basis: fields.SinusoidalField, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """60 places, `(count, 60, 2)`, and values of functions of the basis with random coefficients, `(count, 60, 1)`."""
    x = 2 * torch.rand(count, 60, 2, generator=generator, dtype=torch.float64) - 1
    c = torch.randn(count, basis.num_terms, 1, generator=generator, dtype=torch.float64)
    return x, basis.basis(x) @ c / basis.num_terms**0.5


def relative_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """‖f - y‖² / ‖y‖² over all samples."""
    return (net(y, Points(x))(x) - y).square().sum() / y.square().sum()


def learn_steps(net: models.InContextRegressor, basis: fields.SinusoidalField, steps: int = 400) -> None:
    """Trains the preconditioners and steps of all layers on functions of the basis."""
    optimiser = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        loss = relative_loss(net, *draw_waves(16, basis, generator)).log()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def draw_gradient_layers() -> None:
    """gradient_layers.png: layers beside steps of descent, layers that have learned, and softmax by temperature."""
    torch.manual_seed(0)
    basis = fields.SinusoidalField(2, num_terms=20, sigma=2.0).double()
    x, y = draw_waves(64, basis, torch.Generator().manual_seed(0))
    features = basis.basis(x)
    largest = torch.linalg.eigvalsh(features.mT @ features).amax().item()
    eta = 2.0 ** -math.ceil(math.log2(largest))  # a power of two: the same in every precision

    def layered(count: int, temperature: float | None = None) -> models.InContextRegressor:
        return models.InContextRegressor(basis, num_layers=count, step_size=eta, temperature=temperature).double()

    c, descent, after_20 = torch.zeros(64, 20, 1, dtype=torch.float64), [1.0], torch.empty(0)
    for step in range(1, LAYERS[-1] + 1):
        c = c + eta * features.mT @ (y - features @ c)
        descent.append(((features @ c - y).square().sum() / y.square().sum()).item())
        after_20 = c if step == 20 else after_20
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.7), layout="constrained")
    left.semilogy(descent, color=BLUE, label="steps of gradient descent")
    with torch.no_grad():
        losses = [relative_loss(layered(count), x, y) for count in LAYERS]
    left.semilogy(LAYERS, losses, "o", color=BLUE, markersize=5, label="layers of linear attention")
    apart = max(abs(loss.item() / descent[count] - 1) for count, loss in zip(LAYERS, losses, strict=True))
    trained = layered(TRAINED_LAYERS)
    learn_steps(trained, basis)
    learned = relative_loss(trained, x, y).item()
    left.semilogy([TRAINED_LAYERS], [learned], "s", color=ORANGE, label=f"{TRAINED_LAYERS} layers that have learned")
    left.set(xlabel="layers, or steps", ylabel="‖f − y‖² / ‖y‖²")
    left.legend(frameon=False, fontsize=8)
    temperatures = np.logspace(0.5, 4, 8)
    with torch.no_grad():
        found = [layered(20, t)(y, Points(x)).parameters[:, 0, :, None] for t in temperatures.tolist()]
    errors = [((own - after_20).norm() / after_20.norm()).item() for own in found]
    right.loglog(temperatures, errors, "o", color=ORANGE, label="20 layers of softmax attention")
    right.loglog(temperatures, errors[-1] * temperatures[-1] / temperatures, color=GREY, label="slope −1")
    right.set(xlabel="temperature τ", ylabel="coefficients: error relative to 20 steps")
    right.legend(frameon=False, fontsize=8)
    losses = f"{descent[TRAINED_LAYERS]:.3g}, learned {learned:.3g}"
    print(f"layers differ from descent by {apart:.1g}; loss after {TRAINED_LAYERS}: {losses}")
    figure.savefig(HERE / "gradient_layers.png", dpi=90)


if __name__ == "__main__":
    draw_turned_fields()
    draw_gradient_layers()
