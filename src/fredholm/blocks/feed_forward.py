"""The position-wise networks of a block: perceptrons, and Yat units without activation and normalisation."""

from typing import Literal, final, get_args

from torch import Tensor, nn

from fredholm._settings import check_count, check_gain, check_positive, check_rate
from fredholm.layers import YatDense

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
"""Nonlinearity of the hidden layer; "gelu_tanh" is the tanh approximation of GELU, as in GPT-2."""


def activation_module(name: Activation) -> nn.Module:
    """The activation of that name."""
    match name:
        case "gelu":
            return nn.GELU()
        case "gelu_tanh":
            return nn.GELU(approximate="tanh")
        case "relu":
            return nn.ReLU()
        case "silu":
            return nn.SiLU()
    raise ValueError(f"activation must be one of {', '.join(get_args(Activation))}; got {name!r}")


def hidden_width(embed_dim: int, expansion: float) -> int:
    """Number of hidden units, as a multiple of the channels."""
    return max(1, round(expansion * embed_dim))


@final
class FeedForward(nn.Module):
    """W2 · dropout(φ(W1 v + b1)) + b2 at every point (ITNet, eq. 195; dropout after the hidden layer, H.4).

    Args:
        embed_dim: channels in and out.
        expansion: hidden width as a multiple of `embed_dim`, above 0; the nearest whole number, at least 1.
        dropout: rate in [0, 1).
        output_gain: the Xavier-uniform start of W2 is scaled by this; deep models use 1 / sqrt(2 depth).
        activation: φ.
        bias: whether to add b1 and b2.
    """

    def __init__(
        self,
        embed_dim: int,
        expansion: float = 4,
        dropout: float = 0.0,
        output_gain: float = 1.0,
        *,
        activation: Activation = "gelu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_count("FeedForward", "embed_dim", embed_dim)
        check_positive("FeedForward", "expansion", expansion)
        check_rate("FeedForward", "dropout", dropout)
        check_gain("FeedForward", "output_gain", output_gain)
        width = hidden_width(embed_dim, expansion)
        self.expand = nn.Linear(embed_dim, width, bias=bias)
        self.activation = activation_module(activation)
        self.dropout = nn.Dropout(dropout)
        self.contract = nn.Linear(width, embed_dim, bias=bias)
        nn.init.xavier_uniform_(self.expand.weight)
        nn.init.xavier_uniform_(self.contract.weight, gain=output_gain)
        if bias:
            nn.init.zeros_(self.expand.bias)
            nn.init.zeros_(self.contract.bias)

    def forward(self, v: Tensor) -> Tensor:
        """`(..., embed_dim)` to the same shape."""
        return self.contract(self.dropout(self.activation(self.expand(v))))


@final
class GatedFeedForward(nn.Module):
    """W2 · dropout(φ(G v) ⊙ W1 v) at every point: SwiGLU with φ = SiLU (Shazeer 2020, GLU variants, eq. 6).

    Args:
        embed_dim: channels in and out.
        expansion: hidden width as a multiple of `embed_dim`, above 0; the nearest whole number, at least 1.
        dropout: rate in [0, 1).
        output_gain: the Xavier-uniform start of W2 is scaled by this; deep models use 1 / sqrt(2 depth).
        activation: φ.
        bias: whether the three maps have constants, which the paper leaves out.
    """

    def __init__(
        self,
        embed_dim: int,
        expansion: float = 8 / 3,
        dropout: float = 0.0,
        output_gain: float = 1.0,
        *,
        activation: Activation = "silu",
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_count("GatedFeedForward", "embed_dim", embed_dim)
        check_positive("GatedFeedForward", "expansion", expansion)
        check_rate("GatedFeedForward", "dropout", dropout)
        check_gain("GatedFeedForward", "output_gain", output_gain)
        width = hidden_width(embed_dim, expansion)
        self.gate = nn.Linear(embed_dim, width, bias=bias)
        self.expand = nn.Linear(embed_dim, width, bias=bias)
        self.activation = activation_module(activation)
        self.dropout = nn.Dropout(dropout)
        self.contract = nn.Linear(width, embed_dim, bias=bias)
        for layer, gain in ((self.gate, 1.0), (self.expand, 1.0), (self.contract, output_gain)):
            nn.init.xavier_uniform_(layer.weight, gain=gain)
            if bias:
                nn.init.zeros_(layer.bias)

    def forward(self, v: Tensor) -> Tensor:
        """`(..., embed_dim)` to the same shape."""
        return self.contract(self.dropout(self.activation(self.gate(v)) * self.expand(v)))


@final
class YatFeedForward(nn.Module):
    """W · dropout(Y(v)) + c at every point, Y a layer of Yat units (Yat, section 2.3): no activation, no LayerNorm.

    It is `FeedForward` with `layers.YatDense` in place of W1, b1 and GELU. W starts as torch's linear layers do,
    with variance 1 / (3 · hidden width), which preserves the scale of a signal; c starts at 0.

    Args:
        embed_dim: channels in and out.
        expansion: units as a multiple of `embed_dim`.
        dropout: rate in [0, 1), of the units' responses.
        output_gain: the start of W is scaled by this; deep models use 1 / sqrt(2 depth).
        bias: whether units have constants, and the output its c.
        epsilon, learn_epsilon, scale: as in `layers.YatDense`.
    """

    def __init__(
        self,
        embed_dim: int,
        expansion: int = 4,
        dropout: float = 0.0,
        output_gain: float = 1.0,
        *,
        bias: bool = True,
        epsilon: float = 1e-3,
        learn_epsilon: bool = False,
        scale: bool = True,
    ) -> None:
        super().__init__()
        check_count("YatFeedForward", "embed_dim", embed_dim)
        check_count("YatFeedForward", "expansion", expansion)
        check_rate("YatFeedForward", "dropout", dropout)
        check_gain("YatFeedForward", "output_gain", output_gain)
        units = expansion * embed_dim
        self.expand = YatDense(embed_dim, units, bias=bias, epsilon=epsilon, learn_epsilon=learn_epsilon, scale=scale)
        self.dropout = nn.Dropout(dropout)
        self.contract = nn.Linear(units, embed_dim, bias=bias)
        self.contract.weight.data.mul_(output_gain)
        if bias:
            nn.init.zeros_(self.contract.bias)

    def forward(self, v: Tensor) -> Tensor:
        """`(..., embed_dim)` to the same shape."""
        return self.contract(self.dropout(self.expand(v)))
