"""InfViT: a pre-norm vision transformer with infinite self-attention or softmax attention."""

import dataclasses
import math
from typing import Literal, Self, final

from torch import Tensor, nn

from fredholm._settings import check_count, check_rate, refuse_idle
from fredholm.blocks.discounted import DiscountedBlock
from fredholm.blocks.feed_forward import FeedForward
from fredholm.blocks.residual import ResidualBlock
from fredholm.blocks.stochastic_depth import linear_schedule
from fredholm.encoders.encoder import Encoder
from fredholm.kernels import Attention, FactorisedInfiniteAttention, InfiniteAttention, Kernel, LinearInfiniteAttention
from fredholm.kernels.neumann.infinite_attention import Discount
from fredholm.models.signal_model import SignalModel
from fredholm.operators import IntegralOperator

AttentionKind = Literal["softmax", "pure", "resolvent", "factorised", "linear"]
"""Kinds of attention: softmax; one hop per layer; the whole series of hops in each layer, of dot products, or of
features in linear time; the pooled context of linear infinite attention."""

_READ_BY: dict[str, tuple[AttentionKind, ...]] = {
    "activation": ("pure", "resolvent"),
    "normaliser": ("pure", "resolvent", "factorised"),
    "gamma": ("pure", "resolvent", "factorised", "linear"),
    "learn_gamma": ("pure", "resolvent", "factorised", "linear"),
    "accumulation": ("pure", "linear"),
    "decay": ("pure", "linear"),
    "num_central": ("linear",),
    "power_steps": ("linear",),
}
"""The kinds of attention that use a setting; other kinds refuse it."""


@final
class InfViT(SignalModel):
    """Encoder, L pre-norm blocks with attention, a final norm and a linear head (InfSA, figure 2 and section 3).

    Accumulation in "pure" and "linear". With Z⁽ˡ⁾ = A⁽ˡ⁾ V⁽ˡ⁾, the hop of layer l on the normed signal before its
    output projection, the paper defines S = Σ_l γˡ Z⁽ˡ⁾ in a pre-norm block (eq. 12 and 23) and does not say where
    residual connections and feed-forward networks are. Two readings are implemented:

    - `accumulation="stream"`: layer l adds W_l^O γˡ Z⁽ˡ⁾ to the residual stream, which is the running sum already; a
      transformer in which only the attention branch is replaced, as the paper describes its model.
    - `accumulation="running"`: layer l adds W_l^O S_l with S_l = Σ_{t ≤ l} γᵗ Z⁽ᵗ⁾, so that every layer reads the sum
      so far.

    The equations with one A and one V hold in neither, since V⁽ˡ⁾ is computed from the signal that earlier layers
    changed. γ is one number per head, for all layers; learned, it is a sigmoid. For "linear", eq. 21 has γ and not γˡ,
    "mirroring" the pure form: `decay="constant"` follows it literally. "resolvent" and "factorised" have γ in their
    kernels, each layer its own; "softmax" has none.

    With `pool="cls"` a learned token is put before the signal, at the centre of the unit box. Nothing depends on the
    number of patches: positions are features of the patches' places (`encoders.Image`), the same function at every
    resolution, so that neither a table of positions is interpolated nor a parameter is added.

    Args:
        encoder: from raw inputs to a signal with `config.embed_dim` channels on a domain; `encoders.Image` with
            `any_size=True` takes images of all sizes.
        num_outputs: length of the output, such as the number of classes.
        config: the stack.
    """

    shares_points = True

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SignalModel.Config):
        """Sizes and regularisation of the stack; the defaults are 4L-64H at 1,024 channels, linear.

        A setting that the kind of attention does not read is refused, unless it is at its default.
        """

        embed_dim: int = 1024
        depth: int = 4
        """Number of blocks L."""
        num_heads: int = 64
        attention: AttentionKind = "linear"
        activation: Literal["relu", "gelu", "abs"] = "relu"
        """Function from scores to weights in "pure" and "resolvent"."""
        normaliser: Literal["frobenius", "rows"] = "frobenius"
        """Normalisation of a hop in "pure", "resolvent" and "factorised"; "rows" gives a random walk that may end."""
        gamma: float = 0.7
        """Discount of a hop, in (0, 1); not used in "softmax"."""
        learn_gamma: bool = False
        accumulation: Literal["stream", "running"] = "stream"
        """Term added by "pure" and "linear" layers: their own hop, or the sum of all so far."""
        decay: Literal["power", "constant"] = "power"
        """Factor of layer l's hop in "pure" and "linear": γˡ, or γ in every layer."""
        num_central: int = 1
        """Number of central queries of a head of "linear"."""
        power_steps: int = 1
        """Steps of the power method of "linear"."""
        expansion: int = 4
        """Hidden width of the feed-forward networks, in multiples of embed_dim."""
        dropout: float = 0.0
        """Dropout rate after the embedding, after each attention and within each feed-forward network; the paper
        gives none."""
        drop_path: float = 0.0
        """Probability of skipping a branch of the last block in training; rises linearly from the first."""
        pool: Literal["cls", "mean"] = "cls"
        """Pooling before the output: a class token, or the integral mean of the signal."""

        def __post_init__(self) -> None:
            for name in ("depth", "expansion"):
                check_count("models.InfViT", name, getattr(self, name))
            for name in ("dropout", "drop_path"):
                check_rate("models.InfViT", name, getattr(self, name))
            for name, allowed in (
                ("attention", ("softmax", "pure", "resolvent", "factorised", "linear")),
                ("activation", ("relu", "gelu", "abs")),
                ("normaliser", ("frobenius", "rows")),
                ("accumulation", ("stream", "running")),
                ("decay", ("power", "constant")),
                ("pool", ("cls", "mean")),
            ):
                if getattr(self, name) not in allowed:
                    raise ValueError(f"models.InfViT: {name} must be one of {allowed}; got {getattr(self, name)!r}")
            for name, kinds in _READ_BY.items():
                if self.attention not in kinds:
                    readers, given = " or ".join(map(repr, kinds)), {name: getattr(self, name)}
                    own = f"attention={self.attention!r}"
                    refuse_idle("models.InfViT", type(self), own, f"take attention {readers}", **given)

        @classmethod
        def four_layers_64_heads(
            cls, attention: AttentionKind = "linear", embed_dim: Literal[768, 1024] = 1024
        ) -> Self:
            """4L-64H: with 1,024 channels about the paper's parameter count, with 768 its 12 channels per head."""
            return cls(embed_dim=embed_dim, depth=4, num_heads=64, attention=attention)

        @classmethod
        def four_layers_16_heads(cls, attention: AttentionKind = "pure", embed_dim: Literal[768, 1024] = 1024) -> Self:
            """4L-16H: with 1,024 channels about the paper's parameter count, with 768 its 48 channels per head."""
            return cls(embed_dim=embed_dim, depth=4, num_heads=16, attention=attention)

        @classmethod
        def twenty_four_layers_16_heads(
            cls, attention: AttentionKind = "linear", embed_dim: Literal[768, 1024] = 1024
        ) -> Self:
            """24L-16H: with 1,024 channels about the paper's parameter count, with 768 its 48 channels per head."""
            return cls(embed_dim=embed_dim, depth=24, num_heads=16, attention=attention)

        def build(self, encoder: Encoder, num_outputs: int) -> "InfViT":
            """See `SignalModel.Config.build`."""
            return InfViT(encoder, num_outputs, self)

    def __init__(self, encoder: Encoder, num_outputs: int, config: Config) -> None:
        super().__init__(encoder, num_outputs, embed_dim=config.embed_dim, pool=config.pool, dropout=config.dropout)
        self.config = config
        accumulates = config.attention in ("pure", "linear")
        self.discount = Discount(config.gamma, config.num_heads, config.learn_gamma) if accumulates else None
        self.blocks = nn.ModuleList(self._block(layer) for layer in range(1, config.depth + 1))
        self._add_head(config.embed_dim, num_outputs)

    def _block(self, layer: int) -> nn.Module:
        c = self.config
        kernel = self._kernel()
        # keeps the variance of the residual stream independent of depth
        gain = 1 / math.sqrt(2 * c.depth)
        drop_path = linear_schedule(layer, c.depth, c.drop_path)
        if self.discount is not None:
            return DiscountedBlock(
                kernel,
                c.embed_dim,
                expansion=c.expansion,
                dropout=c.dropout,
                drop_path=drop_path,
                output_gain=gain,
            )
        return ResidualBlock(
            IntegralOperator(kernel, residual=False, output_gain=gain),
            FeedForward(c.embed_dim, c.expansion, c.dropout, gain),
            dropout=c.dropout,
            drop_path=drop_path,
        )

    def _kernel(self) -> Kernel:
        c = self.config
        match c.attention:
            case "softmax":
                return Attention(c.embed_dim, c.num_heads)
            case "linear":
                return LinearInfiniteAttention(
                    c.embed_dim, c.num_heads, num_central=c.num_central, power_steps=c.power_steps
                )
            case "factorised":
                return FactorisedInfiniteAttention(
                    c.embed_dim, c.num_heads, normaliser=c.normaliser, gamma=c.gamma, learn_gamma=c.learn_gamma
                )
            case "pure":
                return InfiniteAttention(
                    c.embed_dim, c.num_heads, form="hop", activation=c.activation, normaliser=c.normaliser
                )
            case "resolvent":
                return InfiniteAttention(
                    c.embed_dim,
                    c.num_heads,
                    activation=c.activation,
                    normaliser=c.normaliser,
                    gamma=c.gamma,
                    learn_gamma=c.learn_gamma,
                )

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps a batch of encoder inputs to `(B, num_outputs)`."""
        u, domain = self._signal(inputs)
        total = None
        gamma = None if self.discount is None else self.discount()
        for layer, block in enumerate(self.blocks, start=1):
            if gamma is None:
                u = block(u, domain)
                continue
            factor = gamma**layer if self.config.decay == "power" else gamma
            u, reached = block(u, domain, factor, total)
            total = reached if self.config.accumulation == "running" else None
        return self._outputs(u, domain)
