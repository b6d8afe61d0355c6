"""The linear system in continuous time, sampled.

Legend
    dh/dt = A h + B u,   y = C h + D u        n state variables; Δ_t = time of point t minus that of the point before

    κ(t, s) = 1[s ≤ t] C Ā_t Ā_{t-1} … Ā_{s+1} B̄_s + 1[s = t] D

    euler:      Ā = I + ΔA,                          B̄ = ΔB
    bilinear:   Ā = (I - ΔA/2)⁻¹ (I + ΔA/2),         B̄ = (I - ΔA/2)⁻¹ ΔB
    zoh:        Ā = exp(ΔA),                         B̄ = ∫_0^Δ exp(τA) dτ B

Source: ITNet (arXiv 2606.19538), E.2, E.5 and E.11; the bilinear rule: Gu et al. (arXiv 2111.00396), eq. 3. E.11 lets
u_t reach h_{t+1} first (s ≤ t - 1, and step Δ_{t+1}); here, as in S4, h_t holds u_t (s ≤ t): the signal is assumed to
have the value u_t since the previous point. E.11 writes B̄ of the zero-order hold with A⁻¹; the integral above needs
none and is a block of exp [[ΔA, ΔB], [0, 0]], so that a singular A needs no special case.
"""

import math
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from fredholm._precision import wide_dtype, without_autocast
from fredholm._settings import check_count, check_number
from fredholm.domains import Domain
from fredholm.domains.checks import values_can_be_read
from fredholm.kernels.kernel import State
from fredholm.kernels.linear_algebra import matrix_exponential, solve
from fredholm.kernels.recurrence.semi_separable import MatrixForm, MatrixRecurrence

Rule = Literal["euler", "bilinear", "zoh"]


@final
class LinearSystem(MatrixRecurrence):
    """κ of dh/dt = A h + B u, y = C h + D u, sampled at regular steps or, on `Sequence(times=t)`, at the times given.

    Euler's rule is of order 1 in the step length. The other two are more accurate for some signals: for a signal that
    is constant over each step the zero-order hold is exact; where u_t is the signal in the middle of the step before
    t, both are of order 2; where u_t is the signal at t, all three are of order 1.

    Args:
        in_dim: channels of the signal.
        state_dim: state variables n.
        out_dim: channels of the integral; None: as many as the signal has.
        rule: "euler", "bilinear" or "zoh".
        step_size: step between the points of a domain without times, and of `step` without a time; > 0.
        first_step: step to the first of a sequence of times, which has no previous point; None: `step_size`.
        feedthrough: whether to add D.

    The state is (h, time of the last point), from which chunks and single steps continue; before the first point the
    time is -inf. Points of a domain without times lie `step_size` apart, the first at 0.

    Initialisation: A = -I/2 plus a random skew-symmetric matrix with entries of variance 1/n, B and C uniform with
    variance 1 / fan_in, D = 0.

    Raises:
        ValueError: on sizes below 1, an unknown rule, or steps that are not positive.
    """

    pos_dim = 1

    def __init__(
        self,
        in_dim: int,
        state_dim: int,
        out_dim: int | None = None,
        *,
        rule: Rule = "zoh",
        step_size: float = 1.0,
        first_step: float | None = None,
        feedthrough: bool = False,
    ) -> None:
        super().__init__()
        out_dim = in_dim if out_dim is None else out_dim
        first_step = step_size if first_step is None else first_step
        for name, size in {"in_dim": in_dim, "state_dim": state_dim, "out_dim": out_dim}.items():
            check_count("kernels.LinearSystem", name, size)
        if rule not in get_args(Rule):
            raise ValueError(f"kernels.LinearSystem: rule is 'euler', 'bilinear' or 'zoh'; got {rule!r}")
        for name, step in (("step_size", step_size), ("first_step", first_step)):
            check_number("kernels.LinearSystem", name, step)
        if not (0 < step_size < math.inf and 0 < first_step < math.inf):
            raise ValueError(
                f"kernels.LinearSystem: step_size and first_step must be > 0; got {step_size} and {first_step}"
            )
        self.in_dim, self.state_dim, self.out_dim = in_dim, state_dim, out_dim
        self.rule: Rule = rule
        self.step_size, self.first_step = step_size, first_step
        noise = torch.randn(state_dim, state_dim) / math.sqrt(2 * state_dim)
        self.rates = nn.Parameter(noise - noise.mT - 0.5 * torch.eye(state_dim))
        self.input_weight = nn.Parameter((3 / in_dim) ** 0.5 * (2 * torch.rand(state_dim, in_dim) - 1))
        self.output_weight = nn.Parameter((3 / state_dim) ** 0.5 * (2 * torch.rand(out_dim, state_dim) - 1))
        self.feedthrough = nn.Parameter(torch.zeros(out_dim, in_dim)) if feedthrough else None

    def initial_state(self, batch_size: int) -> State:
        """h = 0, `(B, n)`, and no time yet, `(B,)` float64; see `Stateful.initial_state`."""
        dtype = wide_dtype(self.rates)
        h = self.rates.new_zeros(batch_size, self.state_dim, dtype=dtype)
        return h, h.new_full((batch_size,), -torch.inf, dtype=torch.float64)

    def matrix_form(
        self, domain: Domain, batch_size: int, state: State | None = None, reset: Tensor | None = None
    ) -> MatrixForm:
        """See `MatrixRecurrence.matrix_form`.

        Raises:
            ValueError: where the first point is before the time of the state.
        """
        since = self.initial_state(1)[1] if state is None else state[1]
        steps, until = _steps(domain, since, reset, self.step_size, self.first_step)
        dtype = wide_dtype(self.rates)
        with without_autocast(self.rates):
            transition, read_in = discretise(
                self.rates.to(dtype), self.input_weight.to(dtype), steps.to(dtype), self.rule
            )
        return MatrixForm(
            transition=transition,
            input=read_in,
            output=self.output_weight.to(dtype),
            feedthrough=None if self.feedthrough is None else self.feedthrough.to(dtype),
            clock=(until.expand(batch_size),),
        )

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return (
            f"in_dim={self.in_dim}, state_dim={self.state_dim}, out_dim={self.out_dim}, rule={self.rule!r}, "
            f"step_size={self.step_size}, first_step={self.first_step}, feedthrough={self.feedthrough is not None}"
        )


def discretise(rates: Tensor, input_weight: Tensor, steps: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Ā and B̄ of a linear system at each of `steps`.

    Args:
        rates: A, `(n, n)`.
        input_weight: B, `(n, d)`.
        steps: Δ >= 0 of any shape `(...)`.
        rule: see the head of this file.

    Returns:
        `(..., n, n)` and `(..., n, d)`; I and 0 for a step of 0.
    """
    n = rates.shape[0]
    a, b = steps[..., None, None] * rates, steps[..., None, None] * input_weight
    identity = torch.eye(n, dtype=rates.dtype, device=rates.device)
    if rule == "euler":
        return identity + a, b
    if rule == "bilinear":
        solved = solve(identity - 0.5 * a, torch.cat([identity + 0.5 * a, b], dim=-1))
    else:
        with torch.no_grad():  # B̄ is linear in B; a B of another scale would cost digits of A
            size = b.abs().sum(-2, keepdim=True).amax(-1, keepdim=True).clamp_min(1.0)
        both = torch.nn.functional.pad(torch.cat([a, b / size], dim=-1), (0, 0, 0, b.shape[-1]))
        solved = matrix_exponential(both)[..., :n, :]
        return solved[..., :n], size * solved[..., n:]
    return solved[..., :n], solved[..., n:]


def _steps(
    domain: Domain, since: Tensor, reset: Tensor | None, step_size: float, first_step: float
) -> tuple[Tensor, Tensor]:
    """Δ, `(B', T')`, and the time of the last point that exists, `(B',)`; -inf: no point yet."""
    length = domain.num_points
    if length == 0:
        return since.new_zeros(1, 1), since
    each = 1 if domain.batch_size is None else domain.batch_size
    (rows,) = torch.broadcast_shapes(since.shape, (each,), (1,) if reset is None else reset.shape[:1])
    index = torch.arange(length, device=since.device)
    exists = torch.ones_like(index, dtype=torch.bool) if domain.mask is None else domain.mask
    last = torch.where(exists, index, -1).expand(rows, length).cummax(-1).values
    cleared = torch.full_like(last, -1) if reset is None else torch.where(reset, index, -1).cummax(-1).values
    start = torch.where(cleared >= 0, -torch.inf, since[:, None])
    if domain.times is None:
        count = (exists & (index >= cleared[:, -1:])).sum(-1, dtype=since.dtype)
        clock = start[:, -1].masked_fill(torch.isinf(start[:, -1]), -step_size) + step_size * count
        return since.new_full((1, 1), step_size), torch.where(count > 0, clock, start[:, -1])
    times = domain.times.to(since.dtype).expand(rows, length)
    until = torch.where(last >= cleared.clamp_min(0), times.gather(-1, last.clamp_min(0)), start)
    before = torch.where(
        # the previous point, unless the state was cleared or there is none
        torch.nn.functional.pad(last[:, :-1], (1, 0), value=-1) >= cleared.clamp_min(0),
        torch.nn.functional.pad(until[:, :-1], (1, 0)),
        start,
    )
    # not torch.where, which would round the number to float32
    steps = (times - before).masked_fill(torch.isinf(before), first_step).masked_fill(~exists, 0.0)
    if values_can_be_read(steps) and bool((steps < 0).any()):
        raise ValueError(
            f"kernels.LinearSystem: time runs backwards by {-steps.min().item():.4g} from the point before; give times "
            "that do not decrease, also from one chunk or step to the next"
        )
    return steps, until[:, -1]
