"""A model of table rows with numbers, categories, texts, images and series, from three fits to their coordinates.

Legend
    v          a number of a row, standardised by the training rows; NaN where it is missing
    q_1..q_K   quantiles of its column over the training rows, at (k - 1/2) / K;  z_k = Φ⁻¹((k - 1/2) / K)
    F(v)       z_1 + Σ_k (z_{k+1} - z_k) clamp((v - q_k) / (q_{k+1} - q_k), 0, 1): the normal score of its rank. Where
               q_k and q_{k+1} are one number, the clamp is a step, 1/2 at it
    T, I, S    texts, images and series of a row

    coordinates of a number      clamp(v, -4, 4) / √2,  F(v) / √2,  0 both where it is missing, and 1[it is missing]
                                 where a training row lacks it
    of a category                1 at its place, 0 at the others; all 0 where it is missing or new
    of a text or a file          predictions of banks, and main directions of their features: `bank_column.py`; of a
                                 bank that is switched off 0, except 1[it is missing]
    outputs                      (1 - a) f + a g: f a `KernelMachine` on all coordinates, g `BoostedTrees` on v, 0 where
                                 it is missing, in place of the first two; a is the one of SHARES with the smallest mean
                                 square of left-out errors
    of skewed numbers            the same of f and g on a logarithmic scale (`logarithmic_scale.py`), and the way back,
                                 if their left-out errors are smaller, both the mean square and the mean absolute
    of numbers with outliers     the same with the weights of `robust_weights.py`, if errors have heavy tails, and if
                                 left-out absolute errors are then surely smaller, and not their squares surely larger
    of classes and labels        (1 - e) z + e h: z the logits from f and g, h a `LogisticHead` on all coordinates; e is
                                 the one of SHARES with the smallest mean cross-entropy of left-out rows

Directions of uninformative texts and files would add noise if rows are few. With at most FEW rows, a bank whose
predictions are uninformative (all ρ are 0) is therefore switched off unless its directions reduce the left-out error of
f. A bank with informative predictions is kept without this test, which costs another fit of f.

f is better where outputs change smoothly, g where thresholds decide. Their weighted mean by left-out errors is stacking
(Wolpert, Stacked generalization, 1992). Both fit classes by least squares. h is better where log odds are linear, and
where classes are many or rare. Weights of rows (`example_weights.py`) enter the quantiles, all fits and all choices.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.models.fitted.banks.bank_column import (
    FAR,
    BankColumn,
    ImageCells,
    ImageColumn,
    SeriesCells,
    SeriesColumn,
    TextColumn,
)
from fredholm.models.fitted.banks.filter_bank import FilterBank
from fredholm.models.fitted.banks.image_bank import ImageBank
from fredholm.models.fitted.banks.n_gram_bank import NGramBank
from fredholm.models.fitted.boosted_trees import BoostedTrees
from fredholm.models.fitted.example_weights import check_weights, mean_of, mean_of_all
from fredholm.models.fitted.fitted_model import FittedModel, Solution
from fredholm.models.fitted.kernel_choice import FEW
from fredholm.models.fitted.kernel_machine import KernelMachine
from fredholm.models.fitted.logarithmic_scale import LogarithmicScale, Logarithms
from fredholm.models.fitted.logistic_head import LogisticHead
from fredholm.models.fitted.ridge_head import LogitRegressand, Losses, Readout, Regressand, is_surely_less
from fredholm.models.fitted.robust_weights import robust_weights
from fredholm.models.language.sentence_model import TokenReading
from fredholm.models.series.series_model import SeriesSampling

NUM_QUANTILES = 100
"""Number K of quantiles of a column."""
SHARES = tuple(tenths / 10 for tenths in range(11))
"""Candidates of the share of the trees, and of that of the logistic regression."""
REWEIGHTED = 2
"""Most fits of numbers with smaller weights of outliers."""


@final
class TableBatch(NamedTuple):
    """A batch of rows.

    `numbers (B, F)` are floats of about mean 0 and deviation 1 over the training rows; NaN where one is missing.
    `categories (B, C)`, int64, counts from 0 within each column; -1 where one is missing.
    `tokens (B, T, N)`, int64, are the tokens of texts, padded at their ends.
    `images (B, I, C, H, W)`, uint8, have arbitrary values where `has_image (B, I)`, bool, is False.
    `series (B, S, N, C)` are values in the unit of the data, NaN where one is missing, of as many channels as the
    column with the most; `series_times (B, S, N)`, float64, are NaN behind the last sample, and where there is none.
    """

    numbers: Tensor
    categories: Tensor
    tokens: Tensor
    images: Tensor
    has_image: Tensor
    series: Tensor
    series_times: Tensor

    @staticmethod
    def of(
        numbers: Tensor,
        *,
        categories: Tensor | None = None,
        tokens: Tensor | None = None,
        images: Tensor | None = None,
        has_image: Tensor | None = None,
        series: Tensor | None = None,
        series_times: Tensor | None = None,
    ) -> "TableBatch":
        """Returns rows with some kinds of columns.

        Without `has_image` all images exist. Without `series_times` all samples exist, one unit of time apart.
        """
        count = numbers.shape[0]  # not len(), which would fix the batch size in an exported graph
        none = torch.zeros(count, 0, dtype=torch.int64, device=numbers.device)
        images = none.to(torch.uint8)[:, :, None, None, None] if images is None else images
        exists = torch.ones(images.shape[:2], dtype=torch.bool, device=numbers.device)
        series = none.to(numbers.dtype)[:, :, None, None] if series is None else series
        steps = torch.arange(series.shape[2], dtype=torch.float64, device=numbers.device)
        return TableBatch(
            numbers,
            none if categories is None else categories,
            none[..., None] if tokens is None else tokens,
            images,
            exists if has_image is None else has_image,
            series,
            steps.expand(series.shape[:3]) if series_times is None else series_times,
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TableReading:
    """Description of the rows that a model reads.

    Args:
        num_numbers: F.
        may_miss: indices of the columns of numbers with missing values in training.
        num_categories: number of categories of each column of categories.
        num_texts: T.
        text: description of the rows of tokens; None: there are no texts.
        num_images: I.
        images_may_miss: indices of the columns of images that some training rows lack.
        channels: channels of images, 1 (grey) or 3 (RGB); 0: there are no images.
        image_size: height and width of images, in pixels; None: there are none.
        series: channels, spacing and extent of the training series of each column of series.
        series_may_miss: indices of the columns of series that some training rows lack.

    Raises:
        ValueError: no column at all, sizes below 1, texts without tokens, or images without a size.
    """

    num_numbers: int
    may_miss: tuple[int, ...] = ()
    num_categories: tuple[int, ...] = ()
    num_texts: int = 0
    text: TokenReading | None = None
    num_images: int = 0
    images_may_miss: tuple[int, ...] = ()
    channels: int = 0
    image_size: tuple[int, int] | None = None
    series: tuple[SeriesSampling, ...] = ()
    series_may_miss: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        name = "models.TableReading"
        check_count(name, "num_numbers", self.num_numbers, least=0)
        check_count(name, "num_texts", self.num_texts, least=0)
        check_count(name, "num_images", self.num_images, least=0)
        for column, count in enumerate(self.num_categories):
            check_count(name, f"num_categories[{column}]", count)
        if not all(0 <= column < self.num_numbers for column in self.may_miss):
            raise ValueError(f"{name}: may_miss is {self.may_miss}; expected columns from 0 to {self.num_numbers - 1}")
        for setting, count in (("images_may_miss", self.num_images), ("series_may_miss", len(self.series))):
            columns = getattr(self, setting)
            if not all(0 <= column < count for column in columns):
                raise ValueError(f"{name}: {setting} is {columns}; expected columns from 0 to {count - 1}")
        if not any((self.num_numbers, self.num_categories, self.num_texts, self.num_images, self.series)):
            raise ValueError(f"{name}: there are no numbers, categories, texts, images or series; a row needs columns")
        if (self.text is None) != (self.num_texts == 0):
            raise ValueError(
                f"{name}: num_texts is {self.num_texts}, and text is {'None' if self.text is None else 'given'}; give "
                "both or none"
            )
        if (self.image_size is None, self.channels == 0) != (self.num_images == 0,) * 2:
            raise ValueError(
                f"{name}: num_images is {self.num_images}, with image_size={self.image_size} and "
                f"channels={self.channels}; give all or none"
            )


@final
class ColumnRelevance(NamedTuple):
    """Relevance of columns, at least 0: of numbers (F,), categories (C,), texts (T,), images (I,) and series (S,)."""

    numbers: Tensor
    categories: Tensor
    texts: Tensor
    images: Tensor
    series: Tensor


@final
class _Blend(NamedTuple):
    """Fits of the kernel and of the trees, the share a of the trees, and left-out predictions of both `(n, c)`."""

    kernel: Solution
    trees: Solution | None
    share: float
    left_out: Tensor


@final
class _Rows(NamedTuple):
    """Coordinates of rows for the kernel and for the trees, Y `(n, c)`, and groups and weights of the rows."""

    coordinates: Tensor
    features: Tensor
    wanted: Tensor
    groups: Tensor | None
    weights: Tensor | None


@final
class _Found(NamedTuple):
    """A fit, its scale, left-out predictions of Y `(n, c)`, and left-out errors on that scale."""

    blend: _Blend
    logarithms: Logarithms | None
    left_out: Tensor
    errors: Tensor

    def is_better(self, than: "_Found", rows: _Rows) -> bool:
        """Whether the left-out errors of Y are smaller, both the mean square and the mean absolute."""
        one, two = ((rows.wanted - each.left_out).abs() for each in (self, than))
        pairs = (one, two), (one.square(), two.square())
        return all(bool(mean_of_all(own, rows.weights) < mean_of_all(other, rows.weights)) for own, other in pairs)

    def is_surely_closer(self, than: "_Found", rows: _Rows) -> bool:
        """Whether the absolute left-out errors of Y are significantly smaller, and their squares not larger."""
        one, two = ((rows.wanted - each.left_out).abs() for each in (self, than))
        given = rows.groups, rows.weights
        squares = two.square().mean(1), one.square().mean(1)
        return is_surely_less(one.mean(1), two.mean(1), *given) and not is_surely_less(*squares, *given)


@final
class TableMachine(FittedModel[TableBatch]):
    """A kernel machine, boosted trees and a logistic regression on numbers, categories, and predictions of banks.

    Args:
        reading: description of the rows.
        num_outputs: number of outputs, such as classes.
        config: sizes.
    """

    quantiles: Tensor
    scores: Tensor
    share: Tensor
    logistic_share: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        """Sizes."""

        num_centres: int = 4096
        """Most training rows that are centres of the kernel; the fit uses all rows."""
        texts: NGramBank.Config = dataclasses.field(default_factory=NGramBank.Config)
        """Configuration of the bank of n-grams of each column of texts."""
        images: ImageBank.Config = dataclasses.field(default_factory=ImageBank.Config)
        """Configuration of the bank of patches of each column of images."""
        series: FilterBank.Config = dataclasses.field(default_factory=FilterBank.Config)
        """Configuration of the bank of filters of each column of series."""
        num_directions: int = 32
        """Number of main directions of each column of texts or files; 0: only the predictions of its bank."""
        num_trees: int = 300
        """Most trees of each fold; 0: no trees, only the kernel, whose predictions are smooth."""

        def __post_init__(self) -> None:
            check_count("models.TableMachine", "num_centres", self.num_centres)
            for name in ("num_directions", "num_trees"):
                check_count("models.TableMachine", name, getattr(self, name), least=0)

        def build(self, reading: TableReading, num_outputs: int) -> "TableMachine":
            """Builds a model, with random numbers from the global torch seed."""
            return TableMachine(reading, num_outputs, self)

    def __init__(self, reading: TableReading, num_outputs: int, config: Config) -> None:
        super().__init__()
        check_count("models.TableMachine", "num_outputs", num_outputs)
        self.reading, self.config = reading, config
        self.register_buffer("quantiles", torch.zeros(reading.num_numbers, NUM_QUANTILES))
        ranks = (torch.arange(NUM_QUANTILES, dtype=torch.float64) + 0.5) / NUM_QUANTILES
        self.register_buffer("scores", torch.special.ndtri(ranks).float())
        directions = config.num_directions
        self.texts = nn.ModuleList(
            TextColumn(reading.text, num_outputs, directions, config.texts)
            for _ in range(reading.num_texts)
            if reading.text is not None
        )
        self.images = nn.ModuleList(
            ImageColumn(
                reading.channels,
                reading.image_size,
                num_outputs,
                directions,
                config.images,
                may_miss=column in reading.images_may_miss,
            )
            for column in range(reading.num_images)
            if reading.image_size is not None
        )
        self.series = nn.ModuleList(
            SeriesColumn(sampling, num_outputs, directions, config.series, may_miss=column in reading.series_may_miss)
            for column, sampling in enumerate(reading.series)
        )
        self._num_of_columns = 2 * reading.num_numbers + len(reading.may_miss) + sum(reading.num_categories)
        self.num_coordinates = self._num_of_columns + sum(bank.num_coordinates for bank in self._banks)
        self.machine = KernelMachine(self.num_coordinates, num_outputs, config.num_centres)
        self.trees = (
            BoostedTrees(self.num_coordinates - reading.num_numbers, num_outputs, config.num_trees)
            if config.num_trees
            else None
        )
        self.logistic = LogisticHead(self.num_coordinates, num_outputs)
        self.scale = LogarithmicScale(num_outputs)
        self.register_buffer("share", torch.zeros(()))
        self.register_buffer("logistic_share", torch.zeros(()))

    def forward(self, inputs: TableBatch) -> Tensor:
        """Maps rows to outputs `(B, num_outputs)`, which are all equal before a fit.

        Raises:
            ValueError: the columns differ from those of the reading.
        """
        self._check(inputs)
        banks = [bank(cells) for bank, cells in zip(self._banks, self._cells(inputs), strict=True)]
        coordinates = torch.cat([self._of_columns(inputs), *banks], 1)
        outputs = self.machine(coordinates) + self.logistic(coordinates)
        if self.trees is not None:
            outputs = outputs + self.trees(self._for_trees(inputs.numbers, coordinates))
        return self.scale(outputs)

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[TableBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Computes quantiles of the rows, and fits the banks and the machine; see `FittedModel.fit`."""
        if sum(len(targets) for _, targets in batches) < 2:
            raise ValueError("models.TableMachine: there are fewer than 2 rows; expected some to fit to")
        for inputs, _ in batches:
            self._check(inputs)
        targets = torch.cat([targets for _, targets in batches])
        check_weights("models.TableMachine", weights, len(targets))
        self._take_quantiles(torch.cat([inputs.numbers for inputs, _ in batches]), weights)
        coordinates = [torch.cat([self._of_columns(inputs) for inputs, _ in batches]).double()]
        cells = [self._cells(inputs) for inputs, _ in batches]
        for k, bank in enumerate(self._banks):
            rows = [(each[k], targets) for each, (_, targets) in zip(cells, batches, strict=True)]
            coordinates.append(bank.fit(rows, regressand, groups=groups, weights=weights))
        wanted = regressand.columns(targets)
        losses = regressand.losses_of_scores(targets, weights)
        kernel = self._solve_kernel(coordinates, wanted, groups, weights, losses)
        x = torch.cat(coordinates, 1)
        features = self._for_trees(torch.cat([inputs.numbers for inputs, _ in batches]), x)
        rows = _Rows(x, features, wanted, groups, weights)
        found = self._fitted(kernel, rows, has_numbers=regressand.has_numbers)
        readout = regressand.readout(found.left_out, targets, weights)
        outputs, logistic_share = readout(found.left_out), 0.0
        if isinstance(regressand, LogitRegressand) and self.logistic.can_fit(len(x)):
            linear = self.logistic.fit(x, targets, regressand, groups=groups, weights=weights)
            blends = [torch.lerp(outputs, linear, each) for each in SHARES]
            errors = [mean_of_all(regressand.losses(each, targets), weights) for each in blends]
            best = int(torch.stack(errors).argmin())
            outputs, logistic_share = blends[best], SHARES[best]
        self.logistic.scale(logistic_share)
        self.share.fill_(found.blend.share)
        self.logistic_share.fill_(logistic_share)
        self._read(found, readout, 1 - logistic_share)
        return outputs

    def _fitted(self, kernel: Solution, rows: "_Rows", *, has_numbers: bool) -> "_Found":
        """Fits the trees beside a fitted kernel; tries a logarithmic scale for numbers, and less weight of outliers."""
        blend = self._beside_trees(kernel, rows)
        found = _Found(blend, None, blend.left_out, rows.wanted - blend.left_out)
        if not has_numbers:
            return found
        if (tried := Logarithms.of(rows.wanted, rows.weights)) is not None:
            found = self._better(found, rows, tried, rows.weights)
        for _ in range(REWEIGHTED):
            robust = robust_weights(found.errors, rows.weights)
            before = found
            if robust is not None:
                found = self._better(found, rows, found.logarithms, robust)
            if found is before:
                break
        return found

    def _better(
        self, found: "_Found", rows: "_Rows", logarithms: Logarithms | None, weights: Tensor | None
    ) -> "_Found":
        """Fits numbers on a scale with some weights; returns this fit if it is better, else restores the one found."""
        plain = self.machine, self.trees
        self.machine, self.trees = copy.deepcopy(plain)
        wanted = rows.wanted if logarithms is None else logarithms.of_columns(rows.wanted)
        kernel = self.machine.solve(rows.coordinates, wanted, groups=rows.groups, weights=weights)
        blend = self._beside_trees(kernel, rows._replace(wanted=wanted, weights=weights))
        left_out = blend.left_out
        if logarithms is not None:
            logarithms = logarithms.calibrated(left_out, rows.wanted, weights)
            left_out = logarithms.back(left_out)
        other = _Found(blend, logarithms, left_out, wanted - blend.left_out)
        # with other weights squares of errors are mostly those of outliers, which no fit predicts
        if other.is_better(found, rows) if weights is rows.weights else other.is_surely_closer(found, rows):
            return other
        self.machine, self.trees = plain
        return found

    def _beside_trees(self, kernel: Solution, rows: "_Rows") -> "_Blend":
        """Fits the trees in addition to a fitted kernel, and chooses their share."""
        if self.trees is None:
            return _Blend(kernel, None, 0.0, kernel.left_out)
        trees = self.trees.solve(rows.features, rows.wanted, groups=rows.groups, weights=rows.weights)
        blends = [torch.lerp(kernel.left_out, trees.left_out, each) for each in SHARES]
        errors = [mean_of_all((rows.wanted - each).square(), rows.weights) for each in blends]
        best = int(torch.stack(errors).argmin())
        return _Blend(kernel, trees, SHARES[best], blends[best])

    def _read(self, found: "_Found", readout: Readout, weight: float) -> None:
        """Sets the weights of the kernel and the trees, and the scale of their outputs."""
        blend, logarithms = found.blend, found.logarithms
        self.scale.reset()
        if logarithms is not None:
            self.scale.read(logarithms, readout)
            is_skewed = self.scale.is_skewed
            gain, shift = torch.where(is_skewed, 1.0, readout.gain), torch.where(is_skewed, 0.0, readout.shift)
            readout = readout._replace(gain=gain, shift=shift)
        self.machine.read(blend.kernel, readout, share=weight * (1 - blend.share))
        if self.trees is not None and blend.trees is not None:
            self.trees.read(blend.trees, readout, share=weight * blend.share)

    def _solve_kernel(
        self,
        coordinates: list[Tensor],
        wanted: Tensor,
        groups: Tensor | None,
        weights: Tensor | None,
        losses: Losses | None,
    ) -> Solution:
        """Fits the kernel to all columns; with at most FEW rows, switches off uninformative banks that do not help.

        Args:
            coordinates: `(n, k)` of numbers and categories, then of each bank. Those of banks that are switched off are
                replaced in place.
            wanted, groups, weights, losses: see `KernelMachine.solve`.
        """
        given: dict[str, Any] = {"groups": groups, "weights": weights, "losses": losses}
        kernel = self.machine.solve(torch.cat(coordinates, 1), wanted, **given)
        if len(wanted) > FEW:
            return kernel
        for k, bank in enumerate(self._banks, 1):
            if bank.is_informative:
                continue
            others = [*coordinates]
            others[k] = bank.switched_off(coordinates[k])
            trial = copy.deepcopy(self.machine)
            without = trial.solve(torch.cat(others, 1), wanted, **given)
            errors = [float(mean_of_all((wanted - each.left_out).square(), weights)) for each in (kernel, without)]
            if errors[1] <= errors[0]:
                bank.switch_off()
                self.machine.load_state_dict(trial.state_dict())
                coordinates[k], kernel = others[k], without
        return kernel

    def counts(self) -> "ColumnRelevance":
        """Returns the relevance of each column: the largest of its coordinates.

        For the kernel it is the mean of w_1 and w_2, weighted by the shares of the kernels that read them; for trees
        the root of the coordinate's gain relative to the largest; for the logistic regression the spread of its logits
        along the coordinate relative to the largest. All are averaged by the shares a and e.
        """
        _, first, *others = self.machine.shares
        shares, f = torch.stack([first, torch.stack(others).sum()]), self.reading.num_numbers
        relevance = self.machine.relevance.to(shares.dtype)
        of_kernel = shares @ relevance / shares.sum().clamp_min(torch.finfo(shares.dtype).tiny)

        def of_columns(weight: Tensor) -> "ColumnRelevance":
            # for a number, the larger weight of its value and its rank
            return self._most(torch.cat([torch.maximum(weight[:f], weight[f : 2 * f]), weight[2 * f :]]))

        def mixed(one: "ColumnRelevance", other: "ColumnRelevance", share: Tensor) -> "ColumnRelevance":
            return ColumnRelevance(*(torch.lerp(*each, share) for each in zip(one, other, strict=True)))

        found = of_columns(of_kernel)
        if self.trees is not None:
            found = mixed(found, self._most(self.trees.gains.sqrt()), self.share)
        return mixed(found, of_columns(self.logistic.relevance), self.logistic_share)

    @property
    def _banks(self) -> list[BankColumn[Any]]:
        """The columns of texts, then those of images and of series."""
        columns = [*self.texts, *self.images, *self.series]
        return [column for column in columns if isinstance(column, BankColumn)]

    def _cells(self, inputs: TableBatch) -> list[Any]:
        """The inputs of each of `_banks`."""
        reading = self.reading
        texts = [inputs.tokens[:, column] for column in range(reading.num_texts)]
        images = [ImageCells(inputs.images[:, k], inputs.has_image[:, k]) for k in range(reading.num_images)]
        series = [SeriesCells(inputs.series[:, k], inputs.series_times[:, k]) for k in range(len(reading.series))]
        return [*texts, *images, *series]

    def _most(self, weight: Tensor) -> "ColumnRelevance":
        """The largest weight of each column's coordinates; a number has one coordinate, and one for missing values."""
        reading, f = self.reading, self.reading.num_numbers
        may_miss, of_columns = list(reading.may_miss), self._num_of_columns - f
        numbers = weight[:f].clone()
        numbers[may_miss] = torch.maximum(numbers[may_miss], weight[f : f + len(may_miss)])
        levels = weight[f + len(may_miss) : of_columns].split(list(reading.num_categories))
        banks = iter(weight[of_columns:].split([bank.num_coordinates for bank in self._banks]))
        of_banks = ([next(banks) for _ in columns] for columns in (self.texts, self.images, self.series))
        most = (torch.stack([each.amax() for each in of]) if of else weight[:0] for of in (levels, *of_banks))
        return ColumnRelevance(numbers, *most)

    def _check(self, inputs: TableBatch) -> None:
        reading = self.reading
        kinds = ("numbers", "categories", "texts", "images", "marks of images", "series", "times of series")
        images, series = reading.num_images, len(reading.series)
        widths = (reading.num_numbers, len(reading.num_categories), reading.num_texts, images, images, series, series)
        got = tuple(part.shape[1] for part in inputs)
        if got != widths:
            found, expected = (
                ", ".join(f"{count} {kind}" for count, kind in zip(each, kinds, strict=True)) for each in (got, widths)
            )
            raise ValueError(f"models.TableMachine: rows have {found}; expected {expected}")
        shape = (reading.channels, *(reading.image_size or ()))
        if reading.num_images and (tuple(inputs.images.shape[2:]) != shape or inputs.images.dtype != torch.uint8):
            raise ValueError(
                f"models.TableMachine: images are {tuple(inputs.images.shape)} of {inputs.images.dtype}; expected (B, "
                f"{reading.num_images}, {', '.join(map(str, shape))}) of uint8"
            )
        most = max((sampling.channels - len(sampling.observation) for sampling in reading.series), default=0)
        values, times = tuple(inputs.series.shape), tuple(inputs.series_times.shape)
        if reading.series and (values[3] != most or values[:3] != times or inputs.series_times.dtype != torch.float64):
            raise ValueError(
                f"models.TableMachine: series are {values}, with times {times} of {inputs.series_times.dtype}; "
                f"expected (B, {series}, N, {most}) and (B, {series}, N) of float64"
            )

    def _take_quantiles(self, numbers: Tensor, weights: Tensor | None = None) -> None:
        ranks = (torch.arange(NUM_QUANTILES, device=numbers.device, dtype=torch.float64) + 0.5) / NUM_QUANTILES
        self.quantiles.zero_()
        for row, column in zip(self.quantiles, numbers.T, strict=True):
            exists = ~column.isnan()
            known, order = column[exists].float().double().sort()
            if len(known):
                mass = torch.ones_like(known) if weights is None else weights[exists][order]
                ends = mass.cumsum(0)
                place = torch.searchsorted(ends, ranks * ends[-1], right=True).clamp_max(len(known) - 1)
                row.copy_(known[place])

    def _for_trees(self, numbers: Tensor, coordinates: Tensor) -> Tensor:
        """Coordinates for the trees, with the raw numbers in place of clamped values and ranks."""
        # ranks round differently in different batches, so a threshold on them could separate equal numbers
        return torch.cat(
            [numbers.nan_to_num(nan=0.0).to(coordinates), coordinates[:, 2 * self.reading.num_numbers :]], 1
        )

    def _of_columns(self, inputs: TableBatch) -> Tensor:
        """Coordinates of the numbers and categories."""
        # rounded to float32 as the quantiles are, whatever dtype these have, so that a number equal to one stays equal
        numbers, reading = inputs.numbers.float().to(self.quantiles.dtype), self.reading
        missing = numbers.isnan()
        values = torch.where(missing, 0.0, numbers)
        low, high, each = self.quantiles[:, :-1], self.quantiles[:, 1:], values[..., None]
        # where quantiles coincide, the score is a step, with its middle at the value itself
        step = ((each > low).to(values.dtype) + (each >= low).to(values.dtype)) / 2
        width = torch.where(high > low, high - low, 1.0)
        risen = torch.where(high > low, ((each - low) / width).clamp(0, 1), step)
        # in float64: its rounding errors depend on the batch, but vanish in the final rounding
        rank = (self.scores[0] + risen.double() @ self.scores.double().diff()).to(values.dtype)
        found = [torch.where(missing, 0.0, each) * 0.5**0.5 for each in (values.clamp(-FAR, FAR), rank)]
        if reading.may_miss:
            found.append(missing[:, list(reading.may_miss)].to(values.dtype))
        for column, count in enumerate(reading.num_categories):
            places = torch.arange(count, device=values.device)
            found.append((inputs.categories[:, column, None] == places).to(values.dtype))
        return torch.cat(found, 1)


@final
class NumbersMachine(nn.Module):
    """A table machine on rows of numbers in any units, which it standardises.

    Args:
        num_numbers: number of columns.
        num_outputs: number of outputs, such as classes.
        may_miss: indices of the columns that may be NaN.
        num_centres: most training rows that are centres of the kernel.
        num_trees: most trees of each fold; 0: no trees.
        rounding: deviation up to which a column counts as constant, besides a millionth of its mean.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        num_numbers: int,
        num_outputs: int,
        *,
        may_miss: tuple[int, ...] = (),
        num_centres: int,
        num_trees: int,
        rounding: float = 0.0,
    ) -> None:
        super().__init__()
        reading = TableReading(num_numbers=num_numbers, may_miss=may_miss)
        self.table = TableMachine.Config(num_centres=num_centres, num_trees=num_trees).build(reading, num_outputs)
        self.rounding = rounding
        self.register_buffer("mean", torch.zeros(num_numbers, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(num_numbers, dtype=torch.float64))

    def forward(self, numbers: Tensor) -> Tensor:
        """Maps `(B, num_numbers)` to outputs `(B, num_outputs)`, which are all equal before a fit."""
        return self.table(self._rows(numbers))

    def coordinates(self, numbers: Tensor) -> Tensor:
        """Returns the kernel's coordinates of rows `(B, num_numbers)`, float64 `(B, num_coordinates)`."""
        return self.table._of_columns(self._rows(numbers)).double()

    @torch.no_grad()
    def measure(self, numbers: Tensor, weights: Tensor | None = None) -> None:
        """Sets mean, deviation and quantiles from rows `(n, num_numbers)`, as `fit` does, for the coordinates."""
        numbers = numbers.double()
        self.mean.copy_(_known_mean(numbers, weights).nan_to_num(0.0))
        deviation = _known_mean((numbers - self.mean).square(), weights).sqrt().nan_to_num(0.0)
        varies = (deviation > 1e-6 * self.mean.abs()) & (deviation > self.rounding)
        self.scale.copy_(torch.where(varies, 1 / torch.where(varies, deviation, 1.0), 0.0))
        self.table._take_quantiles(self._rows(numbers).numbers, weights)

    @torch.no_grad()
    def fit(
        self,
        numbers: Tensor,
        targets: Tensor,
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Measures rows `(n, num_numbers)`, and fits the table machine; see `FittedModel.fit`."""
        self.measure(numbers, weights)
        return self.table.fit([(self._rows(numbers), targets)], regressand, groups=groups, weights=weights)

    def _rows(self, numbers: Tensor) -> TableBatch:
        return TableBatch.of(((numbers - self.mean) * self.scale).float())


def _known_mean(numbers: Tensor, weights: Tensor | None) -> Tensor:
    """The mean of each column of `(n, F)`, without those that are NaN; NaN where all are."""
    if weights is None:
        return numbers.nanmean(0)
    exists = ~numbers.isnan()
    return mean_of(numbers.nan_to_num(0.0), weights) / mean_of(exists.double(), weights)
