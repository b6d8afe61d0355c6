"""Telling which class an image belongs to."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import filled, refuse_idle
from fredholm.encoders.image import Image
from fredholm.models.infvit import InfViT
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS, AttentionConfig, ConvolutionConfig, SumConfig
from fredholm.models.signal_model import SignalModel
from fredholm.tasks.augmentation import Augmentation
from fredholm.tasks.images import ImageDataset, moments, open_images, read_image_arrays, read_images
from fredholm.tasks.images.read import IMAGE_SUFFIXES
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.npz_arrays import ARRAY_SUFFIXES
from fredholm.tasks.parts import refuse_part
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Preset, schedule_for
from fredholm.tasks.split_files import Split
from fredholm.tasks.splits import HeldOut, Splits
from fredholm.tasks.splitting import with_validation
from fredholm.tasks.task import Batch, Objective, SplitTask, Suited, Task

if TYPE_CHECKING:
    from torchmetrics import Metric

CHUNK = 64


PHOTOGRAPHS = Augmentation.Config(horizontal_flip=0.5, shift=0.1, scale=(0.9, 1.1), label_smoothing=0.1)
"""How pictures in colour are changed where nothing is said: a mirrored scene is a scene."""
DRAWINGS = Augmentation.Config(shift=0.1, rotation=10.0, scale=(0.9, 1.1), label_smoothing=0.1)
"""How grey pictures are changed, which may be letters: those have a left and a right."""


def _small() -> SignalModel.Config:
    """What is near and what is far: a stencil of each channel, and attention."""
    kernel = SumConfig(first=ConvolutionConfig(kernel_size=3, depthwise=True), second=AttentionConfig())
    return ITNet.Config(embed_dim=64, depth=4, num_heads=4, kernel=kernel, pool="mean")


@final
class ImageClassification(SplitTask[ImageDataset]):
    """A model on image patches, trained by cross-entropy against soft targets; ITNet K.1.

    Images are augmented in [0, 1] and then standardised by the training split's mean and deviation per channel.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the training split.

    Raises:
        ValueError: the data cannot be opened, or are not those of ``facts``.
        ImportError: reading them needs a package that is not installed.
    """

    command: ClassVar[str] = "images"
    objective = Objective(metric="accuracy", percent=True)
    predicts = Kinds(suffixes=(*IMAGE_SUFFIXES, *ARRAY_SUFFIXES), has_parts=True)
    parts: ClassVar[tuple[type, ...]] = (ITNet.Config, InfViT.Config, *KERNELS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Of the training split; ``mean`` and ``deviation`` are of pixels in [0, 1], one per channel."""

        classes: tuple[str, ...]
        channels: int
        image_size: tuple[int, int]
        mean: tuple[float, ...]
        deviation: tuple[float, ...]

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """An image data set, how it is augmented, and the model.

        Args:
            data: digits (built in), an .npz file, a folder of MNIST-format idx files, or one with a subfolder a class.
            image_size: height and width to scale images to; None keeps theirs. A trained model may be measured at
                another size, which its patches divide.
            patch_size: side of a square patch, or height and width; it divides the image.
            position_frequencies: Fourier frequencies of the positions that enter the signal (the kernels have theirs);
                0 keeps positions out of it.
            position_sigma: standard deviation of these frequencies, in cycles per image side; refused where there are
                none.
            model: the model on the patches; a recipe chooses its kind.
            augmentation: random changes to the training images and labels.
        """

        data: str = "digits"
        image_size: tuple[int, int] | None = None
        patch_size: int | tuple[int, int] = 16
        position_frequencies: int = 64
        position_sigma: float = 10.0
        model: SignalModel.Config = field(default_factory=_small)
        augmentation: Augmentation.Config = field(default_factory=Augmentation.Config)

        def __post_init__(self) -> None:
            self.model.check_pools("an image")
            if self.position_frequencies == 0:
                none, given = "position_frequencies=0", {"position_sigma": self.position_sigma}
                refuse_idle("", type(self), none, "give position_frequencies", **given)

        def suited(self, preset: Preset) -> Suited:
            """See `Task.Config.suited`: the size and patches of images, the model, and how to augment."""
            task = self.build()
            size, patch = divided_into_patches(task.facts.image_size, preset)
            default = ImageClassification.Config()
            has_patches = self.patch_size != default.patch_size  # which another size might not fit
            config = filled(
                self,
                [default],
                image_size=None if size == task.facts.image_size or has_patches else size,
                patch_size=patch,
                position_frequencies=16,
                augmentation=PHOTOGRAPHS if task.facts.channels == 3 else DRAWINGS,
            )
            if config.position_frequencies:
                config = filled(config, [default], position_sigma=1.0)
            # 64 channels for up to 1,000 images, half as many more with each factor of 10
            width = 16 * round(4 * 1.5 ** max(0, math.log10(task.num_train / 1000))) * (1 if preset == "small" else 2)
            model = self.model.resized(width, 4 if preset == "small" else 8, default.model)
            config = dataclasses.replace(config, model=model)
            return Suited(config, schedule_for(task.num_train, preset, has_valid=task.num_held_out("valid") > 0))

        def build(self, facts: Task.Facts | None = None) -> "ImageClassification":
            """The task; see `ImageClassification`."""
            if facts is not None and not isinstance(facts, ImageClassification.Facts):
                raise ValueError(f"the facts are of {type(facts).__qualname__}, not of image classification")
            return ImageClassification(self, facts)

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        self.config = config
        self._facts = facts or measure(self._opened.train)
        if len(self._facts.classes) < 2:
            raise ValueError(f"{config.data} has the classes {list(self._facts.classes)}; expected at least 2")
        self._augment = Augmentation(config.augmentation, len(self._facts.classes))
        self._mean, self._deviation = (
            torch.tensor(values).view(-1, 1, 1) for values in (self._facts.mean, self._facts.deviation)
        )

    @property
    def facts(self) -> Facts:
        """Of the training split."""
        return self._facts

    def _open(self) -> Splits[ImageDataset]:
        config = self.config
        found = open_images(
            config.data, image_size=config.image_size, test_fraction=config.test_fraction, split_seed=config.split_seed
        )
        train = found.train
        names = [train.name(i) for i in range(len(train))]
        return with_validation(found, names, train.labels(torch.arange(len(train))).tolist(), config)

    def _check(self, splits: Splits[ImageDataset]) -> None:
        # where a size is asked for, it may be another than in training
        scaled = () if self.config.image_size is None else ("image_size",)
        splits.check_facts(self._facts, self.config.data, apart_from=scaled)

    def model(self) -> nn.Module:
        """The model on an image encoder, with one logit per class."""
        config, facts = self.config, self._facts
        images = Image.Config(
            image_size=facts.image_size,
            patch_size=config.patch_size,
            channels=facts.channels,
            num_frequencies=config.position_frequencies,
            sigma=config.position_sigma,
            any_size=True,
        )
        return config.model.build(Image(images, config.model.embed_dim), len(facts.classes))

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """``images`` (B, C, H, W), standardised, and soft ``targets`` (B, classes)."""
        images, labels = self.splits.train.images(indices), self.splits.train.labels(indices)
        augmented, targets = self._augment(images / 255, labels, generator)
        return {"images": self._standardise(augmented), "targets": targets}

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """``images`` (B, C, H, W), standardised, and ``labels`` (B,)."""
        part = self.held_out(split)
        return {"images": self._standardise(part.images(indices) / 255), "labels": part.labels(indices)}

    def num_targets(self, batch: Batch) -> int:
        """One per image."""
        return len(batch["images"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy summed over the images."""
        return F.cross_entropy(model(batch["images"]).float(), batch["targets"], reduction="sum")

    def metrics(self) -> "dict[str, Metric]":
        """``accuracy``, the share of images whose largest logit is right, and ``loss``, the mean cross-entropy.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        try:
            from torchmetrics import MeanMetric
            from torchmetrics.classification import MulticlassAccuracy
        except ImportError as error:
            raise ImportError('metrics need torchmetrics; get it with: pip install "fredholm[train]"') from error
        return {"accuracy": MulticlassAccuracy(len(self._facts.classes), average="micro"), "loss": MeanMetric()}

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `held_out_batch` to the metrics."""
        logits = model(batch["images"]).float()
        metrics["accuracy"].update(logits, batch["labels"])
        metrics["loss"].update(F.cross_entropy(logits, batch["labels"], reduction="none"))

    @torch.no_grad()
    def probabilities(self, model: nn.Module, images: Tensor, device: torch.device) -> Tensor:
        """Of each class `(n, classes)`, of images uint8 `(n, C, H, W)`."""
        parts = (model(self._standardise(part / 255).to(device)).float() for part in images.split(CHUNK))
        return torch.cat([logits.softmax(-1).cpu() for logits in parts])

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """`file`, `class` and `probability` for each image; one of an array has its number behind the `file`."""
        found = list(inputs.read(lambda file: self._read(file, inputs.part)))
        if not found:
            return []
        sources = [(file, name) for file, images in found for name in _names(file, len(images))]
        told = self.probabilities(model, torch.cat([images for _, images in found]), device).tolist()
        return [
            Prediction(file, probabilities=dict(zip(self._facts.classes, each, strict=True)), source=name)
            for (file, name), each in zip(sources, told, strict=True)
        ]

    def _read(self, file: Path, part: Split | None) -> Tensor:
        """The images of a file, uint8 `(n, C, H, W)`."""
        facts = self._facts
        if file.suffix.lower() in ARRAY_SUFFIXES:
            return read_image_arrays(file, facts.channels, facts.image_size, part=part)
        refuse_part(file, part)
        return read_images([file], facts.channels, facts.image_size)

    def _standardise(self, images: Tensor) -> Tensor:
        return (images - self._mean) / self._deviation


def _names(file: Path, count: int) -> list[str]:
    """What stands for each of the images of a file."""
    return [f"{file}[{i}]" for i in range(count)] if file.suffix.lower() in ARRAY_SUFFIXES else [str(file)]


def measure(train: ImageDataset) -> ImageClassification.Facts:
    """The facts of a training split; a constant channel has deviation 1, so that it becomes 0."""
    mean, deviation = moments(train, torch.arange(len(train)))
    return ImageClassification.Facts(
        classes=train.classes,
        channels=train.channels,
        image_size=train.image_size,
        mean=mean,
        deviation=deviation,
    )


SIDES: dict[Preset, int] = {"small": 64, "base": 224}
"""Pixels of the longer side, to which larger images are scaled."""
PATCHES: dict[Preset, int] = {"small": 8, "base": 14}
"""Along that side."""


def divided_into_patches(size: tuple[int, int], preset: Preset) -> tuple[tuple[int, int], int]:
    """Height and width that suit images of a size, and the side of a square patch that divides both.

    Images of up to SIDES pixels keep their size where a patch divides it that gives from PATCHES / 2 to PATCHES along
    the longer side; the others are brought to whole patches.
    """
    longest = min(max(size), SIDES[preset])
    least = math.ceil(longest / PATCHES[preset])
    if longest == max(size):
        fitting = (side for side in range(least, 2 * least + 1) if size[0] % side == size[1] % side == 0)
        if (side := next(fitting, None)) is not None:
            return size, side
    height, width = (max(1, round(longest * side / max(size) / least)) * least for side in size)
    return (height, width), least
