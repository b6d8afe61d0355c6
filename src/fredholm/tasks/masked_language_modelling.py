"""Telling which tokens stand at places of a text that are hidden."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.models.itnet import ITNet
from fredholm.models.itnet_text import ITNetMaskedModel
from fredholm.models.kernel_configs import KERNELS, MLPConfig
from fredholm.models.language_model import MaskedModel
from fredholm.tasks.task import Batch, Objective, Prediction, Task
from fredholm.tasks.text import IGNORED, MarkedTokenizer, Tokens, read_text, split_documents
from fredholm.tasks.text_task import TextTask, digest

if TYPE_CHECKING:
    from torchmetrics import Metric

BLOCKS = 16
"""Blocks of a file that are predicted at a time."""
MASKED, RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become [MASK], and that become another token; the rest stays."""


def _small() -> MaskedModel.Config:
    kernel = MLPConfig(width=32, num_frequencies=16)
    stack = ITNet.Config(embed_dim=128, depth=4, num_heads=4, kernel=kernel)
    return ITNetMaskedModel.Config(stack=stack, position_frequencies=16)


@final
class MaskedLanguageModelling(TextTask):
    """A model that fills in hidden tokens of a text, trained by cross-entropy on those alone (ITNet K.2, as BERT).

    Documents stand in one stream, each ended by [SEP], and blocks of it begin with [CLS]; every epoch cuts the stream
    at another place. In each block a share of the tokens is chosen, at least one: of these 80 % become [MASK], 10 % a
    token of chance, and 10 % stay. In evaluation the choice is always the same.

    Args:
        config: the settings.
        facts: from an earlier run; None learns the tokens from the training split.

    Raises:
        ValueError: the text cannot be opened, or is not that of ``facts``.
        ImportError: tokens need a package that is not installed.
    """

    command: ClassVar[str] = "masked"
    objective = Objective(metric="perplexity", maximise=False)
    parts: ClassVar[tuple[type, ...]] = (ITNetMaskedModel.Config, *KERNELS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """``tokenizer`` is the library's JSON; ``train_digest`` is of the training text."""

        tokenizer: str
        train_digest: str

        @property
        def files(self) -> dict[str, str]:
            """The tokenizer, as its library reads it."""
            return {"tokenizer.json": self.tokenizer}

    @dataclass(frozen=True, kw_only=True)
    class Config(TextTask.Config):
        """A text, its tokens, and the model; see `TextTask.Config` for the text.

        Args:
            tokens: what the text is made of.
            mask_fraction: share of a block's tokens that are to be told, above 0 and below 1.
            model: the model on the tokens; a recipe chooses its kind.
        """

        context: int = 128
        tokens: Tokens = field(default_factory=Tokens)
        mask_fraction: float = 0.15
        model: MaskedModel.Config = field(default_factory=_small)

        def __post_init__(self) -> None:
            if self.context < 2:
                raise ValueError(f"context is {self.context}; expected at least 2, the class token and one more")
            if not 0 < self.mask_fraction < 1:
                raise ValueError(f"mask_fraction is {self.mask_fraction}; expected a number above 0 and below 1")

        def build(self, facts: Task.Facts | None = None) -> "MaskedLanguageModelling":
            """The task; see `MaskedLanguageModelling`."""
            if facts is not None and not isinstance(facts, MaskedLanguageModelling.Facts):
                raise ValueError(f"the facts are of {type(facts).__qualname__}, not of masked language modelling")
            return MaskedLanguageModelling(self, facts)

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        if facts is None:
            train = self.splits.train
            learnt = config.tokens.learn(train).state
            facts = MaskedLanguageModelling.Facts(tokenizer=learnt, train_digest=digest(train))
        self._facts = facts
        self.tokenizer = MarkedTokenizer(facts.tokenizer)
        marks = self.tokenizer.marks
        self._others = {marks.pad, marks.unknown, marks.class_token, marks.separator, marks.mask}

    @property
    def facts(self) -> Facts:
        """The tokens, and what they were learnt from."""
        return self._facts

    @property
    def reading(self) -> dict[str, object]:
        """The tokenizer and the context."""
        return {"tokenizer": self._facts.tokenizer, "context": self.config.context}

    @property
    def num_train(self) -> int:
        """Blocks in the training split."""
        return math.ceil(self._num_places / self._payload)

    @property
    def num_test(self) -> int:
        """Blocks in the evaluated split."""
        return math.ceil(len(self._test_tokens) / self._payload)

    def model(self) -> nn.Module:
        """A masked model over the tokens."""
        marks = self.tokenizer.marks
        return self.config.model.build(
            self.tokenizer.vocab_size, self.config.context, pad=marks.pad, separator=marks.separator
        )

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """``inputs`` and ``targets`` (B, context), int64; what is hidden is drawn from ``generator``."""
        tokens = self._train_tokens
        place = indices[:, None] * self._payload + torch.arange(self._payload)
        block = tokens[(place + self._offset) % len(tokens)].long()
        return self._hidden(block.where(place < len(tokens), self.tokenizer.marks.pad), generator)

    def test_batch(self, indices: Tensor) -> Batch:
        """``inputs`` and ``targets`` (B, context), int64; what is hidden depends on the block alone."""
        return self._fixed(self._test_tokens, indices)

    def num_targets(self, batch: Batch) -> int:
        """One per token that is to be told."""
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats, summed over the tokens that are to be told."""
        return F.cross_entropy(*self._answers(model, batch), reduction="sum")

    def metrics(self) -> "dict[str, Metric]":
        """``perplexity`` and ``accuracy`` of the tokens that are to be told; ``loss`` in nats a token.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        try:
            from torchmetrics import MeanMetric
            from torchmetrics.metric import CompositionalMetric
        except ImportError as error:
            raise ImportError('metrics need torchmetrics; get it with: pip install "fredholm[train]"') from error
        loss, accuracy = (MeanMetric(nan_strategy=math.nan).set_dtype(torch.float64) for _ in range(2))
        return {"perplexity": CompositionalMetric(torch.exp, loss, None), "loss": loss, "accuracy": accuracy}

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `test_batch` to the metrics; the perplexity follows from the loss."""
        logits, targets = self._answers(model, batch)
        if len(targets) == 0:
            return
        metrics["loss"].update(F.cross_entropy(logits, targets), weight=len(targets))
        metrics["accuracy"].update((logits.argmax(-1) == targets).double().mean(), weight=len(targets))

    @torch.no_grad()
    def predict(self, model: nn.Module, files: Sequence[Path], device: torch.device) -> list[Prediction]:
        """``file``, ``tokens`` that were hidden, ``loss`` in nats a token, ``perplexity`` and ``accuracy`` of each."""
        rows: list[Prediction] = []
        for file in files:
            tokens = self._stream(split_documents(read_text(file), self.config.documents), str(file))
            sums = torch.zeros(3, dtype=torch.float64)
            for indices in torch.arange(math.ceil(len(tokens) / self._payload)).split(BLOCKS):
                batch = {name: tensor.to(device) for name, tensor in self._fixed(tokens, indices).items()}
                logits, targets = self._answers(model, batch)
                right = (logits.argmax(-1) == targets).sum()
                nats = F.cross_entropy(logits, targets, reduction="sum")
                sums += torch.tensor([float(nats), float(right), len(targets)], dtype=torch.float64)
            nats, right, count = sums.tolist()
            row: Prediction = {"file": str(file), "tokens": int(count), "loss": nats / count}
            rows.append(row | {"perplexity": math.exp(nats / count), "accuracy": right / count})
        return rows

    def _answers(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits `(n, V)` and targets `(n,)` of the tokens that are to be told."""
        wanted = batch["targets"] != IGNORED
        return model(batch["inputs"])[wanted].float(), batch["targets"][wanted]

    @property
    def _payload(self) -> int:
        """Tokens of a block beside its class token."""
        return self.config.context - 1

    @property
    def _num_places(self) -> int:
        return len(self._train_tokens)

    @cached_property
    def _train_tokens(self) -> Tensor:
        documents = self._train_documents(self._facts.train_digest)
        return self._stream(documents, self.config.data)

    @cached_property
    def _test_tokens(self) -> Tensor:
        return self._stream(self._evaluated_documents, self.config.data)

    def _stream(self, documents: Sequence[str], where: str) -> Tensor:
        """The tokens of all documents, [SEP] after each, int32 `(n,)`."""
        end = torch.tensor([self.tokenizer.marks.separator], dtype=torch.int32)
        tokens = torch.cat([part for document in documents for part in (self.tokenizer.encode(document), end)])
        if bool(torch.isin(tokens, torch.tensor(sorted(self._others))).all()):
            raise ValueError(f"{where}: a split has no token that the training text has; pass more text")
        return tokens

    def _fixed(self, tokens: Tensor, indices: Tensor) -> Batch:
        """Blocks of a stream, each with its own choice of what is hidden."""
        place = indices[:, None] * self._payload + torch.arange(self._payload)
        inside = place < len(tokens)
        blocks = tokens[place.clamp(max=len(tokens) - 1)].long().where(inside, self.tokenizer.marks.pad)
        hidden = [
            self._hidden(block[None], torch.Generator().manual_seed(index))
            for block, index in zip(blocks, indices.tolist(), strict=True)
        ]
        return {name: torch.cat([each[name] for each in hidden]) for name in ("inputs", "targets")}

    def _hidden(self, block: Tensor, generator: torch.Generator) -> Batch:
        """Blocks `(B, context - 1)` behind a class token, some of their tokens hidden, and these as targets."""
        marks, vocabulary = self.tokenizer.marks, self.tokenizer.vocab_size
        others = torch.tensor(sorted(self._others))
        words = torch.arange(vocabulary)[~torch.isin(torch.arange(vocabulary), others)]
        may_hide = ~torch.isin(block, others)
        order = torch.rand(block.shape, generator=generator).where(may_hide, 2.0).argsort(-1).argsort(-1)
        count = may_hide.sum(-1, keepdim=True)
        chosen = order < (count * self.config.mask_fraction).round().clamp(min=1).minimum(count)
        kind = torch.rand(block.shape, generator=generator)
        drawn = words[torch.randint(len(words), block.shape, generator=generator)]
        inputs = block.where(~(chosen & (kind < MASKED)), marks.mask)
        inputs = inputs.where(~(chosen & (kind >= MASKED) & (kind < MASKED + RANDOM)), drawn)
        first = torch.full((len(block), 1), marks.class_token)
        targets = block.where(chosen, IGNORED)
        return {
            "inputs": torch.cat([first, inputs], dim=1),
            "targets": torch.cat([torch.full_like(first, IGNORED), targets], dim=1),
        }
