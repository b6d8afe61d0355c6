"""Receptive field of an output at one point: the gradient with respect to the signal at every point.

Legend
    J_j[a, b] = ∂ y_a(x_i) / ∂ u_b(x_j)       of the output y at one point x_i

    field_j = ‖J_j‖_F, its root of the sum of squares over both channels

The field depends on the signal: that of a convolution is its stencil, that of attention follows its weights. With K
vectors v of random signs in place of all channels a, E ‖Jᵀ v‖² = ‖J‖_F² (Hutchinson, 1990).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.domains import Domain, Sequence
from fredholm.domains.grid import whole_grid
from fredholm.operators import IntegralOperator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "receptive_field"
Layer = Callable[[Tensor, Domain], Tensor]
"""A map from a signal `(B, N, C)` and its domain to a signal `(B, N', C')`."""


@final
@dataclass(frozen=True, kw_only=True)
class ReceptiveField:
    """The receptive field of one output point, for each entry of a batch.

    Args:
        field: `(B, N)`, >= 0.
        domain: domain of the signal.
        at: position of the output point, `(1 or B, s)`; None if unknown.
    """

    field: Tensor
    domain: Domain
    at: Tensor | None

    def plot(self, axes: "Axes | None" = None, *, entry: int = 0) -> "Axes":
        """Draws the field along a line, over a grid, or as coloured points in the plane of the first two coordinates.

        Args:
            axes: axes of matplotlib; None: those of a new figure.
            entry: index of the entry of the batch.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from .plotting import new_axes

        axes, values = new_axes(axes), self.field[entry].numpy()
        pos = (self.domain.pos if self.domain.pos.ndim == 2 else self.domain.pos[entry]).cpu()
        at = None if self.at is None else self.at[min(entry, len(self.at) - 1)].tolist()
        grid = whole_grid(self.domain)
        if grid is not None and len(grid.shape) == 2:
            axes.imshow(values.reshape(grid.shape))
            if at is not None:
                down, right = ((x - x_0) / h for x, x_0, h in zip(at, grid.origin, grid.spacing, strict=True))
                axes.plot(right, down, "w+")
        elif pos.shape[1] == 1:
            axes.plot(pos[:, 0].numpy(), values, marker=".")
            if at is not None:
                axes.axvline(at[0], linestyle="--", color="gray")
            axes.set_xlabel("position")
            axes.set_ylabel("size of the gradient")
        else:
            axes.scatter(*pos[:, :2].T.numpy(), c=values)
            if at is not None:
                axes.plot(*at[:2], "k+")
        return axes


def receptive_field(
    layer: IntegralOperator | Layer,
    u: Tensor,
    domain: Domain | None = None,
    *,
    index: int,
    num_probes: int | None = None,
    generator: torch.Generator | None = None,
) -> ReceptiveField:
    """Computes the norm at every point of the gradient of an output at one point; see the module's docstring.

    Args:
        layer: an operator, a block, or any function of a signal and a domain, in evaluation mode where it has one.
        u: the signal, `(B, N, C)`.
        domain: domain of the signal; None: `Sequence(N)`.
        index: index of the output point.
        num_probes: number of vectors of random signs; None: every channel of the output, which is exact.
        generator: random generator of the signs; None: torch's global seed.

    Raises:
        ValueError: there is no such point, or the output does not depend on the signal.
    """
    domain = Sequence(u.shape[1], device=u.device) if domain is None else domain
    with torch.enable_grad():
        given = u.detach().requires_grad_()
        out = layer(given, domain)
        field = _field(out, given, index, num_probes, generator)
        at = _place(domain, index) if out.shape[1] == domain.num_points else None
        return ReceptiveField(field=field, domain=domain, at=at)


def model_receptive_field(
    model: nn.Module,
    run: Callable[[], Any],
    *,
    index: int,
    num_probes: int | None = 16,
    generator: torch.Generator | None = None,
) -> ReceptiveField:
    """Receptive field from the output of a model's last operator, at one point, to the input of its first operator.

    The last operator is the last with an output at more than one point; later ones may pool over points.

    Args:
        model: a model with operators.
        run: a function that runs the model once on some inputs.
        index: index of the output point.
        num_probes, generator: as for `receptive_field`.

    Raises:
        ValueError: there are no operators, none has an output at several points, or the index is out of range.
    """
    seen: dict[str, Any] = {}

    def first(operator: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if "given" in seen:
            return None
        assert isinstance(operator, IntegralOperator)
        with torch.no_grad():
            seen["domain"] = operator.prepare(*args, **options).domain
        seen["given"] = args[0].detach().requires_grad_()
        return (seen["given"], *args[1:]), options

    def last(operator: nn.Module, args: tuple[Any, ...], options: dict[str, Any], out: Tensor) -> None:
        assert isinstance(operator, IntegralOperator)
        if out.shape[1] > 1:
            with torch.no_grad():
                seen["queries"] = operator.prepare(*args, **options).query_domain
            seen["out"] = out

    operators = [module for module in model.modules() if isinstance(module, IntegralOperator)]
    handles = [operator.register_forward_pre_hook(first, with_kwargs=True) for operator in operators]
    handles += [operator.register_forward_hook(last, with_kwargs=True) for operator in operators]
    try:
        with torch.enable_grad():
            run()
            if "out" not in seen:
                raise ValueError(
                    f"analysis.model_{NAME}: no operator answers at several points when the model runs; pass a model "
                    "with one that does"
                )
            field = _field(seen["out"], seen["given"], index, num_probes, generator)
    finally:
        for handle in handles:
            handle.remove()
    return ReceptiveField(field=field, domain=seen["domain"], at=_place(seen["queries"], index))


def _place(domain: Domain, index: int) -> Tensor:
    """Position of a point, `(1 or B, s)`."""
    return torch.atleast_2d(domain.pos[..., index, :]).cpu()


def _field(out: Tensor, given: Tensor, index: int, num_probes: int | None, generator: torch.Generator | None) -> Tensor:
    """The field at the points of the signal, `(B, N)`."""
    if out.ndim != 3 or not 0 <= index < out.shape[1]:
        raise ValueError(f"analysis.{NAME}: there is no point {index} in an output of shape {tuple(out.shape)}")
    if not out.requires_grad:
        raise ValueError(f"analysis.{NAME}: the output does not depend on the signal; is it detached inside?")
    channels = out.shape[2]
    if num_probes is None or num_probes >= channels:
        probes, scale = torch.eye(channels, dtype=out.dtype, device=out.device), 1.0
    else:
        check_count(f"analysis.{NAME}", "num_probes", num_probes)
        signs = torch.randint(2, (num_probes, channels), generator=generator) * 2 - 1
        probes, scale = signs.to(out), 1 / num_probes
    squares = torch.zeros(given.shape[:2], dtype=torch.float64, device=given.device)
    for probe in probes:
        (slope,) = torch.autograd.grad((out[:, index] * probe).sum(), given, retain_graph=True)
        squares = squares + slope.double().square().sum(-1)
    return (scale * squares).sqrt().cpu()
