"""Aether: a language model of Yat attention and Yat units, without normalisation layers."""

import dataclasses
import functools
import math
from typing import Literal, Self, final

from torch import nn

from fredholm._settings import check_count, check_rate
from fredholm.blocks.feed_forward import YatFeedForward
from fredholm.blocks.residual import ResidualBlock
from fredholm.kernels import Rotary, YatAttention
from fredholm.models.language.decoder import Decoder
from fredholm.models.language.language_model import Positions
from fredholm.operators import IntegralOperator


@final
class Aether(Decoder):
    """Token and position embeddings, L residual blocks of causal Yat attention and a Yat network, a tied head.

    z = u + K[u],  out = z + F(z): the shape of GPT-2 with Yat attention for K, Yat units and a linear map for F, and
    neither LayerNorm nor biases (Yat, figure 4, sections 2.2 and 2.3, table 7).

    The paper gives no initialisation. A Yat score grows with the square of its inputs, which are not normalised, so the
    signal starts at size 1: embeddings are scaled by sqrt(embed_dim) and have deviation 1/sqrt(embed_dim), positions
    0.3 of it; queries and keys start at a quarter of the signal's size; the head divides by sqrt(embed_dim); the last
    maps of each branch start smaller by sqrt(2 L). It gives no ε either; an ε well above the initial squared
    lengths keeps early responses smooth, and allows larger learning rates.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence, and number of learned positions.
        config: the stack.

    Raises:
        ValueError: sizes below 1, heads that do not divide the channels, numbers out of range.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(Decoder.Config):
        """Sizes, kernels and regularisation of the stack; the defaults are the paper's model."""

        embed_dim: int = 768
        depth: int = 12
        """Number of blocks L."""
        num_heads: int = 12
        num_kv_heads: int | None = None
        """Number of heads of keys and values, a divisor of num_heads; None: equal to it."""
        expansion: int = 4
        """Number of Yat units of each network, in multiples of embed_dim."""
        positions: Positions = "learned"
        """Learned vectors added to those of the tokens, or rotary queries and keys, which train faster."""
        epsilon: float = 4.0
        """Softening of attention scores and of units per channel: ε is this times the number of compared channels."""
        learn_epsilon: bool = False
        """Whether each layer learns its own ε, starting from this one."""
        layer_norm: Literal["none", "pre", "post"] = "none"
        """LayerNorm: none as in the paper, or, as in its ablation (table 4), before each branch and the head, or after
        each sum."""
        dropout: float = 0.1
        """Dropout rate after the embedding and on each branch's output."""

        def __post_init__(self) -> None:
            for name in ("embed_dim", "depth", "num_heads", "expansion"):
                check_count("models.Aether", name, getattr(self, name))
            check_rate("models.Aether", "dropout", self.dropout)
            for name, choices in (("positions", ("learned", "rotary")), ("layer_norm", ("none", "pre", "post"))):
                if getattr(self, name) not in choices:
                    raise ValueError(
                        f"models.Aether: {name} is {' or '.join(map(repr, choices))}; got {getattr(self, name)!r}"
                    )

        @classmethod
        def small(cls) -> Self:
            """12 layers, 768 channels, 12 heads: 124 million parameters with 50,257 tokens and a context of 1024."""
            return cls()

        def build(self, vocab_size: int, context: int) -> "Aether":
            """Builds the model; see `Aether`."""
            return Aether(vocab_size, context, self)

        def block(self, layer: int) -> ResidualBlock:
            """Builds a block: z = u + K[u], then z + F(z); with LayerNorm before K and F, or after each sum."""
            gain = 1 / math.sqrt(2 * self.depth)
            kernel = YatAttention(
                self.embed_dim,
                self.num_heads,
                num_kv_heads=self.num_kv_heads,
                epsilon=self.epsilon * self.embed_dim / self.num_heads,
                learn_epsilon=self.learn_epsilon,
                rotary=Rotary() if self.positions == "rotary" else None,
                is_causal=True,
                score_gain=1 / 16,
            )
            operator = IntegralOperator(kernel, residual=False, bias=False, output_gain=gain)
            feed_forward = YatFeedForward(
                self.embed_dim,
                self.expansion,
                epsilon=self.epsilon * self.embed_dim,
                learn_epsilon=self.learn_epsilon,
                bias=False,
                output_gain=gain,
            )
            return ResidualBlock(
                operator,
                feed_forward,
                norm=None if self.layer_norm == "none" else functools.partial(nn.LayerNorm, bias=False),
                norm_first=self.layer_norm != "post",
                dropout=self.dropout,
                feed_forward_dropout=self.dropout,
            )

        def last_norm(self) -> nn.Module:
            """See `Decoder.Config.last_norm`."""
            return nn.LayerNorm(self.embed_dim, bias=False) if self.layer_norm == "pre" else nn.Identity()

    def __init__(self, vocab_size: int, context: int, config: Config) -> None:
        scale = math.sqrt(config.embed_dim)
        super().__init__(
            vocab_size,
            context,
            config,
            token_std=1 / scale,
            position_std=0.3 / scale if config.positions == "learned" else None,
            scale=scale,
            dropout=config.dropout,
        )
        self.config = config
