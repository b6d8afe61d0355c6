"""Predicting the class, the labels or numbers of an image."""

import dataclasses
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from fredholm._settings import check_count, class_name, filled, refuse_idle
from fredholm.encoders.encoder import Encoder
from fredholm.encoders.image import Image
from fredholm.models.blended import BlendedImages
from fredholm.models.fitted.banks.image_bank import ImageBank
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.images.convnext import ConvNeXt
from fredholm.models.images.image_model import ImageModelConfig, ImageReading, Room
from fredholm.models.images.infvit import InfViT
from fredholm.models.images.vit import ViT
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS, AttentionConfig, ConvolutionConfig, SumConfig
from fredholm.models.model_settings import Pretrained
from fredholm.models.signal_model import SignalModel
from fredholm.models.stack import Stack, stack_of
from fredholm.pretrained import PretrainedImages
from fredholm.pretrained.pixels import PREPROCESSOR
from fredholm.tasks.baselines import baseline_pixels
from fredholm.tasks.blending import BlendingTask, check_has_valid
from fredholm.tasks.files.arrow_table import COLUMN_SUFFIXES
from fredholm.tasks.files.npz_arrays import ARRAY_SUFFIXES
from fredholm.tasks.files.parts import refuse_part
from fredholm.tasks.files.terminal_text import first_few
from fredholm.tasks.images import (
    ImageDataset,
    moments,
    open_images,
    read_image_arrays,
    read_image_table,
    read_images,
)
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import (
    Effort,
    Preset,
    fine_tuning_for,
    note_on_network,
    rate_for,
    schedule_at_once,
    schedule_for,
    width_for,
)
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, Splits
from fredholm.tasks.splits.splitting import divided
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import TARGETS, Answers, Kind, Target, TargetSettings
from fredholm.tasks.task import (
    Batch,
    EntryNames,
    PretrainedWeights,
    Recommended,
    Task,
    Trained,
    head_entry_names,
    own_facts,
    recorded_checkpoint,
)
from fredholm.tasks.tensor_form import ABOUT_PIXELS, BATCH, Slot, TensorForm, pixel_axes, random_pixels, sizes_of
from fredholm.tasks.views import ImageView, ShownExample

from .augmentation import Augmentation
from .encoded_images import notes_on_sizes
from .mirroring import mirroring_keeps_targets
from .patches import STEM, divided_into_patches, in_whole_patches, patch_encoder
from .read import IMAGE_SUFFIXES

CHUNK = 64
MOST_OF_BANK = 400
"""Largest number of training images for which a bank alone predicts better than a network trained as long."""
MOST_WITH_BANK = 10_000
"""Largest number of training images for which a network has a bank beside it by default."""
MOST_BESIDE, MOST_VALUES = 3000, 1 << 27
"""Largest numbers of training images, and of their pixel values, that a bank beside a network is fitted to."""
MIN_STEPS = 5000
"""Fewest steps of a run by default: even with few images a network needs some hundreds before it learns."""
WITHOUT_DROPOUT = 20
"""Epochs up to which a network is trained without dropout."""
PHOTOGRAPHS = Augmentation.Config(horizontal_flip=0.5, shift=0.1, scale=(0.9, 1.1), label_smoothing=0.1)
"""The default augmentation of colour images, with mirroring, since a mirrored scene is still a scene."""
DRAWINGS = Augmentation.Config(shift=0.1, rotation=10.0, scale=(0.9, 1.1), label_smoothing=0.1)
"""The default augmentation of grey images, without mirroring: they may be letters."""
SIDES: dict[Preset, int] = {"small": 64, "base": 224}
"""Pixels of the longer side, to which larger images are scaled."""
PATCHES: dict[Preset, int] = {"small": 7, "base": 14}
"""Patches along the longer side, at most."""
BLOCKS: dict[Preset, int] = {"small": 1, "base": 4}
"""Blocks of the model behind the patches."""


def _small() -> SignalModel.Config:
    """The default network: depthwise convolution for near pixels, added to attention for far ones."""
    kernel = SumConfig(first=ConvolutionConfig(kernel_size=3, depthwise=True), second=AttentionConfig())
    return ITNet.Config(embed_dim=64, depth=1, kernel=kernel, pool="mean")


@final
class ImageLearning(BlendingTask[ImageDataset]):
    """A model on image patches that predicts classes, labels or numbers; ITNet K.1.

    Images are augmented in [0, 1] and then standardised by the training split's mean and deviation per channel, or by
    those of a checkpoint. Grey images are repeated to three channels where mean and deviation have three.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the training split.
        pretrained: the checkpoint that the settings name, if it is already open; None: it is opened here.

    Raises:
        ValueError: the data cannot be opened, have nothing to distinguish, or are not those of ``facts``.
        ImportError: reading them needs a package that is not installed.
    """

    command: ClassVar[str] = "images"
    predicts = Kinds(suffixes=(*IMAGE_SUFFIXES, *ARRAY_SUFFIXES, *COLUMN_SUFFIXES), has_parts=True)
    parts: ClassVar[tuple[type, ...]] = (
        ITNet.Config,
        InfViT.Config,
        ViT.Config,
        ConvNeXt.Config,
        ImageBank.Config,
        PretrainedImages,
        *KERNELS,
        *TARGETS,
    )

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts about the training split.

        ``mean`` and ``deviation`` are of pixels in [0, 1], one per channel of the model. ``model`` is the resolved
        configuration of a model from a checkpoint; None: the settings hold the whole configuration.
        """

        target: Target
        channels: int
        image_size: tuple[int, int]
        mean: tuple[float, ...]
        deviation: tuple[float, ...]
        model: ImageModelConfig | None = None

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetTask.NumbersConfig):
        """An image data set, how it is augmented, and the model.

        Args:
            data: digits (built in), an .npz, .parquet or .arrow file, a folder of such files, of MNIST-format idx
                files, one with a subfolder a class, one with a table labels.csv, or one that Hugging Face's datasets
                saved.
            target: kind of target: a class, any of several labels, or numbers; None: the kind that the data have.
            image_size: height and width to scale images to; None keeps theirs. A trained model may be measured at
                another size, which its patches divide.
            patch_size: side of a square patch, or height and width; it divides the image.
            stem_depth: residual convolutions on each grid between the pixels and the patches
                (`encoders.ConvolutionalImage`), 0 or more; None: patches are cut out, and mapped linearly.
            position_frequencies: Fourier frequencies of the position features of the signal (kernels have their own);
                0: none.
            position_sigma: standard deviation of these frequencies, in cycles per image side; refused where there are
                none.
            mean: mean of each channel, of pixels in [0, 1], by which images are standardised; empty: that of a
                checkpoint, or of the training split.
            deviation: standard deviation of each channel, given together with the mean.
            model: the model on the patches, or one that reads pixels itself, for which the settings of patches and
                positions are refused.
            bank: most training images of a bank of patches beside a network (`models.BlendedImages`). The validation
                split chooses its share in the prediction, so it is refused without one, and with objective='loss',
                which is the loss of the network alone. 0: no bank; None: none, unless a run recommends one.
            augmentation: random changes to the training images and targets.
        """

        data: str = "digits"
        target: Kind | None = None
        image_size: tuple[int, int] | None = None
        patch_size: int | tuple[int, int] = 16
        stem_depth: int | None = None
        position_frequencies: int = 64
        position_sigma: float = 10.0
        mean: tuple[float, ...] = ()
        deviation: tuple[float, ...] = ()
        model: ImageModelConfig = field(default_factory=_small)
        bank: int | None = None
        augmentation: Augmentation.Config = field(default_factory=Augmentation.Config)

        weight_settings: ClassVar[tuple[str, ...]] = (
            "patch_size",
            "stem_depth",
            "position_frequencies",
            "position_sigma",
            "mean",
            "deviation",
            "model",
            "bank",
        )

        @property
        def unmeasured_settings(self) -> tuple[str, ...]:
            """See `Task.Config.unmeasured_settings`."""
            return ("augmentation",)

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ()

        def __post_init__(self) -> None:
            self.model.check_pools("an image")
            _check_moments(self.mean, self.deviation)
            if self.stem_depth is not None:
                check_count("images", "stem_depth", self.stem_depth, 0)
            if not self.model.learns_by_steps:
                because, instead = (
                    f"model={class_name(self.model)}, which is fitted in closed form",
                    "take a model that learns by steps",
                )
                if self.augmentation != Augmentation.Config():
                    raise ValueError(f"augmentation has no effect with {because}; leave it out, or {instead}")
                if self.valid_fraction != 0:
                    refuse_idle("", type(self), because, instead, valid_fraction=self.valid_fraction)
                refuse_idle("", type(self), because, instead, bank=self.bank)
            if self.bank:
                check_count("images", "bank", self.bank, least=2)
                if self.objective == "loss":
                    raise ValueError(
                        f"objective='loss' is of the network alone, beside bank={self.bank}; leave one out"
                    )
            if not self.model.reads_encoder:
                names = ("patch_size", "stem_depth", "position_frequencies", "position_sigma")
                because = f"model={class_name(self.model)}, which reads pixels by itself"
                given = {name: getattr(self, name) for name in names}
                refuse_idle("", type(self), because, "take a model on patches, such as itnet", **given)
            elif self.position_frequencies == 0:
                none, given = "position_frequencies=0", {"position_sigma": self.position_sigma}
                refuse_idle("", type(self), none, "give position_frequencies", **given)

        def in_folder(self, folder: Path, facts: Task.Facts) -> Self:
            """See `Task.Config.in_folder`: model, mean and deviation of a checkpoint are taken from the facts."""
            assert isinstance(facts, ImageLearning.Facts)
            if facts.model is None:
                return self
            return dataclasses.replace(self, model=facts.model, mean=facts.mean, deviation=facts.deviation)

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: the size and patches of images, the model, and the augmentation."""
            pretrained = self.model.open_pretrained()
            sized = self
            if pretrained is not None and pretrained.image_size is not None and self.image_size is None:
                # set before the task is built, since the positions of the checkpoint may not fit the size of the images
                sized = dataclasses.replace(self, image_size=pretrained.image_size)
            task = ImageLearning(sized, pretrained=pretrained)
            if start is None and sized._is_for_bank(task, effort):
                sized = dataclasses.replace(sized, model=ImageBank.Config())
            if not sized.model.learns_by_steps:
                return sized._recommended_at_once(task, effort)
            found = (
                sized._recommended_patches(task, effort, start)
                if self.model.reads_encoder
                else sized._recommended_pixels(task, effort, start)
            )
            note = sized._note_on_network(task, effort) if start is None else None
            return found if note is None else found._replace(notes=(*found.notes, note))

        def _is_for_bank(self, task: "ImageLearning", effort: Effort) -> bool:
            """Whether a bank is recommended: images are few, and no setting of a network was given."""
            return self._may_have_bank(task, effort) and self._note_on_network(task, effort) is None

        def _may_have_bank(self, task: "ImageLearning", effort: Effort) -> bool:
            """Whether images are few and no model was chosen."""
            default = ImageLearning.Config()
            is_open = (self.model, self.bank) == (default.model, default.bank) and not effort.keeps_model
            return is_open and task.num_train <= MOST_OF_BANK

        def _note_on_network(self, task: "ImageLearning", effort: Effort) -> str | None:
            """See `note_on_network`; None where a bank would not be recommended anyway."""
            if not self._may_have_bank(task, effort):
                return None
            names = ("augmentation", "valid_fraction", "patch_size", "stem_depth", "position_frequencies")
            instead = f"a bank of patches, fitted in closed form and better on up to {MOST_OF_BANK} images"
            return note_on_network(self, ImageLearning.Config(), (*names, "position_sigma"), effort, instead)

        def _recommended_at_once(self, task: "ImageLearning", effort: Effort) -> Recommended:
            """Recommended settings for a closed-form model: the size of images."""
            size = task.facts.image_size
            scaled = in_whole_patches(size, 1, SIDES[effort.preset])
            config = filled(self, [ImageLearning.Config()], image_size=None if scaled == size else scaled)
            notes = notes_on_sizes(task.splits.sizes, config.image_size or size)
            return Recommended(config, schedule_at_once(task.num_train, effort), notes)

        @property
        def initial_checkpoint(self) -> str | None:
            """See `Task.Config.initial_checkpoint`."""
            return self.model.place

        def _recommended_patches(self, task: "ImageLearning", effort: Effort, start: Trained | None) -> Recommended:
            """Recommended settings for a model of patches."""
            default, has_valid = ImageLearning.Config(), task.num_held_out("valid") > 0
            schedule = schedule_for(task.num_train, effort, has_valid=has_valid, min_steps=MIN_STEPS)
            size, augmentation = task.facts.image_size, _augmentation(task)
            if start is not None:
                assert isinstance(start.facts, ImageLearning.Facts)
                whole = in_whole_patches(size, self.patch_size, max(start.facts.image_size))
                config = filled(self, [default], image_size=None if whole == size else whole, augmentation=augmentation)
                return Recommended(config, schedule, notes_on_sizes(task.splits.sizes, whole))
            scaled, patch = divided_into_patches(size, SIDES[effort.preset], PATCHES[effort.preset])
            has_patches = self.patch_size != default.patch_size  # the patches might not divide another size
            config = filled(
                self,
                [default],
                image_size=None if scaled == size or has_patches else scaled,
                patch_size=patch,
                stem_depth=STEM[effort.preset],
                position_frequencies=16,
                augmentation=augmentation,
                bank=task.max_bank_images(scaled),
            )
            if config.position_frequencies:
                config = filled(config, [default], position_sigma=1.0)
            room = _room(task, effort, config.image_size or size, patch)
            config = dataclasses.replace(config, model=self.model.sized_for(room, default.model))
            return Recommended(config, schedule, notes_on_sizes(task.splits.sizes, config.image_size or size))

        def _recommended_pixels(self, task: "ImageLearning", effort: Effort, start: Trained | None) -> Recommended:
            """Recommended settings for a model that reads pixels; a trained one fixes the size of images."""
            default, size = ImageLearning.Config(), task.facts.image_size
            scaled, patch = divided_into_patches(size, SIDES[effort.preset], PATCHES[effort.preset])
            if start is not None:
                assert isinstance(start.facts, ImageLearning.Facts)
                scaled = start.facts.image_size
            is_beside = start is None and not self.model.is_pretrained
            config = filled(
                self,
                [default],
                image_size=None if scaled == size else scaled,
                augmentation=_augmentation(task),
                bank=task.max_bank_images(scaled) if is_beside else 0,
            )
            room = _room(task, effort, config.image_size or size, patch)
            if start is None:
                config = dataclasses.replace(config, model=self.model.sized_for(room, default.model))
            num_train, has_valid = task.num_train, task.num_held_out("valid") > 0
            if self.model.is_pretrained:
                schedule = fine_tuning_for(num_train, effort.preset, has_valid=has_valid, width=task.chosen.rated_width)
            else:
                rate = rate_for(config.model.rated_width)
                schedule = schedule_for(num_train, effort, has_valid=has_valid, min_steps=MIN_STEPS, learning_rate=rate)
            return Recommended(config, schedule, notes_on_sizes(task.splits.sizes, room.image_size))

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`: the model."""
            return stack_of(self.model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`; without a bank, which would be the same beside all stacks."""
            return dataclasses.replace(self, model=stack, bank=0)

        def build(self, facts: Task.Facts | None = None) -> "ImageLearning":
            """The task; see `ImageLearning`."""
            return ImageLearning(self, own_facts(facts, ImageLearning.Facts, "images"))

    def __init__(
        self, config: Config, facts: Facts | None = None, *, pretrained: Pretrained[ImageModelConfig] | None = None
    ) -> None:
        self.config, self._checkpoint = config, pretrained
        self._facts = facts or self._learn_facts()
        for name in ("mean", "deviation"):
            if (given := getattr(config, name)) not in ((), found := getattr(self._facts, name)):
                raise ValueError(f"{name} is {given}; the run was made with {found}")
        self._set_target(self._facts.target, config.target_settings)
        self._augment = Augmentation(config.augmentation, self.target)
        self._mean, self._deviation = (
            torch.tensor(values).view(-1, 1, 1) for values in (self._facts.mean, self._facts.deviation)
        )
        if facts is None and config.bank:
            check_has_valid("bank", config.bank, self.num_held_out("valid"), "images")

    @property
    def facts(self) -> Facts:
        """Facts about the training split."""
        return self._facts

    @property
    def chosen(self) -> ImageModelConfig:
        """The configuration of the model, a checkpoint's resolved."""
        return self._facts.model or self.config.model

    @cached_property
    def pretrained(self) -> Pretrained[ImageModelConfig] | None:
        """The checkpoint that the settings name."""
        return recorded_checkpoint(self.config.model, self._checkpoint)

    def pretrained_weights(self) -> PretrainedWeights | None:
        """See `Task.pretrained_weights`: a checkpoint's model without its head."""
        return PretrainedWeights.of(self.pretrained, self.chosen)

    @property
    def learns_by_steps(self) -> bool:
        """Whether the model is a network, trained step by step."""
        return self.config.model.learns_by_steps

    def _open(self) -> Splits[ImageDataset]:
        config = self.config
        with config.csv.reading(config.data):
            given = open_images(config.data, image_size=config.image_size, kind=config.target)
        found = divided(given, config, needs_valid=self.learns_by_steps)
        self._warn_of_absent("test", found.test)
        self._warn_of_absent("valid", given.valid)
        return found

    def _warn_of_absent(self, split: HeldOut, part: ImageDataset | None) -> None:
        """Warns of classes or labels without an image in a split."""
        if part is not None and part.answers is not None and (absent := part.answers.absent):
            names = first_few([*map(repr, absent)])
            # the names are indices, since the data do not name classes
            counts = "0" in absent and all(name == str(i) for i, name in enumerate(part.answers.names))
            hint = " (labels count from 0)" if counts else ""
            warnings.warn(
                f"{self.config.data}: no image of {names} is in the {split} set{hint}; add images of it", stacklevel=3
            )

    def _learn_facts(self) -> Facts:
        """The facts of the training split, with the mean and deviation of a checkpoint.

        Raises:
            ValueError: the checkpoint has no mean and deviation, or images of this size cannot be read.
        """
        config, train, pretrained = self.config, self._opened.train, self.pretrained
        found = learn_facts(train, config.target_settings, config.data)
        if pretrained is not None:
            found = dataclasses.replace(found, model=pretrained.model.at_size(train.image_size))
        if config.mean:
            return _standardised(found, config.mean, config.deviation)
        if pretrained is None:
            return found
        if pretrained.pixels is None:
            raise ValueError(
                f"{pretrained.folder} does not say how pixels are standardised (no {PREPROCESSOR}, and no "
                "pretrained_cfg in config.json); pass mean and deviation"
            )
        return _standardised(found, pretrained.pixels.mean, pretrained.pixels.deviation)

    def _check(self, splits: Splits[ImageDataset]) -> None:
        # a size in the settings may differ from that in training
        scaled = () if self.config.image_size is None else ("image_size",)
        splits.check_facts(self._facts, self.config.data, apart_from=("answer_names", *scaled))
        for part in (splits.train, splits.valid, splits.test):
            if part is not None and part.answers is not None:
                self.target.check(part.answers, self.config.data)

    @property
    def train_shards(self) -> Tensor | None:
        """See `Task.train_shards`: sizes of shards of images in mapped arrays."""
        return self.splits.train.shards

    def model(self) -> nn.Module:
        """The model with the outputs of the target, on an image encoder unless it reads pixels."""
        size, channels, num_outputs = self._facts.image_size, len(self._facts.mean), self.target.num_outputs
        reading = ImageReading(image_size=size, channels=channels, encoder=self._encoder)
        model = self.chosen.build_for(reading, num_outputs)
        if not self.config.bank:
            return model
        return BlendedImages(model, ImageBank.Config().build(size, channels, num_outputs))

    def max_bank_images(self, image_size: tuple[int, int]) -> int:
        """The recommended number of training images of a bank beside a network; 0: no bank.

        Args:
            image_size: height and width that images are scaled to.
        """
        is_between = MOST_OF_BANK < self.num_train <= MOST_WITH_BANK
        if not is_between or self.num_held_out("valid") == 0 or self.config.objective == "loss":
            return 0
        return min(self.num_train, MOST_BESIDE, MOST_VALUES // (len(self._facts.mean) * math.prod(image_size)))

    def _encoder(self, width: int) -> Encoder:
        config, facts = self.config, self._facts
        images = Image.Config(
            image_size=facts.image_size,
            patch_size=config.patch_size,
            channels=len(facts.mean),
            num_frequencies=config.position_frequencies,
            sigma=config.position_sigma,
            any_size=True,
        )
        return patch_encoder(images, width, config.stem_depth)

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a closed-form model to training images, alone or beside a network."""
        chosen, fitted = torch.arange(self.num_train), model
        if isinstance(model, BlendedImages):
            chosen, fitted = torch.randperm(self.num_train)[: self.config.bank].sort().values, model.fitted
        if not isinstance(fitted, FittedModel):
            return
        train, batches = self.splits.train, list[tuple[Tensor, Tensor]]()
        for indices in chosen.split(CHUNK):
            images = self._standardise(train.images(indices) / 255)
            batches.append((images.to(device), self._targets(train, indices).to(device)))
        groups = train.marks.group_numbers(device)
        fitted.fit(batches, self.target, groups=None if groups is None else groups[chosen.to(device)])

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: names of the targets for the rows of the head."""
        return head_entry_names(model, self.target.output_names)

    def check_packages(self) -> None:
        """See `Task.check_packages`: augmentation needs kornia."""
        super().check_packages()
        self._augment.check_packages()

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """``images`` (B, C, H, W), standardised, and ``targets``, softened by the augmentation."""
        return self.train_batch_rows(indices, slice(0, len(indices)), generator)

    def train_batch_rows(self, indices: Tensor, rows: slice, generator: torch.Generator) -> Batch:
        """See `Task.train_batch_rows`: only those images, and the ones mixed into them, are read."""
        part = self.splits.train
        augmented, targets = self._augment.some(
            torch.arange(len(indices))[rows],
            lambda places: part.images(indices[places]) / 255,
            torch.Size((len(indices), self._facts.channels, *part.image_size)),
            self._targets(part, indices),
            generator,
        )
        return {"images": self._standardise(augmented), "targets": targets}

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """``images`` (B, C, H, W), standardised, and ``targets``; beside a bank their ``number`` in the split, too."""
        part = self.held_out(split)
        batch = {"images": self._standardise(part.images(indices) / 255), "targets": self._targets(part, indices)}
        return {**batch, "number": indices} if split == "valid" and self.config.bank else batch

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: the image."""
        part = self.held_out(split)
        return ShownExample(name=part.name(index), views=(ImageView(pixels=part.images(torch.tensor([index]))[0]),))

    def _targets(self, part: ImageDataset, indices: Tensor) -> Tensor:
        assert part.answers is not None
        return self.target.targets(part.answers.values[indices])

    def _applied(self, model: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
        return model(batch["images"])

    @property
    def _train_answers(self) -> Answers:
        answers = self.splits.train.answers
        assert answers is not None
        return answers

    def _baseline_inputs(self, split: Split) -> np.ndarray:
        """Pixels in [0, 1], averaged where images are large, `(n, features)`."""
        part = self._part_of(split)
        return np.concatenate(
            [baseline_pixels(part.images(indices)) for indices in torch.arange(len(part)).split(CHUNK)]
        )

    @torch.no_grad()
    def outputs(self, model: nn.Module, images: Tensor, device: torch.device) -> Tensor:
        """Outputs of the model `(n, num_outputs)` for images uint8 `(n, C, H, W)`, on the CPU."""
        parts = (model(self._standardise(part / 255).to(device)).float().cpu() for part in images.split(CHUNK))
        return torch.cat(list(parts))

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: from pixels of the size of training."""
        facts, target = self._facts, self.target

        def call(model: nn.Module, pixels: Tensor) -> Tensor:
            return target.answers(self._outputs(model, {"images": self._standardise(pixels / 255)}))

        axes = pixel_axes(facts.channels, facts.image_size)
        return TensorForm(
            model=model,
            call=call,
            inputs=(Slot("pixels", (BATCH, *axes), f"{ABOUT_PIXELS}, scaled and cut to this size"),),
            output=target.slot(BATCH),
            draw=lambda sizes, generator: (random_pixels((sizes["batch"], *sizes_of(axes)), generator),),
            names=target.axis_names,
        )

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each image: `file` and the prediction; an image in an array has its index after the `file`."""
        found = list(inputs.read(lambda file: self._read(file, inputs.part)))
        if not found:
            return []
        sources = [(file, name) for file, images in found for name in _names(file, len(images))]
        outputs = self.outputs(model, torch.cat([images for _, images in found]), device)
        answers = map(self.target.answer, outputs)
        return [
            Prediction(file, cells, probabilities, source=name)
            for (file, name), (cells, probabilities) in zip(sources, answers, strict=True)
        ]

    def _read(self, file: Path, part: Split | None) -> Tensor:
        """The images of a file, uint8 `(n, C, H, W)`."""
        facts = self._facts
        if file.suffix.lower() in ARRAY_SUFFIXES:
            return read_image_arrays(file, facts.channels, facts.image_size, part=part)
        refuse_part(file, part)
        if file.suffix.lower() in COLUMN_SUFFIXES:
            return read_image_table(file, facts.channels, facts.image_size)
        return read_images([file], facts.channels, facts.image_size)

    def _standardise(self, images: Tensor) -> Tensor:
        return (images - self._mean.to(images.device)) / self._deviation.to(images.device)


def _room(task: ImageLearning, effort: Effort, image_size: tuple[int, int], patch: int) -> Room:
    """The sizes that a model of these images is scaled to, for an image size and patches that divide it."""
    width = width_for(task.num_train, effort, least=64, up_to=1000)
    channels = len(task.facts.mean)
    return Room(
        image_size=image_size,
        channels=channels,
        patch=patch,
        width=width,
        depth=BLOCKS[effort.preset],
        max_dropout=_max_dropout(task, effort),
    )


def _max_dropout(task: ImageLearning, effort: Effort) -> float:
    """The largest dropout rate for the number of epochs: 0 for few, since images seen a few times are not memorised."""
    whole = schedule_for(task.num_train, Effort(effort.preset), has_valid=False, min_steps=MIN_STEPS)
    return 1.0 if (effort.epochs or whole.epochs) > WITHOUT_DROPOUT else 0.0


def _standardised(
    facts: ImageLearning.Facts, mean: tuple[float, ...], deviation: tuple[float, ...]
) -> ImageLearning.Facts:
    """The facts with this mean and deviation; raises ValueError where these are for grey and the data in colour."""
    if len(mean) < facts.channels:
        raise ValueError(
            f"mean={mean} is for images of {len(mean)} channel, and these have {facts.channels}; convert them"
        )
    return dataclasses.replace(facts, mean=mean, deviation=deviation)


def _check_moments(mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
    """Raises ValueError unless both are empty, or have a number for each channel and deviations above 0."""
    if not mean and not deviation:
        return
    is_sound = all(map(math.isfinite, mean)) and all(0 < each < math.inf for each in deviation)
    if len(mean) != len(deviation) or len(mean) not in (1, 3) or not is_sound:
        raise ValueError(
            f"mean={mean} and deviation={deviation} must be a number each for grey, or 3 for colours, and deviations "
            "above 0"
        )


def _names(file: Path, count: int) -> list[str]:
    """The name of each image of a file, for predictions."""
    has_many = file.suffix.lower() in (*ARRAY_SUFFIXES, *COLUMN_SUFFIXES)
    return [f"{file}[{i}]" for i in range(count)] if has_many else [str(file)]


def _augmentation(task: ImageLearning) -> Augmentation.Config:
    facts, train = task.facts, task.splits.train
    found = PHOTOGRAPHS if facts.channels == 3 else DRAWINGS
    if not facts.target.has_shares:
        found = dataclasses.replace(found, label_smoothing=0.0)
    if not found.horizontal_flip or task.config.augmentation.horizontal_flip:
        return found
    assert train.answers is not None
    targets = task.target.targets(train.answers.values)
    return (
        found
        if mirroring_keeps_targets(train, targets, task.target)
        else dataclasses.replace(found, horizontal_flip=0.0)
    )


def learn_facts(train: ImageDataset, settings: TargetSettings, data: str) -> ImageLearning.Facts:
    """The facts of a training split; a constant channel has deviation 1, so that it becomes 0."""
    assert train.answers is not None
    mean, deviation = moments(train, torch.arange(len(train)))
    return ImageLearning.Facts(
        target=train.answers.learn(settings, data),
        channels=train.channels,
        image_size=train.image_size,
        mean=mean,
        deviation=deviation,
    )
