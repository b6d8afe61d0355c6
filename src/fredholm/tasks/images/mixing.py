"""Mixup and CutMix: each image is blended with another one of its batch, and its target by the same shares.

Legend: x image, t target, π a permutation of the batch, m ∈ [0, 1]^{H×W} the share of each pixel that stays.

    x' = m ⊙ x + (1 - m) ⊙ x_π,    t' = λ t + (1 - λ) t_π,    λ = mean of m over the pixels

Mixup (Zhang et al., 2018): m = l everywhere. CutMix (Yun et al., 2019): m = 0 in a box of relative sides √(1 - l) and 1
outside. In both l ~ Beta(α, α).
"""

from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.distributions import Beta


@final
class Blend(NamedTuple):
    """The partner of each image of a batch and the share of each pixel that stays."""

    partner: Tensor
    """π, int64 ``(B,)``."""
    stays: Tensor
    """m, float64 ``(B, H, W)``, or ``(B, 1, 1)`` where it is the same everywhere."""

    def needed(self, wanted: Tensor) -> Tensor:
        """Indices of the images that the blends at the indices `wanted` are made of, int64, ascending."""
        return torch.cat([wanted, self.partner[wanted]]).unique()

    def images(self, images: Tensor, places: Tensor, wanted: Tensor) -> Tensor:
        """x' ``(n, C, H, W)`` at the indices `wanted`, from the images x at `places`, which `needed` returned."""
        own, other = (torch.searchsorted(places, each).to(images.device) for each in (wanted, self.partner[wanted]))
        pixel_share = self.stays[wanted].to(images).unsqueeze(1)  # (n, 1, H, W), or (n, 1, 1, 1) for Mixup alone
        return torch.lerp(images[other], images[own], pixel_share)

    def targets(self, targets: Tensor, wanted: Tensor) -> Tensor:
        """t' ``(n, K)`` at the indices `wanted`, from t ``(B, K)``."""
        own, other = wanted.to(targets.device), self.partner[wanted].to(targets.device)
        image_share = self.stays[wanted].mean((1, 2)).to(targets).unsqueeze(1)  # (n, 1)
        return torch.lerp(targets[other], targets[own], image_share)


def drawn_blend(shape: torch.Size, mixup_alpha: float, cutmix_alpha: float) -> Blend | None:
    """Draws the blend of a batch from torch's CPU generator; None where both are off.

    Every image draws its own l and box; where both forms are on, each image takes either with equal chance. As in the
    source a box has its centre anywhere in the image and is cut off at the border; λ is the share of pixels that truly
    stays.

    Args:
        shape: shape of the images, ``(B, C, H, W)``.
        mixup_alpha: the α of Mixup; 0 turns it off.
        cutmix_alpha: the α of CutMix; 0 turns it off.
    """
    num_images, _, height, width = shape
    if mixup_alpha == 0 and cutmix_alpha == 0:
        return None
    if cutmix_alpha == 0:
        stays = _mixup_shares(num_images, mixup_alpha)
    elif mixup_alpha == 0:
        stays = _cutmix_shares(num_images, height, width, cutmix_alpha)
    else:
        either = torch.rand(num_images, 1, 1) < 0.5
        mixup_stays = _mixup_shares(num_images, mixup_alpha)
        stays = torch.where(either, mixup_stays, _cutmix_shares(num_images, height, width, cutmix_alpha))
    return Blend(torch.randperm(num_images), stays)


def _mixup_shares(num_images: int, alpha: float) -> Tensor:  # (B, 1, 1)
    return _beta(num_images, alpha).view(-1, 1, 1)


def _cutmix_shares(num_images: int, height: int, width: int, alpha: float) -> Tensor:  # (B, H, W)
    relative_side = (1 - _beta(num_images, alpha)).sqrt()
    outside_rows = _outside(height, relative_side)
    outside_columns = _outside(width, relative_side)
    return (outside_rows.unsqueeze(2) | outside_columns.unsqueeze(1)).to(torch.float64)


def _outside(side: int, relative_side: Tensor) -> Tensor:  # (B, side)
    length = (side * relative_side).long()
    start = torch.randint(side, length.shape) - length // 2
    position = torch.arange(side)
    return (position < start.unsqueeze(1)) | (position >= (start + length).unsqueeze(1))


def _beta(num_images: int, alpha: float) -> Tensor:
    concentration = torch.tensor(alpha, dtype=torch.float64)
    return Beta(concentration, concentration).sample((num_images,))
