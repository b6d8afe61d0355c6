"""The effect of channels that are known ahead, such as prices or holidays, and of the calendar on predicted channels.

Legend
    x_t (K,)     the known channels at sample t, divided by their deviations in training
    f_t (p,)     the features: x_t, for a bent effect also (x_t - k)₊ with knots k at quartiles of training, all these
                 at the last L samples before t, and of some pairs of channels the products of x_t, less its mean in
                 training, and of (x_t - k)₊; and groups of coordinates of the calendar (`calendar.py`) at t
    u            the unit of a window: 1, or the mean size or the deviation of its last samples
    y_t = u β f_t + η_t, or y_t = η_t exp(β f_t - c)     a predicted channel; models see and predict η in its place
    c            the mean of β f_t in training, so that the factors are about 1
    P            the forecast of a structure for the next sample from those before it (`structure.py`)
    β            argmin Σ_t ((y_t - P y - u β (f_t - P f)) / q)² + λ |β|², where q is the mean change of y in a series;
                 of a factor with log y in place of y, and q over the geometric mean of y

P is subtracted from y and f alike, which leaves η about white, so β is the generalised least squares estimate of a
regression whose errors follow a structure. One β serves all steps of a horizon, and is estimated from all samples. λ,
L, u or a factor, P, knots, pairs, groups, and the use of any β at all, are chosen by cross-validation over stretches
of the training part. Errors of logarithms, times the geometric mean, have the likelihood of the samples
themselves (Box and Cox, An analysis of transformations, 1964), so both can be compared.

Source: Harvey, Forecasting, structural time series models and the Kalman filter (1989), section 3.4, for β by
innovations. Deviation: structures come from a small grid, chosen by left-out errors in place of the likelihood.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar, final

import torch
from torch import Tensor

from .calendar import NO_CALENDAR, Calendar, Group
from .clock import Clock
from .structure import MOST_SEASON, MOST_TRIED, Structure, candidate_structures, factored, mean_changes, read_before
from .windows import Ranges, WindowSet

Key = TypeVar("Key")
Unit = Literal["one", "size", "deviation", "factor"]
"""The unit u: 1, or the mean absolute value or the deviation of the samples seen; or the effect is a factor."""
TERMS: tuple[Unit, ...] = ("one", "size", "deviation")
PENALTIES = torch.logspace(-4, 2, 13, dtype=torch.float64)
"""Candidates of λ, in multiples of the mean square of the features."""
LAGS = (0, 1, 3, 7)
"""Candidates of L, below the smallest number of samples read."""
MOST_FEATURES = 60
"""The largest number of features without products that is tried; with products, twice as many."""
ONE_SIDED = 1.64
"""Standard errors by which the mean gain of a pair, the logarithm of the ratio of a stretch's errors, must exceed 0."""
MOST_PRODUCTS = 1000
"""The largest number of features with the products of all pairs; of more channels no products are tried."""
BEYOND = 1.5
"""Largest deviation of the logarithm of a factor from its mean, in multiples of the largest in training."""
MOST_BEFORE = 2 * MOST_SEASON
"""The largest number of samples before those from which β is estimated; with more, fewer would be left."""
ROUNDING = 1e-9
"""Errors of features of deviation 1 that count as 0: those of a structure that predicts a feature exactly."""
CHUNK = 128
"""Rows whose features are computed at a time."""
MOST_TIMES = 2**16
"""Times whose coordinates are computed at once."""
QUARTILES = (0.25, 0.5, 0.75)
LEAST_LEVELS = 8
"""Smallest number of distinct values of a channel with knots."""
SURE = 8.0
"""The margin in twice the log likelihood of all samples by which more features must beat fewer, or none."""


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """The effect on one predicted channel.

    Args:
        unit: u, or "factor".
        lags: L.
        is_bent: whether there are knots.
        pairs: the channels whose products are features, two by two.
        weights: β of the known channels; (): none.
        middle, widest: c, and the largest deviation of β f from it; 0 if the effect is not a factor.
        reads_known: whether known channels are among the features.
        groups: the groups of the calendar.
        calendar_weights: β of the coordinates of the groups; (): none.
    """

    unit: Unit
    lags: int
    is_bent: bool
    pairs: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]
    middle: float
    widest: float
    reads_known: bool = True
    groups: tuple[Group, ...] = ()
    calendar_weights: tuple[float, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of the known channels and of the calendar on the predicted channels.

    Args:
        mean, deviation: mean and deviation of each known channel in training.
        knots: knots of each known channel, in units of its deviation.
        reach: the number of samples at the end of a window from which u is computed.
        parts: the effect on each predicted channel.
        calendar: the groups that some part reads.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    knots: tuple[tuple[float, ...], ...]
    reach: int
    parts: tuple[Part, ...]
    calendar: Calendar = NO_CALENDAR

    def of(self, seen: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Terms and factors of the effect at T samples, `(n, T, F)` each: y is η times the factor, plus the term.

        Args:
            seen: the predicted channels at the samples seen, `(n, N, F)`, with N at least `reach`.
            x: the known channels `(n, T, K)`, then the columns of `calendar_terms`; before the first sample they keep
                its values.
        """
        terms, factors = list[Tensor](), list[Tensor]()
        for f, part in enumerate(self.parts):
            term, factor = torch.zeros_like(x[..., 0]), torch.ones_like(x[..., 0])
            if part.weights or part.calendar_weights:
                num_known = len(self.knots)
                found = x[..., num_known + f] if part.calendar_weights else torch.zeros_like(term)
                if part.weights:
                    weights = torch.tensor(part.weights, dtype=x.dtype, device=x.device)
                    found = found + self.features(x[..., :num_known], part) @ weights
                if part.unit == "factor":
                    factor = (found - part.middle).clamp(-part.widest, part.widest).exp()
                else:
                    term = _unit(seen[:, -self.reach :, f], part.unit)[:, None] * found
            terms.append(term)
            factors.append(factor)
        return torch.stack(terms, -1), torch.stack(factors, -1)

    def of_windows(self, windows: WindowSet, columns: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Terms and factors over the horizon of windows, `(n, H, F)` each."""
        term, factor = self.of(windows.seen()[..., list(columns)], windows.around())
        return term[:, windows.context :], factor[:, windows.context :]

    def size(self, part: Part) -> int:
        """The number of features of a part in the known channels."""
        counts = [1 + (len(knots) if part.is_bent else 0) for knots in self.knots if part.reads_known]
        return sum(counts) * (1 + part.lags) + sum(counts[a] * counts[b] for a, b in part.pairs)

    @property
    def num_calendar(self) -> int:
        """The number of columns of `calendar_terms`: F, or 0 if no part reads the calendar."""
        return len(self.parts) if self.calendar.groups else 0

    def calendar_terms(self, times: Tensor) -> Tensor:
        """What the calendar adds to β f of each predicted channel, at times `(*,)`, `(*, num_calendar)`."""
        every, found = self.calendar.of(times), list[Tensor]()
        for part in self.parts if self.calendar.groups else ():
            own = every[..., self.calendar.columns_of(part.groups)]
            found.append(own @ own.new_tensor(part.calendar_weights))
        return torch.stack(found, -1) if found else times.new_zeros(*times.shape, 0)

    def with_calendar(self, values: Tensor, start: float, clock: Clock, more: int = 0) -> Tensor:
        """Values `(T, C)` of a series, then the columns of `calendar_terms`, `(T + more, C + num_calendar)`.

        Args:
            values: the values.
            start: the time of the first sample.
            clock: the clock of the series.
            more: number of further samples, which repeat the last values.
        """
        first, steps = torch.tensor(start, dtype=torch.float64), torch.arange(len(values) + more, dtype=torch.float64)
        times = clock.later(first, steps)
        terms = torch.cat([self.calendar_terms(some) for some in times.split(MOST_TIMES)])
        return torch.cat([torch.cat([values, values[-1:].expand(more, -1)]), terms], 1)

    def features(self, x: Tensor, part: Part) -> Tensor:
        """The features of a part in known channels `(n, T, K)`, `(n, T, p)`."""
        if not part.reads_known:
            return x[..., :0]
        like = {"dtype": x.dtype, "device": x.device}
        deviation, mean = torch.tensor(self.deviation, **like), torch.tensor(self.mean, **like)
        z, centred = x / deviation, (x - mean) / deviation
        ramps = [[(z[..., k] - at).clamp_min(0) for at in knots if part.is_bent] for k, knots in enumerate(self.knots)]
        now = torch.cat([z, *(ramp[..., None] for own in ramps for ramp in own)], -1)
        size = now.shape[1]
        found = [now]
        for lag in range(1, part.lags + 1):
            found.append(torch.cat([now[:, :1].expand(-1, min(lag, size), -1), now[:, : size - lag]], 1))
        for a, b in part.pairs:
            one, two = ([centred[..., k], *ramps[k]] for k in (a, b))
            found.append(torch.stack([left * right for left, right in itertools.product(one, two)], -1))
        return torch.cat(found, -1)


def left(effect: Effect | None, windows: WindowSet, columns: Sequence[int], count: int) -> Tensor:
    """The last samples of the predicted channels before windows, less the effect, `(n, count, F)`."""
    before = windows.before(count)[..., list(columns)]
    if effect is None:
        return before
    term, factor = effect.of(windows.seen()[..., list(columns)], windows.around(count))
    return (before - term[:, :count]) / factor[:, :count]


def _unit(seen: Tensor, unit: Unit) -> Tensor:
    """The unit u of samples `(n, N)`, `(n,)`."""
    if unit == "size":
        return seen.abs().mean(1)
    return seen.std(1, correction=0) if unit == "deviation" else torch.ones_like(seen[:, 0])


def learn_effect(
    values: Sequence[Tensor],
    truth: Sequence[Tensor],
    ends: Sequence[int],
    columns: Sequence[int],
    known: Sequence[int],
    *,
    season: int,
    reach: int,
    calendar: Calendar,
    starts: Sequence[float],
    clock: Clock,
) -> Effect | None:
    """The effect with the smallest mean squared error on the next samples of series; None: no effect is better.

    Args:
        values, truth: values and truth of each series; see `WindowSet`.
        ends: the number of samples of each series that may be used.
        columns, known: the predicted channels, and those that are known ahead.
        season: m; 1: no season.
        reach: the largest number of samples from which u is computed.
        calendar: the groups that are tried.
        starts: the time of the first sample of each series.
        clock: the clock of the series.
    """
    count = read_before(min(ends), 1, season)
    if count is None:
        return None
    count = min(count, MOST_BEFORE)
    windows = WindowSet.within(
        values, truth, [Ranges(0, end) for end in ends], context=count, horizon=1, most=MOST_TRIED, ahead=tuple(known)
    )
    stretch = windows.stretches(ends, start=count)
    if len(stretch.unique()) < 2:
        return None
    every = torch.cat([each[:end, list(known)] for each, end in zip(values, ends, strict=True)])
    deviation = _deviation(every)
    effect = Effect(
        mean=tuple(every.mean(0).tolist()),
        deviation=tuple(deviation.tolist()),
        knots=tuple(_knots(column) for column in (every / deviation).unbind(1)),
        reach=min(reach, count),
        parts=(),
        calendar=calendar,
    )
    places = windows.places[:, 1, None] + torch.arange(-count, 1)
    times = clock.later(torch.tensor(starts, dtype=torch.float64)[windows.places[:, 0], None], places)
    spread = _deviation(calendar.of(times[:, -1]))
    before, wanted = windows.seen()[..., list(columns)], windows.wanted()[:, 0]
    unit, x = mean_changes(windows, ends, columns)[:, 0], windows.around()
    structures, steps = list[Structure](), list[Tensor]()
    for factor, group in factored(candidate_structures(count, season), count + 1, season):
        structures += group
        steps += [factor.weights(count, 1, has_slope=structure.has_slope)[0] for structure in group]
    parts = list[Part]()
    for f in range(len(columns)):
        own = before[..., f], wanted[:, f], unit[:, f], stretch
        rows = _Rows(*own, x, times, spread, structures, torch.stack(steps))
        forms = dict.fromkeys(TERMS, rows)
        every = [each[:end, columns[f]] for each, end in zip(values, ends, strict=True)]
        if all(float(each.min()) > 0 for each in every):
            size = torch.stack([each.log().mean().exp() for each in every])[windows.places[:, 0]]
            forms["factor"] = rows._replace(before=before[..., f].log(), wanted=rows.wanted.log(), q=rows.q / size)
        parts.append(_part(forms, effect))
    if not any(part.weights or part.calendar_weights for part in parts):
        return None
    used = {group for part in parts for group in part.groups}
    calendar = Calendar(groups=tuple(group for group in calendar.groups if group in used))
    return replace(effect, calendar=calendar, parts=tuple(parts))


def _deviation(columns: Tensor) -> Tensor:
    """The deviation of columns `(r, K)`; 1 for a constant one."""
    found = (columns - columns.mean(0)).square().mean(0).sqrt()  # without a warning where there are no columns
    return torch.where(found > 1e-12 * columns.abs().amax(0), found, 1.0)


def _knots(column: Tensor) -> tuple[float, ...]:
    if len(column.unique()) < LEAST_LEVELS:
        return ()
    return tuple(column.quantile(torch.tensor(QUARTILES, dtype=column.dtype)).unique().tolist())


@final
class _Rows(NamedTuple):
    """r windows of a predicted channel: the samples before `(r, n)`, the next one, its q and its stretch `(r,)`.

    Also the known channels x, `(r, n + 1, K)`, the times `(r, n + 1)`, the deviations of all coordinates of the
    calendar `(k,)`, the structures, and their P, `(S, n)`.
    """

    before: Tensor
    wanted: Tensor
    q: Tensor
    stretch: Tensor
    x: Tensor
    times: Tensor
    spread: Tensor
    structures: Sequence[Structure]
    steps: Tensor

    def innovations(self, before: Tensor, after: Tensor) -> Tensor:
        """Errors of each structure on samples `(r, p)` after others `(r, n, p)`, `(r, S, p)`."""
        last = before[:, -1]
        fitted = torch.einsum("rnp,sn->rsp", before - last[:, None], self.steps)
        return (after - last)[:, None] - fitted

    def of_structures(self, which: Sequence[int]) -> "_Rows":
        """The same windows with some of the structures."""
        return self._replace(structures=[self.structures[s] for s in which], steps=self.steps[list(which)])

    def fits(self, effect: Effect, part: Part) -> "_Fits":
        """The sums for the features of a part."""
        return self.sums(self.errors(effect, part), effect, part.unit)

    def errors(self, effect: Effect, part: Part) -> Tensor:
        """f - P f of all features of a part and all structures, `(r, S, p)`, whatever its unit."""
        found = list[Tensor]()
        for f in self._features(effect, part):
            e = self.innovations(f[:, :-1], f[:, -1])
            found.append(torch.where(e.abs() > ROUNDING, e, 0.0))
        return torch.cat(found)

    def sums(self, errors: Tensor, effect: Effect, unit: Unit) -> "_Fits":
        """The sums from `errors`."""
        y = self.innovations(self.before[..., None], self.wanted[:, None])[..., 0] / self.q[:, None]
        u, found = _unit(self.before[:, -effect.reach :], unit) / self.q, list[_Fits]()
        for group in self.stretch.unique():
            own = self.stretch == group
            e, w = errors[own] * u[own, None, None], y[own]
            gram, cross = torch.einsum("rsp,rsq->spq", e, e), torch.einsum("rsp,rs->sp", e, w)
            found.append(_Fits(gram, cross, w.square().sum(0)))
        return _Fits(*(torch.stack(each) for each in zip(*found, strict=True)))

    def last_features(self, effect: Effect, part: Part) -> Tensor:
        """All features at the next samples, `(r, p)`."""
        return torch.cat([f[:, -1] for f in self._features(effect, part)])

    def _features(self, effect: Effect, part: Part) -> Iterator[Tensor]:
        """All features of a part: those in the known channels, then the coordinates of its groups, `(r, n + 1, p)`.

        Yields:
            those of some of the windows.
        """
        calendar, spread = Calendar(groups=part.groups), self.spread[effect.calendar.columns_of(part.groups)]
        for x, times in zip(self.x.split(CHUNK), self.times.split(CHUNK), strict=True):
            yield torch.cat([effect.features(x, part), calendar.of(times) / spread], -1)


@final
class _Choice(NamedTuple):
    """The smallest sum of squared left-out errors, with its structure and λ, and the sums of each stretch."""

    error: float
    structure: int
    penalty: float
    stretches: Tensor


@final
class _Fits(NamedTuple):
    """Sums over the rows of each stretch, for each structure.

    Attributes:
        gram: products of the errors on features, `(G, S, p, p)`.
        cross: products of these with the errors on the predicted channel, `(G, S, p)`.
        square: squares of the latter, `(G, S)`.
    """

    gram: Tensor
    cross: Tensor
    square: Tensor

    def some(self, columns: Tensor) -> "_Fits":
        """The sums of some features."""
        return _Fits(self.gram[..., columns[:, None], columns], self.cross[..., columns], self.square)

    def best(self, penalties: Tensor = PENALTIES) -> _Choice:
        """The structure and λ with the smallest sum of squared left-out errors."""
        gram, cross = self.gram.sum(0) - self.gram, self.cross.sum(0) - self.cross
        errors = list[Tensor]()
        for multiple in penalties:
            beta = torch.linalg.solve(_penalised(gram, multiple), cross[..., None])[..., 0]
            own = (self.gram @ beta[..., None])[..., 0]
            errors.append(self.square + (beta * (own - 2 * self.cross)).sum(-1))
        stretches = torch.stack(errors)
        every = stretches.sum(1)
        multiple, structure = divmod(int(every.argmin()), every.shape[1])
        penalty, error = float(penalties[multiple]), float(every[multiple, structure])
        return _Choice(error, structure, penalty, stretches[multiple, :, structure])

    def solve(self, choice: _Choice) -> Tensor:
        """The coefficients β `(p,)`."""
        gram, cross = self.gram.sum(0)[choice.structure], self.cross.sum(0)[choice.structure]
        return torch.linalg.solve(_penalised(gram, choice.penalty), cross[:, None])[:, 0]


def _penalised(gram: Tensor, multiple: Tensor | float) -> Tensor:
    size = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] / max(gram.shape[-1], 1)
    return gram + (multiple * size + (size == 0)) * torch.eye(gram.shape[-1], dtype=gram.dtype)


def _part(forms: dict[Unit, _Rows], effect: Effect) -> Part:
    """The part with the smallest left-out errors: that of the known channels, and groups of the calendar beside it.

    A structure is chosen with plain features, then features with that structure, then a structure with these. More
    features must be better than fewer, or none, by the margin SURE.

    Args:
        forms: the samples for each unit; for a factor their logarithms.
        effect: the effect without parts.
    """
    margin = math.exp(-SURE / len(forms["one"].q))
    best = Part(unit="one", reads_known=False, lags=0, is_bent=False, pairs=(), weights=(), middle=0.0, widest=0.0)
    alone: dict[Unit, _Choice] = {u: rows.fits(effect, best).best() for u, rows in forms.items() if u == _like(u)}
    least = min(choice.error for choice in alone.values())
    if effect.knots:
        found = _with_known(forms, effect, replace(best, reads_known=True), margin)
        error = forms[found.unit].fits(effect, found).best().error
        if error < margin * least:
            best, least = found, error
    if effect.calendar.groups:
        best = _with_calendar(forms, effect, best, alone, least, margin)
    if not (best.reads_known or best.groups):
        return best
    rows = forms[best.unit]
    fits = rows.fits(effect, best)
    weights, size = fits.solve(fits.best()), effect.size(best)
    own = weights[size:] / rows.spread[effect.calendar.columns_of(best.groups)]
    best = replace(best, weights=tuple(weights[:size].tolist()), calendar_weights=tuple(own.tolist()))
    if best.unit != "factor":
        return best
    every = rows.last_features(effect, best) @ weights
    middle = float(every.mean())
    return replace(best, middle=middle, widest=BEYOND * float((every - middle).abs().max()))


def _with_known(forms: dict[Unit, _Rows], effect: Effect, plain: Part, margin: float) -> Part:
    """The best part of the known channels, from their plain features."""
    firsts, own = dict[Unit, _Choice](), dict[Unit, _Rows]()
    for unit, rows in forms.items():
        like = _like(unit)
        if unit == like:
            firsts[unit] = rows.fits(effect, replace(plain, unit=unit)).best()
        own[unit] = rows.of_structures([firsts[like].structure])
    best, least = plain, firsts["one"].error
    for lags, is_bent, unit in itertools.product(LAGS, (False, True), own):
        part = replace(plain, unit=unit, lags=lags, is_bent=is_bent)
        if effect.size(part) <= MOST_FEATURES and (not is_bent or any(effect.knots)):
            error = own[unit].fits(effect, part).best().error
            if error < margin * least:
                best, least = part, error
    # without products, another unit may have compensated for them
    units: list[Unit] = [best.unit, *(unit for unit in own if unit in ("one", "factor") and unit != best.unit)]
    paired = [_paired(own[unit], effect, replace(best, unit=unit), least, margin) for unit in units]
    return min(paired, key=lambda each: each[1])[0]


def _like(unit: Unit) -> Unit:
    """The unit whose structure serves this one too."""
    return "one" if unit in TERMS else unit


def _with_calendar(
    forms: dict[Unit, _Rows], effect: Effect, part: Part, alone: dict[Unit, _Choice], least: float, margin: float
) -> Part:
    """A part with those groups of the calendar that reduce the left-out errors most, the best group first.

    The structure is chosen with each set of groups, among those with the season of the best structure without any.

    Args:
        forms, effect: see `_part`.
        part: the part without groups.
        alone: the best structures without any feature.
        least: the error of the part.
        margin: see `_extended`.
    """
    found, groups, size = list[tuple[float, Part]]([(least, part)]), effect.calendar.groups, effect.size(part)
    best, structures = min(alone.values(), key=lambda each: each.error).structure, forms["one"].structures
    which = [s for s, each in enumerate(structures) if each.season == structures[best].season]
    errors = forms["one"].of_structures(which).errors(effect, replace(part, groups=groups))
    rest = {group: size + torch.tensor(effect.calendar.columns_of((group,))) for group in groups}
    for unit in dict.fromkeys((part.unit, "one", "factor" if "factor" in forms else "size")):
        fits = forms[unit].of_structures(which).sums(errors, effect, unit)
        taken, error = _extended(fits, torch.arange(size), rest, least, margin, PENALTIES[::3])
        found.append((error, replace(part, unit=unit, groups=tuple(group for group in groups if group in taken))))
    return min(found, key=lambda each: each[0])[1]


def _paired(rows: _Rows, effect: Effect, part: Part, least: float, margin: float) -> tuple[Part, float]:
    """A part with products of those pairs that reduce the left-out errors most, the best pair first, and its error."""
    pairs = tuple(itertools.combinations(range(len(effect.knots)), 2))
    whole = replace(part, pairs=pairs)
    if not pairs or effect.size(whole) > MOST_PRODUCTS:
        return part, least
    kept, *products = torch.arange(effect.size(whole)).split(
        [effect.size(part), *(effect.size(replace(part, pairs=(pair,))) - effect.size(part) for pair in pairs)]
    )
    fits, rest = rows.fits(effect, whole), dict(zip(pairs, products, strict=True))
    taken, error = _extended(fits, kept, rest, least, margin)
    return replace(part, pairs=taken), error


def _extended(
    fits: _Fits,
    kept: Tensor,
    rest: dict[Key, Tensor],
    least: float,
    margin: float,
    penalties: Tensor = PENALTIES,
) -> tuple[tuple[Key, ...], float]:
    """Sets of features that reduce the left-out errors most, the best first, and the error with all of them.

    Every set must reduce the smallest error so far by the margin, and the errors of stretches significantly, since
    features may go far beyond their values in training.

    Args:
        fits: the sums of all features.
        kept: the columns of the features that are used anyway.
        rest: the columns of each set.
        least: the smallest error so far, of all parts without these sets.
        margin: the largest ratio of errors.
        penalties: candidates of λ.
    """
    taken, before = list[Key](), fits.some(kept).best(penalties)
    while rest := {key: own for key, own in rest.items() if len(kept) + len(own) <= 2 * MOST_FEATURES}:
        found = {key: fits.some(torch.cat([kept, own])).best(penalties) for key, own in rest.items()}
        key = min(found, key=lambda each: found[each].error)
        gain = (before.stretches / found[key].stretches).log()
        if found[key].error >= margin * least or gain.mean() <= ONE_SIDED * gain.std() / math.sqrt(len(gain)):
            break
        taken, before, least = [*taken, key], found[key], found[key].error
        kept = torch.cat([kept, rest.pop(key)])
    return tuple(taken), least
