"""The learning rate as a function of the step."""

import math


def learning_rate(step: int, *, num_steps: int, warmup_steps: int, peak: float, final: float = 0.0) -> float:
    """Cosine decay after a linear warm-up.

    lr(t) = peak (t + 1) / w                                            t < w
    lr(t) = final + (peak - final) (1 + cos(pi (t - w) / (T - w))) / 2  t >= w

    Args:
        step: t, counted from 0; beyond ``num_steps`` the rate stays at ``final``.
        num_steps: T, steps of the whole run.
        warmup_steps: w < T.
        peak: the rate at the end of the warm-up.
        final: the rate that the decay approaches.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = min((step - warmup_steps) / max(num_steps - warmup_steps, 1), 1.0)
    return final + (peak - final) * (1 + math.cos(math.pi * progress)) / 2
