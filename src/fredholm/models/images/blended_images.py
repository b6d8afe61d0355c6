"""A network of images and a bank of patches beside it, of which each takes a share in the answer."""

from typing import final

from torch import Tensor

from fredholm.models.blended import Blended
from fredholm.models.fitted.image_bank import ImageBank
from fredholm.models.saved_model import SavedModel


@final
class BlendedImages(Blended[SavedModel, ImageBank]):
    """A network of images with a bank of patches beside it; see `Blended`.

    Outputs are blended, of classes and labels the logits: probabilities are then their weighted geometric means.

    Args:
        network: of images `(B, C, H, W)`.
        fitted: with as many outputs.
    """

    def __init__(self, network: SavedModel, fitted: ImageBank) -> None:
        super().__init__(network, fitted)

    def forward(self, images: Tensor) -> Tensor:
        """Images `(B, C, H, W)` to outputs `(B, num_outputs)`."""
        return self._answer(images)
