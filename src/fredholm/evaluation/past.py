"""What the routes of kernels that take the mean over the past share."""

import torch
from torch import Tensor

from fredholm.evaluation.integral import Integral
from fredholm.kernels import Factorised, State


def mean_of(sums: Tensor, mass: Tensor) -> Tensor:
    """Sums over the mass of the past; 0, with gradient 0, where there is none."""
    return torch.where(mass > 0, sums / torch.where(mass > 0, mass, 1.0), 0.0)


def state_refusals(integral: Integral[Factorised], state: State | None) -> list[str]:
    """Why a state does not lead to these points: their positions would start anew with every chunk."""
    if state is None or integral.domain.times is not None or not integral.kernel.features.reads_position:
        return []
    return [
        f"the kernel reads positions, and {integral.domain!r} does not say where a sequence goes on; "
        "give Sequence(times=...), or switch positions off in inputs="
    ]
