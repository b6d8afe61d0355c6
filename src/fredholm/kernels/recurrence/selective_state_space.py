"""The selective state space of Mamba.

Legend
    A = -exp(log_a)     rates, n per channel         Δ_t = softplus(W_Δ W_r u_t + b_Δ)      a step per channel
    B_t = W_B u_t       C_t = W_C u_t                the same n numbers for all channels

    h_t = exp(Δ_t A) ⊙ h_{t-1} + (Δ_t ⊙ u_t) B_tᵀ,   y_t = h_t C_t + D ⊙ u_t
    κ(t, s) = 1[s ≤ t] diag_channels(C_t · exp(A Σ_{s<τ≤t} Δ_τ) ⊙ Δ_s B_s) + 1[s = t] diag(D)

Source: Gu and Dao, "Mamba" (arXiv 2312.00752), Algorithm 2 and section 3.6; ITNet (arXiv 2606.19538), E.6, eq. 141-145.
Eq. 107 of the latter, ∏_{τ=s}^{t-1}, contradicts its own proof; eq. 143, ∏_{τ=s+1}^{t}, holds and is used here.
"""

import math
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from fredholm._precision import at_least_float32, wide_dtype
from fredholm._settings import check_count
from fredholm.kernels.kernel import RANGE_OF_EXPONENTIALS
from fredholm.kernels.recurrence.semi_separable import DiagonalForm, DiagonalRecurrence

InputRule = Literal["euler", "zoh"]


@final
class SelectiveStateSpace(DiagonalRecurrence):
    """κ of a diagonal state space whose step, input and output weights follow the signal (S6).

    It reads the order of points, not their times.

    Args:
        in_dim: channels of the signal, in and out.
        state_dim: number n of state variables per channel.
        rank: of the map from the signal to Δ; None: in_dim / 16, rounded up.
        input_rule: "euler", B̄ = Δ B, as Mamba's code and paper compute it, or "zoh", B̄ = (exp(ΔA) - 1) A⁻¹ B, the
            zero-order hold that Mamba's paper derives it from.
        feedthrough: whether to add D.
        min_step, max_step: range of Δ at the start, log-uniform over the channels; > 0.

    Initialisation (Mamba's): A_n = -n, n = 1 … state_dim, in every channel (S4D-Real); b_Δ the inverse softplus of the
    initial steps, W_Δ uniform within 1 / sqrt(rank), W_r, W_B, W_C as a linear layer without bias; D = 1.

    Raises:
        ValueError: on sizes below 1, an unknown rule, or steps out of range.
    """

    no_weight_decay = frozenset({"log_a", "step_bias", "feedthrough"})
    is_time_invariant = False
    signal_range = RANGE_OF_EXPONENTIALS

    def __init__(
        self,
        in_dim: int,
        state_dim: int = 16,
        *,
        rank: int | None = None,
        input_rule: InputRule = "euler",
        feedthrough: bool = True,
        min_step: float = 1e-3,
        max_step: float = 0.1,
    ) -> None:
        super().__init__()
        rank = math.ceil(in_dim / 16) if rank is None else rank
        for name, size in {"in_dim": in_dim, "state_dim": state_dim, "rank": rank}.items():
            check_count("kernels.SelectiveStateSpace", name, size)
        if input_rule not in get_args(InputRule):
            raise ValueError(f"kernels.SelectiveStateSpace: input_rule is 'euler' or 'zoh'; got {input_rule!r}")
        self.in_dim = self.out_dim = in_dim
        self.state_dim, self.rank, self.input_rule = state_dim, rank, input_rule
        self.log_a = nn.Parameter(torch.arange(1.0, state_dim + 1).log().repeat(in_dim, 1))  # (d, n)
        bound = 1 / math.sqrt(in_dim)
        self.content_weight = nn.Parameter(torch.empty(rank + 2 * state_dim, in_dim).uniform_(-bound, bound))
        bound = 1 / math.sqrt(rank)
        self.step_weight = nn.Parameter(torch.empty(in_dim, rank).uniform_(-bound, bound))
        steps = self._log_steps(min_step, max_step).exp()
        self.step_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.feedthrough = nn.Parameter(torch.ones(in_dim)) if feedthrough else None

    def rates(self) -> Tensor:
        """See `DiagonalRecurrence.rates`."""
        return -at_least_float32(self.log_a).exp().mT

    def diagonal_form(self, u: Tensor) -> DiagonalForm:
        """See `DiagonalRecurrence.diagonal_form`."""
        content = nn.functional.linear(u, self.content_weight)
        low_rank, read_in, read_out = content.split([self.rank, self.state_dim, self.state_dim], dim=-1)
        steps = nn.functional.linear(low_rank, self.step_weight).to(wide_dtype(u)) + self.step_bias
        steps = nn.functional.softplus(steps)
        is_held = self.input_rule == "zoh"
        return DiagonalForm(
            rates=self.rates(),
            steps=steps,
            scale=None if is_held else steps,
            input=read_in,
            output=read_out,
            feedthrough=self.feedthrough,
            holds_input=is_held,
        )

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return (
            f"in_dim={self.in_dim}, state_dim={self.state_dim}, rank={self.rank}, input_rule={self.input_rule!r}, "
            f"feedthrough={self.feedthrough is not None}"
        )
