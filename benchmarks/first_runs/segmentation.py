"""Drawn pictures with the class of each pixel: shapes in front of clutter, and fields of several textures."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage
from scipy.spatial import KDTree
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from torch import nn
from torchmetrics.functional.classification import multiclass_jaccard_index

from benchmarks.first_runs.first_run import FirstRun, Peer, learnable, taught
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.targets import UNKNOWN

SIDE, NUM_SCENES = 64, 160
CLASSES = {"scenes": ("ground", "disc", "square", "ring"), "fields": ("water", "meadow", "furrows", "town")}
PIXELS_TO_LEARN = 200
"""Pixels of each picture that the peers learn from, drawn at random."""


def _clutter(draw: np.random.Generator) -> np.ndarray:
    """A texture of random grain and two random colours, `(SIDE, SIDE, 3)` in [0, 1]."""
    grain = ndimage.gaussian_filter(draw.normal(size=(SIDE, SIDE)), draw.uniform(0.5, 4), mode="wrap")
    share = 1 / (1 + np.exp(-2 * grain / grain.std()))
    low, high = draw.uniform(0.1, 0.9, (2, 3))
    return low + share[..., None] * (high - low)


def _scene(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Discs, squares and rings of any colour on clutter; later ones cover earlier ones."""
    picture, mask = _clutter(draw), np.zeros((SIDE, SIDE), np.uint8)
    down, right = np.mgrid[:SIDE, :SIDE]
    for _ in range(draw.integers(2, 5)):
        kind, radius = draw.integers(1, 4), draw.uniform(6, 13)
        (y, x), angle = draw.uniform(0.1 * SIDE, 0.9 * SIDE, 2), draw.uniform(0, np.pi / 2)
        away = np.hypot(down - y, right - x)
        along = np.cos(angle) * (down - y) + np.sin(angle) * (right - x)
        across = np.cos(angle) * (right - x) - np.sin(angle) * (down - y)
        there = (away < radius, np.maximum(abs(along), abs(across)) < radius, (away < radius) & (away > 0.55 * radius))
        picture[there[kind - 1]] = draw.uniform(0.1, 0.9, 3)
        mask[there[kind - 1]] = kind
    return picture + 0.05 * draw.normal(size=picture.shape), mask


def _field(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Cells around random points, each with one of four textures of about the same colours."""
    sites = draw.uniform(0, SIDE, (7, 2))
    pixels = np.moveaxis(np.mgrid[:SIDE, :SIDE], 0, -1)
    cell = KDTree(sites).query(pixels)[1]
    kinds = draw.integers(0, 4, len(sites))
    colour = draw.uniform(0.35, 0.65, 3)
    noise = draw.normal(size=(SIDE, SIDE))
    smooth = ndimage.gaussian_filter(noise, 4)
    angle, wave = draw.uniform(0, np.pi), draw.uniform(4, 6)
    furrows = np.sin(2 * np.pi * (pixels @ [np.cos(angle), np.sin(angle)]) / wave)
    blocks = np.kron(draw.choice([-1.0, 1.0], (SIDE // 4, SIDE // 4)), np.ones((4, 4)))
    textures = np.stack([smooth / smooth.std(), noise, furrows, blocks])
    mask = kinds[cell].astype(np.uint8)
    grey = np.take_along_axis(textures, mask[None].astype(np.int64), 0)[0]
    return colour + 0.12 * grey[..., None] + 0.06 * draw.normal(size=(SIDE, SIDE, 3)), mask


def _maker(
    name: str, draw_pair: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
) -> Callable[[Path, int], Path]:
    """The `make` of a `FirstRun` that writes pictures and masks drawn by ``draw_pair``."""

    def make(folder: Path, seed: int) -> Path:
        draw, root = np.random.default_rng(seed), folder / name
        for kind in ("images", "masks"):
            (root / kind).mkdir(parents=True)
        (root / "classes.txt").write_text("\n".join(CLASSES[name]) + "\n")
        for i in range(NUM_SCENES):
            picture, mask = draw_pair(draw)
            Image.fromarray((255 * picture).clip(0, 255).astype(np.uint8)).save(root / "images" / f"{i:03}.png")
            Image.fromarray(mask).save(root / "masks" / f"{i:03}.png")
        return root

    return make


def filtered(part: Any) -> tuple[np.ndarray, np.ndarray]:
    """Features of pixels: colour, and blur, edges, Laplacian and variance at four scales; and classes."""
    everything = torch.arange(len(part))
    rows: list[np.ndarray] = []
    for image in part.images(everything).permute(0, 2, 3, 1).numpy() / 255:
        grey, found = image.mean(-1), [image]
        for sigma in (1, 2, 4, 8):
            smooth = ndimage.gaussian_filter(image, (sigma, sigma, 0))
            spread = ndimage.gaussian_filter(grey**2, sigma) - ndimage.gaussian_filter(grey, sigma) ** 2
            edge, curve = (f(grey, sigma) for f in (ndimage.gaussian_gradient_magnitude, ndimage.gaussian_laplace))
            found += [smooth, np.stack([spread, edge, curve], axis=-1)]
        rows.append(np.concatenate(found, axis=-1).reshape(SIDE * SIDE, -1).astype(np.float32))
    return np.stack(rows), part.masks(everything).flatten(1).numpy()


def per_pixel(model: Any) -> Peer:
    """The mean intersection over union of a scikit-learn model that classifies pixels by the features of `filtered`."""

    def peer(task: Any, split: HeldOut) -> float:
        inputs, targets = (np.concatenate(found) for found in zip(*map(filtered, learnable(task, split)), strict=True))
        shown = np.random.default_rng(0).permutation(SIDE * SIDE)[:PIXELS_TO_LEARN]
        model.fit(inputs[:, shown].reshape(-1, inputs.shape[-1]), targets[:, shown].ravel())
        queries, truth = filtered(task.held_out(split))
        predicted = torch.from_numpy(model.predict(queries.reshape(-1, queries.shape[-1])).astype(np.int64))
        classes = len(task.target.names)
        return float(multiclass_jaccard_index(predicted, torch.from_numpy(truth.ravel()).long(), num_classes=classes))

    return peer


class UNet(nn.Module):
    """Four resolutions with two convolutions each, down and up again (arXiv 1505.04597), with batch norm."""

    def __init__(self, channels: int, classes: int, width: int = 16) -> None:
        super().__init__()
        widths = [width << level for level in range(4)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in itertools.pairwise([channels, *widths]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
        self.joined = nn.ModuleList(_twice(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits `(B, classes, H, W)`; sides are multiples of 8."""
        found, u = [], images
        for level, down in enumerate(self.down):
            u = down(F.max_pool2d(u, 2) if level else u)
            found.append(u)
        for level in reversed(range(len(self.up))):
            u = self.joined[level](torch.cat([self.up[level](u), found[level]], 1))
        return self.head(u)


def _twice(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


def u_net(task: Any, split: HeldOut) -> float:
    """The mean intersection over union of a U-Net in plain PyTorch, with the task's augmentation, batches and steps."""
    task = dataclasses.replace(task.config, num_pixels=None).build(task.facts)
    torch.manual_seed(0)
    network = UNet(task.facts.channels, len(task.target.names))
    taught(
        network,
        task,
        lambda batch: F.cross_entropy(network(batch["images"]).flatten(2), batch["targets"], ignore_index=UNKNOWN),
    )
    batch = task.held_out_batch(split, torch.arange(task.num_held_out(split)))
    with torch.no_grad():
        predicted = network(batch["images"]).argmax(1)
    known = batch["targets"] != UNKNOWN
    return float(
        multiclass_jaccard_index(predicted[known], batch["targets"][known], num_classes=len(task.target.names))
    )


PEERS = {
    "filters, random forest": per_pixel(RandomForestClassifier(40, min_samples_leaf=3, random_state=0)),
    "filters, gradient boosting": per_pixel(HistGradientBoostingClassifier(random_state=0)),
    "U-Net": u_net,
}

FIRST_RUNS = (
    FirstRun(
        name="drawn_scenes",
        task="segmentation",
        data="discs, squares and rings of any colour on clutter",
        make=_maker("scenes", _scene),
        peers=PEERS,
    ),
    FirstRun(
        name="drawn_fields",
        task="segmentation",
        data="cells of four textures",
        make=_maker("fields", _field),
        peers=PEERS,
    ),
)
