"""Whether images tell the same when left and right are exchanged."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models.fitted.ridge_head import Heard, RidgeHead, is_surely_less
from fredholm.tasks.targets import Target

from .dataset import ImageDataset

FEWEST, MOST = 10, 500
"""Images by which it can be said, and those that are looked at."""
_CELLS = (4, 8)
"""Along a side of the grids in whose cells means and deviations are taken."""


@torch.no_grad()
def mirroring_keeps_targets(images: ImageDataset, targets: Tensor, target: Target) -> bool:
    """Whether nothing speaks against images that are mirrored, left to right, as further examples of the same.

    A ridge regression on the means and deviations of colours in the cells of two grids learns with and without mirrored
    images, and tells each image by a fit that knows neither it nor its mirror image. Where it then errs more with them,
    and not by chance, the images tell something of left and right, as a place, a direction or a letter does.

    Args:
        images: those that are learnt from; of more than `MOST`, so many are drawn, the same each time.
        targets: theirs, `(n, ...)`.
        target: what they are.
    """
    if len(images) < FEWEST:
        return True
    drawn = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:MOST]
    pixels, own = images.images(drawn), targets[drawn]
    plain, mirrored = _features(pixels), _features(pixels.flip(-1))
    head, without, both = RidgeHead(plain.shape[1], target.num_outputs), Heard(target), Heard(target)
    head.fit(plain, own, without)
    each = torch.arange(len(drawn))
    head.fit(torch.cat([plain, mirrored]), torch.cat([own, own]), both, groups=torch.cat([each, each]))
    wanted = target.columns(own)
    errors = [(heard.scores[: len(drawn)] - wanted).square().mean(1) for heard in (without, both)]
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
