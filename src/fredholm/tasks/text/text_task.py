"""The base class of tasks on running text: documents, splits, and blocks that each epoch cuts at another place."""

import copy
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, final

import torch
from torch import nn

from fredholm.models.language.language_model import TokenModel
from fredholm.models.model_settings import ModelSettings, Pretrained
from fredholm.tasks.files.read_record import recorded
from fredholm.tasks.schedule import Preset
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.splits.stratified_split import DEFAULT_VALID_FRACTION
from fredholm.tasks.task import EpochTask, PretrainedWeights, Task, recorded_checkpoint
from fredholm.tasks.tensor_form import Axis, Draw, Slot, TensorForm
from fredholm.tasks.text import Documents, Separator, TextSplits, open_text, tokens_axis

CONTEXTS: dict[Preset, int] = {"small": 128, "base": 512}
"""Default number of tokens that a model sees."""
LONG = 16
"""Ratio to these contexts from which a note warns of slow steps."""


class TextTask(EpochTask):
    """A task on the documents of a text.

    Args:
        config: settings of the task.
    """

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts of the training split, and of a checkpoint in the settings."""

        model: ModelSettings | None = None
        """Settings of a model that was trained elsewhere; None: the task's settings are complete."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        """Settings of a text and of the model's context.

        Args:
            data: a .txt or .txt.gz file, one with a document per row (.jsonl, .jsonl.gz, .parquet, .arrow), or a folder
                with files such as train.txt, valid.txt and test.txt, or one that was saved by Hugging Face's datasets.
            documents: end of a document in .txt: the end of its file, a blank line, or the end of a line.
            text_column: column of rows with the document; None: text, content or document, or the only one.
            test_fraction: share of the test split, the end of the text, where the files have none.
            valid_fraction: share of the validation split before it, likewise; 0: no validation split, and no choices.
            context: number of tokens that the model sees.
            model: the model.
        """

        data: str = ""
        documents: Separator = "file"
        text_column: str | None = None
        test_fraction: float = 0.1
        valid_fraction: float = DEFAULT_VALID_FRACTION
        context: int = 256
        model: ModelSettings

        kernel_sigma: ClassVar[float] = 10.0
        split_settings: ClassVar[tuple[str, ...]] = ("documents", "text_column", "test_fraction", "valid_fraction")

        def __post_init__(self) -> None:
            if self.context < 1:
                raise ValueError(f"context is {self.context}; expected at least 1")

        @property
        def initial_checkpoint(self) -> str | None:
            """See `Task.Config.initial_checkpoint`."""
            return self.model.place

        @final
        def _notes(self, usual: int) -> tuple[str, ...]:
            """A note that steps are slow, where blocks are far longer than the usual context of a preset."""
            times = self.context / usual
            if times < LONG:
                return ()
            return (
                f"context={self.context} is {times:,.0f} times the usual {usual}: a step takes so many times as long "
                f"where its cost is linear in the context (mamba), and up to {times**2:,.0f} times with attention; "
                "one is measured before the run, which alone may take minutes; a smaller context or "
                "training.batch_size is faster",
            )

    def __init__(self, config: Config) -> None:
        self._text = config
        self._offset = 0

    @final
    @cached_property
    def pretrained(self) -> Pretrained[Any] | None:
        """The checkpoint in the settings, read from its folder; None without one."""
        return recorded_checkpoint(self._text.model)

    @final
    def pretrained_weights(self) -> PretrainedWeights | None:
        """See `Task.pretrained_weights`; a checkpoint's weights, without rows for missing tokens or positions."""
        if (pretrained := self.pretrained) is None or pretrained.tensors is None:
            return None
        here = self.check_checkpoint(pretrained)
        for file in pretrained.weights:
            recorded(file, is_start=True)
        rows = dict.fromkeys(here.token_rows, here.vocab_size) | dict.fromkeys(here.place_rows, here.context)
        tensors = pretrained.tensors(pretrained.model)
        kept = {name: each[: rows[name]] if name in rows else each for name, each in tensors.items()}
        return PretrainedWeights(str(pretrained.folder), kept)

    @final
    def check_checkpoint(self, pretrained: Pretrained[Any]) -> TokenModel:
        """Checks a checkpoint by building the model without weights.

        Raises:
            ValueError: the checkpoint has fewer tokens or positions, or is another model at this context.
        """
        with torch.device("meta"):
            here = self.model()
        assert isinstance(here, TokenModel)
        for name, wanted, there, remedy in (
            ("context", here.context, pretrained.max_input_tokens, "pass a smaller one"),
            ("number of tokens", here.vocab_size, pretrained.vocab_size, "take the tokenizer that it was trained with"),
        ):
            if there is not None and wanted > there:
                raise ValueError(f"the {name} is {wanted}, and the model of {pretrained.folder} has {there}; {remedy}")
        if here.has_context_as_unit and here.context != pretrained.max_input_tokens:
            raise ValueError(
                f"the context is {here.context}, and the model of {pretrained.folder}, whose unit of length it is, has "
                f"{pretrained.max_input_tokens}; pass context={pretrained.max_input_tokens}"
            )
        return here

    @final
    def _logits_form(
        self, model: nn.Module, tokens: Slot, vocab_size: int, draw: Draw, tokenizer: str | None
    ) -> TensorForm:
        """Returns the form from tokens to logits of each token at each position."""
        return TensorForm(
            model=model,
            call=lambda model, tokens: model(tokens).float(),
            inputs=(tokens,),
            output=Slot("logits", (*tokens.axes, Axis("vocabulary", vocab_size)), self._about_logits),
            draw=draw,
            open_axes={"tokens": tokens_axis(self._text.context)},
            files={} if tokenizer is None else {"tokenizer.json": tokenizer},
        )

    @property
    @abstractmethod
    def _about_logits(self) -> str:
        """Description of the logits at a position, for people."""

    @property
    @abstractmethod
    def _num_places(self) -> int:
        """Number of positions of the training text at which an epoch may begin."""

    @final
    @cached_property
    def splits(self) -> TextSplits:
        """The documents, read at first use, since a prediction needs none.

        Raises:
            ValueError: they cannot be read.
        """
        config = self._text
        if not config.data:
            raise ValueError("no text is given; pass a .txt or .jsonl file, or a folder of such files")
        return open_text(
            config.data,
            documents=config.documents,
            text_column=config.text_column,
            test_fraction=config.test_fraction,
            valid_fraction=config.valid_fraction,
        )

    @final
    @property
    def _held_out_documents(self) -> dict[HeldOut, Documents]:
        """Documents of the existing held-out splits."""
        parts: dict[HeldOut, Documents | None] = {"valid": self.splits.valid, "test": self.splits.test}
        return {split: documents for split, documents in parts.items() if documents is not None}

    @final
    def for_epoch(self, generator: torch.Generator) -> Self:
        """Returns the task with the training text cut from another token on."""
        epoch = copy.copy(self)
        epoch._offset = int(torch.randint(self._num_places, (), generator=generator))
        return epoch
