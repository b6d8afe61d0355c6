"""Long short-term memory.

Legend: see `cell_recurrence`, and
    i, f, o     input, forget and output gate, σ(W u_t + b + R h_{t-1} + b') of their blocks of rows
    g           the candidate, tanh of its block                  c       the cell state

    c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t,   h_t = o_t ⊙ tanh(c_t)
    κ(t, s) = 1[s ≤ t] diag(o_t ⊙ tanh(c_t)/c_t ⊙ ∏_{s<τ≤t} f_τ ⊙ i_s ⊙ g_s) 1 ũ_sᵀ/‖ũ_s‖²,   tanh(c)/c := 1 at c = 0

Source: ITNet (arXiv 2606.19538), E.7, corrected. Its eq. 148 has tanh'(c_t) in place of the secant tanh(c_t)/c_t, and
W_c u_s in place of the candidate g_s = tanh(W_c [u_s; h_{s-1}] + b_c); neither gives h_t. (Its W_y is the operator's.)
"""

from typing import final

import torch
from torch import Tensor, nn

from fredholm.kernels.kernel import State
from fredholm.kernels.recurrence.cell_recurrence import CellRecurrence, tanh_secant, unit_response
from fredholm.kernels.recurrence.semi_separable import StateSpace


@final
class LSTM(CellRecurrence):
    """One direction of one layer of `torch.nn.LSTM`, as an exact integral; the state is (h, c).

    Args:
        in_dim: channels d of the signal, >= 1.
        state_dim: channels n of h and c, >= 1.
        bias: whether to use b and b'.

    Attributes:
        weight_ih, weight_hh: W `(4n, d)` and R `(4n, n)`, the rows of i, f, g, o in turn.
        bias_ih, bias_hh: b and b', `(4n,)` or None.

    Raises:
        ValueError: on sizes below 1.
    """

    mode = "lstm"
    num_gates = 4
    num_states = 2

    def advance(self, from_input: Tensor, state: State) -> tuple[State, tuple[Tensor, ...]]:
        """See `CellRecurrence.advance`; records f, i ⊙ g and o ⊙ tanh(c)/c."""
        h, c = state
        gates = from_input + nn.functional.linear(h, self.weight_hh, self.bias_hh)
        i, f, g, o = gates.chunk(4, dim=-1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        return (o * torch.tanh(c), c), (f, i * g, o * tanh_secant(c))

    def secant_form(self, along: tuple[Tensor, ...], affine: Tensor) -> StateSpace:
        """See `CellRecurrence.secant_form`; the state of this recurrence is c."""
        forget, write, read = along
        return StateSpace(forget, write[..., None] * unit_response(affine)[..., None, :], torch.diag_embed(read))
