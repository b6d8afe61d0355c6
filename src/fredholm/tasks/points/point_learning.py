"""Predicting the class of a point cloud, numbers of a cloud, or the class of each of its points."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Self, final, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_rate, filled, refuse_idle
from fredholm.encoders.points import PointBatch, PointCloud
from fredholm.models.cloud_model import CloudModelConfig
from fredholm.models.fitted.boosted_trees import affordable_trees
from fredholm.models.fitted.cloud_machine import CloudMachine, CloudReading
from fredholm.models.images.infvit import InfViT
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS, LowRankConfig
from fredholm.models.pointnet import EdgeConvolution, PointPooling
from fredholm.models.signal_model import SignalModel
from fredholm.models.stack import Stack, stack_of
from fredholm.tasks.baselines import BaselineExamples, drawn_elements
from fredholm.tasks.files.cells import rounding_of
from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.files.npz_arrays import ARRAY_SUFFIXES
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.outputs import Outputs
from fredholm.tasks.points import NORMAL, NUM_SAMPLES, PointSet, csv_bytes, open_points, read_points
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Effort, note_on_network, schedule_at_once, schedule_for, width_for
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, Splits
from fredholm.tasks.splits.splitting import DividedTask, Parts
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import TARGETS, UNKNOWN, Answers, ElementCounts, ElementTarget, Known, Target
from fredholm.tasks.targets.labels_table import TABLE
from fredholm.tasks.task import (
    Batch,
    EntryNames,
    Recommended,
    Task,
    Trained,
    head_entry_names,
    input_entry_names,
    own_facts,
    to_device,
)
from fredholm.tasks.tensor_form import BATCH, Axis, OpenAxis, Sizes, Slot, TensorForm, first_of_each
from fredholm.tasks.views import PointsView, ShownExample, device_of

from .augmentation import CloudAugmentation
from .baseline_features import cloud_features, point_features
from .open import KINDS as POINT_SUFFIXES
from .rows import LEAST_RADIUS, CloudRows
from .turns import turned

Predicted = Literal["cloud", "points", "number"]
"""The kinds of targets: the class of a cloud, the class of each of its points, or numbers of a cloud."""
CHUNK = 32
"""Clouds that are predicted, or read by a machine, at a time."""
FEW_CLOUDS = 500
"""Training clouds up to which a closed-form machine is the default."""
MACHINE_POINTS = 256
"""Points of a cloud that a machine reads by default; it compares all pairs of them."""
_FOR_NETWORKS = ("num_centres", "position_frequencies", "position_sigma", "num_neighbours")
"""Settings that only networks read, beside `augmentation` and `label_smoothing`."""


def _small() -> SignalModel.Config:
    kernel = LowRankConfig(rank=8, width=32, num_frequencies=16, sigma=1.0)
    return ITNet.Config(embed_dim=64, depth=3, kernel=kernel, dropout=0.0)


@final
class PointLearning(TargetTask[PointSet], DividedTask[PointSet]):
    """A model on point clouds that predicts the class or numbers of each cloud, or the class of each point; ITNet K.3.

    Features except normals are standardised by the training split's mean and deviation. Clouds of other sizes are
    padded to the largest of their batch.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the training split.

    Raises:
        ValueError: the data cannot be opened, lack such labels, have a single class, or do not match `facts`.
    """

    command: ClassVar[str] = "points"
    predicts = Kinds(suffixes=(*POINT_SUFFIXES, ".npy"), has_parts=True)
    writes: ClassVar[Mapping[str, tuple[str, ...]]] = {"save": ()}
    parts: ClassVar[tuple[type, ...]] = (
        *(CloudMachine.Config, ITNet.Config, InfViT.Config, PointPooling.Config, EdgeConvolution.Config),
        *KERNELS,
        *TARGETS,
    )

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts about the training split.

        `mean` and `deviation` are of features, one each, 0 and 1 for those of a normal; `size` has the mean and
        deviation of the logarithm of the radius of a cloud.
        """

        target: Target
        channels: tuple[str, ...]
        mean: tuple[float, ...]
        deviation: tuple[float, ...]
        is_weighted: bool
        """Whether points have weights of their own."""
        size: tuple[float, float]

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetTask.NumbersConfig):
        """The clouds, the inputs of the model, and the model.

        Args:
            data: a folder of meshes or clouds, with one subfolder a class, or an .npz file; see `open_points`.
            channels: names of the features of .xyz and .npz files that have no names; nx, ny and nz are the components
                of a normal.
            target: the kind of target: the class of a cloud, the class of each of its points, or numbers of a cloud;
                None: classes of points where these have labels, else whichever the clouds have.
            num_samples: points drawn on the surface of each mesh, the same each time.
            normals: add the normals of meshes as features.
            num_points: most points of a cloud that the model reads at a time; they are drawn anew in every training
                batch, and once in others. None: all. Where points are classified, a larger cloud is read in parts of
                this size.
            num_centres: number of points at which the model works, chosen by farthest point sampling; the others are
                read as neighbours of these. None: all. Refused where points are classified.
            normalise: bring each cloud into the unit sphere; else coordinates are taken as they are, from -1 to 1.
            align: turn each cloud so that it is longest along z and shortest along x, however it was turned before; its
                farther end is above. Refused with an augmentation that turns it, which would change nothing.
            position_frequencies: Fourier frequencies of the position features of the signal (kernels have their own);
                0: the coordinates themselves.
            position_sigma: standard deviation of these frequencies, in cycles a diameter; refused where there are none.
            num_neighbours: nearest points whose arrangement around each point enters the signal; 0: none.
            sizes: a further feature, the logarithm of the radius of the cloud, which `normalise` hides.
            augmentation: random changes to training clouds.
            label_smoothing: share of each label that is spread over all classes.
            votes: copies of a cloud whose probabilities are averaged in evaluation and prediction: the cloud itself,
                and copies that are drawn and changed as in training, the same each time.
            model: a network on the points, or a machine that is fitted to the training clouds in closed form.
        """

        data: str = ""
        channels: tuple[str, ...] = ()
        target: Predicted | None = None
        num_samples: int = NUM_SAMPLES
        normals: bool = False
        num_points: int | None = 1024
        num_centres: int | None = None
        normalise: bool = True
        align: bool = False
        position_frequencies: int = 16
        position_sigma: float = 1.0
        num_neighbours: int = 16
        sizes: bool = False
        augmentation: CloudAugmentation.Config = field(default_factory=CloudAugmentation.Config)
        label_smoothing: float = 0.0
        votes: int = 1
        model: CloudModelConfig = field(default_factory=_small)

        weight_settings: ClassVar[tuple[str, ...]] = (
            "normalise",
            "align",
            "position_frequencies",
            "position_sigma",
            "num_neighbours",
            "sizes",
            "model",
        )

        @property
        def unmeasured_settings(self) -> tuple[str, ...]:
            """See `Task.Config.unmeasured_settings`."""
            return "label_smoothing", *(("augmentation",) if self.votes == 1 else ())

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            of_votes = ("augmentation",) if self.votes > 1 else ()
            return "csv", "num_samples", "normals", "num_points", "num_centres", "votes", *of_votes

        def __post_init__(self) -> None:
            if self.target not in (None, *get_args(Predicted)):
                raise ValueError(f"target is {self.target!r}; expected one of {', '.join(get_args(Predicted))}")
            for name, least in (("num_samples", 1), ("num_neighbours", 0), ("position_frequencies", 0), ("votes", 1)):
                check_count("points", name, getattr(self, name), least)
            check_rate("points", "label_smoothing", self.label_smoothing)
            for name in ("num_points", "num_centres"):
                if getattr(self, name) is not None:
                    check_count("points", name, getattr(self, name))
            if self.num_points is not None and self.num_centres is not None and self.num_centres >= self.num_points:
                raise ValueError(
                    f"num_centres is {self.num_centres}, of num_points={self.num_points}; pass fewer, or leave it out"
                )
            if self.position_frequencies == 0:
                none, given = "position_frequencies=0", {"position_sigma": self.position_sigma}
                refuse_idle("", type(self), none, "give position_frequencies", **given)
            if self.align:
                rotation = self.augmentation.rotation
                refuse_idle("", CloudAugmentation.Config, "align, which undoes it", "do not align", rotation=rotation)
            if isinstance(self.model, CloudMachine.Config):
                self._check_machine(self.model)
            if self.augmentation.changes_nothing and self.num_points is None:
                all_alike = "nothing drawn or augmented, so that all copies are alike"
                refuse_idle("", type(self), all_alike, "give an augmentation", votes=self.votes)

        def _check_machine(self, machine: CloudMachine.Config) -> None:
            because = "model=CloudMachine, which is computed from clouds as they are"
            names, instead = [*_FOR_NETWORKS, "label_smoothing"], "take a network, such as itnet"
            if self.valid_fraction != 0:
                names.append("valid_fraction")
            refuse_idle("", type(self), because, instead, **{name: getattr(self, name) for name in names})
            if not self.augmentation.changes_nothing:
                raise ValueError(f"augmentation has no effect with {because}; leave it out, or {instead}")
            if self.align and machine.turns == "all":
                because = "model.turns='all', by which no turn changes what is read"
                refuse_idle("", type(self), because, "do not align", align=self.align)

        def _may_have_machine(self, task: "PointLearning", effort: Effort, start: Trained | None) -> bool:
            """Whether a machine may be recommended: clouds are few, it can read them, and no model was chosen."""
            is_open = self.model == PointLearning.Config().model and start is None and not effort.keeps_model
            is_read = not (task.classifies_points or task.facts.is_weighted)
            return is_open and is_read and len(task.splits.train) <= FEW_CLOUDS

        def _note_on_network(self, effort: Effort) -> str | None:
            """See `note_on_network`, for clouds that a machine may be recommended for."""
            names = ("align", "augmentation", *_FOR_NETWORKS, "label_smoothing")
            instead = f"a cloud machine, fitted in closed form and better on up to {FEW_CLOUDS} clouds"
            return note_on_network(self, PointLearning.Config(), names, effort, instead)

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: the number of points, the augmentation, and the model's size.

            Numbers may depend on the size and the orientation of a cloud: the size is then a feature, and clouds are
            neither stretched nor turned.
            """
            default, task = PointLearning.Config(), self.build()
            note = self._note_on_network(effort)
            may_have = self._may_have_machine(task, effort, start)
            if isinstance(self.model, CloudMachine.Config) or (may_have and note is None):
                return self._recommended_machine(task, effort)
            notes = (note,) if may_have and note is not None else ()
            train, is_small = task.splits.train, effort.preset == "small"
            config = filled(self, [default], num_points=max(512 if is_small else 1024, 2 * (self.num_centres or 0)))
            if task.target.kind == "number":
                config = filled(config, [default], augmentation=CloudAugmentation.Config(jitter=0.01), sizes=True)
            else:
                lie = turned(train)
                config = filled(
                    config,
                    [default],
                    augmentation=CloudAugmentation.Config(
                        scale=(0.8, 1.25), jitter=0.01, rotation="axis" if lie == "axis" else "none"
                    ),
                    align=lie == "all" and self.augmentation.rotation == "none",
                    label_smoothing=0.1,
                )
            width = width_for(len(train), effort, least=64, up_to=1000)
            model = config.network.resized(width, 3 if is_small else 6, default.network)
            if not task.classifies_points:
                most = 64 if is_small else 256
                largest = int(train.sizes.max())
                seen = largest if config.num_points is None else min(largest, config.num_points)
                config = filled(config, [default], num_centres=most if seen > most else None)
                if isinstance(model, type(default.network)):
                    model = filled(model, [default.network], pool="max")
            config = dataclasses.replace(config, model=model)
            schedule = schedule_for(len(train), effort, has_valid=task.num_held_out("valid") > 0)
            return Recommended(config, schedule, notes)

        def _recommended_machine(self, task: "PointLearning", effort: Effort) -> Recommended:
            """Recommended settings for a machine: its rotations, its trees, the number of points, and the size."""
            usual, train = CloudMachine.Config(), task.splits.train
            model = self.model if isinstance(self.model, CloudMachine.Config) else usual
            turns = "none" if task.target.kind == "number" or self.align else turned(train)
            num_trees = affordable_trees(model.num_trees, task.target.num_outputs)
            model = filled(model, [usual], turns=turns, num_trees=num_trees)
            config = filled(self, [PointLearning.Config()], num_points=MACHINE_POINTS)
            if task.target.kind == "number":
                config = filled(config, [PointLearning.Config()], sizes=True)
            return Recommended(dataclasses.replace(config, model=model), schedule_at_once(len(train), effort))

        @property
        def network(self) -> SignalModel.Config:
            """The model if it is a network, else the default network."""
            return self.model if isinstance(self.model, SignalModel.Config) else _small()

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`: the network, the default one where the model is a machine."""
            return stack_of(self.network)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`."""
            return dataclasses.replace(self, model=stack)

        def build(self, facts: Task.Facts | None = None) -> "PointLearning":
            """The task; see `PointLearning`."""
            return PointLearning(self, own_facts(facts, PointLearning.Facts, "point clouds"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._learn_facts()
        facts = self._facts
        predicted = "points" if self.classifies_points else "number" if facts.target.kind == "number" else "cloud"
        if config.target not in (None, predicted):
            raise ValueError(f"target is {config.target!r}; the run was made with {predicted!r}")
        if predicted == "number":
            instead = "leave it at 0"
            refuse_idle("", PointLearning.Config, "numbers", instead, label_smoothing=config.label_smoothing)
        self._set_target(facts.target, config.target_settings)
        self._model_config = _model_for(config, facts)
        self._rows = CloudRows(
            facts.target,
            channels=facts.channels,
            mean=facts.mean,
            deviation=facts.deviation,
            size=facts.size if config.sizes else None,
            num_points=config.num_points,
            augmentation=config.augmentation,
            align=config.align,
        )

    @property
    def facts(self) -> Facts:
        """Facts about the training split."""
        return self._facts

    @property
    def learns_by_steps(self) -> bool:
        """Whether the model is a network, trained step by step."""
        return self.config.model.learns_by_steps

    @property
    def classifies_points(self) -> bool:
        """Whether each point is classified, not each cloud."""
        return isinstance(self._facts.target, ElementTarget)

    @property
    def _inputs(self) -> tuple[str, ...]:
        """Names of the features of a point that the model reads beside its position."""
        return (*self._facts.channels, *(("size of the cloud",) if self.config.sizes else ()))

    @cached_property
    def _clouds(self) -> PointSet:
        """All clouds."""
        config = self.config
        if not config.data:
            raise ValueError("no clouds are given; pass a folder of meshes or clouds, or an .npz file")
        kind = None if config.target in (None, "points") else "number" if config.target == "number" else "class"
        with config.csv.reading(config.data):
            return open_points(
                config.data,
                num_samples=config.num_samples,
                normals=config.normals,
                channels=config.channels,
                kind=kind,
            )

    @cached_property
    def _split(self) -> Parts:
        clouds, root = self._clouds, str(user_path(self.config.data))
        names = [name.removeprefix(root) for name in clouds.names]  # independent of the place of the data
        labels = [0] * len(clouds) if clouds.labels is None else clouds.labels.tolist()
        keys = clouds.marks.keys(names, labels)
        return self._divided(keys, clouds.marks.given, needs_valid=self.learns_by_steps)

    def _part(self, numbers: Tensor) -> PointSet:
        return self._clouds.select(numbers)

    def _learn_facts(self) -> Facts:
        """The facts of the training split; a constant feature has deviation 1, so that it becomes 0."""
        config, train = self.config, self._opened.train
        predicted: Predicted = config.target or ("cloud" if train.point_labels is None else "points")
        sizes = torch.tensor([_log_radius(pos) for pos in train.pos.split(train.sizes.tolist())], dtype=torch.float64)
        sizes = sizes[sizes.isfinite()] if bool(sizes.isfinite().any()) else torch.zeros(1).double()
        spread = float(sizes.std(correction=0))
        features = train.features.double()
        mean = features.mean(0)
        deviation = (features - mean).square().mean(0).sqrt()
        is_constant = deviation <= rounding_of(train.features.dtype) * mean.abs()
        has_normals = set(NORMAL) <= set(train.channels)
        is_normal = torch.tensor([has_normals and name in NORMAL for name in train.channels]).bool()
        return PointLearning.Facts(
            target=known_answers(train, predicted, config.data).learn(config.target_settings, config.data),
            channels=train.channels,
            mean=tuple(torch.where(is_normal, 0.0, mean).tolist()),
            deviation=tuple(torch.where(is_normal | is_constant, 1.0, deviation).tolist()),
            is_weighted=train.weights is not None,
            size=(float(sizes.mean()), spread if spread > 1e-6 else 1.0),
        )

    def _check(self, splits: Splits[PointSet]) -> None:
        data = self.config.data
        self.target.check(known_answers(splits.train, "points" if self.classifies_points else "cloud", data), data)
        self._check_weights(splits.train, data)
        splits.check_facts(self._facts, data, apart_from=("classes", "target_names", "point_classes"))

    @property
    def train_lengths(self) -> Tensor | None:
        """The number of points of each training cloud that the model reads; None: equal for all."""
        sizes = self.splits.train.sizes
        sizes = sizes if self.config.num_points is None else sizes.clamp(max=self.config.num_points)
        return None if bool((sizes == sizes[0]).all()) else sizes

    def model(self) -> nn.Module:
        """The model with the outputs of the target; a network is built on an encoder of points."""
        config, model = self.config, self._model_config
        if isinstance(model, CloudMachine.Config):
            names = self._inputs
            normal = tuple(names.index(name) for name in NORMAL) if set(NORMAL) <= set(names) else ()
            reading = CloudReading(num_features=len(names), normal=normal, keeps_place=not config.normalise)
            return model.build(reading, self.target.num_outputs)
        clouds = PointCloud.Config(
            num_features=len(self._inputs),
            normalise=config.normalise,
            num_frequencies=config.position_frequencies,
            sigma=config.position_sigma,
            num_neighbours=config.num_neighbours,
            num_centres=config.num_centres,
        )
        return model.build(PointCloud(clouds, model.embed_dim), self.target.num_outputs)

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a machine to all training clouds, without augmentation."""
        if not isinstance(model, CloudMachine):
            return
        train, batches = self.splits.train, list[tuple[PointBatch, Tensor]]()
        for indices in torch.arange(len(train)).split(CHUNK):
            batch = to_device(self._rows.whole(train.select(indices), votes=1), device)
            batches.append((self._rows.given(batch), batch["targets"]))
        model.fit(batches, self.target, groups=train.marks.group_numbers(device))

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: targets name the rows of the head, features the columns of the encoder."""
        return head_entry_names(model, self.target.output_names) | input_entry_names(model, self._inputs)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Augmented clouds, `pos` (B, N, 3), `mask` (B, N) and, where the data have some, `features` and `weights`.

        `targets` are (B,) or, of points, (B, N), `UNKNOWN` where there is no point.
        """
        return self._rows.drawn(self.splits.train.select(indices), generator)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Clouds of a held-out split, unaugmented; one row each, or several for parts and votes.

        A batch as from `train_batch`, with `cloud` (B,), the index in the batch of the cloud of a row, and `point`
        (B, N), the indices of its points in the cloud.
        """
        return self._rows.whole(self.held_out(split).select(indices), votes=self.config.votes)

    @torch.no_grad()
    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: the points; where they have classes also those that the model predicts."""
        cloud = self.held_out(split).select(torch.tensor([index]))
        if not self.classifies_points or cloud.point_labels is None:
            return ShownExample(name=cloud.names[0], views=(PointsView(pos=cloud.pos),))
        names = self.target.names
        known = torch.where(cloud.point_labels < 0, -1, cloud.point_labels)
        views = [PointsView(title="truth", pos=cloud.pos, kinds=known, names=names)]
        if model is not None:
            predicted = self.probabilities(model, cloud, device_of(model))[0].argmax(-1)
            views.append(PointsView(title="answer", pos=cloud.pos, kinds=predicted, names=names))
        return ShownExample(name=cloud.names[0], views=tuple(views))

    @property
    def _smoothing(self) -> float:
        return self.config.label_smoothing

    def _outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(self._rows.given(batch)).float()

    def _probabilities(self, model: nn.Module, batch: Batch) -> Tensor:
        """Probabilities of each cloud or point, or predicted numbers; see `CloudRows.averaged`."""
        predicted = torch.cat([self._outputs(model, part) for part in self._rows.votes_of(batch)])
        return self._rows.averaged(predicted, batch)

    def _measured(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Log probabilities of each cloud or point with a known class, or predicted numbers; with the targets."""
        predicted, targets = self._probabilities(model, batch), self._rows.targets_of(batch)
        if self.target.kind == "number":
            yield predicted, targets
            return
        if self.classifies_points:
            predicted, targets = predicted[targets != UNKNOWN], targets[targets != UNKNOWN]
        yield predicted.clamp(min=1e-12).log(), targets

    @property
    def _train_answers(self) -> Answers | None:
        return None if self.classifies_points else self.splits.train.answers

    def _baseline_examples(self, split: Split) -> BaselineExamples:
        """See `TargetTask._baseline_examples`: where points are classified, `point_features` of points with a class."""
        if not self.classifies_points:
            return super()._baseline_examples(split)
        part, inputs, targets = self._part_of(split), list[np.ndarray](), list[Tensor]()
        assert part.point_labels is not None
        known = [labels >= 0 for labels in part.point_labels.split(part.sizes.tolist())]
        for number, drawn in enumerate(drawn_elements([int(each.sum()) for each in known], split)):
            if len(drawn):
                points = known[number].nonzero()[drawn, 0]
                inputs.append(point_features(part, number, points))
                targets.append(part.point_labels[part.offsets[number] + points])
        if not inputs:
            raise ValueError(f"no point of the {split} split has a class that is known")
        return BaselineExamples(np.concatenate(inputs), torch.cat(targets))

    def _baseline_inputs(self, split: Split) -> np.ndarray:
        """The `cloud_features` of each cloud."""
        part = self._part_of(split)
        return np.stack([cloud_features(part, i) for i in range(len(part))])

    @torch.no_grad()
    def probabilities(self, model: nn.Module, clouds: PointSet, device: torch.device) -> list[Tensor]:
        """For each cloud probabilities `(classes,)`, or `(N, classes)` of its points, or predicted numbers."""
        predicted: list[Tensor] = []
        for indices in torch.arange(len(clouds)).split(CHUNK):
            part = clouds.select(indices)
            batch = self._rows.whole(part, votes=self.config.votes)
            moved = {name: tensor.to(device) for name, tensor in batch.items() if name != "targets"}
            found = self._probabilities(model, moved).cpu()
            predicted += [
                own[:size] if self.classifies_points else own for own, size in zip(found, part.sizes, strict=True)
            ]
        return predicted

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: a model that takes the points of one row each."""
        facts, target, config = self._facts, self.target, self.config
        points, channels = Axis("points"), facts.channels

        def call(model: nn.Module, pos: Tensor, exists: Tensor, *more: Tensor) -> Tensor:
            batch = {"pos": torch.where(exists[..., None], pos, 0.0), "mask": exists}
            if channels:
                batch["features"] = torch.where(exists[..., None], self._rows.standardised(more[0]), 0.0)
            batch = self._rows.aligned(batch)
            weights = torch.where(exists, more[-1], 0.0) if facts.is_weighted else None
            whole = PointBatch(batch["pos"], self._rows.features(batch), exists, weights)
            return target.answers(model(whole).float())

        def draw(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
            shape = sizes["batch"], sizes["points"]
            pos = torch.randn(*shape, 3, generator=generator).double() * torch.tensor([0.2, 0.3, 0.5])
            more = list[Tensor]()
            if channels:
                noise = torch.randn(*shape, len(channels), generator=generator, dtype=torch.float64)
                more.append(torch.tensor(facts.mean) + torch.tensor(facts.deviation) * noise)
            if facts.is_weighted:
                more.append(0.5 + torch.rand(shape, generator=generator))
            return pos, first_of_each(*shape), *more

        notes = ["points of a mesh are drawn uniformly on its surface"]
        if not config.normalise:
            notes.append("coordinates run from -1 to 1")
        if config.num_points is not None:
            notes.append(f"in training the model read up to {config.num_points} points at a time, drawn from a cloud")
        if config.votes > 1:
            notes.append(f"fredholm predict averages {config.votes} such calls with different points")
        # more points than the encoder looks for: twice the neighbours, since ties are broken by index
        example = 4 + max(12, config.num_centres or 0, 2 * config.num_neighbours)
        return TensorForm(
            model=model,
            call=call,
            inputs=(
                Slot("pos", (BATCH, points, Axis("coordinates", 3)), "x, y and z of each point"),
                Slot("exists", (BATCH, points), "which points a cloud has; the others come last"),
                *((self._feature_slot(points),) if channels else ()),
                *((Slot("weights", (BATCH, points), "mass of each point, at least 0"),) if facts.is_weighted else ()),
            ),
            output=target.slot(BATCH, *((points,) if self.classifies_points else ())),
            draw=draw,
            open_axes={"points": OpenAxis(example, example + 7, config.num_points or 1024)},
            names=target.axis_names,
            notes=tuple(notes),
        )

    def _feature_slot(self, points: Axis) -> Slot:
        channels = self._facts.channels
        return Slot(
            "features", (BATCH, points, Axis("features", len(channels))), f"{', '.join(channels)} of each point"
        )

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each cloud of each file: `file`, `cloud`, and numbers, or the likeliest `class` and `probability`.

        Where points are classified, a row for each point, with its `x`, `y` and `z`. Where they are saved, as
        NAME.csv, or NAME-CLOUD.csv for several clouds of a file, a row for each cloud with the path `saved` and the
        number of its `points`.

        Raises:
            ValueError: a file cannot be read or does not fit, a file to write exists already, or clouds are classified
                and to be saved.
        """
        if inputs.outputs.save is not None:
            if not self.classifies_points:
                predicted_kind = (
                    "numbers of clouds are predicted" if self.target.kind == "number" else "clouds are classified"
                )
                raise ValueError(f"--save has no effect where {predicted_kind}; leave it out")
            singles = [file for file in inputs.files if file.suffix.lower() not in ARRAY_SUFFIXES]
            inputs.outputs.check_folder([(file, f"{file.stem}.csv") for file in singles])
        rows: list[Prediction] = []
        for file, found in inputs.read(lambda file: self._read(file, inputs.part), self.config.csv):
            for i, predicted in enumerate(self.probabilities(model, found, device)):
                name = found.names[i].removeprefix(str(file)).removeprefix(":")
                rows += self._answer(file, name, found.select(torch.tensor([i])), predicted, inputs.outputs)
        return rows

    def _read(self, file: Path, part: Split | None) -> PointSet:
        config, channels = self.config, self._facts.channels
        found = read_points(file, num_samples=config.num_samples, normals=config.normals, channels=channels, part=part)
        self._check_weights(found, str(file))
        return found

    def _check_weights(self, clouds: PointSet, data: str) -> None:
        known = self._facts.is_weighted
        if known != (clouds.weights is not None):
            got, had, instead = ("no weights", "weights", "give them weights")
            if not known:
                got, had, instead = ("weights", "no weights", "leave the weights out")
            raise ValueError(f"{data}: points have {got}; in training they had {had}: {instead}")

    def _answer(self, file: Path, name: str, cloud: PointSet, predicted: Tensor, outputs: Outputs) -> list[Prediction]:
        """The rows of one cloud."""
        classes, head = self.target.names, {"cloud": name}
        if self.target.kind == "number":
            cells, _ = self.target.answer(predicted)
            return [Prediction(file, {**head, **cells}, {})]
        if not self.classifies_points:
            return [Prediction(file, head, dict(zip(classes, predicted.tolist(), strict=True)))]
        pos = cloud.pos.tolist()
        if outputs.save is not None:
            path = outputs.save / f"{file.stem}{f'-{name}' if name else ''}.csv"
            labels = [classes[label] for label in predicted[: len(pos)].argmax(-1).tolist()]
            outputs.write("--save", path, csv_bytes(pos, labels))
            return [Prediction(file, {**head, "saved": str(path), "points": float(len(pos))})]
        return [
            Prediction(file, {**head, **dict(zip("xyz", where, strict=True))}, dict(zip(classes, each, strict=True)))
            for where, each in zip(pos, predicted[: len(pos)].tolist(), strict=True)
        ]


def known_answers(clouds: PointSet, predicted: Predicted, data: str) -> Known:
    """The labels or targets of clouds, or the labels of their points.

    Raises:
        ValueError: there are none.
    """
    if predicted != "points":
        if clouds.answers is None:
            raise ValueError(
                f"the clouds of {data} have no classes and no numbers to learn; put them into a folder a "
                f"class, or name them in {TABLE}"
            )
        return clouds.answers
    if clouds.point_labels is None:
        raise ValueError(f"target is 'points', but the points of {data} have no labels; leave target out, or add some")
    counts = clouds.point_labels.bincount(minlength=len(clouds.point_classes))
    return ElementCounts(names=clouds.point_classes, counts=counts)


def _log_radius(pos: Tensor) -> float:
    """The logarithm of the radius of a cloud `(N, 3)`; -infinity where its points coincide."""
    radius = float((pos - pos.mean(0)).norm(dim=1).max())
    return math.log(max(radius, LEAST_RADIUS)) if radius > 0 else -math.inf


def _model_for(config: PointLearning.Config, facts: PointLearning.Facts) -> SignalModel.Config | CloudMachine.Config:
    """The config of the model, with one output for each cloud, or at every point where points are classified.

    Raises:
        ValueError: a setting has no effect or leaves points without a prediction, or a machine cannot read the data.
    """
    model, classifies_points = config.model, isinstance(facts.target, ElementTarget)
    if isinstance(model, CloudMachine.Config):
        if classifies_points or facts.is_weighted:
            cannot = "classifies no points" if classifies_points else "reads no weights of points"
            raise ValueError(f"model is CloudMachine, which {cannot}; take a network, such as the model itnet")
        return model
    if not isinstance(model, SignalModel.Config):
        raise ValueError(f"model is {type(model).__qualname__}; expected a network or CloudMachine.Config")
    if not classifies_points:
        model.check_pools("a cloud")
        return model
    if config.num_centres is not None:
        raise ValueError(f"num_centres is {config.num_centres}, but each point is to be classified; leave it out")
    return model.answering_everywhere("each point")
