"""Images read pixel by pixel, row after row: sequential MNIST (Le, Jaitly, Hinton 2015)."""

from pathlib import Path

import torch

from fredholm.tasks.images import ImageDataset, idx_folder
from fredholm.tasks.splits.splits import Splits

from .series_set import SeriesSet


def idx_pixels(folder: str | Path) -> Splits[SeriesSet]:
    """A folder in the format of MNIST as series of one channel, `pixel`: brightness from 0 to 1, a sample each.

    Raises:
        ValueError: what `idx_folder` refuses.
    """
    splits = idx_folder(folder)
    assert splits.test is not None
    return Splits(_series(splits.train), _series(splits.test))


def _series(images: ImageDataset) -> SeriesSet:
    every = torch.arange(len(images))
    values = images.images(every).flatten(1)[..., None].float() / 255
    return SeriesSet(
        values=values,
        lengths=torch.full((len(values),), values.shape[1]),
        answers=images.answers,
        channels=("pixel",),
        names=tuple(images.name(i) for i in range(len(values))),
    )
