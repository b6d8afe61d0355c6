"""The task of forecasting: predicts the next samples of series.

Legend
    N, H, m      context, horizon and season, in samples        y_t (F,)  the predicted channels at sample t
    l, s         of a window: its last value, and its deviation, at least FLOOR times that of the channel in training
    b_h          its base forecast: l, or that of a `Base` from up to 400 samples
                 (with known channels all three are computed after their `Effect` is removed, and b_h adds it back)
    z            (y_{t+h} - b_h) / s, h = 1 .. H, the prediction of a model for a window that ends with sample t

    q            the unit of errors (`errors.py`)

Source: NLinear (arXiv 2205.13504), for the subtraction of a window's last value; RevIN (Kim et al., 2022), for the
division by its deviation.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self, final, get_args

import torch
from torch import Tensor, nn

from fredholm._settings import refuse_idle
from fredholm.encoders.series import SeriesBatch
from fredholm.models.fitted.banks.filter_bank import FilterBank
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.lag_machine import LagMachine
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS
from fredholm.models.series.ckcnn import CKCNN
from fredholm.models.series.itnet_series import ITNetSeriesConfig, series_stack, with_series_stack
from fredholm.models.series.series_model import SeriesModelConfig
from fredholm.models.stack import Stack
from fredholm.tasks.baselines import Baseline, BaselineData, BaselineExamples, baselines_on
from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.terminal_text import counted
from fredholm.tasks.forecasts import Clock, LongSeries, WindowSet, open_long
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Effort, schedule_at_once
from fredholm.tasks.series.open import KINDS as SERIES_SUFFIXES
from fredholm.tasks.series.open import TEXT
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, Splits
from fredholm.tasks.targets import NumberTarget
from fredholm.tasks.targets.numbers import check_quantiles
from fredholm.tasks.task import Batch, Objective, Recommended, SplitTask, Task, Trained, own_facts, to_device
from fredholm.tasks.tensor_form import TensorForm
from fredholm.tasks.views import MOST_LINES, Line, Role, SeriesView, ShownExample, View, device_of

from .base import Base
from .calendar import Calendar
from .effect import Effect, Part
from .errors import add_errors, error_scale, forecast_metrics, seasonal_naive
from .form import forecast_form
from .gain import Contributions, ShrunkTarget, added, gain_ahead
from .history import History, Shape
from .known_ahead import check_ahead, check_known
from .long_series import observed_before
from .reading import Reading, best_reading, candidate_contexts
from .scaling import Frame, Scale, in_unit
from .structure import Structure

if TYPE_CHECKING:
    from torchmetrics import Metric

CHUNK = 256
"""Windows that are fitted or predicted at a time."""
ENDS: tuple[tuple[int, Role], ...] = ((0, "low"), (-1, "high"))
"""The quantiles that are shown, with their roles."""
FEW = 300
"""Largest number of windows for which the gain is chosen by forward validation rather than by cross-validation."""


@final
class Forecasting(SplitTask[WindowSet]):
    """Forecasts of the samples after windows of long series.

    Splits are by time: the last samples of every series are the test part, the samples before them the validation part,
    and no training window reaches into either. Each window is seen and predicted in its own scale. Metrics are in the
    unit of the data, means over series, samples and channels.

    Args:
        config: the settings.
        facts: facts of an earlier run; None: computed from the training part.
        history: the data, if they have been read; None: they are read.

    Raises:
        ValueError: the data cannot be opened, are unevenly spaced or too short, or do not match `facts`.
    """

    command: ClassVar[str] = "forecast"
    predicts = Kinds(suffixes=(*(kind for kind in SERIES_SUFFIXES if kind not in TEXT), ".npy"), has_parts=True)
    objective = Objective(metric="mase", maximise=False, needs="a series that is not one number all along")
    parts: ClassVar[tuple[type, ...]] = (
        LagMachine.Config,
        FilterBank.Config,
        CKCNN.Config,
        ITNetSeriesConfig,
        ITNet.Config,
        *KERNELS,
        Clock,
        NumberTarget,
        Base,
        Structure,
        Effect,
        Part,
        Calendar,
    )

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts of the training part; `deviation` of each channel is over all series, and 1 for a constant channel.

        `known` channels are known ahead, and `effect` is their effect and that of the calendar, None if there is none.
        `deviation` goes on with the columns of `Effect.calendar_terms`. `base` is the base forecast, None for the last
        value.
        """

        target: NumberTarget
        clock: Clock
        channels: tuple[str, ...]
        predicted: tuple[str, ...]
        known: tuple[str, ...]
        context: int
        horizon: int
        season: int
        deviation: tuple[float, ...]
        effect: Effect | None
        base: Base | None

        @property
        def columns(self) -> list[int]:
            """Indices of the predicted channels."""
            return [self.channels.index(name) for name in self.predicted]

        @property
        def ahead(self) -> dict[str, int]:
            """Indices of the channels that are known ahead, by name."""
            return {name: self.channels.index(name) for name in self.known}

        @property
        def groups(self) -> tuple[str, ...]:
            """The groups of the calendar that the effect reads."""
            return self.effect.calendar.groups if self.effect else ()

        @property
        def read_ahead(self) -> list[int]:
            """Indices of the known channels, and of `Effect.calendar_terms`, which come after all channels."""
            return [*self.ahead.values(), *range(len(self.channels), len(self.deviation))]

        @property
        def num_read(self) -> int:
            """Largest number of samples of a series that are read."""
            return max(self.context, self.base.most if self.base else 0)

        @property
        def min_context(self) -> int:
            """Smallest number of samples that a series must have."""
            return max(self.context, self.base.least if self.base else 0)

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """Settings of forecasts: the series, their windows and predicted channels, and the model.

        Args:
            data: a .csv, .parquet, .ts or .npz file of one or several long series, without labels.
            bin: duration over which samples are averaged, in seconds for dates; the mean has the time at which its bin
                begins, a multiple of the duration. None: samples are taken as they are, and must be evenly spaced.
            horizon: number of samples to predict. None: a season, or 10 without one; at most half of the test part.
            context: number of samples to read before those. None: three times the season or the horizon, whichever is
                longer, at most a third of the training part of the shortest series; for a model that is fitted in
                closed form up to nine times as many.
            channels: channels to predict; (): all but the known ones. Other channels are only read.
            known: channels whose values are known ahead, over the horizon, such as prices, promotions and holidays. To
                predict, the file holds them in further rows, whose cells of predicted channels are empty.
            calendar: whether hours, weekdays, ends of months and the season of the year are read from dates where they
                help with stretches that are left out (auto), or not at all (none).
            season: period in samples. None: for dates a day for steps shorter than a day, a week for days, a year for
                weeks and months; else by autocorrelation. 1: no season.
            quantiles: levels, such as 0.1 0.5 0.9, to predict in place of the mean.
            base: share, from 0 to 1, of a forecast by level, slope and season, from up to 400 samples, in the base
                forecast; the rest is the last value. None: 0, or for a model that is fitted in closed form the share
                with the smallest errors.
            scale: divisor of a window: its own standard deviation, or that of training. Its last value is subtracted.
            num_windows: largest number of windows of a split; of more, this number is taken at even distances.
            model: in closed form a linear function of a window and a kernel machine on its last samples, to which
                features of filters can be added (bank.num_groups, bank.num_thresholds), or a network that learns by
                steps.
        """

        data: str = ""
        bin: float | None = None
        horizon: int | None = None
        context: int | None = None
        channels: tuple[str, ...] = ()
        known: tuple[str, ...] = ()
        calendar: Literal["auto", "none"] = "auto"
        season: int | None = None
        quantiles: tuple[float, ...] = ()
        base: float | None = None
        scale: Scale = "window"
        num_windows: int = 1500
        model: SeriesModelConfig = field(default_factory=LagMachine.Config)

        kernel_sigma: ClassVar[float] = 10.0
        weight_settings: ClassVar[tuple[str, ...]] = (
            "bin",
            "horizon",
            "context",
            "channels",
            "known",
            "calendar",
            "season",
            "quantiles",
            "base",
            "scale",
            "model",
        )

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("csv",)

        def __post_init__(self) -> None:
            for name in ("horizon", "context", "season", "num_windows"):
                value = getattr(self, name)
                if value is not None and value < 1:
                    raise ValueError(f"{name} is {value}; expected at least 1")
            if self.bin is not None and not 0 < self.bin < math.inf:
                raise ValueError(f"bin is {self.bin}; expected a finite duration above 0")
            if self.scale not in get_args(Scale):
                raise ValueError(f"scale is {self.scale!r}; expected one of {get_args(Scale)}")
            if self.calendar not in ("auto", "none"):
                raise ValueError(f"calendar is {self.calendar!r}; expected auto or none")
            if self.base is not None and not 0 <= self.base <= 1:
                raise ValueError(f"base is {self.base}; expected a share from 0 to 1")
            check_quantiles(self.quantiles)
            self.model.check()
            refuse_idle(
                "", type(self), "a split by time", "leave it out", split_seed=self.split_seed, split_by=self.split_by
            )
            if not self.model.learns_by_steps:
                self._refuse_validation(self.model, "stretches of the training part")

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            task = Forecasting(replace(self, model=self.model.proxy))
            notes = task.notes()
            if self.model.learns_by_steps:
                return super()._recommended(effort, start)._replace(notes=notes)
            reading = task.best_reading()
            config = replace(self, context=reading.context, base=reading.share)
            return Recommended(config, schedule_at_once(task.num_train, effort), notes)

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`, and `series_stack`."""
            return series_stack(self.model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`; of an ITNet."""
            return replace(self, model=with_series_stack(self.model, stack))

        def build(self, facts: Task.Facts | None = None) -> "Forecasting":
            """The task; see `Forecasting`."""
            return Forecasting(self, own_facts(facts, Forecasting.Facts, "forecasts"))

    def __init__(self, config: Config, facts: Facts | None = None, *, history: History | None = None) -> None:
        self.config = config
        self._known, self._read_before = facts, history
        self._facts = facts or self._learn_facts()
        for name in ("context", "horizon", "season"):
            if getattr(config, name) not in (None, getattr(self._facts, name)):
                raise ValueError(
                    f"{name} is {getattr(config, name)}; the run was made with {getattr(self._facts, name)}"
                )
        share = self._facts.base.share if self._facts.base else 0.0
        if config.base not in (None, share):
            raise ValueError(f"base is {config.base:g}; the run was made with {share:g}")
        if config.calendar == "none" and self._facts.groups:
            raise ValueError(f"calendar is none; the run reads {', '.join(self._facts.groups)}: train it so")
        if self._facts.target.quantiles != config.quantiles:
            raise ValueError(f"quantiles are {config.quantiles}; the run was made with {self._facts.target.quantiles}")

    @property
    def facts(self) -> Facts:
        """The facts of the training part."""
        return self._facts

    @property
    def learns_by_steps(self) -> bool:
        """Whether the model is trained by gradient steps."""
        return self.config.model.learns_by_steps

    @cached_property
    def _history(self) -> History:
        if self._read_before is not None:
            return self._read_before
        config = self.config
        if not config.data:
            raise ValueError("no series are given; pass a .csv, .parquet, .ts or .npz file of them")
        with config.csv.reading(config.data):
            series = open_long(data_path(config.data), bin=config.bin)
        return History(
            series,
            config.data,
            predicted=config.channels,
            known=config.known,
            reads_calendar=config.calendar == "auto",
            test_fraction=config.test_fraction,
            valid_fraction=config.valid_fraction if config.model.learns_by_steps else 0.0,
        )

    @cached_property
    def _shape(self) -> Shape:
        """Context, horizon and season: from the facts, as given, or by rule."""
        if (known := self._known) is not None:
            return Shape(known.context, known.horizon, known.season)
        return self._history.shape(self.config.context, self.config.horizon, self.config.season)

    def notes(self) -> tuple[str, ...]:
        """What short series cost the others, see `History.note_on_shortest`, and what is read or not."""
        config, facts = self.config, self._facts
        short = self._history.note_on_shortest(config.context, config.horizon, facts.season)
        notes = [] if short is None else [short]
        if skipped := facts.clock.skipped:
            notes.append(f"no sample is on a {' or a '.join(skipped)}: such days are skipped, in forecasts too")
        if facts.groups:
            read = ", ".join(facts.groups)
            notes.append(f"read from the dates: {read} (--task.calendar none: nothing)")
        parts = facts.effect.parts if facts.effect else ()
        if not config.model.learns_by_steps and facts.known and not any(part.reads_known for part in parts):
            notes.append(f"{', '.join(facts.known)}: no help with stretches that are left out; not read")
        return tuple(notes)

    @cached_property
    def _base(self) -> Base | None:
        """The base forecast, from the facts or from the training part."""
        if self._known is not None:
            return self._known.base
        if not (share := self.config.base):
            return None
        found = self._structured()
        if found is None:
            raise ValueError(
                f"base={share:g} has no effect: {self.config.data} is too short for structures of its series; "
                "leave it out"
            )
        return replace(found, share=share)

    def _structured(self) -> Base | None:
        """The base forecast of the training part with a share of 1, see `learn_base`."""
        return self._history.base(self._shape.horizon, self._shape.season, self._effect)

    @cached_property
    def _effect(self) -> Effect | None:
        """The effect, from the facts or from the training part; its unit u is computed from the shortest context."""
        if self._known is not None:
            return self._known.effect
        context, horizon, season = self._shape
        return self._history.effect(season, min(context, 3 * max(season, horizon)))

    def _windows(self, split: Literal["train", "valid", "test"]) -> WindowSet:
        shape, base = self._shape, self._base
        return self._history.windows(
            split,
            context=shape.context,
            horizon=shape.horizon,
            least=base.least if base else 0,
            most=self.config.num_windows,
            effect=self._effect,
        )

    def _open(self) -> Splits[WindowSet]:
        config, shape = self.config, self._shape
        train, test = self._windows("train"), self._windows("test")
        valid = self._windows("valid") if config.model.learns_by_steps and config.valid_fraction else None
        for name, part, share in (("test", test, config.test_fraction), ("validation", valid, config.valid_fraction)):
            if part is not None and not len(part) and share:
                raise ValueError(
                    f"{config.data}: no {name} window has horizon={shape.horizon} observed samples; make the horizon "
                    f"shorter, or {'test' if name == 'test' else 'valid'}_fraction larger"
                )
        return Splits(train, test if len(test) else None, valid)

    def _learn_facts(self) -> Facts:
        config, history, shape = self.config, self._history, self._shape
        deviation, train = history.deviation(self._effect), self._windows("train")
        if not len(train):
            raise ValueError(
                f"{config.data}: no training window has horizon={shape.horizon} observed samples; make the horizon "
                "shorter, or fill the gaps"
            )
        frame = Frame(
            columns=history.columns,
            ahead=list(train.ahead),
            context=shape.context,
            horizon=shape.horizon,
            deviation=deviation,
            kind=config.scale,
            base=self._base,
            effect=self._effect,
            shows_known=self.learns_by_steps,
        )
        seen = frame.of(train)
        answers = ((train.wanted() - seen.base) / seen.scale).flatten(1)
        spread = answers.std(0, correction=0)  # 0 where all windows continue alike, such as those of a line
        target = NumberTarget(
            names=tuple(f"{name} + {h + 1}" for h in range(shape.horizon) for name in history.predicted),
            mean=tuple(answers.mean(0).tolist()),
            deviation=tuple(torch.where(spread > 1e-9, spread, 1.0).tolist()),
            quantiles=config.quantiles,
        )
        return Forecasting.Facts(
            target=target,
            clock=history.clock,
            channels=history.channels,
            predicted=history.predicted,
            known=history.known,
            context=shape.context,
            horizon=shape.horizon,
            season=shape.season,
            deviation=deviation,
            effect=self._effect,
            base=self._base,
        )

    def _check(self, splits: Splits[WindowSet]) -> None:
        history, facts = self._history, self._facts
        for what, one, other, is_same in (
            ("channels", history.channels, facts.channels, history.channels == facts.channels),
            ("channels that are predicted", history.predicted, facts.predicted, history.predicted == facts.predicted),
            ("channels that are known", history.known, facts.known, history.known == facts.known),
            ("steps", history.clock.in_words, facts.clock.in_words, history.clock.may_be(facts.clock)),
        ):
            if not is_same:
                raise ValueError(f"the {what} of {self.config.data} are {one}; the run was made with {other}")

    def model(self) -> nn.Module:
        """The model, with the outputs of the target."""
        return self.config.model.build(self._frame.sampling, self._facts.target.num_outputs)

    def best_reading(self) -> Reading:
        """The context and the share of the base with the smallest cross-validation error; given ones are kept.

        See `fredholm.tasks.forecasts.reading`. Errors are over the samples that the longest context can predict.
        """
        config, facts = self.config, self._facts
        contexts = (facts.context,)
        if config.context is None:
            ends = [end for end, _ in self._history.ends]
            contexts = candidate_contexts(self.splits.train, ends, num_channels=len(facts.channels))
        given, base = config.base or 0.0, facts.base
        if config.base is None:
            base = self._structured()
        start = max(contexts[-1], base.least if base else 0)

        def error(reading: Reading) -> float:
            tried = replace(config, context=reading.context, base=reading.share)
            return Forecasting(tried, history=self._history)._left_out_error(start)

        is_open = config.base is None and base is not None
        return best_reading(contexts, given, error, tries_shares=is_open)

    @torch.no_grad()
    def _left_out_error(self, start: int) -> float:
        """The cross-validation error: mean absolute, in units of q, over samples from `start` on."""
        with torch.random.fork_rng(devices=[]):  # random draws of a model must not affect the run
            model = self.model()
            assert isinstance(model, FittedModel)
            outputs = self._fit(model, torch.device("cpu"))
        train = self.splits.train
        later = (train.places[:, 1] >= start).nonzero()[:, 0]
        batch, q = self._batch(train, later), self._error_scales[train.places[later, 0]]
        error = (self._in_unit(outputs[later], batch)[1] - batch["answers"]).abs() / q
        return float(error[(q > 0).expand_as(error)].mean())

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a model that is computed from all training windows."""
        if isinstance(model, FittedModel):
            self._fit(model, device)

    def _fit(self, model: FittedModel[SeriesBatch], device: torch.device) -> Tensor:
        """Fits a model to all training windows; returns their cross-validation outputs."""
        train = self.splits.train
        batches: list[tuple[SeriesBatch, Tensor]] = []
        for indices in torch.arange(len(train)).split(CHUNK):
            batch = self._batch(train, indices)
            batches.append((SeriesBatch(batch["values"].to(device)), batch["targets"].to(device)))
        ends = [end for end, _ in self._history.ends]
        stretch = train.stretches(ends)

        def predict(before: Tensor, own: Tensor) -> Contributions:
            return self._predicted_after(before, own, _groups(stretch[before], device), device)

        gain = gain_ahead(train, ends, predict) if len(train) <= FEW else None
        return model.fit(batches, ShrunkTarget(self._facts.target, gain), groups=_groups(stretch, device))

    def _predicted_after(
        self, before: Tensor, own: Tensor, groups: Tensor | None, device: torch.device
    ) -> Contributions:
        """The contributions to training windows `own` by a fit to those of `before`, which lie before them."""
        train, target = self.splits.train, self._facts.target
        learnt, asked = self._batch(train, before), self._batch(train, own)
        with torch.random.fork_rng(devices=[]):  # random draws of a model must not affect the run
            model = self.model().to(device)
            assert isinstance(model, FittedModel)
            batch = SeriesBatch(learnt["values"].to(device)), learnt["targets"].to(device)
            model.fit([batch], ShrunkTarget(target, 1.0), groups=groups)
        outputs = torch.cat([model(SeriesBatch(part.to(device))) for part in asked["values"].split(CHUNK)])
        predicted = target.predictions(outputs.double()).cpu()
        return Contributions(predicted, added(target, asked["targets"].double()))

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`values` (B, N, C) and `targets` (B, H F), both scaled; nothing is random."""
        batch = self._batch(self.splits.train, indices)
        return {name: batch[name] for name in ("values", "targets")}

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """A batch of a held-out split, with the tensors that the metrics need.

        `scale` and `error_scale` (B, 1, F), `base`, `naive` and `answers` (B, H, F), in the unit of the data.
        """
        part, facts = self.held_out(split), self._facts
        some = part.select(indices)
        scales = self._error_scales[some.places[:, 0]]
        naive = seasonal_naive(some, facts.columns, facts.season)
        return {**self._batch(part, indices), "error_scale": scales, "naive": naive}

    @cached_property
    def _error_scales(self) -> Tensor:
        """q of each series and predicted channel, float64 `(series, 1, F)`; NaN for a constant channel."""
        found, columns = list[Tensor](), self._facts.columns
        for each, (end, _) in zip(self._history.series, self._history.ends, strict=True):
            known = each.values[:end]
            lowest, highest = known.nan_to_num(torch.inf).amin(0), known.nan_to_num(-torch.inf).amax(0)
            found.append(torch.where(highest > lowest, 1.0, torch.nan)[None, columns] * self.error_scale(known))
        return torch.stack(found)

    def error_scale(self, values: Tensor) -> Tensor:
        """q of the predicted channels, float64 `(1, F)`, from the known samples of a series, `(T, C)`."""
        facts = self._facts
        spare = torch.tensor([facts.deviation[c] for c in facts.columns], dtype=torch.float64)
        return error_scale(values[:, facts.columns], facts.season, spare)[None]

    @property
    def _frame(self) -> Frame:
        facts = self._facts
        return Frame(
            columns=facts.columns,
            ahead=facts.read_ahead,
            context=facts.context,
            horizon=facts.horizon,
            deviation=facts.deviation,
            kind=self.config.scale,
            base=facts.base,
            effect=facts.effect,
            shows_known=self.learns_by_steps,
        )

    def _batch(self, windows: WindowSet, indices: Tensor) -> Batch:
        some = windows.select(indices)
        seen, wanted = self._frame.of(some), some.wanted()
        return {
            "values": seen.values.float(),
            "targets": self._facts.target.targets(((wanted - seen.base) / seen.scale).flatten(1)),
            "answers": wanted,
            "base": seen.base,
            "scale": seen.scale,
        }

    @torch.no_grad()
    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: for each channel the samples seen, the true next ones, and the predicted ones."""
        facts, window = self._facts, self.held_out(split).select(torch.tensor([index]))
        before = torch.arange(1 - facts.context, 1, dtype=torch.float64)
        after = torch.arange(1, facts.horizon + 1, dtype=torch.float64)
        seen, truth = window.seen()[0], window.wanted()[0]
        levels = number = None
        if model is not None:
            batch = to_device(self._batch(window, torch.tensor([0])), device_of(model))
            levels, number = (each[0].cpu() for each in self._in_unit(self._outputs(model, batch), batch))
        names = [f"quantile {level:g}" for level in facts.target.quantiles] if len(facts.target.quantiles) > 1 else []
        views = list[View]()
        for f, (name, column) in enumerate(zip(facts.predicted, facts.columns, strict=True)):
            lines = [Line("seen", "seen", before, seen[:, column]), Line("truth", "truth", after, truth[:, f])]
            if levels is not None and number is not None:
                lines.append(Line("answer", "answer", after, number[:, f]))
                lines += [Line(names[k], role, after, levels[:, f, k]) for k, role in ENDS if names]
            views.append(SeriesView(title=name, lines=tuple(lines)))
        series, at = window.places[0].tolist()
        return ShownExample(
            name=f"{self._history.series[series].name}, from sample {at}", views=tuple(views[:MOST_LINES])
        )

    def num_targets(self, batch: Batch) -> int:
        """The number of windows."""
        return len(batch["targets"])

    def _outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(SeriesBatch(batch["values"])).float()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of the target on scaled numbers, summed over windows."""
        return self._facts.target.losses(self._outputs(model, batch), batch["targets"]).sum()

    def metrics(self) -> "dict[str, Metric]":
        """See `forecast_metrics`."""
        return forecast_metrics(self._facts.target)

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `held_out_batch` to the metrics."""
        self._add(self._outputs(model, batch), batch, metrics)

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """See `Task.baselines`: on the samples that a network sees, in the same scale."""
        return baselines_on(
            BaselineData("number", self._facts.target.num_outputs, self._baseline_examples, self._baseline_value)
        )

    def _baseline_examples(self, split: Split) -> BaselineExamples:
        part = self._part_of(split)
        batch = self._batch(part, torch.arange(len(part)))
        return BaselineExamples(batch["values"].flatten(1).numpy(), batch["targets"])

    def _baseline_value(self, outputs: Tensor, split: HeldOut) -> float:
        metrics = self.metrics()
        self._add(outputs, self.held_out_batch(split, torch.arange(len(outputs))), metrics)
        return float(metrics[self.objective.metric].compute())

    def _add(self, outputs: Tensor, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds outputs `(B, num_outputs)` to the metrics."""
        target = self._facts.target
        metrics["loss"].update(target.losses(outputs, batch["targets"]))
        add_errors(metrics, target, *self._in_unit(outputs, batch), batch)

    def _in_unit(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `in_unit`."""
        return in_unit(self._facts.target, outputs, batch["base"], batch["scale"])

    def is_defined(self, split: HeldOut) -> bool:
        """See `Task.is_defined`."""
        return bool((self._error_scales > 0).any())

    @torch.no_grad()
    def forecasts(self, model: nn.Module, series: Sequence[LongSeries], device: torch.device) -> tuple[Tensor, Tensor]:
        """Forecasts after the end of series, in the unit of the data.

        Args:
            model: model of this task, on `device`, in evaluation mode.
            series: series with the channels of training, each at least as long as the context. With known channels the
                samples after the last observed one are predicted, and must have known values (`check`).
            device: the device of the model.

        Returns:
            Every predicted level, float64 `(n, H, F, Q)`, ascending, and the point forecast `(n, H, F)`, both on the
            CPU. Q is 1 if the mean is predicted.
        """
        facts, parts = self._facts, list[tuple[Tensor, Tensor]]()
        values = observed_before(series)
        if (effect := facts.effect) is not None and facts.groups:
            clock, more = facts.clock, facts.horizon
            values = [effect.with_calendar(v, s.start, clock, more) for v, s in zip(values, series, strict=True)]
        windows = WindowSet(
            values=tuple(values),
            truth=tuple(each.values[:, facts.columns] for each in series),
            context=facts.context,
            horizon=facts.horizon,
            places=torch.tensor([[i, self.end_of(each)] for i, each in enumerate(series)]),
            ahead=tuple(facts.read_ahead),
        )
        for indices in torch.arange(len(series)).split(CHUNK):
            batch = to_device(self._batch(windows, indices), device)
            parts.append(self._in_unit(self._outputs(model, batch), batch))
        levels, numbers = zip(*parts, strict=True)
        return torch.cat(levels).cpu(), torch.cat(numbers).cpu()

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: from the last samples of a series to those that follow, in the unit of the data."""
        facts, bin = self._facts, self.config.bin
        return forecast_form(model, self._frame, facts.target, facts.channels, facts.num_read, facts.clock, bin)

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each sample after the end of a series: `file`, `series`, `time`, and each predicted channel."""
        facts, rows = self._facts, list[Prediction]()
        for file, found in inputs.read(lambda file: self._read(file, inputs), self.config.csv):
            for each, levels, number in zip(found, *self.forecasts(model, found, device), strict=True):
                end = self.end_of(each)
                for h in range(facts.horizon):
                    cells: dict[str, str | float] = {"series": each.name}
                    cells["time"] = facts.clock.text(facts.clock.after(each.start, end + h, each.day))
                    for f, name in enumerate(facts.predicted):
                        cells[name] = float(number[h, f])
                        for tau, level in zip(facts.target.quantiles, levels[h, f].tolist(), strict=False):
                            cells[f"{name} at {tau:g}"] = level
                    rows.append(Prediction(file, cells))
        return rows

    def _read(self, file: Path, inputs: Inputs) -> list[LongSeries]:
        series = self.read(file, inputs.part)
        for each in series:
            self.check(each, str(file))
        return series

    def read(self, file: Path, part: Split | None = None) -> list[LongSeries]:
        """The series of a file, with the channels and on the clock of the run; see `open_long`."""
        facts, config = self._facts, self.config
        series, _, _ = open_long(file, clock=facts.clock, channels=facts.channels, part=part, bin=config.bin)
        return series

    def end_of(self, series: LongSeries) -> int:
        """Number of samples before the predicted ones: all, or with known channels those up to the last observed."""
        return series.last_observed(self._facts.columns) if self._facts.known else len(series)

    def check(self, series: LongSeries, where: str) -> None:
        """Raises ValueError if a series is too short, or known values are missing.

        Warns if a channel is empty in the samples read, or if known values go beyond the horizon.

        Args:
            series: series with the channels of training.
            where: name of its file, for messages.
        """
        facts, end = self._facts, self.end_of(series)
        context, least = facts.context, facts.min_context
        if end < least:
            has = f"{where}: {series.name} has {counted(end, 'sample')}"
            raise ValueError(f"{has}; the model reads the last {least} of a series: give as many, or more")
        if facts.known:
            check_ahead(
                series, end, facts.predicted, facts.ahead, horizon=facts.horizon, clock=facts.clock, where=where
            )
            read = ~series.values[:end, facts.columns].isnan().all(1)
            read[: max(0, end - facts.num_read)] = False
            check_known(series, read, facts.ahead, facts.clock, where)
        if bool(series.values[max(0, end - context) : end].isnan().all(0).any()):
            warnings.warn(f"{where}: a channel of {series.name} has no value among those that are read", stacklevel=2)


def _groups(stretch: Tensor, device: torch.device) -> Tensor | None:
    """The stretches of windows as groups that are left out together; None: there is one."""
    return stretch.to(device) if len(stretch.unique()) > 1 else None
