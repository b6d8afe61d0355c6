"""Coordinates for table columns of texts or images: predictions of a bank and principal directions of its features.

Legend
    t          predictions (c,) of a bank for a cell: n-grams of a text (`n_gram_bank.py`), patches of an image
               (`image_bank.py`);  standardised by the training rows
    ρ          the largest correlation of t, left out, with a column of Y; 1e-6 where there is none above it
    x          the features of the bank, those of an image as its ridge regression scales them;   x̄ their mean
    V          the first `num_directions` right singular vectors of the features of all training rows
    s          deviations of (x - x̄) V

    coordinates      ρ t within FAR,  (x - x̄) V / s / √num_directions
    of an image that a row lacks   0 for all, and 1[it is missing] where a training row lacks it

For training the models on these coordinates, t is the left-out prediction of each row (`FittedModel.fit`): stacking
(Wolpert, Stacked generalization, 1992). The factor ρ keeps an uninformative column from weighing as much as an
informative one. A bank of images is fitted to at most MOST_IMAGES of the training rows, and predicts the others like
new ones.
"""

import abc
import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn

from fredholm.models.fitted.image_bank import ImageBank
from fredholm.models.fitted.n_gram_bank import NGramBank
from fredholm.models.fitted.ridge_head import Regressand, some_drawn
from fredholm.models.language.sentence_model import TokenReading

FAR = 4.0
"""Standard deviations at which a number is clipped."""
MOST_IMAGES, MOST_VALUES = 2048, 1 << 27
"""Most images that a bank is fitted to, and most pixel values of all of them."""

Cells = TypeVar("Cells")


class BankColumn(nn.Module, abc.ABC, Generic[Cells]):
    """Maps the cells of a column to coordinates by a bank.

    Args:
        num_features: number of features of the bank.
        num_outputs: number of outputs, such as classes.
        num_directions: number of principal directions beside the bank's predictions; 0: none.
    """

    directions: Tensor
    mean: Tensor
    scale: Tensor
    middle: Tensor

    def __init__(self, num_features: int, num_outputs: int, num_directions: int) -> None:
        super().__init__()
        self.num_directions = num_directions
        self.num_coordinates = num_outputs + num_directions
        self.register_buffer("directions", torch.zeros(num_features, num_directions))
        self.register_buffer("mean", torch.zeros(num_outputs))
        self.register_buffer("scale", torch.ones(num_outputs))
        self.register_buffer("middle", torch.zeros(num_directions))

    def forward(self, cells: Cells) -> Tensor:
        """Returns the coordinates `(B, num_coordinates)`."""
        outputs, along = self._coordinates(cells)
        return torch.cat([self._read(outputs), along], 1)

    @abc.abstractmethod
    def fit(
        self, rows: Sequence[tuple[Cells, Tensor]], regressand: Regressand, *, groups: Tensor | None = None
    ) -> Tensor:
        """Fits the bank to cells and targets, and computes the directions.

        Returns:
            Coordinates of the training rows, float64 `(n, num_coordinates)`, by left-out predictions of the bank.
        """

    @abc.abstractmethod
    def _coordinates(self, cells: Cells) -> tuple[Tensor, Tensor]:
        """Predictions of the bank `(B, num_outputs)`, and coordinates along the directions `(B, num_directions)`."""

    @final
    def _read(self, outputs: Tensor) -> Tensor:
        """Standardised and clipped predictions of the bank, weighted by ρ."""
        return ((outputs - self.mean) / self.scale).clamp(-FAR, FAR)

    @final
    def _weigh(self, outputs: Tensor, wanted: Tensor) -> None:
        """Sets mean and scale from predictions `(n, num_outputs)`, by their correlation with the targets `(n, c)`."""
        self.mean.copy_(outputs.mean(0))
        outputs, wanted = outputs - outputs.mean(0), wanted - wanted.mean(0)
        deviation = outputs.std(0)
        lengths = outputs.norm(dim=0)[:, None] * wanted.norm(dim=0)
        agreement = (outputs.T @ wanted / lengths.clamp_min(1e-300)).amax(1).clamp_min(1e-6)
        varies = deviation > 1e-9 * outputs.abs().amax(0).clamp_min(1e-300)
        self.scale.copy_(torch.where(varies, deviation, 1.0) / agreement)

    @final
    def _turn(self, along: Tensor, vectors: Tensor) -> None:
        """Sets the directions from vectors `(num_features, q)` and the training features along them `(n, q)`."""
        deviation = along.std(0)
        varies = deviation > 1e-6 * deviation.max().clamp_min(torch.finfo(along.dtype).tiny)
        spread = torch.where(varies, 1 / torch.where(varies, deviation, 1.0), 0.0) / math.sqrt(self.num_directions)
        self.directions.zero_()
        self.middle.zero_()
        self.directions[:, : len(spread)] = (vectors * spread).to(self.directions)
        self.middle[: len(spread)] = (along.mean(0) * spread).to(self.middle)


@final
class TextColumn(BankColumn[Tensor]):
    """Texts, rows of tokens `(B, N)`.

    Args:
        reading: description of the tokens.
        num_outputs, num_directions: see `BankColumn`.
        config: configuration of the bank of n-grams.
    """

    def __init__(self, reading: TokenReading, num_outputs: int, num_directions: int, config: NGramBank.Config) -> None:
        bank = config.build(reading, num_outputs)
        super().__init__(bank.num_features, num_outputs, num_directions)
        self.bank = bank

    def _coordinates(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        return self.bank(cells), self._along(cells)

    def _along(self, cells: Tensor) -> Tensor:
        row, gram, value = self.bank.features(cells)
        start = -self.middle.expand(len(cells), -1)
        return start.index_add(0, row, value.to(start)[:, None] * self.directions[gram])

    @torch.no_grad()
    def fit(
        self, rows: Sequence[tuple[Tensor, Tensor]], regressand: Regressand, *, groups: Tensor | None = None
    ) -> Tensor:
        """See `BankColumn.fit`."""
        outputs = self.bank.fit(rows, regressand, groups=groups)
        self._weigh(outputs, regressand.columns(torch.cat([targets for _, targets in rows])))
        features = self.bank.sparse([tokens for tokens, _ in rows])
        if count := min(self.num_directions, *features.shape):
            _, _, vectors = torch.svd_lowrank(features, q=count, niter=4)
            self._turn(features @ vectors, vectors)
        return torch.cat([self._read(outputs), torch.cat([self._along(tokens) for tokens, _ in rows])], 1).double()


@final
class ImageCells(NamedTuple):
    """Images of a column, uint8 `(B, C, H, W)`, and the mask of the existing ones, bool `(B,)`."""

    images: Tensor
    exists: Tensor


@final
class ImageColumn(BankColumn[ImageCells]):
    """Images of one size.

    Args:
        channels, image_size: 1 (grey) or 3 (RGB) channels; height and width.
        num_outputs, num_directions: see `BankColumn`.
        config: configuration of the bank of patches.
        may_miss: whether some training rows have no image.
    """

    pixel_mean: Tensor
    pixel_scale: Tensor

    def __init__(
        self,
        channels: int,
        image_size: tuple[int, int],
        num_outputs: int,
        num_directions: int,
        config: ImageBank.Config,
        *,
        may_miss: bool,
    ) -> None:
        bank = config.build(image_size, channels, num_outputs)
        super().__init__(bank.head.weight.shape[1], num_outputs, num_directions)
        self.bank, self.may_miss = bank, may_miss
        self.num_coordinates += may_miss
        self.register_buffer("pixel_mean", torch.zeros(channels, 1, 1))
        self.register_buffer("pixel_scale", torch.ones(channels, 1, 1))

    def forward(self, cells: ImageCells) -> Tensor:
        """See `BankColumn.forward`."""
        return self._with_missing(super().forward(cells), cells.exists)

    def _coordinates(self, cells: ImageCells) -> tuple[Tensor, Tensor]:
        features = self.bank.features(self._pixels(cells.images))
        return self.bank.head(features.to(self.bank.head.weight.dtype)), self._turned(features)

    def _turned(self, features: Tensor) -> Tensor:
        return features.to(self.directions.dtype) @ self.directions - self.middle

    def _pixels(self, images: Tensor) -> Tensor:
        """Standardised pixels."""
        return (images.to(self.pixel_mean.dtype) / 255 - self.pixel_mean) / self.pixel_scale

    def _with_missing(self, found: Tensor, exists: Tensor) -> Tensor:
        found = torch.where(exists[:, None], found, 0.0)
        return torch.cat([found, (~exists)[:, None].to(found.dtype)], 1) if self.may_miss else found

    @torch.no_grad()
    def fit(
        self, rows: Sequence[tuple[ImageCells, Tensor]], regressand: Regressand, *, groups: Tensor | None = None
    ) -> Tensor:
        """See `BankColumn.fit`; uses at most MOST_IMAGES rows with an image, and learns nothing from a single one."""
        targets, exists = torch.cat([each for _, each in rows]), torch.cat([cells.exists for cells, _ in rows])
        learnt, ends = self._drawn(rows[0][0].images, exists, groups), [len(each) for _, each in rows]
        own_groups = None if groups is None else groups[learnt]
        outputs = targets.new_zeros(len(targets), len(self.mean), dtype=torch.float64)
        along = outputs.new_zeros(len(targets), self.num_directions)
        if int(learnt.sum()) < 2 or (own_groups is not None and len(own_groups.unique()) < 2):
            # there is nothing to choose them by, and what is NaN is not saved
            self.bank.head.penalty.zero_()
            self.bank.head.shares.zero_()
            return self._with_missing(torch.cat([outputs, along], 1), exists)
        chosen = zip(rows, learnt.split(ends), strict=True)
        some = [(cells.images[own], each[own]) for (cells, each), own in chosen if bool(own.any())]
        self._standardise([images for images, _ in some])
        batches = [(self._pixels(images), each) for images, each in some]
        outputs[learnt] = self.bank.fit(batches, regressand, groups=own_groups)
        features = torch.cat([self.bank.features(images) for images, _ in batches])
        if count := min(self.num_directions, len(features)):
            vectors = self.bank.head.directions(features, count)
            self._turn(features.double() @ vectors, vectors)
        along[learnt] = self._turned(features).double()
        others = zip(rows, (exists & ~learnt).split(ends), outputs.split(ends), along.split(ends), strict=True)
        for (cells, _), own, own_outputs, own_along in others:
            if bool(own.any()):
                features = self.bank.features(self._pixels(cells.images[own]))
                own_outputs[own] = self.bank.head(features.to(self.bank.head.weight.dtype)).double()
                own_along[own] = self._turned(features).double()
        self._weigh(outputs[exists], regressand.columns(targets[exists]))
        return self._with_missing(torch.cat([self._read(outputs), along], 1).double(), exists)

    def _drawn(self, images: Tensor, exists: Tensor, groups: Tensor | None) -> Tensor:
        """Mask of the rows that the bank is fitted to, bool."""
        most = min(MOST_IMAGES, max(2, MOST_VALUES // math.prod(images.shape[1:])))
        drawn = torch.zeros_like(exists)
        own = some_drawn(int(exists.sum()), None if groups is None else groups[exists], most)
        drawn[exists] = own.to(exists.device)
        return drawn

    def _standardise(self, images: Sequence[Tensor]) -> None:
        """Sets mean and deviation of the pixels of each channel."""
        count = sum(each[:, 0].numel() for each in images)
        mean = torch.stack([each.double().sum((0, 2, 3)) for each in images]).sum(0) / count / 255
        square = torch.stack([(each.double() / 255).square().sum((0, 2, 3)) for each in images]).sum(0) / count
        deviation = (square - mean.square()).clamp_min(0).sqrt()
        self.pixel_mean.copy_(mean[:, None, None])
        self.pixel_scale.copy_(torch.where(deviation > 1e-6, deviation, 1.0)[:, None, None])
