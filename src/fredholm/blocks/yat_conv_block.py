"""A convolution of Yat units and the linear map after it."""

from typing import final

from torch import Tensor, nn

from fredholm._settings import check_count, check_gain
from fredholm.layers import YatConv1d, YatConv2d, YatConv3d, YatConvolution

_POINTWISE: dict[int, type[nn.Conv1d | nn.Conv2d | nn.Conv3d]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@final
class YatConvBlock(nn.Module):
    """W Y(x) + c at every place, or x + W Y(x) + c: no activation and no normalisation (Yat, section 2.3).

    Args:
        conv: Y, a `YatConv1d`, `YatConv2d` or `YatConv3d`.
        out_channels: channels of the result.
        residual: whether x is added; the convolution must then keep its shape.
        output_gain: the start of W is scaled by this; W starts as torch's linear layers do, c at 0.
        bias: whether to add c.

    Raises:
        ValueError: on channels below 1, and on a residual that does not fit by its channels or stride.
    """

    def __init__(
        self,
        conv: YatConv1d | YatConv2d | YatConv3d,
        out_channels: int,
        *,
        residual: bool = False,
        output_gain: float = 1.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(conv, YatConvolution):
            raise TypeError(
                f"YatConvBlock: conv must be a YatConv1d, YatConv2d or YatConv3d; got {type(conv).__name__}"
            )
        check_count("YatConvBlock", "out_channels", out_channels)
        check_gain("YatConvBlock", "output_gain", output_gain)
        if residual and (conv.in_channels != out_channels or set(conv.stride) != {1}):
            raise ValueError(
                f"YatConvBlock: a residual needs equal channels and stride 1; got {conv.in_channels} in, "
                f"{out_channels} out and stride {conv.stride}"
            )
        self.expand, self.residual = conv, residual
        self.contract = _POINTWISE[conv.num_axes](conv.out_channels, out_channels, 1, bias=bias)
        self.contract.weight.data.mul_(output_gain)
        if self.contract.bias is not None:
            nn.init.zeros_(self.contract.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, in_channels, *n)` or `(in_channels, *n)` to the same with `out_channels` and the convolution's places.

        Raises:
            ValueError: on a residual whose convolution changed the number of places.
        """
        out = self.contract(self.expand(x))
        if not self.residual:
            return out
        if out.shape != x.shape:
            raise ValueError(
                f"YatConvBlock: a residual needs the convolution to keep {tuple(x.shape)}; got {tuple(out.shape)}; use "
                "padding='same'"
            )
        return x + out
