"""Predicting the class of images with a text, such as the answer to a question, or whether a sentence is true."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Self, final, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fredholm._settings import check_count, check_rate, filled, refuse_idle
from fredholm.encoders.image import Image
from fredholm.encoders.image_text import ImageText, ImageTextBatch, ModalityMeasure
from fredholm.encoders.text import Text
from fredholm.models.blended import BlendedImageTexts
from fredholm.models.fitted.banks.n_gram_bank import NGramBank
from fredholm.models.fitted.boosted_trees import affordable_trees
from fredholm.models.fitted.table_machine import TableBatch, TableMachine, TableReading
from fredholm.models.images.each_image import EachImage
from fredholm.models.images.infvit import InfViT
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS, AttentionConfig
from fredholm.models.language.sentence_model import TokenReading
from fredholm.models.signal_model import SignalModel
from fredholm.models.stack import Stack, stack_of
from fredholm.models.two_stream import TwoStream
from fredholm.tasks.baselines import baseline_pixels
from fredholm.tasks.blending import BlendingTask, check_has_valid
from fredholm.tasks.image_texts import ImageTextSet, open_image_texts, read_image_texts
from fredholm.tasks.images import moments
from fredholm.tasks.images.changes import ImageChanges, drawing
from fredholm.tasks.images.patches import divided_into_patches, patch_encoder
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import DEPTH, Effort, Preset, schedule_for, width_for
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, OfEachSplit, Splits
from fredholm.tasks.splits.splitting import DividedTask, Parts
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import TARGETS, Answers, Target
from fredholm.tasks.task import (
    Batch,
    EntryNames,
    Recommended,
    Source,
    Task,
    Trained,
    head_entry_names,
    own_facts,
    to_device,
)
from fredholm.tasks.tensor_form import (
    ABOUT_PIXELS,
    BATCH,
    Axis,
    Sizes,
    Slot,
    TensorForm,
    pixel_axes,
    random_pixels,
    sizes_of,
)
from fredholm.tasks.text import JSONL_SUFFIXES, MarkedTokenizer, Tokens, context_for, tokens_axis, warn_of_cut
from fredholm.tasks.views import ImageView, ShownExample, TextPart, TextView

Modalities = Literal["both", "image", "text"]
SIDES: dict[Preset, int] = {"small": 64, "base": 224}
"""Pixels of the longer side, to which larger images are scaled."""
PATCHES: dict[Preset, int] = {"small": 8, "base": 14}
"""Patches along the longer side."""
PLAIN_SIDE = 8
"""Cells along each side of an image; baselines read the mean pixel of each cell."""
CHUNK = 64
"""Examples of a file that are predicted at a time."""
LEAST_BESIDE, MOST_BESIDE, MOST_WITH_MACHINE = 20, 3000, 10_000
"""Fewest and most examples of a table machine beside a network; most training examples for which it is the default."""
MOST_VALUES, MOST_CENTRES = 1 << 27, 4096
"""Most pixel values that a table machine is fitted to, and most centres of its kernel."""


def _token_reading(tokenizer: MarkedTokenizer, context: int) -> TokenReading:
    """Sizes and marks of the tokens, for a table machine."""
    marks = tokenizer.marks
    return TokenReading(
        vocab_size=tokenizer.vocab_size,
        context=context,
        pad=marks.pad,
        separator=marks.separator,
        spelling=tokenizer.letters,
    )


def _small() -> SignalModel.Config:
    """The default network, with attention, by which words refer to places in an image."""
    return ITNet.Config(embed_dim=64, depth=4, kernel=AttentionConfig())


@final
class ImageTextLearning(BlendingTask[ImageTextSet], DividedTask[ImageTextSet]):
    """A model on images with a text each that predicts the class of each example; ITNet, section 3 and K.4.

    A text is `[CLS] a [SEP]`, padded to the longest of its batch. Images are standardised by the training split's mean
    and deviation per channel. Warns once of training texts that the context cuts.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the training split.

    Raises:
        ValueError: the data cannot be opened, have a single class, or do not match `facts`; or a setting has no
            effect.
        ImportError: reading them needs a package that is not installed.
    """

    command: ClassVar[str] = "image-text"
    predicts = Kinds(suffixes=(*JSONL_SUFFIXES, ".npz"), has_parts=True)
    parts: ClassVar[tuple[type, ...]] = (
        *(ITNet.Config, InfViT.Config, TwoStream.Config, NGramBank.Config),
        *KERNELS,
        *TARGETS,
    )

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts about the training split; `mean` and `deviation` are of pixels in [0, 1], one per channel.

        `n_grams` are the sizes of a table machine's bank of n-grams; None: there is no machine.
        """

        tokenizer: str
        context: int
        target: Target
        num_images: int
        channels: int
        image_size: tuple[int, int]
        mean: tuple[float, ...]
        deviation: tuple[float, ...]
        n_grams: NGramBank.Config | None = None

        @property
        def files(self) -> dict[str, str]:
            """The tokenizer, in the format of its library."""
            return {"tokenizer.json": self.tokenizer}

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetTask.Config):
        """The images and texts, the inputs of the model, and the model.

        Args:
            data: a .jsonl file, a folder with files such as train.jsonl and test.jsonl, an .npz file, or a folder of
                these; see `open_image_texts`.
            image_size: height and width to scale images to; None keeps theirs.
            patch_size: side of a square patch, or height and width; it divides the image.
            stem_depth: residual convolutions on each grid between the pixels and the patches
                (`encoders.ConvolutionalImage`), 0 or more; None: patches are cut out, and mapped linearly.
            tokens: the tokens of the texts.
            context: most tokens that the model reads, marks included, and the unit of length of their positions.
            position_frequencies: Fourier frequencies of the position features of the signal (kernels have their own),
                of patches and of tokens; 0: none.
            position_sigma: standard deviation of these frequencies, in cycles per image side and per context; refused
                where there are none.
            modalities: the inputs of the model: both, or one of them, for a comparison.
            measure: the measure of images and text; see `encoders.ImageText`. Refused where one is read alone, or each
                has its own stream.
            images_apart: the model reads each of several images separately, with the text, and class tokens are joined
                (ITNet K.4); else all are in one domain. Refused for one image, and where texts are read alone.
            shuffle_images: shuffle the images of each training example every time, for labels that do not depend on
                their order. Refused likewise.
            augmentation: random changes to the training images, drawn for each image; refused where texts are read
                alone.
            label_smoothing: share of each label that is spread over all classes.
            image_run: the folder of a run of `fredholm train images`, from whose averaged weights the encoder of
                patches starts and, where they fit, the blocks; None: from new weights.
            text_run: the folder of a run of `sentences` or `masked`, from whose averaged weights the encoder of tokens
                starts, and nothing else; None: from new weights.
            model: the model on both; a recipe chooses its kind.
            table_machine: most training examples of a table machine beside the network (`models.BlendedImageTexts`),
                which reads images and text as columns of a row. The validation split chooses its share in the
                prediction, so it is refused without one, with objective='loss', which is the loss of the network alone,
                and where one modality is read alone. 0: no machine; None: none, unless a run recommends one.
        """

        data: str = ""
        image_size: tuple[int, int] | None = None
        patch_size: int | tuple[int, int] = 16
        stem_depth: int | None = None
        tokens: Tokens = field(default_factory=Tokens)
        context: int = 64
        position_frequencies: int = 16
        position_sigma: float = 10.0
        modalities: Modalities = "both"
        measure: ModalityMeasure = "balanced"
        images_apart: bool = False
        shuffle_images: bool = False
        augmentation: ImageChanges.Config = field(default_factory=ImageChanges.Config)
        label_smoothing: float = 0.0
        image_run: str | None = None
        text_run: str | None = None
        model: SignalModel.Config = field(default_factory=_small)
        table_machine: int | None = None

        weight_settings: ClassVar[tuple[str, ...]] = (
            *("patch_size", "stem_depth", "tokens", "context", "position_frequencies", "position_sigma"),
            *("modalities", "measure", "images_apart", "model", "table_machine"),
        )

        @property
        def unmeasured_settings(self) -> tuple[str, ...]:
            """See `Task.Config.unmeasured_settings`."""
            return ("shuffle_images", "augmentation", "label_smoothing", "image_run", "text_run")

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ()

        def __post_init__(self) -> None:
            self.model.check_pools("an image with a text")
            for name, kind in (("modalities", Modalities), ("measure", ModalityMeasure)):
                if getattr(self, name) not in get_args(kind):
                    raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(get_args(kind))}")
            check_rate("image-text", "label_smoothing", self.label_smoothing)
            if self.stem_depth is not None:
                check_count("image-text", "stem_depth", self.stem_depth, 0)
            if self.position_frequencies == 0:
                none, given = "position_frequencies=0", {"position_sigma": self.position_sigma}
                refuse_idle("", type(self), none, "give position_frequencies", **given)
            if self.table_machine:
                check_count("image-text", "table_machine", self.table_machine, least=2)
                if self.objective == "loss":
                    raise ValueError(
                        f"objective='loss' is of the network alone, beside table_machine={self.table_machine}; leave "
                        "one out"
                    )
            if self.modalities != "both":
                alone = f"modalities={self.modalities!r}"
                if isinstance(self.model, TwoStream.Config):
                    raise ValueError(f"model is of two streams, and {alone}; take another model, or both modalities")
                idle: dict[str, object] = {"measure": self.measure, "table_machine": self.table_machine or None}
                if self.modalities == "image":
                    idle |= {"text_run": self.text_run, "context": self.context}
                    if self.tokens != Tokens():
                        raise ValueError(
                            f"tokens are given, and have no effect with {alone}; leave them out, or read both"
                        )
                else:
                    idle |= {"image_run": self.image_run, "patch_size": self.patch_size, "stem_depth": self.stem_depth}
                    idle |= {"images_apart": self.images_apart, "shuffle_images": self.shuffle_images}
                    if self.augmentation != ImageChanges.Config():
                        raise ValueError(
                            f"augmentation is given, and has no effect with {alone}; leave it out, or read both"
                        )
                refuse_idle("", type(self), alone, "read both", **idle)
            elif isinstance(self.model, TwoStream.Config):
                refuse_idle("", type(self), "a model of two streams", "take another one", measure=self.measure)

        def in_folder(self, folder: Path, facts: Task.Facts) -> Self:
            """See `Task.Config.in_folder`: the tokens are those of the folder."""
            return replace(self, tokens=Tokens(file=str(folder / "tokenizer.json")))

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: patches, tokens, the context that holds them all, and the model's size."""
            default, task, config = ImageTextLearning.Config(), self.build(), self
            if self.modalities != "text":
                size, patch = divided_into_patches(task.facts.image_size, SIDES[effort.preset], PATCHES[effort.preset])
                # the patches might not divide another size
                has_patches = start is not None or self.patch_size != default.patch_size
                config = filled(config, [default], patch_size=patch)
                if size != task.facts.image_size and not has_patches:
                    config = filled(config, [default], image_size=size)
            if self.modalities != "image":
                texts = [example.text for example in task.splits.train.examples]
                tokens = self.tokens.recommended(texts)
                context = context_for(
                    tokens.learn(texts), ((text,) for text in texts), 128 if effort.preset == "small" else 512
                )
                config = filled(replace(config, tokens=tokens), [default], context=context)
            if config.position_frequencies:
                config = filled(config, [default], position_sigma=1.0)
            width = width_for(task.num_train, effort, least=64, up_to=1000)
            model = config.model.resized(width, DEPTH[effort.preset], default.model)
            most = 0 if start is not None else task.max_machine_examples(config.image_size or task.facts.image_size)
            config = filled(replace(config, model=model), [default], table_machine=most)
            return Recommended(config, schedule_for(task.num_train, effort, has_valid=task.num_held_out("valid") > 0))

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`: the model."""
            return stack_of(self.model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`; without a table machine, which would be equal beside all kernels."""
            return replace(self, model=stack, table_machine=0)

        def build(self, facts: Task.Facts | None = None) -> "ImageTextLearning":
            """The task; see `ImageTextLearning`."""
            return ImageTextLearning(self, own_facts(facts, ImageTextLearning.Facts, "images with text"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._learn_facts()
        self._set_target(self._facts.target, config.target_settings)
        if config.context != self._facts.context:
            raise ValueError(f"context is {config.context}; the run was made with {self._facts.context}")
        if self._facts.num_images == 1:
            one, idle = "one image a text", ("images_apart", "shuffle_images")
            refuse_idle(
                "", ImageTextLearning.Config, one, "give texts several", **{n: getattr(config, n) for n in idle}
            )
        self.tokenizer = MarkedTokenizer(self._facts.tokenizer)
        self._changes = ImageChanges(config.augmentation)
        if facts is None and config.table_machine:
            check_has_valid("table_machine", config.table_machine, self.num_held_out("valid"), "examples")
        self._mean, self._deviation = (
            torch.tensor(values).view(-1, 1, 1) for values in (self._facts.mean, self._facts.deviation)
        )

    @property
    def facts(self) -> Facts:
        """Facts about the training split."""
        return self._facts

    @property
    def input_meaning(self) -> dict[str, object]:
        """The tokenizer and the context."""
        return {"tokenizer": self._facts.tokenizer, "context": self._facts.context}

    @property
    def sources(self) -> tuple[Source, ...]:
        """The runs that the encoders start from."""
        config, found = self.config, list[Source]()
        apart = "model." if config.images_apart else ""
        blocks = f"{apart}{'image_' if isinstance(config.model, TwoStream.Config) else ''}blocks."
        if config.image_run is not None:
            names = {"encoder.": f"{apart}encoder.image.", "blocks.": blocks}
            alike = ("patch_size", "stem_depth", "position_frequencies", "model.embed_dim")
            found.append(Source("image_run", config.image_run, names, whole=f"{apart}encoder.image.", alike=alike))
        if config.text_run is not None:
            names = {"encoder.": f"{apart}encoder.text."}
            found.append(
                Source(
                    "text_run",
                    config.text_run,
                    names,
                    whole=f"{apart}encoder.text.",
                    input_meaning=tuple(self.input_meaning),
                )
            )
        return tuple(found)

    @cached_property
    def _examples(self) -> ImageTextSet:
        """All examples."""
        config = self.config
        if not config.data:
            raise ValueError("no images with text are given; pass a .jsonl file, a folder of them, or an .npz file")
        with config.csv.reading(config.data):
            return open_image_texts(config.data, image_size=config.image_size)

    @cached_property
    def _split(self) -> Parts:
        found = self._examples
        assert found.answers is not None
        return self._divided(found.marks.keys(found.names, found.answers.strata.tolist()), found.marks.given)

    def _part(self, numbers: Tensor) -> ImageTextSet:
        return self._examples.select(numbers)

    def _learn_facts(self) -> Facts:
        """The facts of the training split."""
        config, train = self.config, self._opened.train
        assert train.answers is not None
        target = train.answers.learn(config.target_settings, config.data)
        mean, deviation = moments(train.pictures, train.index.unique())
        tokenizer = config.tokens.learn([example.text for example in train.examples])
        n_grams = None
        if config.table_machine:
            laid = (tokenizer.lay_out(example.text, None, config.context)[0][None] for example in train.examples)
            n_grams = NGramBank.Config().recommended(laid, _token_reading(tokenizer, config.context), 1, 1)
        return ImageTextLearning.Facts(
            tokenizer=tokenizer.state,
            context=config.context,
            target=target,
            num_images=train.num_images,
            channels=train.channels,
            image_size=train.image_size,
            mean=mean,
            deviation=deviation,
            n_grams=n_grams,
        )

    def max_machine_examples(self, image_size: tuple[int, int]) -> int:
        """The recommended number of training examples of a table machine beside a network; 0: no machine.

        Args:
            image_size: height and width that images are scaled to.
        """
        config, facts = self.config, self._facts
        is_alone = config.modalities != "both" or config.objective == "loss"
        if is_alone or self.num_train > MOST_WITH_MACHINE or self.num_held_out("valid") == 0:
            return 0
        most = MOST_VALUES // (facts.num_images * facts.channels * math.prod(image_size))
        count = min(self.num_train, MOST_BESIDE, most)
        return count if count >= LEAST_BESIDE else 0

    def _check(self, splits: Splits[ImageTextSet]) -> None:
        self.target.check(_answers(splits.train), self.config.data)
        splits.check_facts(self._facts, self.config.data, apart_from=("classes",))

    @cached_property
    def _train_tokens(self) -> list[Tensor]:
        """The tokens of every training text. Warns where some are cut."""
        laid = [self._lay_out(example.text) for example in self.splits.train.examples]
        if cut := sum(is_cut for _, is_cut in laid):
            warnings.warn(
                f"{cut} of {len(laid)} training texts of {self.config.data} have more than {self.config.context} "
                "tokens and are cut; a larger context sees all",
                stacklevel=2,
            )
        return [tokens for tokens, _ in laid]

    @cached_property
    def _held_out_tokens(self) -> OfEachSplit[list[Tensor]]:
        """The tokens of the held-out texts. Warns where some are cut."""

        def tokens_of(split: HeldOut) -> list[Tensor]:
            laid = [self._lay_out(example.text) for example in self.held_out(split).examples]
            warn_of_cut(sum(is_cut for _, is_cut in laid), len(laid), self._facts.context, split)
            return [tokens for tokens, _ in laid]

        return OfEachSplit(tokens_of)

    def _lay_out(self, text: str) -> tuple[Tensor, bool]:
        return self.tokenizer.lay_out(text, None, self._facts.context)

    @property
    def train_shards(self) -> Tensor | None:
        """See `Task.train_shards`: sizes of shards of images in mapped arrays."""
        return self.splits.train.shards

    def model(self) -> nn.Module:
        """The model on an encoder of the modalities, with the outputs of the target."""
        config, facts = self.config, self._facts
        image = text = None
        if config.modalities != "text":
            images = Image.Config(
                image_size=facts.image_size,
                patch_size=config.patch_size,
                channels=facts.channels,
                num_frequencies=config.position_frequencies,
                sigma=config.position_sigma,
            )
            image = patch_encoder(images, config.model.embed_dim, config.stem_depth)
        if config.modalities != "image":
            text = Text(
                self.tokenizer.vocab_size,
                config.model.embed_dim,
                context=facts.context,
                num_frequencies=config.position_frequencies,
                sigma=config.position_sigma,
                pad=self.tokenizer.marks.pad,
                separator=self.tokenizer.marks.separator,
                has_class_token=True,
            )
        apart = facts.num_images if config.images_apart else 1
        num_images = 1 if image is None else facts.num_images // apart
        encoder = ImageText(image, text, num_images=num_images, measure=config.measure)
        model = config.model.build(encoder, apart * self.target.num_outputs)
        network = EachImage(model, apart) if config.images_apart else model
        if facts.n_grams is None:
            return network
        reading = TableReading(
            num_numbers=0,
            num_texts=1,
            text=_token_reading(self.tokenizer, facts.context),
            num_images=facts.num_images,
            channels=facts.channels,
            image_size=facts.image_size,
        )
        count, trees = self.target.num_outputs, TableMachine.Config().num_trees
        sizes = TableMachine.Config(
            num_centres=min(config.table_machine or 0, MOST_CENTRES),
            texts=facts.n_grams,
            num_trees=affordable_trees(trees, count),
        )
        return BlendedImageTexts(network, sizes.build(reading, count), facts.mean, facts.deviation)

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a table machine to training examples."""
        if not isinstance(model, BlendedImageTexts):
            return
        train, batches = self.splits.train, list[tuple[TableBatch, Tensor]]()
        chosen = torch.randperm(self.num_train)[: self.config.table_machine].sort().values
        for indices in chosen.split(CHUNK):
            batch = self._batch(train.images(indices) / 255, train, self._train_tokens, indices)
            batches.append((model.row(_model_input(to_device(batch, device))), batch["targets"].to(device)))
        groups = train.marks.group_numbers(device)
        model.fitted.fit(batches, self.target, groups=None if groups is None else groups[chosen.to(device)])

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: names of classes for the rows of the head, for each image with `images_apart`."""
        classes, count = self.target.output_names, self._facts.num_images
        if self.config.images_apart:
            classes = tuple(f"{name}, by image {m}" for m in range(count) for name in classes)
        if not isinstance(model, BlendedImageTexts):
            return head_entry_names(model, classes)
        of_network = head_entry_names(model.network, classes)
        return {f"network.{name}": axes for name, axes in of_network.items()}

    def check_packages(self) -> None:
        """See `Task.check_packages`: changes of images need kornia."""
        super().check_packages()
        self._changes.check_packages()

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`images` (B, M, C, H, W), changed and standardised, `tokens` (B, T), padded, and `targets` (B,)."""
        return self.train_batch_rows(indices, slice(0, len(indices)), generator)

    def train_batch_rows(self, indices: Tensor, rows: slice, generator: torch.Generator) -> Batch:
        """See `Task.train_batch_rows`: only images of these rows are read."""
        train, tokens = self.splits.train, self._train_tokens
        images = self._changed(train.images(indices[rows]) / 255, len(indices), rows, generator)
        batch = self._batch(images, train, tokens, indices[rows])
        longest = max(len(tokens[i]) for i in indices.tolist())
        filler = (0, longest - batch["tokens"].shape[1])
        batch["tokens"] = F.pad(batch["tokens"], filler, value=self.tokenizer.marks.pad)
        if self.config.shuffle_images:
            order = torch.rand(len(indices), train.num_images, generator=generator).argsort(1)[rows]
            batch["images"] = batch["images"][torch.arange(len(order))[:, None], order]
        return batch

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """A batch of a held-out split, as `train_batch`, without random changes; beside a machine with its `number`."""
        part = self.held_out(split)
        batch = self._batch(part.images(indices) / 255, part, self._held_out_tokens[split], indices)
        return {**batch, "number": indices} if split == "valid" and self.config.table_machine else batch

    def _batch(self, images: Tensor, examples: ImageTextSet, tokens: Sequence[Tensor], indices: Tensor) -> Batch:
        inputs = self._inputs(images, [tokens[i] for i in indices.tolist()])
        return {**inputs._asdict(), "targets": self.target.targets(_answers(examples).values[indices])}

    def _inputs(self, images: Tensor, tokens: list[Tensor]) -> ImageTextBatch:
        padded = pad_sequence(tokens, batch_first=True, padding_value=self.tokenizer.marks.pad)
        return ImageTextBatch(self._standardised(images), padded.long())

    def _standardised(self, images: Tensor) -> Tensor:
        """Standardised images, from pixels in [0, 1]."""
        return (images - self._mean.to(images.device)) / self._deviation.to(images.device)

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: the images and the text."""
        part = self.held_out(split)
        example, images = part.examples[index], part.images(torch.tensor([index]))[0]
        text = TextView(parts=(TextPart(example.text),))
        views = (*(ImageView(pixels=pixels) for pixels in images), text)
        return ShownExample(name=f"{example.path.name}, line {example.line}", views=views)

    def _changed(self, images: Tensor, count: int, rows: slice, generator: torch.Generator) -> Tensor:
        """Changed images in [0, 1] `(b, M, C, H, W)` of some rows of a batch; changes are drawn for the whole batch."""
        if not self.config.augmentation.changes_images:
            return images
        each = images.flatten(0, 1)
        places = torch.arange(count * images.shape[1]).view(count, -1)[rows].flatten()
        with drawing(generator):
            changed = self._changes.drawn(torch.Size((count * images.shape[1], *each.shape[1:])))(each, places)
        return changed.view_as(images)

    @property
    def _smoothing(self) -> float:
        return self.config.label_smoothing

    def _applied(self, model: Callable[[ImageTextBatch], Tensor], batch: Batch) -> Tensor:
        return model(_model_input(batch))

    @property
    def _train_answers(self) -> Answers:
        return _answers(self.splits.train)

    def _baseline_inputs(self, split: Split) -> np.ndarray:
        """Mean pixels in PLAIN_SIDE x PLAIN_SIDE cells of each image, and the presence of each token in the text."""
        part = self._part_of(split)
        words = torch.zeros(len(part), self.tokenizer.vocab_size)
        for row, example in zip(words, part.examples, strict=True):
            row[self._lay_out(example.text)[0].long()] = 1
        rows = torch.arange(len(part)).split(CHUNK)
        pixels = [baseline_pixels(part.images(indices).flatten(1, 2), PLAIN_SIDE) for indices in rows]
        return np.concatenate([np.concatenate(pixels), words.numpy()], 1)

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: a model that takes pixels and tokens, or one of both."""
        if isinstance(model, BlendedImageTexts):
            raise ValueError(
                "the number of n-grams of a table machine depends on the tokens, which no graph can hold; train with "
                "table_machine=0"
            )
        facts, target, modalities = self._facts, self.target, self.config.modalities
        axes = (Axis("images", facts.num_images), *pixel_axes(facts.channels, facts.image_size))
        pixels = Slot("pixels", (BATCH, *axes), f"{ABOUT_PIXELS}, scaled and cut to this size")
        slots = {"image": (pixels,), "text": (self.tokenizer.slot,), "both": (pixels, self.tokenizer.slot)}

        def call(model: nn.Module, *inputs: Tensor) -> Tensor:
            first = inputs[0]
            nothing = torch.zeros(first.shape[0], 0, dtype=torch.int64, device=first.device)
            images = nothing if modalities == "text" else self._standardised(first / 255)
            batch = {"images": images, "tokens": nothing if modalities == "image" else inputs[-1]}
            return target.answers(self._outputs(model, batch))

        def draw(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
            batch, drawn = sizes["batch"], list[Tensor]()
            if modalities != "text":
                drawn.append(random_pixels((batch, *sizes_of(axes)), generator))
            if modalities != "image":
                drawn.append(self.tokenizer.draw(batch, sizes["tokens"], generator))
            return tuple(drawn)

        return TensorForm(
            model=model,
            call=call,
            inputs=slots[modalities],
            output=target.slot(BATCH),
            draw=draw,
            open_axes={} if modalities == "image" else {"tokens": tokens_axis(facts.context)},
            names=target.axis_names,
            files={} if modalities == "image" else facts.files,
        )

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each line of each file: `file`, `line`, and the prediction.

        Files are .jsonl or .npz; labels may be absent, and are not read.
        """
        rows: list[Prediction] = []
        for file, found in inputs.read(lambda file: self._read(file, inputs.part)):
            num_cut = 0
            for indices in torch.arange(len(found)).split(CHUNK):
                part = [found.examples[i] for i in indices.tolist()]
                laid = [self._lay_out(example.text) for example in part]
                num_cut += sum(is_cut for _, is_cut in laid)
                given = self._inputs(found.images(indices) / 255, [tokens for tokens, _ in laid])
                batch = to_device(given._asdict(), device)
                answers = map(self.target.answer, self._outputs(model, batch).cpu())
                rows += [
                    Prediction(file, {"line": example.line, **cells}, probabilities)
                    for example, (cells, probabilities) in zip(part, answers, strict=True)
                ]
            warn_of_cut(num_cut, len(found), self._facts.context)
        return rows

    def _read(self, file: Path, part: Split | None) -> ImageTextSet:
        facts = self._facts
        return read_image_texts(
            file, num_images=facts.num_images, channels=facts.channels, image_size=facts.image_size, part=part
        )


def _model_input(batch: Batch) -> ImageTextBatch:
    return ImageTextBatch(batch["images"], batch["tokens"])


def _answers(examples: ImageTextSet) -> Answers:
    assert examples.answers is not None
    return examples.answers
