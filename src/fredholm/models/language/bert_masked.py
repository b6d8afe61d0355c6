"""BERT as a masked language model."""

import dataclasses
import math
from typing import Self, final

from torch import Tensor

from fredholm._settings import check_config, filled
from fredholm.models.language.bert import Bert
from fredholm.models.language.language_model import MaskedModel


def _stack() -> Bert.Config:
    return Bert.Config(num_segments=0)


@final
class BertMasked(MaskedModel):
    """A BERT whose head predicts the token at every position; padding changes nothing.

    J. Devlin et al., "BERT" (arXiv 1810.04805), section 3.1, task 1. All tokens are of the first segment.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence, and number of learned positions.
        config: the stack.
        pad: the padding token.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(MaskedModel.Config):
        """The network, with the head of tokens."""

        stack: Bert.Config = dataclasses.field(default_factory=_stack)

        def __post_init__(self) -> None:
            check_config("models.BertMasked", "stack", self.stack, Bert.Config)
            if self.stack.head != "tokens":
                raise ValueError(
                    f"models.BertMasked: stack.head={self.stack.head!r} predicts no masked tokens; pass 'tokens'"
                )

        @property
        def rated_width(self) -> int | None:
            """See `ModelSettings.rated_width`."""
            return self.stack.embed_dim

        def resized(self, width: int, depth: int, default: MaskedModel.Config) -> Self:
            """See `SignalModel.Config.resized`: sets channels, blocks and heads."""
            own, usual = self.stack, _stack()
            channels = width if own.embed_dim == usual.embed_dim else own.embed_dim
            heads = math.gcd(channels, 2 ** round(math.log2(width / 16)))
            return dataclasses.replace(self, stack=filled(own, [usual], embed_dim=width, depth=depth, num_heads=heads))

        def build(self, vocab_size: int, context: int, *, pad: int, separator: int) -> "BertMasked":
            """See `MaskedModel.Config.build`."""
            return BertMasked(vocab_size, context, self, pad=pad)

    place_rows: tuple[str, ...] = ("bert.positions.weight",)

    def __init__(self, vocab_size: int, context: int, config: Config, *, pad: int) -> None:
        super().__init__()
        self.vocab_size, self.context, self.config, self.pad = vocab_size, context, config, pad
        self.bert = config.stack.build(vocab_size, context)
        self.token_rows = ("bert.tokens.weight", "bert.head.bias")

    def forward(self, tokens: Tensor) -> Tensor:
        """Computes logits `(B, T, V)` of the token at each position; those at padding are meaningless."""
        self.check_tokens(tokens)
        return self.bert(tokens, tokens != self.pad)
