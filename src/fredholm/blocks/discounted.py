"""A pre-norm residual block that adds one discounted hop to a series across layers."""

from typing import final

from torch import Tensor, nn

from fredholm._settings import check_gain, check_rate
from fredholm.blocks.feed_forward import FeedForward
from fredholm.blocks.stochastic_depth import StochasticDepth
from fredholm.domains import Domain
from fredholm.kernels import Kernel
from fredholm.operators import IntegralOperator


@final
class DiscountedBlock(nn.Module):
    """S = S₀ + g ∫ κ LN(u) dμ,  z = u + W^O S + b,  out = z + F(LN(z)), with a factor g for each head.

    S₀ is the sum of the hops of earlier blocks, or 0. (Infinite Self-Attention, eq. 9, 12 and 23, in a pre-norm block;
    `models.InfViT` documents its use.)

    Args:
        kernel: κ, mapping `embed_dim` channels to as many, head by head.
        embed_dim: channels of the signal.
        expansion, dropout, drop_path: as in `FeedForward` and `ResidualBlock`.
        output_gain: the Xavier-uniform starts of W^O and of F's last layer are scaled by this.
    """

    def __init__(
        self,
        kernel: Kernel,
        embed_dim: int,
        *,
        expansion: int = 4,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        output_gain: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise TypeError(f"DiscountedBlock: kernel must be a fredholm kernel; got {type(kernel).__name__}")
        check_gain("DiscountedBlock", "output_gain", output_gain)
        check_rate("DiscountedBlock", "dropout", dropout)
        if kernel.in_dim != embed_dim or kernel.out_dim != embed_dim:
            raise ValueError(
                f"DiscountedBlock: the kernel maps {kernel.in_dim} to {kernel.out_dim} channels, "
                f"the block has embed_dim {embed_dim}"
            )
        self.operator_norm = nn.LayerNorm(embed_dim)
        self.operator = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
        self.output = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.feed_forward_norm = nn.LayerNorm(embed_dim)
        self.feed_forward = FeedForward(embed_dim, expansion, dropout, output_gain)
        self.drop_path = StochasticDepth(drop_path)
        nn.init.xavier_uniform_(self.output.weight, gain=output_gain)
        nn.init.zeros_(self.output.bias)

    def forward(
        self,
        u: Tensor,
        domain: Domain,
        factor: Tensor,
        before: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Applies the layer, and returns the series too.

        Args:
            u: `(B, N, embed_dim)` on `domain`.
            domain: the points of u.
            factor: g, `(H,)`; head h has channels h·d … (h + 1)·d - 1.
            before: S₀, `(B, N, embed_dim)`; None: 0.
            key_padding_mask: as in `IntegralOperator`.

        Returns:
            the signal after the layer, and S.
        """
        dim = self.output.in_features
        if u.ndim != 3 or u.shape[-1] != dim:
            raise ValueError(f"DiscountedBlock: u must be (batch, points, {dim}); got {tuple(u.shape)}")
        if not isinstance(factor, Tensor) or factor.ndim != 1 or not factor.numel() or dim % factor.shape[0]:
            got = tuple(factor.shape) if isinstance(factor, Tensor) else type(factor).__name__
            raise ValueError(
                f"DiscountedBlock: factor must be (H,), a number for each head of {dim} channels; got {got}"
            )
        if before is not None and before.shape != u.shape:
            raise ValueError(f"DiscountedBlock: before must be {tuple(u.shape)}, as u; got {tuple(before.shape)}")
        hop = self.operator(self.operator_norm(u), domain, key_padding_mask=key_padding_mask)
        discounted = (hop.unflatten(-1, (factor.shape[0], -1)) * factor.to(hop.dtype)[:, None]).flatten(-2)
        total = discounted if before is None else before + discounted
        z = u + self.drop_path(self.dropout(self.output(total)))
        return z + self.drop_path(self.feed_forward(self.feed_forward_norm(z))), total
