"""BERT and the models that share its stack: RoBERTa, DistilBERT."""

import dataclasses
import functools
from typing import Literal, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive, check_rate
from fredholm.blocks.feed_forward import Activation, FeedForward, activation_module
from fredholm.blocks.residual import ResidualBlock
from fredholm.domains import Sequence
from fredholm.kernels import Attention
from fredholm.kernels.heads import check_heads
from fredholm.models.saved_model import SavedModel
from fredholm.operators import IntegralOperator

Head = Literal["none", "tokens", "classes"]


@final
class Bert(SavedModel):
    """Token, position and segment embeddings, L post-norm attention blocks, and a head.

    The model of J. Devlin et al., "BERT" (arXiv 1810.04805). Weights start normal with deviation 0.02, biases at 0.
    Deviation: dropout acts on the signal, on each branch's output and before the classes, not on attention weights.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence, and number of learned positions.
        config: the stack.

    Raises:
        ValueError: sizes below 1, heads that do not divide the channels, numbers out of range.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        """Sizes of the stack, and its head; the defaults are the smaller published model's."""

        embed_dim: int = 768
        depth: int = 12
        """Number of blocks L."""
        num_heads: int = 12
        expansion: float = 4
        """Hidden width of the feed-forward networks, in multiples of embed_dim."""
        num_segments: int = 2
        """Number of segments with embeddings; 0: none."""
        activation: Activation = "gelu"
        """Activation of the feed-forward networks and of the head of tokens."""
        norm_epsilon: float = 1e-12
        """Added to variances in norms."""
        head: Head = "tokens"
        """Output: the signal itself, logits of tokens at every position, or logits of classes of the sequence."""
        num_classes: int = 0
        """Number of classes of the head "classes"; 0 for other heads."""
        pooling: Literal["tanh", "relu"] = "tanh"
        """Activation of the pooler, which maps the channels at the first position before the classes."""
        dropout: float = 0.1

        def __post_init__(self) -> None:
            for name in ("embed_dim", "depth", "num_heads"):
                check_count("models.Bert", name, getattr(self, name))
            check_count("models.Bert", "num_segments", self.num_segments, least=0)
            for name in ("expansion", "norm_epsilon"):
                check_positive("models.Bert", name, getattr(self, name))
            check_heads("models.Bert", self.embed_dim, self.num_heads, self.num_heads)
            activation_module(self.activation)
            check_rate("models.Bert", "dropout", self.dropout)
            for name, choices in (("head", ("none", "tokens", "classes")), ("pooling", ("tanh", "relu"))):
                if getattr(self, name) not in choices:
                    raise ValueError(f"models.Bert: {name} must be one of {choices}; got {getattr(self, name)!r}")
            check_count("models.Bert", "num_classes", self.num_classes, least=0)
            if (self.head == "classes") != (self.num_classes > 0):
                raise ValueError(
                    f"models.Bert: num_classes={self.num_classes} does not fit head={self.head!r}; give a head "
                    '"classes" at least one class, and others none'
                )
            if self.pooling != "tanh" and self.head != "classes":
                raise ValueError(f"models.Bert: pooling={self.pooling!r} has no effect with head={self.head!r}")

        @classmethod
        def base(cls) -> Self:
            """12 layers, 768 channels, 12 heads."""
            return cls()

        def build(self, vocab_size: int, context: int) -> "Bert":
            """Builds the model; see `Bert`."""
            return Bert(vocab_size, context, self)

        def norm(self) -> nn.LayerNorm:
            """Builds a norm of the signal."""
            return nn.LayerNorm(self.embed_dim, eps=self.norm_epsilon)

        def block(self) -> ResidualBlock:
            """Builds one of the L blocks."""
            return ResidualBlock(
                IntegralOperator(Attention(self.embed_dim, self.num_heads), residual=False),
                FeedForward(self.embed_dim, self.expansion, activation=self.activation),
                norm=functools.partial(nn.LayerNorm, eps=self.norm_epsilon),
                norm_first=False,
                dropout=self.dropout,
                feed_forward_dropout=self.dropout,
            )

    def __init__(self, vocab_size: int, context: int, config: Config) -> None:
        super().__init__()
        for what, size in (("vocab_size", vocab_size), ("context", context)):
            check_count("models.Bert", what, size)
        self.vocab_size, self.context, self.config = vocab_size, context, config
        dim = config.embed_dim
        self.tokens = nn.Embedding(vocab_size, dim)
        self.positions = nn.Embedding(context, dim)
        self.segments = nn.Embedding(config.num_segments, dim) if config.num_segments else None
        self.norm = config.norm()
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(config.block() for _ in range(config.depth))
        self.head: TokenHead | ClassHead | None = None
        if config.head == "tokens":
            self.head = TokenHead(vocab_size, config)
        elif config.head == "classes":
            self.head = ClassHead(config)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Computes the output of the head.

        Args:
            tokens: int64 `(B, T)`, T up to `context`.
            key_padding_mask: `(B, T)` bool, True = keep. Masked tokens change nothing, wherever they are: the first
                unmasked token has position 0.
            segments: int64 `(B, T)`, the sentence of each token; None: all are of the first.

        Returns:
            `(B, T, embed_dim)`, `(B, T, V)` or `(B, num_classes)`; values at masked tokens are meaningless.

        Raises:
            TypeError, ValueError: on inputs of another type or shape, or segments in a model without segments.
        """
        self._check(tokens, key_padding_mask, segments)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        if key_padding_mask is not None:
            places = (key_padding_mask.cumsum(1) - 1).clamp_min(0)
        u = self.tokens(tokens) + self.positions(places)
        if self.segments is not None:
            u = u + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        u, domain = self.dropout(self.norm(u)), Sequence(tokens.shape[1], device=tokens.device)
        for block in self.blocks:
            u = block(u, domain, key_padding_mask)
        if isinstance(self.head, TokenHead):
            return self.head(u, self.tokens.weight)
        if self.head is None:
            return u
        first = u[:, 0]
        if key_padding_mask is not None:
            at = key_padding_mask.long().argmax(1)
            first = u.take_along_dim(at[:, None, None], 1)[:, 0]
        return self.head(first)

    def _check(self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None) -> None:
        if tokens.dtype != torch.int64 or tokens.ndim != 2:
            raise ValueError(
                f"models.Bert: tokens must be int64 (batch, length); got {tuple(tokens.shape)} {tokens.dtype}"
            )
        if tokens.shape[1] > self.context:
            raise ValueError(f"models.Bert: {tokens.shape[1]} tokens exceed the context of {self.context}; pass fewer")
        if self.config.head == "classes" and tokens.shape[1] == 0:
            raise ValueError("models.Bert: a text without tokens has no classes; pass at least one token")
        if mask is not None and (mask.shape != tokens.shape or mask.dtype != torch.bool):
            raise ValueError(
                f"models.Bert: key_padding_mask must be bool {tuple(tokens.shape)}, True = keep; got "
                f"{tuple(mask.shape)} {mask.dtype}"
            )
        if segments is None:
            return
        if self.segments is None:
            raise ValueError("models.Bert: this model has no segment embeddings; leave segments out")
        if segments.shape != tokens.shape or segments.dtype != torch.int64:
            raise ValueError(
                f"models.Bert: segments must be int64 {tuple(tokens.shape)}; got {tuple(segments.shape)} "
                f"{segments.dtype}"
            )


@final
class TokenHead(nn.Module):
    """E N(φ(W u + b)) + c at every position, with the token embeddings E.

    Args:
        vocab_size: number of tokens.
        config: configuration of the model.
    """

    def __init__(self, vocab_size: int, config: Bert.Config) -> None:
        super().__init__()
        self.map = nn.Linear(config.embed_dim, config.embed_dim)
        self.activation = activation_module(config.activation)
        self.norm = config.norm()
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        nn.init.zeros_(self.map.bias)

    def forward(self, u: Tensor, embeddings: Tensor) -> Tensor:
        """Maps `(B, T, C)` to logits `(B, T, V)`."""
        return F.linear(self.norm(self.activation(self.map(u))), embeddings, self.bias)


@final
class ClassHead(nn.Module):
    """V dropout(φ(W u + b)) + c, of the channels at the first position.

    Args:
        config: configuration of the model.
    """

    def __init__(self, config: Bert.Config) -> None:
        super().__init__()
        self.map = nn.Linear(config.embed_dim, config.embed_dim)
        self.activation = nn.Tanh() if config.pooling == "tanh" else nn.ReLU()
        self.dropout = nn.Dropout(config.dropout)
        self.classes = nn.Linear(config.embed_dim, config.num_classes)
        nn.init.zeros_(self.map.bias)
        nn.init.zeros_(self.classes.bias)

    def forward(self, u: Tensor) -> Tensor:
        """Maps `(B, C)` to logits `(B, num_classes)`."""
        return self.classes(self.dropout(self.activation(self.map(u))))
