"""A dense layer of Yat units: the integral of a point against prototypes, one output a prototype."""

from typing import final

import torch
from torch import Tensor, nn

from fredholm.kernels.attention.yat_product import Softening, UnitScale
from fredholm.layers.yat_layer import answering_dtype, backward_may_come, start_prototypes
from fredholm.layers.yat_response import DenseInputs, yat_dense


@final
class YatDense(nn.Module):
    """Y_j = s (x·w_j + b_j)² / (‖x - w_j‖² + ε), j = 1 … n (Yat, eq. 1 and section 2.3), in place of a linear layer
    and its activation.

    It is the integral of `kernels.Yat` over n prototypes that each count once and contribute one unit vector. What it
    stores for the backward is a byte an entry besides its input and output, with a bias one number; forward mode and a
    second derivative need several arrays of the output's size. Products and everything after them are computed in at
    least float32, under autocast too; the output has the dtype of the signal, or autocast's. In bfloat16 entries up to
    10⁴ give finite values and gradients. NaN answers NaN, and so does a point that is infinite or, in float32, longer
    than 10¹⁹.

    Prototypes start so that responses are of order 1 for points of length 1 to √d (`start_prototypes`), b at 0.
    Default ε: 10⁻³ is above the rounding of a squared distance in float32, about 10⁻⁷ (‖x‖² + ‖w‖²), up to ‖x‖² = 10⁴;
    longer points need more. The response of one unit may reach s (‖w‖⁴/ε + ‖w‖²), next to its prototype.

    Args:
        in_features: d, >= 1.
        out_features: prototypes n, >= 1.
        bias: whether a unit has its constant b.
        epsilon: ε > 0, in units of a squared distance.
        learn_epsilon: whether ε is learned, from there on.
        scale: whether s = (n / log(1 + n))^α, with α learned from 1; else s = 1.

    Attributes:
        weight: the prototypes, `(n, d)`.
        bias: b, `(n,)`, or None.

    Raises:
        ValueError: on sizes below 1 and an ε that is not positive and finite.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        epsilon: float = 1e-3,
        learn_epsilon: bool = False,
        scale: bool = True,
    ) -> None:
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise ValueError(
                f"YatDense: in_features and out_features must be at least 1; got {in_features} and {out_features}"
            )
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.softening = Softening(epsilon, learn_epsilon)
        self.scale = UnitScale(out_features) if scale else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the prototypes anew and sets b to 0; ε and α stay."""
        start_prototypes(self.weight, self.out_features, scaled=self.scale is not None)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., d)` to `(..., n)`.

        Raises:
            ValueError: on another number of features.
            TypeError: on float16, and on a signal of another dtype than the layer's outside autocast.
        """
        if x.ndim < 1 or x.shape[-1] != self.in_features:
            raise ValueError(f"YatDense: expected a signal (..., {self.in_features}); got {tuple(x.shape)}")
        dtype = answering_dtype("YatDense", x, self.weight)
        epsilon, scale = self.softening(), None if self.scale is None else self.scale()
        keep = backward_may_come(x, self.weight, self.bias, epsilon, scale)
        rows = x.reshape(-1, self.in_features).to(dtype)
        out, _ = yat_dense(DenseInputs(rows, self.weight.to(dtype), self.bias, epsilon, scale), keep)
        return out.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
