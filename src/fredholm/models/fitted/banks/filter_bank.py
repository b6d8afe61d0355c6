"""A bank of pooled convolutions at many time scales, and a linear head in closed form.

Legend
    u (C,)      the signal at a time, standardised channels; u = 0 before its first and after its last sample
    u'          its first difference, u'(t) = u(t + Δ) - u(t)
    Δ           time between two samples in training         d       dilation, a whole number of Δ
    w (C, 9)    a filter's taps at each channel, which are equal at the channels that it reads, and 0 at the others;
                those of a random filter differ between the channels that it reads
    μ           the uniform measure on the nodes: all samples, or of a long series every k-th. Its mass is 1 or, if
                the training series differ in length and the left-out errors are smaller, the number of samples over
                that of the longest training series
    b           a threshold                                  g       a group of filters

    (K u)(t) = ∫ κ(t - τ)·u(τ) dτ,   κ(r) = Σ_j w_j δ(r + (j - 4) d Δ),   a horizon of 4 d Δ to both sides
    share above a threshold       P = ∫ 1[K u > b] dμ
    mean excess above it          M = ∫ (K u - b)₊ dμ / P, 0 where P is
    won by filter k of a group    √ ∫ (K_k u)₊ 1[K_k u = max_g K u] dμ
    lost by it                    √ ∫ 1[K_k u = min_g K u] dμ
    all of these of u and of u', optionally with the last samples of u, as blocks of `RidgeHead`, with equal shares
    unless left-out errors are significantly smaller with others: differences show fine shapes, and amplify noise

Source: MiniRocket (arXiv 2012.08791): the 84 two-valued filters, dilations spread evenly on a logarithmic scale, P, and
thresholds that are quantiles of a filter's response to one training series. MultiRocket (arXiv 2102.00457): u', and
the mean of the values above the threshold. Hydra (arXiv 2203.13652): random filters that compete in groups.
Deviations: M is counted from the threshold; a level filter, the mean of the nine taps, is added to the 84, which are
blind to constants; won and lost are integrals over the nodes, not sums; random filters have taps of their own for each
channel, as in ROCKET (arXiv 1910.13051), since sums of channels do not show which one is ahead; features are
standardised by their deviation alone; the penalty is chosen on a finer grid; series of several lengths and rates are
resampled to one spacing.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm._precision import without_autocast
from fredholm._settings import check_count
from fredholm.domains.checks import is_open, values_can_be_read
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.models.fitted.example_weights import some_of
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.ridge_head import FeatureBlock, Regressand, RidgeHead, some_drawn
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling

TAPS = 9
REACH = TAPS // 2
"""Number of taps on each side of the middle one."""
GROUP = 8
"""Number of filters in a group that compete."""
MOST_DILATIONS = 32
"""Most dilations of the two-valued filters."""
MOST_CHANNELS = 9
"""Most channels that a filter reads together."""
CHOSEN = 1500
"""Most training series on which the shares of the blocks of features are chosen."""

_GOLDEN = (math.sqrt(5) - 1) / 2
_NODES_AT_ONCE = 4096
"""Nodes per chunk, so that responses stay in the cache."""
_SAME = 1e-6


@final
class FilterBank(FittedModel[SeriesBatch]):
    """A ridge regression on features of a series from many dilated filters.

    A series at another rate than in training, at irregular times, or with missing samples between others is first
    resampled at every Δ from its first sample on, by linear interpolation, so that filters and measure refer to the
    same time scale as in training.

    Args:
        sampling: sampling of the training series.
        num_outputs: number of outputs, such as classes.
        config: numbers of filters.

    Attributes:
        by_length: whether the mass of μ is proportional to the number of samples, a bool scalar; false before a fit.

    Raises:
        ValueError: on sizes below 1.
    """

    channels: Tensor
    filters: Tensor
    thresholds: Tensor
    by_length: Tensor
    powers: Tensor
    group_filters: Tensor
    group_channels: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SeriesModelConfig):
        """Numbers of filters, thresholds and nodes; these and the longest series determine the number of features."""

        learns_by_steps: ClassVar[bool] = False

        num_thresholds: int = 48
        """Thresholds of each two-valued filter, divided among its dilations, at least one for each; 0: none."""
        num_groups: int = 64
        """Groups of eight competing random filters at each dilation that is a power of 2; 0: none."""
        differences: bool = True
        """Whether first differences are filtered too."""
        num_nodes: int = 1024
        """Most nodes at which the responses to a series are computed; longer series are pooled over every second
        sample, every third, and so on. The filters read all samples."""
        num_lags: int = 0
        """Number of last samples that are features themselves, at most those of the longest series. They are a block
        of their own in the ridge regression, which may use these alone. 0: none."""

        def __post_init__(self) -> None:
            for name, least in (("num_thresholds", 0), ("num_groups", 0), ("num_nodes", 1), ("num_lags", 0)):
                check_count("models.FilterBank", name, getattr(self, name), least)
            if self.num_thresholds == self.num_groups == self.num_lags == 0:
                raise ValueError("models.FilterBank: num_thresholds, num_groups and num_lags are 0; give one of them")

        def check(self) -> None:
            """See `SeriesModelConfig.check`: there is nothing to check, as there is one output per series."""

        def build(self, sampling: SeriesSampling, num_outputs: int) -> "FilterBank":
            """See `SeriesModelConfig.build`."""
            return FilterBank(sampling, num_outputs, self)

    def __init__(self, sampling: SeriesSampling, num_outputs: int, config: Config) -> None:
        super().__init__()
        self.config, self.sampling = config, sampling
        self.encoder = Series(sampling.channels, spacing=sampling.spacing)
        octaves = math.log2(max((sampling.longest - 1) / (2 * REACH), 1.0))
        self.scales = _scales(octaves, config.num_thresholds)
        self.group_dilations = [2**n for n in range(int(octaves) + 1)] if config.num_groups else []
        self.num_signals = 2 if config.differences else 1
        self.register_buffer("filters", two_valued_filters(), persistent=False)
        kinds, of_one, in_groups = len(self.filters), sampling.channels, (config.num_groups, GROUP)
        places = (self.num_signals, len(self.scales), kinds)
        self.register_buffer("channels", _some_channels(places, of_one, MOST_CHANNELS))
        per_filter = sum(scale.num_thresholds for scale in self.scales)
        self.register_buffer("thresholds", torch.zeros(self.num_signals, per_filter, kinds))
        places = (self.num_signals, len(self.group_dilations), *in_groups)
        drawn = torch.randn(*places, min(of_one, MOST_CHANNELS), TAPS)
        drawn = drawn - drawn.mean(-1, keepdim=True)
        self.register_buffer("group_filters", drawn / drawn.abs().sum(-1, keepdim=True))
        self.register_buffer("group_channels", _some_channels(places[:-1], of_one, MOST_CHANNELS))
        # the powers of the mass of μ in P, M, and in won and lost
        powers = torch.cat(
            [
                torch.tensor([1.0, 0.0]).repeat_interleave(kinds).repeat(per_filter),
                torch.full((2 * len(self.group_dilations) * config.num_groups * GROUP,), 0.5),
            ]
        )
        self.register_buffer("powers", powers.repeat(self.num_signals), persistent=False)
        self.register_buffer("by_length", torch.tensor(False))
        self.num_lags = min(config.num_lags, sampling.longest)
        lags = self.num_lags * sampling.channels
        self.num_pooled = len(self.powers)
        blocks = [*[self.num_pooled // self.num_signals] * self.num_signals, lags]
        _, *further = [FeatureBlock(size) for size in blocks if size]
        self.head = RidgeHead(sum(blocks), num_outputs, further=further)

    def forward(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Maps a batch to outputs `(B, num_outputs)`, which are all equal before a fit."""
        return self.head(self.features(inputs))

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[SeriesBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Draws thresholds from responses to the training series, and fits the head; its errors choose shares and μ.

        See `FittedModel.fit`.
        """
        if not sum(len(targets) for _, targets in batches):
            raise ValueError("models.FilterBank: there is no series to fit to")
        with without_autocast(self.thresholds):
            self._draw_thresholds([batch for batch, _ in batches])
        shares, lengths = (torch.cat(each) for each in zip(*(self._shares(batch) for batch, _ in batches), strict=True))
        targets = torch.cat([targets for _, targets in batches])
        tried = None
        if len(targets) > CHOSEN and len(self.head.blocks) > 1:
            some = some_drawn(len(targets), groups, CHOSEN).to(targets.device)
            known = None if groups is None else groups[some]
            own = some_of(weights, some)
            self.head.fit(shares[some], targets[some], regressand, groups=known, weights=own, equal_in_doubt=True)
            tried = [tuple(self.head.shares.tolist())]

        def fitted(by_length: bool) -> Tensor:
            self.by_length.fill_(by_length)
            features, is_open = self._weighed(shares, lengths) if by_length else shares, tried is None
            return self.head.fit(
                features,
                targets,
                regressand,
                groups=groups,
                weights=weights,
                shares=tried,
                equal_in_doubt=is_open,
            )

        left_out, error = fitted(False), self.head.error.clone()
        if self.num_pooled and bool((lengths != lengths[0]).any()):
            left_out = fitted(True)
            if self.head.error >= error:
                left_out = fitted(False)
        return left_out

    @torch.no_grad()
    def features(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Returns the features for the head, `(B, num_features)`; 0 for a series without samples.

        Raises:
            ValueError: on inputs that `encoders.Series` refuses.
        """
        return self._weighed(*self._shares(inputs))

    def _weighed(self, shares: Tensor, lengths: Tensor) -> Tensor:
        """Scales features for a mass of 1 to the mass of μ, given the numbers of samples `(B,)`."""
        mass = torch.where(self.by_length, lengths / self.sampling.longest, 1.0).to(shares)
        return torch.cat([shares[:, : self.num_pooled] * mass[:, None] ** self.powers, shares[:, self.num_pooled :]], 1)

    def _shares(self, inputs: Tensor | SeriesBatch) -> tuple[Tensor, Tensor]:
        """Features `(B, num_features)` for a mass of 1, and the numbers of samples at every Δ, int64 `(B,)`."""
        values, lengths = self.on_grid(inputs)
        parts = [self._pooled_in_chunks(values, lengths)] if self.num_pooled else []
        return torch.cat([*parts, *([_lags(values, lengths, self.num_lags)] if self.num_lags else [])], 1), lengths

    def _pooled_in_chunks(self, values: Tensor, lengths: Tensor) -> Tensor:
        """Pooled responses `(B, num_pooled)` for a mass of 1."""
        found = values.new_zeros(values.shape[0], self.num_pooled)
        most = self.config.num_nodes
        strides = (lengths + most - 1).div(most, rounding_mode="floor").clamp_min(1)
        with without_autocast(values):
            if not values_can_be_read(values, lengths):
                return self._of_any_lengths(values, lengths, strides, found)
            for stride in strides.unique().tolist():
                alike = (strides == stride).nonzero()[:, 0]
                alike = alike[lengths[alike].argsort(stable=True)]  # chunks of about one length
                width = max(1, int(lengths[alike].max())) * -(-values.shape[1] // GROUP)
                for chunk in alike.split(max(1, _NODES_AT_ONCE * stride // width)):
                    longest = max(1, int(lengths[chunk].max()))
                    found[chunk] = self._pooled(values[chunk, :, :longest], lengths[chunk], stride)
        return found

    def _of_any_lengths(self, values: Tensor, lengths: Tensor, strides: Tensor, found: Tensor) -> Tensor:
        """Pooled responses in an exported graph: computed for all possible strides; each series selects its own."""
        longest = values.shape[-1]
        if is_open(longest):
            raise ValueError(
                "models.FilterBank: the pooling stride depends on the number of samples, which the graph leaves open; "
                "fix the number of samples"
            )
        for stride in range(1, max(1, -(-longest // self.config.num_nodes)) + 1):
            found = torch.where((strides == stride)[:, None], self._pooled(values, lengths, stride), found)
        return found

    @torch.no_grad()
    def lags(self, inputs: Tensor | SeriesBatch, count: int) -> Tensor:
        """Returns the last `count` samples of each series in order, `(B, C * count)`; 0 before its first sample.

        Raises:
            ValueError: see `features`.
        """
        return _lags(*self.on_grid(inputs), count)

    def _pooled(self, values: Tensor, lengths: Tensor, stride: int) -> Tensor:
        parts: list[Tensor] = []
        for signal, (u, samples) in enumerate(self._signals(values, lengths)):
            start = 0
            for place, scale in enumerate(self.scales):
                nodes = _Nodes.of(u, samples, scale.dilation, stride)
                response = nodes.filtered(self.filters, self.channels[signal, place])
                end = start + scale.num_thresholds
                # every second filter is read only where all its taps lie within the series
                within = torch.arange(len(self.filters), device=u.device) % 2 != place % 2
                parts += _above(response, nodes, within, self.thresholds[signal, start:end])
                start = end
            for place, dilation in enumerate(self.group_dilations):
                nodes = _Nodes.of(u, samples, dilation, stride)
                parts += _competition(
                    nodes.filtered_in_groups(self.group_filters[signal, place], self.group_channels[signal, place]),
                    nodes.exist,
                )
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def _signals(self, values: Tensor, lengths: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields values `(B, C, N)` and numbers of samples, of the signal and of its differences."""
        yield values, lengths
        if self.config.differences:
            fewer = (lengths - 1).clamp_min(0)
            steps = F.pad(values.diff(dim=-1), (0, 1))
            exists = torch.arange(values.shape[-1], device=values.device) < fewer[:, None]
            yield torch.where(exists[:, None], steps, 0.0), fewer

    def _draw_thresholds(self, batches: Sequence[SeriesBatch]) -> None:
        """Sets thresholds to quantiles of each filter's response to one training series, at golden-ratio levels."""
        series: list[tuple[Tensor, Tensor]] = []
        for batch in batches:
            values, lengths = self.on_grid(batch)
            series += [(values[i : i + 1, :, : int(n)], lengths[i : i + 1]) for i, n in enumerate(lengths) if n > 0]
        if not series:
            return
        for signal in range(self.num_signals):
            start, count = 0, 0
            for place, scale in enumerate(self.scales):
                chosen = torch.randint(len(series), (len(self.filters),)).tolist()
                for kind, number in enumerate(chosen):
                    orders = torch.arange(count + 1, count + 1 + scale.num_thresholds, dtype=torch.float64)
                    count += scale.num_thresholds
                    u, samples = list(self._signals(*series[number]))[signal]
                    if not int(samples):
                        continue
                    nodes = _Nodes.of(u[..., : int(samples)], samples, scale.dilation, 1)
                    one = slice(kind, kind + 1)
                    response = nodes.filtered(self.filters[one], self.channels[signal, place, one]).flatten()
                    quantiles = response.quantile((orders * _GOLDEN % 1).to(response))
                    self.thresholds[signal, start : start + scale.num_thresholds, kind] = quantiles
                start += scale.num_thresholds

    def on_grid(self, inputs: Tensor | SeriesBatch) -> tuple[Tensor, Tensor]:
        """Returns values at every Δ, `(B, C, N)`, 0 after a series' end, and numbers of samples, int64 `(B,)`.

        Raises:
            ValueError: see `features`.
        """
        given = inputs if isinstance(inputs, SeriesBatch) else SeriesBatch(inputs)
        values, _ = self.encoder(given)
        values = values.to(self.thresholds.dtype)
        batch, num_samples = values.shape[:2]
        mask = given.mask
        if mask is None:
            mask = torch.ones(batch, num_samples, dtype=torch.bool, device=values.device)
        lengths = mask.sum(-1)
        if not values_can_be_read(values, mask):
            if given.times is not None or given.spacing is not None:
                raise ValueError(
                    "models.FilterBank: samples at other times are resampled series by series, which no graph holds; "
                    "pass values at the spacing of training"
                )
            return values.transpose(1, 2), lengths
        spacing = self.sampling.spacing
        rates = torch.full((batch,), spacing, dtype=torch.float64) if given.spacing is None else given.spacing
        is_even = given.times is None and bool((rates.double() / spacing - 1).abs().le(_SAME).all())
        if is_even and bool((mask.int().diff(dim=-1) <= 0).all()):
            return values.transpose(1, 2), lengths
        times = given.times
        if times is None:
            steps = torch.arange(num_samples, dtype=torch.float64, device=values.device)
            times = steps * rates.double().to(values.device)[:, None]
        rows = [
            _resampled(row[exists], t[exists].double(), spacing)
            for row, t, exists in zip(values, times, mask, strict=True)
        ]
        lengths = torch.tensor([len(row) for row in rows], device=values.device)
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).transpose(1, 2), lengths


def _lags(values: Tensor, lengths: Tensor, count: int) -> Tensor:
    """The last `count` samples of values `(B, C, N)` in order, `(B, C * count)`; 0 before the first sample."""
    padded = F.pad(values, (count, 0))  # so that an empty series has samples to index
    at = lengths[:, None] + torch.arange(count, device=values.device)
    # not take_along_dim, whose export fixes the batch size
    return padded.gather(2, at[:, None].expand(-1, values.shape[1], -1)).flatten(1)


@final
class _Scale(NamedTuple):
    """A dilation and the number of thresholds of each filter at it."""

    dilation: int
    num_thresholds: int


@final
class _Nodes(NamedTuple):
    """Inputs of the filters of one dilation at the nodes of a batch of signals.

    Args:
        taps: `(B, C, 9, M)`, the signal at each tap of a filter at each node.
        exist: `(B, M)` bool, the existing nodes of each series.
        within: `(B, M)` bool, nodes whose taps all lie within the series; all nodes if the series is too short.
    """

    taps: Tensor
    exist: Tensor
    within: Tensor

    @classmethod
    def of(cls, u: Tensor, samples: Tensor, dilation: int, stride: int) -> "_Nodes":
        """Nodes of signals `(B, C, N)`, 0 after a series' end, at every `stride`-th sample."""
        reach, n = REACH * dilation, u.shape[-1]
        wide = F.pad(u, (reach, reach))
        taps = torch.stack([wide[..., j * dilation : j * dilation + n : stride] for j in range(TAPS)], dim=2)
        place = torch.arange(0, n, stride, device=u.device)
        exist = place < samples[:, None]
        within = (place >= reach) & (place < samples[:, None] - reach)
        # logical operations, since onnxruntime has no `where` for bool
        return cls(taps, exist, within | (exist & ~within.any(-1, keepdim=True)))

    def filtered(self, filters: Tensor, channels: Tensor) -> Tensor:
        """Responses `(B, K, M)` of filters `(K, 9)` to sums of channels `(K, C)`."""
        return self._weighed(channels[:, :, None] * filters[:, None])

    def filtered_in_groups(self, filters: Tensor, channels: Tensor) -> Tensor:
        """Responses `(B, G, 8, M)` of filters `(G, 8, S, 9)`, with taps for each of the channels read `(G, C)`."""
        place = ((channels > 0).cumsum(-1) - 1).clamp_min(0)  # of a channel among those that are read
        own = filters.gather(2, place[:, None, :, None].expand(-1, filters.shape[1], -1, TAPS))
        return self._weighed((own * channels[:, None, :, None]).flatten(0, 1)).unflatten(1, filters.shape[:2])

    def _weighed(self, weights: Tensor) -> Tensor:
        """Responses `(B, K, M)` of taps at each channel `(K, C, 9)`."""
        return weights.flatten(1) @ self.taps.flatten(1, 2)


def _above(response: Tensor, nodes: _Nodes, within: Tensor, thresholds: Tensor) -> list[Tensor]:
    """P and M of responses `(B, K, M)` above each of the thresholds `(q, K)`."""
    within = within[:, None]
    read = (within & nodes.within[:, None]) | (~within & nodes.exist[:, None])
    response = torch.where(read, response, -torch.inf)
    mass = read.sum(-1).clamp_min(1).to(response.dtype)
    scratch = torch.empty_like(response)
    found: list[Tensor] = []
    for threshold in thresholds[..., None]:
        counts = torch.gt(response, threshold, out=scratch).sum(-1)
        excess = torch.sub(response, threshold, out=scratch).clamp_min_(0).sum(-1)
        found += [counts / mass, excess / counts.clamp_min(1)]
    return found


def _competition(response: Tensor, exist: Tensor) -> list[Tensor]:
    """Features won and lost of responses `(B, G, 8, M)`, each `(B, G, 8)`; all filters of a tie count."""
    each = response.unbind(2)
    exist = exist[:, None]
    largest = functools.reduce(torch.maximum, each)
    smallest = torch.where(exist, functools.reduce(torch.minimum, each), torch.nan)  # NaN equals no response
    prize = torch.where(exist, largest, 0.0).clamp_min(0)
    mass = exist.sum(-1).clamp_min(1).to(response.dtype)
    scratch = torch.empty_like(prize)
    won = [torch.eq(one, largest, out=scratch).mul_(prize).sum(-1) / mass for one in each]
    lost = [torch.eq(one, smallest, out=scratch).sum(-1) / mass for one in each]
    return [torch.stack(won, -1).sqrt(), torch.stack(lost, -1).sqrt()]


def two_valued_filters() -> Tensor:
    """Filters `(85, 9)`: the 84 with three taps 2 and the others -1, and the mean of nine taps."""
    filters = torch.full((85, TAPS), -1.0)
    for row, places in zip(filters, itertools.combinations(range(TAPS), 3), strict=False):
        row[list(places)] = 2.0
    filters[-1] = 1 / TAPS
    return filters


def _scales(octaves: float, num_thresholds: int) -> list[_Scale]:
    """Dilations from 1 to 2^octaves, evenly spaced on a logarithmic scale, and their shares of the thresholds."""
    if not num_thresholds:
        return []
    steps = torch.linspace(0, octaves, min(num_thresholds, MOST_DILATIONS), dtype=torch.float64)
    dilations, counts = torch.exp2(steps).long().unique(return_counts=True)
    shares = (counts * num_thresholds / len(steps)).round().long().clamp_min(1)
    return [_Scale(int(d), int(share)) for d, share in zip(dilations, shares, strict=True)]


def _some_channels(places: tuple[int, ...], channels: int, most: int) -> Tensor:
    """Random masks of channels that are read together, 0 or 1 `(*places, channels)`; one channel is as likely as two
    or three, as four to seven, and so on."""
    bound = math.log2(min(channels, most) + 1)
    number = torch.exp2(torch.rand(*places, 1, dtype=torch.float64) * bound).long()
    order = torch.rand(*places, channels).argsort(-1).argsort(-1)
    return (order < number).float()


def _resampled(values: Tensor, times: Tensor, spacing: float) -> Tensor:
    """Resamples values `(N, C)` at increasing times linearly, at every `spacing` from the first time on."""
    if len(values) < 2:
        return values
    count = int((times[-1] - times[0]) / spacing * (1 + _SAME) + _SAME) + 1
    at = times[0] + spacing * torch.arange(count, dtype=times.dtype, device=times.device)
    right = torch.searchsorted(times, at).clamp(1, len(times) - 1)
    before, after = times[right - 1], times[right]
    share = ((at - before) / (after - before)).clamp(0, 1).to(values.dtype)[:, None]
    return torch.lerp(values[right - 1], values[right], share)
