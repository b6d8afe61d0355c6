"""GPT-2 from torch's own layers: the baseline of language models."""

import dataclasses
import math
from typing import ClassVar, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import check_count, check_rate
from fredholm.kernels.attention.rotary import check_rotary, rotate
from fredholm.models.language_model import ROTARY_BASE, LanguageModel, LanguageState, Positions


@final
class GPT2(LanguageModel):
    """Token and position embeddings, L pre-norm blocks of causal attention and a GELU network, a tied head.

    The model of A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). Weights start normal
    with deviation 0.02, projections into the residual stream with 0.02 / sqrt(2 L), positions with 0.01; biases at 0.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence; there are so many learned positions.
        config: the stack.

    Raises:
        ValueError: sizes below 1, heads that do not divide the channels, numbers out of range.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(LanguageModel.Config):
        """Sizes and regularisation of the stack; the defaults are the smallest published model's."""

        embed_dim: int = 768
        depth: int = 12
        """Number of blocks L."""
        num_heads: int = 12
        expansion: int = 4
        """Hidden width of the feed-forward networks, in multiples of embed_dim."""
        positions: Positions = "learned"
        """Learned vectors added to the tokens', or rotary queries and keys, which GPT-2 did not have."""
        bias: bool = True
        """Biases in linear maps and norms."""
        dropout: float = 0.1
        """Rate after the embedding, on the attention weights, and on each branch's output."""

        def __post_init__(self) -> None:
            for name in ("embed_dim", "depth", "num_heads", "expansion"):
                check_count("models.GPT2", name, getattr(self, name))
            if self.embed_dim % self.num_heads:
                raise ValueError(
                    f"models.GPT2: num_heads must divide embed_dim; got {self.num_heads} heads for "
                    f"{self.embed_dim} channels"
                )
            if self.positions not in ("learned", "rotary"):
                raise ValueError(f"models.GPT2: positions is 'learned' or 'rotary'; got {self.positions!r}")
            if self.positions == "rotary":
                check_rotary("models.GPT2", ROTARY_BASE, self.embed_dim // self.num_heads)
            check_rate("models.GPT2", "dropout", self.dropout)

        @classmethod
        def small(cls) -> Self:
            """12 layers, 768 channels, 12 heads: 124,439,808 parameters with 50,257 tokens and a context of 1024."""
            return cls()

        def build(self, vocab_size: int, context: int) -> "GPT2":
            """The model; see `GPT2`."""
            return GPT2(vocab_size, context, self)

    token_rows: ClassVar[tuple[str, ...]] = ("tokens.weight",)
    place_rows: ClassVar[tuple[str, ...]] = ("positions.weight",)

    def __init__(self, vocab_size: int, context: int, config: Config) -> None:
        super().__init__()
        for what, size in (("vocab_size", vocab_size), ("context", context)):
            check_count("models.GPT2", what, size)
        self.vocab_size, self.context, self.config = vocab_size, context, config
        self.tokens = nn.Embedding(vocab_size, config.embed_dim)
        self.positions = nn.Embedding(context, config.embed_dim) if config.positions == "learned" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.embed_dim, bias=config.bias)
        nn.init.normal_(self.tokens.weight, std=0.02)
        if self.positions is not None:
            nn.init.normal_(self.positions.weight, std=0.01)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(B, T, V)`; see `LanguageModel.forward`."""
        return self.advance(tokens, self.initial_state(len(tokens)))[0]

    def initial_state(self, batch_size: int) -> LanguageState:
        """No keys and no values: two tensors `(B, num_heads, 0, d)` a layer."""
        heads = self.config.num_heads
        empty = self.tokens.weight.new_zeros(batch_size, heads, 0, self.config.embed_dim // heads)
        return ((empty, empty),) * self.config.depth

    def advance(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """Keys and values of the tokens are appended to the state's; see `LanguageModel.advance`."""
        num_read = state[0][0].shape[2]
        self.check_tokens(tokens, num_read)
        at = torch.arange(num_read, num_read + tokens.shape[1], device=tokens.device)
        u = self.tokens(tokens)
        u = self.dropout(u if self.positions is None else u + self.positions(at))
        reached = []
        for block, past in zip(self.blocks, state, strict=True):
            u, seen = block(u, at, past)
            reached.append(seen)
        return F.linear(self.norm(u), self.tokens.weight), tuple(reached)


@final
class Block(nn.Module):
    """u + Attention(LN(u)), then z + W2 gelu(W1 LN(z)), GELU by its tanh formula.

    Args:
        config: the stack's.
    """

    def __init__(self, config: GPT2.Config) -> None:
        super().__init__()
        dim, bias = config.embed_dim, config.bias
        self.num_heads, self.attention_dropout = config.num_heads, config.dropout
        self.is_rotary = config.positions == "rotary"
        self.attention_norm = nn.LayerNorm(dim, bias=bias)
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=bias)
        self.attention_output = nn.Linear(dim, dim, bias=bias)
        self.feed_forward_norm = nn.LayerNorm(dim, bias=bias)
        self.expand = nn.Linear(dim, config.expansion * dim, bias=bias)
        self.activation = nn.GELU(approximate="tanh")
        self.contract = nn.Linear(config.expansion * dim, dim, bias=bias)
        self.dropout = nn.Dropout(config.dropout)
        residual = 0.02 / math.sqrt(2 * config.depth)
        for layer in (self.query_key_value, self.attention_output, self.expand, self.contract):
            into_the_stream = layer in (self.attention_output, self.contract)
            nn.init.normal_(layer.weight, std=residual if into_the_stream else 0.02)
            if bias:
                nn.init.zeros_(layer.bias)

    def forward(self, u: Tensor, at: Tensor, past: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The signal `(B, T, C)` at the places `(T,)` and the keys and values before it, to those after it."""
        heads = self.query_key_value(self.attention_norm(u)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
        if self.is_rotary:
            query, key = rotate(query, at[None], ROTARY_BASE), rotate(key, at[None], ROTARY_BASE)
        keys, values = torch.cat([past[0].to(key), key], dim=2), torch.cat([past[1].to(value), value], dim=2)
        attended = self._attend(query, keys, values).transpose(1, 2).flatten(2)
        z = u + self.dropout(self.attention_output(attended))
        hidden = self.activation(self.expand(self.feed_forward_norm(z)))
        return z + self.dropout(self.contract(hidden)), (keys, values)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rate = self.attention_dropout if self.training else 0.0
        new, seen = query.shape[2], keys.shape[2]
        if new == seen:
            return F.scaled_dot_product_attention(query, keys, values, dropout_p=rate, is_causal=True)
        # torch aligns its causal mask top-left; a query here stands at the end of the keys
        mask = torch.ones(new, seen, dtype=torch.bool, device=query.device).tril(seen - new) if new > 1 else None
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, dropout_p=rate)
