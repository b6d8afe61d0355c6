"""ITNet: a stack of pre-norm blocks whose operators have perceptron kernels."""

import dataclasses
import functools
import math
from typing import Literal, Self, final

from torch import Tensor, nn

from fredholm._settings import check_count, check_rate, refuse_idle
from fredholm.blocks.pre_norm import PreNormBlock
from fredholm.blocks.stochastic_depth import linear_schedule
from fredholm.encoders.encoder import Encoder
from fredholm.kernels import MLP, Kernel, KernelInputs, LowRankMLP, PointInputs
from fredholm.kernels.perceptron.mlp import Activation, check_frequencies
from fredholm.models.signal_model import SignalModel
from fredholm.operators import IntegralOperator
from fredholm.quadrature.monte_carlo import MonteCarlo
from fredholm.quadrature.proposal import KeyProposal
from fredholm.quadrature.quadrature import Quadrature


@final
class ITNet(SignalModel):
    """Encoder, L pre-norm blocks with an integral operator each, a final norm and a linear head (ITNet, eq. 5 and H.2).

    With `pool="cls"` a learned token is put before the signal, at the centre of the unit box, and carries 1/(N+1) of
    the measure. The kernels of all layers draw their own frozen frequencies.

    Args:
        encoder: from raw inputs to a signal with `config.embed_dim` channels on a domain.
        num_outputs: length of the output, such as the number of classes.
        config: the stack.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SignalModel.Config):
        """Sizes and regularisation of the stack; the defaults are the paper's small model."""

        embed_dim: int = 384
        depth: int = 12
        """Number of blocks L."""
        num_heads: int = 6
        kernel_width: int = 128
        """Hidden units of each kernel's perceptron."""
        kernel_depth: int = 2
        """Linear layers of each kernel's perceptron."""
        num_frequencies: int = 64
        """Fourier frequencies of each kernel; 0 reads raw coordinates."""
        sigma: float = 10.0
        """Standard deviation of the frequencies, in cycles per unit length; refused where there are none."""
        head_shared: bool = False
        """One kernel for all heads of a layer instead of one a head."""
        activation: Activation = "gelu"
        inputs: KernelInputs = dataclasses.field(default_factory=KernelInputs)
        """Which of the seven input groups the kernels read; low-rank ones have but the four of one point."""
        rank: int | None = None
        """Rank a head of low-rank kernels (ITNet, 3.3), of linear cost in the points; None: the exact perceptron."""
        num_samples: int | None = None
        """Points that each integral draws in training from a learned proposal, and anchors in evaluation (ITNet, 3.2);
        None: all points."""
        epsilon: float = 1e-3
        """Scale of the kernels' initial output weights."""
        expansion: int = 4
        """Hidden width of the feed-forward networks, in multiples of embed_dim."""
        dropout: float = 0.1
        """Rate after the embedding, after each operator, and within each feed-forward network."""
        drop_path: float = 0.1
        """Chance of skipping a branch of the last block in training; rises linearly from the first."""
        pool: Literal["cls", "mean"] = "cls"
        """Read the output from a class token, or from the integral mean of the signal."""

        def __post_init__(self) -> None:
            for name in ("depth", "expansion"):
                check_count("models.ITNet", name, getattr(self, name))
            for name in ("dropout", "drop_path"):
                check_rate("models.ITNet", name, getattr(self, name))
            has_frequencies = self.inputs.has_frequencies
            if self.rank is not None:
                own, exact = f"rank={self.rank}", "take the exact perceptron, rank=None"
                refuse_idle("models.ITNet", type(self), own, exact, kernel_depth=self.kernel_depth)
                pairs = {name: getattr(self.inputs, name) for name in ("relative_position", "distance", "product")}
                refuse_idle("models.ITNet: inputs", KernelInputs, own, exact, **pairs)
                has_frequencies = self.point_inputs.has_frequencies
            check_frequencies("models.ITNet", type(self), has_frequencies, self.num_frequencies, self.sigma)
            if self.pool not in ("cls", "mean"):
                raise ValueError(f"models.ITNet: pool is 'cls' or 'mean'; got {self.pool!r}")

        @classmethod
        def small(cls) -> Self:
            """ITNet-S: 12 layers, 384 channels, 6 heads."""
            return cls()

        @classmethod
        def base(cls) -> Self:
            """ITNet-B: 12 layers, 768 channels, 12 heads."""
            return cls(embed_dim=768, num_heads=12, drop_path=0.2)

        @classmethod
        def large(cls) -> Self:
            """ITNet-L: 24 layers, 1024 channels, 16 heads. The paper states no dropout rate; S and B's is used."""
            return cls(embed_dim=1024, depth=24, num_heads=16, drop_path=0.3)

        @classmethod
        def point_cloud(cls) -> Self:
            """ITNet-PC: 6 layers, 128 channels, 4 heads, no dropout. Stochastic depth is not stated; S's is used."""
            return cls(embed_dim=128, depth=6, num_heads=4, dropout=0.0)

        @property
        def point_inputs(self) -> PointInputs:
            """What low-rank kernels read of each point."""
            names = [field.name for field in dataclasses.fields(PointInputs)]
            return PointInputs(**{name: getattr(self.inputs, name) for name in names})

        def build(self, encoder: Encoder, num_outputs: int) -> "ITNet":
            """See `SignalModel.Config.build`."""
            return ITNet(encoder, num_outputs, self)

    def __init__(self, encoder: Encoder, num_outputs: int, config: Config) -> None:
        super().__init__(encoder, num_outputs, embed_dim=config.embed_dim, pool=config.pool, dropout=config.dropout)
        self.config = config
        self.blocks = nn.ModuleList(self._block(layer) for layer in range(1, config.depth + 1))
        self._add_head(config.embed_dim, num_outputs)

    def _block(self, layer: int) -> PreNormBlock:
        c = self.config
        # keeps the variance of the residual stream independent of depth (ITNet, H.3.1)
        gain = 1 / math.sqrt(2 * c.depth)
        return PreNormBlock(
            IntegralOperator(self._kernel(), quadrature=self._quadrature(), output_gain=gain),
            c.embed_dim,
            expansion=c.expansion,
            dropout=c.dropout,
            drop_path=linear_schedule(layer, c.depth, c.drop_path),
            output_gain=gain,
        )

    def _kernel(self) -> Kernel:
        c = self.config
        kind = (
            functools.partial(MLP, depth=c.kernel_depth, inputs=c.inputs)
            if c.rank is None
            else functools.partial(LowRankMLP, rank=c.rank, inputs=c.point_inputs)
        )
        return kind(
            c.embed_dim,
            c.num_heads,
            self.encoder.pos_dim,
            width=c.kernel_width,
            activation=c.activation,
            num_frequencies=c.num_frequencies,
            sigma=c.sigma,
            head_shared=c.head_shared,
            epsilon=c.epsilon,
        )

    def _quadrature(self) -> Quadrature | None:
        c = self.config
        if c.num_samples is None:
            return None
        heads = c.num_heads if c.rank is None else 1
        return MonteCarlo(c.num_samples, KeyProposal(c.embed_dim, self.encoder.pos_dim, heads))

    def forward(self, inputs: Tensor) -> Tensor:
        """One batch of what the encoder takes, to `(B, num_outputs)`."""
        u, domain = self._signal(inputs)
        for block in self.blocks:
            u = block(u, domain)
        return self._outputs(u, domain)
