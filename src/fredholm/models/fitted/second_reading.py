"""Combines a bank's predictions with those of a kernel machine and trees on numeric summaries of an example.

Legend
    v       numeric summaries of an example; NaN where one is not defined
    f, g    predictions of a bank for an example, and of a `NumbersMachine` for v

    outputs     (1 - a) f + a g, with one readout of both; a is the one of SHARES with the smallest mean square of
                left-out errors among those whose errors are smaller than those of f by two standard errors of the
                difference, paired by example or group; 0 where there is none

A weighted mean of two fits by left-out errors is stacking (Wolpert, Stacked generalization, 1992). With a few dozen
examples left-out errors are noisy, and the machine, which makes more choices, looks better than it is: in doubt the
bank is used alone. A small share may help significantly even if the best one does not.
"""

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from fredholm.models.fitted.fitted_model import FittedModel, Inputs
from fredholm.models.fitted.ridge_head import Readout, Regressand, ScoreRecorder, is_surely_less
from fredholm.models.fitted.table_machine import SHARES, NumbersMachine


@final
class SecondReading(nn.Module):
    """A kernel machine and trees on numeric summaries, with weights of their and a bank's outputs.

    Args:
        num_numbers: number of summaries of an example.
        num_outputs: number of outputs, such as classes.
        may_miss: indices of the summaries that may be NaN.
        num_centres: most training examples that are centres of the kernel.
        num_trees: most trees of each fold; 0: no trees.

    Attributes:
        gain: `(2, num_outputs)`, factors of the bank's outputs and the machine's; 1 and 0 before a fit.
        shift: `(num_outputs,)`, added to the outputs.
    """

    gain: Tensor
    shift: Tensor

    def __init__(
        self, num_numbers: int, num_outputs: int, *, may_miss: tuple[int, ...], num_centres: int, num_trees: int
    ) -> None:
        super().__init__()
        self.machine = NumbersMachine(
            num_numbers, num_outputs, may_miss=may_miss, num_centres=num_centres, num_trees=num_trees
        )
        self.register_buffer("gain", torch.stack([torch.ones(num_outputs), torch.zeros(num_outputs)]))
        self.register_buffer("shift", torch.zeros(num_outputs))

    def forward(self, of_bank: Tensor, numbers: Tensor) -> Tensor:
        """Maps a bank's outputs `(B, num_outputs)` and summaries `(B, num_numbers)` to outputs `(B, num_outputs)`."""
        return self.gain[0] * of_bank + self.gain[1] * self.machine(numbers) + self.shift

    @torch.no_grad()
    def fit(
        self,
        bank: FittedModel[Inputs],
        numbers: Callable[[Inputs], Tensor],
        batches: Sequence[tuple[Inputs, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
    ) -> Tensor:
        """Fits the bank and the machine, and chooses their shares; see `FittedModel.fit`.

        Args:
            bank: the model that is combined with the machine.
            numbers: computes the summaries of a batch, `(B, num_numbers)`.
            batches, regressand, groups: see `FittedModel.fit`.
        """
        of_bank, of_machine = ScoreRecorder(regressand), ScoreRecorder(regressand)
        left_out = bank.fit(batches, of_bank, groups=groups)
        targets = torch.cat([targets for _, targets in batches])
        self.gain.copy_(torch.tensor([[1.0], [0.0]]))
        self.shift.zero_()
        if len(targets) < 2:
            return left_out
        found = torch.cat([numbers(batch) for batch, _ in batches])
        self.machine.fit(found, targets, of_machine, groups=groups)
        wanted = regressand.columns(targets)
        tried = [torch.lerp(of_bank.scores, of_machine.scores, share) for share in SHARES]
        errors = [(wanted - each).square().mean(1) for each in tried]
        surely = [k for k in range(1, len(SHARES)) if is_surely_less(errors[k], errors[0], groups)]
        best = min(surely, key=lambda k: float(errors[k].mean()), default=0)
        readout = regressand.readout(tried[best], targets)
        gain, shift = blended(readout, [(1 - SHARES[best], of_bank.read), (SHARES[best], of_machine.read)])
        self.gain.copy_(gain)
        self.shift.copy_(shift)
        return readout(tried[best])


def blended(readout: Readout, parts: Sequence[tuple[float, Readout]]) -> tuple[Tensor, Tensor]:
    """Weights that turn the outputs of several models into those of the weighted sum of their scores.

    Args:
        readout: readout of the sum.
        parts: share and readout of each model.

    Returns:
        Factors of the outputs of each model, `(models, num_outputs)`, and a constant, `(num_outputs,)`.
    """
    gains, shift = list[Tensor](), readout.shift
    for share, own in parts:
        # an output whose gain is 0 is its shift alone
        gain = torch.where(own.gain == 0, 0.0, share * readout.gain / torch.where(own.gain == 0, 1.0, own.gain))
        gains.append(gain)
        shift = shift - gain * own.shift
    return torch.stack(gains), shift
