"""Kernel ridge regression whose centres are all examples, with left-out predictions in closed form.

Legend
    Y (n, c)   regression targets              K (n, n)   a kernel between the examples
    Ȳ (c,)     their column means              λ > 0      the penalty

    A = G (Y - Ȳ),  G = (K + λI)⁻¹;   without example i the fit predicts  Y_i - E_i / G_ii,
    E_i = A_i + (Y_i - Ȳ) Σ_j G_ij / (n - 1),  which leaves i out of Ȳ too; without a group, blocks of G replace G_ii

With weights w of the examples (`example_weights.py`) λI is λ diag(1/w), since Σ_i w_i (Y_i - f_i)² is minimised, Ȳ and
mean squares of errors are weighted, and w_i / (Σw - w_i) replaces 1 / (n - 1).

A smaller λ, which loses more to rounding, is preferred only if it lowers the errors by a thousandth.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.models.fitted.ridge_head import left_out_mean_shift

PENALTIES = torch.logspace(-5, 2, 15, dtype=torch.float64)
"""Candidates of λ, in units of κ(x, x)."""
_BETTER = 0.999
"""A smaller λ is taken if its error is at most this multiple of a larger one's."""
_OUTPUTS = 512
"""Outputs of an example, times penalties, computed at a time."""


@final
class KernelFit(NamedTuple):
    """The mean square of the left-out errors, λ, A, and the left-out predictions less Ȳ."""

    error: float
    penalty: float
    dual: Tensor
    left_out: Tensor


def best_fit(
    kernel: Tensor, wanted: Tensor, members: list[Tensor] | None, penalties: Tensor, weights: Tensor | None = None
) -> KernelFit:
    """The fit with all examples as centres and the best of some penalties.

    Args:
        kernel: between the examples, `(n, n)`.
        wanted: Y - Ȳ, `(n, c)`.
        members: groups of examples that are left out together; None: each by itself.
        penalties: λ, ascending.
        weights: w, float64 `(n,)`; None: all are 1.
    """
    return best_fits(kernel, [wanted], members, penalties, weights)[0]


def best_fits(
    kernel: Tensor,
    parts: Sequence[Tensor],
    members: list[Tensor] | None,
    penalties: Tensor,
    weights: Tensor | None = None,
) -> list[KernelFit]:
    """`best_fit` for each of several Y, with one decomposition of the kernel."""
    if weights is None:
        values, vectors = torch.linalg.eigh(kernel)
    else:
        # G = √w (√w K √w + λI)⁻¹ √w
        root = weights.sqrt()
        values, vectors = torch.linalg.eigh(root[:, None] * kernel * root)
        vectors = root[:, None] * vectors
    return [_best_of(values.clamp_min(0), vectors, wanted, members, penalties, weights) for wanted in parts]


def _best_of(
    values: Tensor,
    vectors: Tensor,
    wanted: Tensor,
    members: list[Tensor] | None,
    penalties: Tensor,
    weights: Tensor | None,
) -> KernelFit:
    """The best fit, where G is V (values + λ)⁻¹ Vᵀ for the vectors V."""
    projected, of_one, best = vectors.T @ wanted, vectors.sum(0), None
    moved, square = left_out_mean_shift(wanted, members, weights), vectors.square()
    for some in penalties.flip(0).to(values).split(max(1, _OUTPUTS // wanted.shape[1])):
        shrunk = 1 / (values + some[:, None])
        dual = (vectors @ (shrunk[..., None] * projected).transpose(0, 1).flatten(1)).unflatten(1, (len(some), -1))
        without = dual + (vectors @ (shrunk * of_one).T)[..., None] * moved[:, None]
        if members is None:
            errors = without / (square @ shrunk.T)[..., None]
        else:
            errors = torch.empty_like(dual)
            for own in members:
                inverse = (vectors[own] * shrunk[:, None]) @ vectors[own].T
                errors[own] = torch.linalg.solve(inverse, without[own].transpose(0, 1)).transpose(0, 1)
        squares = errors.square()
        means = squares.mean((0, 2)) if weights is None else (weights @ squares.mean(2)) / weights.sum()
        for k, error in enumerate(means.tolist()):
            if best is None or error < _BETTER * best.error:
                best = KernelFit(error, float(some[k]), dual[:, k].clone(), wanted - errors[:, k])
    assert best is not None
    return best


def better(best: KernelFit | None, other: KernelFit) -> KernelFit:
    """The fit with the smaller error; the first of two alike."""
    return other if best is None or other.error < best.error else best


def members_of(groups: Tensor | None, some: Tensor | None = None) -> list[Tensor] | None:
    """Indices of the members of each group among some examples; None: each is left out by itself."""
    if groups is None:
        return None
    own = groups if some is None else groups[some]
    numbers = own.unique()
    # a random sample may be of one group alone, which would leave out all examples
    return [(own == number).nonzero()[:, 0] for number in numbers] if len(numbers) > 1 else None
