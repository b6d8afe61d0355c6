"""The diagonal state space S4D.

Legend
    a channel has n/2 pairs of conjugate modes with rates A, and a learned step Δ; its input weights are 1

    h_t = Ā ⊙ h_{t-1} + u_t,   y_t = 2 Re Σ (C B̄) ⊙ h_t + D u_t        a complex number per pair
    κ(t, s) = 1[s ≤ t] diag_channels(2 Re Σ C B̄ Ā^{t-s}) + 1[s = t] diag(D)

    zoh:        Ā = exp(ΔA),                    B̄ = (Ā - 1) / A
    bilinear:   Ā = (1 + ΔA/2) / (1 - ΔA/2),    B̄ = Δ / (1 - ΔA/2)

B̄ is merged with C, so that the input enters the state with weight 1.

Source: Gu et al., "On the parameterization and initialization of diagonal state space models" (arXiv 2206.11893),
eq. 5-9; ITNet (arXiv 2606.19538), E.5. The latter's E.11 lets u_t reach h_{t+1} first (s ≤ t - 1); here, as in S4, h_t
holds u_t (s ≤ t).
"""

import math
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from fredholm._precision import at_least_float32
from fredholm._settings import check_count
from fredholm.kernels.recurrence.semi_separable import DiagonalForm, DiagonalRecurrence

Start = Literal["legs", "lin", "inv"]
DiagonalRule = Literal["zoh", "bilinear"]


@final
class DiagonalStateSpace(DiagonalRecurrence):
    """κ of one diagonal linear system per channel, sampled with a learned step (S4D).

    It reads the order of points, not their times.

    Args:
        in_dim: channels of the signal, in and out.
        state_dim: number n of real state variables per channel, even: n/2 conjugate pairs.
        rule: discretisation rule, "zoh" or "bilinear".
        start: rates at the start, real part -1/2 and imaginary part "legs": the positive eigenvalues of the normal part
            of HiPPO-LegS; "lin": πk; "inv": n/π (n/(2k + 1) - 1); k = 0 … n/2 - 1.
        feedthrough: whether to add D.
        min_step, max_step: range of Δ at the start, log-uniform over the channels; > 0.

    Real parts stay negative, -exp(log_decay). C starts complex normal with variance 1, D normal.

    Raises:
        ValueError: on sizes out of range, an unknown rule or start, or steps out of range.
    """

    no_weight_decay = frozenset({"log_decay", "frequency", "log_step", "feedthrough"})
    is_time_invariant = True

    def __init__(
        self,
        in_dim: int,
        state_dim: int = 64,
        *,
        rule: DiagonalRule = "zoh",
        start: Start = "legs",
        feedthrough: bool = True,
        min_step: float = 1e-3,
        max_step: float = 0.1,
    ) -> None:
        super().__init__()
        check_count("kernels.DiagonalStateSpace", "in_dim", in_dim)
        check_count("kernels.DiagonalStateSpace", "state_dim", state_dim, least=2)
        if state_dim % 2:
            raise ValueError(f"kernels.DiagonalStateSpace: state_dim must be even; got {state_dim}")
        if rule not in get_args(DiagonalRule):
            raise ValueError(f"kernels.DiagonalStateSpace: rule is 'zoh' or 'bilinear'; got {rule!r}")
        self.in_dim = self.out_dim = in_dim
        self.state_dim, self.rule = state_dim, rule
        frequency = start_frequencies(state_dim, start)
        self.log_decay = nn.Parameter(torch.full((state_dim // 2, in_dim), math.log(0.5)))
        self.frequency = nn.Parameter(frequency.to(self.log_decay.dtype)[:, None].repeat(1, in_dim))
        self.log_step = nn.Parameter(self._log_steps(min_step, max_step))
        self.output_weight = nn.Parameter(math.sqrt(0.5) * torch.randn(state_dim // 2, in_dim, 2))  # real, imaginary
        self.feedthrough = nn.Parameter(torch.randn(in_dim)) if feedthrough else None

    def rates(self) -> Tensor:
        """See `DiagonalRecurrence.rates`: A, in its own unit of time."""
        return torch.complex(-at_least_float32(self.log_decay).exp(), at_least_float32(self.frequency))

    def diagonal_form(self, u: Tensor) -> DiagonalForm:
        """See `DiagonalRecurrence.diagonal_form`; the same for every signal."""
        rates = self.rates()
        dtype = rates.real.dtype
        step = self.log_step.to(dtype).exp()
        read_out = 2 * torch.view_as_complex(self.output_weight.to(dtype).contiguous())
        if self.rule == "zoh":
            read_out = read_out * (torch.special.expm1(step * rates) / rates)
        else:
            half = 0.5 * step * rates
            read_out = read_out * (step / (1 - half))
            # a mode with 1 + ΔA/2 = 0 has no logarithm; the smallest number is used instead
            kept = torch.where(half == -1, torch.finfo(dtype).tiny, 1 + half)
            rates, step = (kept / (1 - half)).log(), torch.ones_like(step)
        return DiagonalForm(
            rates=rates,
            steps=step,
            scale=None,
            input=torch.ones_like(rates),
            output=read_out,
            feedthrough=self.feedthrough,
            holds_input=False,
        )

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return (
            f"in_dim={self.in_dim}, state_dim={self.state_dim}, rule={self.rule!r}, "
            f"feedthrough={self.feedthrough is not None}"
        )


def start_frequencies(state_dim: int, start: Start) -> Tensor:
    """Imaginary parts of the rates at the start, `(state_dim / 2,)` float64; see `DiagonalStateSpace`."""
    index = torch.arange(state_dim // 2, dtype=torch.float64)
    if start == "legs":
        root = (torch.arange(state_dim, dtype=torch.float64) + 0.5).sqrt()
        below = torch.tril(torch.outer(root, root), -1)
        # HiPPO-LegS plus the rank-one term that makes it normal is -1/2 and a skew-symmetric matrix
        return torch.linalg.eigvalsh(1j * (below - below.mT))[state_dim // 2 :]
    if start == "lin":
        return math.pi * index
    if start == "inv":
        return state_dim / math.pi * (state_dim / (2 * index + 1) - 1)
    raise ValueError(f"kernels.DiagonalStateSpace: start is 'legs', 'lin' or 'inv'; got {start!r}")
