"""An exponential moving average of a model."""

import copy
from typing import final

import torch
from torch import nn


def warmed_decay(num_updates: int, decay: float) -> float:
    """The decay of update t, counted from 0: min(decay, (1 + t) / (10 + t)).

    The warm-up lets the average leave the initial weights behind within a short run.
    """
    return min(decay, (1 + num_updates) / (10 + num_updates))


@final
class ExponentialMovingAverage:
    """Keeps w_avg <- d_t w_avg + (1 - d_t) w with d_t = ``warmed_decay(t, decay)``; ITNet H.4 uses 0.9999.

    Args:
        model: the trained model; its copy starts equal to it. Buffers are copied, not averaged.
        decay: in [0, 1).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        """The averaged model, in evaluation mode."""
        self._decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, num_updates: int) -> None:
        """Takes in ``model`` after optimiser step number ``num_updates``, counted from 0."""
        weight = 1 - warmed_decay(num_updates, self._decay)
        for averaged, current in zip(self.model.parameters(), model.parameters(), strict=True):
            averaged.lerp_(current, weight)
        for averaged, current in zip(self.model.buffers(), model.buffers(), strict=True):
            averaged.copy_(current)
