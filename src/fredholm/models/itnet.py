"""ITNet: a stack of pre-norm blocks of integral operators with any kernel."""

import dataclasses
import math
from typing import Literal, Self, cast, final

from torch import Tensor, nn

from fredholm._settings import check_count, check_number, check_positive, check_rate, refuse_idle
from fredholm.blocks.feed_forward import FeedForward
from fredholm.blocks.field_block import FieldBlock
from fredholm.blocks.residual import ResidualBlock
from fredholm.blocks.stochastic_depth import linear_schedule
from fredholm.domains import Domain
from fredholm.encoders.encoder import Encoder, FieldEncoder
from fredholm.kernels import Diffusion, Kernel, MultiHead
from fredholm.models.field_model import FieldModel
from fredholm.models.kernel_configs import KernelConfig, MLPConfig, check_kernel_config, usual_heads
from fredholm.operators import IntegralOperator
from fredholm.quadrature.monte_carlo import MonteCarlo
from fredholm.quadrature.proposal import KeyProposal
from fredholm.quadrature.quadrature import Quadrature


@final
class ITNet(FieldModel):
    """Encoder, L pre-norm blocks with an integral operator each, a final norm and a linear head (ITNet, eq. 5 and H.2).

    With `pool="cls"` a learned token is put before the signal, at the centre of the unit box, and carries 1/(N+1) of
    the measure. The kernels of all layers draw their own frozen frequencies.

    Args:
        encoder: from raw inputs to a signal with `config.embed_dim` channels on a domain.
        num_outputs: length of the output, such as the number of classes.
        config: the stack.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(FieldModel.Config):
        """Sizes and regularisation of the stack; the defaults are the paper's small model."""

        embed_dim: int = 384
        depth: int = 12
        """Number of blocks L."""
        num_heads: int | None = None
        """Number of heads, a divisor of embed_dim; None: one for every 64 channels, but at least 4. Refused for kernels
        without heads."""
        kernel: KernelConfig = dataclasses.field(default_factory=MLPConfig)
        """The kernel of every layer; the paper uses the exact perceptron and the low-rank one."""
        num_samples: int | None = None
        """Number of points that each integral samples in training from a learned proposal, and of anchors in evaluation
        (ITNet, 3.2); None: all points."""
        expansion: float = 4.0
        """Hidden width of the feed-forward networks, in multiples of embed_dim; the nearest whole number."""
        dropout: float = 0.1
        """Dropout rate after the embedding, after each operator, and within each feed-forward network."""
        drop_path: float = 0.1
        """Probability of skipping a branch of the last block in training; rises linearly from the first."""
        pool: Literal["cls", "mean", "max", "none"] = "cls"
        """Pooling before the output: a class token, the integral mean of the signal, the maximum of each channel, or
        none, with one output per point."""

        diffusion: float = 0.0
        """Share of neighbours in the outputs at the nodes of a graph, in [0, 1) (`kernels.Diffusion`): for graphs whose
        neighbours are mostly of one class. 0: none. Needs pool='none'."""

        def __post_init__(self) -> None:
            check_kernel_config("models.ITNet", "kernel", self.kernel)
            for name in ("embed_dim", "depth"):
                check_count("models.ITNet", name, getattr(self, name))
            check_positive("models.ITNet", "expansion", self.expansion)
            for name in ("dropout", "drop_path"):
                check_rate("models.ITNet", name, getattr(self, name))
            if self.pool not in ("cls", "mean", "max", "none"):
                raise ValueError(f"models.ITNet: pool is 'cls', 'mean', 'max' or 'none'; got {self.pool!r}")
            check_number("models.ITNet", "diffusion", self.diffusion)
            if not 0 <= self.diffusion < 1:
                raise ValueError(f"models.ITNet: diffusion must be at least 0 and below 1; got {self.diffusion}")
            if self.pool != "none":
                own = f"pool={self.pool!r}"
                refuse_idle("models.ITNet", type(self), own, "take pool='none'", diffusion=self.diffusion)
            if not self.has_heads:
                self.kernel.refuse_heads("models.ITNet", type(self), self.num_heads)

        @property
        def has_heads(self) -> bool:
            """See `SignalModel.Config.has_heads`."""
            return self.kernel.has_heads

        @property
        def heads(self) -> int:
            """Number of heads of a kernel with heads."""
            return usual_heads(self.embed_dim) if self.num_heads is None else self.num_heads

        @classmethod
        def small(cls) -> Self:
            """ITNet-S: 12 layers, 384 channels, 6 heads."""
            return cls()

        @classmethod
        def base(cls) -> Self:
            """ITNet-B: 12 layers, 768 channels, 12 heads."""
            return cls(embed_dim=768, drop_path=0.2)

        @classmethod
        def large(cls) -> Self:
            """ITNet-L: 24 layers, 1024 channels, 16 heads. The paper states no dropout rate; S and B's is used."""
            return cls(embed_dim=1024, depth=24, drop_path=0.3)

        @classmethod
        def point_cloud(cls) -> Self:
            """ITNet-PC: 6 layers, 128 channels, 4 heads, no dropout. Stochastic depth is not stated; S's is used."""
            return cls(embed_dim=128, depth=6, dropout=0.0)

        def blocks(self, pos_dim: int, *, is_causal: bool = False, edge_dim: int = 0) -> nn.ModuleList:
            """Builds the blocks, for `pos_dim` coordinates of positions and `edge_dim` features of pairs."""
            layers = range(1, self.depth + 1)
            return nn.ModuleList(self._block(n, pos_dim, is_causal=is_causal, edge_dim=edge_dim) for n in layers)

        def _block(self, layer: int, pos_dim: int, *, is_causal: bool, edge_dim: int) -> ResidualBlock:
            # keeps the variance of the residual stream independent of depth (ITNet, H.3.1)
            gain = 1 / math.sqrt(2 * self.depth)
            sizes = (self.embed_dim, self.heads, pos_dim)
            kernel = self.kernel.build(*sizes, is_causal=is_causal, edge_dim=edge_dim)
            return ResidualBlock(
                IntegralOperator(kernel, quadrature=self._quadrature(kernel, pos_dim), output_gain=gain),
                FeedForward(self.embed_dim, self.expansion, self.dropout, gain),
                dropout=self.dropout,
                drop_path=linear_schedule(layer, self.depth, self.drop_path),
            )

        def _quadrature(self, kernel: Kernel, pos_dim: int) -> Quadrature | None:
            if self.num_samples is None:
                return None
            if not kernel.is_pairwise:
                raise ValueError(
                    f"models.ITNet: num_samples={self.num_samples} samples points, which kernel="
                    f"{self.kernel.kinds} does not support: it is no function of two points alone; leave "
                    "num_samples out, or take kernel=MLPConfig or kernel=AttentionConfig"
                )
            heads = kernel.num_heads if isinstance(kernel, MultiHead) else 1
            return MonteCarlo(self.num_samples, KeyProposal(self.embed_dim, pos_dim, heads))

        def build(self, encoder: Encoder, num_outputs: int) -> "ITNet":
            """See `SignalModel.Config.build`."""
            return ITNet(encoder, num_outputs, self)

    def __init__(self, encoder: Encoder, num_outputs: int, config: Config) -> None:
        super().__init__(encoder, num_outputs, embed_dim=config.embed_dim, pool=config.pool, dropout=config.dropout)
        self.config = config
        self.blocks = config.blocks(encoder.pos_dim, edge_dim=encoder.edge_dim)
        self._add_head(config.embed_dim, num_outputs)
        self.diffusion = None
        if config.diffusion:
            kernel = Diffusion(num_outputs, gamma=config.diffusion)
            self.diffusion = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)

    def layers(self) -> list[FieldBlock]:
        """See `FieldModel.layers`."""
        return [cast(FieldBlock, block) for block in self.blocks]

    def _outputs(self, u: Tensor, domain: Domain) -> Tensor:
        out = super()._outputs(u, domain)
        return out if self.diffusion is None else self.diffusion(out, domain)

    def _field_encoder(self) -> FieldEncoder:
        if self.diffusion is not None:
            raise ValueError("models.ITNet: diffusion mixes outputs of the nodes of a graph; leave `at` out")
        return super()._field_encoder()
