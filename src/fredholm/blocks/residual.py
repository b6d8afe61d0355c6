"""The residual block round an integral operator, as transformers have it."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_finite, check_rate
from fredholm.blocks.field_block import FieldBlock
from fredholm.blocks.stochastic_depth import StochasticDepth
from fredholm.domains import Domain
from fredholm.kernels import State
from fredholm.operators import IntegralOperator
from fredholm.operators.integral import check_operator


@final
class ResidualBlock(FieldBlock):
    """z = u + K[N(u)],  out = z + F(N'(z))  (ITNet, eq. 5), for any kernel of K and any network F.

    With `norm_first=False` the norms follow the sums, z = N(u + K[u]), out = N'(z + F(z)), as in Vaswani et al. 2017.

    Args:
        operator: K, mapping the channels of the signal to as many.
        feed_forward: F, at every point by itself, `(..., C)` to the same shape.
        norm: builds N and N' from a number of channels; None: no norms.
        norm_first: whether norms come before each branch, or after each sum; refused without norms.
        branch_scale: start of a learned factor per channel of both branches (LayerScale, Touvron et al. 2021); None:
            none.
        dropout: rate after K.
        feed_forward_dropout: rate after F.
        drop_path: chance that a sample skips each of the two branches in training.

    Attributes:
        operator_norm, feed_forward_norm: N and N'.
        operator_scale, feed_forward_scale: the factors `(C,)`, or None.

    Raises:
        ValueError: on an operator with more or fewer channels out than in, rates out of range, settings without effect.
    """

    def __init__(
        self,
        operator: IntegralOperator,
        feed_forward: nn.Module,
        *,
        norm: Callable[[int], nn.Module] | None = nn.LayerNorm,
        norm_first: bool = True,
        branch_scale: float | None = None,
        dropout: float = 0.0,
        feed_forward_dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        check_operator("ResidualBlock", "operator", operator)
        if not isinstance(feed_forward, nn.Module):
            raise TypeError(f"ResidualBlock: feed_forward must be a module; got {type(feed_forward).__name__}")
        if branch_scale is not None:
            check_finite("ResidualBlock", "branch_scale", branch_scale)
        dim = operator.kernel.in_dim
        if operator.kernel.out_dim != dim:
            raise ValueError(
                f"ResidualBlock: the operator maps {dim} to {operator.kernel.out_dim} channels; a residual needs as "
                "many out as in"
            )
        if norm is None and not norm_first:
            raise ValueError("ResidualBlock: norm_first=False has no effect with norm=None; leave it out")
        for name, rate in (("dropout", dropout), ("feed_forward_dropout", feed_forward_dropout)):
            check_rate("ResidualBlock", name, rate)
        self.norm_first = norm_first
        self.operator_norm, self.feed_forward_norm = (nn.Identity() if norm is None else norm(dim) for _ in range(2))
        self.operator, self.feed_forward = operator, feed_forward
        self.operator_scale, self.feed_forward_scale = (
            None if branch_scale is None else nn.Parameter(torch.full((dim,), float(branch_scale))) for _ in range(2)
        )
        self.dropout, self.feed_forward_dropout = nn.Dropout(dropout), nn.Dropout(feed_forward_dropout)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, u: Tensor, domain: Domain | None = None, key_padding_mask: Tensor | None = None) -> Tensor:
        """`(B, N, C)` on `domain` to the same shape; `domain` and `key_padding_mask` as in `IntegralOperator`."""
        return self._join(u, self.operator(self._entering(u), domain, key_padding_mask=key_padding_mask))

    def at(self, query: Tensor, query_domain: Domain, u: Tensor, domain: Domain) -> Tensor:
        """See `FieldBlock.at`."""
        entering = self._entering(query)
        return self._join(query, self.operator(self._entering(u), domain, query=entering, query_domain=query_domain))

    def initial_state(self, batch_size: int) -> State:
        """The operator's state before the first point; only for stateful kernels."""
        return self.operator.initial_state(batch_size)

    def scan(self, u: Tensor, domain: Domain, state: State | None) -> tuple[Tensor, State]:
        """Processes the next points `(B, N, C)` of a sequence from a state; None: from the first point."""
        integral, state = self.operator.scan(self._entering(u), domain, state=state)
        return self._join(u, integral), state

    def _entering(self, u: Tensor) -> Tensor:
        return self.operator_norm(u) if self.norm_first else u

    def _join(self, u: Tensor, integral: Tensor) -> Tensor:
        z = u + self.drop_path(_scaled(self.dropout(integral), self.operator_scale))
        if not self.norm_first:
            z = self.operator_norm(z)
        hidden = self.feed_forward(self.feed_forward_norm(z) if self.norm_first else z)
        out = z + self.drop_path(_scaled(self.feed_forward_dropout(hidden), self.feed_forward_scale))
        return out if self.norm_first else self.feed_forward_norm(out)


def _scaled(branch: Tensor, scale: Tensor | None) -> Tensor:
    return branch if scale is None else branch * scale.to(branch.dtype)
