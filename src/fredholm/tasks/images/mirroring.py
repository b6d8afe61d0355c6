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

    The features are means and deviations of colours in the cells of two grids. They cannot if the left-out errors are
    surely larger with mirror images; see `left_out_errors`.

    Args:
        images: the training images; at most `MOST` of them are used, the same each time.
        targets: their targets, `(n, ...)`.
        target: the kind of the targets.
    """
    if len(images) < FEWEST:
        return True
    drawn = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:MOST]
    pixels, own = images.images(drawn), targets[drawn]
    return not is_surely_less(*left_out_errors(_features(pixels.flip(-1)), _features(pixels), own, target))


def left_out_errors(
    mirrored: Tensor, plain: Tensor, targets: Tensor, target: Target, *, each: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Errors of predictions of examples without and with mirrored ones, `(n,)` each, and the image of each example.

    A ridge regression is fitted with and without them, and predicts each image with both it and its mirror image left
    out. If its errors are larger with them, left and right matter, as for places and letters.

    Args:
        mirrored, plain: features of the mirror images and of the examples, `(n, p)`.
        targets: their common targets, `(n, ...)`.
        target: the kind of the targets.
        each: number of consecutive examples from one image.
    """
    head, without, both = RidgeHead(plain.shape[1], target.num_outputs), ScoreRecorder(target), ScoreRecorder(target)
    image = torch.arange(len(plain)) // each
    head.fit(plain, targets, without, groups=image if each > 1 else None)
    head.fit(torch.cat([plain, mirrored]), torch.cat([targets, targets]), both, groups=torch.cat([image, image]))
    wanted = target.columns(targets)
    errors = [(recorder.scores[: len(plain)] - wanted).square().mean(1) for recorder in (without, both)]
    return errors[0], errors[1], image


def _features(pixels: Tensor) -> Tensor:
    found = list[Tensor]()
    for part in pixels.split(100):
        shares, each = part.double() / 255, list[Tensor]()
        for cells in _CELLS:
            mean, square = F.adaptive_avg_pool2d(shares, cells), F.adaptive_avg_pool2d(shares.square(), cells)
            each += [mean.flatten(1), (square - mean.square()).clamp(min=0).sqrt().flatten(1)]
        found.append(torch.cat(each, 1))
    return torch.cat(found)
