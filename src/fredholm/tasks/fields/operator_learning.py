"""Operator learning: prediction of functions from functions."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, final, get_args

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, filled, refuse_idle
from fredholm.domains import UnitGrid
from fredholm.encoders.function import Function
from fredholm.models.blended import BlendedOperator, blend
from fredholm.models.field_model import FieldModel
from fredholm.models.fields.function_regression import FunctionRegression
from fredholm.models.fields.neural_operator import NeuralOperator
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS, SpectralConfig
from fredholm.models.stack import Stack, stack_of
from fredholm.tasks.baselines import Baseline, BaselineData, BaselineExamples, baselines_on
from fredholm.tasks.blending import SHARES, check_has_valid, choose_share
from fredholm.tasks.fields import FieldSet, Problem, Samples, open_functions, read_functions
from fredholm.tasks.files.npz_arrays import ARRAY_SUFFIXES
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.outputs import PICTURES
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Effort, Preset, schedule_for, width_for
from fredholm.tasks.splits.split_files import SPLITS, Split
from fredholm.tasks.splits.split_marks import SplitMarks
from fredholm.tasks.splits.splits import HeldOut, Splits
from fredholm.tasks.splits.splitting import DividedTask, Parts
from fredholm.tasks.task import (
    Batch,
    EntryNames,
    Measure,
    Objective,
    Recommended,
    SplitTask,
    Task,
    Trained,
    head_entry_names,
    input_entry_names,
    own_facts,
)
from fredholm.tasks.tensor_form import Sizes, TensorForm, first_of_each
from fredholm.tasks.views import ShownExample, device_of, function_view

from .answer import (
    Answer,
    Compared,
    Evaluated,
    answered,
    draw_comparison,
    places,
    refuse_no_number,
    shown_function,
)
from .batches import Scale, Symmetry, draw_each, draw_samples, draw_times, moments, moved
from .field_set import refuse_doubles
from .open import FIELD_TABLES, is_function_folder
from .preparation import Preparation
from .regression import fit_regression, max_functions
from .relative_error import Loss, relative_errors
from .tensor_forms import form_of_samples, form_on_grid
from .unit_box import UnitBox, grid_of, have_own_regions, seem_to_repeat

if TYPE_CHECKING:
    from torchmetrics import Metric

WAVES: dict[Preset, tuple[int, int, int]] = {"small": (16, 6, 4), "base": (24, 8, 5)}
"""Highest frequencies of spectral kernels on a line, in the plane, and in space."""
POSITIONS = {"position_frequencies": 4, "position_sigma": 0.5}
"""Few slow features of the position: more of them outweigh the values in the signal."""
PERIOD = 1.25
"""Period of spectral kernels where functions do not repeat, in sides of the unit box, whose ends are then apart."""
LEAST_VALID = 8
"""Smallest number of validation functions that may end a run early."""
DRAWN = 8
"""Largest number of functions in the picture of a comparison."""


@final
class OperatorLearning(DividedTask[FieldSet]):
    """A network from sampled functions to functions, trained by the relative error of its predictions (FNO, section 5).

    The network maps functions to functions: inputs and evaluation points may differ from those of training. Values are
    standardised by the training split's mean and deviation per channel. Positions are moved and scaled, all axes alike,
    so that those of the training split fill the unit box, unless they are within it and fill half of a side.

    For trajectories the operator is one step in time. It is trained from every state to the next ones, and measured
    from the first state to the last, each step from the previous prediction. Its network predicts the change.

    Args:
        config: settings of the task.
        facts: facts of an earlier run; None learns them from the training split.

    Raises:
        ValueError: the data cannot be opened, have no target functions, have a function with two samples at one point,
            or do not match `facts`; or a setting has no effect on them.
    """

    command: ClassVar[str] = "operator"
    predicts = Kinds(suffixes=(*FIELD_TABLES, *ARRAY_SUFFIXES), has_parts=True, is_one=is_function_folder)
    answers_at: ClassVar[bool] = True
    writes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "save": (".npz",),
        "picture": PICTURES,
        "comparison": PICTURES,
    }
    parts: ClassVar[tuple[type, ...]] = (NeuralOperator.Config, ITNet.Config, *KERNELS)
    objective = Objective(metric="relative_l2", maximise=False)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts of the training split; means and deviations are over existing samples, one per channel."""

        coordinates: tuple[str, ...]
        channels: tuple[str, ...]
        target_channels: tuple[str, ...]
        num_steps: int
        mean: tuple[float, ...]
        deviation: tuple[float, ...]
        target_mean: tuple[float, ...]
        target_deviation: tuple[float, ...]
        origin: tuple[float, ...]
        """Origin of the unit box."""
        extent: float
        """Side length of the unit box."""
        grid: UnitGrid | None = None
        """Grid of all functions, or one for functions that each have their own points.

        None: they share points that form no grid.
        """
        shares_places: bool
        """Whether all input functions have samples at all of the same points."""
        given_at: int | None
        """Number of shared input points; None: each function has its own."""
        target_at: UnitGrid | int | None
        """Shared target points: their grid, or the number of points without a grid; None: each function has its own."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """Settings of pairs of functions, their input samples, and the model.

        Args:
            data: an .npz file or a folder of these, a .csv table, or a folder with given.csv and target.csv; see
                `open_functions`.
            coordinates: columns of tables that are coordinates; empty: the existing ones of x, y and z.
            targets: target columns of a single table.
            problem: name of a data set in neuralop_pde.npz.
            resolution: resolution of its test set; a trained model may be measured at another one.
            is_periodic: whether functions repeat beyond the unit box, along all coordinates.
            symmetries: motions of the unit box under which the operator is equivariant, for scalar values: `mirror`
                along any axis, `exchange` of axes. Each training batch is moved by one of them at random.
            shown: share of the input samples of each function, drawn anew in every training batch and once in others.
            fill_in: whether functions that are given on no grid are interpolated to one (`encoders.interpolate`): that
                of the training split, or, where each function has its own points, one with twice as many points. Else
                the integrals are over the samples as they are. Where all share points that form no grid, False is
                refused.
            min_shown: in training the share is drawn between this and `shown`, for all functions of a batch at once;
                None: it is `shown`.
            target_samples: number of target samples of each function in the training loss, drawn likewise; None: all.
                Refused with loss='h1' and for trajectories.
            loss: relative error of values, or of values and first derivatives together, by differences on a grid.
            unroll: for trajectories, the steps that training rolls out from a true state; refused where there is one
                step.
            position_frequencies: Fourier frequencies of the position features of the signal; 0: none. None: 16, and 0
                for periodic functions, whose operators mostly are translation-invariant.
            position_sigma: standard deviation of these frequencies, in cycles per side of the unit box; refused where
                there are none, and for periodic functions, whose frequencies are integers.
            regression: largest number of training functions of a kernel regression beside the network; its share in the
                prediction is chosen on the validation split, without which it is refused, as where functions have their
                own target points (`models.BlendedOperator`). None: no regression, unless a run chooses one; 0: none.
            model: network of functions, which predicts at every point.
            answer: evaluation points of `predict`: those of `grid`, else the target points of the file, or its samples.
        """

        data: str = ""
        coordinates: tuple[str, ...] = ()
        targets: tuple[str, ...] = ()
        problem: Problem = "darcy"
        resolution: int = 16
        is_periodic: bool = False
        symmetries: tuple[Symmetry, ...] = ()
        shown: float = 1.0
        fill_in: bool = True
        min_shown: float | None = None
        target_samples: int | None = None
        loss: Loss = "l2"
        unroll: int = 1
        position_frequencies: int | None = None
        position_sigma: float = 1.0
        regression: int | None = None
        model: FieldModel.Config = dataclasses.field(default_factory=NeuralOperator.Config)
        answer: Answer = dataclasses.field(default_factory=Answer)

        weight_settings: ClassVar[tuple[str, ...]] = (
            *("is_periodic", "fill_in", "position_frequencies", "position_sigma"),
            *("regression", "model"),
        )

        @property
        def unmeasured_settings(self) -> tuple[str, ...]:
            """See `Task.Config.unmeasured_settings`."""
            return ("symmetries", "min_shown", "target_samples", "unroll", "answer")

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("answer", "csv")

        def __post_init__(self) -> None:
            if self.loss not in get_args(Loss):
                raise ValueError(f"loss is {self.loss!r}; expected one of {', '.join(get_args(Loss))}")
            if unknown := [name for name in self.symmetries if name not in get_args(Symmetry)]:
                raise ValueError(f"symmetries has {unknown[0]!r}; expected some of {', '.join(get_args(Symmetry))}")
            for name in ("shown", "min_shown"):
                share = getattr(self, name)
                if share is not None and not 0 < share <= 1:
                    raise ValueError(f"{name} is {share}; expected a share above 0 and at most 1")
            if self.min_shown is not None and self.min_shown >= self.shown:
                raise ValueError(f"min_shown is {self.min_shown} and shown {self.shown}; expected less, or leave it")
            for name, value, least in (("position_frequencies", self.num_frequencies, 0), ("unroll", self.unroll, 1)):
                check_count("operator", name, value, least)
            if self.regression:
                check_count("operator", "regression", self.regression, least=2)
            if self.target_samples is not None:
                check_count("operator", "target_samples", self.target_samples)
                if self.loss == "h1":
                    raise ValueError(
                        "target_samples draws scattered samples, and loss='h1' takes differences; leave one out"
                    )
            self.model.answering_everywhere("each point")
            none, given = None, {"position_sigma": self.position_sigma}
            if self.is_periodic:
                none = "is_periodic=True, which fixes the frequencies"
            elif self.num_frequencies == 0:
                none = "position_frequencies=0"
            if none:
                refuse_idle("", type(self), none, "leave it out", **given)

        @property
        def num_frequencies(self) -> int:
            """Number of position frequencies."""
            default = 0 if self.is_periodic else 16
            return default if self.position_frequencies is None else self.position_frequencies

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`; chooses periodicity, and the size of the network by the grid.

            Where functions do not repeat, the kernels' period is longer than the box, and few slow features of the
            position are added to the values. Few validation functions do not end a run early.
            """
            default, task = OperatorLearning.Config(), self.build()
            config, axes = self, len(task.facts.coordinates)
            if self.position_sigma == default.position_sigma and task.repeats:
                config = filled(self, [default], is_periodic=True)
            if self.fill_in and not self.regression and have_own_regions(task.splits.train.given):
                config = dataclasses.replace(config, fill_in=False)
                task = dataclasses.replace(self, fill_in=False).build(task.facts)
            config = filled(config, [default], regression=task.max_regression_functions)
            if not config.is_periodic and config.num_frequencies:
                config = filled(config, [default], **POSITIONS)
            width = width_for(task.num_train, effort, least=64 if axes == 1 else 32, up_to=1000)
            model = config.model.resized(width, 4, default.model)
            if isinstance(model, NeuralOperator.Config) and isinstance(model.kernel, SpectralConfig):
                most = WAVES[effort.preset][min(axes, 3) - 1]
                period = {} if config.is_periodic else {"period": PERIOD}
                waves = filled(model.kernel, [SpectralConfig()], num_waves_per_axis=most, **period)
                model = dataclasses.replace(model, kernel=waves)
            schedule = schedule_for(
                task.num_train,
                effort,
                has_valid=task.num_held_out("valid") >= LEAST_VALID,
                learning_rate=4e-3,
                weight_decay=1e-4,
                length=0.5,
            )
            return Recommended(dataclasses.replace(config, model=model), schedule)

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`; the model."""
            return stack_of(self.model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`; without a regression, which would be equal beside all kernels."""
            return dataclasses.replace(self, model=stack, regression=0)

        def build(self, facts: Task.Facts | None = None) -> "OperatorLearning":
            """Builds the task; see `OperatorLearning`."""
            return OperatorLearning(self, own_facts(facts, OperatorLearning.Facts, "operator learning"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._learn_facts()
        if self._facts.num_steps == 1:
            single = "data without trajectories, which have one step"
            refuse_idle("", type(config), single, "leave it out", unroll=config.unroll)
        elif config.target_samples is not None:
            raise ValueError("target_samples draws samples, and a trajectory goes on from all of them; leave it out")
        elif config.unroll > self._facts.num_steps:
            raise ValueError(f"unroll is {config.unroll}; the trajectories have {self._facts.num_steps} steps")
        if self._facts.grid is None:
            scattered = "functions that share places which are no grid, and are taken there"
            refuse_idle("", type(config), scattered, "leave it out", fill_in=config.fill_in)
        self.preparation = Preparation(
            box=UnitBox(self._facts.origin, self._facts.extent),
            scale=Scale(self._facts.mean, self._facts.deviation),
            target_scale=Scale(self._facts.target_mean, self._facts.target_deviation),
            num_steps=self._facts.num_steps,
            grid=self._facts.grid if config.fill_in else None,
            is_periodic=config.is_periodic,
        )

    @property
    def facts(self) -> Facts:
        """Facts of the training split."""
        return self._facts

    @property
    def repeats(self) -> bool:
        """Whether the training functions seem to repeat beyond the unit box; see `seem_to_repeat`."""
        return seem_to_repeat(self.splits.train, self.preparation.box)

    @cached_property
    def _functions(self) -> Splits[FieldSet] | FieldSet:
        """All functions, with their own split where they have one."""
        config = self.config
        if not config.data:
            raise ValueError("no functions are given; pass an .npz file, a .csv table, or a folder with two tables")
        with config.csv.reading(config.data):
            return open_functions(
                config.data,
                coordinates=config.coordinates,
                targets=config.targets,
                problem=config.problem,
                resolution=config.resolution,
            )

    @cached_property
    def _split(self) -> Parts:
        found = self._functions
        if isinstance(found, FieldSet):
            return self._divided(found.keys, None)
        names = [f"{SPLITS[number]}: {name}" for number, own in self._given for name in own.names]
        marks = SplitMarks.joined({SPLITS[number]: (len(own), own.marks) for number, own in self._given})
        return self._divided(marks.keys(names, [0] * len(names)), marks.given)

    @property
    def _given(self) -> list[tuple[int, FieldSet]]:
        """Parts of the data's own split, one after the other, each with its number in `SPLITS`."""
        found = self._functions
        assert isinstance(found, Splits)
        parts = ((number, getattr(found, split)) for number, split in enumerate(SPLITS))
        return [(number, part) for number, part in parts if part is not None]

    def _part(self, numbers: Tensor) -> FieldSet:
        whole = self._functions
        parts = [part for _, part in self._given] if isinstance(whole, Splits) else [whole]
        while int(numbers[0]) >= len(parts[0]):
            numbers = numbers - len(parts.pop(0))
        part = parts[0].select(numbers)
        for samples, what in ((part.given, "samples"), (part.targets, "target samples")):
            refuse_doubles(samples, part.names, what)
        return part

    def _learn_facts(self) -> Facts:
        """Learns the facts of the training split; a constant channel has deviation 1, so that it becomes 0.

        Raises:
            ValueError: periodic functions have samples outside the unit box.
        """
        train, is_periodic = self._opened.train, self.config.is_periodic

        def states() -> Iterator[Samples]:
            for part in train.parts():
                yield part.given if train.num_steps == 1 else part.states()

        given = moments(states)
        targets = given if train.num_steps > 1 else moments(lambda: (part.targets for part in train.parts()))
        box = UnitBox.of(train, is_periodic=is_periodic)
        return OperatorLearning.Facts(
            coordinates=train.coordinates,
            channels=train.channels,
            target_channels=train.target_channels,
            num_steps=train.num_steps,
            origin=box.origin,
            extent=box.extent,
            grid=grid_of(train.given, box, is_periodic=is_periodic),
            shares_places=train.given.share_places and not train.given.has_gaps,
            given_at=train.given.pos.shape[1] if train.given.share_places else None,
            target_at=_shared_places(train.targets, box, is_periodic=is_periodic),
            mean=given.mean,
            deviation=given.deviation,
            target_mean=targets.mean,
            target_deviation=targets.deviation,
        )

    def _check(self, splits: Splits[FieldSet]) -> None:
        splits.check_facts(self._facts, self.config.data)
        if splits.train.num_steps != self._facts.num_steps:
            raise ValueError(
                f"{self.config.data} has {splits.train.num_steps} steps; the run was made with {self._facts.num_steps}"
            )

    @property
    def train_shards(self) -> Tensor | None:
        """Sizes of shards of functions in mapped arrays."""
        return self.splits.train.shards

    def model(self) -> nn.Module:
        """Returns the network on an encoder of functions, with one output per target channel."""
        config, facts = self.config, self._facts
        functions = Function.Config(
            num_channels=len(facts.channels),
            pos_dim=len(facts.coordinates),
            is_periodic=config.is_periodic,
            num_frequencies=config.num_frequencies,
            sigma=config.position_sigma,
        )
        whole = config.model.answering_everywhere("each point")
        network = whole.build(Function(functions, whole.embed_dim), len(facts.target_mean))
        if not config.regression:
            return network
        regression = self._regression(config.regression)
        if regression is None:
            raise ValueError(
                f"regression is {config.regression}, and functions have input or target points of their own; "
                "leave it out"
            )
        return BlendedOperator(network, FunctionRegression(regression))

    def _regression(self, num_functions: int) -> FunctionRegression.Config | None:
        """Sizes of a regression; None where functions have input or target points of their own."""
        facts, given = self._facts, self.preparation.grid or self._facts.given_at
        if given is None or facts.target_at is None:
            return None
        return FunctionRegression.Config(
            given=given,
            target=facts.target_at,
            pos_dim=len(facts.coordinates),
            num_channels=len(facts.channels),
            num_outputs=len(facts.target_mean),
            num_functions=num_functions,
            is_periodic=self.config.is_periodic,
        )

    @property
    def max_regression_functions(self) -> int:
        """Default number of training functions of a regression; 0: none. See `regression.max_functions`."""
        if self.num_held_out("valid") == 0:
            return 0
        return max_functions(self._regression(1), self.num_train * self._facts.num_steps)

    @torch.no_grad()
    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`; fits the regression to training functions, for trajectories to single steps."""
        if not isinstance(model, BlendedOperator):
            return
        count = model.fitted.config.num_functions
        check_has_valid("regression", count, self.num_held_out("valid"), "functions")
        chosen = torch.randperm(self.num_train)[:count].sort().values
        fit_regression(model.fitted, self.splits.train.select(chosen), self.preparation, device)

    def choose_by_validation(self, model: nn.Module, measure: Measure) -> None:
        """See `Task.choose_by_validation`; chooses the share of a network beside a regression."""
        if not isinstance(model, BlendedOperator):
            return

        def errors(model: nn.Module, batch: Batch) -> Iterator[Tensor]:
            assert isinstance(model, BlendedOperator)
            return (self._errors(answers, batch, "l2") for answers in self._blends(model, batch, SHARES))

        choose_share(model, measure, errors)

    def _blends(self, model: BlendedOperator, batch: Batch, shares: Sequence[float]) -> Iterator[Tensor]:
        """Yields the predictions for each share of the network."""
        if self._facts.num_steps > 1:  # the prediction of a step changes the next one
            for share in shares:
                yield self.preparation.answers(model.with_share(share), batch)
        else:
            learnt, fitted = (self.preparation.answers(part, batch) for part in (model.network, model.fitted))
            for share in shares:
                yield blend(learnt, fitted, share)

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`; channels name the head's rows and the encoder's columns."""
        facts = self._facts
        # for trajectories the network predicts one step, whereas the targets are all steps
        predicted = facts.channels if facts.num_steps > 1 else facts.target_channels
        return head_entry_names(model, predicted) | input_entry_names(model, facts.channels)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Returns inputs `pos` (B, N, s), `values` (B, N, m) and `mask` (B, N), and targets `target_...` likewise.

        Positions are in the unit box; for trajectories `target_values` concatenate those of `unroll` steps.
        """
        config, part = self.config, self.splits.train.select(indices)
        given, targets = part.given, part.targets
        if part.num_steps > 1:
            given, targets = draw_times(given, targets, config.unroll, generator)
        share = config.shown
        if config.min_shown is not None:
            share -= (share - config.min_shown) * float(torch.rand((), generator=generator))
        shown = draw_samples(given, _count(share, given), generator)
        batch = self.preparation.batch(shown, draw_samples(targets, config.target_samples, generator))
        return moved(batch, config.symmetries, generator)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Returns a held-out batch in the same form; input samples are drawn once, and all steps are targets."""
        part = self.held_out(split).select(indices)
        count = _count(self.config.shown, part.given)
        return self.preparation.batch(draw_each(part.given, count, indices.tolist()), part.targets)

    @torch.no_grad()
    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`; input, truth and prediction, first channels, for trajectories of the last state."""
        at, facts = torch.tensor([index]), self._facts
        part, batch = self.held_out(split).select(at), self.held_out_batch(split, at)
        there, last = batch["mask"][0], len(facts.target_channels) - len(facts.target_mean)
        pos = self.preparation.box.in_data(batch["pos"][0, there])
        values = self.preparation.scale.in_unit(batch["values"])[0, there, 0]
        seen = function_view(pos, values, "input", facts.channels[0], "seen")
        if model is None:
            return shown_function(part, seen, last)
        return shown_function(part, seen, last, lambda pos: self.evaluated(model, part, pos, device_of(model)).values)

    def num_targets(self, batch: Batch) -> int:
        """Number of functions."""
        return len(batch["values"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns relative errors summed over functions, for trajectories averaged over steps."""
        answers = self.preparation.answers(model, batch)
        return self._errors(answers, batch, self.config.loss).sum()

    def _errors(self, answers: Tensor, batch: Batch, kind: Loss) -> Tensor:
        """Returns the error of each function, `(B,)`; see `relative_errors`."""
        exists = batch["target_mask"]
        domain = self.preparation.domain(batch["target_pos"], exists) if kind == "h1" else None
        return relative_errors(answers, batch["target_values"], exists, self.preparation.target_scale, domain)

    def metrics(self) -> "dict[str, Metric]":
        """Returns `relative_l2`, the mean over functions of ‖f - u‖ / ‖u‖ at target samples, `relative_h1`, `loss`.

        Norms are per channel in the unit of the data, and relative errors are averaged over channels, for trajectories
        also over steps. With loss='h1' `relative_h1` is the error of values and first derivatives together. `loss` is
        the training loss, which beside a regression is that of the network alone.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        with importing_metrics():
            from fredholm.tasks.mean_metrics import Mean
        names = ("relative_l2", *(("relative_h1",) if self.config.loss == "h1" else ()), "loss")
        return {name: Mean() for name in names}

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Updates the metrics with a batch of `held_out_batch`."""
        if isinstance(model, BlendedOperator):
            answers, learnt = self._blends(model, batch, (float(model.share), 1.0))
        else:
            answers = learnt = self.preparation.answers(model, batch)
        kinds: dict[str, Loss] = {"relative_l2": "l2", "relative_h1": "h1"}
        for name, metric in metrics.items():
            is_loss = name == "loss"
            kind = self.config.loss if is_loss else kinds[name]
            metric.update(self._errors(learnt if is_loss else answers, batch, kind))

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """See `Task.baselines`; from input values to target values.

        Raises:
            ValueError: functions do not share their points.
        """
        train = self.splits.train
        for samples in (train.given, train.targets):
            if not samples.share_places:
                raise ValueError("functions have places of their own, so that no values can be set side by side")
        count = len(self._baseline_examples("valid").targets[0])
        return baselines_on(BaselineData("number", count, self._baseline_examples, self._baseline_value))

    def _baseline_examples(self, split: Split) -> BaselineExamples:
        part = self._part_of(split)
        inputs, targets = self.preparation.shown(part.given), self.preparation.targets(part.targets)
        inputs, targets = (self.preparation.filled(each).flatten(1) for each in (inputs, targets))
        return BaselineExamples(inputs.numpy(), targets)

    def _baseline_value(self, outputs: Tensor, split: HeldOut) -> float:
        part = self.held_out(split)
        batch = self.preparation.batch(part.given, part.targets)
        return float(self._errors(outputs.view_as(batch["target_values"]), batch, "l2").mean())

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`; on the grid that all functions share, else from any points to any points."""
        facts, preparation = self._facts, self.preparation
        if (grid := facts.grid) is not None and facts.shares_places:
            return form_on_grid(
                model,
                lambda model, values: preparation.predicted_on_grid(model, values, grid),
                grid,
                preparation.box,
                preparation.scale,
                coordinates=facts.coordinates,
                channels=facts.channels,
                predicted=facts.target_channels,
            )

        def draw(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
            batch, count, axes = sizes["batch"], sizes["samples"], len(facts.coordinates)
            values = preparation.scale.in_unit(torch.randn(batch, count, len(facts.channels), generator=generator))
            pos, places = (
                preparation.box.in_data(torch.rand(batch, n, axes, generator=generator, dtype=torch.float64))
                for n in (count, sizes["places"])
            )
            return pos, values, first_of_each(batch, count), places

        return form_of_samples(
            model,
            preparation.predicted_anywhere,
            draw,
            coordinates=facts.coordinates,
            channels=facts.channels,
            predicted=facts.target_channels,
            about=f"{', '.join(facts.target_channels)}, in the unit of the data",
        )

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """Returns `file`, `field`, coordinates and values per evaluation point, for trajectories of all steps.

        Where values are saved or drawn, a row has the smallest and the largest value of a function. A comparison has a
        row for each of the first functions, whose files must have the truth.

        Raises:
            ValueError: a file cannot be read or does not fit, lacks the truth, or a picture lacks a grid.
        """
        outputs, answer, facts = inputs.outputs, self.config.answer, self._facts
        answer.check(outputs, inputs.at)
        found: list[tuple[Path, Evaluated]] = []
        compared: list[tuple[FieldSet, Evaluated]] = []
        for file, answers in inputs.read(lambda file: self._predicted(model, file, inputs, device), self.config.csv):
            found += [(file, predicted) for _, predicted in answers]
            compared += answers[: DRAWN - len(compared)]
        if outputs.comparison is not None and compared:
            drawn = self._compared(model, compared, device, outputs.comparison.suffix)
            outputs.write("--comparison", outputs.comparison, drawn)
        return answered(answer, outputs, found, facts.coordinates, facts.target_channels)

    def _predicted(
        self, model: nn.Module, file: Path, inputs: Inputs, device: torch.device
    ) -> list[tuple[FieldSet, Evaluated]]:
        """Returns the functions of a file with their predictions at the evaluation points."""
        functions, points = self._read(file, inputs)
        each = [functions.select(torch.tensor([index])) for index in range(len(functions))]
        predicted = [self.evaluated(model, one, pos, device) for one, pos in zip(each, points, strict=True)]
        return list(zip(each, map(refuse_no_number, predicted), strict=True))

    def _read(self, file: Path, inputs: Inputs) -> tuple[FieldSet, list[Tensor]]:
        """Reads the functions of a file, and their evaluation points."""
        facts = self._facts
        functions = read_functions(
            file,
            coordinates=facts.coordinates,
            channels=facts.channels,
            targets=facts.target_channels,
            part=inputs.part,
        )
        refuse_doubles(functions.given, functions.names, "samples")
        if inputs.outputs.comparison is not None and functions.other_targets is None:
            raise ValueError(
                f"{functions.names[0]} comes without {facts.target_channels[0]} to compare with; leave --comparison out"
            )
        return functions, self._evaluation_points(functions, inputs.at)

    def _evaluation_points(self, functions: FieldSet, at: Path | None) -> list[Tensor]:
        """Returns the evaluation points of each function of a file."""
        answer, targets = self.config.answer, functions.targets
        if answer.grid is None and at is None:
            return targets.places
        return places(answer, functions, at)

    def evaluated(self, model: nn.Module, one: FieldSet, points: Tensor, device: torch.device) -> Evaluated:
        """Returns the prediction for one function at points `(N, s)`, in the coordinates of the data."""
        return Evaluated(one.names[0], points, self.preparation.predicted(model, one.given, points, device))

    def _compared(
        self, model: nn.Module, predicted: Sequence[tuple[FieldSet, Evaluated]], device: torch.device, kind: str
    ) -> bytes:
        """Draws a picture of predictions beside the truth in the file, for trajectories of the last state."""
        channels, rows = self._facts.target_channels, []
        for one, answer in predicted:
            assert one.other_targets is not None
            exists = one.other_targets.exists[0]
            pos, truth = one.other_targets.pos[0, exists], one.other_targets.values[0, exists]
            if len(pos) != len(answer.pos) or not torch.equal(pos, answer.pos):
                answer = self.evaluated(model, one, pos, device)
            shown = one.given.pos[0, one.given.exists[0]], one.given.values[0, one.given.exists[0], 0]
            last = len(channels) - len(self._facts.target_mean)
            rows.append(Compared(one.names[0], *shown, pos, answer.values[:, last], truth[:, last]))
        names = (
            self._facts.coordinates,
            self._facts.channels[0],
            channels[len(channels) - len(self._facts.target_mean)],
        )
        return draw_comparison(rows, *names, kind=kind)


def _count(share: float, samples: Samples) -> int | None:
    """Returns the number of samples for a share; None: all."""
    return None if share == 1 else max(1, round(share * samples.pos.shape[1]))


def _shared_places(samples: Samples, box: UnitBox, *, is_periodic: bool) -> UnitGrid | int | None:
    """Returns the grid of shared points, or their number where they form none; None where points are not shared."""
    if not samples.share_places:
        return None
    found = grid_of(samples, box, is_periodic=is_periodic)
    return samples.pos.shape[1] if found is None else found
