"""Base classes of models of tokens: language models and masked language models."""

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
"""Positions: learned vectors added to those of the tokens, or rotary queries and keys (`kernels.Rotary`)."""

LanguageState = tuple[tuple[Tensor, ...], ...]
"""State of a model after the tokens read so far: some tensors per layer. Immutable: `read` returns a new one."""


class TokenModel(SavedModel, abc.ABC):
    """A model with a logit of every token of a vocabulary at each position of a sequence.

    Attributes:
        vocab_size: number of tokens V; tokens are 0 to V - 1.
        context: longest sequence.
    """

    vocab_size: int
    context: int

    token_rows: tuple[str, ...]
    """Names of the tensors with one row per token."""
    place_rows: tuple[str, ...] = ()
    """Names of the tensors with one row per position of the context, if any."""
    has_context_as_unit: ClassVar[bool] = False
    """Whether the context is the unit of length, so that the same weights with another context are another model."""

    @final
    def row_entry_names(self, tokens: Sequence[str]) -> dict[str, dict[int, tuple[str, ...]]]:
        """Meaning of the rows of these tensors, by their names, given the names of the tokens."""
        places = tuple(f"place {n}" for n in range(self.context))
        named = {**dict.fromkeys(self.token_rows, tuple(tokens)), **dict.fromkeys(self.place_rows, places)}
        return {tensor: {0: names} for tensor, names in named.items()}

    @abc.abstractmethod
    def forward(self, tokens: Tensor) -> Tensor:
        """Computes logits `(B, T, V)` from `tokens`, int64 `(B, T)`, T up to `context`."""

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
        """Settings of a model that do not depend on its text."""

        def resized(self, width: int, depth: int, default: LanguageModel.Config) -> Self:
            """See `SignalModel.Config.resized`; a model without fields `embed_dim` and `depth` stays unchanged."""
            return self._with_sizes(default, embed_dim=width, depth=depth, num_heads=self._heads(width, default))

        @final
        def _with_sizes(self, default: LanguageModel.Config, **sizes: object) -> Self:
            """The settings with these sizes in place of default values, for the fields that exist."""
            fields = {field.name for field in dataclasses.fields(self)}
            if not {"embed_dim", "depth"} <= fields:
                return self
            return filled(self, self._defaults(default), **{name: sizes[name] for name in sizes.keys() & fields})

        @final
        def _heads(self, width: int, default: LanguageModel.Config) -> int:
            """A number of heads that divides the channels, which default to `width`."""
            dim = getattr(self, "embed_dim", width)
            if any(dim == getattr(each, "embed_dim", None) for each in self._defaults(default)):
                dim = width
            return math.gcd(dim, 2 ** round(math.log2(width / 24)))

        @final
        def _defaults(self, default: LanguageModel.Config) -> list[object]:
            return [type(self)(), *([default] if isinstance(default, type(self)) else [])]

        @abc.abstractmethod
        def build(self, vocab_size: int, context: int) -> LanguageModel:
            """Builds a model for sequences of up to `context` of `vocab_size` tokens, from the global torch seed."""

    @abc.abstractmethod
    def initial_state(self, batch_size: int) -> LanguageState:
        """The state before the first token."""

    @abc.abstractmethod
    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """Continues reading after `state`: a prompt at once, or one token at a time.

        Args:
            tokens: int64 `(B, T)`.
            state: state of the same B sequences.

        Returns:
            The signal `(B, T, C)` for `logits`, and the state after the last of these tokens.

        Raises:
            TypeError, ValueError: on tokens of another type or shape, or if all read tokens would exceed `context`.
        """

    @abc.abstractmethod
    def logits(self, signal: Tensor) -> Tensor:
        """Computes the logits of the next token, `(B, T, V)`, from the signal `(B, T, C)`."""

    @final
    def advance(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """Computes the logits `(B, T, V)` after each of these tokens and the state after the last; see `read`."""
        signal, state = self.read(tokens, state)
        return self.logits(signal), state


class MaskedModel(TokenModel):
    """A bidirectional model of the token at each position of a sequence; padding changes nothing."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ModelSettings, abc.ABC):
        """Settings of a model that do not depend on its text."""

        @abc.abstractmethod
        def resized(self, width: int, depth: int, default: MaskedModel.Config) -> Self:
            """See `SignalModel.Config.resized`."""

        @abc.abstractmethod
        def build(self, vocab_size: int, context: int, *, pad: int, separator: int) -> MaskedModel:
            """Builds a model, with random numbers from the global torch seed.

            Args:
                vocab_size: number of tokens.
                context: longest sequence.
                pad: the padding token.
                separator: the token that ends a sentence.
            """
