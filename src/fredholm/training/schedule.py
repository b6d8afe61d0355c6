"""The learning rate as a function of the step."""

import math
from typing import Literal

Decay = Literal["cosine", "linear"]
"""How the rate falls after its peak."""


def learning_rate(
    step: int, *, num_steps: int, warmup_steps: int, peak: float, final: float = 0.0, decay: Decay = "cosine"
) -> float:
    """Decay after a linear warm-up.

    lr(t) = peak (t + 1) / w                    t < w
    lr(t) = final + (peak - final) r(p)         t >= w,  p = (t - w) / (T - w)
    r(p) = (1 + cos(pi p)) / 2  or  1 - p

    Args:
        step: t, counted from 0; beyond ``num_steps`` the rate stays at ``final``.
        num_steps: T, steps of the whole run.
        warmup_steps: w < T.
        peak: the rate at the end of the warm-up.
        final: the rate that the decay approaches.
        decay: r, cosine or linear.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = min((step - warmup_steps) / max(num_steps - warmup_steps, 1), 1.0)
    share = 1 - progress if decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return final + (peak - final) * share
