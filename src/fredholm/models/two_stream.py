"""Two baseline networks of images with text: one stack per modality, joined by cross-attention or at the end.

Legend
    u, v        signals of the text and of the images, each on its own domain of mass 1
    K_l         the integral operator of a pre-norm block, each modality's own
    C_l         an operator with queries in one modality and keys in the other, each direction its own

    concatenation       u ← block_l(u),   v ← block'_l(v);   out = head(LN [pool u; pool v])
    cross-attention     u ← u + C_l[LN u, LN v],   v ← v + C'_l[LN v, LN u]   before both blocks of each layer

ITNet compares a joint domain with "two-stream variants with cross-attention or concatenation fusion" (table 5) without
their architecture. The order of cross-attention, self-attention and feed-forward network is that of LXMERT
(arXiv 1908.07490).
"""

import dataclasses
import math
from typing import Literal, final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, Union
from fredholm.domains.points import centre
from fredholm.encoders.encoder import Encoder
from fredholm.encoders.image_text import ImageText, ImageTextBatch
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import (
    AttentionConfig,
    KernelConfig,
    MLPConfig,
    check_kernel_config,
    usual_heads,
)
from fredholm.models.signal_model import SignalModel
from fredholm.operators import IntegralOperator

Fusion = Literal["cross-attention", "concatenation"]


@final
class TwoStream(SignalModel):
    """A stack of pre-norm blocks for the text and one for the images, and a head on both pooled vectors.

    Args:
        encoder: an `encoders.ImageText` of both modalities.
        num_outputs: length of the output, such as the number of classes.
        config: the stacks.

    Raises:
        TypeError: another encoder.
        ValueError: an encoder of one modality, or of texts without the class token that `pool="cls"` needs.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SignalModel.Config):
        """Sizes of both stacks, which are equal, and their fusion."""

        embed_dim: int = 384
        depth: int = 6
        """Number of blocks of each stack."""
        num_heads: int | None = None
        """Number of heads, a divisor of embed_dim; None: one for every 64 channels, but at least 4. Refused if no
        kernel has heads."""
        kernel: KernelConfig = dataclasses.field(default_factory=MLPConfig)
        """The kernel of every block."""
        fusion: Fusion = "cross-attention"
        """Fusion of the modalities: by cross-attention in every layer, or by concatenation of the pooled vectors."""
        cross_kernel: KernelConfig = dataclasses.field(default_factory=AttentionConfig)
        """The kernel of cross-attention; refused with concatenation."""
        expansion: int = 4
        """Hidden width of the feed-forward networks, in multiples of embed_dim."""
        dropout: float = 0.1
        """Dropout rate after the embedding, after each operator, and within each feed-forward network."""
        drop_path: float = 0.1
        """Probability of skipping a branch of the last block in training; rises linearly from the first."""
        pool: Literal["cls", "mean"] = "cls"
        """Pooling: the text's class token and a learned one of the images, or the integral mean of each signal."""

        def __post_init__(self) -> None:
            name = "models.TwoStream"
            for what in ("kernel", "cross_kernel"):
                check_kernel_config(name, what, getattr(self, what))
            for what, allowed in (("fusion", ("cross-attention", "concatenation")), ("pool", ("cls", "mean"))):
                if getattr(self, what) not in allowed:
                    raise ValueError(f"{name}: {what} is one of {', '.join(allowed)}; got {getattr(self, what)!r}")
            if self.fusion == "concatenation" and self.cross_kernel != AttentionConfig():
                raise ValueError(
                    f"{name}: cross_kernel={self.cross_kernel.kinds} has no effect with fusion='concatenation'; leave "
                    "it out, or take 'cross-attention'"
                )
            if not self.has_heads:
                self.kernel.refuse_heads(name, type(self), self.num_heads)
            self.stack()  # which checks the other settings

        @property
        def has_heads(self) -> bool:
            """See `SignalModel.Config.has_heads`."""
            return self.kernel.has_heads or (self.fusion == "cross-attention" and self.cross_kernel.has_heads)

        @property
        def heads(self) -> int:
            """Number of heads of a kernel with heads."""
            return usual_heads(self.embed_dim) if self.num_heads is None else self.num_heads

        def stack(self) -> ITNet.Config:
            """Configuration of each of the two stacks."""
            return ITNet.Config(
                embed_dim=self.embed_dim,
                depth=self.depth,
                num_heads=self.num_heads if self.kernel.has_heads else None,
                kernel=self.kernel,
                expansion=self.expansion,
                dropout=self.dropout,
                drop_path=self.drop_path,
                pool=self.pool,
            )

        def build(self, encoder: Encoder, num_outputs: int) -> "TwoStream":
            """See `SignalModel.Config.build`."""
            return TwoStream(encoder, num_outputs, self)

    def __init__(self, encoder: Encoder, num_outputs: int, config: Config) -> None:
        super().__init__(encoder, num_outputs, embed_dim=config.embed_dim, pool=config.pool, dropout=config.dropout)
        name = "models.TwoStream"
        if not isinstance(encoder, ImageText):
            raise TypeError(f"{name}: expected an encoders.ImageText; got {type(encoder).__name__}")
        if encoder.image is None or encoder.text is None:
            raise ValueError(f"{name}: the encoder reads one modality; give it encoders of images and of text")
        if config.pool == "cls" and not encoder.has_class_token:
            raise ValueError(f"{name}: texts have no class token for pool='cls'; give them one, or take pool='mean'")
        self.config, self.image_text = config, encoder
        self.image_token = nn.Parameter(0.02 * torch.randn(config.embed_dim)) if config.pool == "cls" else None
        self.text_blocks, self.image_blocks = (config.stack().blocks(encoder.pos_dim) for _ in range(2))
        meets = config.fusion == "cross-attention"
        self.text_crossings, self.image_crossings = (
            nn.ModuleList(_Crossing(config, encoder.pos_dim) for _ in range(config.depth if meets else 0))
            for _ in range(2)
        )
        self._add_head(2 * config.embed_dim, num_outputs)

    def forward(self, inputs: Tensor | ImageTextBatch) -> Tensor:
        """Maps a batch to `(B, num_outputs)`."""
        parts = self.image_text.parts(inputs)
        (u, of_text), (v, of_image) = parts["text"], self._with_token(*parts["image"])
        u, v = self.dropout(u), self.dropout(v)
        for layer in range(self.config.depth):
            if self.config.fusion == "cross-attention":
                u, v = (
                    self.text_crossings[layer](u, of_text, v, of_image),
                    self.image_crossings[layer](v, of_image, u, of_text),
                )
            u, v = self.text_blocks[layer](u, of_text), self.image_blocks[layer](v, of_image)
        return self.head(self.norm(torch.cat([self._pooled(u, of_text), self._pooled(v, of_image)], dim=-1)))

    def _with_token(self, v: Tensor, domain: Domain) -> tuple[Tensor, Domain]:
        """The images' signal after its class token, which is at the centre of the unit box."""
        if self.image_token is None:
            return v, domain
        token = self.image_token.to(v.dtype).expand(v.shape[0], 1, -1)
        return torch.cat([token, v], dim=1), Union(centre(domain), domain)

    def _pooled(self, u: Tensor, domain: Domain) -> Tensor:
        return u[:, 0] if self.pool == "cls" else (u * domain.weights.to(u.dtype)[..., None]).sum(-2)


class _Crossing(nn.Module):
    """u + C[LN u, LN v]: integrates over the points of the other modality."""

    def __init__(self, config: TwoStream.Config, pos_dim: int) -> None:
        super().__init__()
        self.query_norm, self.key_norm = nn.LayerNorm(config.embed_dim), nn.LayerNorm(config.embed_dim)
        kernel = config.cross_kernel.build(config.embed_dim, config.heads, pos_dim, is_causal=False)
        # keeps the variance of the residual stream independent of depth (ITNet, H.3.1)
        self.operator = IntegralOperator(kernel, residual=False, output_gain=1 / math.sqrt(2 * config.depth))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, u: Tensor, domain: Domain, v: Tensor, other: Domain) -> Tensor:
        met = self.operator(self.key_norm(v), other, query=self.query_norm(u), query_domain=domain)
        return u + self.dropout(met)
