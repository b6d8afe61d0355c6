"""BERT on sentences and pairs of sentences, with one output each."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal, Self, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_config, check_count, filled, refuse_idle
from fredholm.models.language.bert import Bert
from fredholm.models.language.sentence_model import SentenceModelConfig, TokenReading
from fredholm.models.saved_model import SavedModel

Pooling = Literal["tanh", "relu", "first", "mean"]
MAPPED = {"tanh": nn.Tanh, "relu": nn.ReLU}
POOLINGS = (*MAPPED, "first", "mean")


def _stack() -> Bert.Config:
    return Bert.Config(head="none")


@final
class BertSentences(SavedModel):
    """V dropout(φ(W u₀ + b)) + c, of the signal u of a BERT at the class token; or V dropout(v) + c, where v is u₀
    itself or the mean of u over all tokens.

    The first is J. Devlin et al., "BERT" (arXiv 1810.04805), section 4.1; DistilBERT has a ReLU for φ. The last two are
    the sentence vectors of N. Reimers and I. Gurevych, "Sentence-BERT" (arXiv 1908.10084), section 3; special tokens
    are included. Takes rows of tokens, int64 `(B, N)`, that begin with a class token and are padded at their ends;
    segments of a pair are inferred from the first separator.

    Args:
        reading: description of the rows.
        num_outputs: number of outputs, such as classes.
        config: the model.

    Raises:
        ValueError: there are fewer positions or token embeddings than the rows need.
    """

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SentenceModelConfig):
        """The stack and its pooling."""

        stack: Bert.Config = dataclasses.field(default_factory=_stack)
        """The network, without a head of its own."""
        pooling: Pooling = "tanh"
        """Pooling before the head: the activation φ of a pooler, "first" for u₀ itself, or "mean"."""
        marks_second: bool = True
        """Whether the second sentence of a pair has its own segment, as in BERT, but not in RoBERTa. Refused where the
        stack has one segment or none."""
        vocab_size: int | None = None
        """Number of token embeddings; None: one per token."""
        positions: int | None = None
        """Number of position embeddings, the longest row that can be read; None: the context of the rows."""

        def __post_init__(self) -> None:
            check_config("models.BertSentences", "stack", self.stack, Bert.Config)
            if self.stack.head != "none":
                raise ValueError(
                    f"models.BertSentences: stack.head={self.stack.head!r} has no effect, since sentences have a head "
                    "of their own; pass 'none'"
                )
            if self.pooling not in POOLINGS:
                raise ValueError(f"models.BertSentences: pooling must be one of {POOLINGS}; got {self.pooling!r}")
            if self.stack.num_segments < 2:
                because = f"stack.num_segments={self.stack.num_segments}"
                refuse_idle(
                    "models.BertSentences", type(self), because, "give it 2 segments", marks_second=self.marks_second
                )
            for name in ("vocab_size", "positions"):
                if (size := getattr(self, name)) is not None:
                    check_count("models.BertSentences", name, size)

        @property
        def rated_width(self) -> int:
            """See `ModelSettings.rated_width`."""
            return self.stack.embed_dim

        @property
        def max_input_tokens(self) -> int | None:
            """See `SentenceModelConfig.max_input_tokens`."""
            return self.positions

        def check(self) -> None:
            """See `SentenceModelConfig.check`: there is nothing to check, as there is one output per text."""

        def recommended(self, rows: Iterable[Tensor], reading: TokenReading, width: int, depth: int) -> Self:
            """See `SentenceModelConfig.recommended`: sets channels, blocks and heads."""
            own, usual = self.stack, _stack()
            channels = width if own.embed_dim == usual.embed_dim else own.embed_dim
            heads = math.gcd(channels, 2 ** round(math.log2(width / 16)))
            return dataclasses.replace(self, stack=filled(own, [usual], embed_dim=width, depth=depth, num_heads=heads))

        def build(self, reading: TokenReading, num_outputs: int) -> "BertSentences":
            """See `SentenceModelConfig.build`."""
            return BertSentences(reading, num_outputs, self)

    def __init__(self, reading: TokenReading, num_outputs: int, config: Config) -> None:
        super().__init__()
        check_count("models.BertSentences", "num_outputs", num_outputs)
        self.reading, self.config, stack = reading, config, config.stack
        vocab_size = reading.vocab_size if config.vocab_size is None else config.vocab_size
        positions = reading.context if config.positions is None else config.positions
        if positions < reading.context:
            raise ValueError(
                f"models.BertSentences: context={reading.context} is more than there are positions, {positions}; pass "
                "fewer"
            )
        if vocab_size < reading.vocab_size:
            raise ValueError(
                f"models.BertSentences: vocab_size={vocab_size}, and there are {reading.vocab_size} tokens; take the "
                "tokenizer that the model was trained with"
            )
        self.bert = stack.build(vocab_size, positions)
        self.pooler = nn.Linear(stack.embed_dim, stack.embed_dim) if config.pooling in MAPPED else None
        self.activation = MAPPED[config.pooling]() if config.pooling in MAPPED else None
        self.dropout = nn.Dropout(stack.dropout)
        self.head = nn.Linear(stack.embed_dim, num_outputs)
        for layer in (self.head,) if self.pooler is None else (self.pooler, self.head):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps rows `(B, N)` to outputs `(B, num_outputs)`.

        Raises:
            ValueError: on tokens of another shape or type, or more than there are positions.
        """
        return self.head(self.dropout(self.pooled(tokens)))

    def pooled(self, tokens: Tensor) -> Tensor:
        """Computes the pooled vectors, `(B, embed_dim)`."""
        u = self.signal(tokens)
        if self.config.pooling == "mean":
            exists = (tokens != self.reading.pad)[..., None]
            total = torch.where(exists, u, 0).sum(1, dtype=torch.float32)
            return (total / exists.sum(1).clamp_min(1)).to(u.dtype)
        first = u[:, 0]
        return first if self.pooler is None or self.activation is None else self.activation(self.pooler(first))

    def signal(self, tokens: Tensor) -> Tensor:
        """Computes the signal of the stack, `(B, N, embed_dim)`; values at padding are meaningless."""
        segments = None
        if self.config.marks_second and self.config.stack.num_segments > 1:
            ends = tokens == self.reading.separator
            segments = (ends.cumsum(1) - ends.long()).clamp(max=1)
        return self.bert(tokens, tokens != self.reading.pad, segments)
