"""Several images with one text, each pair by itself through one network."""

from typing import final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.encoders.image_text import ImageTextBatch
from fredholm.models.saved_model import SavedModel
from fredholm.models.signal_model import SignalModel


@final
class EachImage(SavedModel):
    """Each of M images with the text through one model, and one linear layer on the M vectors joined (ITNet, K.4).

        out = A [h_1; ...; h_M] + b = Σ_m (A_m h_m + b_m),    h_m what the model's head reads of image m and the text

    A_m is the m-th block of the head of a model with M K outputs, which has the biases b_m too; so the order of the
    images counts. The pairs meet in this layer alone.

    Args:
        model: on an `encoders.ImageText` of one image, with M K outputs.
        num_images: M.

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
        """Images `(B, M, C, H, W)` with tokens `(B, T)` to `(B, K)`.

        Raises:
            ValueError: another number of images, and what the model refuses.
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
