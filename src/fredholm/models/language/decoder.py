"""What language models of causal blocks share: embedding, the pass through the blocks, their states, the head."""

import abc
from collections.abc import Iterator
from typing import ClassVar, Protocol, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.domains import Domain, Sequence
from fredholm.kernels import State
from fredholm.models.language.language_model import LanguageModel, LanguageState


class CausalBlock(Protocol):
    """A block whose result at a point depends on no later one."""

    def __call__(self, u: Tensor, domain: Domain, key_padding_mask: Tensor | None = None) -> Tensor:
        """`(B, T, C)` on a sequence to the same shape."""
        ...

    def initial_state(self, batch_size: int) -> State:
        """What the block keeps of no points at all."""
        ...

    def scan(self, u: Tensor, domain: Domain, state: State | None) -> tuple[Tensor, State]:
        """The next points `(B, T, C)` of a sequence, and the state after them; None: they are the first."""
        ...


class Decoder(LanguageModel):
    """Token embeddings, causal blocks, a norm, and a head: logits of the next token.

    The state is the number of tokens read, and what each block keeps.

    Attributes:
        tokens: the embeddings.
        dropout: after the embedding.
        blocks: `CausalBlock`s.
        norm: before the head.
        head: its map without constants; None: the embeddings serve.
    """

    tokens: nn.Embedding
    dropout: nn.Dropout
    blocks: nn.ModuleList
    norm: nn.Module
    head: nn.Linear | None
    token_rows: ClassVar[tuple[str, ...]] = ("tokens.weight",)

    @abc.abstractmethod
    def placed(self, embedded: Tensor, places: Tensor) -> Tensor:
        """Embeddings `(B, T, C)` of tokens at places `(T,)` or `(B, T)`, with what the model adds of these."""

    @final
    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Logits `(B, T, V)`.

        Args:
            tokens: int64 `(B, T)`, T up to `context`.
            key_padding_mask: `(B, T)` bool, True = keep. Tokens that it hides change nothing, wherever they stand: the
                first token that exists has place 0. Their own logits mean nothing.

        Raises:
            TypeError, ValueError: on tokens or masks of another type or shape.
        """
        self.check_tokens(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        if key_padding_mask is not None:
            if key_padding_mask.shape != tokens.shape or key_padding_mask.dtype != torch.bool:
                raise ValueError(
                    f"models.{type(self).__name__}: key_padding_mask must be bool {tuple(tokens.shape)}, True = keep; "
                    f"got {tuple(key_padding_mask.shape)} {key_padding_mask.dtype}"
                )
            places = (key_padding_mask.cumsum(1) - 1).clamp_min(0)
        u = self.dropout(self.placed(self.tokens(tokens), places))
        domain = Sequence(tokens.shape[1]).to(tokens.device)
        for block in self.causal_blocks():
            u = block(u, domain, key_padding_mask)
        return self._logits(u)

    @final
    def initial_state(self, batch_size: int) -> LanguageState:
        """No token read, and the empty state of each block."""
        read = (torch.zeros(batch_size, dtype=torch.int64),)
        return read, *(block.initial_state(batch_size) for block in self.causal_blocks())

    @final
    def advance(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """See `LanguageModel.advance`."""
        ((read,), *layers) = state
        num_read = int(read[0]) if len(read) else 0
        self.check_tokens(tokens, num_read)
        places = torch.arange(num_read, num_read + tokens.shape[1], device=tokens.device)
        u = self.dropout(self.placed(self.tokens(tokens), places))
        domain = Sequence(tokens.shape[1], first=num_read).to(tokens.device)
        reached: list[tuple[Tensor, ...]] = [(read + tokens.shape[1],)]
        for block, past in zip(self.causal_blocks(), layers, strict=True):
            u, seen = block.scan(u, domain, past if num_read else None)
            reached.append(seen)
        return self._logits(u), tuple(reached)

    @final
    def causal_blocks(self) -> Iterator[CausalBlock]:
        """The blocks, from the first to the last."""
        for block in self.blocks:
            yield cast(CausalBlock, block)

    def _logits(self, u: Tensor) -> Tensor:
        u = self.norm(u)
        return F.linear(u, self.tokens.weight) if self.head is None else self.head(u)
