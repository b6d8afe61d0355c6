"""Features of clouds and points for the baselines of a report."""

import numpy as np
import torch
from torch import Tensor

from .point_set import PointSet

BINS = 16
"""Bins of the histogram of distances from the centre of a cloud."""
NEIGHBOURS = 16
"""Nearest points of a point, itself included."""


def cloud_features(clouds: PointSet, number: int) -> np.ndarray:
    """Shares of distances from the centre, sizes along the axes, and means and deviations of features."""
    rows = slice(int(clouds.offsets[number]), int(clouds.offsets[number + 1]))
    pos, features = clouds.pos[rows].numpy(), clouds.features[rows].double().numpy()
    centred = pos - pos.mean(0)
    radii = np.linalg.norm(centred, axis=1)
    largest = radii.max() or 1.0
    shares = np.histogram(radii / largest, BINS, (0, 1))[0] / len(pos)
    along = np.sqrt(np.linalg.eigvalsh(centred.T @ centred / len(pos)).clip(0))
    of_features = np.concatenate([features.mean(0), features.std(0)])
    return np.concatenate([shares, along, along / largest, centred.std(0), of_features])


def point_features(clouds: PointSet, number: int, points: Tensor) -> np.ndarray:
    """Features of some points of a cloud.

    They are positions in its box and relative to its centre, the given features, and of the nearest points their
    spread along their axes and the means of their features.
    """
    rows = slice(int(clouds.offsets[number]), int(clouds.offsets[number + 1]))
    pos, features = clouds.pos[rows].double(), clouds.features[rows].double()
    centred = pos - pos.mean(0)
    scale = centred.norm(dim=1).max().clamp(min=1e-12)
    low, extent = pos.amin(0), (pos.amax(0) - pos.amin(0)).clamp(min=1e-12)
    found = list[Tensor]()
    for some in points.split(256):
        near = torch.cdist(pos[some], pos).topk(min(NEIGHBOURS, len(pos)), largest=False).indices
        beside = (pos[near] - pos[near].mean(1, keepdim=True)) / scale
        spread = torch.linalg.eigvalsh(beside.mT @ beside / near.shape[1]).clamp(min=0).sqrt()
        radius = centred[some].norm(dim=1, keepdim=True) / scale
        places = [centred[some] / scale, radius, (pos[some] - low) / extent, spread]
        found.append(torch.cat([*places, features[some], features[near].mean(1)], dim=1))
    return torch.cat(found).numpy()
