"""Recurrences in which every state variable goes its own way: diagonal state spaces, a channel at a time.

Legend
    d channels, each with n state variables of its own; x_t = g_t u_t    the signal, perhaps scaled (g)
    A    rates, real or complex                                          Δ_t    step that leads to point t

    h_t = exp(Δ_t A) ⊙ h_{t-1} + φ_t ⊙ b_t x_t,    y_t = Re Σ_n c_t ⊙ h_t + D ⊙ u_t

φ is 1, or (exp(Δ_t A) - 1) / A: the exact response to an input held constant over the step. h_t holds u_t already.
"""

import abc
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels.kernel import State
from fredholm.kernels.semi_separable import SemiSeparable, StateSpace


class DiagonalForm(NamedTuple):
    """The pieces of a diagonal recurrence on a signal `(B, T, d)`; b and c vary along it, or over the channels."""

    rates: Tensor  # A: (n, d), real parts <= 0
    steps: Tensor  # Δ >= 0: (B, T, d), or (d,) where constant in time
    scale: Tensor | None  # g: (B, T, d); None: 1
    input: Tensor  # b: (B, T, n), or (n, d)
    output: Tensor  # c: (B, T, n), or (n, d)
    feedthrough: Tensor | None  # D: (d,)
    holds_input: bool  # whether φ is (exp(Δ A) - 1) / A

    def accumulating(self) -> "DiagonalForm":
        """The same in float32 at least, the precision in which states are kept."""
        return DiagonalForm(
            rates=_at_least_float32(self.rates),
            steps=_at_least_float32(self.steps),
            scale=None if self.scale is None else _at_least_float32(self.scale),
            input=_at_least_float32(self.input),
            output=_at_least_float32(self.output),
            feedthrough=None if self.feedthrough is None else _at_least_float32(self.feedthrough),
            holds_input=self.holds_input,
        )


class DiagonalRecurrence(SemiSeparable):
    """Marker: the kernel is a diagonal recurrence, `in_dim` channels to as many, as in `DiagonalForm`.

    The state is one tensor, h: `(B, n, d)`, in float32 at least.

    Attributes:
        is_time_invariant: whether no piece of the form varies along the signal.
    """

    pos_dim = None
    is_time_invariant: bool

    @abc.abstractmethod
    def rates(self) -> Tensor:
        """A, `(n, d)`, in float32 at least."""

    @abc.abstractmethod
    def diagonal_form(self, u: Tensor) -> DiagonalForm:
        """The recurrence on this signal, `(B, T, d)`."""

    @final
    def initial_state(self, batch_size: int) -> State:
        """h = 0; see `Stateful.initial_state`."""
        rates = self.rates()
        return (rates.new_zeros(batch_size, *rates.shape),)

    @final
    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Stateful.step`; the recurrence counts points, so `time` is not read."""
        form = self.diagonal_form(u[:, None]).accumulating()
        decay, gain = _discretised(form)
        read_in, read_out = _at_every_channel(form.input), _at_every_channel(form.output)
        value = u.to(form.steps.dtype)
        driven = value if form.scale is None else value * form.scale[:, 0]
        h = decay[:, 0] * state[0] + (gain * read_in)[:, 0] * driven[:, None]
        out = _real((read_out[:, 0] * h).sum(-2))
        if form.feedthrough is not None:
            out = out + form.feedthrough * value
        return out.to(u.dtype), (h,)

    @final
    def state_space(self, u: Tensor, domain: Domain) -> StateSpace:
        """See `SemiSeparable.state_space`; the n d variables of all channels stand in a row."""
        form = self.diagonal_form(u).accumulating()
        shape = (u.shape[0], u.shape[1], *form.rates.shape)
        decay, gain = _discretised(form)
        read_in = gain * _at_every_channel(form.input)
        if form.scale is not None:
            read_in = read_in * form.scale[:, :, None]
        read_in = torch.diag_embed(read_in.expand(shape))  # (B, T, n, d, d)
        read_out = torch.diag_embed(_at_every_channel(form.output).expand(shape)).movedim(-1, -3)
        feedthrough = None
        if form.feedthrough is not None:
            feedthrough = torch.diag_embed(form.feedthrough).expand(*shape[:2], -1, -1)
        dtype = torch.promote_types(read_in.dtype, form.rates.dtype)
        return StateSpace(
            transition=decay.expand(shape).flatten(2).to(dtype),
            input=read_in.flatten(2, 3).to(dtype),
            output=read_out.flatten(3).to(dtype),
            feedthrough=feedthrough,
        )


def _discretised(form: DiagonalForm) -> tuple[Tensor, Tensor]:
    """exp(Δ A) and φ, `(B', T', n, d)`."""
    z = (form.steps[:, :, None] if form.steps.ndim == 3 else form.steps) * form.rates
    z = z if z.ndim == 4 else z[None, None]
    return z.exp(), torch.special.expm1(z) / form.rates if form.holds_input else torch.ones_like(z)


def _at_every_channel(weights: Tensor) -> Tensor:
    """b or c with the dimensions of `(B', T', n, d')`."""
    return weights[..., None] if weights.ndim == 3 else weights[None, None]


def _real(value: Tensor) -> Tensor:
    return value.real if value.is_complex() else value


def _at_least_float32(part: Tensor) -> Tensor:
    return part.to(torch.promote_types(part.dtype, torch.float32))
