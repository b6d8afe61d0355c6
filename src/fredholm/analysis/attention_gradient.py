"""Attention as a gradient step: the exact identity of linear attention, and the expansion of softmax attention.

Legend
    Φ, r       features of N samples, (N, K), and residuals y - Φ c, (N, m)       ω    mass of a sample, p = ω / Σ ω
    Q          queries, (H, K), a row a head        s_hi = Q_h·Φ_i                 τ    temperature
    g          Σ_i ω_i Φ_i r_iᵀ, (K, m): minus the gradient of ½ Σ_i ω_i ‖r_i‖² by c

    linear:    Õ = Σ_i ω_i s_hi r_i = Q g                                             (theorems 3 and 14, exact)
    softmax:   O(τ) = r̄ + (1/τ) Σ_i p_i (s_hi - s̄_h) r_i + R(τ),   r̄ = Σ p_i r_i, s̄ = Σ p_i s_i      (theorem 16)
    bound:     |R(τ)| ≤ range(s_h)² range(r) / (8 τ²), entry by entry, for every τ > 0

The bound. O is the mean of r under weights p_i exp(β s_i) / Z at β = 1/τ, and O''(β) is the mean under them of
(s - E s)² (r - E r). That is at most Var(s) range(r), and Var(s) ≤ range(s)² / 4. With |s| ≤ B and |r| ≤ R the bound
is at most B² R / τ².

Source: Neural Fields Meet Attention, theorems 3, 6, 14 and 16, appendix A.4. Deviations: weights and vector values; a
constant in the bound, where the paper has one that it leaves open and lets grow with N; only r has to be centred, as
Σ p_i s̄ r_i = s̄ r̄. Where r is not, the first-order term is the gradient of the centred features, and
`SoftmaxExpansion.gradient` adds the missing term.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm._settings import check_positive


def negative_gradient(features: Tensor, residual: Tensor, weights: Tensor | None = None) -> Tensor:
    """g = Σ_i ω_i Φ_i r_iᵀ, `(..., K, m)`: minus the gradient of ½ Σ_i ω_i ‖y_i - cᵀ Φ_i‖² by c.

    Args:
        features: Φ, `(..., N, K)`.
        residual: r = y - Φ c, `(..., N, m)`.
        weights: ω, `(..., N)`; None: 1 each.

    Raises:
        ValueError: on shapes that do not fit.
    """
    _check(features, residual, weights)
    return features.mT @ (residual if weights is None else weights[..., None] * residual)


def preconditioned_step(
    queries: Tensor, readout: Tensor, features: Tensor, residual: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Δc = R Q g, `(..., K, m)`: the update by H heads of linear attention with queries Q and readout R, at η = 1.

    With R = Q⁺ it is g where Q has full column rank K, which needs H >= K; with fewer heads it is the projection of g
    on their span. (The paper's Qᵀ is this Q; it asks for full row rank of its own in one place and for full column rank
    in another.)

    Args:
        queries: Q, `(H, K)`.
        readout: R, `(K, H)`.
        features, residual, weights: as in `negative_gradient`.
    """
    return readout @ (queries @ negative_gradient(features, residual, weights))


class SoftmaxExpansion(NamedTuple):
    """O(τ) and its parts, `(..., H, m)` each: output = mean + first_order + remainder."""

    output: Tensor
    """O(τ), softmax attention."""
    mean: Tensor
    """r̄, for every head."""
    first_order: Tensor
    """(1/τ) Σ_i p_i (s_i - s̄) r_i."""
    remainder: Tensor
    """R(τ), the difference."""
    bound: Tensor
    """range(s)² range(r) / (8 τ²), at least ``|R(τ)|``."""
    gradient: Tensor
    """M τ (O - r̄) + M s̄ r̄ with M = Σ ω: Q g up to M τ R(τ), which is O(1/τ)."""


def softmax_expansion(
    queries: Tensor, features: Tensor, residual: Tensor, temperature: float, weights: Tensor | None = None
) -> SoftmaxExpansion:
    """Softmax attention at a temperature and its expansion; arguments as in `preconditioned_step`.

    In float64 the remainder keeps digits up to τ of about 10⁶ times the range of s.

    Raises:
        ValueError: on a temperature that is not positive and finite, shapes that do not fit, or no mass at all.
    """
    check_positive("analysis.softmax_expansion", "temperature", temperature)
    _check(features, residual, weights)
    weights = torch.ones_like(features[..., 0]) if weights is None else weights
    mass = weights.sum(-1, keepdim=True)
    if not bool((mass > 0).all()):
        raise ValueError("analysis.softmax_expansion: a set without mass has no softmax; leave it out")
    shares = (weights / mass)[..., None, :]  # (..., 1, N)
    scores = queries @ features.mT  # (..., H, N)
    density = torch.softmax(scores / temperature + shares.log(), dim=-1)
    output = density @ residual
    mean = (shares @ residual).expand_as(output)
    centre = (shares * scores).sum(-1, keepdim=True)  # s̄
    first_order = (shares * (scores - centre)) @ residual / temperature
    spread = _range(scores, shares, -1)[..., None].square() * _range(residual, shares.mT, -2)[..., None, :]
    scale = mass[..., None]
    return SoftmaxExpansion(
        output,
        mean,
        first_order,
        output - mean - first_order,
        spread / (8 * temperature**2),
        scale * (temperature * (output - mean) + centre * mean),
    )


def decay_exponent(temperatures: Tensor, errors: Tensor) -> float:
    """Exponent p of errors ~ τ^-p: minus the least-squares slope of log errors over log temperatures.

    Args:
        temperatures: `(T,)`, > 0, at least two.
        errors: `(T,)`, > 0.

    Raises:
        ValueError: on other shapes or values.
    """
    if temperatures.ndim != 1 or temperatures.shape != errors.shape or len(errors) < 2:
        raise ValueError(
            f"analysis.decay_exponent: needs two vectors of one length >= 2; got {tuple(temperatures.shape)} and "
            f"{tuple(errors.shape)}"
        )
    if not bool((temperatures > 0).all()) or not bool((errors > 0).all()):
        raise ValueError("analysis.decay_exponent: temperatures and errors must be > 0, to have logarithms")
    x, y = temperatures.double().log(), errors.double().log()
    x, y = x - x.mean(), y - y.mean()
    return -((x * y).sum() / x.square().sum()).item()


def _range(values: Tensor, shares: Tensor, dim: int) -> Tensor:
    """Largest minus least value among samples with mass."""
    counted = shares > 0
    largest = torch.where(counted, values, -torch.inf).amax(dim)
    return largest - torch.where(counted, values, torch.inf).amin(dim)


def _check(features: Tensor, residual: Tensor, weights: Tensor | None) -> None:
    fits = features.ndim >= 2 and residual.ndim >= 2 and features.shape[:-1] == residual.shape[:-1]
    if not fits or (weights is not None and weights.shape != features.shape[:-1]):
        got = "" if weights is None else f" and weights {tuple(weights.shape)}"
        raise ValueError(
            "analysis: features (..., N, K), residual (..., N, m) and weights (..., N) must agree; got "
            f"{tuple(features.shape)}, {tuple(residual.shape)}{got}"
        )
