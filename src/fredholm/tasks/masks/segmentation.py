"""Semantic segmentation: prediction of the class of each pixel of an image."""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Self, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import check_count, check_rate, filled, refuse_idle
from fredholm.domains import Points
from fredholm.encoders.encoder import FieldEncoder
from fredholm.encoders.image import Image
from fredholm.encoders.image_pyramid import ImagePyramid
from fredholm.encoders.multi_scale_image import MultiScaleImage
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS, AttentionConfig
from fredholm.models.stack import Stack
from fredholm.tasks.baselines import BaselineExamples, drawn_elements
from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.files.npz_arrays import ARRAY_SUFFIXES
from fredholm.tasks.files.parts import refuse_part
from fredholm.tasks.images import moments, read_images
from fredholm.tasks.images.patches import STEM, divided_into_patches
from fredholm.tasks.images.read import IMAGE_SUFFIXES, size_of
from fredholm.tasks.images.resize import covering_size
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.masks import IGNORED, MaskedImages, open_masks, read_mask, truth_beside
from fredholm.tasks.outputs import PICTURES
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Effort, Preset, schedule_for, width_for
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, Splits
from fredholm.tasks.splits.splitting import DividedTask, Parts
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import TARGETS, UNKNOWN, ElementCounts, Target
from fredholm.tasks.task import Batch, EntryNames, Recommended, Task, Trained, head_entry_names, own_facts
from fredholm.tasks.tensor_form import ABOUT_PIXELS, BATCH, Slot, TensorForm, pixel_axes, random_pixels, sizes_of
from fredholm.tasks.views import ImageView, MaskView, ShownExample, View, device_of

from .answer import PredictedMask, draw, png_bytes
from .augmentation import MaskAugmentation, Masked
from .mirroring import mirroring_keeps_classes
from .npz_file import images_of_npz
from .tiles import tiles

CHUNK = 1 << 20
"""Number of pixels of masks that are counted together."""
QUERIES = 16384
"""Largest number of evaluation points at a time, which bounds memory; a longer row is evaluated as a whole."""
SIDES: dict[Preset, int] = {"small": 128, "base": 512}
"""Pixels of the longer side, to which larger images are scaled."""
PATCHES: dict[Preset, int] = {"small": 8, "base": 32}
"""Patches along that side."""
BLOCKS: dict[Preset, int] = {"small": 2, "base": 6}
"""Blocks of the model on these patches."""
FEW_IMAGES, SKIPPED = 500, 0.5
"""Most training images with which blocks are skipped more often in training, as they overfit, and the `drop_path`."""
REDUCED = 4
"""Ratio of pixels before scaling to those after, above which a prediction warns, where training scaled none."""
LARGEST = 16
"""Largest number of pixels of a scaled image to predict, relative to those of a training image."""


def _augmentation(task: "Segmentation") -> MaskAugmentation.Config:
    """Returns the default augmentation, with mirroring along each axis that may be mirrored."""
    across, down = (0.5 if mirroring_keeps_classes(task.splits.train, task.target, axis) else 0.0 for axis in (-1, -2))
    return MaskAugmentation.Config(crop_scale=(0.8, 1.0), horizontal_flip=across, vertical_flip=down)


def _small() -> ITNet.Config:
    return ITNet.Config(embed_dim=64, depth=2, kernel=AttentionConfig(), dropout=0.0)


@final
class Segmentation(TargetTask[MaskedImages], DividedTask[MaskedImages]):
    """A model on image patches that predicts the class of each pixel, trained at randomly drawn pixels.

    Images are augmented in [0, 1] and then standardised by the training split's mean and deviation per channel.

    Args:
        config: settings of the task.
        facts: facts of an earlier run; None learns them from the training split.

    Raises:
        ValueError: the data cannot be opened, or do not match `facts`.
    """

    command: ClassVar[str] = "segmentation"
    predicts = Kinds(suffixes=(*IMAGE_SUFFIXES, *ARRAY_SUFFIXES), has_parts=True)
    writes: ClassVar[Mapping[str, tuple[str, ...]]] = {"save": (), "picture": PICTURES}
    parts: ClassVar[tuple[type, ...]] = (ITNet.Config, *KERNELS, *TARGETS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts of the training split; `mean` and `deviation` are of pixels in [0, 1], one per channel."""

        target: Target
        channels: int
        image_size: tuple[int, int]
        mean: tuple[float, ...]
        deviation: tuple[float, ...]

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetTask.Config):
        """Settings of images with masks, their preprocessing, and the model.

        Args:
            data: a folder with images and masks, an .npz file, or a folder of these; see `open_masks`.
            image_size: height and width to scale images to; None keeps theirs. A trained model may be measured at
                another size that its patches divide.
            patch_sizes: sides of square patches, which divide the image; with several sizes, the smallest first, all
                patches are points of one signal (`encoders.MultiScaleImage`).
            stem_depth: residual convolutions on each grid from the pixels to the patches (`encoders.ImagePyramid`), 0
                or more, for patches of one size; None: patches are mapped linearly.
            balance_scales: give each size of patches the same mass, instead of each patch; refused with one size.
            position_frequencies: Fourier frequencies of the position features of the signal (kernels have their own);
                0: none.
            position_sigma: standard deviation of these frequencies, in cycles per image side; refused where there are
                none.
            num_pixels: number of labelled pixels of each training image in the loss, drawn anew in every batch; None:
                all.
            stride: measuring and predicting evaluate the model once per square of this many pixels a side, at its
                centre. 1: at every pixel.
            tile: height and width, in pixels of a file to predict, of the overlapping tiles that a larger image is cut
                into; each tile is predicted like an image. None: the image is scaled as a whole.
            augmentation: random changes to training images and their masks.
            label_smoothing: share of each label that is spread over all classes.
            model: model on the patches, which predicts at every point, whatever its `pool`.
        """

        data: str = ""
        image_size: tuple[int, int] | None = None
        patch_sizes: tuple[int, ...] = (8,)
        stem_depth: int | None = None
        balance_scales: bool = False
        position_frequencies: int = 16
        position_sigma: float = 1.0
        num_pixels: int | None = 256
        stride: int = 1
        tile: tuple[int, int] | None = None
        augmentation: MaskAugmentation.Config = field(default_factory=MaskAugmentation.Config)
        label_smoothing: float = 0.0
        model: ITNet.Config = field(default_factory=_small)

        weight_settings: ClassVar[tuple[str, ...]] = (
            "patch_sizes",
            "stem_depth",
            "balance_scales",
            "position_frequencies",
            "position_sigma",
            "model",
        )

        @property
        def unmeasured_settings(self) -> tuple[str, ...]:
            """See `Task.Config.unmeasured_settings`."""
            return ("num_pixels", "tile", "augmentation", "label_smoothing")

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("stride", "tile")

        def __post_init__(self) -> None:
            if not self.patch_sizes:
                raise ValueError("patch_sizes is (); expected at least one side of a patch")
            for side in self.patch_sizes:
                check_count("segmentation", "patch_sizes", side)
            if len(self.patch_sizes) == 1:
                one = f"patch_sizes={self.patch_sizes}"
                refuse_idle("", type(self), one, "give several", balance_scales=self.balance_scales)
            elif self.stem_depth is not None:
                raise ValueError(
                    f"stem_depth is {self.stem_depth}, but patch_sizes={self.patch_sizes} are cut out; give one size, "
                    "or leave stem_depth out"
                )
            if self.stem_depth is not None:
                check_count("segmentation", "stem_depth", self.stem_depth, 0)
            if self.image_size is not None:
                for side in self.patch_sizes:
                    if any(extent < 1 or extent % side for extent in self.image_size):
                        raise ValueError(
                            f"image_size is {self.image_size}; expected multiples of {side}, the side of a patch"
                        )
            check_count("segmentation", "stride", self.stride)
            for side in self.tile or ():
                check_count("segmentation", "tile", side)
            check_count("segmentation", "position_frequencies", self.position_frequencies, 0)
            if self.num_pixels is not None:
                check_count("segmentation", "num_pixels", self.num_pixels)
            check_rate("segmentation", "label_smoothing", self.label_smoothing)
            if self.position_frequencies == 0:
                none, given = "position_frequencies=0", {"position_sigma": self.position_sigma}
                refuse_idle("", type(self), none, "give position_frequencies", **given)
            self.model.answering_everywhere("each pixel")
            if self.model.diffusion:
                raise ValueError(f"model.diffusion is {self.model.diffusion}, but images are no graphs; leave it out")

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`; chooses size and patches of images, augmentation, and the model's size."""
            default, task = Segmentation.Config(), self.build()
            size, patch = divided_into_patches(task.facts.image_size, SIDES[effort.preset], PATCHES[effort.preset])
            # patches of a run might not divide another size
            has_patches = start is not None or self.patch_sizes != default.patch_sizes
            config = filled(self, [default], patch_sizes=(patch,))
            if self.augmentation == default.augmentation:
                config = dataclasses.replace(config, augmentation=_augmentation(task))
            if size != task.facts.image_size and not has_patches:
                config = filled(config, [default], image_size=size)
            if len(config.patch_sizes) == 1 and start is None:
                config = filled(config, [default], stem_depth=STEM[effort.preset])
            width = width_for(task.num_train, effort, least=64, up_to=1000)
            model = config.model.resized(width, BLOCKS[effort.preset], default.model)
            if task.num_train <= FEW_IMAGES:
                model = filled(model, [default.model], drop_path=SKIPPED)
            config = dataclasses.replace(config, model=model)
            has_valid = task.num_held_out("valid") > 0
            schedule = schedule_for(task.num_train, effort, has_valid=has_valid, learning_rate=0.005)
            return Recommended(config, schedule)

        @property
        def stack(self) -> ITNet.Config:
            """See `Task.Config.stack`; the model."""
            return self.model

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`; an ITNet."""
            assert isinstance(stack, ITNet.Config)
            return dataclasses.replace(self, model=stack)

        def build(self, facts: Task.Facts | None = None) -> "Segmentation":
            """Builds the task; see `Segmentation`."""
            return Segmentation(self, own_facts(facts, Segmentation.Facts, "segmentation"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._learn_facts()
        self._set_target(self._facts.target, config.target_settings)
        self._augment = MaskAugmentation(config.augmentation, self._facts.channels)
        self._mean, self._deviation = (
            torch.tensor(values).view(-1, 1, 1) for values in (self._facts.mean, self._facts.deviation)
        )

    @property
    def facts(self) -> Facts:
        """Facts of the training split."""
        return self._facts

    @cached_property
    def _images(self) -> MaskedImages:
        """All images."""
        if not self.config.data:
            raise ValueError("no images are given; pass a folder with images and masks, or an .npz file")
        with self.config.csv.reading(self.config.data):
            return open_masks(self.config.data, image_size=self.config.image_size)

    @cached_property
    def _split(self) -> Parts:
        images, root = self._images, str(user_path(self.config.data))
        names = [name.removeprefix(root) for name in images.names]  # independent of the place of the data
        return self._divided(images.marks.keys(names, [0] * len(images)), images.marks.given)

    def _part(self, numbers: Tensor) -> MaskedImages:
        return self._images.select(numbers)

    def _learn_facts(self) -> Facts:
        """Learns the facts of the training split; a constant channel has deviation 1, so that it becomes 0."""
        config, train = self.config, self._opened.train
        counts = torch.zeros(256, dtype=torch.int64)
        for indices in torch.arange(len(train)).split(max(1, CHUNK // math.prod(train.image_size))):
            counts += train.masks(indices).flatten().bincount(minlength=256)
        known = counts[: len(train.classes)]
        _check_present(train.classes, known, int(counts[IGNORED]), config.data)
        mean, deviation = moments(train, torch.arange(len(train)))
        return Segmentation.Facts(
            target=ElementCounts(names=train.classes, counts=known).learn(config.target_settings, config.data),
            channels=train.channels,
            image_size=train.image_size,
            mean=mean,
            deviation=deviation,
        )

    def _check(self, splits: Splits[MaskedImages]) -> None:
        # a size in the settings may differ from that in training
        scaled = () if self.config.image_size is None else ("image_size",)
        splits.check_facts(self._facts, self.config.data, apart_from=("classes", *scaled))
        if splits.train.classes != self.target.names:
            got, expected = (", ".join(names) for names in (splits.train.classes, self.target.names))
            raise ValueError(f"the classes of {self.config.data} are {got}; the run was made with {expected}")

    @property
    def train_shards(self) -> Tensor | None:
        """Sizes of shards of images in mapped arrays."""
        return self.splits.train.shards

    def model(self) -> ITNet:
        """Returns the model on an image encoder, with one logit per class at every point."""
        config, facts = self.config, self._facts
        same = {
            "image_size": facts.image_size,
            "channels": facts.channels,
            "num_frequencies": config.position_frequencies,
            "sigma": config.position_sigma if config.position_frequencies else 10.0,
            "any_size": True,
        }
        embed_dim, sizes = config.model.embed_dim, config.patch_sizes
        encoder: FieldEncoder
        if len(sizes) == 1:
            images, depth = Image.Config(patch_size=sizes[0], **same), config.stem_depth
            encoder = Image(images, embed_dim) if depth is None else ImagePyramid(images, embed_dim, depth=depth)
        else:
            scales = MultiScaleImage.Config(patch_sizes=sizes, balanced=config.balance_scales, **same)
            encoder = MultiScaleImage(scales, embed_dim)
        model = config.model.answering_everywhere("each pixel").build(encoder, self.target.num_outputs)
        self._refuse_unanswering(model)
        return model

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`; classes name the head's rows."""
        return head_entry_names(model, self.target.output_names)

    @torch.no_grad()
    def _refuse_unanswering(self, model: ITNet) -> None:
        """Raises a ValueError where a kernel cannot predict between patches, before anything is trained or written."""
        side = self.config.patch_sizes[-1]
        with torch.random.fork_rng(devices=[]):  # random draws of a quadrature must not affect the run
            model.eval()(torch.zeros(1, self._facts.channels, side, side), at=Points(torch.tensor([[0.3, 0.6]])))
            model.train()

    def check_packages(self) -> None:
        """See `Task.check_packages`; also checks those of the augmentation."""
        super().check_packages()
        self._augment.check_packages()

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Returns `images` (B, C, H, W), standardised, points `pos` (B, n, 2) of pixels, and their `targets` (B, n).

        Targets are `UNKNOWN` where no class is known; such pixels are drawn only where an image has too few others.
        """
        return self.train_batch_rows(indices, slice(0, len(indices)), generator)

    def train_batch_rows(self, indices: Tensor, rows: slice, generator: torch.Generator) -> Batch:
        """See `Task.train_batch_rows`; other images and masks are not read."""
        train, batch_size = self.splits.train, len(indices)
        own = torch.arange(batch_size)[rows]
        given = Masked(train.images(indices[own]) / 255, train.masks(indices[own]))
        images, masks = self._augment.some(given, own, batch_size, generator)
        height, width = masks.shape[1:]
        labels = masks.flatten(1).long()
        count = height * width if self.config.num_pixels is None else min(self.config.num_pixels, height * width)
        pixel = torch.arange(height * width).expand(len(labels), -1)
        if count < height * width:
            key = torch.rand(batch_size, height * width, generator=generator)[own]
            pixel = torch.where(labels == IGNORED, -1.0, key).topk(count, dim=1).indices
            labels = labels.gather(1, pixel)
        pos = torch.stack([(pixel // width + 0.5) / height, (pixel % width + 0.5) / width], dim=-1)
        targets = torch.where(labels == IGNORED, UNKNOWN, labels)
        return {"images": self._standardise(images), "pos": pos, "targets": targets}

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Returns `images` (B, C, H, W), standardised, and `targets` (B, H, W), `UNKNOWN` where no class is known."""
        part = self.held_out(split)
        images, masks = part.images(indices), part.masks(indices).long()
        return {
            "images": self._standardise(images / 255),
            "targets": torch.where(masks == IGNORED, UNKNOWN, masks),
        }

    @torch.no_grad()
    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`; the image, the true classes and the predicted ones."""
        part, at, classes = self.held_out(split), torch.tensor([index]), self.target.names
        pixels, mask = part.images(at), part.masks(at)[0].long()
        views: tuple[View, ...] = (
            ImageView(pixels=pixels[0]),
            MaskView(title="truth", labels=torch.where(mask == IGNORED, -1, mask), classes=classes),
        )
        if model is not None:
            given, size = self._standardise(pixels / 255).to(device_of(model)), (mask.shape[0], mask.shape[1])
            predicted = torch.cat([logits[0].argmax(-1).cpu() for _, logits in self.logits(model, given, size)])
            views = (*views, MaskView(title="answer", labels=predicted, classes=classes))
        return ShownExample(name=part.names[index], views=views)

    @property
    def _smoothing(self) -> float:
        return self.config.label_smoothing

    def _outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["images"], at=Points(batch["pos"])).float()

    def _measured(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields image by image, some rows of pixels at a time."""
        for image, targets in zip(batch["images"], batch["targets"], strict=True):
            for top, logits in self.logits(model, image[None], (targets.shape[0], targets.shape[1])):
                known = targets[top : top + logits.shape[1]]
                there = known != UNKNOWN
                if bool(there.any()):
                    yield logits[0, there], known[there]

    @property
    def _train_answers(self) -> None:
        return None

    def _baseline_examples(self, split: Split) -> BaselineExamples:
        """See `TargetTask._baseline_examples`; features `_baseline_pixels` of pixels whose class is known."""
        part, inputs, targets = self._part_of(split), list[np.ndarray](), list[Tensor]()
        known = [int((part.masks(indices) != IGNORED).sum()) for indices in torch.arange(len(part)).split(1)]
        for number, drawn in enumerate(drawn_elements(known, split)):
            if len(drawn):
                index = torch.tensor([number])
                mask = part.masks(index)[0].flatten().long()
                pixels = (mask != IGNORED).nonzero()[drawn, 0]
                inputs.append(_baseline_pixels(part.images(index) / 255, pixels))
                targets.append(mask[pixels])
        if not inputs:
            raise ValueError(f"no pixel of the {split} split has a class that is known")
        return BaselineExamples(np.concatenate(inputs), torch.cat(targets))

    def logits(self, model: nn.Module, images: Tensor, size: tuple[int, int]) -> Iterator[tuple[int, Tensor]]:
        """Yields a model's logits `(B, rows, W, K)` for images, some rows of pixels at a time.

        With them comes the index of the first of these rows, from 0 at the top. The layers of the patches are computed
        once.

        Args:
            images: standardised, `(B, C, H', W')`.
            size: height and width H, W of the evaluated pixels, which divide the same box.
        """
        if not isinstance(model, ITNet):
            raise TypeError(f"segmentation asks an ITNet; got a {type(model).__name__}")
        (height, width), stride = size, self.config.stride
        down, right = (_centres(extent, stride, images.device) for extent in size)
        answers = model.field(images.to(model.head.weight.dtype))
        rows = max(1, QUERIES // len(right))
        for first in range(0, len(down), rows):
            some, top = down[first : first + rows], first * stride
            pos = torch.stack(torch.meshgrid(some, right, indexing="ij"), dim=-1).flatten(0, 1)
            logits = answers(Points(pos)).float().unflatten(1, (len(some), len(right)))
            logits = logits.repeat_interleave(stride, 1)[:, : height - top]
            yield top, logits.repeat_interleave(stride, 2)[:, :, :width]

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`; from pixels of the training size to the probabilities of each of them."""
        facts, target, size = self._facts, self.target, self._facts.image_size

        def call(model: nn.Module, pixels: Tensor) -> Tensor:
            rows = [logits for _, logits in self.logits(model, self._standardise(pixels / 255), size)]
            return target.answers(torch.cat(rows, dim=1))

        axes = pixel_axes(facts.channels, size)
        return TensorForm(
            model=model,
            call=call,
            inputs=(Slot("pixels", (BATCH, *axes), f"{ABOUT_PIXELS}, scaled to this size"),),
            output=target.slot(BATCH, *axes[1:]),
            draw=lambda sizes, generator: (random_pixels((sizes["batch"], *sizes_of(axes)), generator),),
            names=target.axis_names,
        )

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """Returns `file`, the path of its `saved` mask, if any, and the `share` of its pixels that each class has.

        Every pixel of a file is classified, whatever its size. An image of another size than the training images is
        scaled to cover that size, or `image_size`, as they were, but not cropped; each side becomes a multiple of the
        largest patch. With `tile` this is done with each tile. An image in an array has its index after the `file`.

        A mask is saved as NAME.png, for an image in an array as NAME-NUMBER.png. A picture has each image beside its
        prediction and, where the image is in a folder `images` with its mask in `masks` beside it, the mask.

        Raises:
            ValueError: a file cannot be read or has too extreme an aspect ratio, a mask beside an image does not fit
                it, or an output file exists.
        """
        outputs, classes = inputs.outputs, self.target.names
        if outputs.save is not None:  # names for single images are known before any computation
            singles = [file for file in inputs.files if file.suffix.lower() not in ARRAY_SUFFIXES]
            outputs.check_folder([(file, f"{file.stem}.png") for file in singles])
        rows: list[Prediction] = []
        answers: list[PredictedMask] = []
        for file, images in inputs.read(lambda file: self._read(file, inputs)):
            for each in images:
                mask = self._mask(model, each, device)
                cells: dict[str, str | float] = {}
                if outputs.save is not None:
                    path = outputs.save / f"{each.saved_as}.png"
                    outputs.write("--save", path, png_bytes(mask, len(classes)))
                    cells["saved"] = str(path)
                shares = (mask.flatten().long().bincount(minlength=len(classes)).double() / mask.numel()).tolist()
                cells |= {f"share {name}": share for name, share in zip(classes, shares, strict=True)}
                rows.append(Prediction(file, cells, source=str(each.name)))
                if outputs.picture is not None:
                    answers.append(PredictedMask(each.name, each.image, mask, each.truth))
        if outputs.picture is not None and answers:
            outputs.write("--picture", outputs.picture, draw(answers, classes, kind=outputs.picture.suffix))
        return rows

    def _mask(self, model: nn.Module, request: "_Request", device: torch.device) -> Tensor:
        """Returns the class of each pixel, uint8 `(H, W)`."""
        height, width = request.tile
        mask = torch.empty(request.image.shape[1:], dtype=torch.uint8)
        for down, right in itertools.product(*map(tiles, mask.shape, request.tile)):
            image = request.image[:, down.first :, right.first :][:, :height, :width]
            given = self._standardise(_resized(image[None] / 255, request.scaled)).to(device)
            found = torch.cat([logits[0].argmax(-1) for _, logits in self.logits(model, given, request.tile)])
            mask[down.place, right.place] = found[down.own, right.own].to("cpu", torch.uint8)
        return mask

    def _read(self, file: Path, inputs: Inputs) -> "list[_Request]":
        """Reads the images of a file."""
        channels, truth = self._facts.channels, None
        if file.suffix.lower() in ARRAY_SUFFIXES:
            images = images_of_npz(file, channels, part=inputs.part)
            names = [file.with_name(f"{file.name}[{i}]") for i in range(len(images))]
            saved_as = [f"{file.stem}-{i}" for i in range(len(images))]
        else:
            refuse_part(file, inputs.part)
            size = size_of(file)
            images, names, saved_as = read_images([file], channels, size), [file], [file.stem]
            if inputs.outputs.picture is not None:
                truth = _truth(file, size, len(self.target.names))
        size = (images.shape[2], images.shape[3])
        given = self.config.tile or size
        tile = (min(size[0], given[0]), min(size[1], given[1]))
        scaled = self._scaled_size(file, tile)
        if self.config.image_size is None and math.prod(tile) > REDUCED * math.prod(scaled):
            warnings.warn(
                f"an image of {tile[0]} x {tile[1]} is scaled to {scaled[0]} x {scaled[1]}, about the size of the "
                "training images; if those were cut out of such images, set tile to their size "
                "(fredholm predict ... --task tile=HEIGHT,WIDTH)",
                stacklevel=2,
            )
        return [
            _Request(name, stem, image, tile, scaled, truth)
            for name, stem, image in zip(names, saved_as, images, strict=True)
        ]

    def _scaled_size(self, file: Path, size: tuple[int, int]) -> tuple[int, int]:
        """Returns height and width at which the model sees an image of this size."""
        wanted = self.config.image_size or self._facts.image_size
        if size == wanted:
            return size
        side = self.config.patch_sizes[-1]
        height, width = (max(1, round(extent / side)) * side for extent in covering_size(size, wanted))
        if height * width > LARGEST * wanted[0] * wanted[1]:
            raise ValueError(
                f"{file}: is {size[0]} x {size[1]}, too long for the model's "
                f"{wanted[0]} x {wanted[1]}; pad it, or set tile={wanted} to cut it into tiles"
            )
        return height, width

    def _standardise(self, images: Tensor) -> Tensor:
        return (images - self._mean.to(images.device)) / self._deviation.to(images.device)


class _Request(NamedTuple):
    """An image to be classified."""

    name: Path
    """The file, or the location in its array."""
    saved_as: str
    """Name of its saved mask, without suffix."""
    image: Tensor
    """uint8 `(C, H, W)`."""
    tile: tuple[int, int]
    """Height and width of the tiles that it is cut into; its own where it is not cut."""
    scaled: tuple[int, int]
    """Height and width at which the model sees a tile."""
    truth: Tensor | None
    """True mask, uint8 `(H, W)`, where it is known and to be drawn."""


def _centres(extent: int, stride: int, device: torch.device) -> Tensor:
    """Returns the centres of runs of `stride` pixels, in [0, 1]; the last run may be shorter."""
    first = torch.arange(0, extent, stride, device=device)
    return (first + (first + stride).clamp(max=extent)) / (2 * extent)


def _baseline_pixels(image: Tensor, pixels: Tensor) -> np.ndarray:
    """Returns features `(n, 5 C + 5)` of pixels of an image `(1, C, H, W)` from 0 to 1, for models without a network.

    Features are colours, their means and deviations over 3 x 3 and 9 x 9 pixels, and the position, its squares and
    product.
    """
    parts = [image]
    for side in (3, 9):
        mean, square = (
            F.avg_pool2d(each, side, 1, side // 2, count_include_pad=False) for each in (image, image.square())
        )
        parts += [mean, (square - mean.square()).clamp(min=0).sqrt()]
    width = image.shape[3]
    down, right = ((pixels // width + 0.5) / image.shape[2], (pixels % width + 0.5) / width)
    places = torch.stack([down, right, down.square(), right.square(), down * right], dim=1)
    return torch.cat([torch.cat(parts, dim=1)[0].flatten(1).mT[pixels], places], dim=1).numpy()


def _resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(images.shape[2:]) == size:
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True).clamp(0, 1)


def _truth(file: Path, size: tuple[int, int], num_classes: int) -> Tensor | None:
    """Reads the true mask of an image; None where there is none.

    Raises:
        ValueError: the mask cannot be read, or does not fit the image or the classes.
    """
    path = truth_beside(file)
    if path is None:
        return None
    mask = read_mask(path)
    if tuple(mask.shape) != size:
        raise ValueError(f"{path}: is {mask.shape[0]} x {mask.shape[1]}; its image is {size[0]} x {size[1]}")
    largest = int(torch.where(mask == IGNORED, 0, mask).max())
    if largest >= num_classes:
        raise ValueError(f"{path}: has the class number {largest}; there are {num_classes} classes, from 0 on")
    return mask


def _check_present(classes: tuple[str, ...], counts: Tensor, num_ignored: int, data: str) -> None:
    """Warns of classes without a training pixel; raises a ValueError where fewer than two have some."""
    present = [classes[k] for k in counts.nonzero()[:, 0].tolist()]
    if len(present) < 2:
        hint = f"; {IGNORED} is a pixel that is not labelled: in masks of 0 and {IGNORED} write 1 for {IGNORED}"
        raise ValueError(
            f"{data}: labelled training pixels are of the class {', '.join(map(repr, present)) or 'none'} alone; "
            f"expected at least 2 classes{hint if num_ignored else ''}"
        )
    if absent := [name for name in classes if name not in present]:
        warnings.warn(f"{data}: no training pixel is of the class {', '.join(map(repr, absent))}", stacklevel=2)
