"""Domains with all masks, weights and orders of points that kernels must respect."""

import torch
from torch import Tensor

from fredholm.domains import Domain, Grid, Points, Sequence, Union


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64)


def keep(*shape: int) -> Tensor:
    mask = torch.rand(*shape) > 0.4
    mask[..., 0] = True
    return mask


def holes(*shape: int) -> Tensor:
    """A log-density with hidden pairs, which include the whole second row."""
    bias = torch.randn(*shape, dtype=torch.float64).masked_fill(torch.rand(*shape) > 0.7, -torch.inf)
    bias[..., 1, :] = -torch.inf
    return bias


def domain(name: str) -> Domain:
    torch.manual_seed(0)
    return {
        "sequence": lambda: Sequence(7),
        "one point": lambda: Sequence(1),
        "no point": lambda: Sequence(0),
        "grid": lambda: Grid(2, 3, mask=keep(6)),
        "masked": lambda: Sequence(7, mask=keep(2, 7)),
        "nothing exists": lambda: Sequence(5, mask=torch.tensor([[True] * 5, [False] * 5])),
        "weights": lambda: Points(uniform(7, 2), weights=uniform(7)),
        "weights per entry, some 0": lambda: Points(uniform(2, 7, 2), weights=uniform(2, 7), mask=keep(2, 7)),
        "balanced union": lambda: Union(Grid(5), Grid(2), mass=(0.3, 0.7)),
        "times": lambda: Sequence(times=uniform(6).sort().values),
        "times that coincide": lambda: Sequence(times=torch.tensor([0.0, 0.5, 0.5, 1.0], dtype=torch.float64)),
        "pairs kept": lambda: Sequence(7).weigh_pairs(keep(7, 7)),
        "pairs kept per entry, rows empty": lambda: Sequence(7).weigh_pairs(holes(2, 7, 7) > -torch.inf),
        "pairs weighed": lambda: Sequence(7).weigh_pairs(holes(7, 7)),
        "pairs weighed per head": lambda: Sequence(7, mask=keep(2, 7)).weigh_pairs(holes(2, 4, 7, 7)),
        "pairs weighed on weights": lambda: Points(uniform(7, 2), weights=uniform(7)).weigh_pairs(holes(2, 7, 7)),
    }[name]()


DOMAINS = [
    "sequence", "one point", "no point", "grid", "masked", "nothing exists", "weights", "weights per entry, some 0",
    "balanced union", "times", "times that coincide",
]  # fmt: skip
PAIRS = [
    "pairs kept", "pairs kept per entry, rows empty", "pairs weighed", "pairs weighed per head",
    "pairs weighed on weights",
]  # fmt: skip
