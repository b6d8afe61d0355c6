"""A convolution operator that is called as torch's convolution layers are."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, final

from torch import Tensor, nn

from fredholm._precision import autocast_dtype
from fredholm.domains import Domain, Grid
from fredholm.domains.checks import values_can_be_read
from fredholm.evaluation import AUTO, Auto, Evaluation, Filtering, FilterRoute, Integral, as_filtering
from fredholm.kernels import Convolution
from fredholm.layers.torch_layers.layer import TorchLayer, is_watched, lowered, sole_kernel
from fredholm.operators.integral import IntegralOperator

CONVOLUTIONS: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED: tuple[type[nn.Module], ...] = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@final
class ConvolutionLayer(TorchLayer[nn.Module]):
    """An `IntegralOperator` with a convolution kernel, on images `(B, C, *n)` instead of signals `(B, N, C)`.

    Args:
        kernel: the convolution.
        bias: whether a constant is added; it starts uniform in ±1 / sqrt(fan-in), as torch's does.
        evaluation: as in `IntegralOperator`.

    Attributes:
        operator: the integral operator. The image is on `Grid(*n)`, periodic if the kernel's boundary is circular.
        weight, bias: as in torch's layer; the kernel's and the operator's parameters.

    The operator's route for an image is cached for later images of the same shape. It filters them and adds the bias in
    one pass, unless the operator has hooks.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    natives = CONVOLUTIONS + TRANSPOSED

    def __init__(self, kernel: Convolution, *, bias: bool = True, evaluation: Evaluation = AUTO) -> None:
        super().__init__({"weight": "operator.kernel.weight", "bias": "operator.bias"})
        if not isinstance(kernel, Convolution):
            raise TypeError(f"ConvolutionLayer: kernel must be a kernels.Convolution; got {type(kernel).__name__}")
        if kernel.gain is not None:
            raise ValueError("ConvolutionLayer: torch's layers have no standardised filters; take an IntegralOperator")
        self.operator = IntegralOperator(
            kernel, evaluation=evaluation, residual=False, bias=bias, output_projection=False
        )
        if self.operator.bias is not None:
            nn.init.uniform_(self.operator.bias, -1, 1).data.mul_(1 / math.sqrt(kernel.weight[0].numel()))
        self._plan: _Plan | None = None  # its tensors belong to no state_dict

    @property
    def kernel(self) -> Convolution:
        """The convolution kernel."""
        return sole_kernel(self, self.operator, Convolution)

    @property
    def in_channels(self) -> int:
        """Number of input channels."""
        return self.kernel.in_dim

    @property
    def out_channels(self) -> int:
        """Number of output channels."""
        return self.kernel.out_dim

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """Taps along each axis."""
        return self.kernel.kernel_size

    @property
    def stride(self) -> tuple[int, ...]:
        """See `kernels.Convolution`."""
        return self.kernel.stride

    @property
    def padding(self) -> str | tuple[int, ...]:
        """Cells of padding at both ends of each axis, or "same" where the two ends differ as with that setting.

        Raises:
            ValueError: for other paddings with two different ends, which torch's layers lack.
        """
        kernel = self.kernel
        if all(lo == hi for lo, hi in kernel.padding):
            return tuple(lo for lo, _ in kernel.padding)
        same = tuple(((w - 1) // 2, w - 1 - (w - 1) // 2) for w in kernel.reach)
        if kernel.padding != same or any(r != 1 for r in kernel.stride):
            raise ValueError(
                f"torch's convolutions pad both ends alike; got padding {kernel.padding}; pad the image beforehand and "
                "use padding 0"
            )
        return "same"

    @property
    def dilation(self) -> tuple[int, ...]:
        """See `kernels.Convolution`."""
        return self.kernel.dilation

    @property
    def groups(self) -> int:
        """See `kernels.Convolution`."""
        return self.kernel.groups

    @property
    def padding_mode(self) -> str:
        """See `kernels.Convolution`."""
        return self.kernel.padding_mode

    @property
    def transposed(self) -> bool:
        """Whether it is a transposed convolution."""
        return self.kernel.transposed

    @property
    def output_padding(self) -> tuple[int, ...]:
        """See `kernels.Convolution`; zeros for a convolution that is not transposed."""
        return self.kernel.output_padding

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Applies the layer.

        Args:
            input: `(B, C, *n)`, or `(C, *n)` without a batch.
            output_size: transposed only: cells of the result along each axis (batch and channels may precede), between
                the least that the stride allows and stride - 1 more; None: by the kernel's output padding.

        Returns:
            `(B, d_out, *m)`, or `(d_out, *m)`.

        Raises:
            ValueError, TypeError: on an input of another type or shape, or sizes that do not fit.
        """
        if not isinstance(input, Tensor):
            raise TypeError(f"ConvolutionLayer: expected a tensor; got {type(input).__name__}")
        x, operator, kernel = input, self.operator, self.kernel
        axes, weight = len(kernel.kernel_size), kernel.weight
        autocast = autocast_dtype(x)
        output_size = None if output_size is None else tuple(output_size)
        key = (x.shape, output_size, x.dtype, x.device, autocast, weight.dtype, weight.device, is_watched(operator))
        plan = self._plan
        if not values_can_be_read(x) or plan is None or plan.key != key or not plan.serves(operator):
            plan = self._planned(x, output_size, key)
        images = x if x.ndim == axes + 2 else x[None]
        if plan.filtering is not None:
            route, filtering = plan.filtering
            out = route.filtered(images, filtering, operator.bias)
        else:
            u = images.flatten(2).transpose(1, 2)
            out = operator(u, plan.domain, query_domain=plan.query_domain).transpose(1, 2)
            out = out.unflatten(2, plan.cells)
        return lowered(out if x.ndim == axes + 2 else out[0])

    def _planned(self, x: Tensor, output_size: tuple[int, ...] | None, key: object) -> "_Plan":
        """The plan for images like x, cached for the next image."""
        kernel, operator, axes = self.kernel, self.operator, len(self.kernel.kernel_size)
        if x.ndim not in (axes + 1, axes + 2) or x.shape[-axes - 1] != kernel.in_dim:
            raise ValueError(
                f"ConvolutionLayer: expected (batch, {kernel.in_dim}, *cells) with {axes} axes of cells, or the "
                f"same without a batch; got {tuple(x.shape)}"
            )
        shape = tuple(x.shape[-axes:])
        if min(shape) < 1:
            raise ValueError(f"ConvolutionLayer: an image needs at least one cell along each axis; got {shape}")
        cells = self._cells(shape, output_size)
        domain = Grid(*shape, periodic=kernel.padding_mode == "circular", device=x.device)
        query_domain = kernel.output_domain(domain, cells).to(x.device)
        u = (x if x.ndim == axes + 2 else x[None]).flatten(2).transpose(1, 2)
        operator.prepare(u, domain, query_domain=query_domain)
        integral = Integral(kernel, u, domain, None, query_domain)
        route = operator.evaluation
        route = route.choose(integral).route if isinstance(route, Auto) else route
        fits = not (is_watched(operator) or integral.is_empty or route.unsupported_reasons(integral))
        found = integral.cached(as_filtering) if fits else None
        filtering = (route, found) if isinstance(route, FilterRoute) and isinstance(found, Filtering) else None
        plan = _Plan(key, kernel, operator.evaluation, domain, query_domain, cells, filtering)
        if values_can_be_read(x):
            self._plan = plan
        return plan

    def _cells(self, shape: tuple[int, ...], output_size: tuple[int, ...] | None) -> tuple[int, ...]:
        kernel = self.kernel
        if output_size is None:
            return kernel.output_shape(shape)
        if not kernel.transposed:
            raise ValueError("ConvolutionLayer: output_size belongs to a transposed convolution; leave it out")
        least = kernel.min_shape(shape)
        sizes = output_size[-len(shape) :]
        fits = len(output_size) in (len(shape), len(shape) + 1, len(shape) + 2) and all(
            max(low, 1) <= m < low + r for m, low, r in zip(sizes, least, kernel.stride, strict=True)
        )
        if not fits:
            most = tuple(low + r - 1 for low, r in zip(least, kernel.stride, strict=True))
            raise ValueError(
                f"ConvolutionLayer: output_size must lie between {least} and {most}, and be at least 1, for an image "
                f"of {shape}; got {output_size}"
            )
        return sizes

    @classmethod
    def _blank(cls, module: nn.Module) -> nn.Module:
        return type(module)(**_options(module), bias=module._parameters["bias"] is not None)

    @classmethod
    def _shaped_like(cls, blank: nn.Module) -> Self:
        options = _options(blank)
        sizes = options.pop("in_channels"), options.pop("out_channels"), options.pop("kernel_size")
        transposed = type(blank) in TRANSPOSED
        kernel = Convolution(*sizes, len(sizes[2]), **options, transposed=transposed)
        return cls(kernel, bias=blank._parameters["bias"] is not None)

    def _native(self) -> nn.Module:
        make = (TRANSPOSED if self.transposed else CONVOLUTIONS)[len(self.kernel_size) - 1]
        return make(**_options(self), bias=self.bias is not None)


def _options(layer: nn.Module) -> dict[str, Any]:
    """The constructor arguments of torch's layer except the bias, from a layer of either library."""
    names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
    return {name: getattr(layer, name) for name in (*names, *(["output_padding"] if layer.transposed else []))}


class _Plan(NamedTuple):
    """A cached way to filter images of one shape and format."""

    key: object
    kernel: Convolution
    evaluation: Evaluation
    domain: Domain
    query_domain: Domain
    cells: tuple[int, ...]
    filtering: tuple[FilterRoute[Convolution], Filtering[Convolution]] | None
    """The route and its filter; None: call the operator."""

    def serves(self, operator: IntegralOperator) -> bool:
        """Whether the operator is still the one that the plan was made for."""
        return self.kernel is operator.kernel and self.evaluation is operator.evaluation
