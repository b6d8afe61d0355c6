"""Linear recurrences by a scan that is parallel over time."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm._precision import without_autocast
from fredholm.domains import Domain
from fredholm.evaluation.evaluation import Queries, StatefulRoute
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.recurrence.diagonal import DiagonalInputs, diagonal_scan
from fredholm.evaluation.recurrence.matrix import MatrixInputs, matrix_scan
from fredholm.kernels import Kernel, State
from fredholm.kernels.recurrence.semi_separable import DiagonalForm, DiagonalRecurrence, MatrixRecurrence

LEAST_WINDOW = 16
"""Smallest number of points whose states are held at one time."""


@final
@dataclasses.dataclass(frozen=True)
class Scan(StatefulRoute[DiagonalRecurrence | MatrixRecurrence]):
    """For `DiagonalRecurrence` and `MatrixRecurrence` kernels: chunks of time in parallel, then joined in order.

    With T points, d channels and n state variables a channel, a diagonal recurrence takes O(T d n) time and, besides a
    window of states, O(T (d + n)) memory, forward and backward: the backward computes the states again from the one
    before each window. A matrix recurrence with n variables in all takes O(T n²) time and O(T n) memory, or O(T n²)
    where its transition varies. States are float32 at least.

    Args:
        chunk: points per chunk; None: chosen for few steps.
        window_elements: entries of the window of states that a diagonal recurrence holds at one time; None: 2^20 on a
            CPU (they then fit into its cache), 2^24 elsewhere.
    """

    chunk: int | None = None
    window_elements: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("chunk", self.chunk), ("window_elements", self.window_elements)):
            if value is not None and value < 1:
                raise ValueError(f"Scan: {name} must be at least 1 or None; got {value}")

    marker = DiagonalRecurrence | MatrixRecurrence
    needs_fixed_sizes = True
    queries = Queries.AT_POINTS

    def refusals(self, integral: Integral[DiagonalRecurrence | MatrixRecurrence]) -> list[str]:
        """Refuses points without an order, and other queries; see `Route.refusals`."""
        return [] if integral.domain.pos_dim == 1 else ["the domain does not order its points"]

    def compute(self, integral: Integral[DiagonalRecurrence | MatrixRecurrence]) -> Tensor:
        """See `Route.compute`."""
        return self.advance(integral)[0]

    def run_refusals(
        self, integral: Integral[DiagonalRecurrence | MatrixRecurrence], state: State | None, reset: Tensor | None
    ) -> list[str]:
        """Refuses nothing; see `StatefulRoute.run_refusals`."""
        return []

    def advance(
        self,
        integral: Integral[DiagonalRecurrence | MatrixRecurrence],
        state: State | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        if isinstance(kernel, DiagonalRecurrence):
            return self._run_diagonal(kernel, u, domain, state, reset)
        form = kernel.matrix_form(domain, u.shape[0], state, reset)
        h = (kernel.initial_state(u.shape[0]) if state is None else state)[0]
        with without_autocast(u):
            value = _weighed(kernel.multiplicand(u), kernel, domain, form.output.dtype)
            is_constant = form.input.shape[1] == 1
            driven = value @ form.input[:, 0].mT if is_constant else (form.input @ value[..., None])[..., 0]
            exists = None if domain.mask is None else torch.atleast_2d(domain.mask)
            keep = None if reset is None else ~reset
            (states,) = matrix_scan(MatrixInputs(form.transition, driven, h, exists, keep), self.chunk or 0)
            out = states @ form.output.mT
            if form.feedthrough is not None:
                out = out + value @ form.feedthrough.mT
        final_state = states[:, -1] if u.shape[1] else h
        return out.to(u.dtype), (final_state, *form.clock)

    def _run_diagonal(
        self, kernel: DiagonalRecurrence, u: Tensor, domain: Domain, state: State | None, reset: Tensor | None
    ) -> tuple[Tensor, State]:
        form = kernel.diagonal_form(u).accumulating()
        (h,) = kernel.initial_state(u.shape[0]) if state is None else state
        value = _weighed(u, kernel, domain, form.steps.dtype)
        out, h = self._scan(form, value, h, domain.mask, reset)
        if form.feedthrough is not None:
            out = out + form.feedthrough * value
        return out.to(u.dtype), (h,)

    def _scan(
        self, form: DiagonalForm, value: Tensor, h: Tensor, mask: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        steps = form.steps
        if mask is not None:
            # a step of length 0 keeps the state
            steps = torch.where(mask[..., None], steps, 0.0).expand(value.shape)
        state_size = value.shape[0] * form.rates.numel()
        on_cpu = value.device.type == "cpu"
        elements = self.window_elements or (1 << 20 if on_cpu else 1 << 24)
        # on a CPU, steps are too small for threads: synchronisation would cost more than it saves
        step_elements = min((1 << 15) - 1 if on_cpu else 1 << 21, elements)
        max_chunks = max(1, step_elements // max(state_size, 1))
        inputs = DiagonalInputs(
            form.rates,
            steps,
            value if form.scale is None else value * form.scale,
            form.input.to(form.rates.dtype),
            form.output.to(form.rates.dtype),
            h.to(form.rates.dtype),
            None if reset is None else (~reset).to(value.dtype),
        )
        window = max(LEAST_WINDOW, elements // max(state_size, 1))
        out, h, _ = diagonal_scan(inputs, form.holds_input, window, max_chunks, self.chunk or 0)
        return out, h


def _weighed(u: Tensor, kernel: Kernel, domain: Domain, dtype: torch.dtype) -> Tensor:
    """The integrand: the signal, or [u; 1], times the mass of its points."""
    value = u.to(dtype)
    if domain.mask is None and domain.is_uniform:
        return value
    return value * kernel.measure(domain).to(dtype)[..., None]
