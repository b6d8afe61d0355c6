"""Logistic regression on coordinates, its penalty chosen by cross-validation.

Legend
    x (d,)     the coordinates of an example                 x̄ (d,)   their means over the training examples
    W (d, c)   weights                                       b (c,)   constants
    ℓ          loss of an example's logits, a cross-entropy, from a `LogitRegressand`
    λ > 0      the penalty

    logits z = (x - x̄) W + b,   W and b of the smallest  Σ_i ℓ(z_i, y_i) + λ/2 ‖W‖²

All sums and means over examples are weighted by their weights (`example_weights.py`).

λ is one of PENALTIES, the one with the smallest mean loss of left-out examples. Examples are divided into FOLDS parts,
which keep groups whole, and left out part by part. At most CHOSEN examples are used to choose λ, which falls until the
loss no longer does. The minimum is approached by at most STEPS steps of L-BFGS
(Liu and Nocedal, 1989).
"""

from typing import final

import torch
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm.models.fitted.example_weights import check_weights, mean_of, some_of, weighed
from fredholm.models.fitted.kernel_choice import FOLDS
from fredholm.models.fitted.kernel_machine import CHOSEN
from fredholm.models.fitted.ridge_head import LogitRegressand, dealt, some_drawn

PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(6, -2, -1))
"""Candidates of λ, descending from 1,000 to about 0.3."""
STEPS = 100
TOLERANCE = 1e-5
"""Largest entry of the mean gradient at which the steps stop."""
MOST = 2**28
"""Most examples times coordinates times logits of a fit."""


@final
class LogisticHead(nn.Module):
    """A linear map from coordinates to logits, fitted by logistic regression.

    Args:
        num_coordinates: d.
        num_outputs: number of logits, such as classes.

    Attributes:
        weight: `(num_outputs, d)`; 0 before a fit. A parameter, so that gradient steps may continue from the fit.
        bias: `(num_outputs,)`, b - x̄ W.
        relevance: `(d,)`, the deviation of each coordinate times the norm of its weights, scaled to a maximum of 1.
    """

    relevance: Tensor

    def __init__(self, num_coordinates: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_outputs, num_coordinates))
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        self.register_buffer("relevance", torch.zeros(num_coordinates))

    def forward(self, coordinates: Tensor) -> Tensor:
        """Maps `(B, d)` to logits `(B, num_outputs)`, which are 0 before a fit."""
        with without_autocast(coordinates):
            # in float64, as the kernel machine, so that rounding does not depend on the batch
            x, weight = coordinates.to(self.weight.dtype).double(), self.weight.double()
            return (x @ weight.T + self.bias.double()).to(self.weight.dtype)

    def can_fit(self, count: int) -> bool:
        """Whether a fit to `count` examples is affordable."""
        return count * self.weight.numel() <= MOST

    @torch.no_grad()
    def fit(
        self,
        x: Tensor,
        targets: Tensor,
        regressand: LogitRegressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits weight and bias; random folds come from the global torch seed.

        Args:
            x: coordinates `(n, d)`; n at least 2.
            targets: `(n, ...)`, as the regressand takes them.
            regressand: kind of the targets.
            groups: int64 `(n,)`, groups that are left out together, two at least; None: each example by itself.
            weights: float64 `(n,)`, above 0, weights of the examples; None: all are 1.

        Returns:
            Logits of each example by a fit without its part, with the chosen λ, float64 `(n, num_outputs)`.
        """
        check_weights("models.LogisticHead", weights, len(x))
        mean = mean_of(x.double(), weights)
        examples = _Examples(x.double() - mean, targets, regressand, dealt(len(x), groups, FOLDS, x.device), weights)
        some = some_drawn(len(x), groups, CHOSEN).to(x.device)
        drawn = examples if bool(some.all()) else examples.part(some)
        start = x.new_zeros(len(self.bias), x.shape[1] + 1, dtype=torch.float64)
        starts = start.expand(FOLDS, *start.shape)
        best, left_out = None, start[:, 0]
        for penalty in PENALTIES:
            starts, logits = drawn.left_out(starts, penalty)
            error = float(mean_of(regressand.losses(logits, drawn.targets), drawn.weights))
            if best is not None and not error < best[0]:
                break
            best, left_out = (error, penalty, starts), logits
        assert best is not None
        _, penalty, starts = best
        if drawn is not examples:
            _, left_out = examples.left_out(starts, penalty)
        solution = examples.solve(starts.mean(0), penalty, slice(None))
        weight, bias = solution[:, :-1], solution[:, -1]
        self.weight.copy_(weight)
        self.bias.copy_(bias - weight @ mean)
        relevance = weight.norm(dim=0) * mean_of(examples.x.square(), weights).sqrt()
        self.relevance.copy_(relevance / relevance.max().clamp_min(torch.finfo(torch.float32).tiny))
        return left_out

    @torch.no_grad()
    def scale(self, share: float) -> None:
        """Multiplies the logits."""
        self.weight.mul_(share)
        self.bias.mul_(share)


@final
class _Examples:
    """Centred coordinates of examples, their targets and weights, and the part that each belongs to."""

    def __init__(
        self, x: Tensor, targets: Tensor, regressand: LogitRegressand, fold: Tensor, weights: Tensor | None
    ) -> None:
        self.x, self.targets, self.regressand, self.fold, self.weights = x, targets, regressand, fold, weights

    def part(self, some: Tensor) -> "_Examples":
        """Returns the examples of a mask."""
        own = self.x[some], self.targets[some], self.regressand, self.fold[some], some_of(self.weights, some)
        return _Examples(*own)

    def left_out(self, starts: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
        """Solutions `(FOLDS, c, d + 1)` without each part, and logits of the parts left out `(n, c)`."""
        found, logits = starts.clone(), self.x.new_zeros(len(self.x), starts.shape[1])
        for k in self.fold.unique().tolist():
            own = self.fold == k
            found[k] = self.solve(starts[k], penalty, ~own)
            logits[own] = _logits(self.x[own], found[k])
        return found, logits

    def solve(self, start: Tensor, penalty: float, which: Tensor | slice) -> Tensor:
        """Returns W and b of some examples, `(c, d + 1)`, from a start."""
        x, targets = self.x[which], self.targets[which]
        if not len(x):
            return start
        weights = None if self.weights is None else self.weights[which]
        total = len(x) if weights is None else weights.sum()
        solution = start.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [solution], max_iter=STEPS, tolerance_grad=TOLERANCE, history_size=20, line_search_fn="strong_wolfe"
        )

        def objective() -> Tensor:
            optimizer.zero_grad()
            losses = weighed(self.regressand.losses(_logits(x, solution), targets), weights)
            value = (losses.sum() + penalty / 2 * solution[:, :-1].square().sum()) / total
            value.backward()
            return value

        with torch.enable_grad():
            optimizer.step(objective)
        return solution.detach()


def _logits(x: Tensor, solution: Tensor) -> Tensor:
    return x @ solution[:, :-1].T + solution[:, -1]
