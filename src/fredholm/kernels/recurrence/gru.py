"""The gated recurrent unit.

Legend: see `cell_recurrence`, and
    r, z        reset and update gate, σ(W u_t + b + R h_{t-1} + b') of their blocks of rows
    n           the candidate, tanh(W_n u_t + b_n + r ⊙ (R_n h_{t-1} + b'_n)) of its block

    h_t = z_t ⊙ h_{t-1} + (1 - z_t) ⊙ n_t
    κ(t, s) = 1[s ≤ t] diag(∏_{s<τ≤t} z_τ ⊙ (1 - z_s) ⊙ n_s) 1 ũ_sᵀ/‖ũ_s‖²

Source: ITNet (arXiv 2606.19538), E.8, corrected. Its eq. 150 has W_h in place of the candidate, which is not linear in
u_s. Its z is torch's 1 - z, and it applies r before R_n; both are as in torch here.
"""

from typing import final

import torch
from torch import Tensor, nn

from fredholm.kernels.kernel import State
from fredholm.kernels.recurrence.cell_recurrence import CellRecurrence, unit_response
from fredholm.kernels.recurrence.semi_separable import StateSpace


@final
class GRU(CellRecurrence):
    """One direction of one layer of `torch.nn.GRU`, as an exact integral.

    Args:
        in_dim: channels d of the signal, >= 1.
        state_dim: channels n of h, >= 1.
        bias: whether to use b and b'.

    Attributes:
        weight_ih, weight_hh: W `(3n, d)` and R `(3n, n)`, the rows of r, z, n in turn.
        bias_ih, bias_hh: b and b', `(3n,)` or None.

    Raises:
        ValueError: on sizes below 1.
    """

    mode = "gru"
    num_gates = 3

    def advance(self, from_input: Tensor, state: State) -> tuple[State, tuple[Tensor, ...]]:
        """See `CellRecurrence.advance`; records z and (1 - z) ⊙ n."""
        (h,) = state
        from_state = nn.functional.linear(h, self.weight_hh, self.bias_hh)
        (u_r, u_z, u_n), (h_r, h_z, h_n) = from_input.chunk(3, dim=-1), from_state.chunk(3, dim=-1)
        z = torch.sigmoid(u_z + h_z)
        write = (1 - z) * torch.tanh(u_n + torch.sigmoid(u_r + h_r) * h_n)
        return (z * h + write,), (z, write)

    def secant_form(self, along: tuple[Tensor, ...], affine: Tensor) -> StateSpace:
        """See `CellRecurrence.secant_form`; the state of this recurrence is h."""
        keep, write = along
        identity = torch.eye(self.state_dim, dtype=keep.dtype, device=keep.device)
        read_in = write[..., None] * unit_response(affine)[..., None, :]
        return StateSpace(keep, read_in, identity.expand(1, keep.shape[1], -1, -1))
