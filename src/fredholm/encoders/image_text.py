"""Images with text as one signal on a joint domain."""

from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, refuse_idle
from fredholm.domains import Domain, Points, Union
from fredholm.encoders.convolutional_image import ConvolutionalImage
from fredholm.encoders.encoder import Encoder
from fredholm.encoders.image import Image
from fredholm.encoders.text import Text

Modality = Literal["image", "text"]
ModalityMeasure = Literal["uniform", "balanced", "image-heavy", "text-heavy"]
"""Masses of images and text: by number of points; a half each; three quarters for one and a quarter for the other."""
HEAVY = 0.75
SHARES: dict[ModalityMeasure, tuple[float, float] | None] = {
    "uniform": None,
    "balanced": (0.5, 0.5),
    "image-heavy": (1 - HEAVY, HEAVY),
    "text-heavy": (HEAVY, 1 - HEAVY),
}
"""Masses of the text and of all images; None: proportional to the number of points."""
TEXT_ROW = 1.5
"""First coordinate of every token; those of patches lie between 0 and 1."""
IMAGE_STEP = 1.25
"""Distance from an image to the next one along the second coordinate, in image sides."""


@final
class ImageTextBatch(NamedTuple):
    """Texts with M images each: `images (B, M, C, H, W)`, float, and `tokens (B, T)`, int64."""

    images: Tensor
    tokens: Tensor


@final
class ImageText(Encoder):
    """Patches and tokens side by side on Ω_img ∪ Ω_txt (ITNet, section 3, "Multimodal encoder", and H.3.2).

        u(x) = (signal of the image's or the text's own encoder) + e_img or e_txt

    The two modality embeddings e start as N(0, 0.02²). The first points are those of the text, so that its [CLS] token
    is the class token of the whole; then come the patches of each image.

    The paper embeds text positions "in the 2-D space to separate modalities" without coordinates. Here a position is
    (row, column) in image sides: the image is the unit box, token k is below it at (3/2, k / context), and each further
    image is 5/4 to the right of the previous one, so that kernels can distinguish them. The Fourier features of a patch
    in the signal are those of its position in its own image.

    The measure sets the mass of a modality: "uniform", proportional to its number of points; "balanced", one half;
    "image-heavy" and "text-heavy", three quarters for that modality; the paper compares such measures (table 22)
    without stating their shares. Points of a modality have equal mass, those of all images together; padding of a text
    is masked, with mass 0. A class token that a model adds takes 1/(N + 1) of the mass and keeps the ratio of the
    shares.

    Args:
        image: encoder of each image; None: only texts.
        text: encoder of the text, with or without a class token; None: only images.
        num_images: M, number of images of each text.
        measure: see above; refused with a single modality.

    Raises:
        ValueError: no modality, encoders of different channels, a text without a context, settings without effect, or a
            number of images below 1.
    """

    def __init__(
        self,
        image: Image | ConvolutionalImage | None,
        text: Text | None,
        *,
        num_images: int = 1,
        measure: ModalityMeasure = "balanced",
    ) -> None:
        super().__init__()
        name = "encoders.ImageText"
        check_count(name, "num_images", num_images)
        if measure not in SHARES:
            raise ValueError(f"{name}: measure is one of {', '.join(SHARES)}; got {measure!r}")
        own = image or text
        if own is None:
            raise ValueError(f"{name}: image and text are None; give an encoder of images, of text, or both")
        if image is None or text is None:
            refuse_idle(name, ImageText, "one modality, which weighs 1", "give both encoders", measure=measure)
            if image is None:
                refuse_idle(name, ImageText, "texts alone", "give an encoder of images", num_images=num_images)
        elif image.embed_dim != text.embed_dim:
            raise ValueError(
                f"{name}: the image's encoder gives {image.embed_dim} channels, the text's {text.embed_dim}; make them "
                "equal"
            )
        if text is not None and text.context is None:
            raise ValueError(f"{name}: text needs a context, the unit of its positions; give it one")
        self.embed_dim, self.pos_dim, self.num_images = own.embed_dim, 2, num_images
        self.measure: ModalityMeasure = measure
        self.has_class_token = text is not None and text.has_class_token
        self.image, self.text = image, text
        self.modality_weight = nn.Parameter(0.02 * torch.randn(2, self.embed_dim))
        """e_img and e_txt."""

    def forward(self, inputs: Tensor | ImageTextBatch) -> tuple[Tensor, Domain]:
        """A batch to the signal `(B, N, embed_dim)` and its domain: T tokens, then the patches of M images.

        Raises:
            TypeError: inputs that are no batch.
            ValueError: another number of images, or inputs that an encoder refuses.
        """
        parts = self.parts(inputs)
        if len(parts) == 1:
            return next(iter(parts.values()))
        (text, of_text), (image, of_image) = parts["text"], parts["image"]
        return torch.cat([text, image], dim=1), Union(of_text, of_image, mass=SHARES[self.measure])

    def parts(self, inputs: Tensor | ImageTextBatch) -> dict[Modality, tuple[Tensor, Domain]]:
        """The signal and domain of each modality, the domain of mass 1, with the positions of the joint domain.

        For models that process modalities separately; raises as `forward`.
        """
        if not isinstance(inputs, ImageTextBatch):
            raise TypeError(f"encoders.ImageText: expected an ImageTextBatch; got {type(inputs).__name__}")
        found: dict[Modality, tuple[Tensor, Domain]] = {}
        if self.text is not None:
            u, line = self.text(inputs.tokens)
            place = torch.cat([torch.full_like(line.pos, TEXT_ROW), line.pos], dim=-1)
            found["text"] = self._marked(u, "text"), Points(place, mask=line.mask)
        if self.image is not None:
            found["image"] = self._images(self.image, inputs.images)
        return found

    def _images(self, encoder: Image | ConvolutionalImage, images: Tensor) -> tuple[Tensor, Domain]:
        if images.ndim != 5 or images.shape[1] != self.num_images:
            raise ValueError(
                f"encoders.ImageText: expected images of shape (batch, {self.num_images}, channels, height, width); "
                f"got {tuple(images.shape)}"
            )
        u, grid = encoder(images.flatten(0, 1))
        u = self._marked(u.unflatten(0, images.shape[:2]).flatten(1, 2), "image")
        if self.num_images == 1:
            return u, grid
        step = torch.tensor([0.0, IMAGE_STEP], dtype=grid.pos.dtype, device=grid.device)
        return u, Points(torch.cat([grid.pos + number * step for number in range(self.num_images)]))

    def _marked(self, u: Tensor, modality: Modality) -> Tensor:
        return u + self.modality_weight[get_args(Modality).index(modality)].to(u.dtype)
