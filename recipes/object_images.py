"""Train InfViT from class labels alone on images whose object is known, to see where its attention falls.

Command:   fredholm train object_canvas --task.model.attention pure
           (also object_cells, object_photographs; recipes/attention_quality.py trains and reads all of them)
Modality:  images
Hardware:  one core of a two-core AMD EPYC; float32
Time:      see docs/studies/attention_quality.md
Score:     see docs/studies/attention_quality.md

canvas        digits of MNIST, 12 x 12 pixels, on 36 x 36 among four fragments of 6 x 6 of other digits, all on a
              lattice of 6 pixels; the label is the digit, the object its square. Canvases are drawn anew in every
              batch
cells         48 x 48 crops of the blood cells of BCCD (training and validation images; 128 x 96 pixels), on a
              lattice of 4 pixels. A cell is in a crop if at least 60 % of its box is, and out of it if at most 10 %
              is. The label is white cell if one is in, otherwise platelet if one is in, otherwise red cell. Crops
              without any cell are left out, and so are crops with a white cell, or without one a platelet, that is
              neither in nor out. Classes are drawn equally often, and crops are mirrored at random. Objects: the
              white cells on whole test images
photographs   32 x 32 photographs of CIFAR-10, mirrored and shifted by up to 4 pixels at random; objects: all things
              of 53 photographs of COCO, averaged down to 64 x 64
"""

import abc
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.analysis.localisation import box_mask
from fredholm.encoders.image import Image
from fredholm.models.images.infvit import InfViT
from fredholm.tasks.files.npz_arrays import load_arrays
from fredholm.tasks.images import idx_folder
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Batch, Objective, Task
from fredholm.training import Run, TrainingConfig

if TYPE_CHECKING:
    from torchmetrics import Metric

Scene = Literal["canvas", "cells", "photographs"]
CANVAS, DIGIT, FRAGMENT, FRAGMENTS = 36, 12, 6, 4
"""Sides in pixels of canvas, digits and fragments, and number of fragments; a fragment's side is the lattice."""
CROP, LATTICE = 48, 4
INSIDE, OUTSIDE = 0.6, 0.1
"""Smallest fraction of a cell's box in a crop that the cell is in, and largest in one that it is out of."""
RED, WHITE, PLATELET = 0, 1, 2
EACH = 400
"""Largest number of test crops of each class."""
PHOTOGRAPH = 64


class Marked(NamedTuple):
    """Images with masks of their objects."""

    images: Tensor
    """`(n, C, H, W)`, uint8."""
    inside: Tensor
    """Fraction of every pixel that objects cover, `(n, H, W)` in float64."""


class Scenes(abc.ABC):
    """Labelled training and test images, and marked ones; all images are uint8."""

    classes: tuple[str, ...]
    num_train: int
    """Images per epoch."""
    num_test: int
    channels: int
    image_size: tuple[int, int]

    @abc.abstractmethod
    def train(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images `(B, C, H, W)` and labels `(B,)`, drawn from the generator."""

    @abc.abstractmethod
    def test(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Held-out images `(B, C, H, W)` and labels `(B,)`."""

    @abc.abstractmethod
    def _marked(self) -> Marked: ...

    @final
    @cached_property
    def marked(self) -> Marked:
        """Held-out images with objects."""
        return self._marked()


@final
class Canvas(Scenes):
    """Digits among fragments of digits."""

    classes, channels, image_size = tuple("0123456789"), 1, (CANVAS, CANVAS)

    def __init__(self, data: Path) -> None:
        splits = idx_folder(data / "mnist")
        assert splits.test is not None
        (self._train, self._labels), (self._test, self._test_labels) = (
            (_small(split.images(torch.arange(len(split)))), split.answers.values)
            for split in (splits.train, splits.test)
            if split.answers is not None
        )
        self.num_train, self.num_test = min(5_000, len(self._train)), min(2_000, len(self._test))

    def train(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """See `Scenes.train`; the digits are also drawn, from all training digits."""
        chosen = torch.randint(len(self._train), indices.shape, generator=generator)
        return on_canvas(self._train, chosen, generator).images, self._labels[chosen]

    def test(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """See `Scenes.test`; canvases are drawn once."""
        return self.marked.images[indices], self._test_labels[indices]

    def _marked(self) -> Marked:
        return on_canvas(self._test, torch.arange(self.num_test), torch.Generator().manual_seed(0))


def _small(digits: Tensor) -> Tensor:
    """The middle 24 x 24 pixels of digits `(n, 1, 28, 28)`, where the ink is, at half the resolution: `(n, 12, 12)`."""
    return F.avg_pool2d(digits[:, 0, 2:26, 2:26].float(), 2).round().to(torch.uint8)


def on_canvas(digits: Tensor, chosen: Tensor, generator: torch.Generator) -> Marked:
    """The ``chosen`` digits `(B,)` of `(n, 12, 12)`, each at a random lattice point, among fragments of random ones."""
    count, cells_per_side = len(chosen), CANVAS // FRAGMENT

    def draw(high: int, *size: int) -> Tensor:
        return torch.randint(high, (count, *size), generator=generator)

    top, left = (draw(DIGIT - FRAGMENT + 1, FRAGMENTS, 1, 1) for _ in range(2))
    side = torch.arange(FRAGMENT)
    pieces = digits[draw(len(digits), FRAGMENTS, 1, 1), top + side[:, None], left + side]
    cells = torch.rand(count, cells_per_side**2, generator=generator).argsort(1)[:, :FRAGMENTS]
    canvas = digits.new_zeros(count, cells_per_side**2, FRAGMENT, FRAGMENT)
    canvas.scatter_(1, cells[..., None, None].expand_as(pieces), pieces)
    canvas = canvas.unflatten(1, (cells_per_side,) * 2).transpose(2, 3).reshape(count, CANVAS, CANVAS)
    corner, side = FRAGMENT * draw((CANVAS - DIGIT) // FRAGMENT + 1, 2), torch.arange(DIGIT)
    square = torch.arange(count)[:, None, None], (corner[:, :1] + side)[:, :, None], (corner[:, 1:] + side)[:, None]
    inside = torch.zeros(count, CANVAS, CANVAS, dtype=torch.float64)
    canvas[square], inside[square] = digits[chosen], 1.0
    return Marked(canvas[:, None], inside)


@final
class Cells(Scenes):
    """Crops of blood cells."""

    classes, channels, image_size = ("red cell", "white cell", "platelet"), 3, (CROP, CROP)

    def __init__(self, data: Path) -> None:
        arrays = load_arrays(data / "bccd" / "bccd_128x96.npz")
        self._images = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2).contiguous()
        height, width = self._images.shape[2:]
        self._boxes = torch.from_numpy(arrays["boxes_xyxy"]).double() * torch.tensor([width, height, width, height])
        self._kind, self._of = (torch.from_numpy(arrays[name]).long() for name in ("box_class", "box_image"))
        self._is_test = torch.from_numpy(arrays["split"]) == 2
        crops = [self._crops(image) for image in range(len(self._images))]
        self._train_crops, test = (
            [
                torch.cat(
                    [c[c[:, 3] == kind] for c, own in zip(crops, self._is_test, strict=True) if bool(own) == held]
                )
                for kind in range(3)
            ]
            for held in (False, True)
        )
        generator = torch.Generator().manual_seed(0)
        self._test_crops = torch.cat([own[torch.randperm(len(own), generator=generator)[:EACH]] for own in test])
        self.num_train, self.num_test = min(5_000, sum(map(len, self._train_crops))), len(self._test_crops)

    def train(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """See `Scenes.train`; the class, a crop of it, and its mirroring along either axis are drawn."""
        draws = torch.rand(len(indices), 4, generator=generator)
        pools = [self._train_crops[int(3 * kind)] for kind in draws[:, 0]]
        chosen = torch.stack([pool[int(at * len(pool))] for pool, at in zip(pools, draws[:, 1], strict=True)])
        images = self._cut(chosen)
        for dim, column in ((2, 2), (3, 3)):
            images = torch.where(draws[:, column, None, None, None] < 0.5, images, images.flip(dim))
        return images, chosen[:, 3]

    def test(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """See `Scenes.test`; the same number of each class."""
        return self._cut(self._test_crops[indices]), self._test_crops[indices, 3]

    def _marked(self) -> Marked:
        white = self._kind == WHITE
        chosen = [i for i in self._is_test.nonzero()[:, 0].tolist() if bool((white & (self._of == i)).any())]
        size = (self._images.shape[2], self._images.shape[3])
        inside = torch.stack([box_mask(self._boxes[white & (self._of == image)], size) for image in chosen])
        return Marked(self._images[chosen], inside)

    def _crops(self, image: int) -> Tensor:
        """Image, top, left and label of every crop with a label, `(n, 4)`."""
        own = self._of == image
        height, width = self._images.shape[2:]
        top, left = torch.meshgrid(
            torch.arange(0, height - CROP + 1, LATTICE), torch.arange(0, width - CROP + 1, LATTICE), indexing="ij"
        )
        labels = crop_labels(self._boxes[own], self._kind[own], top.flatten(), left.flatten())
        crops = torch.stack([torch.full_like(labels, image), top.flatten(), left.flatten(), labels], dim=1)
        return crops[labels >= 0]

    def _cut(self, crops: Tensor) -> Tensor:
        side = torch.arange(CROP)
        rows, columns = (crops[:, 1, None] + side)[:, :, None], (crops[:, 2, None] + side)[:, None]
        return self._images.permute(0, 2, 3, 1)[crops[:, 0, None, None], rows, columns].permute(0, 3, 1, 2)


def crop_labels(boxes: Tensor, kind: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """Labels of the crops at some corners, `(n,)`; -1 for crops that are ambiguous or without any cell."""
    corner = torch.stack([left, top], dim=-1)[:, None].double()
    low, high = torch.maximum(boxes[:, :2], corner), torch.minimum(boxes[:, 2:], corner + CROP)
    share = (high - low).clamp_min(0).prod(-1) / (boxes[:, 2:] - boxes[:, :2]).prod(-1)  # (n, boxes)
    labels = torch.full_like(top, -1)
    undecided = torch.ones_like(top, dtype=torch.bool)
    for label in (WHITE, PLATELET, RED):
        own = share[:, kind == label]
        is_in = (own >= INSIDE).any(1)
        labels[undecided & is_in] = label
        # a white cell or platelet that is partly in leaves the crop without a label
        undecided &= ~is_in & ~(own > OUTSIDE).any(1)
    return labels


@final
class Photographs(Scenes):
    """Small photographs of single things; larger ones of many."""

    channels, image_size = 3, (32, 32)

    def __init__(self, data: Path) -> None:
        arrays = load_arrays(data / "cifar10_subset" / "cifar10_11k.npz")
        self.classes = tuple(str(name) for name in arrays["classes"])
        self._train, self._test = (torch.from_numpy(arrays[f"x_{s}"]).permute(0, 3, 1, 2) for s in ("train", "test"))
        self._labels, self._test_labels = (torch.from_numpy(arrays[f"y_{s}"]).long() for s in ("train", "test"))
        self.num_train, self.num_test = len(self._train), len(self._test)
        self._coco = data / "coco_cc_subset" / "coco_cc_192px.npz"

    def train(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """See `Scenes.train`."""
        height, width = self.image_size
        padded = F.pad(self._train[indices], (4, 4, 4, 4)).permute(0, 2, 3, 1)
        corner = torch.randint(9, (len(indices), 2), generator=generator)
        rows, columns = corner[:, :1] + torch.arange(height), corner[:, 1:] + torch.arange(width)
        mirrored = torch.rand(len(indices), 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
        images = padded[torch.arange(len(indices))[:, None, None], rows[:, :, None], columns[:, None]]
        return images.permute(0, 3, 1, 2), self._labels[indices]

    def test(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """See `Scenes.test`."""
        return self._test[indices], self._test_labels[indices]

    def _marked(self) -> Marked:
        arrays = load_arrays(self._coco)
        things = arrays["category_ids"][arrays["category_isthing"] > 0]
        inside = torch.from_numpy(np.isin(arrays["semantic"], things)).double()
        images = torch.from_numpy(arrays["images"]).permute(0, 3, 1, 2).float()
        small = F.adaptive_avg_pool2d(images, PHOTOGRAPH).round().to(torch.uint8)
        return Marked(small, F.adaptive_avg_pool2d(inside, PHOTOGRAPH))


def open_scenes(scene: Scene, data: Path) -> Scenes:
    """The images of a scene, from the folder of all data sets."""
    match scene:
        case "canvas":
            return Canvas(data)
        case "cells":
            return Cells(data)
        case "photographs":
            return Photographs(data)


@final
class ObjectImages(Task):
    """Classification of images by cross-entropy on their labels alone.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from 2,000 training images.
    """

    command: ClassVar[str] = "object-images"
    predicts = Kinds(suffixes=())
    objective = Objective(metric="accuracy", percent=True)
    parts: ClassVar[tuple[type, ...]] = (InfViT.Config,)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Mean and deviation of pixels in [0, 1], one per channel."""

        mean: tuple[float, ...]
        deviation: tuple[float, ...]

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        """Images, patches and model.

        Args:
            data: folder with mnist, bccd, cifar10_subset and coco_cc_subset.
            scene: kind of images.
            marked: whether test batches hold the images with marked objects, which are not scored.
            patch_size: side of a patch.
            model: model on the patches.
        """

        data: str = "../shared/data"
        scene: Scene = "canvas"
        marked: bool = False
        patch_size: int = 7
        model: InfViT.Config = field(default_factory=lambda: InfViT.Config(embed_dim=32, depth=4, num_heads=4))

        def build(self, facts: Task.Facts | None = None) -> "ObjectImages":
            """The task."""
            if facts is not None and not isinstance(facts, ObjectImages.Facts):
                raise ValueError(f"the facts are of {type(facts).__qualname__}, not of images with objects")
            return ObjectImages(self, facts)

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        self.config, self.scenes = config, open_scenes(config.scene, Path(config.data))
        self._facts = facts or _measure(self.scenes)
        self._mean, self._deviation = (
            torch.tensor(values).view(-1, 1, 1) for values in (self._facts.mean, self._facts.deviation)
        )

    @property
    def facts(self) -> Facts:
        """Statistics of the training images."""
        return self._facts

    @property
    def num_train(self) -> int:
        """Images per epoch."""
        return self.scenes.num_train

    def num_held_out(self, split: HeldOut) -> int:
        """Number of test images; there are no validation images."""
        if split == "valid":
            return 0
        return len(self.scenes.marked.images) if self.config.marked else self.scenes.num_test

    def model(self) -> nn.Module:
        """The model on an image encoder that takes any size; positions are smooth, with one cycle per side."""
        images = Image.Config(
            image_size=self.scenes.image_size,
            patch_size=self.config.patch_size,
            channels=self.scenes.channels,
            num_frequencies=16,
            sigma=1.0,
            any_size=True,
        )
        return self.config.model.build(Image(images, self.config.model.embed_dim), len(self.scenes.classes))

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """``images`` (B, C, H, W), standardised, and ``labels`` (B,)."""
        images, labels = self.scenes.train(indices, generator)
        return {"images": (images / 255 - self._mean) / self._deviation, "labels": labels}

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """As `train_batch`; with ``marked``, ``images``, their ``pixels`` in [0, 1] and ``inside`` (B, H, W)."""
        if self.config.marked:
            pixels = self.scenes.marked.images[indices] / 255
            inside = self.scenes.marked.inside[indices]
            return {"images": (pixels - self._mean) / self._deviation, "pixels": pixels, "inside": inside}
        images, labels = self.scenes.test(indices)
        return {"images": (images / 255 - self._mean) / self._deviation, "labels": labels}

    def num_targets(self, batch: Batch) -> int:
        """One per image."""
        return len(batch["images"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy summed over the images."""
        return F.cross_entropy(model(batch["images"]).float(), batch["labels"], reduction="sum")

    def metrics(self) -> "dict[str, Metric]":
        """``accuracy`` and ``loss``, the mean cross-entropy."""
        from torchmetrics import MeanMetric
        from torchmetrics.classification import MulticlassAccuracy

        return {"accuracy": MulticlassAccuracy(len(self.scenes.classes), average="micro"), "loss": MeanMetric()}

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `held_out_batch` to the metrics."""
        logits = model(batch["images"]).float()
        metrics["accuracy"].update(logits, batch["labels"])
        metrics["loss"].update(F.cross_entropy(logits, batch["labels"], reduction="none"))

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """Refused: recipes/attention_quality.py reads these models."""
        raise ValueError("object_images predicts no files; recipes/attention_quality.py reads its models")


def _measure(scenes: Scenes) -> ObjectImages.Facts:
    pixels = scenes.train(torch.arange(2_000) % scenes.num_train, torch.Generator().manual_seed(0))[0].double() / 255
    mean, deviation = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))
    return ObjectImages.Facts(mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()))


def object_canvas() -> Run.Config:
    """Train a four-layer InfViT that names the digit on a canvas of fragments.

    Data:  MNIST in ../shared/data/mnist
    Get:   the four idx files, gzipped or not, from https://ossci-datasets.s3.amazonaws.com/mnist into FOLDER/mnist;
           then --task.data FOLDER
    Time:  half an hour for fifteen models and their maps
    """
    return _run("canvas", patch_size=6, epochs=20)


def object_cells() -> Run.Config:
    """Train a four-layer InfViT that classifies crops of blood images by the cells in them.

    Data:  blood cells with boxes in ../shared/data/bccd
    Get:   https://github.com/Shenggan/BCCD_Dataset, packed into FOLDER/bccd/bccd_128x96.npz with the arrays images,
           boxes_xyxy, box_class, box_image and split; then --task.data FOLDER
    Time:  a quarter of an hour for fifteen models and their maps
    """
    return _run("cells", patch_size=8, epochs=10)


def object_photographs() -> Run.Config:
    """Train a four-layer InfViT on 10,000 small photographs of ten classes.

    Data:  10,000 + 1,000 images of CIFAR-10 in ../shared/data/cifar10_subset
    Get:   https://www.cs.toronto.edu/~kriz/cifar.html, saved by numpy as FOLDER/cifar10_subset/cifar10_11k.npz with the
           arrays x_train, y_train, x_test and y_test; then --task.data FOLDER
    Time:  half an hour for fifteen models and their maps
    """
    return _run("photographs", patch_size=4, epochs=4)


def _run(scene: Scene, *, patch_size: int, epochs: int) -> Run.Config:
    return Run.Config(
        task=ObjectImages.Config(scene=scene, patch_size=patch_size),
        training=TrainingConfig(
            epochs=epochs,
            batch_size=32,
            learning_rate=2e-3,
            warmup_fraction=0.1,
            weight_decay=0.05,
            ema_decay=0.995,
            device="cpu",
            evaluate_every=epochs,
            evaluation_batch_size=200,
            tensorboard=False,
        ),
    )
