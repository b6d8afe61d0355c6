"""What a kernel and trees say of numbers of an example, beside what a bank says of the example itself.

Legend
    v       numbers of an example; NaN where one is not defined
    f, g    what a bank says of an example, and a `NumbersMachine` of v, as they were fitted

    outputs     (1 - a) f + a g, where both are read alike; a is, of those SHARES whose left-out errors are smaller than
                those of f by two standard errors of the difference, example by example, or group by group, the one with
                the smallest mean square of them; 0 where there is none

The mean of two fits by left-out errors is stacking (Wolpert, Stacked generalization, 1992). Of a few dozen examples
left-out errors are nearly those of chance, and the machine, which has more to choose, seems better than it is: where
there is doubt the bank is taken. A small share may surely help where the best one is in doubt.
"""

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from fredholm.models.fitted.fitted_model import FittedModel, Inputs
from fredholm.models.fitted.ridge_head import Heard, Readout, Regressand, is_surely_less
from fredholm.models.fitted.table_machine import SHARES, NumbersMachine


@final
class SecondReading(nn.Module):
    """Numbers as a kernel and trees read them, and how they share with a bank.

    Args:
        num_numbers: of an example.
        num_outputs: such as classes.
        may_miss: the numbers, from 0 on, that may be NaN.
        num_centres: training examples that are centres of the kernel, at most.
        num_trees: of each fold, at most; 0: there are none.

    Attributes:
        gain: `(2, num_outputs)`, by what the bank's outputs and the machine's are multiplied; 1 and 0 before a fit.
        shift: `(num_outputs,)`.
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
        """What a bank says `(B, num_outputs)` and numbers `(B, num_numbers)` to outputs `(B, num_outputs)`."""
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
        """Fits the bank and the machine, and chooses how they share; see `FittedModel.fit`.

        Args:
            bank: what speaks beside the machine.
            numbers: what the machine reads of a batch, `(B, num_numbers)`.
            batches, regressand, groups: see `FittedModel.fit`.
        """
        of_bank, of_machine = Heard(regressand), Heard(regressand)
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
    """How outputs of several models make those of the sum of their scores.

    Args:
        readout: of the sum.
        parts: of each model its share, and how its own outputs are read.

    Returns:
        `(models, num_outputs)`, by what the outputs of each are multiplied, and `(num_outputs,)`, what is added.
    """
    gains, shift = list[Tensor](), readout.shift
    for share, own in parts:
        # what an output says where its gain is 0 is its shift alone
        gain = torch.where(own.gain == 0, 0.0, share * readout.gain / torch.where(own.gain == 0, 1.0, own.gain))
        gains.append(gain)
        shift = shift - gain * own.shift
    return torch.stack(gains), shift
