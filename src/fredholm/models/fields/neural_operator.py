"""The neural operator: layers of an integral with any kernel, a pointwise map and an activation."""

import dataclasses
import math
from typing import Literal, cast, final

from torch import Tensor, nn

from fredholm._settings import check_count, check_positive
from fredholm.blocks import FeedForward, FieldBlock, NeuralOperatorBlock
from fredholm.blocks.feed_forward import hidden_width
from fredholm.domains import Domain
from fredholm.encoders.encoder import Encoder
from fredholm.models.field_model import FieldModel
from fredholm.models.kernel_configs import KernelConfig, SpectralConfig, check_kernel_config
from fredholm.operators import IntegralOperator


@final
class NeuralOperator(FieldModel):
    """v_l = ∫ κ_l u_l-1 dμ + W_l u_l-1 + b_l, u_l = φ(v_l + F_l φ(v_l)), output = V_2 φ(V_1 u_L + c_1) + c_2.

    With `SpectralConfig` this is a Fourier neural operator (FNO, eq. 2), with `MLPConfig` on positions alone a graph
    kernel network; any kernel can be used. The last layer has no outer activation, as in the paper's code. The biases
    and the perceptrons F are additions. A kernel that does not mix all channels freely is followed by a matrix W^O.

    Args:
        encoder: the lifting, from raw inputs to a signal with `config.embed_dim` channels on a domain.
        num_outputs: number of outputs at a point.
        config: the stack.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(FieldModel.Config):
        """Sizes of the stack."""

        embed_dim: int = 32
        depth: int = 4
        """Number of layers L."""
        num_heads: int | None = None
        """Number of heads, a divisor of embed_dim; None: 1. Refused for kernels without heads."""
        kernel: KernelConfig = dataclasses.field(default_factory=SpectralConfig)
        """The kernel of every layer."""
        perceptron_expansion: float | None = 1.0
        """Width of the hidden layer of each F in multiples of embed_dim, the nearest whole number; None: without F."""
        expansion: float = 4.0
        """Width of the hidden layer V_1 in multiples of embed_dim; the nearest whole number."""
        pool: Literal["mean", "max", "none"] = "none"
        """Pooling before the output: the integral mean of the signal, the maximum of each channel, or none, with one
        output per point."""

        def __post_init__(self) -> None:
            name = "models.NeuralOperator"
            check_kernel_config(name, "kernel", self.kernel)
            for what in ("embed_dim", "depth"):
                check_count(name, what, getattr(self, what))
            check_count(name, "num_heads", self.heads)
            if not self.has_heads:
                self.kernel.refuse_heads(name, type(self), self.num_heads)
            check_positive(name, "expansion", self.expansion)
            if self.perceptron_expansion is not None:
                check_positive(name, "perceptron_expansion", self.perceptron_expansion)
            if self.pool not in ("mean", "max", "none"):
                raise ValueError(f"{name}: pool is 'mean', 'max' or 'none'; got {self.pool!r}")

        @property
        def has_heads(self) -> bool:
            """See `SignalModel.Config.has_heads`."""
            return self.kernel.has_heads

        @property
        def heads(self) -> int:
            """Number of heads of a kernel with heads."""
            return 1 if self.num_heads is None else self.num_heads

        def build(self, encoder: Encoder, num_outputs: int) -> "NeuralOperator":
            """See `SignalModel.Config.build`."""
            return NeuralOperator(encoder, num_outputs, self)

    def __init__(self, encoder: Encoder, num_outputs: int, config: Config) -> None:
        super().__init__(encoder, num_outputs, embed_dim=config.embed_dim, pool=config.pool, dropout=0.0)
        self.config = config
        self.blocks = nn.ModuleList(self._block(layer, encoder) for layer in range(1, config.depth + 1))
        width = hidden_width(config.embed_dim, config.expansion)
        self.expand = nn.Linear(config.embed_dim, width)
        self.norm = nn.Identity()
        self.head = nn.Linear(width, num_outputs)

    def layers(self) -> list[FieldBlock]:
        """See `FieldModel.layers`."""
        return [cast(FieldBlock, block) for block in self.blocks]

    def _outputs(self, u: Tensor, domain: Domain) -> Tensor:
        return super()._outputs(nn.functional.gelu(self.expand(u)), domain)

    def _block(self, layer: int, encoder: Encoder) -> NeuralOperatorBlock:
        config = self.config
        kernel = config.kernel.build(
            config.embed_dim, config.heads, encoder.pos_dim, is_causal=False, edge_dim=encoder.edge_dim
        )
        gain = 1 / math.sqrt(2 * config.depth)
        # W starts as the identity, so that integrals add to the signal, as residuals do (ITNet, H.3.1)
        if config.kernel.mixes_channels:
            operator = IntegralOperator(kernel, output_projection=False)
        else:
            operator = IntegralOperator(kernel, output_gain=gain)
        width = config.perceptron_expansion
        feed_forward = None if width is None else FeedForward(config.embed_dim, width, output_gain=gain)
        return NeuralOperatorBlock(operator, feed_forward, is_last=layer == config.depth)
