"""The marker of kernels whose scores are Yat products of queries and keys."""

import abc
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels.head_blocks import each_query_head
from fredholm.kernels.kernel import State, Stateful
from fredholm.kernels.scored import Scored
from fredholm.kernels.yat_product import response, working_dtype


class YatForm(NamedTuple):
    """s_ij = (q_i·k_j + b_j)² / (‖q_i - k_j‖² + ε), and V ũ_j; keys may have fewer heads, each serving several.

    A factor c of all scores needs no place: √c q, √c k, c b and c ε have it.
    """

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, H', N, d)
    value: Tensor  # (B, H', N, d_v)
    key_bias: Tensor | None  # (B, H', N)
    epsilon: Tensor  # () > 0


class YatScored(Scored):
    """Marker: a scored kernel whose sum can be taken in tiles, without the N x N scores.

    Attributes:
        reads_bias: whether keys have constants b.
    """

    reads_bias: bool = False

    @abc.abstractmethod
    def yat_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> YatForm:
        """Queries, keys and values on these signals, `(B, N, d_in)` and `(B, Nq, query_dim)`."""

    @final
    def scores(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> Tensor:
        """See `Scored.scores`."""
        return yat_scores(self.yat_form(u, domain, query, query_domain))


class StatefulYat(YatScored, Stateful):
    """Marker: a Yat kernel along a sequence, whose state is all keys and values."""

    @abc.abstractmethod
    def continued_form(self, u: Tensor, domain: Domain, state: State | None) -> YatForm:
        """Queries of the next points of a sequence; keys and values of all so far, which are the state after them.

        Args:
            u: `(B, N, d_in)`.
            domain: the N next points.
            state: what earlier points left behind; None: nothing.
        """


def yat_scores(form: YatForm) -> Tensor:
    """s at every pair, `(B, H, Nq, N)`, in at least float32.

    Raises:
        TypeError: for float16.
    """
    working = working_dtype("kernels.YatScored", form.query.dtype)
    heads = form.query.shape[1]
    q, k = form.query.to(working), each_query_head(form.key.to(working), heads)
    b = None
    if form.key_bias is not None:
        b = each_query_head(form.key_bias.to(working), heads)[:, :, None]
    with torch.autocast(q.device.type, enabled=False):
        squares = q.square().sum(-1)[..., None], k.square().sum(-1)[:, :, None]
        return response(q @ k.mT, *squares, b, form.epsilon.to(working))
