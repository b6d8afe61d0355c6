"""The Yat product as a kernel between points and prototypes.

Legend
    q_i          the signal u(x_i), d channels             w_j, v_j    a prototype, and what it contributes
    b_j          constant of a prototype                   s           scale by the number of units; 1 without it

    κ(x_i, y_j, u(x_i), u(y_j)) = ρ(s (q_i·w_j + b_j)² / (‖q_i - w_j‖² + ε)) · [0 | I],   u(y_j) = [w_j; b_j; v_j]

so that the integral over n prototypes is Σ_j ρ(s yat(q_i, w_j)) v_j: a layer of Yat units and the linear map after it.
With v_j the j-th unit vector it is the layer alone (`layers.YatDense`).

Source: Yat (No More DeLuLu), eq. 1 and section 2.1. Deviations: values v_j, a normaliser ρ; the paper sums units
themselves (v_j = 1) though its networks map them linearly.


The marker of kernels whose scores are Yat products of queries and keys."""

import abc
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels.attention.normalisers import Normaliser, Unnormalised
from fredholm.kernels.attention.scored import Scored
from fredholm.kernels.attention.yat_product import Softening, UnitScale, response, working_dtype
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.kernel import State, Stateful


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


@final
class Yat(YatScored):
    """κ = s (q·w + b)² / (‖q - w‖² + ε): points against prototypes, or points against points.

    The signal at a key is [w; v], or [w; b; v] with `reads_bias`; at a query it is q. Positions are not read, and the
    measure counts points: the integral is a sum over prototypes, however many there are.

    Args:
        dim: channels d of queries and prototypes.
        value_dim: channels of v, and of the integral.
        reads_bias: whether the signal at a key has its constant b, one channel between w and v.
        num_units: n of the scale s = (n / log(1 + n))^α with learned α; None: s = 1.
        epsilon: ε > 0.
        learn_epsilon: whether ε is learned (softplus), starting there.
        normaliser: ρ; None: the scores as they are.

    Raises:
        ValueError: on sizes below 1, or an epsilon that is not positive and finite.
    """

    pos_dim = None
    is_causal = False
    reads_query = True
    num_heads = 1

    def __init__(
        self,
        dim: int,
        value_dim: int,
        *,
        reads_bias: bool = False,
        num_units: int | None = None,
        epsilon: float = 1e-3,
        learn_epsilon: bool = False,
        normaliser: Normaliser | None = None,
    ) -> None:
        super().__init__()
        if dim < 1 or value_dim < 1:
            raise ValueError(f"kernels.Yat: dim and value_dim must be at least 1; got {dim} and {value_dim}")
        self.dim, self.reads_bias = dim, reads_bias
        self.in_dim, self.out_dim = dim + reads_bias + value_dim, value_dim
        self.softening = Softening(epsilon, learn_epsilon)
        self.scale = None if num_units is None else UnitScale(num_units)
        self.normaliser = Unnormalised() if normaliser is None else normaliser

    @property
    def query_dim(self) -> int:
        """Channels of u(x): those of a prototype."""
        return self.dim

    def value_matrices(self) -> Tensor:
        """[0 | I]; see `ValueMixing.value_matrices`."""
        chosen = torch.eye(self.in_dim, device=self._device)[-self.out_dim :]
        return chosen[None]

    def yat_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> YatForm:
        """See `YatScored.yat_form`."""
        key, rest = u[:, None].split([self.dim, self.in_dim - self.dim], dim=-1)
        bias, value = (rest[..., 0], rest[..., 1:]) if self.reads_bias else (None, rest)
        query, epsilon = query[:, None], self.softening()
        if self.scale is not None:
            s = self.scale().to(torch.promote_types(u.dtype, torch.float32))
            root = s.sqrt()
            query, key, epsilon = query * root, key * root, epsilon * s
            bias = None if bias is None else bias * s
        return YatForm(query, key, value, bias, epsilon)

    @property
    def _device(self) -> torch.device | None:
        tensor = next(self.parameters(), next(self.buffers(), None))
        return None if tensor is None else tensor.device

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"reads_bias={self.reads_bias}, normaliser={self.normaliser}"
