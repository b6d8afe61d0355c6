"""Reconstruction of functions from their samples."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final, get_args

import torch
from torch import Tensor, nn

from fredholm._settings import check_seed, filled, refuse_idle
from fredholm.domains import Points
from fredholm.fields.field import Field
from fredholm.fields.frames.axes import Affine, Rotational
from fredholm.fields.frames.frame import Frame
from fredholm.fields.frames.sizes import Diagonal, Identity, Isotropic, Periodic
from fredholm.fields.free_sinusoidal import FreeSinusoidalField
from fredholm.fields.placed_field import PlacedField, refine
from fredholm.fields.radial import Radial, RadialName
from fredholm.fields.sinusoidal import SinusoidalField
from fredholm.fields.siren import SIREN
from fredholm.fields.splined import splined
from fredholm.models.fields.neural_field import FieldOperator
from fredholm.models.stack import Stack
from fredholm.tasks.fields import FieldSet, Samples, open_fields, read_fields
from fredholm.tasks.files.npz_arrays import ARRAY_SUFFIXES
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.outputs import PICTURES
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import DEPTH, Effort, schedule_for, width_for
from fredholm.tasks.splits.splits import HeldOut, Splits
from fredholm.tasks.splits.splitting import divided
from fredholm.tasks.task import Batch, Objective, Recommended, SplitTask, Task, Trained, own_facts, to_device
from fredholm.tasks.tensor_form import Sizes, TensorForm, first_of_each
from fredholm.tasks.views import ShownExample, device_of, function_view

from .answer import Answer, Evaluated, answered, places, refuse_no_number, shown_function
from .batches import Scale, draw_each, draw_samples, moments
from .open import FIELD_TABLES
from .tensor_forms import form_of_samples

if TYPE_CHECKING:
    from torchmetrics import Metric

FrameName = Literal["identity", "isotropic", "diagonal", "affine", "rotational", "periodic"]
FieldName = Literal["siren", "sinusoidal", "free_sinusoidal"]
SMOOTHINGS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
"""Candidate smoothings of splines; errors on training functions choose one."""
LENGTHS = (0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Candidate lengths of a covariance, in units of the frame, in which samples have a root mean square size of 1."""
NOISES = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
"""Candidate smoothings with a covariance; lengths are compared at the second and the fifth."""
COVARIANCES: tuple[RadialName, ...] = ("exponential", "matern32", "matern52", "gaussian")
TRIED, TRIED_FIRST = 32, 8
"""Numbers of training functions that choose the spline, and the length of each covariance."""
MOST_SHOWN = 256
"""Largest default number of input samples of a function."""
FEW = 0.1
"""Share of the functions that may have fewer samples than twice the default number of input samples."""
CHUNK = 16
"""Functions of a file per batch of a prediction."""


@final
class FieldLearning(SplitTask[FieldSet]):
    """A field operator on sampled functions, trained by the mean squared error of its fields.

    The method is that of Neural Fields Meet Attention, appendices F to H. Values are standardised by the training
    split's mean and deviation per channel; positions are normalised by the frame.

    Args:
        config: settings of the task.
        facts: facts of an earlier run; None learns them from the training split.

    Raises:
        ValueError: the data cannot be opened, or do not match `facts`; or fields are to be refined whose targets are
            other functions than the inputs.
    """

    command: ClassVar[str] = "field"
    predicts = Kinds(suffixes=(*FIELD_TABLES, *ARRAY_SUFFIXES), has_parts=True)
    answers_at: ClassVar[bool] = True
    writes: ClassVar[Mapping[str, tuple[str, ...]]] = {"save": (".npz",), "picture": PICTURES}
    objective = Objective(metric="relative_error", maximise=False)

    parts: ClassVar[tuple[type, ...]] = (FieldOperator.Config,)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts of the training split; means and deviations are over existing samples, one per channel."""

        coordinates: tuple[str, ...]
        channels: tuple[str, ...]
        target_channels: tuple[str, ...]
        mean: tuple[float, ...]
        deviation: tuple[float, ...]
        target_mean: tuple[float, ...]
        target_deviation: tuple[float, ...]
        has_other_targets: bool = False
        """Whether targets are other functions, or at other points, than the inputs."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """Settings of sampled functions, their input samples, and the operator.

        Args:
            data: a .csv or .npz file of samples, a folder of .npz files, or images, which are functions of the plane;
                see `open_fields`.
            coordinates: columns of a table that are coordinates; empty: the existing ones of x, y and z.
            shown: number of input samples of each function, drawn anew in every training batch; None: all.
            shown_seed: seed of the input samples of test functions, which are fixed; refused where all are shown.
            target_samples: number of samples of each function in the training loss, drawn likewise; None: all.
            frame: frame of coordinates computed from the samples, which sets the equivariance of the fields.
            proper: for frames with axes: whether reflections are excluded from the symmetries.
            average: for frames with axes: whether a field is averaged over the signs of the axes, for symmetric
                samples.
            weigh_frame: whether the frame weighs a sample by the magnitude of its values, and so follows the content of
                the samples rather than their positions; on regular grids nothing else reveals a rotation. Refused with
                the frame identity, which depends on no sample.
            field: parametrisation of the predicted field: the weights of a SIREN, or sums of sinusoids with fixed or
                predicted frequencies.
            width: units per layer of the SIREN, or terms of the sum.
            depth: linear layers of the SIREN, including the output; refused with a sum.
            omega_0: frequency of the SIREN's sines, or deviation of the sum's frequencies, in radians per unit of the
                frame.
            refine_steps: steps of Adam that fit each field to its input samples before it is measured or predicts; none
                in training.
            refine_rate: learning rate of these steps; refused without any.
            spline: smoothing of a spline through the residuals of each field at its input samples, 0 for interpolation
                (`fields.splined`); in training too, so that the operator learns what a spline cannot. None: no spline.
                Refused where targets are other functions than the inputs.
            spline_kernel: its radial function: the cubic, or a covariance with a length (`fields.Radial`); refused
                without a spline.
            spline_length: length of the covariance, in units of the frame; refused for the cubic, which has none.
            model: the operator.
            answer: evaluation points of `predict`.
        """

        data: str = ""
        coordinates: tuple[str, ...] = ()
        shown: int | None = None
        shown_seed: int = 0
        target_samples: int | None = None
        frame: FrameName = "isotropic"
        proper: bool = False
        average: bool = False
        weigh_frame: bool = False
        field: FieldName = "siren"
        width: int = 64
        depth: int = 3
        omega_0: float = 30.0
        refine_steps: int = 0
        refine_rate: float = 1e-2
        spline: float | None = None
        spline_kernel: RadialName = "cubic"
        spline_length: float | None = None
        model: FieldOperator.Config = dataclasses.field(default_factory=FieldOperator.Config)
        answer: Answer = dataclasses.field(default_factory=Answer)

        weight_settings: ClassVar[tuple[str, ...]] = (
            *("frame", "proper", "average", "weigh_frame"),
            *("field", "width", "depth", "omega_0", "model"),
        )

        @property
        def unmeasured_settings(self) -> tuple[str, ...]:
            """See `Task.Config.unmeasured_settings`."""
            return ("target_samples", "answer")

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("csv", "refine_steps", "refine_rate", "spline", "spline_kernel", "spline_length", "answer")

        def __post_init__(self) -> None:
            for name, allowed in (("frame", get_args(FrameName)), ("field", get_args(FieldName))):
                if getattr(self, name) not in allowed:
                    raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}")
            for name in ("shown", "target_samples"):
                if getattr(self, name) is not None and getattr(self, name) < 1:
                    raise ValueError(f"{name} is {getattr(self, name)}; expected at least one sample")
            check_seed(self.shown_seed, "shown_seed")
            if self.refine_steps < 0 or not 0 < self.refine_rate < float("inf"):
                raise ValueError(
                    f"refine_steps is {self.refine_steps} and refine_rate {self.refine_rate}; expected at least 0 and "
                    "a finite number above 0"
                )
            if self.spline is not None and not 0 <= self.spline < float("inf"):
                raise ValueError(f"spline is {self.spline}; expected a finite smoothing of at least 0")
            if self.spline is None:
                given = {"spline_kernel": self.spline_kernel, "spline_length": self.spline_length}
                refuse_idle("", type(self), "spline=None", "give spline, such as 0", **given)
            self.radial  # noqa: B018 - raises where name and length do not fit
            own, siren = f"frame={self.frame!r}", {"depth": self.depth}
            for idle, because, instead, given in (
                (self.shown is None, "shown=None", "show some samples", {"shown_seed": self.shown_seed}),
                (
                    self.frame not in ("affine", "rotational"),
                    own,
                    "take the frame 'affine' or 'rotational'",
                    {"proper": self.proper, "average": self.average},
                ),
                (self.frame == "identity", own, "take another frame", {"weigh_frame": self.weigh_frame}),
                (self.field != "siren", f"field={self.field!r}", "take the field 'siren'", siren),
                (self.refine_steps == 0, "refine_steps=0", "give steps", {"refine_rate": self.refine_rate}),
            ):
                if idle:
                    refuse_idle("", type(self), because, instead, **given)

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`; chooses the input samples, a spline through them, and the model's sizes.

            Half of the samples are inputs, so that the loss measures predictions at the others, and a spline goes
            through them, unless targets are other functions. Its smoothing is the one of SMOOTHINGS that predicts some
            training functions best without an operator. Frequencies are at most those that the samples resolve.
            """
            default, task = FieldLearning.Config(), self.build()
            # a quantile, as one function of a single sample would leave one input to all of them
            count = int(task.splits.train.given.counts.double().quantile(FEW))
            config, is_own = self, not task.facts.has_other_targets
            if is_own:
                config = filled(config, [default], shown=max(1, min(count // 2, MOST_SHOWN)))
            samples = min(count, config.shown or count)
            if is_own and not config.refine_steps and config.spline is None:
                smoothing, radial = task._best_spline(samples)
                of_radial: dict[str, Any] = {"spline_kernel": radial.name, "spline_length": radial.length}
                config = dataclasses.replace(config, spline=smoothing, **of_radial)
            # the samples have a root mean square size of 1, a box then has sides of about 2 √3
            fastest = math.pi * samples ** (1 / len(task.facts.coordinates)) / (2 * 3**0.5)
            sizes = {"width": 32 if effort.preset == "small" else 64, "omega_0": round(min(max(fastest, 1.0), 30.0), 1)}
            width = width_for(task.num_train, effort, least=64, up_to=1000)
            model = filled(
                self.model,
                [default.model],
                embed_dim=width,
                depth=DEPTH[effort.preset] // 2,
                num_heads=math.gcd(width, 4),
                expansion=2,
                num_seeds=4,
                head_dim=2 * width,
                **({} if config.spline is None else {"epsilon": 1e-3}),
            )
            schedule = schedule_for(
                task.num_train, effort, has_valid=task.num_held_out("valid") > 0, weight_decay=1e-4, length=0.5
            )
            return Recommended(dataclasses.replace(filled(config, [default], **sizes), model=model), schedule)

        @property
        def radial(self) -> Radial:
            """Radial function of the spline."""
            return Radial(name=self.spline_kernel, length=self.spline_length)

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`; the task has none."""
            raise ValueError(
                "fields are predicted by attention in the frame of their samples: no kernel can be chosen; the task "
                "operator has one"
            )

        def build(self, facts: Task.Facts | None = None) -> "FieldLearning":
            """Builds the task; see `FieldLearning`."""
            return FieldLearning(self, own_facts(facts, FieldLearning.Facts, "field learning"))

        def build_frame(self) -> Frame:
            """Returns the frame of the settings."""
            match self.frame:
                case "identity":
                    return Identity()
                case "isotropic":
                    return Isotropic()
                case "diagonal":
                    return Diagonal()
                case "periodic":
                    return Periodic()
                case "affine":
                    return Affine(proper=self.proper, average=self.average)
                case "rotational":
                    return Rotational(proper=self.proper, average=self.average)

        def build_field(self, pos_dim: int, out_dim: int) -> Field:
            """Returns the field of the settings, on the coordinates of the frame."""
            match self.field:
                case "siren":
                    return SIREN(pos_dim, out_dim, width=self.width, depth=self.depth, omega_0=self.omega_0)
                case "sinusoidal":
                    return SinusoidalField(pos_dim, out_dim, num_terms=self.width, sigma=self.omega_0)
                case "free_sinusoidal":
                    return FreeSinusoidalField(pos_dim, out_dim, num_terms=self.width, sigma=self.omega_0)

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        self.config = config
        self._facts = facts or self._learn_facts()
        for name, is_asked in (("refine_steps", config.refine_steps > 0), ("spline", config.spline is not None)):
            if is_asked and self._facts.has_other_targets:
                raise ValueError(
                    f"{name} fits fields to what is shown; these data have other functions as targets; leave it out"
                )
        self._scale = Scale(self._facts.mean, self._facts.deviation)
        self._target_scale = Scale(self._facts.target_mean, self._facts.target_deviation)

    @property
    def facts(self) -> Facts:
        """Facts of the training split."""
        return self._facts

    def _open(self) -> Splits[FieldSet]:
        config = self.config
        if not config.data:
            raise ValueError("no samples are given; pass a .csv or .npz file of them, or images")
        with config.csv.reading(config.data):
            found = open_fields(config.data, coordinates=config.coordinates)
        return divided(found, config)

    def _learn_facts(self) -> Facts:
        """Learns the facts of the training split; a constant channel has deviation 1, so that it becomes 0."""
        train = self._opened.train
        given = moments(lambda: (part.given for part in train.parts()))
        targets = given if train.other_targets is None else moments(lambda: (part.targets for part in train.parts()))
        return FieldLearning.Facts(
            coordinates=train.coordinates,
            channels=train.channels,
            target_channels=train.target_channels,
            has_other_targets=train.other_targets is not None,
            mean=given.mean,
            deviation=given.deviation,
            target_mean=targets.mean,
            target_deviation=targets.deviation,
        )

    def _check(self, splits: Splits[FieldSet]) -> None:
        splits.check_facts(self._facts, self.config.data)

    @property
    def train_shards(self) -> Tensor | None:
        """Sizes of shards of functions in mapped arrays."""
        return self.splits.train.shards

    def model(self) -> nn.Module:
        """Returns the field operator."""
        config, facts = self.config, self._facts
        frame, pos_dim = config.build_frame(), len(facts.coordinates)
        family = config.build_field(pos_dim * frame.coordinates_per_axis, len(facts.target_channels))
        model = FieldOperator(pos_dim, family, frame, config.model, in_dim=len(facts.channels))
        if config.spline is not None:
            # a spline alone is a good start, which random fields would spoil
            model.start.data[family.amplitudes()] = 0.0
        return model

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Returns inputs `pos` (B, N, s), `values` (B, N, m) and `mask` (B, N), and targets `target_...` likewise."""
        part = self.splits.train.select(indices)
        shown = draw_samples(part.given, self.config.shown, generator)
        return self._batch(shown, draw_samples(part.targets, self.config.target_samples, generator))

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Returns a held-out batch in this form; input samples of a function are fixed, and all samples are targets."""
        part = self.held_out(split).select(indices)
        seeds = [1_000_003 * self.config.shown_seed + index for index in indices.tolist()]
        return self._batch(draw_each(part.given, self.config.shown, seeds), part.targets)

    def _batch(self, shown: Samples, targets: Samples) -> Batch:
        answers = self._target_scale.batch(targets)
        return self._shown(shown) | {f"target_{name}": tensor for name, tensor in answers.items()}

    def _shown(self, samples: Samples) -> Batch:
        batch = self._scale.batch(samples)
        if self.config.weigh_frame:
            batch["frame_weights"] = torch.where(batch["mask"], samples.values.float().norm(dim=-1), 0.0)
        return batch

    @torch.no_grad()
    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`; the first channel of the input, the truth, and the model's prediction there."""
        at = torch.tensor([index])
        part, batch = self.held_out(split).select(at), self.held_out_batch(split, at)
        pos, values = (each[0, batch["mask"][0]] for each in (batch["pos"], self._scale.in_unit(batch["values"])))
        seen = function_view(pos.double(), values[:, 0], "seen", self._facts.channels[0], "seen")
        if model is None:
            return shown_function(part, seen, 0)
        shown = to_device(batch, device_of(model))
        return shown_function(part, seen, 0, lambda pos: self._evaluated(model, shown, part, [pos])[0].values)

    def num_targets(self, batch: Batch) -> int:
        """Number of functions."""
        return len(batch["values"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the squared error, averaged over target samples and channels, summed over functions."""
        found = self._through_samples(self._place(model, batch), batch)(batch["target_pos"]).float()
        return self._errors(found, batch).sum()

    @staticmethod
    def _errors(found: Tensor, batch: Batch) -> Tensor:
        exists = batch["target_mask"].to(found.dtype)
        squares = (found - batch["target_values"]).square().mean(-1) * exists
        return squares.sum(-1) / exists.sum(-1).clamp(min=1)

    @staticmethod
    def _place(model: nn.Module, batch: Batch) -> PlacedField:
        domain = Points(batch["pos"], mask=batch["mask"])
        return model(batch["values"], domain, frame_weights=batch.get("frame_weights"))

    def _refined(self, model: nn.Module, batch: Batch) -> PlacedField:
        placed, config = self._place(model, batch), self.config
        samples = batch["pos"], batch["values"], batch["mask"]
        if config.refine_steps:
            placed = refine(placed, *samples, steps=config.refine_steps, rate=config.refine_rate)
        return self._through_samples(placed, batch)

    def _through_samples(self, placed: PlacedField, batch: Batch) -> PlacedField:
        config, samples = self.config, (batch["pos"], batch["values"], batch["mask"])
        if config.spline is None:
            return placed
        return splined(placed, *samples, smoothing=config.spline, radial=config.radial)

    @torch.no_grad()
    def _best_spline(self, shown: int) -> tuple[float, Radial]:
        """Returns the smoothing and the radial function with which a spline alone predicts training functions best."""
        train, model = self.splits.train, self.model()
        assert isinstance(model, FieldOperator)
        model.start[model.field.amplitudes()] = 0.0  # so that the field is 0
        for parameter in model.head.parameters():
            parameter.zero_()
        part = train.select(torch.arange(min(len(train), TRIED)))
        batch = self._batch(draw_samples(part.given, shown, torch.Generator().manual_seed(0)), part.targets)

        def best(
            smoothings: Sequence[float], radials: Iterable[Radial], count: int = TRIED
        ) -> tuple[float, float, Radial]:
            some = {name: each[:count] for name, each in batch.items()}
            samples, placed = (some["pos"], some["values"], some["mask"]), self._place(model, some)

            def error(smoothing: float, radial: Radial) -> float:
                found = splined(placed, *samples, smoothing=smoothing, radial=radial)(some["target_pos"])
                return float(self._errors(found, some).mean())

            found = ((error(smoothing, radial), smoothing, radial) for radial in radials for smoothing in smoothings)
            return min(found, key=lambda each: each[0])

        tried = [best(SMOOTHINGS, [Radial()])]
        for name in COVARIANCES:
            radials = (Radial(name=name, length=length) for length in LENGTHS)
            _, _, radial = best((NOISES[1], NOISES[4]), radials, TRIED_FIRST)
            tried.append(best(NOISES, [radial]))
        _, smoothing, radial = min(tried, key=lambda each: each[0])
        return smoothing, radial

    def metrics(self) -> "dict[str, Metric]":
        """Returns `relative_error`, ‖f - u‖ / ‖u‖ at target samples in data units, averaged over functions, and `loss`.

        A function that is 0 at all its samples is measured relative to the training deviation. `loss` is the mean
        squared error of standardised values.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        with importing_metrics():
            from fredholm.tasks.mean_metrics import Mean
        return {"relative_error": Mean(), "loss": Mean()}

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Updates the metrics with a batch of `held_out_batch`."""
        found = self._refined(model, batch)(batch["target_pos"]).float()
        metrics["loss"].update(self._errors(found, batch))
        # in float64, as the squares of float32 numbers may exceed its range
        found, truth = found.double(), batch["target_values"]
        exists, deviation = batch["target_mask"][..., None], self._target_scale.deviation.to(found)
        norm = torch.where(exists, self._target_scale.in_deviations(truth) * deviation, 0.0).flatten(1).norm(dim=1)
        error = torch.where(exists, (found - truth) * deviation, 0.0).flatten(1).norm(dim=1)
        zero = (exists * deviation).flatten(1).norm(dim=1)
        metrics["relative_error"].update(error / torch.where(norm > 0, norm, zero))

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`; from samples at any points to any evaluation points."""
        facts, config = self._facts, self.config
        if config.refine_steps:
            raise ValueError(
                f"each field is fitted to its samples in {config.refine_steps} steps of an optimiser (refine_steps), "
                "which no graph of operations holds; train without them"
            )

        def call(model: nn.Module, pos: Tensor, values: Tensor, exists: Tensor, places: Tensor) -> Tensor:
            batch = {"pos": pos, "values": torch.where(exists[..., None], self._scale.standardised(values), 0.0)}
            batch["mask"] = exists
            if config.weigh_frame:
                batch["frame_weights"] = torch.where(exists, values.float().norm(dim=-1), 0.0)
            return self._target_scale.in_unit(self._refined(model, batch)(places).float())

        def draw(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
            batch, count, num_places, axes = sizes["batch"], sizes["samples"], sizes["places"], len(facts.coordinates)
            pos = torch.randn(batch, count, axes, generator=generator, dtype=torch.float64)
            values = self._scale.in_unit(torch.randn(batch, count, len(facts.channels), generator=generator))
            places = torch.randn(batch, num_places, axes, generator=generator, dtype=torch.float64) / 2
            exists = first_of_each(batch, count)
            return torch.where(exists[..., None], pos, 0.0), values, exists, places

        return form_of_samples(
            model,
            call,
            draw,
            coordinates=facts.coordinates,
            channels=facts.channels,
            predicted=facts.target_channels,
            about=f"{', '.join(facts.target_channels)} at each place, in the unit of the data",
        )

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """Returns `file`, `field`, coordinates, values and whether the samples are `far`, per evaluation point.

        Where values are saved or drawn, a row has the smallest and the largest value of a field.

        Raises:
            ValueError: a file cannot be read or does not fit, or a picture lacks a grid.
        """
        self.config.answer.check(inputs.outputs, inputs.at)
        found: list[tuple[Path, Evaluated]] = []
        for file, predicted in inputs.read(lambda file: self._predicted(model, file, inputs, device), self.config.csv):
            found += [(file, one) for one in predicted]
        answer, facts = self.config.answer, self._facts
        return answered(answer, inputs.outputs, found, facts.coordinates, facts.target_channels)

    def _predicted(self, model: nn.Module, file: Path, inputs: Inputs, device: torch.device) -> list[Evaluated]:
        """Returns the fields of a file, each at its evaluation points."""
        facts, predicted = self._facts, list[Evaluated]()
        fields = read_fields(file, coordinates=facts.coordinates, channels=facts.channels, part=inputs.part)
        points = places(self.config.answer, fields, inputs.at)
        for indices in torch.arange(len(fields)).split(CHUNK):
            part = fields.select(indices)
            shown = to_device(self._shown(part.given), device)
            for name, values in zip(part.names, shown["values"], strict=True):
                if not bool(values.isfinite().all()):
                    raise ValueError(f"{name}: a value is too far from those of training for float32")
            predicted += map(refuse_no_number, self._evaluated(model, shown, part, [points[i] for i in indices]))
        return predicted

    def _evaluated(self, model: nn.Module, batch: Batch, part: FieldSet, points: Sequence[Tensor]) -> list[Evaluated]:
        """Returns the fields of a batch, each at its own evaluation points."""
        placed = self._refined(model, batch)
        longest = max(len(pos) for pos in points)
        pos = torch.stack([torch.cat([pos, pos[:1].expand(longest - len(pos), -1)]) for pos in points])
        values, is_far = placed.sample(pos.to(batch["pos"].device))
        values = self._target_scale.in_unit(values.float().cpu())
        return [
            Evaluated(name, own, values[i, : len(own)], is_far[i, : len(own)].cpu())
            for i, (name, own) in enumerate(zip(part.names, points, strict=True))
        ]
