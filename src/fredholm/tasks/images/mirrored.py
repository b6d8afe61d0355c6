"""Whether images tell the same when left and right are exchanged."""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models.fitted.ridge_head import Readout, Regressand, RidgeHead, is_surely_less

from .dataset import ImageDataset

FEWEST, MOST = 10, 500
"""Images by which it can be said, and those that are looked at."""
_CELLS = (4, 8)
"""Along a side of the grids in whose cells means and deviations are taken."""


@torch.no_grad()
def tell_the_same_mirrored(images: ImageDataset, targets: Tensor, regressand: Regressand) -> bool:
    """Whether nothing speaks against images that are mirrored, left to right, as further examples of the same.

    A ridge regression on the means and deviations of colours in the cells of two grids learns with and without mirrored
    images, and tells each image by a fit that knows neither it nor its mirror image. Where it then errs more with them,
    and not by chance, the images tell something of left and right, as a place, a direction or a letter does.

    Args:
        images: those that are learnt from; of more than `MOST`, so many are drawn, the same each time.
        targets: theirs, `(n, ...)`, as the regressand takes them.
        regressand: what they are.
    """
    if len(images) < FEWEST:
        return True
    drawn = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:MOST]
    pixels, own = images.images(drawn), targets[drawn]
    plain, mirrored = _features(pixels), _features(pixels.flip(-1))
    wanted, scores = regressand.columns(own), _Scores(regressand)
    head = RidgeHead(plain.shape[1], wanted.shape[1])
    without = head.fit(plain, own, scores)
    each = torch.arange(len(drawn))
    both = head.fit(torch.cat([plain, mirrored]), torch.cat([own, own]), scores, groups=torch.cat([each, each]))
    errors = [(told[: len(drawn)] - wanted).square().mean(1) for told in (without, both)]
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


@final
class _Scores(Regressand):
    """What a regressand fits, told as it is."""

    def __init__(self, regressand: Regressand) -> None:
        self._regressand = regressand

    def columns(self, targets: Tensor) -> Tensor:
        return self._regressand.columns(targets)

    def readout(self, scores: Tensor, targets: Tensor) -> Readout:
        count = scores.shape[1]
        return Readout(torch.arange(count), scores.new_ones(count), scores.new_zeros(count))
