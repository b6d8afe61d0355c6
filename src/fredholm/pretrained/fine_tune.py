"""Model settings for fine-tuning: pretrained weights with a new head for the user's targets."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from fredholm.models import Bert, BertMasked, BertSentences, ConvNeXt, ImageModelConfig, TokenReading, ViT
from fredholm.models.images.image_model import ImageReading, Room
from fredholm.models.language.bert_sentences import MAPPED, Pooling
from fredholm.models.language.language_model import LanguageModel, MaskedModel
from fredholm.models.language.sentence_model import SentenceModelConfig
from fredholm.models.model_settings import ModelSettings, Pretrained
from fredholm.models.saved_model import SavedModel, unfilled_model
from fredholm.pretrained.checkpoint import Converted, find_folder, read_config
from fredholm.pretrained.open_model import convert, open_model
from fredholm.pretrained.pixels import PREPROCESSOR, read_pixels
from fredholm.pretrained.sentence_modules import SentenceModules, sentence_modules
from fredholm.storage.model_folder import ModelFolder

_HEADS = ("head", "distillation_head")


class _Opened(NamedTuple):
    """An opened checkpoint whose weights are not read yet."""

    model: nn.Module
    """The model, on the meta device."""
    modules: SentenceModules
    folder: Path
    weights: tuple[Path, ...]
    converted: Converted | None
    """Conversion of another library's checkpoint; None for one of this library."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that determine the model's architecture."""
        return (self.folder / "config.json",)

    @property
    def pooling(self) -> Literal["tanh", "relu"]:
        """Activation of the pooler of a BERT, the map before its classifier."""
        if self.converted is not None:
            return self.converted.pooling
        bert = _find_bert(self.model)
        assert isinstance(bert, Bert)
        return bert.config.pooling

    def pooler(self, read: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weight and bias of the pooler, where the checkpoint has one; `read` holds the tensors of its BERT."""
        if "head.map.weight" in read and "head.classes.weight" in read:
            return {kind: read[f"head.map.{kind}"] for kind in ("weight", "bias")}
        if self.converted is None:
            return {}
        tensors = self.converted.tensors
        named = {kind: source for kind, source in self.converted.pooler.items() if isinstance(source, str)}
        return {kind: tensors[source].to(torch.float32) for kind, source in named.items()}


def _find_bert(model: nn.Module) -> nn.Module:
    """The BERT inside a masked language model; any other model itself."""
    return model.bert if isinstance(model, BertMasked) else model


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PretrainedSettings(ModelSettings):
    """Settings of a pretrained model: the place of its checkpoint."""

    is_pretrained: ClassVar[bool] = True

    checkpoint: str = ""
    """A folder that `transformers`, `sentence-transformers`, `timm` or this library's `save_pretrained` wrote, or
    hf://owner/name."""
    revision: str | None = None
    """Branch, tag or commit of a hub repository."""

    @property
    def place(self) -> str | None:
        """See `ModelSettings.place`."""
        return self.checkpoint if self.revision is None else f"{self.checkpoint} ({self.revision})"

    @final
    def open(self) -> _Opened:
        """Opens the checkpoint.

        Raises:
            ValueError, OSError: there is no checkpoint, it is a run, or `from_pretrained` would refuse it.
        """
        if not self.checkpoint:
            raise ValueError(
                "model.checkpoint is empty; pass a folder with config.json and model.safetensors, or hf://owner/name"
            )
        modules = sentence_modules(find_folder(self.checkpoint, self.revision))
        folder = modules.transformer
        if "run" in read_config(folder):
            raise ValueError(
                f"model.checkpoint is {self.checkpoint}, which holds a run; start from it with --init {self.checkpoint}"
            )
        if ModelFolder.is_one(folder):
            weights = tuple(sorted(folder.glob("*.safetensors")))
            return _Opened(unfilled_model(folder), modules, folder, weights, None)
        converted = convert(folder)
        with torch.device("meta"):
            model = converted.build()
        return _Opened(model, modules, folder, converted.tensors.files, converted)

    @final
    def other_kind_error(self, model: nn.Module, data: str, kinds: str) -> ValueError:
        """The error for a checkpoint whose kind of model does not fit the data."""
        return ValueError(
            f"model.checkpoint is {self.checkpoint}, which holds a {type(model).__name__}; {data} are read by {kinds}: "
            "pass a checkpoint of one of these"
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedSentences(_PretrainedSettings, SentenceModelConfig):
    """BERT, RoBERTa or DistilBERT with its trained weights, on sentences: `models.BertSentences` with a new head.

    The checkpoint's pooler, the map before the classifier, is kept; without one it is new too. A checkpoint of
    `sentence-transformers` defines its own pooling instead: the class token, or the mean of all tokens.
    """

    pooling: Pooling | None = None
    """Pooling before the head, see `models.BertSentences`; None: the checkpoint's."""

    def open_pretrained(self) -> Pretrained[SentenceModelConfig]:
        """See `ModelSettings.open_pretrained`."""
        opened = self.open()
        bert = _find_bert(opened.model)
        if not isinstance(bert, Bert):
            raise self.other_kind_error(bert, "sentences", "BERT, RoBERTa or DistilBERT")
        stack = dataclasses.replace(bert.config, head="none", num_classes=0, pooling="tanh")
        marks_second = opened.converted is None or opened.converted.marks_second
        model = BertSentences.Config(
            stack=stack,
            pooling=self.pooling or opened.modules.declared_pooling() or opened.pooling,
            marks_second=marks_second or stack.num_segments < 2,
            vocab_size=bert.vocab_size,
            positions=bert.context,
        )

        def tensors(_: SentenceModelConfig) -> dict[str, Tensor]:
            read = _find_bert(open_model(opened.folder, torch.float32)).state_dict()
            found = {f"bert.{name}": tensor for name, tensor in read.items() if not name.startswith("head.")}
            pooler = opened.pooler(read) if model.pooling in MAPPED else {}
            return found | {f"pooler.{name}": tensor for name, tensor in pooler.items()}

        files = (*opened.files, *opened.modules.files)
        return Pretrained(model=model, folder=opened.folder, files=files, weights=opened.weights, tensors=tensors)

    def check(self) -> None:
        """See `SentenceModelConfig.check`: there is nothing to check, as there is one output per text."""

    def recommended(self, rows: Iterable[Tensor], reading: TokenReading, width: int, depth: int) -> Self:
        """See `SentenceModelConfig.recommended`: the checkpoint determines the sizes."""
        return self

    def build(self, reading: TokenReading, num_outputs: int) -> nn.Module:
        """See `SentenceModelConfig.build`: the checkpoint's model with new weights."""
        return self.open_pretrained().model.build(reading, num_outputs)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedImages(_PretrainedSettings, ImageModelConfig):
    """ViT, DeiT or ConvNeXt with its trained weights and a new head.

    Positions of a ViT are interpolated where images are of another size than the checkpoint's
    (`models.ViT.positions_from`). A distillation head is dropped, and the new head replaces the classifier.
    """

    def open_pretrained(self) -> Pretrained[ImageModelConfig]:
        """See `ModelSettings.open_pretrained`."""
        opened = self.open()
        there = opened.model
        if isinstance(there, ViT):
            config, shape = there.config, there.config.grid_shape
            model: ImageModelConfig = dataclasses.replace(
                config, num_classes=ViT.Config().num_classes, distillation_head=False
            )
        elif isinstance(there, ConvNeXt):
            model, shape = dataclasses.replace(there.config, num_classes=ConvNeXt.Config().num_classes), None
        else:
            raise self.other_kind_error(there, "images", "ViT, DeiT or ConvNeXt")

        def tensors(settings: ImageModelConfig) -> dict[str, Tensor]:
            read = open_model(opened.folder, torch.float32).state_dict()
            found = {name: each for name, each in read.items() if name.split(".")[0] not in _HEADS}
            if shape is not None and isinstance(settings, ViT.Config):
                with torch.device("meta"):
                    here = settings.build()
                found["positions"] = here.positions_from(found["positions"], shape)
            return found

        pixels = read_pixels(opened.folder)
        size = None if pixels is None else pixels.image_size
        return Pretrained(
            model=model,
            folder=opened.folder,
            files=(*opened.files, opened.folder / PREPROCESSOR),
            weights=opened.weights,
            tensors=tensors,
            pixels=pixels,
            image_size=there.config.image_size if isinstance(there, ViT) else size,
        )

    def sized_for(self, room: Room, default: ImageModelConfig) -> Self:
        """See `ImageModelConfig.sized_for`: the checkpoint determines the sizes."""
        return self

    def build_for(self, reading: ImageReading, num_outputs: int) -> SavedModel:
        """See `ImageModelConfig.build_for`: the checkpoint's model with new weights."""
        return self.open_pretrained().model.at_size(reading.image_size).build_for(reading, num_outputs)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedText(_PretrainedSettings, LanguageModel.Config):
    """GPT-2, Llama, Mistral, Qwen2 or Mamba with its trained weights."""

    def open_pretrained(self) -> Pretrained[LanguageModel.Config]:
        """See `ModelSettings.open_pretrained`."""
        opened = self.open()
        there = opened.model
        config = getattr(there, "config", None)
        if not isinstance(there, LanguageModel) or not isinstance(config, LanguageModel.Config):
            raise self.other_kind_error(there, "the next tokens", "GPT-2, Llama, Mistral, Qwen2 or Mamba")
        return Pretrained(
            model=config,
            folder=opened.folder,
            files=opened.files,
            weights=opened.weights,
            vocab_size=there.vocab_size,
            max_input_tokens=there.context,
            tensors=lambda _: open_model(opened.folder, torch.float32).state_dict(),
        )

    def build(self, vocab_size: int, context: int) -> LanguageModel:
        """See `LanguageModel.Config.build`: the checkpoint's model with new weights."""
        return self.open_pretrained().model.build(vocab_size, context)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainedMasked(_PretrainedSettings, MaskedModel.Config):
    """BERT, RoBERTa or DistilBERT with its trained weights; without a masked-token head it gets a new one."""

    def open_pretrained(self) -> Pretrained[MaskedModel.Config]:
        """See `ModelSettings.open_pretrained`."""
        opened = self.open()
        bert = _find_bert(opened.model)
        if not isinstance(bert, Bert):
            raise self.other_kind_error(bert, "hidden tokens", "BERT, RoBERTa or DistilBERT")
        stack = dataclasses.replace(bert.config, head="tokens", num_classes=0, pooling="tanh")
        has_head = bert.config.head == "tokens"

        def tensors(_: MaskedModel.Config) -> dict[str, Tensor]:
            found = _find_bert(open_model(opened.folder, torch.float32)).state_dict()
            kept = (name for name in found if has_head or not name.startswith("head."))
            return {f"bert.{name}": found[name] for name in kept}

        return Pretrained(
            model=BertMasked.Config(stack=stack),
            folder=opened.folder,
            files=opened.files,
            weights=opened.weights,
            vocab_size=bert.vocab_size,
            max_input_tokens=bert.context,
            tensors=tensors,
        )

    def resized(self, width: int, depth: int, default: MaskedModel.Config) -> Self:
        """See `MaskedModel.Config.resized`: the checkpoint determines the sizes."""
        return self

    def build(self, vocab_size: int, context: int, *, pad: int, separator: int) -> MaskedModel:
        """See `MaskedModel.Config.build`: the checkpoint's model with new weights."""
        return self.open_pretrained().model.build(vocab_size, context, pad=pad, separator=separator)
