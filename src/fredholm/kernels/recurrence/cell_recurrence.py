"""Base class of recurrences with a nonlinear cell: parameters, the step, and κ along a trajectory.

Legend
    u_t         signal at point t, d = in_dim channels; ũ = [u; 1]        h_t     output, n = state_dim channels
    W, R        weight_ih and weight_hh, a block of n rows for each gate  b, b'   bias_ih and bias_hh

A cell is not linear in its state, so there is no κ that holds for all signals at once, as there is for a linear
recurrence. But along the trajectory that the cell runs through on *this* signal each nonlinearity is multiplication by
its secant, φ(z) = (φ(z)/z) z, and with those slopes the cell is a linear recurrence, whose κ sums to its output:

    Σ_{s≤t} κ(t, s; u) ũ_s = h_t,  to rounding, and with the gradients of the cell, since κ is differentiated too.

Source: ITNet (arXiv 2606.19538), E.1(b), E.7 and E.8, where a tangent (tanh') stands in place of the secant: on a
random LSTM that alone is off by 4e-2, and the kernel as printed by 1.5e-1.
"""

import abc
import math
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count
from fredholm.domains import Domain
from fredholm.kernels.kernel import State
from fredholm.kernels.recurrence.semi_separable import SemiSeparable, StateSpace

# 1 - z²/3 + 2z⁴/15 - 17z⁶/315 + 62z⁸/2835, the remainder below 1e-22 within the radius
_RADIUS = 0.01
_TAYLOR = (62 / 2835, -17 / 315, 2 / 15, -1 / 3, 1.0)


def tanh_secant(z: Tensor) -> Tensor:
    """tanh(z)/z, 1 at z = 0, with the right derivative everywhere; any shape."""
    near = z.abs() < _RADIUS
    squared = torch.where(near, z, 0.0).square()
    series = torch.full_like(z, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        series = series * squared + coefficient
    away = torch.where(near, 1.0, z)
    return torch.where(near, series, torch.tanh(away) / away)


def unit_response(v: Tensor) -> Tensor:
    """v/‖v‖², the shortest vector whose product with v is 1, for nonzero v `(..., d)`."""
    # a scale taken out first, so that the square of a large signal does not overflow
    scale = v.detach().abs().amax(dim=-1, keepdim=True)
    scaled = v / scale
    return scaled / (scaled.square().sum(dim=-1, keepdim=True) * scale)


CellMode = Literal["rnn_tanh", "rnn_relu", "lstm", "gru"]


class CellRecurrence(SemiSeparable):
    """Marker: h_t = cell(u_t, h_{t-1}) with a cell of torch.nn, one layer in one direction.

    Parameters have torch's names, layout, gate order and initial values, U(-1/√n, 1/√n). κ is a function of the whole
    trajectory up to its query, which starts from the zero state; a point that does not exist leaves the state as it is.
    Weights of single points have no meaning for a trajectory and are refused.

    Args:
        in_dim: channels d of the signal, >= 1.
        state_dim: channels n of the output and of every part of the state, >= 1.
        bias: whether to use b and b'.

    Attributes:
        mode: torch's name of the cell, in lower case.
        num_gates: blocks of n rows in `weight_ih` and `weight_hh`.
        num_states: tensors in a state, each `(B, n)`; the first is h.

    Raises:
        ValueError: on sizes below 1.
    """

    is_affine = True
    pos_dim = None
    mode: CellMode
    num_gates: ClassVar[int]
    num_states: ClassVar[int] = 1

    def __init__(self, in_dim: int, state_dim: int, *, bias: bool = True) -> None:
        super().__init__()
        for name, size in (("in_dim", in_dim), ("state_dim", state_dim)):
            check_count(f"kernels.{type(self).__name__}", name, size)
        self.in_dim, self.state_dim, self.out_dim = in_dim, state_dim, state_dim
        rows, bound = self.num_gates * state_dim, 1 / math.sqrt(state_dim)
        self.weight_ih = nn.Parameter(torch.empty(rows, in_dim).uniform_(-bound, bound))
        self.weight_hh = nn.Parameter(torch.empty(rows, state_dim).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(rows).uniform_(-bound, bound)) if bias else None
        self.bias_hh = nn.Parameter(torch.empty(rows).uniform_(-bound, bound)) if bias else None

    @abc.abstractmethod
    def advance(self, from_input: Tensor, state: State) -> tuple[State, tuple[Tensor, ...]]:
        """The cell at one point.

        Args:
            from_input: W u + b, `(B, num_gates * n)`.
            state: the state before it.

        Returns:
            The state after it, and the slopes and inputs that `secant_form` reads, each `(B, n)`.
        """

    @abc.abstractmethod
    def secant_form(self, along: tuple[Tensor, ...], affine: Tensor) -> StateSpace:
        """The linear recurrence that equals the cell along a trajectory.

        Args:
            along: what `advance` recorded, stacked to `(B, T, n)` each.
            affine: ũ, `(B, T, d + 1)`.
        """

    @final
    @property
    def weights(self) -> list[Tensor]:
        """W, R and, with biases, b, b', in the order of torch's functions."""
        found = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return [weight for weight in found if weight is not None]

    @final
    def initial_state(self, batch_size: int) -> State:
        """Zeros, `num_states` times `(batch_size, n)`; see `Stateful.initial_state`."""
        return tuple(self.weight_hh.new_zeros(batch_size, self.state_dim) for _ in range(self.num_states))

    @final
    def check_state(self, state: State, batch_size: int) -> None:
        """Raises ValueError or TypeError unless a state has the shapes, dtype and device of `initial_state`."""
        expected = (batch_size, self.state_dim)
        if len(state) != self.num_states or any(part.shape != expected for part in state):
            raise ValueError(
                f"kernels.{type(self).__name__}: a state is {self.num_states} of {expected}, (batch, state_dim), as "
                f"initial_state({batch_size}) returns; got {', '.join(str(tuple(part.shape)) for part in state)}"
            )
        weight = self.weight_hh
        for part in state:
            if part.dtype != weight.dtype or part.device != weight.device:
                raise TypeError(
                    f"kernels.{type(self).__name__}: the state must be {weight.dtype} on {weight.device}, as the "
                    f"parameters are; got {part.dtype} on {part.device}"
                )

    @final
    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """The cell at the next point; its time is not read; see `Stateful.step`."""
        self.check_state(state, u.shape[0])
        with without_autocast(u):
            state, _ = self.advance(self._from_input(u), state)
        return state[0], state

    @final
    def state_space(self, u: Tensor, domain: Domain) -> StateSpace:
        """The secants along the trajectory on u; see `SemiSeparable.state_space`.

        Raises:
            ValueError: on a domain with weights.
        """
        if not domain.is_uniform:
            raise ValueError(
                f"kernels.{type(self).__name__}: a cell reads each point once, which no weights can change; leave out "
                f"the weights of {domain!r}, or use a linear recurrence"
            )
        batch, length = u.shape[:2]
        if length == 0:
            blank = self.weight_hh.new_zeros(batch, 0, self.state_dim)
            return StateSpace(blank, blank[..., None].expand(-1, -1, -1, self.in_dim + 1), torch.diag_embed(blank))
        with without_autocast(u):
            from_input, state, rows = self._from_input(u), self.initial_state(batch), []
            for t in range(length):
                following, row = self.advance(from_input[:, t], state)
                rows.append(row)
                if domain.mask is None:
                    state = following
                else:
                    exists = domain.mask[..., t].expand(batch)[:, None]
                    state = tuple(torch.where(exists, *pair) for pair in zip(following, state, strict=True))
            along = tuple(torch.stack(column, dim=1) for column in zip(*rows, strict=True))
            return self.secant_form(along, self.multiplicand(u.to(self.weight_ih.dtype)))

    def _from_input(self, u: Tensor) -> Tensor:
        return nn.functional.linear(u.to(self.weight_ih.dtype), self.weight_ih, self.bias_ih)

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return f"in_dim={self.in_dim}, state_dim={self.state_dim}" + (
            "" if self.bias_ih is not None else ", bias=False"
        )
