"""A column of a table whose cells are texts or files: what a bank predicts of a cell, and its main directions.

Legend
    t          what banks say of a cell: n-grams of a text (`n_gram_bank.py`), patches of an image (`image_bank.py`),
               filters (`filter_bank.py`) and summaries (`summary_bank.py`) of a series, outputs (k,);  standardised by
               the training rows
    ρ          the largest correlation of t, left out, with a column of Y; 0 where it is not above 0 by SURE standard
               errors, 1 / √(rows or groups)
    x          the features of a bank, as its ridge regression scales them;   x̄ their mean
    V          the first `num_directions` right singular vectors of the features of all training rows
    s          deviations of (x - x̄) V

    coordinates      ρ t within FAR,  (x - x̄) V / s / √num_directions
    of a file that a row lacks   0 for all, and 1[it is missing] where a training row lacks it

Where models on these coordinates learn, t is what the bank says without a part of FOLDS that the row is in
(`FittedModel.fit`), as it is of a row that was not learnt from: stacking (Wolpert, Stacked generalization, 1992). What
a ridge regression says without row i alone is (ŷ_i - h_i y_i) / (1 - h_i): where all h_i are alike, y_i is a linear
function of t and of the directions, and what learns from both learns nothing else. By ρ an uninformative column does
not come with the weight of one that is not; t of it is 0, since trees know no weights. A bank of files learns from
MOST_FILES of the training rows, and speaks of the others as of new ones.
"""

import abc
import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn

from fredholm.domains.checks import values_can_be_read
from fredholm.encoders.series import SeriesBatch
from fredholm.models.fitted.filter_bank import FilterBank
from fredholm.models.fitted.image_bank import ImageBank
from fredholm.models.fitted.n_gram_bank import FOLDS, NGramBank
from fredholm.models.fitted.ridge_head import SURE, Regressand, RidgeHead, dealt, some_drawn
from fredholm.models.fitted.summary_bank import SummaryBank
from fredholm.models.language.sentence_model import TokenReading
from fredholm.models.series.series_model import SeriesSampling

FAR = 4.0
"""Deviations beyond which a number counts as being there."""
MOST_FILES, MOST_VALUES = 2048, 1 << 27
"""Files that a bank learns from, at most, and numbers, such as of pixels and colours, that they have."""
PART = 200
"""Rows of a part that is left out, about, at most."""
_SAME = 1e-6

Cells = TypeVar("Cells")


class BankColumn(nn.Module, abc.ABC, Generic[Cells]):
    """Maps the cells of a column to coordinates by a bank.

    Args:
        num_features: of the bank.
        num_outputs: of all banks, such as one for each class.
        num_directions: that are read beside what the bank says; 0: none.
    """

    directions: Tensor
    mean: Tensor
    gain: Tensor
    middle: Tensor

    def __init__(self, num_features: int, num_outputs: int, num_directions: int) -> None:
        super().__init__()
        self.num_directions = num_directions
        self.num_coordinates = num_outputs + num_directions
        self.register_buffer("directions", torch.zeros(num_features, num_directions))
        self.register_buffer("mean", torch.zeros(num_outputs))
        self.register_buffer("gain", torch.ones(num_outputs))
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
    def silence(self) -> None:
        """Has the bank say nothing: its coordinates become 0, but for what is missing."""
        for buffer in (self.gain, self.directions, self.middle):
            buffer.zero_()

    @final
    def silent(self, coordinates: Tensor) -> Tensor:
        """Coordinates `(n, num_coordinates)` as they are of a silent bank."""
        number = len(self.mean) + self.num_directions
        return torch.cat([torch.zeros_like(coordinates[:, :number]), coordinates[:, number:]], 1)

    @final
    def _read(self, outputs: Tensor) -> Tensor:
        """What a bank says, in units of what is fitted."""
        return ((outputs - self.mean) * self.gain).clamp(-FAR, FAR)

    @final
    def _weigh(self, outputs: Tensor, wanted: Tensor, groups: Tensor | None) -> None:
        """Takes mean and gain of outputs `(n, k)`, by how well they go with what is fitted `(n, c)`."""
        self.mean.copy_(outputs.mean(0))
        outputs, wanted = outputs - outputs.mean(0), wanted - wanted.mean(0)
        deviation = outputs.std(0)
        lengths = outputs.norm(dim=0)[:, None] * wanted.norm(dim=0)
        agreement = (outputs.T @ wanted / lengths.clamp_min(1e-300)).amax(1)
        counted = len(outputs) if groups is None else len(groups.unique())
        varies = deviation > 1e-9 * outputs.abs().amax(0).clamp_min(1e-300)
        speaks = varies & (agreement > SURE / math.sqrt(counted))
        self.gain.copy_(torch.where(speaks, agreement / torch.where(speaks, deviation, 1.0), 0.0))

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
        self._weigh(outputs, regressand.columns(torch.cat([targets for _, targets in rows])), groups)
        features = self.bank.sparse([tokens for tokens, _ in rows])
        if count := min(self.num_directions, *features.shape):
            _, _, vectors = torch.svd_lowrank(features, q=count, niter=4)
            self._turn(features @ vectors, vectors)
        return torch.cat([self._read(outputs), torch.cat([self._along(tokens) for tokens, _ in rows])], 1).double()


class FileColumn(BankColumn[Cells]):
    """A column of cells that are files, which rows may lack, as banks read them.

    Args:
        num_features: of the bank whose directions are read.
        num_outputs: of all banks.
        num_directions: see `BankColumn`.
        may_miss: whether some training rows lack one.
    """

    def __init__(self, num_features: int, num_outputs: int, num_directions: int, *, may_miss: bool) -> None:
        super().__init__(num_features, num_outputs, num_directions)
        self.may_miss = may_miss
        self.num_coordinates += may_miss

    @final
    def forward(self, cells: Cells) -> Tensor:
        """See `BankColumn.forward`."""
        return self._with_missing(super().forward(cells), self._exists(cells))

    @abc.abstractmethod
    def _exists(self, cells: Cells) -> Tensor:
        """Which cells are there, bool `(B,)`."""

    @abc.abstractmethod
    def _some(self, cells: Cells, rows: Tensor) -> Cells:
        """The cells of some rows, bool `(B,)`."""

    @abc.abstractmethod
    def _num_values(self, cells: Cells) -> int:
        """Numbers that a cell has, about."""

    @abc.abstractmethod
    def _fit_banks(self, rows: Sequence[tuple[Cells, Tensor]], regressand: Regressand, groups: Tensor | None) -> Tensor:
        """Fits the banks to cells that are there, at least two, and targets.

        Returns:
            What banks say of each without it and its group, float64 `(n, num_outputs)`.
        """

    @abc.abstractmethod
    def _say(self, cells: Cells) -> tuple[Tensor, Tensor]:
        """What banks say `(B, num_outputs)`, and the features whose directions are read `(B, num_features)`."""

    @property
    @abc.abstractmethod
    def _head(self) -> RidgeHead:
        """Of the bank with these features."""

    @final
    def _coordinates(self, cells: Cells) -> tuple[Tensor, Tensor]:
        outputs, features = self._say(cells)
        return outputs, self._turned(features)

    @final
    def _turned(self, features: Tensor) -> Tensor:
        return features.to(self.directions.dtype) @ self.directions - self.middle

    @final
    def _with_missing(self, found: Tensor, exists: Tensor) -> Tensor:
        found = torch.where(exists[:, None], found, 0.0)
        return torch.cat([found, (~exists)[:, None].to(found.dtype)], 1) if self.may_miss else found

    @final
    @torch.no_grad()
    def fit(
        self, rows: Sequence[tuple[Cells, Tensor]], regressand: Regressand, *, groups: Tensor | None = None
    ) -> Tensor:
        """See `BankColumn.fit`; from rows that have a file, MOST_FILES at most. Of one file nothing is learnt."""
        targets, exists = torch.cat([each for _, each in rows]), torch.cat([self._exists(cells) for cells, _ in rows])
        learnt = self._drawn(max(self._num_values(cells) for cells, _ in rows), exists, groups)
        ends = [len(each) for _, each in rows]
        own_groups = None if groups is None else groups[learnt]
        outputs = targets.new_zeros(len(targets), len(self.mean), dtype=torch.float64)
        along = outputs.new_zeros(len(targets), self.num_directions)
        count = int(learnt.sum())
        if count < 2 or (own_groups is not None and len(own_groups.unique()) < 2):
            for head in self.modules():
                if isinstance(head, RidgeHead):  # there is nothing to choose them by, and what is NaN is not saved
                    head.penalty.zero_()
                    head.shares.zero_()
            return self._with_missing(torch.cat([outputs, along], 1), exists)
        chosen = zip(rows, learnt.split(ends), strict=True)
        some = [(self._some(cells, own), each[own]) for (cells, each), own in chosen if bool(own.any())]
        parts = dealt(count, own_groups, max(FOLDS, -(-count // PART)), targets.device)
        outputs[learnt] = self._fit_banks(some, regressand, parts)
        features = torch.cat([self._say(cells)[1] for cells, _ in some])
        if num_directions := min(self.num_directions, len(features)):
            vectors = self._head.directions(features, num_directions)
            self._turn(features.double() @ vectors, vectors)
        along[learnt] = self._turned(features).double()
        others = zip(rows, (exists & ~learnt).split(ends), outputs.split(ends), along.split(ends), strict=True)
        for (cells, _), own, own_outputs, own_along in others:
            if bool(own.any()):
                said, features = self._say(self._some(cells, own))
                own_outputs[own], own_along[own] = said.double(), self._turned(features).double()
        self._weigh(outputs[exists], regressand.columns(targets[exists]), None if groups is None else groups[exists])
        return self._with_missing(torch.cat([self._read(outputs), along], 1).double(), exists)

    def _drawn(self, num_values: int, exists: Tensor, groups: Tensor | None) -> Tensor:
        """The rows that the bank learns from, bool."""
        most = min(MOST_FILES, max(2, MOST_VALUES // max(1, num_values)))
        drawn = torch.zeros_like(exists)
        own = some_drawn(int(exists.sum()), None if groups is None else groups[exists], most)
        drawn[exists] = own.to(exists.device)
        return drawn


@final
class ImageCells(NamedTuple):
    """Images of a column, uint8 `(B, C, H, W)`, and the mask of the existing ones, bool `(B,)`."""

    images: Tensor
    exists: Tensor


@final
class ImageColumn(FileColumn[ImageCells]):
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
        super().__init__(bank.head.weight.shape[1], num_outputs, num_directions, may_miss=may_miss)
        self.bank = bank
        self.register_buffer("pixel_mean", torch.zeros(channels, 1, 1))
        self.register_buffer("pixel_scale", torch.ones(channels, 1, 1))

    def _exists(self, cells: ImageCells) -> Tensor:
        return cells.exists

    def _some(self, cells: ImageCells, rows: Tensor) -> ImageCells:
        return ImageCells(cells.images[rows], cells.exists[rows])

    def _num_values(self, cells: ImageCells) -> int:
        return math.prod(cells.images.shape[1:])

    @property
    def _head(self) -> RidgeHead:
        return self.bank.head

    def _fit_banks(
        self, rows: Sequence[tuple[ImageCells, Tensor]], regressand: Regressand, groups: Tensor | None
    ) -> Tensor:
        self._standardise([cells.images for cells, _ in rows])
        return self.bank.fit([(self._pixels(cells.images), each) for cells, each in rows], regressand, groups=groups)

    def _say(self, cells: ImageCells) -> tuple[Tensor, Tensor]:
        features = self.bank.features(self._pixels(cells.images))
        return self.bank.head(features.to(self.bank.head.weight.dtype)), features

    def _pixels(self, images: Tensor) -> Tensor:
        """Standardised pixels."""
        return (images.to(self.pixel_mean.dtype) / 255 - self.pixel_mean) / self.pixel_scale

    def _standardise(self, images: Sequence[Tensor]) -> None:
        """Sets mean and deviation of the pixels of each channel."""
        count = sum(each[:, 0].numel() for each in images)
        mean = torch.stack([each.double().sum((0, 2, 3)) for each in images]).sum(0) / count / 255
        square = torch.stack([(each.double() / 255).square().sum((0, 2, 3)) for each in images]).sum(0) / count
        deviation = (square - mean.square()).clamp_min(0).sqrt()
        self.pixel_mean.copy_(mean[:, None, None])
        self.pixel_scale.copy_(torch.where(deviation > 1e-6, deviation, 1.0)[:, None, None])


@final
class SeriesCells(NamedTuple):
    """Series of a column: values `(B, N, C)`, NaN where one is missing, and times `(B, N)`, float64.

    Times are NaN behind the last sample of a series; a row without one has none. They increase along a series.
    """

    values: Tensor
    times: Tensor


@final
class SeriesColumn(FileColumn[SeriesCells]):
    """Series of some channels, read by a bank of filters and by their summaries.

    Args:
        sampling: of the training series.
        num_outputs, num_directions: see `BankColumn`, the outputs those of each bank.
        config: of the bank of filters.
        may_miss: whether some training rows lack one.
    """

    value_mean: Tensor
    value_scale: Tensor

    def __init__(
        self,
        sampling: SeriesSampling,
        num_outputs: int,
        num_directions: int,
        config: FilterBank.Config,
        *,
        may_miss: bool,
    ) -> None:
        bank = config.build(sampling, num_outputs)
        super().__init__(bank.head.weight.shape[1], 2 * num_outputs, num_directions, may_miss=may_miss)
        self.sampling, self.bank = sampling, bank
        self.summaries = SummaryBank.Config().build(sampling, num_outputs)
        self.num_values = sampling.channels - len(sampling.observation)
        self.register_buffer("value_mean", torch.zeros(self.num_values, dtype=torch.float64))
        self.register_buffer("value_scale", torch.ones(self.num_values, dtype=torch.float64))

    def _exists(self, cells: SeriesCells) -> Tensor:
        # not any(), of which a series without a place for samples has none in a graph
        return (~cells.times.isnan()).sum(1) > 0

    def _some(self, cells: SeriesCells, rows: Tensor) -> SeriesCells:
        return SeriesCells(cells.values[rows], cells.times[rows])

    def _num_values(self, cells: SeriesCells) -> int:
        return math.prod(cells.values.shape[1:])

    @property
    def _head(self) -> RidgeHead:
        return self.bank.head

    def _fit_banks(
        self, rows: Sequence[tuple[SeriesCells, Tensor]], regressand: Regressand, groups: Tensor | None
    ) -> Tensor:
        self._standardise([cells.values for cells, _ in rows])
        batches = [(self._batch(cells), each) for cells, each in rows]
        banks = (self.bank, self.summaries)
        return torch.cat([bank.fit(batches, regressand, groups=groups) for bank in banks], 1)

    def _say(self, cells: SeriesCells) -> tuple[Tensor, Tensor]:
        batch = self._batch(cells)
        features = self.bank.features(batch)
        return torch.cat([self.bank.head(features), self.summaries(batch)], 1), features

    def _batch(self, cells: SeriesCells) -> SeriesBatch:
        """What banks read: standardised values, 0 where one is missing, and which are there."""
        values = cells.values[..., : self.num_values]
        exists = ~cells.times.isnan()
        known = ~values.isnan()
        standard = ((values.double() - self.value_mean) * self.value_scale).to(self.value_mean.dtype)
        standard = torch.where(known, standard, 0.0)
        observed = known[..., list(self.sampling.observation)].to(standard.dtype)
        found = torch.where(exists[..., None], torch.cat([standard, observed], -1), 0.0).float()
        if not values_can_be_read(cells.times):
            return SeriesBatch(found, exists)
        start = cells.times[:, :1]
        steps = torch.arange(cells.times.shape[1], device=start.device) * self.sampling.spacing
        off = (cells.times - start - steps).abs() > _SAME * self.sampling.spacing
        return SeriesBatch(found, exists, torch.where(exists, cells.times - start, 0.0) if bool(off.any()) else None)

    def _standardise(self, series: Sequence[Tensor]) -> None:
        """Takes mean and deviation of the values of each channel that are there."""
        values = torch.cat([each[..., : self.num_values].flatten(0, 1) for each in series]).double()
        count = (~values.isnan()).sum(0).clamp_min(1)
        mean = values.nansum(0) / count
        deviation = ((values - mean).square().nansum(0) / count).sqrt()
        self.value_mean.copy_(mean)
        self.value_scale.copy_(1 / torch.where(deviation > 1e-12 * mean.abs(), deviation, 1.0))
