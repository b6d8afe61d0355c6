"""What the routes of kernels that take the mean over the past share."""

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels import Factorised, State


def mean_of(sums: Tensor, mass: Tensor) -> Tensor:
    """Sums over the mass of the past; 0, with gradient 0, where there is none."""
    return torch.where(mass > 0, sums / torch.where(mass > 0, mass, 1.0), 0.0)


def check_state_fits(kernel: Factorised, domain: Domain, state: State | None, reset: Tensor | None) -> None:
    """Raises ValueError on a reset, and on a state that leads to positions which start anew with every chunk."""
    name = type(kernel).__name__
    if reset is not None:
        raise ValueError(f"{name}: running sums see no reset; use evaluation=StepLoop(), or split the u")
    if state is not None and domain.times is None and kernel.features.reads_position:
        raise ValueError(
            f"{name} reads positions, and {domain!r} does not say where a sequence goes on; "
            "give Sequence(times=...), or switch positions off in inputs="
        )
