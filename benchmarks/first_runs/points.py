"""Point clouds of solids, labelled by kind, and of composed things, with the part that each point belongs to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.spatial import KDTree
from scipy.spatial.distance import pdist
from scipy.stats import special_ortho_group
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from torchmetrics.functional.classification import multiclass_jaccard_index

from benchmarks.first_runs.first_run import FirstRun, Peer, accuracy, fitted

NUM_POINTS, EACH_SOLID, NUM_THINGS = 256, 60, 200
NOISE = 0.02
"""Deviation of each coordinate from the surface, in radii of the cloud."""


def box(draw: np.random.Generator, count: int) -> np.ndarray:
    """Points on the surface of a box of random sides, `(count, 3)`."""
    sides = draw.uniform(0.4, 1.6, 3)
    areas = np.array([sides[1] * sides[2], sides[0] * sides[2], sides[0] * sides[1]])
    axis = draw.choice(3, count, p=areas / areas.sum())
    points = draw.uniform(-0.5, 0.5, (count, 3))
    points[np.arange(count), axis] = draw.choice([-0.5, 0.5], count)
    return points * sides


def ellipsoid(draw: np.random.Generator, count: int) -> np.ndarray:
    """Points on an ellipsoid, denser where it is more curved, `(count, 3)`."""
    points = draw.normal(size=(count, 3))
    return points / np.linalg.norm(points, axis=1, keepdims=True) * draw.uniform(0.4, 1.0, 3)


def _round(draw: np.random.Generator, count: int, height: float, top: float) -> np.ndarray:
    """Points on a truncated cone with lids, distributed by area; radius 1 at the bottom and ``top`` at the top."""
    side = (1 + top) * np.hypot(height, 1 - top)
    kind = draw.choice(3, count, p=np.array([side, 1, top**2]) / (side + 1 + top**2))
    # the radius falls linearly from 1 to `top`
    share = draw.uniform(size=count)
    up = share if top == 1 else (1 - np.sqrt(1 - share * (1 - top**2))) / (1 - top)
    lid = np.sqrt(draw.uniform(size=count))
    radius = np.where(kind == 0, 1 - up * (1 - top), np.where(kind == 1, lid, lid * top))
    angle = draw.uniform(0, 2 * np.pi, count)
    return np.stack(
        [radius * np.cos(angle), radius * np.sin(angle), height * np.where(kind == 0, up, kind == 2)], axis=1
    )


def cylinder(draw: np.random.Generator, count: int) -> np.ndarray:
    """Points on a cylinder with its lids, `(count, 3)`."""
    return _round(draw, count, draw.uniform(0.8, 3.0), 1.0)


def cone(draw: np.random.Generator, count: int) -> np.ndarray:
    """Points on a cone with its base, `(count, 3)`."""
    return _round(draw, count, draw.uniform(1.0, 3.0), 0.0)


def frustum(draw: np.random.Generator, count: int) -> np.ndarray:
    """Points on a truncated cone with its lids, `(count, 3)`."""
    return _round(draw, count, draw.uniform(0.8, 3.0), draw.uniform(0.4, 0.7))


def torus(draw: np.random.Generator, count: int) -> np.ndarray:
    """Points on a torus, denser inside, `(count, 3)`."""
    around, about = draw.uniform(0, 2 * np.pi, (2, count))
    radius = 1 + (thin := draw.uniform(0.2, 0.6)) * np.cos(about)
    return np.stack([radius * np.cos(around), radius * np.sin(around), thin * np.sin(about)], axis=1)


SOLIDS: tuple[Callable[[np.random.Generator, int], np.ndarray], ...] = (box, ellipsoid, cylinder, cone, frustum, torus)


def _noisy(draw: np.random.Generator, points: np.ndarray) -> np.ndarray:
    return points + NOISE * np.linalg.norm(points - points.mean(0), axis=1).max() * draw.normal(size=points.shape)


def turned_solids(folder: Path, seed: int) -> Path:
    """Noisy solids of random proportions, each rotated at random."""
    draw = np.random.default_rng(seed)
    clouds = [_noisy(draw, solid(draw, NUM_POINTS)) for solid in SOLIDS for _ in range(EACH_SOLID)]
    turns = special_ortho_group.rvs(3, size=len(clouds), random_state=draw)
    np.savez(
        folder / "solids.npz",
        x=np.stack([cloud @ turn for cloud, turn in zip(clouds, turns, strict=True)]).astype(np.float32),
        y=np.repeat([solid.__name__ for solid in SOLIDS], EACH_SOLID),
    )
    return folder / "solids.npz"


def _table(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points and part labels of a table: a top on four legs."""
    width, depth, height = draw.uniform(0.8, 1.6, 3)
    top = draw.uniform(-0.5, 0.5, (NUM_POINTS // 2, 3)) * [width, depth, 0.08] + [0, 0, height]
    legs = draw.uniform(-0.04, 0.04, (NUM_POINTS // 2, 3))
    legs[:, :2] += draw.choice([-0.45, 0.45], (len(legs), 2)) * [width, depth]
    legs[:, 2] = draw.uniform(0, height, len(legs))
    return np.concatenate([top, legs]), np.repeat([0, 1], NUM_POINTS // 2)


def _lamp(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points and part labels of a lamp: a shade on a pole on a foot."""
    foot, pole, shade = (_round(draw, NUM_POINTS // 4, 1.0, top) for top in (1.0, 1.0, draw.uniform(0.4, 0.8)))
    height = draw.uniform(1.2, 2.0)
    wide = draw.uniform(0.3, 0.5)
    shade = np.concatenate([shade, _round(draw, NUM_POINTS // 4, 1.0, 0.6)]) * [wide, wide, 0.5] + [0, 0, height]
    points = np.concatenate([foot * [0.35, 0.35, 0.08], pole * [0.04, 0.04, height], shade])
    return points, np.repeat([3, 1, 2, 2], NUM_POINTS // 4)


def parts_of_things(folder: Path, seed: int) -> Path:
    """Tables and lamps, upright and rotated about the vertical, with the part of each point."""
    draw = np.random.default_rng(seed)
    found = [(_table, _lamp)[i % 2](draw) for i in range(NUM_THINGS)]
    angles = draw.uniform(0, 2 * np.pi, NUM_THINGS)
    pos = []
    for (points, _), angle in zip(found, angles, strict=True):
        turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        pos.append(_noisy(draw, points) @ turn)
    np.savez(
        folder / "things.npz",
        x=np.stack(pos).astype(np.float32),
        labels=np.array(["top", "leg or pole", "shade", "foot"])[np.stack([labels for _, labels in found])],
    )
    return folder / "things.npz"


def _in_sphere(points: np.ndarray) -> np.ndarray:
    points = points - points.mean(0)
    return points / np.linalg.norm(points, axis=1).max()


def distances(part: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rotation-invariant features of clouds: histograms of distances, moments; and labels."""
    rows = []
    for cloud in part.pos.numpy().reshape(len(part), -1, 3):
        points = _in_sphere(cloud)
        between = np.histogram(pdist(points), 32, (0, 2), density=True)[0]
        radii = np.histogram(np.linalg.norm(points, axis=1), 16, (0, 1), density=True)[0]
        spread = np.linalg.eigvalsh(np.cov(points.T))
        rows.append(np.concatenate([between, radii, spread / spread.sum(), spread]))
    return np.array(rows), part.labels.numpy()


def surroundings(part: Any) -> tuple[np.ndarray, np.ndarray]:
    """Features of points: position, and moments of the 8 and the 32 nearest points; and labels."""
    rows = []
    for cloud in part.pos.numpy().reshape(-1, NUM_POINTS, 3):
        points = _in_sphere(cloud)
        found = [points[:, 2:], *(np.linalg.norm(points[:, :axes], axis=1, keepdims=True) for axes in (2, 3))]
        near = np.asarray(KDTree(points).query(points, 32)[1])
        for count in (8, 32):
            offsets = points[near[:, :count]] - points[:, None]
            values, axes = np.linalg.eigh(np.einsum("nki,nkj->nij", offsets, offsets) / count)
            found += [values, np.abs(axes[:, 2, :]), offsets.mean(1)[:, 2:]]
        rows.append(np.concatenate(found, axis=1))
    return np.concatenate(rows), part.point_labels.numpy()


def _mean_iou(model: Any) -> Peer:
    answers = fitted(model, surroundings)

    def peer(task: Any, split: Any) -> float:
        truth, predicted = torch.from_numpy(answers(task, split))
        return float(multiclass_jaccard_index(predicted, truth, num_classes=len(task.target.names)))

    return peer


FIRST_RUNS = (
    FirstRun(
        name="turned_solids",
        task="points",
        data="noisy solids of six kinds, turned at random",
        make=turned_solids,
        peers={
            "distances, gradient boosting": accuracy(HistGradientBoostingClassifier(random_state=0), distances),
            "distances, random forest": accuracy(RandomForestClassifier(500, random_state=0), distances),
        },
    ),
    FirstRun(
        name="parts_of_things",
        task="points",
        data="tables and lamps, the part that each point is of",
        make=parts_of_things,
        peers={
            "neighbourhoods, random forest": _mean_iou(RandomForestClassifier(100, random_state=0)),
            "neighbourhoods, gradient boosting": _mean_iou(HistGradientBoostingClassifier(random_state=0)),
        },
    ),
)
