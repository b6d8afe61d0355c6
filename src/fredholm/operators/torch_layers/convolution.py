"""A convolution operator that is called as torch's convolution layers are."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self, final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, Grid
from fredholm.domains.checks import values_can_be_read
from fredholm.evaluation import AUTO, Auto, Evaluation, Filtering, FilterRoute, Integral, as_filtering
from fredholm.kernels import Convolution
from fredholm.operators.integral import IntegralOperator
from fredholm.operators.torch_layers.parameters import copy_parameters

CONVOLUTIONS: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED: tuple[type[nn.Module], ...] = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@final
class ConvolutionLayer(nn.Module):
    """An `IntegralOperator` with a convolution kernel, on images `(B, C, *n)` instead of signals `(B, N, C)`.

    Args:
        kernel: the convolution.
        bias: whether a constant is added; it starts uniform in ±1 / sqrt(fan-in), as torch's does.
        evaluation: as in `IntegralOperator`.

    Attributes:
        operator: the integral operator. The image lives on `Grid(*n)`, periodic if the kernel's boundary is circular.

    The route that the operator takes for an image serves later images like it directly, with the bias in one pass,
    unless hooks watch the operator.
    """

    def __init__(self, kernel: Convolution, *, bias: bool = True, evaluation: Evaluation = AUTO) -> None:
        super().__init__()
        if not isinstance(kernel, Convolution):
            raise TypeError(f"ConvolutionLayer: kernel must be a kernels.Convolution; got {type(kernel).__name__}")
        self.operator = IntegralOperator(
            kernel, evaluation=evaluation, residual=False, bias=bias, output_projection=False
        )
        if self.operator.bias is not None:
            nn.init.uniform_(self.operator.bias, -1, 1).data.mul_(1 / math.sqrt(kernel.weight[0].numel()))
        self._plan: _Plan | None = None  # its tensors belong to no state_dict

    @property
    def kernel(self) -> Convolution:
        """The convolution kernel."""
        assert isinstance(self.operator.kernel, Convolution)
        return self.operator.kernel

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Applies the layer.

        Args:
            x: `(B, C, *n)`, or `(C, *n)` without a batch.
            output_size: transposed only: cells of the result along each axis (batch and channels may precede), between
                the least that the stride allows and stride - 1 more; None: what the kernel's output padding says.

        Returns:
            `(B, d_out, *m)`, or `(d_out, *m)`.

        Raises:
            ValueError, TypeError: on an input that is no such image, or sizes that do not fit.
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"ConvolutionLayer: expected a tensor; got {type(x).__name__}")
        operator, kernel = self.operator, self.kernel
        axes, weight = len(kernel.kernel_size), kernel.weight
        autocast = torch.is_autocast_enabled(x.device.type)
        output_size = None if output_size is None else tuple(output_size)
        asked = (x.shape, output_size, x.dtype, x.device, autocast, weight.dtype, weight.device, _is_watched(operator))
        plan = self._plan
        if not values_can_be_read(x) or plan is None or plan.asked != asked or not plan.serves(operator):
            plan = self._planned(x, output_size, asked)
        images = x if x.ndim == axes + 2 else x[None]
        if plan.filtering is not None:
            route, filtering = plan.filtering
            out = route.filtered(images, filtering, operator.bias)
        else:
            u = images.flatten(2).transpose(1, 2)
            out = operator(u, plan.domain, query_domain=plan.query_domain).transpose(1, 2)
            out = out.unflatten(2, plan.cells)
        return out if x.ndim == axes + 2 else out[0]

    def _planned(self, x: Tensor, output_size: tuple[int, ...] | None, asked: object) -> "_Plan":
        """How images like x are to be filtered; kept for the next one."""
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
        domain = Grid(*shape, periodic=kernel.padding_mode == "circular").to(x.device)
        query_domain = kernel.output_domain(domain, cells).to(x.device)
        u = (x if x.ndim == axes + 2 else x[None]).flatten(2).transpose(1, 2)
        operator.prepare(u, domain, query_domain=query_domain)
        integral = Integral(kernel, u, domain, None, query_domain)
        route = operator.evaluation
        route = route.choose(integral).route if isinstance(route, Auto) else route
        fits = not _is_watched(operator) and not route.unsupported_reasons(integral)
        found = integral.once(as_filtering) if fits else None
        filtering = (route, found) if isinstance(route, FilterRoute) and isinstance(found, Filtering) else None
        plan = _Plan(asked, kernel, operator.evaluation, domain, query_domain, cells, filtering)
        if values_can_be_read(x):
            self._plan = plan
        return plan

    def _cells(self, shape: tuple[int, ...], output_size: tuple[int, ...] | None) -> tuple[int, ...]:
        kernel = self.kernel
        natural = kernel.output_shape(shape)
        if output_size is None:
            return natural
        if not kernel.transposed:
            raise ValueError("ConvolutionLayer: output_size belongs to a transposed convolution; leave it out")
        least = tuple(m - extra for m, extra in zip(natural, kernel.output_padding, strict=True))
        asked = output_size[-len(shape) :]
        fits = len(output_size) in (len(shape), len(shape) + 1, len(shape) + 2) and all(
            low <= m < low + r for m, low, r in zip(asked, least, kernel.stride, strict=True)
        )
        if not fits:
            most = tuple(low + r - 1 for low, r in zip(least, kernel.stride, strict=True))
            raise ValueError(
                f"ConvolutionLayer: output_size must lie between {least} and {most} for an image of {shape}; "
                f"got {output_size}"
            )
        return asked

    @classmethod
    def from_torch(cls, module: nn.Module) -> Self:
        """The same layer as an operator, with copies of its parameters.

        Args:
            module: exactly an `nn.Conv1d` ... `nn.Conv3d` or `nn.ConvTranspose1d` ... `nn.ConvTranspose3d`.

        Returns:
            A layer with the module's values, dtype, device, training mode and `requires_grad`.

        Raises:
            TypeError: for any other module, parametrised ones and subclasses included, or complex weights.
        """
        if type(module) not in CONVOLUTIONS + TRANSPOSED:
            raise TypeError(
                f"ConvolutionLayer.from_torch: converts nn.Conv1d-3d and nn.ConvTranspose1d-3d; got "
                f"{type(module).__name__}; remove parametrisations first"
            )
        given = dict(module.named_parameters(recurse=False))
        weight = given["weight"]
        if not weight.dtype.is_floating_point:
            raise TypeError(f"ConvolutionLayer.from_torch: weights must be real; got {weight.dtype}")
        options = vars(module)
        transposed = type(module) in TRANSPOSED
        with torch.device("meta"):
            kernel = Convolution(
                options["in_channels"],
                options["out_channels"],
                options["kernel_size"],
                len(options["kernel_size"]),
                stride=options["stride"],
                padding=options["padding"],
                dilation=options["dilation"],
                groups=options["groups"],
                padding_mode=options["padding_mode"],
                transposed=transposed,
                output_padding=options["output_padding"] if transposed else 0,
            )
            layer = cls(kernel, bias="bias" in given)
        layer = layer.to(weight.dtype).to_empty(device=weight.device)
        copy_parameters(given, layer._by_torch_name())
        return layer.train(module.training)

    def to_torch(self) -> nn.Module:
        """torch's own layer with copies of the parameters.

        Raises:
            ValueError: for a padding with two different ends, which torch's layers lack (except "same").
        """
        kernel = self.kernel
        padding: str | tuple[int, ...] = tuple(lo for lo, _ in kernel.padding)
        if any(lo != hi for lo, hi in kernel.padding):
            same = tuple(((w - 1) // 2, w - 1 - (w - 1) // 2) for w in kernel.reach)
            if kernel.padding != same or any(r != 1 for r in kernel.stride):
                raise ValueError(
                    f"ConvolutionLayer.to_torch: torch pads both ends alike; got padding {kernel.padding}; pad the "
                    "image beforehand and use padding 0"
                )
            padding = "same"
        options = {
            "stride": kernel.stride,
            "padding": padding,
            "dilation": kernel.dilation,
            "groups": kernel.groups,
            "bias": self.operator.bias is not None,
            "padding_mode": kernel.padding_mode,
            "device": kernel.weight.device,
            "dtype": kernel.weight.dtype,
        }
        if kernel.transposed:
            options["output_padding"] = kernel.output_padding
        make = (TRANSPOSED if kernel.transposed else CONVOLUTIONS)[len(kernel.kernel_size) - 1]
        module = make(kernel.in_dim, kernel.out_dim, kernel.kernel_size, **options)
        copy_parameters(self._by_torch_name(), dict(module.named_parameters(recurse=False)))
        return module.train(self.training)

    def _by_torch_name(self) -> dict[str, nn.Parameter]:
        bias = self.operator.bias
        return {"weight": self.kernel.weight} | ({} if bias is None else {"bias": bias})


class _Plan(NamedTuple):
    """How the images asked for last are filtered."""

    asked: object
    kernel: Convolution
    evaluation: Evaluation
    domain: Domain
    query_domain: Domain
    cells: tuple[int, ...]
    filtering: tuple[FilterRoute[Convolution], Filtering[Convolution]] | None
    """None: as the operator's own route does it."""

    def serves(self, operator: IntegralOperator) -> bool:
        """Whether the operator is still the one that the plan was made for."""
        return self.kernel is operator.kernel and self.evaluation is operator.evaluation


def _is_watched(module: nn.Module) -> bool:
    """Whether anything is to be told when the module is called."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)
