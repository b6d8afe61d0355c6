"""Images with a class per pixel: folders of images and masks, and .npz files of arrays."""

from .mask_set import IGNORED, MaskedImages
from .open import open_masks, truth_beside
from .read import read_mask

__all__ = ["IGNORED", "MaskedImages", "open_masks", "read_mask", "truth_beside"]
