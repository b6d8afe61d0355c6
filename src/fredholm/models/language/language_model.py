"""Models of tokens: logits of the token at every place, and language models, which predict the next one."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Literal, Self, final

import torch
from torch import Tensor

from fredholm._settings import filled
from fredholm.encoders.text import check_vocabulary
from fredholm.models.model_settings import ModelSettings
from fredholm.models.saved_model import SavedModel

Positions = Literal["learned", "rotary"]
"""Learned vectors added to the tokens', or queries and keys turned by their places (`kernels.Rotary`)."""

LanguageState = tuple[tuple[Tensor, ...], ...]
"""What a model keeps of the tokens that it has read: some tensors a layer. Values; `read` never changes one."""


class TokenModel(SavedModel, abc.ABC):
    """Scores of every token of a vocabulary at each place of a sequence.

    Attributes:
        vocab_size: number of tokens V; tokens are 0 to V - 1.
        context: longest sequence.
    """

    vocab_size: int
    context: int

    token_rows: tuple[str, ...]
    """The tensors with a row a token."""
    place_rows: tuple[str, ...] = ()
    """The tensors with a row a place of the context, where there are any."""
    has_context_as_unit: ClassVar[bool] = False
    """Whether the context is the unit of length, so that with another one the same weights are another model."""

    @final
    def row_entry_names(self, tokens: Sequence[str]) -> dict[str, dict[int, tuple[str, ...]]]:
        """What the rows of some tensors stand for, by their names, given those of the tokens."""
        places = tuple(f"place {n}" for n in range(self.context))
        named = {**dict.fromkeys(self.token_rows, tuple(tokens)), **dict.fromkeys(self.place_rows, places)}
        return {tensor: {0: names} for tensor, names in named.items()}

    @abc.abstractmethod
    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(B, T, V)` from `tokens`, int64 `(B, T)`, T up to `context`."""

    def check_tokens(self, tokens: Tensor, num_read: int = 0) -> None:
        """Raises a TypeError or ValueError unless `tokens` is int64 `(B, T)` and fits after `num_read` others."""
        name = type(self).__name__
        if not isinstance(tokens, Tensor):
            raise TypeError(
                f"models.{name}: tokens must be a tensor, int64 (batch, length); got {type(tokens).__name__}"
            )
        if tokens.dtype != torch.int64:
            raise TypeError(f"models.{name}: tokens are {tokens.dtype}; pass torch.int64")
        if tokens.ndim != 2:
            raise ValueError(f"models.{name}: tokens have shape {tuple(tokens.shape)}; pass (batch, length)")
        if num_read + tokens.shape[1] > self.context:
            after = f" after {num_read} others" if num_read else ""
            raise ValueError(
                f"models.{name}: {tokens.shape[1]} tokens{after} exceed the context of {self.context}; pass fewer"
            )
        check_vocabulary(f"models.{name}", tokens, self.vocab_size)


class LanguageModel(TokenModel):
    """A distribution of the next token after each token of a sequence: p(t_{i+1} | t_1 ... t_i) = softmax(logits_i).

    No logit depends on a later token. Reading a sequence in pieces through `advance` gives the logits of the whole.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ModelSettings, abc.ABC):
        """The sizes of a model that its text does not decide."""

        def resized(self, width: int, depth: int, default: LanguageModel.Config) -> Self:
            """See `SignalModel.Config.resized`; a model that names its sizes otherwise stays as it is."""
            return self._with_sizes(default, embed_dim=width, depth=depth, num_heads=self._heads(width, default))

        @final
        def _with_sizes(self, default: LanguageModel.Config, **sizes: object) -> Self:
            """The settings with those of these sizes that they have, where they are as by default."""
            fields = {field.name for field in dataclasses.fields(self)}
            if not {"embed_dim", "depth"} <= fields:
                return self
            return filled(self, self._defaults(default), **{name: sizes[name] for name in sizes.keys() & fields})

        @final
        def _heads(self, width: int, default: LanguageModel.Config) -> int:
            """Heads that divide the channels, of which there are `width` where none are given."""
            dim = getattr(self, "embed_dim", width)
            if any(dim == getattr(each, "embed_dim", None) for each in self._defaults(default)):
                dim = width
            return math.gcd(dim, 2 ** round(math.log2(width / 24)))

        @final
        def _defaults(self, default: LanguageModel.Config) -> list[object]:
            return [type(self)(), *([default] if isinstance(default, type(self)) else [])]

        @abc.abstractmethod
        def build(self, vocab_size: int, context: int) -> LanguageModel:
            """A new model for sequences of up to `context` of `vocab_size` tokens, from the global torch seed."""

    @abc.abstractmethod
    def initial_state(self, batch_size: int) -> LanguageState:
        """Nothing read yet."""

    @abc.abstractmethod
    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """Reads on where `state` ended: a prompt at once, then one token at a time.

        Args:
            tokens: int64 `(B, T)`.
            state: of the same B sequences.

        Returns:
            the signal `(B, T, C)` that `logits` takes, and the state after the last of these tokens.

        Raises:
            TypeError, ValueError: on tokens of another type or shape, or where those read would exceed `context`.
        """

    @abc.abstractmethod
    def logits(self, signal: Tensor) -> Tensor:
        """Of the token after each place, `(B, T, V)`, from the signal `(B, T, C)` there."""

    @final
    def advance(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """The logits `(B, T, V)` after each of these tokens, and the state after the last; see `read`."""
        signal, state = self.read(tokens, state)
        return self.logits(signal), state


class MaskedModel(TokenModel):
    """What stands at each place of a sequence, read from both sides; tokens that fill sequences up change nothing."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ModelSettings, abc.ABC):
        """The sizes of a model that its text does not decide."""

        @abc.abstractmethod
        def resized(self, width: int, depth: int, default: MaskedModel.Config) -> Self:
            """See `SignalModel.Config.resized`."""

        @abc.abstractmethod
        def build(self, vocab_size: int, context: int, *, pad: int, separator: int) -> MaskedModel:
            """A new model, from the global torch seed.

            Args:
                vocab_size: number of tokens.
                context: longest sequence.
                pad: the token that fills sequences up.
                separator: the token that ends a sentence.
            """
