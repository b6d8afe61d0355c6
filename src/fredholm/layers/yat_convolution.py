"""Convolutions of Yat units: every patch of an image against every filter."""

import math
from abc import ABC
from collections.abc import Callable, Sequence
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from fredholm._precision import at_least_float32, without_autocast
from fredholm._settings import check_count, is_count
from fredholm.layers.yat_layer import YatLayer, is_recorded
from fredholm.layers.yat_response import ResponseInputs, squares, yat_response

Padding = Literal["valid", "same"] | int | tuple[int, ...]

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class YatConvolution(YatLayer, ABC):
    """Y_j(p) = s (⟨x_p, w_j⟩ + b_j)² / (‖x_p - w_j‖² + ε) for the patch x_p at every place p, one channel per filter.

    Strides, padding and dilation as in torch's convolutions; padding is zeros, in the product and in the distance. With
    groups, patch and filter hold the channels of one group. ⟨x_p, w⟩ is torch's convolution and ‖x_p‖² the convolution
    of the channels' squares with ones; no patch is ever written out. Precision, stored memory, start and ε are those of
    `YatDense`, with d = kernel cells × channels of a group, and n = `out_channels` in the scale.

    Args:
        in_channels, out_channels: multiples of `groups`.
        kernel_size: size of a patch in cells, one number or one per axis.
        stride, dilation: as in torch.
        padding: "valid" (none), "same" (for stride 1), or cells at both ends, one number or one per axis.
        groups: as in torch.
        bias, epsilon, learn_epsilon, scale: as in `YatDense`.

    Attributes:
        weight: the filters, `(out_channels, in_channels / groups, *kernel_size)`.
        bias: b, `(out_channels,)`, or None.

    Raises:
        ValueError: on sizes out of range, groups that do not divide, "same" with a stride, and an invalid ε.
    """

    num_axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: Padding = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        *,
        bias: bool = True,
        epsilon: float = 1e-3,
        learn_epsilon: bool = False,
        scale: bool = True,
    ) -> None:
        name = type(self).__name__
        for what, size in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
            check_count(name, what, size)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{name}: channels must be multiples of groups; got {in_channels} in, {out_channels} out and {groups} "
                "groups"
            )
        cells = self._per_axis("kernel_size", kernel_size, 1)
        shape = out_channels, in_channels // groups, *cells
        super().__init__(shape, bias=bias, epsilon=epsilon, learn_epsilon=learn_epsilon, scale=scale)
        self.in_channels, self.out_channels, self.groups, self.kernel_size = in_channels, out_channels, groups, cells
        self.stride, self.dilation = self._per_axis("stride", stride, 1), self._per_axis("dilation", dilation, 1)
        if isinstance(padding, str):
            if padding not in ("valid", "same"):
                raise ValueError(f"{name}: padding is 'valid', 'same' or numbers; got {padding!r}")
            if padding == "same" and set(self.stride) != {1}:
                raise ValueError(f"{name}: padding 'same' needs stride 1; got {self.stride}; give padding in numbers")
            self.padding = padding
        else:
            self.padding = self._per_axis("padding", padding, 0)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, in_channels, *n)` or `(in_channels, *n)` to `out_channels` channels on the grid of torch's convolution.

        Raises:
            ValueError: on other shapes.
            TypeError: on float16, and on an image of another dtype than the layer's outside autocast.
        """
        self._check_tensor(x)
        if x.ndim not in (self.num_axes + 1, self.num_axes + 2) or x.shape[-1 - self.num_axes] != self.in_channels:
            raise ValueError(
                f"{type(self).__name__}: expected an image (B, {self.in_channels}, …) with {self.num_axes} axes; got "
                f"{tuple(x.shape)}"
            )
        self._check_size(x.shape[-self.num_axes :])
        dtype = self._answering_dtype(x)
        batch = x if x.ndim == self.num_axes + 2 else x[None]
        with without_autocast(x):
            out = self._respond(batch.to(dtype), self.weight.to(dtype), dtype)
        return out if x.ndim == self.num_axes + 2 else out[0]

    def _respond(self, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        x, weight = self._with_uneven_padding(at_least_float32(x)), at_least_float32(weight)
        dot = self._convolve(x, weight)
        channels = x.unflatten(1, (self.groups, -1)).square().sum(2)
        patch = self._convolve(channels, weight.new_ones(self.groups, 1, *self.kernel_size))
        # as in `squares`: an infinite patch gives NaN, not a plausible 0
        patch = torch.where(patch.isinf(), torch.nan, patch)
        units, epsilon = (1, self.groups, self.out_channels // self.groups, 1), self.softening()
        bias, scale = None if self.bias is None else self.bias.to(x.dtype), None if self.scale is None else self.scale()
        places = math.prod(dot.shape[2:])
        inputs = ResponseInputs(
            dot.reshape(x.shape[0], *units[1:3], places),
            patch.reshape(x.shape[0], self.groups, 1, places),
            squares(weight.flatten(1)).view(units),
            None if bias is None else bias.view(units),
            epsilon,
            scale,
        )
        out, _ = yat_response(inputs, dtype, is_recorded(x, weight, bias, epsilon, scale))
        return out.view(dot.shape)

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        return _CONVOLUTIONS[self.num_axes](x, weight, None, self.stride, self._padding, self.dilation, self.groups)

    def _with_uneven_padding(self, x: Tensor) -> Tensor:
        """x, with the extra cell at the end of an axis that "same" needs where a patch spans an odd distance."""
        if self.padding != "same" or not any(reach % 2 for reach in self._reach):
            return x
        return F.pad(x, [cells for reach in reversed(self._reach) for cells in (0, reach % 2)])

    def _check_size(self, shape: Sequence[int]) -> None:
        """Raises ValueError where an image, with its padding, is smaller than a patch."""
        added = self._reach if self.padding == "same" else tuple(2 * cells for cells in self._padding)
        if any(n + more <= reach for n, more, reach in zip(shape, added, self._reach, strict=True)):
            raise ValueError(
                f"{type(self).__name__}: patches of {tuple(reach + 1 for reach in self._reach)} cells with padding "
                f"{self.padding!r} do not fit into an image of {tuple(shape)}; enlarge the image or the padding"
            )

    @property
    def _reach(self) -> tuple[int, ...]:
        return tuple(d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True))

    @property
    def _padding(self) -> tuple[int, ...]:
        """Cells at both ends of every axis."""
        if self.padding == "same":
            return tuple(reach // 2 for reach in self._reach)
        return (0,) * self.num_axes if isinstance(self.padding, str) else self.padding

    def _per_axis(self, name: str, value: int | Sequence[int], least: int) -> tuple[int, ...]:
        values = tuple(value) if isinstance(value, Sequence) else (value,) * self.num_axes
        if len(values) != self.num_axes or not all(is_count(v, least) for v in values):
            raise ValueError(
                f"{type(self).__name__}: {name} must be an integer >= {least}, or one for each of {self.num_axes} "
                f"axes; got {value!r}"
            )
        return values

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, bias={self.bias is not None}"
        )


@final
class YatConv1d(YatConvolution):
    """`YatConvolution` on sequences `(B, C, n)`."""

    num_axes = 1


@final
class YatConv2d(YatConvolution):
    """`YatConvolution` on images `(B, C, n, m)`."""

    num_axes = 2


@final
class YatConv3d(YatConvolution):
    """`YatConvolution` on volumes `(B, C, n, m, l)`."""

    num_axes = 3
