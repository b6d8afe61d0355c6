"""Llama and the models that share its block: Mistral, Qwen2."""

import dataclasses
import functools
from typing import Self, final

from torch import nn

from fredholm._settings import check_count, check_positive
from fredholm.blocks.feed_forward import Activation, GatedFeedForward, activation_module
from fredholm.blocks.residual import ResidualBlock
from fredholm.kernels import Attention, Rotary
from fredholm.kernels.attention.rotary import check_rotary
from fredholm.kernels.heads import check_heads
from fredholm.models.language.decoder import Decoder
from fredholm.models.language.language_model import LanguageModel
from fredholm.operators import IntegralOperator


@final
class Llama(Decoder):
    """Token embeddings, L pre-norm blocks of causal attention with rotary positions and a gated network, and a head.

    The model of H. Touvron et al., "LLaMA" (arXiv 2302.13971), with grouped queries (arXiv 2307.09288): RMSNorm, heads
    of keys and values that are shared by several heads of queries, SwiGLU. Weights start normal with
    deviation 0.02, biases at 0.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence.
        config: the stack.

    Raises:
        ValueError: sizes below 1, heads that do not divide the channels, numbers out of range.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(Decoder.Config):
        """Sizes of the stack; the defaults are those of Llama 3.2 with a billion parameters."""

        embed_dim: int = 2048
        depth: int = 16
        """Number of blocks L."""
        num_heads: int = 32
        num_kv_heads: int = 8
        """Heads of keys and values, a divisor of num_heads."""
        expansion: float = 4
        """Hidden width of the gated networks, in multiples of embed_dim."""
        rotary: Rotary = dataclasses.field(
            default_factory=lambda: Rotary(500_000.0, stretch=32.0, trained_context=8192)
        )
        activation: Activation = "silu"
        """Activation of the gate."""
        norm_epsilon: float = 1e-5
        """Added to mean squares in norms."""
        attention_bias: bool = False
        """Whether queries, keys and values have biases."""
        output_bias: bool = False
        """Whether the maps after attention have biases."""
        feed_forward_bias: bool = False
        """Whether the maps of the gated networks have biases."""
        tied_head: bool = True
        """Whether the head's weight is the token embedding."""

        def __post_init__(self) -> None:
            for name in ("embed_dim", "depth", "num_heads", "num_kv_heads"):
                check_count("models.Llama", name, getattr(self, name))
            for name in ("expansion", "norm_epsilon"):
                check_positive("models.Llama", name, getattr(self, name))
            check_heads("models.Llama", self.embed_dim, self.num_heads, self.num_kv_heads)
            check_rotary("models.Llama", self.rotary, self.embed_dim // self.num_heads)
            activation_module(self.activation)

        @classmethod
        def one_billion(cls) -> Self:
            """Llama 3.2 1B: 1,235,814,400 parameters with 128,256 tokens."""
            return cls()

        def resized(self, width: int, depth: int, default: LanguageModel.Config) -> Self:
            """See `SignalModel.Config.resized`; all heads get their own keys, and positions are not stretched."""
            heads = self._heads(width, default)
            of_keys = heads if self.num_heads == type(self)().num_heads else self.num_heads
            return self._with_sizes(
                default, embed_dim=width, depth=depth, num_heads=heads, num_kv_heads=of_keys, rotary=Rotary()
            )

        def build(self, vocab_size: int, context: int) -> "Llama":
            """Builds the model; see `Llama`."""
            return Llama(vocab_size, context, self)

        def block(self, layer: int) -> ResidualBlock:
            """Builds one of the L equal blocks."""
            kernel = Attention(
                self.embed_dim,
                self.num_heads,
                num_kv_heads=self.num_kv_heads,
                bias=self.attention_bias,
                is_causal=True,
                rotary=self.rotary,
            )
            block = ResidualBlock(
                IntegralOperator(kernel, residual=False, bias=self.output_bias),
                GatedFeedForward(
                    self.embed_dim, self.expansion, activation=self.activation, bias=self.feed_forward_bias
                ),
                norm=functools.partial(nn.RMSNorm, eps=self.norm_epsilon),
            )
            for parameter in block.parameters():
                if parameter.ndim == 2:
                    nn.init.normal_(parameter, std=0.02)
            return block

        def last_norm(self) -> nn.Module:
            """See `Decoder.Config.last_norm`."""
            return nn.RMSNorm(self.embed_dim, eps=self.norm_epsilon)

    def __init__(self, vocab_size: int, context: int, config: Config) -> None:
        super().__init__(vocab_size, context, config, tied_head=config.tied_head)
        self.config = config
