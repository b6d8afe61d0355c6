"""The Elman recurrence with tanh or ReLU.

Legend: see `cell_recurrence`, and
    z_t = W u_t + b + R h_{t-1} + b'
    D_t = diag(φ(z_t)/z_t)            the secant of φ: tanh(z)/z, 1 at 0, or 1[z > 0] for ReLU

    h_t = φ(z_t) = D_t R h_{t-1} + D_t [W, b + b'] ũ_t
    κ(t, s) = 1[s ≤ t] (∏_{s<τ≤t} D_τ R) D_s [W, b + b']

Source: ITNet (arXiv 2606.19538), Definition 10, corrected. Its eq. 134-135 have φ'(z) in place of the secant φ(z)/z,
W u_s in place of D_s (W u_s + b + b'), and are called exact; on a signal of size 1 a random tanh cell is missed by half
its size. Where φ is ReLU, φ' is the secant, and only the second is missing.
"""

from typing import Literal, final

import torch
from torch import Tensor, nn

from fredholm.kernels.kernel import State
from fredholm.kernels.recurrence.cell_recurrence import CellRecurrence, tanh_secant
from fredholm.kernels.recurrence.semi_separable import StateSpace


@final
class RNN(CellRecurrence):
    """h_t = φ(W u_t + b + R h_{t-1} + b'), one direction of one layer of `torch.nn.RNN`, as an exact integral.

    Args:
        in_dim: channels d of the signal, >= 1.
        state_dim: channels n of h, >= 1.
        nonlinearity: φ, "tanh" or "relu".
        bias: whether to use b and b'.

    Attributes:
        weight_ih, weight_hh: W `(n, d)` and R `(n, n)`.
        bias_ih, bias_hh: b and b', `(n,)` or None.

    Raises:
        ValueError: on sizes below 1 or another nonlinearity.
    """

    num_gates = 1

    def __init__(
        self, in_dim: int, state_dim: int, nonlinearity: Literal["tanh", "relu"] = "tanh", *, bias: bool = True
    ) -> None:
        super().__init__(in_dim, state_dim, bias=bias)
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"kernels.RNN: nonlinearity is 'tanh' or 'relu'; got {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        self.mode = "rnn_tanh" if nonlinearity == "tanh" else "rnn_relu"

    def advance(self, from_input: Tensor, state: State) -> tuple[State, tuple[Tensor, ...]]:
        """See `CellRecurrence.advance`; records D."""
        z = from_input + nn.functional.linear(state[0], self.weight_hh, self.bias_hh)
        if self.nonlinearity == "tanh":
            return (torch.tanh(z),), (tanh_secant(z),)
        return (torch.relu(z),), ((z > 0).to(z.dtype),)

    def secant_form(self, along: tuple[Tensor, ...], affine: Tensor) -> StateSpace:
        """See `CellRecurrence.secant_form`."""
        (slope,) = along
        zero = self.weight_ih.new_zeros(self.state_dim)
        constant = zero if self.bias_ih is None or self.bias_hh is None else self.bias_ih + self.bias_hh
        read_in = torch.cat([self.weight_ih, constant[:, None]], dim=1)
        identity = torch.eye(self.state_dim, dtype=slope.dtype, device=slope.device)
        return StateSpace(
            slope[..., None] * self.weight_hh, slope[..., None] * read_in, identity.expand(1, slope.shape[1], -1, -1)
        )

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return f"{super().extra_repr()}, nonlinearity={self.nonlinearity!r}"
