"""A pointwise operator that is called as torch's linear layer is."""

from typing import Self, cast, final

from torch import Tensor, nn

from fredholm.domains import Sequence
from fredholm.kernels import Pointwise
from fredholm.layers.torch_layers.layer import (
    LayoutConverter,
    TorchLayer,
    check_format,
    is_direct,
    lowered,
    sole_kernel,
)
from fredholm.operators.integral import IntegralOperator


@final
class LinearLayer(TorchLayer[nn.Linear]):
    """An `IntegralOperator` with a pointwise kernel, on tensors of any shape `(..., C)`.

    Args:
        kernel: the pointwise kernel.
        bias: whether a constant is added; it starts at 0.

    Attributes:
        operator: the integral operator. Every vector is a signal with one point. Without a fixed route and without
            hooks on it, one matrix product computes integral and bias together.
        weight, bias: as in `torch.nn.Linear`; the kernel's and the operator's parameters.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    # torch's attention holds its output projection in a class of its own, which is a plain linear layer
    natives = (nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)
    foreign = ("transformers.pytorch_utils.Conv1D",)  # the linear layer of GPT-2, which holds its weight transposed

    def __init__(self, kernel: Pointwise, *, bias: bool = True) -> None:
        super().__init__({"weight": "operator.kernel.weight", "bias": "operator.bias"})
        if not isinstance(kernel, Pointwise):
            raise TypeError(f"LinearLayer: kernel must be a kernels.Pointwise; got {type(kernel).__name__}")
        self.operator = IntegralOperator(kernel, residual=False, bias=bias, output_projection=False)

    @property
    def kernel(self) -> Pointwise:
        """The pointwise kernel."""
        return sole_kernel(self, self.operator, Pointwise)

    @property
    def in_features(self) -> int:
        """Number of input channels."""
        return self.kernel.in_dim

    @property
    def out_features(self) -> int:
        """Number of output channels."""
        return self.kernel.out_dim

    def forward(self, input: Tensor) -> Tensor:
        """`(..., in_features)` to `(..., out_features)`.

        Raises:
            ValueError, TypeError: on other channels, dtypes or devices.
        """
        operator, kernel = self.operator, self.kernel
        if not isinstance(input, Tensor) or input.ndim == 0:
            raise TypeError(f"LinearLayer: expected a tensor (..., {kernel.in_dim}); got {input!r}")
        if input.shape[-1] != kernel.in_dim:
            raise ValueError(f"LinearLayer: expected (..., {kernel.in_dim} channels); got {tuple(input.shape)}")
        check_format(self, "the input", input, kernel.weight)
        if is_direct(operator):
            return nn.functional.linear(input, kernel.weight, operator.bias)
        out = operator(input.reshape(-1, 1, kernel.in_dim), Sequence(1, device=input.device))
        return lowered(out.view(*input.shape[:-1], kernel.out_dim))

    @classmethod
    def _blank(cls, module: nn.Module) -> nn.Module:
        if not isinstance(module, nn.Linear):
            return type(module)(module.nf, module.nx)
        return type(module)(module.in_features, module.out_features, bias=module.bias is not None)

    @classmethod
    def _shaped_like(cls, blank: nn.Module) -> Self:
        if not isinstance(blank, nn.Linear):
            return cls(Pointwise(cast(int, blank.nx), cast(int, blank.nf)))
        return cls(Pointwise(blank.in_features, blank.out_features), bias=blank.bias is not None)

    def _native(self) -> nn.Linear:
        return nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)

    def _take(self, module: nn.Module, relaid: LayoutConverter) -> None:
        super()._take(module, relaid)
        if not isinstance(module, nn.Linear):
            [self.weight] = relaid("a transposed weight", [self.kernel.weight], lambda weight: (weight.T,))
