"""The distribution that points are drawn from: a proposal, and some of the measure itself. Legend: `nodes.py`."""

import math

import torch
from torch import Tensor


def log_mixture(logits: Tensor, mass: Tensor, uniform_share: float) -> Tensor:
    """log p with p = (1 - ε) softmax(ℓ + log ω) + ε ω / Σω, in at least float32, along the last axis.

    However far the logits go, ω / p <= Σω / ε. Points of mass 0 get a log p that is very low, and finite, so that its
    gradient is 0 and not NaN.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    floor = torch.finfo(dtype).min / 8
    log_mass = torch.where(mass > 0, mass, 1.0).log().to(dtype)
    log_mass = torch.where(mass > 0, log_mass, floor)
    measure = torch.log_softmax(log_mass, dim=-1) + math.log(uniform_share)
    proposed = torch.log_softmax((logits.to(dtype) + log_mass).clamp_min(floor), dim=-1) + math.log1p(-uniform_share)
    return torch.logaddexp(proposed, measure)
