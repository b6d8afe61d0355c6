"""Base class of the routes of stationary kernels: signal as an image, filter, and padding."""

import abc
from typing import Generic, NamedTuple, TypeVar, final

import torch
from torch import Tensor

from fredholm.domains import GridBlock, whole_grid
from fredholm.domains.checks import is_open
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.kernels import Stationary
from fredholm.kernels.convolution.stationary import FilterGeometry

S = TypeVar("S", bound=Stationary, covariant=True)


class Filtering(NamedTuple, Generic[S]):
    """A stationary integral between two whole grids."""

    kernel: S
    keys: GridBlock
    queries: GridBlock
    geometry: FilterGeometry

    @property
    def weight(self) -> Tensor:
        """The filter's coefficients; see `Stationary.filter_weight`."""
        return self.kernel.filter_weight(self.keys, self.queries)


def as_filtering(integral: Integral[S]) -> Filtering[S] | str:
    """The integral as a filter, or a sentence with the reason why it is not a filter."""
    kernel, keys, queries = integral.kernel, whole_grid(integral.domain), whole_grid(integral.query_domain)
    if keys is None:
        return "the points of the signal are not one whole regular grid"
    if queries is None:
        return "the queries are not one whole regular grid"
    geometry = kernel.filter_geometry(keys, queries)
    if isinstance(geometry, str):
        return geometry
    for n, pair in zip(keys.shape, geometry.padding, strict=True):
        limit = {"reflect": n - 1, "circular": n}.get(geometry.mode)
        if limit is not None and max(pair) > limit:
            return f"the signal is continued by {max(pair)} cells, more than once over its {n} cells"
    return Filtering(kernel, keys, queries, geometry)


class FilterRoute(Route[S]):
    """Base class of routes for `Stationary` kernels between aligned regular grids, on the signal as an image."""

    marker = Stationary

    @abc.abstractmethod
    def filter_refusals(self, filtering: Filtering[S], batch_size: int) -> list[str]:
        """Reasons why this route cannot compute this filter, a sentence each."""

    @abc.abstractmethod
    def filtered(self, image: Tensor, filtering: Filtering[S], bias: Tensor | None = None) -> Tensor:
        """Filters the image, `(B, d_in, *n)` to `(B, d_out, *m)`, and adds a constant `(d_out,)` if given."""

    @final
    def applies_to(self, integral: Integral[S]) -> bool:
        """See `Route.applies_to`: for kernels that are filters."""
        return integral.kernel.is_filter

    @final
    def refusals(self, integral: Integral[S]) -> list[str]:
        """Refuses points off the grids, and for the reasons of `filter_refusals`."""
        filtering = integral.cached(as_filtering)
        if isinstance(filtering, str):
            return [filtering]
        if any(is_open(taps) for taps in filtering.geometry.size):
            return ["the filter has taps for all distances of points, whose number is symbolic in the graph"]
        return self.filter_refusals(filtering, integral.u.shape[0])

    @final
    def compute(self, integral: Integral[S]) -> Tensor:
        """See `Route.compute`; signal and image share memory where every point counts once."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        filtering = integral.cached(as_filtering)
        if isinstance(filtering, str):
            raise ValueError(f"{self.name} refuses this integral: {filtering}")
        if not (kernel.counts_points and domain.is_uniform and domain.mask is None):
            u = u * kernel.measure(domain).to(u.dtype)[..., None]
        image = u.unflatten(1, filtering.keys.shape).movedim(-1, 1)
        out = self.filtered(image, filtering).flatten(2).transpose(1, 2)
        share = kernel.past_share(domain, integral.query_domain)
        return out if share is None else (out * share[..., None]).to(out.dtype)


def extend(image: Tensor, padding: tuple[tuple[int, int], ...], mode: str) -> Tensor:
    """The signal padded by (lo, hi) cells along each axis; negative padding crops."""
    beyond = [max(cells, 0) for pair in reversed(padding) for cells in pair]
    if any(beyond):
        image = torch.nn.functional.pad(image, beyond, mode="constant" if mode == "zeros" else mode)
    for axis, (lo, hi) in enumerate(padding, start=2):
        if lo < 0 or hi < 0:
            start = max(-lo, 0)
            image = image.narrow(axis, start, image.shape[axis] - start - max(-hi, 0))
    return image


def thinned(image: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Every r-th cell along each axis, from the first one on."""
    return image[(slice(None), slice(None), *(slice(None, None, r) for r in stride))]


def with_constant(image: Tensor, bias: Tensor | None) -> Tensor:
    """The image plus a constant per channel, `(C,)`, if given."""
    return image if bias is None else image + bias.unflatten(0, (-1, *(1,) * (image.ndim - 2)))


def dearer(direct: int, spectral: float, min_gain: float) -> str:
    """The refusal that transforms do not pay; without numbers where these are symbolic."""
    if torch.compiler.is_compiling():
        return "the direct sum costs less than transforms"
    return f"the direct sum costs {direct}, less than {min_gain} times the {int(spectral)} of transforms"


def fast_length(least: int) -> int:
    """The smallest number >= `least` without prime factors above 7, for fast transforms."""
    length = least
    while True:
        rest = length
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 1
