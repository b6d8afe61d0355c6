"""GPT-2: causal attention with learned positions, the usual baseline of language models."""

import dataclasses
import functools
import math
from typing import Self, final

from torch import nn

from fredholm._settings import check_count, check_positive, check_rate
from fredholm.blocks.feed_forward import Activation, FeedForward, activation_module
from fredholm.blocks.residual import ResidualBlock
from fredholm.kernels import Attention, Rotary
from fredholm.kernels.attention.rotary import check_rotary
from fredholm.models.language.decoder import Decoder
from fredholm.models.language.language_model import Positions
from fredholm.operators import IntegralOperator


@final
class GPT2(Decoder):
    """Token and position embeddings, L pre-norm blocks of causal attention and a GELU network, and a tied head.

    The model of A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). Weights start normal
    with deviation 0.02, projections into the residual stream with 0.02 / sqrt(2 L), positions with 0.01; biases at 0.
    Deviation: dropout acts on the signal and on each branch's output, not on attention weights.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence, and number of learned positions.
        config: the stack.

    Raises:
        ValueError: sizes below 1, heads that do not divide the channels, numbers out of range.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(Decoder.Config):
        """Sizes and regularisation of the stack; the defaults are the smallest published model's."""

        embed_dim: int = 768
        depth: int = 12
        """Number of blocks L."""
        num_heads: int = 12
        expansion: float = 4
        """Hidden width of the feed-forward networks, in multiples of embed_dim."""
        positions: Positions = "learned"
        """Learned vectors added to those of the tokens, or rotary queries and keys, which GPT-2 did not have."""
        bias: bool = True
        """Whether linear maps and norms have biases."""
        activation: Activation = "gelu_tanh"
        """Activation of the feed-forward networks."""
        norm_epsilon: float = 1e-5
        """Added to variances in norms."""
        scale_by_layer: bool = False
        """Whether the scores of layer l are also divided by l, as in some GPT-2s for training in 16 bits."""
        tied_head: bool = True
        """Whether the head's weight is the token embedding."""
        dropout: float = 0.1
        """Dropout rate after the embedding and on each branch's output."""

        def __post_init__(self) -> None:
            for name in ("embed_dim", "depth", "num_heads"):
                check_count("models.GPT2", name, getattr(self, name))
            for name in ("expansion", "norm_epsilon"):
                check_positive("models.GPT2", name, getattr(self, name))
            if self.embed_dim % self.num_heads:
                raise ValueError(
                    f"models.GPT2: num_heads must divide embed_dim; got {self.num_heads} heads for "
                    f"{self.embed_dim} channels"
                )
            if self.positions not in ("learned", "rotary"):
                raise ValueError(f"models.GPT2: positions is 'learned' or 'rotary'; got {self.positions!r}")
            check_rotary("models.GPT2", self.rotary, self.embed_dim // self.num_heads)
            activation_module(self.activation)
            check_rate("models.GPT2", "dropout", self.dropout)

        @property
        def rotary(self) -> Rotary | None:
            """Rotary positions, if `positions` is "rotary"."""
            return Rotary() if self.positions == "rotary" else None

        @classmethod
        def small(cls) -> Self:
            """12 layers, 768 channels, 12 heads: 124,439,808 parameters with 50,257 tokens and a context of 1024."""
            return cls()

        def build(self, vocab_size: int, context: int) -> "GPT2":
            """Builds the model; see `GPT2`."""
            return GPT2(vocab_size, context, self)

        def block(self, layer: int) -> ResidualBlock:
            """Builds the block of layer 1 … L."""
            c, residual = self, 0.02 / math.sqrt(2 * self.depth)
            scale = (c.embed_dim // c.num_heads) ** -0.5 / (layer if c.scale_by_layer else 1)
            kernel = Attention(c.embed_dim, c.num_heads, bias=c.bias, is_causal=True, scale=scale, rotary=c.rotary)
            operator = IntegralOperator(kernel, residual=False, bias=c.bias)
            feed_forward = FeedForward(c.embed_dim, c.expansion, activation=c.activation, bias=c.bias)
            own = kernel.projections
            for weight in (own.query_weight, own.key_weight, own.value_weight, feed_forward.expand.weight):
                nn.init.normal_(weight, std=0.02)
            assert operator.output_weight is not None
            for weight in (operator.output_weight, feed_forward.contract.weight):
                nn.init.normal_(weight, std=residual)
            return ResidualBlock(
                operator,
                feed_forward,
                norm=functools.partial(nn.LayerNorm, eps=c.norm_epsilon, bias=c.bias),
                dropout=c.dropout,
                feed_forward_dropout=c.dropout,
            )

        def last_norm(self) -> nn.Module:
            """See `Decoder.Config.last_norm`."""
            return nn.LayerNorm(self.embed_dim, eps=self.norm_epsilon, bias=self.bias)

    def __init__(self, vocab_size: int, context: int, config: Config) -> None:
        position_std = 0.01 if config.positions == "learned" else None
        super().__init__(
            vocab_size,
            context,
            config,
            position_std=position_std,
            dropout=config.dropout,
            tied_head=config.tied_head,
        )
        self.config = config
