"""Base class of language models of causal blocks: embedding, blocks, states and head."""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Protocol, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.domains import Domain, Sequence
from fredholm.kernels import State
from fredholm.models.language.language_model import LanguageModel, LanguageState


class CausalBlock(Protocol):
    """A block whose output at a point does not depend on later points."""

    def __call__(self, u: Tensor, domain: Domain, key_padding_mask: Tensor | None = None) -> Tensor:
        """Maps `(B, T, C)` on a sequence to the same shape."""
        ...

    def initial_state(self, batch_size: int) -> State:
        """The block's state before the first point."""
        ...

    def scan(self, u: Tensor, domain: Domain, state: State | None) -> tuple[Tensor, State]:
        """Maps the next points `(B, T, C)` of a sequence and returns the state after them; None: they are the first."""
        ...


class Decoder(LanguageModel):
    """Token embeddings, causal blocks, a norm, and a head: logits of the next token.

    The signal is s (E[t] + P[position]), with P only for learned positions, and logits are head(N(u)) / s. The state is
    the number of tokens read, and the state of each block.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence.
        config: the stack.
        token_std: initial deviation of the embeddings and of the head.
        position_std: initial deviation of learned positions; None: there are none.
        scale: s.
        dropout: rate after the embedding.
        tied_head: whether the head's weight is the embedding.

    Raises:
        ValueError: sizes below 1.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(LanguageModel.Config):
        """A stack of blocks."""

        embed_dim: int
        depth: int

        @property
        def rated_width(self) -> int | None:
            """See `ModelSettings.rated_width`."""
            return self.embed_dim

        @abc.abstractmethod
        def block(self, layer: int) -> nn.Module:
            """Builds the `CausalBlock` of layer 1 … depth."""

        @abc.abstractmethod
        def last_norm(self) -> nn.Module:
            """Builds the norm before the head."""

    place_rows: tuple[str, ...] = ("positions.weight",)

    def __init__(
        self,
        vocab_size: int,
        context: int,
        config: Config,
        *,
        token_std: float = 0.02,
        position_std: float | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
        tied_head: bool = True,
    ) -> None:
        super().__init__()
        for what, size in (("vocab_size", vocab_size), ("context", context)):
            check_count(f"models.{type(self).__name__}", what, size)
        self.vocab_size, self.context, self.scale = vocab_size, context, scale
        self.tokens = nn.Embedding(vocab_size, config.embed_dim)
        self.positions = None if position_std is None else nn.Embedding(context, config.embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(config.block(layer) for layer in range(1, config.depth + 1))
        self.norm = config.last_norm()
        self.head = None if tied_head else nn.Linear(config.embed_dim, vocab_size, bias=False)
        self.token_rows = ("tokens.weight",) if tied_head else ("tokens.weight", "head.weight")
        nn.init.normal_(self.tokens.weight, std=token_std)
        if self.positions is not None and position_std is not None:
            nn.init.normal_(self.positions.weight, std=position_std)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=token_std)

    @final
    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Computes logits `(B, T, V)`.

        Args:
            tokens: int64 `(B, T)`, T up to `context`.
            key_padding_mask: `(B, T)` bool, True = keep. Masked tokens change nothing, wherever they are: the first
                unmasked token has position 0. Their own logits are meaningless.

        Raises:
            TypeError, ValueError: on tokens or masks of another type or shape.
        """
        self.check_tokens(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        domain = Sequence(tokens.shape[1], device=tokens.device)
        if key_padding_mask is not None:
            if key_padding_mask.shape != tokens.shape or key_padding_mask.dtype != torch.bool:
                raise ValueError(
                    f"models.{type(self).__name__}: key_padding_mask must be bool {tuple(tokens.shape)}, True = keep; "
                    f"got {tuple(key_padding_mask.shape)} {key_padding_mask.dtype}"
                )
            places = (key_padding_mask.cumsum(1) - 1).clamp_min(0)
            domain = Sequence(times=places.double())  # kernels with rotary positions read the times
        u = self._embedded(tokens, places)
        for block in self.causal_blocks():
            u = block(u, domain, key_padding_mask)
        return self.logits(u)

    @final
    def initial_state(self, batch_size: int) -> LanguageState:
        """No token read, and the empty state of each block."""
        read = (torch.zeros(batch_size, dtype=torch.int64),)
        return read, *(block.initial_state(batch_size) for block in self.causal_blocks())

    @final
    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """See `LanguageModel.read`."""
        ((read,), *layers) = state
        num_read = int(read[0]) if len(read) else 0
        self.check_tokens(tokens, num_read)
        places = torch.arange(num_read, num_read + tokens.shape[1], device=tokens.device)
        u = self._embedded(tokens, places)
        domain = Sequence(tokens.shape[1], first=num_read, device=tokens.device)
        reached: list[tuple[Tensor, ...]] = [(read + tokens.shape[1],)]
        for block, past in zip(self.causal_blocks(), layers, strict=True):
            u, seen = block.scan(u, domain, past if num_read else None)
            reached.append(seen)
        return u, tuple(reached)

    @final
    def causal_blocks(self) -> Iterator[CausalBlock]:
        """The blocks, from the first to the last."""
        for block in self.blocks:
            yield cast(CausalBlock, block)

    def _embedded(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Embeds tokens at positions `(T,)` or `(B, T)` as `(B, T, C)`."""
        u = self.tokens(tokens)
        u = u if self.positions is None else u + self.positions(places)
        return self.dropout(u if self.scale == 1.0 else self.scale * u)

    @final
    def logits(self, signal: Tensor) -> Tensor:
        """See `LanguageModel.logits`: takes the signal after the last block."""
        u = self.norm(signal)
        u = u if self.scale == 1.0 else u / self.scale
        return F.linear(u, self.tokens.weight) if self.head is None else self.head(u)
