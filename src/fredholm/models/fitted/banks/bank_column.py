"""Coordinates of a table column of texts or files: predictions of banks, and main directions of their features.

Legend
    t          predictions of the banks (k,), standardised over the training rows: of n-grams of a text
               (`n_gram_bank.py`), of patches of an image (`image_bank.py`), of filters (`filter_bank.py`) and summaries
               (`summary_bank.py`) of a series
    ρ          the largest correlation of t, left out, with a column of Y; 0 unless it exceeds SURE standard errors,
               each 1 / √(rows or groups)
    x          features of a bank, as scaled by its ridge regression;   x̄ their mean
    V          the first `num_directions` right singular vectors of the features of all training rows
    s          standard deviations of (x - x̄) V

    coordinates        ρ t, clamped to ±FAR,  (x - x̄) V / s / √num_directions
    of a missing file  0 for all, and 1[it is missing] if a training row lacks it

For a training row, t is predicted without the fold that holds the row (`FittedModel.fit`), as for a new row. This is
stacking (Wolpert, Stacked generalization, 1992). The folds have several rows, since the prediction of a ridge
regression without row i alone is (ŷ_i - h_i y_i) / (1 - h_i): if all leverages h_i are similar, y_i is a linear
function of t and the directions, and a model that reads both learns only that. The factor ρ gives uninformative columns
a small weight, and 0 if they are not significant, since trees ignore weights. A bank of files is fitted to at most
MOST_FILES training rows, and predicts the others as new ones.
"""

import abc
import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm.domains.checks import values_can_be_read
from fredholm.encoders.series import SeriesBatch, interpolated
from fredholm.models.fitted.banks.filter_bank import FilterBank
from fredholm.models.fitted.banks.image_bank import ImageBank
from fredholm.models.fitted.banks.n_gram_bank import FOLDS, NGramBank
from fredholm.models.fitted.banks.summary_bank import SummaryBank
from fredholm.models.fitted.example_weights import mean_of, some_of, weighed
from fredholm.models.fitted.ridge_head import SURE, Regressand, RidgeHead, dealt, some_drawn
from fredholm.models.language.sentence_model import TokenReading
from fredholm.models.series.series_model import SeriesSampling

FAR = 4.0
"""Number of standard deviations to which values are clamped."""
MOST_FILES, MOST_VALUES = 2048, 1 << 27
"""Largest number of files that a bank is fitted to, and of their values, such as pixels times channels."""
FOLD_SIZE = 200
"""Approximate largest number of rows of a fold."""
_SAME = 1e-6
"""Relative deviation up to which times count as regular."""

Cells = TypeVar("Cells")


class BankColumn(nn.Module, abc.ABC, Generic[Cells]):
    """Maps the cells of a column to coordinates by a bank.

    Args:
        num_features: number of features of the bank.
        num_outputs: number of outputs of all banks together, such as one for each class.
        num_directions: number of main directions that are read besides the predictions; 0: none.
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
        return torch.cat([self._scaled(outputs), along], 1)

    @abc.abstractmethod
    def fit(
        self,
        rows: Sequence[tuple[Cells, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits the bank to cells and targets, and computes the directions.

        Returns:
            Coordinates of the training rows, float64 `(n, num_coordinates)`, from left-out predictions of the bank.
        """

    @abc.abstractmethod
    def _coordinates(self, cells: Cells) -> tuple[Tensor, Tensor]:
        """Predictions of the bank `(B, num_outputs)`, and coordinates along the directions `(B, num_directions)`."""

    @property
    @final
    def is_informative(self) -> bool:
        """Whether left-out predictions correlate significantly with the targets: some ρ is above 0."""
        return bool((self.gain > 0).any())

    @final
    def switch_off(self) -> None:
        """Sets all coordinates to 0 from now on, except the mark of missing files."""
        for buffer in (self.gain, self.directions, self.middle):
            buffer.zero_()

    @final
    def switched_off(self, coordinates: Tensor) -> Tensor:
        """Returns coordinates `(n, num_coordinates)` as they are once the bank is switched off."""
        number = len(self.mean) + self.num_directions
        return torch.cat([torch.zeros_like(coordinates[:, :number]), coordinates[:, number:]], 1)

    @final
    def _scaled(self, outputs: Tensor) -> Tensor:
        """Predictions `(B, num_outputs)` as coordinates: standardised, times ρ, clamped to ±FAR."""
        return ((outputs - self.mean) * self.gain).clamp(-FAR, FAR)

    @final
    def _set_scale(self, outputs: Tensor, wanted: Tensor, groups: Tensor | None, weights: Tensor | None = None) -> None:
        """Sets mean and gain from left-out predictions `(n, k)` and their correlation with Y `(n, c)`."""
        self.mean.copy_(mean_of(outputs, weights))
        deviation = _deviation(outputs, weights)
        root = None if weights is None else weights.sqrt()
        outputs, wanted = (weighed(each - mean_of(each, weights), root) for each in (outputs, wanted))
        lengths = outputs.norm(dim=0)[:, None] * wanted.norm(dim=0)
        correlation = (outputs.T @ wanted / lengths.clamp_min(1e-300)).amax(1)
        counted = len(outputs) if groups is None else len(groups.unique())
        varies = deviation > 1e-9 * outputs.abs().amax(0).clamp_min(1e-300)
        is_informative = varies & (correlation > SURE / math.sqrt(counted))
        self.gain.copy_(torch.where(is_informative, correlation / torch.where(is_informative, deviation, 1.0), 0.0))

    @final
    def _set_directions(self, along: Tensor, vectors: Tensor, weights: Tensor | None) -> None:
        """Sets the directions from vectors `(num_features, q)` and the training features along them `(n, q)`."""
        deviation = _deviation(along, weights)
        varies = deviation > 1e-6 * deviation.max().clamp_min(torch.finfo(along.dtype).tiny)
        spread = torch.where(varies, 1 / torch.where(varies, deviation, 1.0), 0.0) / math.sqrt(self.num_directions)
        self.directions.zero_()
        self.middle.zero_()
        self.directions[:, : len(spread)] = (vectors * spread).to(self.directions)
        self.middle[: len(spread)] = (mean_of(along, weights) * spread).to(self.middle)


@final
class TextColumn(BankColumn[Tensor]):
    """A column of texts, rows of tokens `(B, N)`.

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
        self,
        rows: Sequence[tuple[Tensor, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """See `BankColumn.fit`."""
        outputs = self.bank.fit(rows, regressand, groups=groups, weights=weights)
        self._set_scale(outputs, regressand.columns(torch.cat([targets for _, targets in rows])), groups, weights)
        features = self.bank.sparse([tokens for tokens, _ in rows])
        if count := min(self.num_directions, *features.shape):
            aligned = features
            if weights is not None:
                values = weights.sqrt()[features.indices()[0]] * features.values()
                aligned = torch.sparse_coo_tensor(features.indices(), values, features.shape, check_invariants=False)
            _, _, vectors = torch.svd_lowrank(aligned, q=count, niter=4)
            self._set_directions(features @ vectors, vectors, weights)
        return torch.cat([self._scaled(outputs), torch.cat([self._along(tokens) for tokens, _ in rows])], 1).double()


class FileColumn(BankColumn[Cells]):
    """A column of files, as images or series; rows may lack one.

    Args:
        num_features: number of features of the bank whose directions are read.
        num_outputs: number of outputs of all banks together.
        num_directions: see `BankColumn`.
        may_miss: whether some training rows lack a file.
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
        """Mask of the rows with a file, bool `(B,)`."""

    @abc.abstractmethod
    def _select(self, cells: Cells, rows: Tensor) -> Cells:
        """The cells of the rows of a mask, bool `(B,)`."""

    @abc.abstractmethod
    def _num_values(self, cells: Cells) -> int:
        """Approximate number of values of a cell."""

    @abc.abstractmethod
    def _fit_banks(
        self,
        rows: Sequence[tuple[Cells, Tensor]],
        regressand: Regressand,
        groups: Tensor | None,
        weights: Tensor | None,
    ) -> Tensor:
        """Fits the banks to at least two existing cells and targets.

        Returns:
            Predictions of the banks for each cell without its group, float64 `(n, num_outputs)`.
        """

    @abc.abstractmethod
    def _predict(self, cells: Cells) -> tuple[Tensor, Tensor]:
        """Predictions of the banks `(B, num_outputs)`, and the features for the directions `(B, num_features)`."""

    @property
    @abc.abstractmethod
    def _head(self) -> RidgeHead:
        """Ridge regression on these features."""

    @final
    def _coordinates(self, cells: Cells) -> tuple[Tensor, Tensor]:
        outputs, features = self._predict(cells)
        return outputs, self._projected(features)

    @final
    def _projected(self, features: Tensor) -> Tensor:
        """Coordinates of features along the directions `(B, num_directions)`."""
        with without_autocast(features):
            return features.to(self.directions.dtype) @ self.directions - self.middle

    @final
    def _with_missing(self, found: Tensor, exists: Tensor) -> Tensor:
        """Coordinates with 0 for missing files, and the mark of missing ones where training had some."""
        found = torch.where(exists[:, None], found, 0.0)
        return torch.cat([found, (~exists)[:, None].to(found.dtype)], 1) if self.may_miss else found

    @final
    @torch.no_grad()
    def fit(
        self,
        rows: Sequence[tuple[Cells, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """See `BankColumn.fit`. Uses at most MOST_FILES of the rows that have a file; fits nothing to a single file."""
        targets, exists = torch.cat([each for _, each in rows]), torch.cat([self._exists(cells) for cells, _ in rows])
        learnt = self._drawn(max(self._num_values(cells) for cells, _ in rows), exists, groups)
        ends = [len(each) for _, each in rows]
        own_groups, own_weights = None if groups is None else groups[learnt], some_of(weights, learnt)
        outputs = targets.new_zeros(len(targets), len(self.mean), dtype=torch.float64)
        along = outputs.new_zeros(len(targets), self.num_directions)
        count = int(learnt.sum())
        if count < 2 or (own_groups is not None and len(own_groups.unique()) < 2):
            for head in self.modules():
                if isinstance(head, RidgeHead):  # nothing was chosen, and NaN is refused when a model is saved
                    head.penalty.zero_()
                    head.shares.zero_()
            return self._with_missing(torch.cat([outputs, along], 1), exists)
        chosen = zip(rows, learnt.split(ends), strict=True)
        some = [(self._select(cells, own), each[own]) for (cells, each), own in chosen if bool(own.any())]
        parts = dealt(count, own_groups, max(FOLDS, -(-count // FOLD_SIZE)), targets.device)
        outputs[learnt] = self._fit_banks(some, regressand, parts, own_weights)
        features = torch.cat([self._predict(cells)[1] for cells, _ in some])
        if num_directions := min(self.num_directions, len(features)):
            vectors = self._head.directions(features, num_directions, own_weights)
            self._set_directions(features.double() @ vectors, vectors, own_weights)
        along[learnt] = self._projected(features).double()
        others = zip(rows, (exists & ~learnt).split(ends), outputs.split(ends), along.split(ends), strict=True)
        for (cells, _), own, own_outputs, own_along in others:
            if bool(own.any()):
                predicted, features = self._predict(self._select(cells, own))
                own_outputs[own], own_along[own] = predicted.double(), self._projected(features).double()
        there = None if groups is None else groups[exists], some_of(weights, exists)
        self._set_scale(outputs[exists], regressand.columns(targets[exists]), *there)
        return self._with_missing(torch.cat([self._scaled(outputs), along], 1).double(), exists)

    def _drawn(self, num_values: int, exists: Tensor, groups: Tensor | None) -> Tensor:
        """Mask of the rows that the bank is fitted to, bool `(n,)`."""
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
    """A column of images of one size.

    Args:
        channels, image_size: 1 (grey) or 3 (RGB) channels; height and width.
        num_outputs, num_directions: see `BankColumn`.
        config: configuration of the bank of patches.
        may_miss: whether some training rows lack an image.
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

    def _select(self, cells: ImageCells, rows: Tensor) -> ImageCells:
        return ImageCells(cells.images[rows], cells.exists[rows])

    def _num_values(self, cells: ImageCells) -> int:
        return math.prod(cells.images.shape[1:])

    @property
    def _head(self) -> RidgeHead:
        return self.bank.head

    def _fit_banks(
        self,
        rows: Sequence[tuple[ImageCells, Tensor]],
        regressand: Regressand,
        groups: Tensor | None,
        weights: Tensor | None,
    ) -> Tensor:
        self._set_standard([cells.images for cells, _ in rows])
        batches = [(self._pixels(cells.images), each) for cells, each in rows]
        return self.bank.fit(batches, regressand, groups=groups, weights=weights)

    def _predict(self, cells: ImageCells) -> tuple[Tensor, Tensor]:
        features = self.bank.features(self._pixels(cells.images))
        return self.bank.head(features), features

    def _pixels(self, images: Tensor) -> Tensor:
        """Standardised pixels."""
        return (images.to(self.pixel_mean.dtype) / 255 - self.pixel_mean) / self.pixel_scale

    def _set_standard(self, images: Sequence[Tensor]) -> None:
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

    Times increase along a series and are NaN behind its last sample; all are NaN for a row without a series.
    """

    values: Tensor
    times: Tensor


@final
class SeriesColumn(FileColumn[SeriesCells]):
    """A column of series, read by a bank of filters and a bank of summaries.

    Args:
        sampling: channels, spacing and extent of the training series.
        num_outputs: number of outputs of each of the two banks.
        num_directions: see `BankColumn`.
        config: configuration of the bank of filters.
        may_miss: whether some training rows lack a series.
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
        # a sum, since any() over 0 samples cannot be exported
        return (~cells.times.isnan()).sum(1) > 0

    def _select(self, cells: SeriesCells, rows: Tensor) -> SeriesCells:
        return SeriesCells(cells.values[rows], cells.times[rows])

    def _num_values(self, cells: SeriesCells) -> int:
        return math.prod(cells.values.shape[1:])

    @property
    def _head(self) -> RidgeHead:
        return self.bank.head

    def _fit_banks(
        self,
        rows: Sequence[tuple[SeriesCells, Tensor]],
        regressand: Regressand,
        groups: Tensor | None,
        weights: Tensor | None,
    ) -> Tensor:
        self._set_standard([cells.values for cells, _ in rows])
        batches = [(self._batch(cells), each) for cells, each in rows]
        banks = (self.bank, self.summaries)
        return torch.cat([bank.fit(batches, regressand, groups=groups, weights=weights) for bank in banks], 1)

    def _predict(self, cells: SeriesCells) -> tuple[Tensor, Tensor]:
        batch = self._batch(cells)
        features = self.bank.features(batch)
        return torch.cat([self.bank.head(features), self.summaries(batch)], 1), features

    def _batch(self, cells: SeriesCells) -> SeriesBatch:
        """Series as the banks read them: standardised values, gaps interpolated, with channels of observation marks."""
        values = cells.values[..., : self.num_values]
        exists = ~cells.times.isnan()
        known = ~values.isnan() & exists[..., None]
        standard = ((values.double() - self.value_mean) * self.value_scale).to(self.value_mean.dtype)
        standard = interpolated(torch.where(known, standard, 0.0), known)
        observed = known[..., list(self.sampling.observation)].to(standard.dtype)
        found = torch.where(exists[..., None], torch.cat([standard, observed], -1), 0.0).float()
        if not values_can_be_read(cells.times):
            return SeriesBatch(found, exists)
        start = cells.times[:, :1]
        steps = torch.arange(cells.times.shape[1], device=start.device) * self.sampling.spacing
        off = (cells.times - start - steps).abs() > _SAME * self.sampling.spacing
        return SeriesBatch(found, exists, torch.where(exists, cells.times - start, 0.0) if bool(off.any()) else None)

    def _set_standard(self, series: Sequence[Tensor]) -> None:
        """Sets mean and deviation of each channel from the values that are not missing."""
        values = torch.cat([each[..., : self.num_values].flatten(0, 1) for each in series]).double()
        count = (~values.isnan()).sum(0).clamp_min(1)
        mean = values.nansum(0) / count
        deviation = ((values - mean).square().nansum(0) / count).sqrt()
        self.value_mean.copy_(mean)
        self.value_scale.copy_(1 / torch.where(deviation > 1e-12 * mean.abs(), deviation, 1.0))


def _deviation(values: Tensor, weights: Tensor | None) -> Tensor:
    """Standard deviation of each column of `(n, k)`, for a mean of the same examples."""
    if weights is None:
        return values.std(0)
    squares = weighed((values - mean_of(values, weights)).square(), weights)
    return (squares.sum(0) * len(values) / ((len(values) - 1) * weights.sum())).sqrt()
