"""Distances to discs and plucked tones from samples of them; Burgers' equation and flow through a medium."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from scipy.interpolate import RBFInterpolator
from scipy.sparse.linalg import spsolve
from sklearn.decomposition import PCA
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from torch import nn

from benchmarks.first_runs.first_run import FirstRun, Peer, learnable
from fredholm.tasks.schedule import Effort, schedule_for
from fredholm.tasks.splits.splits import HeldOut


def distances(folder: Path, seed: int) -> Path:
    """400 functions of the plane at 120 points each: signed distances to one to three discs, negative inside."""
    draw = np.random.default_rng(seed)
    pos = draw.random((400, 120, 2))
    values = np.empty(pos.shape[:2])
    for own, place in zip(values, pos, strict=True):
        count = int(draw.integers(1, 4))
        centre, radius = draw.uniform(0.2, 0.8, (count, 2)), draw.uniform(0.08, 0.22, count)
        own[:] = (np.linalg.norm(place[:, None] - centre, axis=-1) - radius).min(1)
    path = folder / "distances.npz"
    np.savez(path, pos=pos, values=values)
    return path


def tones(folder: Path, seed: int) -> Path:
    """400 decaying tones of three harmonics, at 256 times each."""
    draw, time = np.random.default_rng(seed), np.arange(256) / 256
    values = np.zeros((400, len(time)))
    for own in values:
        pitch = draw.uniform(4, 12)
        for harmonic in (1, 2, 3):
            wave = np.sin(2 * np.pi * harmonic * pitch * time + draw.uniform(0, 2 * np.pi))
            own += draw.normal() / harmonic * wave * np.exp(-draw.uniform(0, 3) * time)
    path = folder / "tones.npz"
    np.savez(path, pos=time[:, None], values=values)
    return path


def burgers(folder: Path, seed: int) -> Path:
    """u(0, x) on a circle, and u(1/2, x) by u_t + u u_x = 0.02 u_xx; 400 pairs at 64 of 256 points of the solver."""
    draw, size, dt, viscosity = np.random.default_rng(seed), 256, 2e-4, 0.02
    x, wave = np.arange(size) / size, np.fft.fftfreq(size, 1 / size)
    start = np.zeros((400, size))
    for n in range(1, 9):
        sine, cosine = draw.normal(size=(2, 400, 1)) / n
        start += sine * np.sin(2 * np.pi * n * x) + cosine * np.cos(2 * np.pi * n * x)
    slope = -1j * np.pi * wave * (np.abs(wave) < size / 3)  # derivative of u²/2, without waves that would alias
    fade, state = np.exp(-viscosity * (2 * np.pi * wave) ** 2 * dt), np.fft.fft(start)

    def change(state: np.ndarray) -> np.ndarray:
        return slope * np.fft.fft(np.fft.ifft(state).real ** 2)

    for _ in range(round(0.5 / dt)):
        state = (state + dt * change(state + dt / 2 * change(state))) * fade
    path = folder / "burgers.npz"
    pos, end = x[::4, None], np.fft.ifft(state).real
    np.savez(path, pos=pos, values=start[:, ::4], target_pos=pos, target_values=end[:, ::4])
    return path


def flow(folder: Path, seed: int) -> Path:
    """400 smooth media a > 0 on 24 x 24 cells, and u of -∇·(a ∇u) = 1 with u = 0 beyond the border."""
    draw, side = np.random.default_rng(seed), 24
    wave = np.fft.fftfreq(2 * side, 1 / (2 * side))
    strength = 1 / (wave[:, None] ** 2 + wave**2 + 9)
    media, solutions = np.empty((2, 400, side, side))
    for medium, solution in zip(media, solutions, strict=True):
        noise = np.fft.fft2(draw.normal(size=(2 * side, 2 * side)))
        rough = np.fft.ifft2(noise * strength).real[:side, :side]
        medium[:] = np.exp(0.8 * rough / rough.std())
        solution[:] = spsolve(_stencil(medium), np.ones(side * side)).reshape(side, side)
    path = folder / "flow.npz"
    np.savez(path, values=media, target_values=solutions)
    return path


def _stencil(medium: np.ndarray) -> sp.csc_matrix:
    """-∇·(a ∇) by differences, with the harmonic mean of a between two cells."""
    side = len(medium)
    number, own = np.arange(side * side).reshape(side, side), np.zeros(side * side)
    rows, columns, values = [], [], []
    for first, second in (((slice(1, None),), (slice(-1),)), ((slice(None), slice(1, None)), (slice(None), slice(-1)))):
        a, b = medium[first].ravel(), medium[second].ravel()
        between, ends = 2 * a * b / (a + b), (number[first].ravel(), number[second].ravel())
        for here, there in (ends, ends[::-1]):
            rows, columns, values = [*rows, here], [*columns, there], [*values, -between]
            own[here] += between
    for border in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        own[number[border]] += medium[border]
    rows, columns, values = [*rows, number.ravel()], [*columns, number.ravel()], [*values, own]
    entries = np.concatenate(values) * (side + 1) ** 2
    return sp.csc_matrix((entries, (np.concatenate(rows), np.concatenate(columns))))


def _functions(task: Any, split: HeldOut) -> Iterator[tuple[np.ndarray, ...]]:
    """For each function of a split: positions and values of the inputs and of the targets, in the data's unit."""
    mean, deviation = np.array(task.facts.mean), np.array(task.facts.deviation)
    for i in range(task.num_held_out(split)):
        one = {
            name: tensor[0].double().numpy() for name, tensor in task.held_out_batch(split, torch.tensor([i])).items()
        }
        yield one["pos"], one["values"] * deviation + mean, one["target_pos"], one["target_values"] * deviation + mean


def interpolated(kernel: str) -> Peer:
    """SciPy's splines through the given samples of each function."""

    def peer(task: Any, split: HeldOut) -> float:
        errors = []
        for pos, values, target_pos, target in _functions(task, split):
            predicted = RBFInterpolator(pos, values, kernel=kernel)(target_pos)
            errors.append(np.linalg.norm(predicted - target) / np.linalg.norm(target))
        return float(np.mean(errors))

    return peer


def sines(task: Any, split: HeldOut) -> float:
    """A SIREN that is fitted to each function separately, by 500 steps of Adam; the first ten functions."""
    errors = []
    for _, (pos, values, target_pos, target) in zip(range(10), _functions(task, split), strict=False):
        torch.manual_seed(0)
        centre, size, unit = pos.mean(0), pos.std(0), values.std()
        x, y, at = (
            torch.from_numpy(a).float() for a in ((pos - centre) / size, values / unit, (target_pos - centre) / size)
        )
        layers = [nn.Linear(n, m) for n, m in ((x.shape[1], 64), (64, 64), (64, y.shape[1]))]
        omega = task.config.omega_0
        with torch.no_grad():
            layers[0].weight.uniform_(-1 / x.shape[1], 1 / x.shape[1])
            for layer in layers[1:]:
                layer.weight.uniform_(-math.sqrt(6 / 64) / omega, math.sqrt(6 / 64) / omega)

        def predicted(place: torch.Tensor, layers: list[nn.Linear] = layers, omega: float = omega) -> torch.Tensor:
            for layer in layers[:-1]:
                place = torch.sin(omega * layer(place))
            return layers[-1](place)

        optimiser = torch.optim.Adam([p for layer in layers for p in layer.parameters()], lr=1e-3)
        for _ in range(500):
            optimiser.zero_grad()
            (predicted(x) - y).square().mean().backward()
            optimiser.step()
        with torch.no_grad():
            found = predicted(at).double().numpy() * unit
        errors.append(np.linalg.norm(found - target) / np.linalg.norm(target))
    return float(np.mean(errors))


def _relative(predicted: np.ndarray, target: np.ndarray) -> float:
    return float((np.linalg.norm(predicted - target, axis=1) / np.linalg.norm(target, axis=1)).mean())


def regressed(task: Any, split: HeldOut) -> float:
    """Ridge or kernel ridge regression between 64 principal components, the best of 31 on a fifth of the examples."""
    parts, held_out = learnable(task, split), task.held_out(split)
    x, y = (
        np.concatenate([getattr(part, own).values.flatten(1).numpy() for part in parts]) for own in ("given", "targets")
    )
    p, q = (own.values.flatten(1).numpy() for own in (held_out.given, held_out.targets))
    of_x, of_y = (PCA(min(64, *rows.shape)).fit(rows) for rows in (x, y))
    a, b, c = of_x.transform(x), of_x.transform(p), of_y.transform(y)
    spread = a.var(0).sum()
    models: list[Any] = [Ridge(alpha) for alpha in 10.0 ** np.arange(-4, 3)]
    for alpha in 10.0 ** np.arange(-6, 0):
        models += [KernelRidge(alpha=alpha, kernel="rbf", gamma=gamma / spread) for gamma in (0.02, 0.1, 0.3, 1.0)]
    cut = len(a) * 4 // 5

    def error(model: Any) -> float:
        return _relative(of_y.inverse_transform(model.fit(a[:cut], c[:cut]).predict(a[cut:])), y[cut:])

    return _relative(of_y.inverse_transform(min(models, key=error).fit(a, c).predict(b)), q)


class FourierLayer(nn.Module):
    """FNO's layer on a line or in the plane: a matrix for each low wave mixes channels, plus a pointwise map."""

    def __init__(self, width: int, waves: int, axes: int) -> None:
        super().__init__()
        self.waves, self.axes = waves, axes
        shape = (2 * waves,) * (axes - 1) + (waves + 1,)
        self.weight = nn.Parameter(torch.randn(width, width, *shape, dtype=torch.cfloat) / width)
        self.point = (nn.Conv1d if axes == 1 else nn.Conv2d)(width, width, 1)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        """`(B, C, ...)` to the same shape."""
        if self.axes == 1:
            found, kept = torch.fft.rfft(u), self.waves + 1
            out = torch.zeros_like(found)
            out[..., :kept] = torch.einsum("bin,ion->bon", found[..., :kept], self.weight)
            return torch.fft.irfft(out, n=u.shape[-1]) + self.point(u)
        found, kept = torch.fft.rfft2(u), (..., slice(self.waves + 1))
        out, rows = torch.zeros_like(found), torch.arange(-self.waves, self.waves)
        mixed = torch.einsum("bimn,iomn->bomn", found[kept][..., rows, :], self.weight)
        out[:, :, rows[:, None], torch.arange(self.waves + 1)] = mixed
        return torch.fft.irfft2(out, s=u.shape[-2:]) + self.point(u)


def fourier(task: Any, split: HeldOut) -> float:
    """A Fourier neural operator in plain PyTorch with the task's width, layers, waves, steps, batches and rate."""
    torch.manual_seed(0)
    model, train, held_out = task.config.model, task.splits.train, task.held_out(split)
    schedule, axes = (
        schedule_for(task.num_train, Effort("small"), has_valid=False, length=0.5),
        train.given.pos.shape[-1],
    )
    side = round(train.given.pos.shape[1] ** (1 / axes))

    def on_grid(part: Any, own: Literal["given", "targets"]) -> torch.Tensor:
        return getattr(part, own).values.mT.unflatten(-1, (side,) * axes)

    x, y = on_grid(train, "given"), on_grid(train, "targets")
    moments = [(u.mean(), u.std()) for u in (x, y)]
    place = torch.stack(torch.meshgrid(*(torch.linspace(0, 1, side),) * axes, indexing="ij"))
    conv, width = (nn.Conv1d if axes == 1 else nn.Conv2d), model.embed_dim
    layers: list[nn.Module] = [conv(1 + axes, width, 1)]
    for n in range(model.depth):
        layers += [
            FourierLayer(width, model.kernel.num_waves_per_axis, axes),
            *([nn.GELU()] if n + 1 < model.depth else []),
        ]
    network = nn.Sequential(*layers, conv(width, 4 * width, 1), nn.GELU(), conv(4 * width, 1, 1))

    def predicted(u: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat([(u - moments[0][0]) / moments[0][1], place.expand(len(u), *place.shape)], 1)
        return network(inputs) * moments[1][1] + moments[1][0]

    optimiser = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=1e-4)
    steps = schedule.epochs * math.ceil(len(x) / schedule.batch_size)
    falling = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps, pct_start=0.1)
    for _ in range(schedule.epochs):
        for rows in torch.randperm(len(x)).split(schedule.batch_size):
            optimiser.zero_grad()
            target = y[rows].flatten(1)
            ((predicted(x[rows]).flatten(1) - target).norm(dim=1) / target.norm(dim=1)).mean().backward()
            optimiser.step()
            falling.step()
    with torch.no_grad():
        found = predicted(on_grid(held_out, "given")).flatten(1).numpy()
        return _relative(found, on_grid(held_out, "targets").flatten(1).numpy())


FIELD_PEERS: dict[str, Peer] = {
    "cubic splines": interpolated("cubic"),
    "thin plates": interpolated("thin_plate_spline"),
    "a SIREN each": sines,
}
OPERATOR_PEERS: dict[str, Peer] = {"principal components, kernel ridge": regressed, "plain FNO": fourier}
Make = Callable[[Path, int], Path]
RUNS: tuple[tuple[str, str, str, Make, dict[str, Peer]], ...] = (
    ("distances", "field", "distances to discs", distances, FIELD_PEERS),
    ("tones", "field", "plucked tones", tones, FIELD_PEERS),
    ("burgers", "operator", "Burgers' equation on a circle", burgers, OPERATOR_PEERS),
    ("flow", "operator", "flow through smooth media", flow, OPERATOR_PEERS),
)
FIRST_RUNS = tuple(
    FirstRun(name=name, task=task, data=data, make=make, peers=peers) for name, task, data, make, peers in RUNS
)
