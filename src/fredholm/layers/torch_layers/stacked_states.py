"""The states of several operators in torch's form: h `(operators, B, n)`, or (h, c) of such tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fredholm.kernels import State
from fredholm.kernels.recurrence.cell_recurrence import CellRecurrence


def split_states(
    hx: Tensor | State | None, kernels: Sequence[CellRecurrence], batch: int, *, unbatched: bool = False
) -> list[State | None]:
    """The state of each operator, under autocast in the dtype of its parameters; None where none is given.

    Raises:
        ValueError: on another number of tensors or other shapes than these kernels have.
        TypeError: on anything but tensors.
    """
    if hx is None:
        return [None] * len(kernels)
    count, size, wanted = len(kernels), kernels[0].state_dim, kernels[0].num_states
    parts = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    if any(not isinstance(part, Tensor) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise TypeError(
            f"RecurrentLayer: hx must be {'two tensors, (h, c)' if wanted == 2 else 'a tensor'}; got {kinds}"
        )
    expected = (count, size) if unbatched else (count, batch, size)
    if len(parts) != wanted or any(tuple(part.shape) != expected for part in parts):
        raise ValueError(
            f"RecurrentLayer: hx must be {'(h, c), each' if wanted == 2 else 'h of shape'} {expected} = "
            f"(num_layers * directions, {'' if unbatched else 'batch, '}hidden_size); "
            f"got {', '.join(str(tuple(part.shape)) for part in parts)}"
        )
    if torch.is_autocast_enabled(parts[0].device.type):
        parts = tuple(part.to(kernels[0].weight_hh.dtype) for part in parts)
    return [tuple(part[k][None] if unbatched else part[k] for part in parts) for k in range(count)]


def join_states(states: Sequence[State], *, unbatched: bool = False) -> Tensor | State:
    """The states of all operators, without the batch where there was none."""
    parts = [torch.stack(part) for part in zip(*states, strict=True)]
    parts = [part[:, 0] for part in parts] if unbatched else parts
    return tuple(parts) if len(parts) > 1 else parts[0]
