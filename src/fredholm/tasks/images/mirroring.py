"""A test of whether mirroring images left to right keeps their targets."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models.fitted.ridge_head import RidgeHead, ScoreRecorder, is_surely_less
from fredholm.tasks.targets import Target

from .dataset import ImageDataset

FEWEST, MOST = 10, 500
"""Fewest images for the test, and most that it reads."""
_CELLS = (4, 8)
"""Cells along each side of the two grids in which means and deviations are taken."""


@torch.no_grad()
def mirroring_keeps_targets(images: ImageDataset, targets: Tensor, target: Target) -> bool:
    """Whether images mirrored left to right can serve as further examples with the same targets.

    A ridge regression on means and deviations of colours in the cells of two grids is fitted with and without mirrored
    images, and predicts each image with both it and its mirror image left out. If it is surely worse with them, left
    and right matter, as for places, directions and letters.

    Args:
        images: the training images; at most `MOST` of them are used, the same each time.
        targets: their targets, `(n, ...)`.
        target: the kind of these.
    """
    if len(images) < FEWEST:
        return True
    drawn = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:MOST]
    pixels, own = images.images(drawn), targets[drawn]
    plain, mirrored = _features(pixels), _features(pixels.flip(-1))
    head, without, both = RidgeHead(plain.shape[1], target.num_outputs), ScoreRecorder(target), ScoreRecorder(target)
    head.fit(plain, own, without)
    each = torch.arange(len(drawn))
    head.fit(torch.cat([plain, mirrored]), torch.cat([own, own]), both, groups=torch.cat([each, each]))
    wanted = target.columns(own)
    errors = [(recorder.scores[: len(drawn)] - wanted).square().mean(1) for recorder in (without, both)]
    return not is_surely_less(errors[0], errors[1])


def _features(pixels: Tensor) -> Tensor:
    found = list[Tensor]()
    for part in pixels.split(100):
        shares, each = part.double() / 255, list[Tensor]()
        for cells in _CELLS:
            mean, square = F.adaptive_avg_pool2d(shares, cells), F.adaptive_avg_pool2d(shares.square(), cells)
            each += [mean.flatten(1), (square - mean.square()).clamp(min=0).sqrt().flatten(1)]
        found.append(torch.cat(each, 1))
    return torch.cat(found)
