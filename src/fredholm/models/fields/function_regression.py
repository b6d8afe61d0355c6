"""Kernel ridge regression from functions to functions, in closed form, with penalty and kernel chosen by left-out
errors.

Legend
    a (D,)           a function by its m values at each of N places, D = N m        a_1..a_n  those of training
    u (E,)           its target function, likewise                                  ū  the mean of u_1..u_n
    ‖a‖² = |a|² / D  mean square, ⟨a, b⟩ likewise                                   ā  the mean of a_1..a_n
    ℓ > 0            length; ∞: the kernel is κ_∞                                   λ > 0  the penalty
    K (n, n)         κ(a_i, a_j);  H = I - 1/n the projection off the mean

    κ_∞(a, b) = ⟨a, b⟩                       κ_ℓ(a, b) = (1 + ‖a - b‖² / ℓ²)^-1/2
    f(a) = ū + Σ_i (κ(a, a_i) - κ̄_i) α_i,    α = (HKH + λI)⁻¹ H u,   κ̄_i = Σ_j κ(a_j, a_i) / n

With κ_∞ this is a linear integral operator, f(a)(x) = ū(x) + ∫ k(x, y) (a(y) - ā(y)) dy with the kernel
k(x, y) = Σ_i α_i(x) a_i(y), the one with the least penalty among equally good fits. ℓ is one of LENGTHS, in units of
the median distance between training functions, or ∞. ℓ and λ minimise the mean square of left-out errors, over at most
CHOSEN functions and COLUMNS target values. λ is chosen anew with all functions, the largest one that is about as good
(AS_GOOD).

Source: Batlle, Darcy, Hosseini, Owhadi, Kernel methods are competitive for operator learning (J. Comput. Phys. 2024).
Deviations: no principal components; the inverse multiquadric in place of Matérn's kernel, and κ_∞ as a further
candidate; outputs at other points by interpolation, by cubics on a grid.
"""

import dataclasses
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._precision import at_least_float32, without_autocast
from fredholm._settings import check_count
from fredholm.domains import Domain, Points, UnitGrid, whole_grid
from fredholm.encoders.function import FunctionBatch, interpolate
from fredholm.models.closed_form_model import ClosedFormModel
from fredholm.models.fitted.ridge_head import check_groups

LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Candidates of ℓ besides ∞, in units of the median distance."""
PENALTIES = torch.logspace(-12, 3, 31, dtype=torch.float64)
"""Candidates of λ, in multiples of the mean eigenvalue of HKH."""
AS_GOOD = 1.001
"""A larger λ is taken if its error is at most this multiple of the smallest."""
CHOSEN, COLUMNS = 512, 256
"""Most functions and target values by which ℓ is chosen, and most target values by which λ is chosen."""
_ROUNDING = 1e-13
"""Squared distance, relative to the mean square of functions, that rounding may leave between equal functions."""


@final
class FunctionRegression(ClosedFormModel):
    """Predicts functions by a kernel on distances to training functions, or by a linear operator; in closed form.

    Args:
        config: grids of the input and target functions, and numbers of functions and channels.

    Attributes:
        functions: float64 `(num_functions, N * num_channels)`, the training functions; unused rows are 0.
        dual: α, float64 `(num_functions, M * num_outputs)`, 0 before a fit.
        offset: ū - Σ κ̄_i α_i, float64 `(M * num_outputs,)`.
        rate: 1 / ℓ, a float64 scalar; 0 before a fit.
        penalty: λ, a float64 scalar; 1 before a fit.
        error: root mean square of left-out errors relative to that of predicting the mean, a float64 scalar; NaN
            before a fit, and not saved.
    """

    functions: Tensor
    dual: Tensor
    offset: Tensor
    rate: Tensor
    penalty: Tensor
    error: Tensor
    given_pos: Tensor
    target_pos: Tensor

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        """Sizes; `given` and `target` are grids, or numbers of points that all functions share."""

        given: UnitGrid | int
        """Points of the input functions: N."""
        target: UnitGrid | int
        """Points of the target functions: M."""
        pos_dim: int
        """Number of coordinates of a point."""
        num_channels: int
        """Number m of values of an input function at a point."""
        num_outputs: int
        """Number of values of a target function at a point."""
        num_functions: int
        """Most training functions n."""
        is_periodic: bool = False
        """Whether functions are periodic in the unit box."""

        def __post_init__(self) -> None:
            name = "models.FunctionRegression"
            for what in ("pos_dim", "num_channels", "num_outputs", "num_functions"):
                check_count(name, what, getattr(self, what))
            for what in ("given", "target"):
                places = getattr(self, what)
                if not isinstance(places, UnitGrid):
                    check_count(name, what, places)
                elif len(places.shape) != self.pos_dim:
                    raise ValueError(
                        f"{name}: pos_dim is {self.pos_dim}, but {what} is a grid of {len(places.shape)} axes; make "
                        "them agree"
                    )

        @property
        def num_inputs(self) -> int:
            """Number of values of an input function: D."""
            return _count(self.given) * self.num_channels

        @property
        def num_targets(self) -> int:
            """Number of values of a target function: E."""
            return _count(self.target) * self.num_outputs

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        given, target = _count(config.given), _count(config.target)
        wide, n = torch.float64, config.num_functions
        # float64, since large terms of both signs cancel
        self.register_buffer("functions", torch.zeros(n, config.num_inputs, dtype=wide))
        self.register_buffer("dual", torch.zeros(n, config.num_targets, dtype=wide))
        self.register_buffer("offset", torch.zeros(config.num_targets, dtype=wide))
        self.register_buffer("rate", torch.zeros((), dtype=wide))
        self.register_buffer("penalty", torch.ones((), dtype=wide))
        self.register_buffer("error", torch.tensor(torch.nan, dtype=wide), persistent=False)
        for name, places, count in (("given_pos", config.given, given), ("target_pos", config.target, target)):
            known = self._grid(places).pos if isinstance(places, UnitGrid) else torch.zeros(count, config.pos_dim)
            self.register_buffer(name, known.to(wide))

    def forward(self, inputs: FunctionBatch, at: Domain | None = None) -> Tensor:
        """Predicts target functions.

        Args:
            inputs: B functions; those at other points than in training are interpolated.
            at: Nq query points; None: the points of the inputs.

        Returns:
            `(B, Nq, num_outputs)`, in the dtype of the values.

        Raises:
            ValueError: another number of channels or of coordinates.
        """
        config = self.config
        values, domain = inputs
        if values.ndim != 3 or values.shape[-1] != config.num_channels or domain.pos_dim != config.pos_dim:
            raise ValueError(
                f"models.FunctionRegression: expected values (batch, points, {config.num_channels}) at points of "
                f"{config.pos_dim} coordinates; got {tuple(values.shape)} at points of {domain.pos_dim}"
            )
        query_domain = domain if at is None else at
        given, target = (
            self._domain(places, pos)
            for places, pos in ((config.given, self.given_pos), (config.target, self.target_pos))
        )
        with without_autocast(values):
            wide = inputs._replace(values=at_least_float32(values))
            known = values if domain.has_points_of(given) else interpolated(wide, given)
            kernel = self._kernel(known.flatten(1).double(), self.functions.double(), self.rate)
            found = (kernel @ self.dual.double() + self.offset.double()).unflatten(1, (-1, config.num_outputs))
            if not query_domain.has_points_of(target):
                found = interpolated(FunctionBatch(found, target), query_domain)
            return found.to(values.dtype)

    @torch.no_grad()
    def fit(
        self,
        given: Tensor,
        target: Tensor,
        *,
        given_pos: Tensor | None = None,
        target_pos: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> None:
        """Fits the model to training functions; random numbers come from the global torch seed.

        Args:
            given: `(n, N, num_channels)`, at least 2 functions, at most `num_functions`.
            target: `(n, M, num_outputs)`.
            given_pos, target_pos: positions `(N, s)` and `(M, s)`, only for points that are no grid.
            groups: int64 `(n,)`, groups of functions that are left out together, at least two; None: each by itself.

        Raises:
            ValueError: shapes that do not agree, values that are NaN or infinite, one group alone.
        """
        x, y = self._checked(given, target, groups)
        for name, pos in (("given", given_pos), ("target", target_pos)):
            own, known = getattr(self.config, name), getattr(self, f"{name}_pos")
            if (pos is None) != isinstance(own, UnitGrid):
                raise ValueError(
                    f"models.FunctionRegression: {name} is {own}; expected {name}_pos "
                    f"{'not to be given' if pos is not None else f'of {own} points'}"
                )
            if pos is not None:
                known.copy_(pos)
        some = torch.randperm(len(x))[:CHOSEN].sort().values.to(x.device)
        columns = torch.linspace(0, y.shape[1] - 1, min(COLUMNS, y.shape[1])).round().long().to(x.device)
        apart = _squares(x[some], x[some])
        apart = apart[apart > _ROUNDING * x.square().mean()]
        unit = float(apart.median()) ** 0.5 if len(apart) else 1.0
        own = None if groups is None or len(groups[some].unique()) < 2 else groups[some]
        rates = [0.0, *(1 / (multiple * unit) for multiple in LENGTHS)]
        errors = [self._best(x[some], y[some][:, columns], rate, own)[0] for rate in rates]
        self.rate.fill_(rates[min(range(len(rates)), key=errors.__getitem__)])
        error, penalty, spectrum = self._best(x, y[:, columns], float(self.rate), groups)
        dual = spectrum.solved(y - y.mean(0), penalty)
        self.penalty.fill_(penalty)
        for kept, found in ((self.functions, x), (self.dual, dual)):
            kept.zero_()
            kept[: len(found)] = found.to(kept.dtype)
        self.offset.copy_(y.mean(0) - spectrum.means @ dual)
        plain = _best_of_mean(y[:, columns], groups)
        self.error.fill_((error / plain) ** 0.5 if plain > 0 else 0.0)

    @property
    def linear_kernel(self) -> Tensor:
        """Returns k(x, y) of the linear integral operator, float64 `(M, num_outputs, N, num_channels)`.

        Each point y has the mass 1 / N: the output at x is ū(x) plus the mean over y of k(x, y) (a(y) - ā(y)).

        Raises:
            ValueError: the fit is not linear.
        """
        if float(self.rate) != 0:
            raise ValueError(
                f"models.FunctionRegression: left-out errors chose a kernel of length {1 / float(self.rate):.3g}, so "
                "that the fit is no linear operator and has no k(x, y)"
            )
        config = self.config
        found = self.dual.double().T @ self.functions.double() / config.num_channels
        return found.view(-1, config.num_outputs, _count(config.given), config.num_channels)

    def _checked(self, given: Tensor, target: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor]:
        """Input and target functions, checked and flattened, float64 `(n, D)` and `(n, E)`."""
        config, name = self.config, "models.FunctionRegression"
        for what, values, places, channels in (
            ("given", given, config.given, config.num_channels),
            ("target", target, config.target, config.num_outputs),
        ):
            expected = (len(given), _count(places), channels)
            if tuple(values.shape) != expected or not 2 <= len(given) <= config.num_functions:
                raise ValueError(
                    f"{name}: expected {what} (n, {expected[1]}, {channels}) of 2 to {config.num_functions} functions; "
                    f"got {tuple(values.shape)}"
                )
            if not bool(values.isfinite().all()):
                raise ValueError(f"{name}: {what} holds NaN or infinite values; leave such functions out")
        check_groups(name, groups, len(given))
        return given.flatten(1).float().double(), target.flatten(1).double()

    def _kernel(self, x: Tensor, y: Tensor, rate: Tensor) -> Tensor:
        """κ of `(B, D)` and `(n, D)`, float64."""
        linear = x @ y.T / x.shape[1]
        return torch.where(rate == 0, linear, (1 + _squares(x, y) * rate.square()).rsqrt())

    def _best(self, x: Tensor, target: Tensor, rate: float, groups: Tensor | None) -> tuple[float, float, "_Spectrum"]:
        """The smallest left-out mean square at this rate, its λ, and the spectrum of HKH."""
        spectrum = _Spectrum.of(self._kernel(x, x, torch.tensor(rate, dtype=x.dtype, device=x.device)))
        aim = target - target.mean(0)
        members = None if groups is None else [(groups == group).nonzero()[:, 0] for group in groups.unique()]
        penalties = [multiple * spectrum.unit for multiple in PENALTIES.tolist()]
        errors = [float(spectrum.left_out(aim, penalty, members).square().mean()) for penalty in penalties]
        good = [pair for pair in zip(penalties, errors, strict=True) if pair[1] <= AS_GOOD * min(errors)]
        penalty, error = max(good)  # the larger one loses less to rounding
        return error, penalty, spectrum

    def _grid(self, grid: UnitGrid) -> Domain:
        return grid.domain(is_periodic=self.config.is_periodic)

    def _domain(self, places: UnitGrid | int, pos: Tensor) -> Domain:
        if isinstance(places, UnitGrid):
            return self._grid(places).to(pos.device)
        return Points(pos, periodic=self.config.is_periodic)


@final
class _Spectrum(NamedTuple):
    """Spectrum that gives the fits for all penalties: G(λ) = (HKH + λI)⁻¹ H, positive on vectors of mean 0."""

    values: Tensor
    """Eigenvalues of HKH `(n - 1,)`, without that of the constant vector."""
    vectors: Tensor
    """Their eigenvectors `(n, n - 1)`, of mean 0."""
    means: Tensor
    """κ̄ `(n,)`."""
    unit: float
    """The mean eigenvalue; 1 where all are 0."""

    @classmethod
    def of(cls, kernel: Tensor) -> "_Spectrum":
        n, means = len(kernel), kernel.mean(0)
        gram = kernel - means - means[:, None] + means.mean()
        trace = float(gram.trace())
        # shifts the constant vector to the last eigenvalue, so that it does not mix with the rest of HKH's null space
        values, vectors = torch.linalg.eigh(gram + max(2 * trace, 1.0) / n)
        return cls(values[:-1].clamp_min(0), vectors[:, :-1], means, trace / n if trace > 0 else 1.0)

    def solved(self, target: Tensor, penalty: float) -> Tensor:
        """G(λ) applied to `(n, c)`."""
        return self.vectors @ (self.vectors.T @ target / (self.values + penalty)[:, None])

    def left_out(self, target: Tensor, penalty: float, members: list[Tensor] | None) -> Tensor:
        """Left-out errors of each function, or each group g of them: G_gg⁻¹ (G u)_g, `(n, c)`."""
        dual, shrunk = self.solved(target, penalty), self.vectors / (self.values + penalty)
        if members is None:
            return dual / (shrunk * self.vectors).sum(1)[:, None]
        found = torch.empty_like(dual)
        for own in members:
            found[own] = torch.linalg.solve(shrunk[own] @ self.vectors[own].T, dual[own])
        return found


def _count(places: UnitGrid | int) -> int:
    return places.num_points if isinstance(places, UnitGrid) else places


def _squares(x: Tensor, y: Tensor) -> Tensor:
    """‖x_i - y_j‖² of `(B, D)` and `(n, D)`."""
    return (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T).clamp_min(0) / x.shape[1]


def _best_of_mean(target: Tensor, groups: Tensor | None) -> float:
    """Mean square of the left-out errors of the mean."""
    aim = target - target.mean(0)
    names, unit, sizes = (
        (torch.arange(len(aim)),) * 2 + (torch.ones(len(aim)),)
        if groups is None
        else groups.unique(return_inverse=True, return_counts=True)
    )
    unit, sizes = unit.to(aim.device), sizes.to(aim)
    sums = aim.new_zeros(len(names), aim.shape[1]).index_add(0, unit, aim)
    return float((aim + (sums / (len(aim) - sizes)[:, None])[unit]).square().mean())


def interpolated(samples: FunctionBatch, places: Domain) -> Tensor:
    """Interpolates functions `(B, N, m)` to `(B, Nq, m)`: by cubics on a whole grid, else as `encoders.interpolate`.

    Along each axis of a grid the cubic goes through the four nearest points, or all where there are fewer. It
    extrapolates beyond the grid's ends by at most one spacing; farther out the value is constant.
    """
    values, domain = samples
    grid = whole_grid(domain) if domain.mask is None else None
    if grid is None:
        return interpolate(samples, places)
    pos = places.pos.to(values.device).double()
    index = torch.zeros(*pos.shape[:-1], 1, dtype=torch.long, device=pos.device)
    weight = torch.ones(*pos.shape[:-1], 1, dtype=pos.dtype, device=pos.device)
    for axis, (count, step, first) in enumerate(zip(grid.shape, grid.spacing, grid.origin, strict=True)):
        nodes, share = _cubic((pos[..., axis] - first) / step, count, is_periodic=domain.is_periodic)
        index = (index[..., :, None] * count + nodes[..., None, :]).flatten(-2)
        weight = (weight[..., :, None] * share[..., None, :]).flatten(-2)
    if index.ndim == 2:
        return (values[:, index] * weight.to(values.dtype)[..., None]).sum(-2)
    batch = max(len(values), len(index))
    entry = torch.arange(batch, device=index.device)[:, None, None]
    taken = values.expand(batch, -1, -1)[entry, index.expand(batch, -1, -1)]
    return (taken * weight.to(values.dtype)[..., None]).sum(-2)


def _cubic(t: Tensor, count: int, *, is_periodic: bool) -> tuple[Tensor, Tensor]:
    """Interpolation nodes `(..., 4)` and their weights at positions t, in units of the spacing."""
    taps = min(4, count)
    if not is_periodic:
        t = t.clamp(-1, count)
    first = t.detach().floor() - (taps - 1) // 2
    if not is_periodic:
        first = first.clamp(0, count - taps)
    x, order = (t - first)[..., None], torch.arange(taps, dtype=t.dtype, device=t.device)
    apart = order[:, None] - order
    others = ~torch.eye(taps, dtype=torch.bool, device=t.device)
    # weight j = Π over the others l of (x - l) / (j - l)
    factors = torch.where(others, (x[..., None, :] - order) / torch.where(others, apart, 1.0), 1.0)
    nodes = first.long()[..., None] + torch.arange(taps, device=t.device)
    return nodes.remainder(count) if is_periodic else nodes, factors.prod(-1)
