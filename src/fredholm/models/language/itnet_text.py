"""ITNets of tokens: a language model, and a masked language model.

    u_0 = E[t] + W γ(k / context) (+ S[segment]),   L pre-norm blocks,   logits = E LN(u_L) (+ b)

Source: ITNet, section 3 (text encoder), H.3 and K.2. The paper does not define the head: it is tied to the embedding,
as in BERT and GPT-2.
"""

import dataclasses
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_config, refuse_idle
from fredholm.blocks.residual import ResidualBlock
from fredholm.encoders.text import Text
from fredholm.kernels import Stateful
from fredholm.models.itnet import ITNet
from fredholm.models.language.language_model import LanguageModel, LanguageState, MaskedModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenStack:
    """Configuration of an ITNet of tokens: its stack and position features."""

    stack: ITNet.Config = dataclasses.field(default_factory=ITNet.Config)
    """The blocks; a model of tokens has no pooling."""
    position_frequencies: int = 64
    """Number of Fourier frequencies of the position that are added to the tokens; 0: only kernels read positions."""
    position_sigma: float = 10.0
    """Their standard deviation, in cycles per context; refused without frequencies."""

    def __post_init__(self) -> None:
        name = "models.TokenStack"
        check_config(name, "stack", self.stack, ITNet.Config)
        refuse_idle(name, ITNet.Config, "tokens, which are all read", "pool elsewhere", pool=self.stack.pool)
        if self.position_frequencies == 0:
            none = "position_frequencies=0"
            refuse_idle(name, TokenStack, none, "give position_frequencies", position_sigma=self.position_sigma)

    def resized(self, width: int, depth: int, default: object) -> Self:
        """Returns the settings with `width` channels and `depth` blocks; see `SignalModel.Config.resized`."""
        stack = default.stack if isinstance(default, TokenStack) else ITNet.Config()
        return dataclasses.replace(self, stack=self.stack.resized(width, depth, stack))

    def encoder(self, vocab_size: int, context: int, **tokens: Any) -> Text:
        """Builds the encoder from tokens to the stack's signal."""
        return Text(
            vocab_size,
            self.stack.embed_dim,
            context=context,
            num_frequencies=self.position_frequencies,
            sigma=self.position_sigma,
            **tokens,
        )


@final
class ITNetLanguageModel(LanguageModel):
    """A causal ITNet that predicts the next token, with any causal kernel.

    The state is the number of tokens read, and the state of each layer's kernel: of fixed size (low-rank and separable
    perceptrons, linear attention, recurrences), or growing with the tokens (exact perceptron, attention).

    Args:
        vocab_size: number of tokens V.
        context: longest sequence, and the unit of length.
        config: the stack.

    Raises:
        ValueError: on a kernel that looks ahead, or that has no state along a sequence.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(TokenStack, LanguageModel.Config):
        """The stack, and how positions enter its signal."""

        def build(self, vocab_size: int, context: int) -> "ITNetLanguageModel":
            """See `LanguageModel.Config.build`."""
            return ITNetLanguageModel(vocab_size, context, self)

    has_context_as_unit: ClassVar[bool] = True

    def __init__(self, vocab_size: int, context: int, config: Config) -> None:
        super().__init__()
        self.vocab_size, self.context, self.config = vocab_size, context, config
        self.encoder = config.encoder(vocab_size, context)
        self.dropout = nn.Dropout(config.stack.dropout)
        self.blocks = config.stack.blocks(pos_dim=1, is_causal=True)
        self.norm = nn.LayerNorm(config.stack.embed_dim)
        self.token_rows = ("encoder.weight",)
        for block in self._blocks():
            kernel = block.operator.kernel
            reasons = ["it carries no state along a sequence"]
            if isinstance(kernel, Stateful):
                reasons = kernel.unsteppable(self.encoder(torch.zeros(1, 1, dtype=torch.int64))[1])
            if reasons:
                raise ValueError(
                    f"models.ITNetLanguageModel: no text can be generated with {type(kernel).__name__}: "
                    f"{'; '.join(reasons)}; take another kernel"
                )

    def forward(self, tokens: Tensor) -> Tensor:
        """Computes logits `(B, T, V)`; see `LanguageModel`."""
        self.check_tokens(tokens)
        u, domain = self.encoder(tokens)
        u = self.dropout(u)
        for block in self.blocks:
            u = block(u, domain)
        return self.logits(u)

    def initial_state(self, batch_size: int) -> LanguageState:
        """No token read, and each layer's empty state."""
        read = (torch.zeros(batch_size, dtype=torch.int64),)
        return read, *(block.operator.initial_state(batch_size) for block in self._blocks())

    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """See `LanguageModel.read`."""
        ((read,), *layers) = state
        num_read = int(read[0]) if len(read) else 0
        self.check_tokens(tokens, num_read)
        u, domain = self.encoder(tokens, num_read)
        u = self.dropout(u)
        reached: list[tuple[Tensor, ...]] = [(read + tokens.shape[1],)]
        for block, past in zip(self._blocks(), layers, strict=True):
            u, seen = block.scan(u, domain, past)
            reached.append(seen)
        return u, tuple(reached)

    def logits(self, signal: Tensor) -> Tensor:
        """See `LanguageModel.logits`: of the signal after the last block."""
        return nn.functional.linear(self.norm(signal), self.encoder.weight)

    def _blocks(self) -> list[ResidualBlock]:
        return [block for block in self.blocks if isinstance(block, ResidualBlock)]


@final
class ITNetMaskedModel(MaskedModel):
    """A bidirectional ITNet that predicts the token at each position, with any kernel.

    Padding is masked and changes nothing. Recurrences read from the left alone.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence, and the unit of length.
        config: the stack.
        pad: the padding token.
        separator: the token that ends a sentence.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(TokenStack, MaskedModel.Config):
        """The stack, and how positions enter its signal."""

        def build(self, vocab_size: int, context: int, *, pad: int, separator: int) -> "ITNetMaskedModel":
            """See `MaskedModel.Config.build`."""
            return ITNetMaskedModel(vocab_size, context, self, pad=pad, separator=separator)

    has_context_as_unit: ClassVar[bool] = True

    def __init__(self, vocab_size: int, context: int, config: Config, *, pad: int, separator: int) -> None:
        super().__init__()
        self.vocab_size, self.context, self.config = vocab_size, context, config
        self.encoder = config.encoder(vocab_size, context, pad=pad, separator=separator, has_class_token=True)
        self.dropout = nn.Dropout(config.stack.dropout)
        self.blocks = config.stack.blocks(pos_dim=1)
        self.norm = nn.LayerNorm(config.stack.embed_dim)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.token_rows = ("encoder.weight", "bias")

    def forward(self, tokens: Tensor) -> Tensor:
        """Computes logits `(B, T, V)` of the token at each position."""
        self.check_tokens(tokens)
        u, domain = self.encoder(tokens)
        u = self.dropout(u)
        for block in self.blocks:
            u = block(u, domain)
        return nn.functional.linear(self.norm(u), self.encoder.weight, self.bias)
