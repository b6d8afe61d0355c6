"""Boosted trees on numbers of the windows around a sample of a series, twice: of the channels, and of first outputs.

Legend
    u (C,)     the channels at a sample                      Δ        time between two samples in training
    r          reaches of windows, 1, R, R², .. Δ, up to half the longest training series, R = 2 or more
    W_r(t)     the samples from t - r to t + r;  W_r⁻(t) and W_r⁺(t) those up to t, and from t on

    v(t)   of each channel u(t);  for each r the mean and the deviation of u, and the mean of |u'|, in W_r(t), u(t - r)
           and u(t + r), the mean in W_r⁺(t) less that in W_r⁻(t), and the smallest and the largest u in W_r(t);  and
           the mean and the deviation in the whole series
    p(t)   the probabilities of the classes by `BoostedTrees` from v(t)
    w(t)   of each class p(t);  for each r the mean and the deviation of p, and the mean of |p'|, in W_r(t), p(t - r)
           and p(t + r);  and the mean and the deviation in the whole series
    outputs of `BoostedTrees` from v(t) and w(t)

u' is the difference to the sample before. Windows end with their series; then u(t - r) and u(t + r) are those of its
first and last sample. Windows are spans of time, so series may have gaps, irregular times and other rates than in
training. They are read in a time that does not depend on their reach, from running sums and from extremes of 2^k
samples. Trees are grown on a sample of the known samples. Series are left out whole; of fewer series than FOLDS, parts
of equal length, one after the other. In the fit p(t) is by the trees grown without the series of t.

Source: outputs as features of the neighbourhood are auto-context (Tu and Bai, 2010).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Self, final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.domains.checks import values_can_be_read
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.models.fitted.boosted_trees import FOLDS, BoostedTrees
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.ridge_head import Regressand
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling

OF_SAMPLE = 3
"""Numbers of a channel, or class, for all reaches together."""
OF_CHANNEL, OF_CLASS = 8, 5
"""Numbers of a channel, and of a class, for each reach."""
MOST_NUMBERS = 1024
"""Most numbers of channels, or classes, with more than one reach; where there are many, R is larger."""
MOST_READ = 200_000
"""Samples of series that are read for a fit, at least; of more, some series are drawn."""
LONGEST = 512
"""Longest reach, in samples of training."""
_AT_ONCE = 2**22
"""Numbers that are computed at a time."""
_SAME = 1e-6
Extreme = Callable[[Tensor, Tensor], Tensor]


@final
class SampleMachine(FittedModel[SeriesBatch]):
    """Predicts the outputs of each sample of a series by trees on numbers of the windows around it.

    Args:
        sampling: sampling of the training series.
        num_outputs: number of outputs, such as classes.
        config: sizes.

    Raises:
        ValueError: on sizes below 1.
    """

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SeriesModelConfig):
        """Sizes."""

        learns_by_steps: ClassVar[bool] = False

        num_samples: int = 10_000
        """Most training samples that the trees are grown on."""
        num_trees: int = 150
        """Most trees of each fold."""

        def __post_init__(self) -> None:
            check_count("models.SampleMachine", "num_samples", self.num_samples, least=2)
            check_count("models.SampleMachine", "num_trees", self.num_trees)

        def check(self) -> None:
            """See `SeriesModelConfig.check`: raises, since there is one output per sample."""
            raise ValueError(
                "model is SampleMachine, which has an output for each sample; give each a class, or take series-machine"
            )

        def answering_everywhere(self) -> Self:
            """See `SeriesModelConfig.answering_everywhere`."""
            return self

        def build(self, sampling: SeriesSampling, num_outputs: int) -> "SampleMachine":
            """See `SeriesModelConfig.build`."""
            return SampleMachine(sampling, num_outputs, self)

    def __init__(self, sampling: SeriesSampling, num_outputs: int, config: Config) -> None:
        super().__init__()
        self.config, self.sampling = config, sampling
        self.encoder = Series(sampling.channels, spacing=sampling.spacing)
        longest, channels = max(1, min(LONGEST, (sampling.longest - 1) // 2)), sampling.channels
        self.reaches = _reaches(longest, MOST_NUMBERS // channels, OF_CHANNEL)
        self.class_reaches = _reaches(longest, MOST_NUMBERS // num_outputs, OF_CLASS)
        of_channels = channels * (OF_CHANNEL * len(self.reaches) + OF_SAMPLE)
        of_classes = num_outputs * (OF_CLASS * len(self.class_reaches) + OF_SAMPLE)
        self.first = BoostedTrees(of_channels, num_outputs, config.num_trees)
        self.second = BoostedTrees(of_channels + of_classes, num_outputs, config.num_trees)

    def forward(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Maps a batch to outputs `(B, N, num_outputs)`, which are logits, and 0 at samples that do not exist.

        Raises:
            ValueError: inputs that `encoders.Series` refuses, or padding that does not follow all samples.
        """
        given, lengths = self._checked(inputs)
        found = self.second.bias.new_zeros(*given.values.shape[:2], len(self.second.bias))
        for i, length in enumerate(lengths):
            one = _Series.of(given, i, length, self.sampling.spacing)
            every = torch.arange(length, device=found.device).split(self._chunk)
            of_channels = _Windows(one, self.reaches)
            shares = torch.cat([self.first(of_channels.all_numbers(at)) for at in every]).softmax(-1)
            of_classes = _Windows(one._replace(u=shares.double().T), self.class_reaches)
            for at in every:
                found[i, at] = self.second(torch.cat([of_channels.all_numbers(at), of_classes.numbers(at)], 1))
        return found

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[SeriesBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits the trees to samples of known class.

        Args:
            batches: series with the classes of their samples, int64 `(B, N)`, below 0 where unknown.
            regressand: see `FittedModel.fit`.
            groups: int64, one per series; None: each by itself.
            weights: float64, one per series, above 0; None: all are 1.

        Returns:
            Left-out outputs of the samples that were drawn, float64 `(n, num_outputs)`.

        Raises:
            ValueError: see `FittedModel.fit`; fewer than two samples have a class.
        """
        every = list[tuple[_Series, Tensor]]()
        for batch, targets in batches:
            given, lengths = self._checked(batch)
            for i, length in enumerate(lengths):
                every.append((_Series.of(given, i, length, self.sampling.spacing), targets[i, :length]))
        total = sum(int((own >= 0).sum()) for _, own in every)
        if total < 2:
            raise ValueError(f"models.SampleMachine: {total} samples have a known class; expected at least 2")
        read = _some_read([one.u.shape[1] if bool((own >= 0).any()) else 0 for one, own in every])
        units = torch.arange(len(every)) if groups is None else groups.cpu().unique(return_inverse=True)[1]
        cuts = 1 if len(units[read].unique()) >= FOLDS else FOLDS
        drawn = _some_drawn([every[i][1] >= 0 for i in read], self.config.num_samples)
        classes = torch.cat([every[i][1][at] for i, at in zip(read, drawn, strict=True)])
        mass = (
            None
            if weights is None
            else torch.cat([weights[i].repeat(len(at)) for i, at in zip(read, drawn, strict=True)])
        )
        numbers = [
            torch.cat([_Windows(every[i][0], self.reaches).all_numbers(some) for some in at.split(self._chunk)])
            for i, at in zip(read, drawn, strict=True)
        ]
        parts = [
            int(units[i]) * cuts + torch.arange(every[i][0].u.shape[1]) * cuts // every[i][0].u.shape[1] for i in read
        ]
        part = torch.cat([own[at.cpu()] for own, at in zip(parts, drawn, strict=True)])
        self.first.fit(torch.cat(numbers), classes, regressand, groups=part, weights=mass)
        fold = {int(k): int(f) for k, f in zip(part, self.first.folds, strict=True)}
        more = list[Tensor]()
        for i, own, at in zip(read, parts, drawn, strict=True):
            if not len(at):
                continue
            shares = self._left_out(every[i][0], torch.tensor([fold.get(int(k), 0) for k in own.tolist()]))
            windows = _Windows(every[i][0]._replace(u=shares.double().T), self.class_reaches)
            more.append(torch.cat([windows.numbers(some) for some in at.split(self._chunk)]))
        joined = torch.cat([torch.cat(numbers), torch.cat(more)], 1)
        return self.second.fit(joined, classes, regressand, groups=part, weights=mass)

    def _left_out(self, one: "_Series", folds: Tensor) -> Tensor:
        """Probabilities of the classes of all samples, each by the trees grown without its fold, `(N, classes)`."""
        windows, found = _Windows(one, self.reaches), self.first.bias.new_zeros(len(folds), len(self.first.bias))
        for k in folds.unique().tolist():
            for at in (folds == k).nonzero()[:, 0].to(found.device).split(self._chunk):
                found[at] = self.first.without(k, windows.all_numbers(at))
        return found.softmax(-1)

    @property
    def _chunk(self) -> int:
        return max(1, _AT_ONCE // self.second.num_coordinates)

    def _checked(self, inputs: Tensor | SeriesBatch) -> tuple[SeriesBatch, list[int]]:
        """The series of a batch with values that `encoders.Series` accepts, and their lengths."""
        given = inputs if isinstance(inputs, SeriesBatch) else SeriesBatch(inputs)
        if not values_can_be_read(given.values):
            raise ValueError(
                "models.SampleMachine: each series is read by itself, which no graph holds; export a network"
            )
        values, _ = self.encoder(given)
        mask = given.mask
        if mask is None:
            return given._replace(values=values), [values.shape[1]] * values.shape[0]
        if bool((mask.int().diff(dim=-1) > 0).any()):
            raise ValueError("models.SampleMachine: samples exist after others that do not; put padding last")
        return given._replace(values=values), mask.sum(1).tolist()


@final
class _Series(NamedTuple):
    """One series: `u` `(C, N)`, float64, at `times` `(N,)`, or `spacing` apart; `unit` is the time of a reach of 1."""

    u: Tensor
    times: Tensor | None
    spacing: float
    unit: float

    @classmethod
    def of(cls, given: SeriesBatch, i: int, length: int, unit: float) -> "_Series":
        """Series i of a batch."""
        times = None if given.times is None else given.times[i, :length].double()
        spacing = unit if given.spacing is None else float(given.spacing[i])
        return cls(given.values[i, :length].double().T, times, spacing, unit)


def _reaches(longest: int, room: int, of_reach: int) -> list[int]:
    """Reaches in samples of training, rising by a whole factor from 1 on, for `room` numbers of a channel."""
    most = max(1, (room - OF_SAMPLE) // of_reach)
    for ratio in range(2, longest + 2):
        found = [ratio**k for k in range(longest.bit_length()) if ratio**k <= longest]
        if len(found) <= most:
            return found
    return [1]


def _some_read(lengths: Sequence[int]) -> list[int]:
    """Series that are read for a fit, in their order: all that are not empty, or some of MOST_READ samples at least."""
    found, total = list[int](), 0
    for i in torch.randperm(len(lengths)).tolist():
        if lengths[i] and (total < MOST_READ or len(found) < FOLDS):
            found.append(i)
            total += lengths[i]
    return sorted(found)


def _some_drawn(known: Sequence[Tensor], most: int) -> list[Tensor]:
    """Indices of the known samples of each series that are drawn, ascending: all, or at most `most` in total."""
    counts = [int(own.sum()) for own in known]
    kept = torch.zeros(sum(counts), dtype=torch.bool)
    kept[torch.randperm(len(kept))[:most]] = True
    return [own.nonzero()[:, 0][some.to(own.device)] for own, some in zip(known, kept.split(counts), strict=True)]


@final
class _Bounds(NamedTuple):
    """Samples of a window of each of m samples: from `first` to before `end`, int64 `(m,)`."""

    first: Tensor
    end: Tensor


@final
class _Windows:
    """Running sums and extremes of one series, for windows of some reaches."""

    def __init__(self, one: _Series, reaches: Sequence[int]) -> None:
        self._one, self._reaches = one, [r * one.unit for r in reaches]
        u, nothing = one.u, one.u.new_zeros(len(one.u), 1)
        # about the mean of the series, so that squares do not cancel
        self._mean = u.mean(1, keepdim=True) if u.shape[1] else nothing
        steps = torch.cat([nothing, u.diff(dim=1).abs()], 1)[:, : u.shape[1]]
        centred = u - self._mean
        self._sums, self._squares, self._steps = (
            torch.cat([nothing, each.cumsum(1)], 1) for each in (centred, centred.square(), steps)
        )

    def numbers(self, at: Tensor) -> Tensor:
        """The numbers w of the samples `at`, int64 `(m,)`: float32 `(m, numbers)`."""
        return torch.cat(self._own(at)).float().T

    def all_numbers(self, at: Tensor) -> Tensor:
        """The numbers v of the samples `at`, int64 `(m,)`: float32 `(m, numbers)`."""
        found = self._own(at)
        for reach in self._reaches:
            own = self._bounds(at, reach)
            later, earlier = (
                _between(self._sums, _Bounds(at, own.end)),
                _between(self._sums, _Bounds(own.first, at + 1)),
            )
            found += [
                later - earlier,
                _extreme(self._least, own, torch.minimum),
                _extreme(self._most, own, torch.maximum),
            ]
        return torch.cat(found).float().T

    def _own(self, at: Tensor) -> list[Tensor]:
        u = self._one.u
        found = [u[:, at], *self._moments(_Bounds(torch.zeros_like(at), torch.full_like(at, u.shape[1])))]
        for reach in self._reaches:
            own = self._bounds(at, reach)
            found += [*self._moments(own), _between(self._steps, own), u[:, own.first], u[:, own.end - 1]]
        return found

    @functools.cached_property
    def _least(self) -> list[Tensor]:
        return _extremes(self._one.u, torch.minimum)

    @functools.cached_property
    def _most(self) -> list[Tensor]:
        return _extremes(self._one.u, torch.maximum)

    def _bounds(self, at: Tensor, reach: float) -> _Bounds:
        """The samples within a reach, which are cut at the ends of the series."""
        times, count = self._one.times, self._one.u.shape[1]
        if times is None:
            steps = math.floor(reach / self._one.spacing + _SAME)
            return _Bounds((at - steps).clamp_min(0), (at + steps + 1).clamp_max(count))
        slack, centre = _SAME * reach, times[at]
        first = torch.searchsorted(times, centre - reach - slack)
        return _Bounds(first, torch.searchsorted(times, centre + reach + slack, right=True))

    def _moments(self, own: _Bounds) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each channel in windows, `(C, m)`."""
        mean = _between(self._sums, own)
        variance = _between(self._squares, own) - mean.square()
        return mean + self._mean, variance.clamp_min(0).sqrt()


def _between(sums: Tensor, own: _Bounds) -> Tensor:
    """Means of windows from running sums, `(C, m)`."""
    return (sums[:, own.end] - sums[:, own.first]) / (own.end - own.first)


def _extremes(u: Tensor, of: Extreme) -> list[Tensor]:
    """Extremes of 2^k samples from each on, for each k."""
    found = [u]
    while 2 ** len(found) <= u.shape[1]:
        half = 2 ** (len(found) - 1)
        found.append(of(found[-1][:, :-half], found[-1][:, half:]))
    return found


def _extreme(levels: Sequence[Tensor], own: _Bounds, of: Extreme) -> Tensor:
    """Extremes of windows, `(C, m)`: of two overlapping spans of 2^k samples each."""
    size = own.end - own.first
    level = size.double().log2().add(_SAME).floor().long()
    found = levels[0][:, own.first].clone()
    for k in level.unique().tolist():
        here = level == k
        found[:, here] = of(levels[k][:, own.first[here]], levels[k][:, own.end[here] - 2**k])
    return found
