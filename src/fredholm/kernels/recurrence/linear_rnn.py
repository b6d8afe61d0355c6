"""The linear recurrent network.

Legend
    h_t = A h_{t-1} + B u_t + b,   y_t = C h_t + D u_t        n state variables

    κ(t, s) = 1[s ≤ t] C A^{t-s} [B, b] + 1[s = t] [D, 0], which multiplies [u; 1] (u alone without b)

Source: ITNet (arXiv 2606.19538), E.4, eq. 131-133. The paper's D is the residual of the operator; here it may also be
part of the kernel. Its proof leaves b out of the kernel; here it is inside.
"""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._precision import wide_dtype
from fredholm._settings import check_count
from fredholm.domains import Domain
from fredholm.kernels.kernel import State
from fredholm.kernels.recurrence.semi_separable import MatrixForm, MatrixRecurrence


@final
class LinearRNN(MatrixRecurrence):
    """κ(t, s) = 1[s ≤ t] C A^{t-s} B: one linear map of the state per point, for any distance between points.

    Args:
        in_dim: channels of the signal.
        state_dim: state variables n.
        out_dim: channels of the integral; None: as many as the signal has.
        feedthrough: whether to add D.
        bias: whether to add b, which makes the kernel affine.

    Initialisation: A a random orthogonal matrix, so that the state keeps its length; B and C uniform with variance
    1 / fan_in; D = 0, b = 0.

    Raises:
        ValueError: on sizes below 1.
    """

    pos_dim = None
    no_weight_decay = frozenset({"bias"})

    def __init__(
        self,
        in_dim: int,
        state_dim: int,
        out_dim: int | None = None,
        *,
        feedthrough: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        out_dim = in_dim if out_dim is None else out_dim
        for name, size in {"in_dim": in_dim, "state_dim": state_dim, "out_dim": out_dim}.items():
            check_count("kernels.LinearRNN", name, size)
        self.in_dim, self.state_dim, self.out_dim, self.is_affine = in_dim, state_dim, out_dim, bias
        self.transition = nn.Parameter(nn.init.orthogonal_(torch.empty(state_dim, state_dim)))
        self.input_weight = nn.Parameter((3 / in_dim) ** 0.5 * (2 * torch.rand(state_dim, in_dim) - 1))
        self.output_weight = nn.Parameter((3 / state_dim) ** 0.5 * (2 * torch.rand(out_dim, state_dim) - 1))
        self.feedthrough = nn.Parameter(torch.zeros(out_dim, in_dim)) if feedthrough else None
        self.bias = nn.Parameter(torch.zeros(state_dim)) if bias else None

    def initial_state(self, batch_size: int) -> State:
        """h = 0, `(B, n)`; see `Stateful.initial_state`."""
        dtype = wide_dtype(self.transition)
        return (self.transition.new_zeros(batch_size, self.state_dim, dtype=dtype),)

    def matrix_form(
        self, domain: Domain, batch_size: int, state: State | None = None, reset: Tensor | None = None
    ) -> MatrixForm:
        """See `MatrixRecurrence.matrix_form`; constant in time."""
        dtype = wide_dtype(self.transition)
        read_in, feedthrough = self.input_weight, self.feedthrough
        if self.bias is not None:
            read_in = torch.cat([read_in, self.bias[:, None]], dim=-1)
            feedthrough = None if feedthrough is None else nn.functional.pad(feedthrough, (0, 1))
        return MatrixForm(
            transition=self.transition.to(dtype)[None, None],
            input=read_in.to(dtype)[None, None],
            output=self.output_weight.to(dtype),
            feedthrough=None if feedthrough is None else feedthrough.to(dtype),
        )

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return (
            f"in_dim={self.in_dim}, state_dim={self.state_dim}, out_dim={self.out_dim}, "
            f"feedthrough={self.feedthrough is not None}, bias={self.is_affine}"
        )
