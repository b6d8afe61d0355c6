"""Telling the next token of a text."""

import copy
import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.models.aether import Aether
from fredholm.models.ckcnn_text import CKCNNText
from fredholm.models.generation import Sampling
from fredholm.models.gpt2 import GPT2
from fredholm.models.itnet_text import ITNetLanguageModel
from fredholm.models.kernel_configs import KERNELS
from fredholm.models.language_model import LanguageModel
from fredholm.tasks.task import Batch, EpochTask, Objective, Prediction, Task
from fredholm.tasks.text import (
    IGNORED,
    BytePairs,
    Bytes,
    ByteTokenizer,
    Piece,
    Separator,
    TextSplits,
    TokenStream,
    continue_text,
    open_text,
    read_text,
    split_documents,
)

if TYPE_CHECKING:
    from torchmetrics import Metric

WINDOWS = 16
"""Windows of a file that are predicted at a time."""


@final
class LanguageModelling(EpochTask):
    """A language model on blocks of a token stream, trained by cross-entropy.

    Documents stand in one stream with an end-of-text token before each; a block may hold parts of several, and each
    sees those before it. Every epoch cuts the training stream at another place, and every token but the first is a
    target once. On the test split every token is scored once.

    Args:
        config: the settings.
        facts: from an earlier run; None learns the tokens from the training split.

    Raises:
        ValueError: the text cannot be opened, or is not that of ``facts``.
        ImportError: byte pairs need a package that is not installed.
    """

    command: ClassVar[str] = "text"
    objective = Objective(metric="perplexity", maximise=False)
    parts: ClassVar[tuple[type, ...]] = (
        Aether.Config,
        CKCNNText.Config,
        GPT2.Config,
        ITNetLanguageModel.Config,
        *KERNELS,
    )

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """``tokenizer`` is what `BytePairs` learnt, None for bytes; ``train_digest`` is of the training text."""

        tokenizer: str | None
        train_digest: str

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        """A text, its tokens, and the model.

        Args:
            data: a .txt or .txt.gz file, or a folder with files such as train.txt, valid.txt and test.txt.
            documents: what ends a document: the end of its file, a blank line, or the end of a line.
            test_fraction: share of the test split, the end of the text, where the files bring none.
            valid_fraction: share of a validation split before it, likewise.
            evaluated: the split that is measured on; the other one is left alone.
            vocab_size: byte-pair tokens to learn from the training split, at least 257; None: a token a byte.
            context: tokens that the model sees.
            stride: tokens that each window of the test split scores; fewer than the context give each more to be
                predicted from, and take longer. None: the context.
            model: the language model; a recipe chooses its kind.
        """

        data: str = ""
        documents: Separator = "file"
        test_fraction: float = 0.1
        valid_fraction: float = 0.0
        evaluated: Literal["test", "valid"] = "test"
        vocab_size: int | None = None
        context: int = 256
        stride: int | None = None
        model: LanguageModel.Config = field(default_factory=lambda: Aether.Config(embed_dim=384, depth=6, num_heads=6))

        def __post_init__(self) -> None:
            if self.context < 1:
                raise ValueError(f"context is {self.context}; expected at least 1")
            if self.stride is not None and not 1 <= self.stride <= self.context:
                raise ValueError(f"stride is {self.stride}; expected 1 to the context of {self.context}")

        def build(self, facts: Task.Facts | None = None) -> "LanguageModelling":
            """The task; see `LanguageModelling`."""
            if facts is not None and not isinstance(facts, LanguageModelling.Facts):
                raise ValueError(f"the facts are of {type(facts).__qualname__}, not of language modelling")
            return LanguageModelling(self, facts)

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        self.config = config
        self._offset = 0
        if facts is not None:
            self._facts = facts
            self.tokenizer = Bytes() if facts.tokenizer is None else BytePairs(facts.tokenizer)
            return
        train = self.splits.train
        self.tokenizer: ByteTokenizer
        if config.vocab_size is None:
            self.tokenizer, learnt = Bytes(), None
        else:
            self.tokenizer = BytePairs.learn(train, config.vocab_size)
            learnt = self.tokenizer.state
        self._facts = LanguageModelling.Facts(tokenizer=learnt, train_digest=digest(train))

    @property
    def facts(self) -> Facts:
        """The tokens, and what they were learnt from."""
        return self._facts

    @property
    def num_train(self) -> int:
        """Blocks in the training split."""
        return self.train_stream.num_blocks(self.config.context)

    @property
    def num_test(self) -> int:
        """Windows in the evaluated split."""
        return self.test_stream.num_blocks(self._stride)

    @property
    def measured(self) -> str:
        """The evaluated split."""
        return self.config.evaluated

    @cached_property
    def splits(self) -> TextSplits:
        """The documents, read at first use: a prediction needs none.

        Raises:
            ValueError: they cannot be read.
        """
        config = self.config
        if not config.data:
            raise ValueError("no text is given; pass a .txt file or a folder of such files")
        return open_text(
            config.data,
            documents=config.documents,
            test_fraction=config.test_fraction,
            valid_fraction=config.valid_fraction,
        )

    @cached_property
    def train_stream(self) -> TokenStream:
        """The tokens of the training split. Warns where they do not fill one context.

        Raises:
            ValueError: the text changed since the facts were read.
        """
        if digest(self.splits.train) != self._facts.train_digest:
            raise ValueError(f"the training text in {self.config.data} is not the one that the run was made with")
        stream, context = TokenStream(self.tokenizer.join(self.splits.train)), self.config.context
        if stream.num_targets < context:
            warnings.warn(
                f"{self.config.data} has {stream.num_targets} tokens to learn from, less than one context of "
                f"{context}; pass more text",
                stacklevel=2,
            )
        return stream

    @cached_property
    def test_stream(self) -> TokenStream:
        """The tokens of the evaluated split.

        Raises:
            ValueError: the text has no such split.
        """
        documents = getattr(self.splits, self.config.evaluated)
        if documents is None:
            other = "valid" if self.config.evaluated == "test" else "test"
            way = "set valid_fraction" if other == "test" and self.splits.test else f"evaluate on {other!r}"
            raise ValueError(f"{self.config.data} has no {self.config.evaluated} split; {way}")
        return TokenStream(self.tokenizer.join(documents))

    def model(self) -> nn.Module:
        """A language model over the tokens."""
        return self.config.model.build(self.tokenizer.vocab_size, self.config.context)

    def for_epoch(self, generator: torch.Generator) -> Self:
        """The training stream cut from another token on."""
        epoch = copy.copy(self)
        epoch._offset = int(torch.randint(self.train_stream.num_targets, (), generator=generator))
        return epoch

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """``inputs`` and ``targets`` (B, context), int64; nothing is drawn from ``generator``."""
        inputs, targets = self.train_stream.blocks(indices, self.config.context, self._offset)
        return {"inputs": inputs, "targets": targets}

    def test_batch(self, indices: Tensor) -> Batch:
        """``inputs`` and ``targets`` (B, context), int64."""
        inputs, targets = self.test_stream.windows(indices, self.config.context, self._stride)
        return {"inputs": inputs, "targets": targets}

    def num_targets(self, batch: Batch) -> int:
        """One per token that counts."""
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats, summed over the tokens."""
        logits = model(batch["inputs"]).float()
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum", ignore_index=IGNORED)

    def metrics(self) -> "dict[str, Metric]":
        """``perplexity``; ``loss`` in nats a token; ``bits_per_byte``, which other tokens leave comparable.

        An end-of-text token counts as a token and as one byte.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        try:
            from torchmetrics import MeanMetric
            from torchmetrics.metric import CompositionalMetric
        except ImportError as error:
            raise ImportError('metrics need torchmetrics; get it with: pip install "fredholm[train]"') from error
        # NaN counts as NaN; "disable" would say so too, but leaves the weights out
        loss, bits = (MeanMetric(nan_strategy=math.nan).set_dtype(torch.float64) for _ in range(2))
        return {"perplexity": CompositionalMetric(torch.exp, loss, None), "loss": loss, "bits_per_byte": bits}

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `test_batch` to the metrics; the perplexity follows from the loss."""
        nats, num_tokens, num_bytes = self._sums(model, batch)
        metrics["loss"].update(nats / num_tokens, weight=num_tokens)
        metrics["bits_per_byte"].update(nats / num_bytes / math.log(2), weight=num_bytes)

    @torch.no_grad()
    def predict(self, model: nn.Module, files: Sequence[Path], device: torch.device) -> list[Prediction]:
        """``file``, ``tokens``, ``loss`` in nats a token, ``perplexity`` and ``bits_per_byte`` of each text file."""
        rows: list[Prediction] = []
        for file in files:
            documents = split_documents(read_text(file), self.config.documents)
            stream = TokenStream(self.tokenizer.join(documents))
            sums = torch.zeros(3, dtype=torch.float64)
            for indices in torch.arange(stream.num_blocks(self._stride)).split(WINDOWS):
                inputs, targets = stream.windows(indices, self.config.context, self._stride)
                sums += torch.tensor(self._sums(model, {"inputs": inputs.to(device), "targets": targets.to(device)}))
            nats, num_tokens, num_bytes = sums.tolist()
            loss = nats / num_tokens
            rows.append(
                {
                    "file": str(file),
                    "tokens": int(num_tokens),
                    "loss": loss,
                    "perplexity": math.exp(loss),
                    "bits_per_byte": nats / num_bytes / math.log(2),
                }
            )
        return rows

    def generate(
        self,
        model: nn.Module,
        prompt: str,
        *,
        max_tokens: int,
        sampling: Sampling,
        generator: torch.Generator,
        device: torch.device,
        cache: bool = True,
        stop: Sequence[str] = (),
    ) -> Iterator[Piece]:
        """How the model goes on after a prompt; see `fredholm.tasks.text.continue_text`."""
        assert isinstance(model, LanguageModel)
        return continue_text(
            model,
            self.tokenizer,
            prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            generator=generator,
            device=device,
            cache=cache,
            stop=stop,
        )

    def _sums(self, model: nn.Module, batch: Batch) -> tuple[float, int, int]:
        """Nats, tokens and bytes of the targets that count."""
        targets = batch["targets"]
        counted = targets[targets != IGNORED].cpu()
        return float(self.loss(model, batch)), len(counted), int(self.tokenizer.num_bytes[counted].sum())

    @property
    def _stride(self) -> int:
        return self.config.stride or self.config.context


def digest(documents: Sequence[str]) -> str:
    """What tells one text from another."""
    found = hashlib.blake2b(digest_size=16)
    for document in documents:
        found.update(document.encode() + b"\0")
    return found.hexdigest()
