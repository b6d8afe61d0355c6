"""Windows in their own scale, as a model of forecasts sees and predicts them.

l and s of a window are its last value and its deviation, which is at least FLOOR times that of the channel in training.
For channels that are known ahead s is the deviation in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from fredholm.models.series.series_model import SeriesSampling
from fredholm.tasks.targets import NumberTarget

from .base import Base, read
from .effect import Effect
from .windows import WindowSet

Scale = Literal["window", "training"]
"""Whether s is the window's own, or the channel's deviation in training."""
FLOOR = 0.05


@final
class NetworkInputs(NamedTuple):
    """The inputs `(n, N, C)` or `(n, N + H, C)` of a model, the base forecast `(n, H, F)` and the scale,
    `(n, H, F)` or `(n, 1, F)`."""

    values: Tensor
    base: Tensor
    scale: Tensor


@final
@dataclass(frozen=True, kw_only=True)
class Frame:
    """The scaling of windows into inputs of a model.

    Args:
        columns, ahead: the predicted channels, and those that are known ahead.
        context, horizon: the numbers of samples seen and predicted.
        deviation: deviation of each channel in training.
        kind: the choice of s.
        base: the base forecast; None: l.
        effect: the effect of the known channels; None: none.
        shows_known: whether a model sees the known channels, over the horizon too, where all others keep their last
            value; otherwise they act through the effect alone.
    """

    columns: list[int]
    ahead: list[int]
    context: int
    horizon: int
    deviation: tuple[float, ...]
    kind: Scale
    base: Base | None
    effect: Effect | None
    shows_known: bool

    @property
    def sampling(self) -> SeriesSampling:
        """The sampling of the inputs of a model."""
        channels, samples = len(self.deviation), self.context
        if self.shows_known:
            samples += self.horizon if self.ahead else 0
        else:
            channels -= len(self.ahead)
        return SeriesSampling(channels=channels, spacing=1.0, extent=float(max(samples - 1, 1)))

    def of(self, windows: WindowSet) -> NetworkInputs:
        """The inputs of windows, with their base forecasts and scales."""
        seen = windows.seen()
        base = None if self.base is None else self.base.predictions(windows, self.columns, self.effect)
        return self._seen(seen, windows.around()[:, self.context :], base)

    def weights(self) -> Tensor | None:
        """The weights of the base forecast on the last `most` samples, `(F, H, most)`; None: there is no base."""
        return None if self.base is None else self.base.weights(self.base.most, self.horizon)

    def of_values(self, values: Tensor, known: Tensor, weights: Tensor | None) -> NetworkInputs:
        """The inputs from the last samples of series and the known channels over the horizon.

        Args:
            values: the last samples, as many as the model reads, `(n, T, C)`.
            known: the channels that are known ahead `(n, H, K)`.
            weights: see `weights`; they are computed before a graph is exported.
        """
        seen, base = values[:, -self.context :], None
        if weights is not None and self.base is not None:
            count = weights.shape[-1]
            before = _select(values[:, -count:], self.columns)
            if self.effect is not None:
                x = torch.cat([_select(values[:, -count:], self.ahead), known], 1)
                term, factor = self.effect.of(_select(seen, self.columns), x)
                before = (before - term[:, :count]) / factor[:, :count]
            base = read(weights.to(values.device), before, self.base.in_logarithms)
        return self._seen(seen, known, base)

    def _seen(self, seen: Tensor, known: Tensor, base: Tensor | None) -> NetworkInputs:
        deviation = torch.tensor(self.deviation, dtype=torch.float64, device=seen.device)
        caused, times = seen.new_zeros(()), seen.new_ones(())
        if self.effect is not None:
            x = torch.cat([_select(seen, self.ahead), known], 1)
            term, factor = self.effect.of(_select(seen, self.columns), x)
            caused, times = term[:, self.context :], factor[:, self.context :]
            own = (_select(seen, self.columns) - term[:, : self.context]) / factor[:, : self.context]
            seen = _with(seen, self.columns, own)
        last, scale = seen[:, -1:], deviation.expand(seen.shape[0], 1, -1)
        if self.kind == "window":
            own = torch.maximum(seen.std(1, correction=0, keepdim=True), FLOOR * scale)
            scale = _with(own, self.ahead, _select(scale, self.ahead))
        values = seen
        if self.ahead and self.shows_known:
            values = torch.cat([seen, _with(last.expand(-1, self.horizon, -1), self.ahead, known)], 1)
        values = _scaled(values, last, scale)
        if self.ahead and not self.shows_known:
            values = _select(values, [c for c in range(values.shape[-1]) if c not in self.ahead])
        base = _select(last, self.columns).expand(-1, self.horizon, -1) if base is None else base
        return NetworkInputs(values, base * times + caused, _select(scale, self.columns) * times)


def in_unit(target: NumberTarget, outputs: Tensor, base: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Every predicted level `(n, H, F, Q)`, and the point forecast `(n, H, F)`, in the unit of the data."""
    levels = target.levels_of(outputs.double()).unflatten(1, base.shape[1:])
    return levels * scale[..., None] + base[..., None], target.number_of(levels) * scale + base


def _select(values: Tensor, columns: Sequence[int]) -> Tensor:
    """Some columns; onnxruntime 1.32 crashes on the transpositions by which a list as an index is exported."""
    return values.index_select(-1, torch.tensor(columns, dtype=torch.int64, device=values.device))


def _with(values: Tensor, columns: Sequence[int], others: Tensor) -> Tensor:
    """Values `(n, N, C)` with some columns replaced."""
    if not columns:
        return values
    count = values.shape[2]
    places = [count + columns.index(c) if c in columns else c for c in range(count)]
    return _select(torch.cat([values, others], 2), places)


def _scaled(values: Tensor, last: Tensor, scale: Tensor) -> Tensor:
    """(u - l) / s, and 0 where that is below the float32 precision at 1.

    A filter bank divides a lag by its deviation, and would otherwise learn from the rounding of a lag that equals the
    last value, as in a series that repeats itself.
    """
    found = (values - last) / scale
    return torch.where(found.abs() > torch.finfo(torch.float32).eps, found, 0.0)
