"""Mixup and CutMix: each image is blended with another one of its batch, and its target by the same shares.

Legend: x image, t target, π a permutation of the batch, m ∈ [0, 1]^{H×W} the share of each pixel that stays.

    x' = m ⊙ x + (1 - m) ⊙ x_π,    t' = λ t + (1 - λ) t_π,    λ = mean of m over the pixels

Mixup (Zhang et al., 2018): m = l everywhere. CutMix (Yun et al., 2019): m = 0 in a box of relative sides √(1 - l) and 1
outside. In both l ~ Beta(α, α).
"""

import torch
from torch import Tensor
from torch.distributions import Beta


def mix(images: Tensor, targets: Tensor, mixup_alpha: float, cutmix_alpha: float) -> tuple[Tensor, Tensor]:
    """Blend every image of a batch, and its target, with another image of the batch.

    Every image draws its own l and box; where both forms are on, each image takes either with equal chance. As in the
    source a box has its centre anywhere in the image and is cut off at the border; λ is the share of pixels that truly
    stays. All draws come from torch's CPU generator.

    Args:
        images: floating ``(B, C, H, W)``.
        targets: floating ``(B, K)``.
        mixup_alpha: the α of Mixup; 0 turns it off.
        cutmix_alpha: the α of CutMix; 0 turns it off.

    Returns:
        The new images and targets, of the same shapes and types.
    """
    num_images, _, height, width = images.shape
    if mixup_alpha == 0 and cutmix_alpha == 0:
        return images, targets
    if cutmix_alpha == 0:
        stays = _mixup_shares(num_images, mixup_alpha)
    elif mixup_alpha == 0:
        stays = _cutmix_shares(num_images, height, width, cutmix_alpha)
    else:
        either = torch.rand(num_images, 1, 1) < 0.5
        mixup_stays = _mixup_shares(num_images, mixup_alpha)
        stays = torch.where(either, mixup_stays, _cutmix_shares(num_images, height, width, cutmix_alpha))
    partner = torch.randperm(num_images).to(images.device)
    pixel_share = stays.to(images).unsqueeze(1)  # (B, 1, H, W), or (B, 1, 1, 1) for Mixup alone
    image_share = stays.mean((1, 2)).to(targets).unsqueeze(1)  # (B, 1)
    mixed_images = torch.lerp(images[partner], images, pixel_share)
    return mixed_images, torch.lerp(targets[partner], targets, image_share)


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
