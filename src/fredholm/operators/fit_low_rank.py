"""Low-rank approximation of a trained exact kernel, with its errors and lower bounds for every kernel of its form.

Legend
    K       the sampled kernel matrix of a head: κ at every pair of m points, (m·d, m·d), singular values σ_1 ≥ σ_2 ≥ …
    r       rank of Φᵀ Ψ; with a constant B the matrix fitted has rank r + d at most

The lower bound for kernels of rank r on these points is that of Eckart and Young, ‖K - K_r‖_F = (Σ_{i > r} σ_i²)^½. The
bound of ITNet (arXiv 2606.19538), eq. 214, ‖K‖_* / √r, lies above that, and is void where it exceeds ‖K‖_F.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple, cast, final

import torch
from torch import Tensor

from fredholm._settings import check_count, check_positive
from fredholm.domains import Domain, Points
from fredholm.evaluation import AUTO, Integral
from fredholm.kernels import MLP, LowRankMLP, PointInputs
from fredholm.kernels.perceptron.mlp import Activation
from fredholm.operators.integral import IntegralOperator

_NUMBERS_PER_STEP = 1 << 22  # approximate number of entries of κ in one step of the fit
_SIGNALS_PER_STEP = 8
_DRAWS = 4
_LARGEST_MATRIX = 2048  # largest number of rows of K, so that its singular values take seconds

Sample = Tensor | tuple[Tensor, Domain]
"""A signal `(B, N, C)` on `Sequence(N)`, or a pair of a signal and its domain."""


class Signal(NamedTuple):
    """One signal `(1, N, C)`, its domain, and the indices of the points that may be drawn."""

    u: Tensor
    domain: Points
    drawn: Tensor


class Split(NamedTuple):
    """Signals for the fit, and held-out signals (or held-out points of the only signal)."""

    train: list[Signal]
    test: list[Signal]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRankFit:
    """Errors of a low-rank kernel at held-out points, relative, in the Frobenius norm.

    Attributes:
        rank: r.
        kernel_error: of κ, one for each head.
        bound: lower bound for kernels of this form on these points: Eckart-Young at rank r, or r + d with a constant.
        rank_bound: Eckart-Young at rank r, without any constant.
        nuclear_bound: the paper's ‖K‖_* / (√r ‖K‖_F); void above 1.
        constant_error: error of the best constant matrix alone.
        integral_error: of the integral, over all heads.
    """

    rank: int
    kernel_error: tuple[float, ...]
    bound: tuple[float, ...]
    rank_bound: tuple[float, ...]
    nuclear_bound: tuple[float, ...]
    constant_error: tuple[float, ...]
    integral_error: float

    def __str__(self) -> str:
        lines = [f"rank {self.rank} a head: relative error of the integral {self.integral_error:.2e}"]
        lines += [
            f"  head {h}: error of κ {self.kernel_error[h]:.2e}, none of this form below {self.bound[h]:.2e}, "
            f"of this rank {self.rank_bound[h]:.2e}; the constant alone {self.constant_error[h]:.2e}; "
            f"nuclear bound {self.nuclear_bound[h]:.2e}"
            for h in range(len(self.kernel_error))
        ]
        return "\n".join(lines)


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
    """Replaces the trained `MLP` kernel of an operator by a fitted `LowRankMLP`, and reports the error.

    Φ, Ψ and B are fitted by Adam to the entries of κ, relative to their size, at pairs of points of one sample, drawn
    in every step. A fifth of the signals, or with one signal a quarter of its points, is held out for the report. W^O,
    W, the constant and the frequencies are copied; the given operator is left as it is.

    Args:
        operator: with a kernel of class `kernels.MLP`, not causal.
        data: signals like those that the operator gets, `(B, N, C)` on `Sequence(N)`, or pairs (signal, domain); sizes
            may differ.
        rank: r, per head.
        width: hidden units of Φ and Ψ.
        constant: whether to fit B.
        steps: number of steps of the fit.
        points: points drawn from a sample at a time, at most.
        learning_rate: of Adam; it falls to 0 along a cosine.
        generator: source of all randomness; None: torch's global one.

    Raises:
        TypeError: when the kernel is no `kernels.MLP`, or a number is of another type.
        ValueError: on a causal kernel, a rank or number out of range, no data, samples that the operator refuses or
            that hold NaN or infinite values, or a fit that diverges.
    """
    kernel = _checked(operator, steps, points, learning_rate)
    held = split(signals_of("fit_low_rank", operator, data), generator)
    fitted, low = _untrained(operator, kernel, rank, width, constant, generator)
    with torch.enable_grad():
        _fit(low, kernel, held.train, steps, points, learning_rate, generator)
    with torch.no_grad():
        report = _measured(low, kernel, held.test, points, generator)
    return fitted.train(operator.training), report


def _checked(operator: IntegralOperator, steps: int, points: int, learning_rate: float) -> MLP:
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
    check_count("fit_low_rank", "steps", steps, least=0)
    check_count("fit_low_rank", "points", points)
    check_positive("fit_low_rank", "learning_rate", learning_rate)
    return kernel


def _untrained(
    operator: IntegralOperator, kernel: MLP, rank: int, width: int, constant: bool, generator: torch.Generator | None
) -> tuple[IntegralOperator, LowRankMLP]:
    """The operator with an untrained low-rank kernel whose factors read the features that the kernel reads."""
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
    """Fits by Adam the standardised κ; its mean and standard deviation are put back into the factors at the end."""
    per_pair = kernel.num_heads * kernel.head_dim**2
    count = min(_SIGNALS_PER_STEP, max(1, _NUMBERS_PER_STEP // (points**2 * per_pair)))
    with torch.no_grad():
        sampled = kernel.head_matrices(*draw(signals, count, points, generator))
        mean = sampled.mean((0, 2, 3)) if low.constant is not None else torch.zeros_like(sampled[0, :, 0, 0])
        unit = (sampled - mean[:, None, None]).square().mean().sqrt()
        if low.constant is not None:
            low.constant.zero_()
    if not bool(unit.isfinite()):
        raise ValueError(
            "fit_low_rank: κ of the operator holds NaN or infinite values at points of the data; look at its "
            "parameters, and whether signals are as large as those that it was trained on"
        )
    optimiser = torch.optim.Adam(low.parameters(), lr=learning_rate)
    for step in range(steps if unit > 0 else 0):
        drawn = draw(signals, count, points, generator)
        with torch.no_grad():
            wanted = (kernel.head_matrices(*drawn) - mean[:, None, None]) / unit
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.zero_grad()
        loss = (low.head_matrices(*drawn) - wanted).square().mean()
        if not bool(loss.isfinite()):
            loss_text = f"the loss is {loss.item()} at step {step + 1}"
            raise ValueError(f"fit_low_rank: {loss_text}; lower the learning rate, which is {learning_rate:g}")
        loss.backward()
        optimiser.step()
    optimiser.zero_grad()
    with torch.no_grad():
        low.query_weight.mul_(unit.sqrt())
        low.key_weight.mul_(unit.sqrt())
        if low.constant is not None:
            low.constant.copy_(low.constant * unit + mean.unflatten(0, (low.constant.shape[0], -1)).mean(1))


def _measured(
    low: LowRankMLP, kernel: MLP, signals: list[Signal], points: int, generator: torch.Generator | None
) -> LowRankFit:
    """Errors on points of these signals, at most `points` of a signal at a time."""
    carried = low.rank + (0 if low.constant is None else kernel.head_dim)
    size = min(points, max(1, _LARGEST_MATRIX // kernel.head_dim))
    draws = [draw(signals, 1, size, generator) for _ in range(_DRAWS)]
    exact = [kernel.head_matrices(*drawn)[0].double() for drawn in draws]
    fitted = [low.head_matrices(*drawn)[0].double() for drawn in draws]
    mean = torch.cat([k.flatten(1, 2) for k in exact], dim=1).mean(1)[:, None, None]
    sigma = [torch.linalg.svdvals(k.transpose(2, 3).flatten(3).flatten(1, 2)) for k in exact]
    whole = _root_sum([_squared(k) for k in exact])

    def relative(squares: list[Tensor]) -> tuple[float, ...]:
        return tuple((_root_sum(squares) / whole.clamp_min(torch.finfo(whole.dtype).tiny)).tolist())

    return LowRankFit(
        rank=low.rank,
        kernel_error=relative([_squared(a - b) for a, b in zip(exact, fitted, strict=True)]),
        bound=relative([s[:, carried:].square().sum(1) for s in sigma]),
        rank_bound=relative([s[:, low.rank :].square().sum(1) for s in sigma]),
        nuclear_bound=relative([s.sum(1).square() / low.rank for s in sigma]),
        constant_error=relative([_squared(k - mean) for k in exact]),
        integral_error=_integral_error(low, kernel, signals[:_DRAWS], points),
    )


def _integral_error(low: LowRankMLP, kernel: MLP, signals: list[Signal], points: int) -> float:
    """Relative error of the integral over whole signals, at some of the held-out points."""
    errors, values = [], []
    for signal in signals:
        index = signal.drawn[:points]
        at = Points.derived(signal.domain, signal.domain.pos[:, index], signal.domain.weights[:, index])
        arguments = (signal.u, signal.domain, signal.u[:, index], at)
        exact, fitted = (AUTO.integrate(Integral(k, *arguments)).double() for k in (kernel, low))
        errors.append((exact - fitted).square().sum())
        values.append(exact.square().sum())
    return (_root_sum(errors) / _root_sum(values).clamp_min(torch.finfo(torch.float64).tiny)).item()


def _squared(matrices: Tensor) -> Tensor:
    return matrices.square().sum((1, 2, 3, 4))


def _root_sum(squares: list[Tensor]) -> Tensor:
    return torch.stack(squares).sum(0).sqrt()


def signals_of(name: str, operator: IntegralOperator, data: Iterable[Sample]) -> list[Signal]:
    """All signals of the data that have a point, one by one.

    Raises:
        ValueError, TypeError: on no data, or samples that the operator refuses; messages begin with `name`.
    """
    if isinstance(data, Tensor) or (isinstance(data, tuple) and any(isinstance(part, Domain) for part in data)):
        raise TypeError(f"{name}: data is a list of signals, or of pairs (signal, domain); got one; put it in a list")
    if not isinstance(data, Iterable):
        raise TypeError(f"{name}: data is a list of signals, or of pairs (signal, domain); got {type(data).__name__}")
    found = []
    for item in data:
        if isinstance(item, tuple) and len(item) != 2:
            raise TypeError(f"{name}: a sample is a signal, or a pair (signal, domain); got a tuple of {len(item)}")
        u, domain = item if isinstance(item, tuple) else (item, None)
        # the operator checks shapes as in a call; without queries it needs no query signal
        integral = operator.prepare(u, domain)
        u, domain = integral.u, integral.domain
        for b in range(u.shape[0]):
            pos, weights = (t[b] if t.ndim > n else t for t, n in ((domain.pos, 2), (domain.weights, 1)))
            exists = torch.ones(pos.shape[0]) if domain.mask is None else domain.mask.expand(u.shape[0], -1)[b]
            if not bool(u[b].isfinite().all()):
                raise ValueError(f"{name}: data holds a signal with NaN or infinite values; leave it out, or mask them")
            if bool(exists.any()):
                own = Points.derived(domain, pos[None], weights[None])
                found.append(Signal(u[b : b + 1].detach(), own, exists.nonzero()[:, 0]))
    if not found:
        raise ValueError(f"{name}: data holds no signal with a point; give at least one")
    if len({signal.domain.is_periodic for signal in found}) > 1:
        raise ValueError(f"{name}: some domains are periodic and some are not; use one kind")
    return found


def split(signals: list[Signal], generator: torch.Generator | None) -> Split:
    """Holds out a fifth of the signals; of a single signal a quarter of its points, if it has at least two."""
    if len(signals) > 1:
        order = torch.randperm(len(signals), generator=generator).tolist()
        count = max(1, len(signals) // 5)
        return Split([signals[i] for i in order[count:]], [signals[i] for i in order[:count]])
    (one,) = signals
    if one.drawn.shape[0] == 1:
        return Split([one], [one])
    order = torch.randperm(one.drawn.shape[0], generator=generator)
    shuffled, count = one.drawn[order.to(one.drawn.device)], max(1, order.shape[0] // 4)
    return Split([one._replace(drawn=shuffled[count:])], [one._replace(drawn=shuffled[:count])])


def draw(signals: list[Signal], count: int, points: int, generator: torch.Generator | None) -> tuple[Tensor, Points]:
    """Random points of random signals, `(count, m, C)`, and their domain; m is the same for each, at most `points`."""
    picked = torch.randint(len(signals), (count,), generator=generator).tolist()
    chosen = [signals[i] for i in picked]
    m = min(points, *(signal.drawn.shape[0] for signal in chosen))
    u, pos, weights = [], [], []
    for signal in chosen:
        order = torch.randperm(signal.drawn.shape[0], generator=generator)[:m]
        index = signal.drawn[order.to(signal.drawn.device)]
        u.append(signal.u[:, index])
        pos.append(signal.domain.pos[:, index])
        weights.append(signal.domain.weights[:, index])
    return torch.cat(u), Points.derived(chosen[0].domain, torch.cat(pos), torch.cat(weights))
