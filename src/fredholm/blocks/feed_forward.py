"""The position-wise network of a block."""

from typing import final

from torch import Tensor, nn


@final
class FeedForward(nn.Module):
    """W2 · dropout(GELU(W1 v + b1)) + b2 at every point (ITNet, eq. 195; dropout after the hidden layer, H.4).

    Args:
        embed_dim: channels in and out.
        expansion: hidden width as a multiple of `embed_dim`.
        dropout: rate in [0, 1).
        output_gain: the Xavier-uniform start of W2 is scaled by this; deep models use 1 / sqrt(2 depth).
    """

    def __init__(self, embed_dim: int, expansion: int = 4, dropout: float = 0.0, output_gain: float = 1.0) -> None:
        super().__init__()
        self.expand = nn.Linear(embed_dim, expansion * embed_dim)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        self.contract = nn.Linear(expansion * embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.expand.weight)
        nn.init.xavier_uniform_(self.contract.weight, gain=output_gain)
        nn.init.zeros_(self.expand.bias)
        nn.init.zeros_(self.contract.bias)

    def forward(self, v: Tensor) -> Tensor:
        """`(..., embed_dim)` to the same shape."""
        return self.contract(self.dropout(self.activation(self.expand(v))))
