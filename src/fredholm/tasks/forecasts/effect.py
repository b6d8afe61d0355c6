"""What channels that are known ahead, such as prices or holidays, do to those that are predicted.

Legend
    x_t (K,)     the known channels at sample t, divided by their deviations in training
    f_t (p,)     x_t, of a channel that is bent also (x_t - k)₊ for knots k at quartiles of training; and all these of
                 the last L samples before t
    u            what a window counts in: 1, or the mean size or the deviation of its last samples
    y_t = u β f_t + η_t     a channel that is predicted;  η is what is seen and predicted in its place
    P            what a structure says of the next sample by those before it (`structure.py`), of any series
    β            argmin Σ_t ((y_t - P y - u β (f_t - P f)) / q)² + λ |β|², where q is the mean change of y in a series

P takes off y and f alike what η is known by before, so that what is left of η is about white, and β the generalised
least squares of a regression with errors that follow a structure. One β serves all steps of a horizon, and is learnt
from all samples. λ, L, u, P, whether there are knots, and whether there is β at all, are those with the smallest errors
on stretches of the training part that are left out.

Source: Harvey, Forecasting, structural time series models and the Kalman filter (1989), section 3.4, for β by
innovations. Deviation: structures are a few, chosen by left-out errors in place of the likelihood.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor

from .structure import MOST_TRIED, candidate_structures, factored, mean_changes, read_before
from .windows import Ranges, WindowSet

Unit = Literal["one", "size", "deviation"]
"""Whether u is 1, or the mean size or the deviation of what is seen."""
PENALTIES = torch.logspace(-4, 2, 13, dtype=torch.float64)
"""λ that are tried, in multiples of the mean square of what β is of."""
LAGS = (0, 1, 3, 7)
"""L that are tried, fewer than the samples that are read at least."""
MOST_FEATURES = 60
"""That are more than those of the samples alone."""
CHUNK = 128
"""Rows whose features are computed at a time."""
QUARTILES = (0.25, 0.5, 0.75)
LEAST_LEVELS = 8
"""Values of a channel that has knots, at least."""
SURE = 8.0
"""Twice the gain in log likelihood, of all samples, that more features must have over fewer, or over none."""


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """What known channels do to one that is predicted.

    Args:
        unit: u.
        lags: L.
        is_bent: whether there are knots.
        weights: β; (): they do nothing.
    """

    unit: Unit
    lags: int
    is_bent: bool
    weights: tuple[float, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Effect:
    """What known channels do to those that are predicted.

    Args:
        deviation: of each known channel in training.
        knots: of each, in units of it.
        reach: samples of a window that u is of, at its end.
        parts: of each channel that is predicted.
    """

    deviation: tuple[float, ...]
    knots: tuple[tuple[float, ...], ...]
    reach: int
    parts: tuple[Part, ...]

    def of(self, seen: Tensor, x: Tensor) -> Tensor:
        """u β f_t at some samples, `(n, T, F)`.

        Args:
            seen: what is predicted, of the samples of windows that are seen, `(n, N, F)`, with N of `reach` at least.
            x: the known channels `(n, T, K)`; before the first sample they are as there.
        """
        found = list[Tensor]()
        for f, part in enumerate(self.parts):
            if not part.weights:
                found.append(torch.zeros_like(x[..., 0]))
                continue
            weights = torch.tensor(part.weights, dtype=x.dtype, device=x.device)
            unit = _unit(seen[:, -self.reach :, f], part.unit)
            found.append(unit[:, None] * (self.features(x, part.lags, is_bent=part.is_bent) @ weights))
        return torch.stack(found, -1)

    def of_windows(self, windows: WindowSet, columns: Sequence[int]) -> Tensor:
        """u β f_t over the horizon of windows `(n, H, F)`."""
        return self.of(windows.seen()[..., list(columns)], windows.around())[:, windows.context :]

    def size(self, part: Part) -> int:
        """How many features a part has."""
        pieces = len(self.deviation) + (sum(map(len, self.knots)) if part.is_bent else 0)
        return pieces * (1 + part.lags)

    def features(self, x: Tensor, lags: int, *, is_bent: bool) -> Tensor:
        """f of known channels `(n, T, K)`, `(n, T, p)`."""
        z = x / torch.tensor(self.deviation, dtype=x.dtype, device=x.device)
        pieces = [z]
        if is_bent:
            pieces += [(z[..., k : k + 1] - at).clamp_min(0) for k, knots in enumerate(self.knots) for at in knots]
        now = torch.cat(pieces, -1)
        size = now.shape[1]
        before = [
            torch.cat([now[:, :1].expand(-1, min(lag, size), -1), now[:, : size - lag]], 1)
            for lag in range(1, lags + 1)
        ]
        return torch.cat([now, *before], -1)


def left(effect: Effect | None, windows: WindowSet, columns: Sequence[int], count: int) -> Tensor:
    """What an effect leaves of the last samples of windows, of the channels that are predicted, `(n, count, F)`."""
    before = windows.before(count)[..., list(columns)]
    if effect is None:
        return before
    return before - effect.of(windows.seen()[..., list(columns)], windows.around(count))[:, :count]


def _unit(seen: Tensor, unit: Unit) -> Tensor:
    """u of samples `(n, N)`, `(n,)`."""
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
) -> Effect | None:
    """The effect that predicts the next sample of some series best, in the mean square; None: that is none.

    Args:
        values, truth: of each series; see `WindowSet`.
        ends: where what may be looked at ends.
        columns, known: the channels that are predicted, and those that are known ahead.
        season: m; 1: there is none.
        reach: samples that u is of, at most.
    """
    count = read_before(min(ends), 1, season)
    if count is None:
        return None
    windows = WindowSet.within(
        values, truth, [Ranges(0, end) for end in ends], context=count, horizon=1, most=MOST_TRIED, ahead=tuple(known)
    )
    stretch = windows.stretches(ends)
    if len(stretch.unique()) < 2:
        return None
    every = torch.cat([each[:end, list(known)] for each, end in zip(values, ends, strict=True)])
    spread = every.std(0, correction=0)
    spread = torch.where(spread > 1e-12 * every.abs().amax(0), spread, 1.0)
    knots = [_knots(column) for column in (every / spread).unbind(1)]
    effect = Effect(deviation=tuple(spread.tolist()), knots=tuple(knots), reach=min(reach, count), parts=())
    before, wanted = windows.seen()[..., list(columns)], windows.wanted()[:, 0]
    unit, x = mean_changes(windows, ends, columns)[:, 0], windows.around()
    steps = torch.stack(
        [
            factor.weights(count, 1, has_slope=structure.has_slope)[0]
            for factor, group in factored(candidate_structures(count, season), count + 1, season)
            for structure in group
        ]
    )
    parts = list[Part]()
    for f in range(len(columns)):
        rows = _Rows(before[..., f], wanted[:, f], unit[:, f], stretch, x, steps)
        parts.append(_part(rows, effect))
    if not any(part.weights for part in parts):
        return None
    return replace(effect, parts=tuple(parts))


def _knots(column: Tensor) -> tuple[float, ...]:
    if len(column.unique()) < LEAST_LEVELS:
        return ()
    return tuple(column.quantile(torch.tensor(QUARTILES, dtype=column.dtype)).unique().tolist())


@final
class _Rows(NamedTuple):
    """Samples of a channel that is predicted: those before `(r, n)`, the next one, q and stretch `(r,)`.

    Beside them what is known ahead, `(r, n + 1, K)`, and P of structures, `(S, n)`.
    """

    before: Tensor
    wanted: Tensor
    q: Tensor
    stretch: Tensor
    x: Tensor
    steps: Tensor

    def innovations(self, before: Tensor, after: Tensor) -> Tensor:
        """What no structure says, of p series of which samples `(r, n, p)` are before one `(r, p)`: `(r, S, p)`."""
        last = before[:, -1]
        fitted = torch.einsum("rnp,sn->rsp", before - last[:, None], self.steps)
        return (after - last)[:, None] - fitted

    def fits(self, effect: Effect, part: Part) -> "_Fits":
        """Of the features of a part."""
        found = list[_Fits]()
        for group in self.stretch.unique():
            own = (self.stretch == group).nonzero()[:, 0]
            found.append(_Fits.joined([self._some(some)._fits(effect, part) for some in own.split(CHUNK)], torch.sum))
        return _Fits.joined(found, lambda each, _: each)

    def _some(self, rows: Tensor) -> "_Rows":
        before, wanted, q, stretch, x, steps = self
        return _Rows(before[rows], wanted[rows], q[rows], stretch[rows], x[rows], steps)

    def _fits(self, effect: Effect, part: Part) -> "_Fits":
        y = self.innovations(self.before[..., None], self.wanted[:, None])[..., 0] / self.q[:, None]
        f = effect.features(self.x, part.lags, is_bent=part.is_bent)
        unit = _unit(self.before[:, -effect.reach :], part.unit) / self.q
        e = self.innovations(f[:, :-1], f[:, -1]) * unit[:, None, None]
        gram, cross = torch.einsum("rsp,rsq->spq", e, e), torch.einsum("rsp,rs->sp", e, y)
        return _Fits(gram, cross, y.square().sum(0))


@final
class _Choice(NamedTuple):
    """The mean square of left-out errors, and the structure and λ that have it."""

    error: float
    structure: int
    penalty: float


@final
class _Fits(NamedTuple):
    """Sums over the rows of stretches: of products of what structures leave of features `(G, S, p, p)`, of these with
    what they leave of what is predicted `(G, S, p)`, and of squares of that `(G, S)`."""

    gram: Tensor
    cross: Tensor
    square: Tensor

    @classmethod
    def joined(cls, parts: "Sequence[_Fits]", by: Callable[[Tensor, int], Tensor]) -> "_Fits":
        """Of several, stacked and then joined along that."""
        return cls(*(by(torch.stack(each), 0) for each in zip(*parts, strict=True)))

    def best(self) -> _Choice:
        """That with the smallest sum of squares of left-out errors."""
        gram, cross = self.gram.sum(0) - self.gram, self.cross.sum(0) - self.cross
        errors = list[Tensor]()
        for multiple in PENALTIES:
            beta = torch.linalg.solve(_penalised(gram, multiple), cross[..., None])[..., 0]
            own = (self.gram @ beta[..., None])[..., 0]
            errors.append((self.square + (beta * (own - 2 * self.cross)).sum(-1)).sum(0))
        every = torch.stack(errors)
        multiple, structure = divmod(int(every.argmin()), every.shape[1])
        return _Choice(float(every[multiple, structure]), structure, float(PENALTIES[multiple]))

    def solve(self, choice: _Choice) -> Tensor:
        """β `(p,)`."""
        gram, cross = self.gram.sum(0)[choice.structure], self.cross.sum(0)[choice.structure]
        return torch.linalg.solve(_penalised(gram, choice.penalty), cross[:, None])[:, 0]


def _penalised(gram: Tensor, multiple: Tensor | float) -> Tensor:
    size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    return gram + (multiple * size + (size == 0)) * torch.eye(gram.shape[-1], dtype=gram.dtype)


def _part(rows: _Rows, effect: Effect) -> Part:
    """That with the smallest left-out errors: of all structures with plain features, of its structure of all features,
    and with these of all structures again.

    What is not surely better than what is simpler is not taken.
    """
    plain, margin = Part(unit="one", lags=0, is_bent=False, weights=()), math.exp(-SURE / len(rows.q))
    fits = rows.fits(effect, plain)
    alone, first = float(fits.square.sum(0).min()), fits.best()
    best, least, own = plain, first.error, rows._replace(steps=rows.steps[first.structure, None])
    for lags, is_bent, unit in itertools.product(LAGS, (False, True), get_args(Unit)):
        part = Part(unit=unit, lags=lags, is_bent=is_bent, weights=())
        if effect.size(part) <= MOST_FEATURES and (not is_bent or any(effect.knots)):
            error = own.fits(effect, part).best().error
            if error < margin * least:
                best, least = part, error
    fits = rows.fits(effect, best)
    last = fits.best()
    return replace(best, weights=tuple(fits.solve(last).tolist())) if last.error < margin * alone else plain
