"""Combines a bank's predictions with those of another model on numbers of an example.

Legend
    v       numbers of an example, such as summaries
    f, g    predictions of a bank for an example, and of the other model for v

    outputs     (1 - a) f + a g, with one readout of both; a is the one of SHARES with the smallest mean square of
                left-out errors among those whose errors are smaller than those of f by two standard errors of the
                difference, paired by example or group; 0 where there is none

A weighted mean of two fits by left-out errors is stacking (Wolpert, Stacked generalization, 1992). With a few dozen
examples left-out errors are noisy, and the machine, which makes more choices, looks better than it is: in doubt the
bank is used alone. A small share may help significantly even if the best one does not.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, final

import torch
from torch import Tensor, nn

from fredholm.models.fitted.example_weights import mean_of
from fredholm.models.fitted.fitted_model import FittedModel, Inputs
from fredholm.models.fitted.kernel_machine import KernelMachine
from fredholm.models.fitted.ridge_head import Regressand, ScoreRecorder, is_surely_less
from fredholm.models.fitted.table_machine import SHARES, NumbersMachine

Machine = TypeVar("Machine", NumbersMachine, KernelMachine)


@final
class SecondReading(nn.Module, Generic[Machine]):
    """A model of numbers of an example, with weights of its and a bank's outputs.

    Args:
        machine: the model.
        num_outputs: number of outputs, such as classes.

    Attributes:
        gain: `(2, num_outputs)`, factors of the bank's scores and the machine's; 1 and 0 before a fit.
        shift: `(num_outputs,)`, added to them.
    """

    gain: Tensor
    shift: Tensor

    def __init__(self, machine: Machine, num_outputs: int) -> None:
        super().__init__()
        self.machine = machine
        self.register_buffer("gain", torch.stack([torch.ones(num_outputs), torch.zeros(num_outputs)]))
        self.register_buffer("shift", torch.zeros(num_outputs))

    def forward(self, of_bank: Tensor, numbers: Tensor) -> Tensor:
        """Maps a bank's scores `(B, num_outputs)` and numbers `(B, num_numbers)` to outputs `(B, num_outputs)`."""
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
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits the bank and the machine, and chooses their shares; see `FittedModel.fit`.

        Args:
            bank: the model that is combined with the machine.
            numbers: computes the numbers of a batch, `(B, num_numbers)`.
            batches, regressand, groups, weights: see `FittedModel.fit`.
        """
        of_bank, of_machine = ScoreRecorder(regressand), ScoreRecorder(regressand)
        bank.fit(batches, of_bank, groups=groups, weights=weights)
        targets = torch.cat([targets for _, targets in batches])
        share, scores = 0.0, of_bank.scores
        if len(targets) > 1:
            found = torch.cat([numbers(batch) for batch, _ in batches])
            self.machine.fit(found, targets, of_machine, groups=groups, weights=weights)
            share = _best_share(of_bank.scores, of_machine.scores, regressand.columns(targets), groups, weights)
            scores = torch.lerp(of_bank.scores, of_machine.scores, share)
        readout = regressand.readout(scores, targets, weights)
        self.gain.copy_(torch.stack([(1 - share) * readout.gain, share * readout.gain]))
        self.shift.copy_(readout.shift)
        return readout(scores)


def _best_share(
    of_bank: Tensor, of_machine: Tensor, wanted: Tensor, groups: Tensor | None, weights: Tensor | None
) -> float:
    """Returns a; see the legend."""
    errors = [(wanted - torch.lerp(of_bank, of_machine, share)).square().mean(1) for share in SHARES]
    surely = [k for k in range(1, len(SHARES)) if is_surely_less(errors[k], errors[0], groups, weights)]
    return SHARES[min(surely, key=lambda k: float(mean_of(errors[k], weights)), default=0)]
