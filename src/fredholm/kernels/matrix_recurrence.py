"""Linear recurrences whose transition mixes the state: a matrix, the same at every point or one for each.

h_t = A_t h_{t-1} + B_t ũ_t,   y_t = C h_t + D ũ_t        n state variables, ũ = u, or [u; 1] (affine kernels)
"""

import abc
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain, Sequence
from fredholm.kernels.kernel import State
from fredholm.kernels.semi_separable import SemiSeparable, StateSpace


class MatrixForm(NamedTuple):
    """The pieces of such a recurrence on T points; T' is T, or 1 where constant in time, and B' is B or 1."""

    transition: Tensor  # A: (B', T', n, n)
    input: Tensor  # B: (B', T', n, d_in), or d_in + 1
    output: Tensor  # C: (d_out, n)
    feedthrough: Tensor | None  # D: (d_out, d_in), or d_in + 1
    clock: State = ()  # what the state after the last point holds besides h


class MatrixRecurrence(SemiSeparable):
    """Marker: the kernel is a linear recurrence as in `MatrixForm`.

    The first tensor of its state is h: `(B, n)`, in float32 at least.
    """

    @abc.abstractmethod
    def matrix_form(
        self, domain: Domain, batch_size: int, state: State | None = None, reset: Tensor | None = None
    ) -> MatrixForm:
        """The recurrence on these points, in float32 at least.

        Args:
            domain: T points. What the form says at points that do not exist is not read.
            batch_size: B.
            state: what earlier points left behind; None: nothing came before.
            reset: `(B, T)` bool, True = the state is cleared before this point.
        """

    @final
    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Stateful.step`."""
        domain = Sequence(1) if time is None else Sequence(times=time[:, None])
        form = self.matrix_form(domain.to(u.device), len(u), state)
        with torch.autocast(u.device.type, enabled=False):
            value = self.multiplicand(u).to(form.output.dtype)
            h = (form.transition[:, 0] @ state[0][..., None] + form.input[:, 0] @ value[..., None])[..., 0]
            out = h @ form.output.mT
            if form.feedthrough is not None:
                out = out + value @ form.feedthrough.mT
        return out.to(u.dtype), (h, *form.clock)

    @final
    def state_space(self, u: Tensor, domain: Domain) -> StateSpace:
        """See `SemiSeparable.state_space`."""
        form = self.matrix_form(domain, u.shape[0])
        length = u.shape[1]
        return StateSpace(
            transition=form.transition.expand(-1, length, -1, -1),
            input=form.input.expand(-1, length, -1, -1),
            output=form.output.expand(1, length, -1, -1),
            feedthrough=None if form.feedthrough is None else form.feedthrough.expand(1, length, -1, -1),
        )
