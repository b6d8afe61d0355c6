"""Semiseparable kernels: recurrences written as integrals.

Legend
    h_t    state, n variables                 ũ          u, or [u; 1] where the kernel is affine
    A, B   transition and input matrices      C, D       output matrix and feedthrough

    h_t = A_t h_{t-1} + B_t ũ_t,   y_t = C_t h_t + D_t ũ_t
    κ(t, s) = 1[s ≤ t] C_t (∏_{s<τ≤t} A_τ) B_s + 1[s = t] D_t,    with h_{-1} = 0

Two kinds have fast routes. In a matrix recurrence A mixes the state, and C and D are constant. In a diagonal one each
of d channels has n variables of its own, which do not mix:

    A      rates, real or complex             x_t        g_t u_t, the signal, perhaps scaled
    Δ_t    step that leads to point t         φ          1, or (exp(Δ_t A) - 1) / A, the exact response to an input
                                                         that is constant over the step

    h_t = exp(Δ_t A) ⊙ h_{t-1} + φ_t ⊙ b_t x_t,    y_t = Re Σ_n c_t ⊙ h_t + D ⊙ u_t

Source: ITNet (arXiv 2606.19538), eq. 109 and E.4-E.8; the sum runs over samples, so these kernels count points.
"""

import abc
import math
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._precision import at_least_float32, without_autocast
from fredholm._settings import check_number
from fredholm.domains import Domain, Sequence
from fredholm.kernels.kernel import State, Stateful


class StateSpace(NamedTuple):
    """The matrices of a recurrence at every point, real or complex; the kernel is the real part. B' is 1 or B."""

    transition: Tensor  # A: (B', T, n, n), or (B', T, n) where diagonal
    input: Tensor  # B: (B', T, n, d_in), or d_in + 1
    output: Tensor  # C: (B', T, d_out, n)
    feedthrough: Tensor | None = None  # D: (B', T, d_out, d_in), or d_in + 1


class SemiSeparable(Stateful):
    """Marker: a recurrence with a linear, perhaps time-varying, transition of the state."""

    is_causal = True
    reads_query = False
    counts_points = True
    is_pairwise = False
    is_recursive = True

    @abc.abstractmethod
    def state_space(self, u: Tensor, domain: Domain) -> StateSpace:
        """The recurrence on this signal, `(B, T, d_in)`; values at points that do not exist are not read."""

    @final
    def output_domain(self, domain: Domain) -> Domain:
        """The points of u, which lie on a line; see `Kernel.output_domain`.

        Raises:
            ValueError: the points are not on a line, so that they have no past.
        """
        check_ordered(type(self).__name__, domain, None)
        return domain

    @final
    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, T, T, d_out, d_in)`, by the products of transitions; see `Kernel.matrix`.

        Raises:
            ValueError: for queries that are not the points of u.
        """
        check_ordered(type(self).__name__, domain, query_domain)
        system = self.state_space(u, domain)
        batch, length = u.shape[:2]
        transition, read_in, read_out = (
            part.expand(batch, *part.shape[1:]) for part in (system.transition, system.input, system.output)
        )
        dense = torch.diag_embed(transition) if transition.ndim == 3 else transition
        if domain.mask is not None:
            identity = torch.eye(dense.shape[-1], dtype=dense.dtype, device=dense.device)
            dense = torch.where(domain.mask[..., None, None], dense, identity)
        carried = read_in.new_zeros(batch, 0, *read_in.shape[2:])  # (B, t, n, d_in): transitions so far times B_s
        rows = []
        for t in range(length):
            carried = torch.cat([dense[:, t, None] @ carried, read_in[:, t, None]], dim=1)
            row = read_out[:, t, None] @ carried
            rows.append(torch.nn.functional.pad(row, (0, 0, 0, 0, 0, length - 1 - t)))
        kappa = torch.stack(rows, dim=1) if rows else read_in.new_zeros(batch, 0, 0, self.out_dim, read_in.shape[-1])
        if kappa.is_complex():
            kappa = kappa.real
        if system.feedthrough is not None:
            here = torch.eye(length, dtype=kappa.dtype, device=kappa.device)[..., None, None]
            kappa = kappa + here * system.feedthrough[:, :, None]
        return kappa


def check_ordered(name: str, domain: Domain, query_domain: Domain | None) -> None:
    """Raises ValueError, in the name of a recurrent kernel, unless the past of each query is a run of points of u."""
    if domain.pos_dim != 1:
        raise ValueError(
            f"{name} integrates over the past, which {domain!r} does not order; give a Sequence, or use a kernel "
            "without a direction (MLP, Attention, Convolution)"
        )
    if query_domain is not None and not query_domain.has_points_of(domain):
        raise ValueError(
            f"{name} gives its result at the points of the signal; got other queries, {query_domain!r}; "
            "leave query_domain out, and run over the reversed signal as well for the points after a query"
        )


class MatrixForm(NamedTuple):
    """The pieces of a matrix recurrence on T points; T' is T, or 1 where constant in time, and B' is B or 1."""

    transition: Tensor  # A: (B', T', n, n)
    input: Tensor  # B: (B', T', n, d_in), or d_in + 1
    output: Tensor  # C: (d_out, n)
    feedthrough: Tensor | None  # D: (d_out, d_in), or d_in + 1
    clock: State = ()  # further parts of the state after the last point besides h


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
            domain: T points. Values of the form at points that do not exist are not read.
            batch_size: B.
            state: the state after the earlier points; None: there are none.
            reset: `(B, T)` bool, True = the state is cleared before this point.
        """

    @final
    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Stateful.step`."""
        domain = Sequence(1, device=u.device) if time is None else Sequence(times=time[:, None])
        form = self.matrix_form(domain.to(u.device), u.shape[0], state)
        with without_autocast(u):
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
        """The form in float32 at least, the precision of states."""
        return DiagonalForm(
            rates=at_least_float32(self.rates),
            steps=at_least_float32(self.steps),
            scale=None if self.scale is None else at_least_float32(self.scale),
            input=at_least_float32(self.input),
            output=at_least_float32(self.output),
            feedthrough=None if self.feedthrough is None else at_least_float32(self.feedthrough),
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
    def _log_steps(self, least: float, most: float) -> Tensor:
        """Logarithms of steps at the start, uniform between those of two bounds, `(d,)`."""
        for name, step in (("min_step", least), ("max_step", most)):
            check_number(f"kernels.{type(self).__name__}", name, step)
        if not 0 < least <= most < math.inf:
            raise ValueError(
                f"kernels.{type(self).__name__}: steps must be 0 < min_step <= max_step; got {least} and {most}"
            )
        return torch.empty(self.in_dim).uniform_(math.log(least), math.log(most))

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
        """See `SemiSeparable.state_space`; the n d variables of all channels form one state."""
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
    """b or c, expanded to the dimensions `(B', T', n, d')`."""
    return weights[..., None] if weights.ndim == 3 else weights[None, None]


def _real(value: Tensor) -> Tensor:
    return value.real if value.is_complex() else value
