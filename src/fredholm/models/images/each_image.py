"""A model of several images with one text, which processes each image-text pair separately."""

from typing import final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.encoders.image_text import ImageTextBatch
from fredholm.models.saved_model import SavedModel
from fredholm.models.signal_model import SignalModel


@final
class EachImage(SavedModel):
    """Applies one model to each of M images with the text, and a linear layer to the M joined vectors (ITNet, K.4).

        out = A [h_1; ...; h_M] + b = Σ_m (A_m h_m + b_m),    h_m the input of the model's head for image m and the text

    A_m is the m-th block of the head of a model with M K outputs, which has the biases b_m too, so the order of the
    images matters. Only this layer combines the pairs.

    Args:
        model: a model on an `encoders.ImageText` of one image, with M K outputs.
        num_images: number M of images.

    Raises:
        ValueError: outputs that M does not divide, or M below 1.
    """

    def __init__(self, model: SignalModel, num_images: int) -> None:
        super().__init__()
        check_count("models.EachImage", "num_images", num_images)
        outputs = model.head.out_features
        if outputs % num_images:
            raise ValueError(f"models.EachImage: num_images is {num_images}, which must divide the {outputs} outputs")
        self.model, self.num_images = model, num_images

    def forward(self, inputs: ImageTextBatch) -> Tensor:
        """Maps images `(B, M, C, H, W)` with tokens `(B, T)` to `(B, K)`.

        Raises:
            ValueError: another number of images, or inputs that the model refuses.
        """
        images, tokens = inputs
        if images.ndim != 5 or images.shape[1] != self.num_images:
            raise ValueError(
                f"models.EachImage: expected images of shape (batch, {self.num_images}, channels, height, width); got "
                f"{tuple(images.shape)}"
            )
        pairs = ImageTextBatch(images.flatten(0, 1)[:, None], tokens.repeat_interleave(self.num_images, dim=0))
        outputs = self.model(pairs).unflatten(0, images.shape[:2]).unflatten(-1, (self.num_images, -1))
        return torch.einsum("bmmk->bk", outputs)
