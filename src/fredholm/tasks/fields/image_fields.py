"""Images as functions of the plane: a sample a pixel."""

import torch

from fredholm.domains import Grid
from fredholm.tasks.images import ImageDataset
from fredholm.tasks.splits.splits import Splits

from .field_set import FieldSet, Samples

COORDINATES = ("y", "x")
"""Down and to the right, from 0 to 1, as rows and columns run."""
_CHUNK = 4096


def image_fields(images: Splits[ImageDataset]) -> Splits[FieldSet]:
    """Brightness from 0 to 1 at the centres of the pixels, of images of any source; labels are left out."""
    train, test, valid = (None if part is None else _fields(part) for part in (images.train, images.test, images.valid))
    assert train is not None
    return Splits(train, test, valid, is_given=images.is_given)


def _fields(images: ImageDataset) -> FieldSet:
    n, (height, width) = len(images), images.image_size
    values = torch.empty(n, height * width, images.channels)
    for indices in torch.arange(n).split(_CHUNK):
        values[indices] = images.images(indices).flatten(2).mT.float() / 255
    return FieldSet(
        given=Samples(Grid(height, width).pos.expand(n, -1, -1), values, None),
        coordinates=COORDINATES,
        channels=("grey",) if images.channels == 1 else ("red", "green", "blue"),
        names=tuple(images.name(i) for i in range(n)),
    )
