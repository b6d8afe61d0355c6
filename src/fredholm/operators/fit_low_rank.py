"""A trained exact kernel made low-rank."""

import math
from collections.abc import Iterable
from typing import cast

import torch

from fredholm.kernels import MLP, LowRankMLP, PointInputs
from fredholm.kernels.perceptron.mlp import Activation
from fredholm.operators.integral import IntegralOperator
from fredholm.operators.low_rank_fit import LowRankFit, measured
from fredholm.operators.sampled_signals import Sample, Signal, draw, signals_of, split

_NUMBERS_PER_STEP = 1 << 22  # entries of κ that a step of the fit looks at, about
_SIGNALS_PER_STEP = 8


def fit_low_rank(
    operator: IntegralOperator,
    data: Iterable[Sample],
    rank: int,
    *,
    width: int = 128,
    constant: bool = True,
    steps: int = 300,
    points: int = 32,
    learning_rate: float = 1e-2,
    generator: torch.Generator | None = None,
) -> tuple[IntegralOperator, LowRankFit]:
    """An operator with a `LowRankMLP` in place of its trained `MLP` kernel, and how far the two are apart.

    Φ, Ψ and B are fitted by Adam to the entries of κ, relative to their size, at pairs of points drawn anew for every
    step within one sample. A fifth of the signals, or with one signal a quarter of its points, is kept for the report.
    W^O, W, the constant and the frequencies are copied; the operator given is left as it is.

    Args:
        operator: with a kernel of class `kernels.MLP`, not causal.
        data: signals as the operator meets them, `(B, N, C)` on `Sequence(N)`, or pairs of one and its domain; sizes
            may differ.
        rank: r, per head.
        width: hidden units of Φ and Ψ.
        constant: whether B is there.
        steps: of the fit.
        points: points drawn from a sample at a time, at most.
        learning_rate: of Adam; it falls to 0 along a cosine.
        generator: source of all randomness; None: torch's global one.

    Raises:
        TypeError: when the kernel is no `kernels.MLP`.
        ValueError: on a causal kernel, a rank or number out of range, no data, or samples that the operator refuses.
    """
    kernel = _checked(operator, steps, points)
    held = split(signals_of("fit_low_rank", operator, data), generator)
    fitted, low = _untrained(operator, kernel, rank, width, constant, generator)
    with torch.enable_grad():
        _fit(low, kernel, held.train, steps, points, learning_rate, generator)
    with torch.no_grad():
        report = measured(low, kernel, held.test, points, generator)
    return fitted.train(operator.training), report


def _checked(operator: IntegralOperator, steps: int, points: int) -> MLP:
    kernel = getattr(operator, "kernel", None)
    if not isinstance(operator, IntegralOperator) or not isinstance(kernel, MLP):
        raise TypeError(
            f"fit_low_rank: expected an IntegralOperator with a kernels.MLP; "
            f"got {type(operator).__name__} with {type(kernel).__name__}"
        )
    if kernel.is_causal:
        raise ValueError(
            "fit_low_rank: the kernel is causal, and a causal low-rank kernel takes the mean over the past instead of "
            "the share of the whole; fit the same kernel without is_causal"
        )
    if steps < 0 or points < 1:
        raise ValueError(f"fit_low_rank: steps must be >= 0 and points >= 1; got {steps} and {points}")
    return kernel


def _untrained(
    operator: IntegralOperator, kernel: MLP, rank: int, width: int, constant: bool, generator: torch.Generator | None
) -> tuple[IntegralOperator, LowRankMLP]:
    """The operator round a low-rank kernel that reads of each point what the kernel reads, alone or with the other."""
    reads, seed = kernel.inputs, int(torch.randint(1 << 31, (), generator=generator))
    both = reads.relative_position or reads.distance
    inputs = PointInputs(
        query_position=reads.query_position or both,
        key_position=reads.key_position or both,
        query_content=reads.query_content or reads.product,
        key_content=reads.key_content or reads.product,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        low = LowRankMLP(
            kernel.in_dim,
            kernel.num_heads,
            kernel.frequencies.shape[1],
            rank=rank,
            width=width,
            activation=cast(Activation, kernel.activation),
            inputs=inputs,
            num_frequencies=kernel.num_frequencies,
            head_shared=kernel.head_shared,
            constant=constant,
            epsilon=1.0,
        )
        fitted = IntegralOperator(
            low,
            residual=operator.residual_weight is not None,
            bias=operator.bias is not None,
            output_projection=operator.output_weight is not None,
        ).to(kernel.output_weight)
    with torch.no_grad():
        low.features.frequencies.copy_(kernel.frequencies)
        for name in ("output_weight", "residual_weight", "bias"):
            if (own := getattr(operator, name)) is not None:
                getattr(fitted, name).copy_(own)
    return fitted, low


def _fit(
    low: LowRankMLP,
    kernel: MLP,
    signals: list[Signal],
    steps: int,
    points: int,
    learning_rate: float,
    generator: torch.Generator | None,
) -> None:
    """Adam on κ less its mean, in the unit of its standard deviation, which goes back into the factors at the end."""
    per_pair = kernel.num_heads * kernel.head_dim**2
    count = min(_SIGNALS_PER_STEP, max(1, _NUMBERS_PER_STEP // (points**2 * per_pair)))
    with torch.no_grad():
        sampled = kernel.head_matrices(*draw(signals, count, points, generator))
        mean = sampled.mean((0, 2, 3)) if low.constant is not None else torch.zeros_like(sampled[0, :, 0, 0])
        unit = (sampled - mean[:, None, None]).square().mean().sqrt()
        if low.constant is not None:
            low.constant.zero_()
    optimiser = torch.optim.Adam(low.parameters(), lr=learning_rate)
    for step in range(steps if unit > 0 else 0):
        drawn = draw(signals, count, points, generator)
        with torch.no_grad():
            wanted = (kernel.head_matrices(*drawn) - mean[:, None, None]) / unit
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.zero_grad()
        (low.head_matrices(*drawn) - wanted).square().mean().backward()
        optimiser.step()
    optimiser.zero_grad()
    with torch.no_grad():
        low.query_weight.mul_(unit.sqrt())
        low.key_weight.mul_(unit.sqrt())
        if low.constant is not None:
            low.constant.copy_(low.constant * unit + mean.unflatten(0, (len(low.constant), -1)).mean(1))
