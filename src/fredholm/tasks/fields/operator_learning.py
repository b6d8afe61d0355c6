"""Learning operators: maps from functions to functions."""

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
from .relative_error import Loss, relative_errors
from .tensor_forms import form_of_samples, form_on_grid
from .unit_box import UnitBox, grid_of, seem_to_repeat

if TYPE_CHECKING:
    from torchmetrics import Metric

WAVES: dict[Preset, tuple[int, int, int]] = {"small": (16, 6, 4), "base": (24, 8, 5)}
"""Highest frequencies of spectral kernels on a line, in the plane, and in space."""
DRAWN = 8
"""Functions in the picture of a comparison."""
MOST_FUNCTIONS, MOST_VALUES = 1024, 1 << 23
"""Training functions of a regression, and values that it keeps of them, at most, where nothing else is said."""
LEAST_FUNCTIONS = 8
"""Training functions from which there is a regression."""


@final
class OperatorLearning(DividedTask[FieldSet]):
    """A network from sampled functions to functions, trained by the relative error of its answers (FNO, section 5).

    The network is a map between functions: it may be given them at other points, and asked at other points, than in
    training. Values are standardised by the training split's mean and deviation per channel. Positions are moved and
    scaled, all axes alike, so that those of the training split fill the unit box, unless they lie in it already.

    Of trajectories the operator is one step in time; it is trained from every state to the next ones, and measured from
    the first state to the last, each step from the answer before. Its network predicts the change.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the training split.

    Raises:
        ValueError: the data cannot be opened, say nothing of what is wanted, have a function with two samples at one
            place, or are not those of `facts`; or settings that have no effect on them.
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
        """Of the training split; means and deviations are of existing samples, one a channel."""

        coordinates: tuple[str, ...]
        channels: tuple[str, ...]
        target_channels: tuple[str, ...]
        num_steps: int
        mean: tuple[float, ...]
        deviation: tuple[float, ...]
        target_mean: tuple[float, ...]
        target_deviation: tuple[float, ...]
        origin: tuple[float, ...]
        """Where the unit box begins."""
        extent: float
        """Length of its sides."""
        grid: UnitGrid | None = None
        """That of all functions, or one for functions of which each has places of its own; None: they share places
        that are no grid."""
        shares_places: bool
        """Whether all have samples at the same places."""
        given_at: int | None
        """Of functions that are given at the same places, the number of these; None: each at places of its own."""
        wanted_at: UnitGrid | int | None
        """Where all are wanted: the grid, or the number of places that are none; None: each at places of its own."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """Pairs of functions, what is shown of them, and the model.

        Args:
            data: an .npz file or a folder of these, a .csv table, or a folder with given.csv and wanted.csv; see
                `open_functions`.
            coordinates: columns of tables that are coordinates; none: those of x, y and z that are there.
            targets: columns of a single table that are wanted.
            problem: which of the sets in neuralop_pde.npz.
            resolution: of its test set; a trained model may be measured at another one.
            is_periodic: functions repeat beyond the unit box, along all coordinates.
            symmetries: under which motions of the unit box the operator stays the same, of scalar values: `mirror`
                along any axis, `exchange` of axes. Each training batch is moved by one of them at random.
            shown: share of the samples of each function that the model is given, drawn anew in every training batch
                and once in others.
            fill_in: functions that are given on no grid are brought onto one by `encoders.interpolate`: that of the
                training split, or, where each function has places of its own, one with twice as many points. Else the
                integrals are over the samples as they come. Where all share places that are no grid, False is refused.
            least_shown: in training the share is drawn between this and `shown`, for all functions of a batch at once;
                None: it is `shown`.
            wanted: samples of each answer that a training step is measured on, drawn likewise; None: all. With
                loss='h1' and for trajectories it is refused.
            loss: relative error of values, or of values and first derivatives together, by differences on a grid.
            unroll: of trajectories, steps that training carries on from a true state; refused where there is one.
            position_frequencies: Fourier frequencies of the place that enters the signal; 0: none. None: 16, and 0 of
                periodic functions, whose operators mostly are the same everywhere.
            position_sigma: standard deviation of these frequencies, in cycles a side of the unit box; refused where
                there are none, and of periodic functions, whose frequencies are whole numbers.
            regression: training functions, at most, of a kernel regression beside the network; its share in the answer
                is chosen by the validation split, without which it is refused, as where functions are wanted at places
                of their own (`models.BlendedOperator`). None: there is none; 0 says so where a run would choose.
            model: the network, of functions; it answers at every point.
            answer: where `predict` answers: at the points of `grid`, else where the file wants answers,
                or at its samples.
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
        least_shown: float | None = None
        wanted: int | None = None
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

        def __post_init__(self) -> None:
            if self.loss not in get_args(Loss):
                raise ValueError(f"loss is {self.loss!r}; expected one of {', '.join(get_args(Loss))}")
            if unknown := [name for name in self.symmetries if name not in get_args(Symmetry)]:
                raise ValueError(f"symmetries has {unknown[0]!r}; expected some of {', '.join(get_args(Symmetry))}")
            for name in ("shown", "least_shown"):
                share = getattr(self, name)
                if share is not None and not 0 < share <= 1:
                    raise ValueError(f"{name} is {share}; expected a share above 0 and at most 1")
            if self.least_shown is not None and self.least_shown >= self.shown:
                raise ValueError(
                    f"least_shown is {self.least_shown} and shown {self.shown}; expected less, or leave it"
                )
            for name, value, least in (("position_frequencies", self.num_frequencies, 0), ("unroll", self.unroll, 1)):
                check_count("operator", name, value, least)
            if self.regression:
                check_count("operator", "regression", self.regression, least=2)
            if self.wanted is not None:
                check_count("operator", "wanted", self.wanted)
                if self.loss == "h1":
                    raise ValueError("wanted draws scattered samples, and loss='h1' takes differences; leave one out")
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
            """Of the place."""
            default = 0 if self.is_periodic else 16
            return default if self.position_frequencies is None else self.position_frequencies

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: whether functions repeat, and the size of the network by the grid."""
            default, task = OperatorLearning.Config(), self.build()
            config, axes = self, len(task.facts.coordinates)
            if self.position_sigma == default.position_sigma and task.repeats:
                config = filled(self, [default], is_periodic=True)
            config = filled(config, [default], regression=task.most_regressed)
            width = width_for(task.num_train, effort, least=64 if axes == 1 else 32, up_to=1000)
            model = config.model.resized(width, 4, default.model)
            if isinstance(model, NeuralOperator.Config) and isinstance(model.kernel, SpectralConfig):
                waves = filled(
                    model.kernel, [SpectralConfig()], num_waves_per_axis=WAVES[effort.preset][min(axes, 3) - 1]
                )
                model = dataclasses.replace(model, kernel=waves)
            schedule = schedule_for(
                task.num_train,
                effort,
                has_valid=task.num_held_out("valid") > 0,
                learning_rate=4e-3,
                weight_decay=1e-4,
                length=0.5,
            )
            return Recommended(dataclasses.replace(config, model=model), schedule)

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`: the model."""
            return stack_of(self.model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`; without a regression, which would be the same beside all of them."""
            return dataclasses.replace(self, model=stack, regression=0)

        def build(self, facts: Task.Facts | None = None) -> "OperatorLearning":
            """The task; see `OperatorLearning`."""
            return OperatorLearning(self, own_facts(facts, OperatorLearning.Facts, "operator learning"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._learn_facts()
        if self._facts.num_steps == 1:
            single = "data without trajectories, which have one step"
            refuse_idle("", type(config), single, "leave it out", unroll=config.unroll)
        elif config.wanted is not None:
            raise ValueError("wanted draws samples, and a trajectory goes on from all of them; leave it out")
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
        """Of the training split."""
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
        """The parts of the data's own split, one after the other, each with its number in `SPLITS`."""
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
        for samples, what in ((part.given, "samples"), (part.targets, "wanted samples")):
            refuse_doubles(samples, part.names, what)
        return part

    def _learn_facts(self) -> Facts:
        """The facts of the training split; a constant channel has deviation 1, so that it becomes 0.

        Raises:
            ValueError: periodic functions with samples outside of the unit box.
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
            shares_places=train.given.share_places,
            given_at=train.given.pos.shape[1] if train.given.share_places else None,
            wanted_at=_shared_places(train.targets, box, is_periodic=is_periodic),
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
        """Of functions in mapped arrays."""
        return self.splits.train.shards

    def model(self) -> nn.Module:
        """The network on an encoder of functions, with one output a wanted channel."""
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
        given = self.preparation.grid or facts.given_at
        if given is None or facts.wanted_at is None:
            raise ValueError(
                f"regression is {config.regression}, and functions are given or wanted at places of their own; leave "
                "it out"
            )
        regression = FunctionRegression.Config(
            given=given,
            wanted=facts.wanted_at,
            pos_dim=len(facts.coordinates),
            num_channels=len(facts.channels),
            num_outputs=len(facts.target_mean),
            num_functions=config.regression,
            is_periodic=config.is_periodic,
        )
        return BlendedOperator(network, FunctionRegression(regression))

    @property
    def most_regressed(self) -> int:
        """Training functions of which a regression is made where nothing else is said; 0: there is none."""
        facts, given = self._facts, self.preparation.grid or self._facts.given_at
        if given is None or facts.wanted_at is None or self.num_held_out("valid") == 0:
            return 0
        values = sum(
            (at if isinstance(at, int) else at.num_points) * channels
            for at, channels in ((given, len(facts.channels)), (facts.wanted_at, len(facts.target_mean)))
        )
        count = min(self.num_train * facts.num_steps, MOST_FUNCTIONS, MOST_VALUES // values)
        return count if count >= LEAST_FUNCTIONS else 0

    @torch.no_grad()
    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits the regression to training functions, of trajectories to single steps."""
        if not isinstance(model, BlendedOperator):
            return
        count, steps = model.fitted.config.num_functions, self._facts.num_steps
        check_has_valid("regression", count, self.num_held_out("valid"), "functions")
        chosen = torch.randperm(self.num_train)[:count].sort().values
        part, scale = self.splits.train.select(chosen), self.preparation.target_scale
        given, answers, groups = part.given, part.targets.values, part.marks.group_numbers()
        groups = torch.arange(len(part)) if groups is None else groups
        if steps > 1:
            states = part.states()
            some = torch.randperm(len(part) * steps)[:count].sort().values
            given, groups = states.select(some), groups.repeat(steps)[some]
            answers = states.select(some + len(part)).values
        seen = self.preparation.shown(given)["values"]
        wanted = scale.standardised(answers)
        if steps > 1:
            wanted = wanted - scale.standardised(given.values)
        sizes = model.fitted.config
        model.fitted.fit(
            seen.to(device),
            wanted.to(device),
            given_pos=self.preparation.box.placed(given.pos[0]) if isinstance(sizes.given, int) else None,
            wanted_pos=self.preparation.box.placed(part.targets.pos[0]) if isinstance(sizes.wanted, int) else None,
            # of one trajectory, steps are left out by themselves
            groups=groups.to(device) if 1 < len(groups.unique()) < len(groups) else None,
        )

    def choose_by_validation(self, model: nn.Module, measure: Measure) -> None:
        """See `Task.choose_by_validation`: the share of a network beside a regression."""
        if not isinstance(model, BlendedOperator):
            return

        def errors(model: nn.Module, batch: Batch) -> Iterator[Tensor]:
            assert isinstance(model, BlendedOperator)
            return (self._errors(answers, batch, "l2") for answers in self._blends(model, batch, SHARES))

        choose_share(model, measure, errors)

    def _blends(self, model: BlendedOperator, batch: Batch, shares: Sequence[float]) -> Iterator[Tensor]:
        """The answers of each share of the network."""
        if self._facts.num_steps > 1:  # the answer of a step changes the next one
            for share in shares:
                yield self.preparation.answers(model.with_share(share), batch)
        else:
            learnt, fitted = (self.preparation.answers(part, batch) for part in (model.network, model.fitted))
            for share in shares:
                yield blend(learnt, fitted, share)

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: of the head's rows and of the encoder's columns, the channels."""
        facts = self._facts
        # of trajectories the network predicts one step, and the targets are all of them
        predicted = facts.channels if facts.num_steps > 1 else facts.target_channels
        return head_entry_names(model, predicted) | input_entry_names(model, facts.channels)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """What is shown, `pos` (B, N, s), `values` (B, N, m) and `mask` (B, N), and what is wanted, `wanted_...`.

        Positions are those of the unit box; of trajectories `wanted_values` are those of `unroll` steps, one after the
        other.
        """
        config, part = self.config, self.splits.train.select(indices)
        given, wanted = part.given, part.targets
        if part.num_steps > 1:
            given, wanted = draw_times(given, wanted, config.unroll, generator)
        share = config.shown
        if config.least_shown is not None:
            share -= (share - config.least_shown) * float(torch.rand((), generator=generator))
        shown = draw_samples(given, _count(share, given), generator)
        batch = self.preparation.batch(shown, draw_samples(wanted, config.wanted, generator))
        return moved(batch, config.symmetries, generator)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Likewise of a held-out split; what is shown is drawn once and for all, and all steps are wanted."""
        part = self.held_out(split).select(indices)
        count = _count(self.config.shown, part.given)
        return self.preparation.batch(draw_each(part.given, count, indices.tolist()), part.targets)

    @torch.no_grad()
    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: the input, the truth and the answer, first channels, of trajectories the last."""
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
        """One per function."""
        return len(batch["values"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Relative errors summed over the functions; of trajectories the mean over steps."""
        answers = self.preparation.answers(model, batch)
        return self._errors(answers, batch, self.config.loss).sum()

    def _errors(self, answers: Tensor, batch: Batch, kind: Loss) -> Tensor:
        """Of each function, `(B,)`; see `relative_errors`."""
        exists = batch["wanted_mask"]
        domain = self.preparation.domain(batch["wanted_pos"], exists) if kind == "h1" else None
        return relative_errors(answers, batch["wanted_values"], exists, self.preparation.target_scale, domain)

    def metrics(self) -> "dict[str, Metric]":
        """`relative_l2`, the mean over functions of ‖f - u‖ / ‖u‖ at the wanted samples; `relative_h1`; and `loss`.

        Norms are of each channel in the data's unit, and relative errors a mean over channels, of trajectories also
        over steps. With loss='h1' `relative_h1` is the same of values and first derivatives together. `loss` is
        what training minimises, which beside a regression is the error of the network alone.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        with importing_metrics():
            from fredholm.tasks.mean_metrics import Mean
        names = ("relative_l2", *(("relative_h1",) if self.config.loss == "h1" else ()), "loss")
        return {name: Mean() for name in names}

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `held_out_batch` to the metrics."""
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
        """See `Task.baselines`: from the values that are given to those that are wanted.

        Raises:
            ValueError: functions do not share their places.
        """
        train = self.splits.train
        for samples in (train.given, train.targets):
            if not samples.share_places:
                raise ValueError("functions have places of their own, so that no values can be set side by side")
        count = len(self._baseline_examples("valid").targets[0])
        return baselines_on(BaselineData("number", count, self._baseline_examples, self._baseline_value))

    def _baseline_examples(self, split: Split) -> BaselineExamples:
        part = self._part_of(split)
        targets = self.preparation.target_scale.standardised(part.targets.values)
        return BaselineExamples(part.given.values.flatten(1).numpy(), targets.flatten(1))

    def _baseline_value(self, outputs: Tensor, split: HeldOut) -> float:
        part = self.held_out(split)
        batch = self.preparation.batch(part.given, part.targets)
        return float(self._errors(outputs.view_as(batch["wanted_values"]), batch, "l2").mean())

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: on the grid that all functions share; else from samples anywhere to any places."""
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
        """`file`, `field`, coordinates and values of each place asked for, of trajectories those of all steps.

        Where values are saved or drawn, a row has the least and the largest value of a function. A comparison has a
        row for each of the first functions, whose files must have the truth.

        Raises:
            ValueError: a file cannot be read or does not fit, comes without the truth, or there is no grid to draw.
        """
        outputs, answer, facts = inputs.outputs, self.config.answer, self._facts
        answer.check(outputs, inputs.at)
        found: list[tuple[Path, Evaluated]] = []
        compared: list[tuple[FieldSet, Evaluated]] = []
        for file, answers in inputs.read(lambda file: self._predicted(model, file, inputs, device)):
            found += [(file, predicted) for _, predicted in answers]
            compared += answers[: DRAWN - len(compared)]
        if outputs.comparison is not None and compared:
            drawn = self._compared(model, compared, device, outputs.comparison.suffix)
            outputs.write("--comparison", outputs.comparison, drawn)
        return answered(answer, outputs, found, facts.coordinates, facts.target_channels)

    def _predicted(
        self, model: nn.Module, file: Path, inputs: Inputs, device: torch.device
    ) -> list[tuple[FieldSet, Evaluated]]:
        """The functions of a file, each with its answer where it is asked for."""
        functions, asked = self._read(file, inputs)
        each = [functions.select(torch.tensor([index])) for index in range(len(functions))]
        predicted = [self.evaluated(model, one, pos, device) for one, pos in zip(each, asked, strict=True)]
        return list(zip(each, map(refuse_no_number, predicted), strict=True))

    def _read(self, file: Path, inputs: Inputs) -> tuple[FieldSet, list[Tensor]]:
        """The functions of a file, and where each is asked for."""
        facts = self._facts
        functions = read_functions(
            file,
            coordinates=facts.coordinates,
            channels=facts.channels,
            targets=facts.target_channels,
            part=inputs.part,
        )
        refuse_doubles(functions.given, functions.names, "samples")
        if inputs.outputs.comparison is not None and functions.wanted is None:
            raise ValueError(
                f"{functions.names[0]} comes without {facts.target_channels[0]} to compare with; leave --comparison out"
            )
        return functions, self._asked(functions, inputs.at)

    def _asked(self, functions: FieldSet, at: Path | None) -> list[Tensor]:
        """Where each function of a file is asked for."""
        answer, wanted = self.config.answer, functions.targets
        if answer.grid is None and at is None:
            return wanted.places
        return places(answer, functions, at)

    def evaluated(self, model: nn.Module, one: FieldSet, asked: Tensor, device: torch.device) -> Evaluated:
        """The answer for one function at places `(N, s)` in the unit of the data's positions."""
        return Evaluated(one.names[0], asked, self.preparation.predicted(model, one.given, asked, device))

    def _compared(
        self, model: nn.Module, predicted: Sequence[tuple[FieldSet, Evaluated]], device: torch.device, kind: str
    ) -> bytes:
        """A picture of functions beside the truth that comes with them; of trajectories the last state."""
        channels, rows = self._facts.target_channels, []
        for one, answer in predicted:
            assert one.wanted is not None
            exists = one.wanted.exists[0]
            pos, truth = one.wanted.pos[0, exists], one.wanted.values[0, exists]
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
    """So many samples of each function; None: all."""
    return None if share == 1 else max(1, round(share * samples.pos.shape[1]))


def _shared_places(samples: Samples, box: UnitBox, *, is_periodic: bool) -> UnitGrid | int | None:
    """The grid where all functions have samples, or the number of places that are none; None: they share none."""
    if not samples.share_places:
        return None
    found = grid_of(samples, box, is_periodic=is_periodic)
    return samples.pos.shape[1] if found is None else found
