"""The residual block of two integral operators, each followed by a norm."""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_rate
from fredholm.domains import Domain, Sequence, subset
from fredholm.domains.checks import values_are_at_hand
from fredholm.kernels import State
from fredholm.operators import IntegralOperator
from fredholm.operators.integral import check_operator

BlockState = tuple[State, State]
"""States of the two operators."""


@final
class PostNormBlock(nn.Module):
    """out = f(S u + f(LN K₂[dropout(f(LN K₁[u]))])), f = ReLU, for any kernels (CKConv, figure 8).

    S is the identity where the number of channels stays, else a linear map with a bias. The layer norms are over the
    channels of each point, independent of other points.

    Args:
        first: K₁.
        second: K₂, which takes the channels that K₁ gives.
        dropout: rate between the two.

    Raises:
        ValueError: on operators that do not fit.
    """

    def __init__(self, first: IntegralOperator, second: IntegralOperator, *, dropout: float = 0.0) -> None:
        super().__init__()
        for what, operator in (("first", first), ("second", second)):
            check_operator("PostNormBlock", what, operator)
        check_rate("PostNormBlock", "dropout", dropout)
        in_dim, inner, out_dim = first.kernel.in_dim, first.kernel.out_dim, second.kernel.out_dim
        if second.kernel.in_dim != inner:
            raise ValueError(
                f"PostNormBlock: the first operator gives {inner} channels, the second takes {second.kernel.in_dim}"
            )
        self.first, self.first_norm = first, nn.LayerNorm(inner)
        self.dropout = nn.Dropout(dropout)
        self.second, self.second_norm = second, nn.LayerNorm(out_dim)
        self.shortcut = nn.Identity() if in_dim == out_dim else nn.Linear(in_dim, out_dim)

    def forward(
        self, u: Tensor, domain: Domain, key_padding_mask: Tensor | None = None, *, at: Tensor | None = None
    ) -> Tensor:
        """`(B, N, in_dim)` on `domain` to `(B, N, out_dim)`.

        Args:
            u: the signal.
            domain: its points.
            key_padding_mask: as in `IntegralOperator`.
            at: int64 `(M,)` or `(B, M)`, indices of the points of the result; None: all. At few points the second
                operator costs next to nothing.
        """
        inner = self._between(self.first(u, domain, key_padding_mask=key_padding_mask))
        query_domain = None
        if at is not None:
            _check_at(at, u)
            query_domain = subset(domain, at, torch.ones(at.shape, dtype=domain.weights.dtype, device=at.device))
            # not take_along_dim, with which an exported graph would fix the batch size
            u = u.gather(1, at.expand(u.shape[0], -1)[..., None].expand(-1, -1, u.shape[-1]))
        return self._after(u, self.second(inner, domain, query_domain=query_domain, key_padding_mask=key_padding_mask))

    def initial_state(self, batch_size: int) -> BlockState:
        """The state before the first point, for `scan`; only for stateful kernels."""
        return self.first.initial_state(batch_size), self.second.initial_state(batch_size)

    def scan(self, u: Tensor, domain: Sequence, state: BlockState) -> tuple[Tensor, BlockState]:
        """Processes the next chunk of a sequence, `(B, N, in_dim)`; returns the result and the state at its end.

        See `IntegralOperator.scan`.
        """
        integral, first = self.first.scan(u, domain, state=state[0])
        integral, second = self.second.scan(self._between(integral), domain, state=state[1])
        return self._after(u, integral), (first, second)

    def _between(self, integral: Tensor) -> Tensor:
        return self.dropout(nn.functional.relu(self.first_norm(integral)))

    def _after(self, u: Tensor, integral: Tensor) -> Tensor:
        return nn.functional.relu(self.shortcut(u) + nn.functional.relu(self.second_norm(integral)))


def _check_at(at: Tensor, u: Tensor) -> None:
    """Raises unless `at` names points of a signal `(B, N, C)`."""
    if not isinstance(at, Tensor) or at.dtype != torch.int64 or at.ndim not in (1, 2):
        got = f"{tuple(at.shape)} {at.dtype}" if isinstance(at, Tensor) else type(at).__name__
        raise TypeError(f"PostNormBlock: at must be int64 (M,) or (B, M), indices of points; got {got}")
    if at.ndim == 2 and at.shape[0] not in (1, u.shape[0]):
        raise ValueError(f"PostNormBlock: at has batch size {at.shape[0]} but u has {u.shape[0]}")
    if values_are_at_hand(at) and bool(((at < 0) | (at >= u.shape[1])).any()):
        raise ValueError(f"PostNormBlock: at names points beyond 0 to {u.shape[1] - 1}")
