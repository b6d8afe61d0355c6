"""A pointwise operator that is called as torch's linear layer is."""

from typing import Self, final

from torch import Tensor, nn

from fredholm.domains import Sequence
from fredholm.kernels import Pointwise
from fredholm.operators.integral import IntegralOperator
from fredholm.operators.torch_layers.parameters import copy_parameters


@final
class LinearLayer(nn.Module):
    """An `IntegralOperator` with a pointwise kernel, on tensors of any shape `(..., C)`.

    Args:
        kernel: the pointwise kernel.
        bias: whether a constant is added; it starts at 0.

    Attributes:
        operator: the integral operator. Every vector is a signal with one point.
    """

    def __init__(self, kernel: Pointwise, *, bias: bool = True) -> None:
        super().__init__()
        if not isinstance(kernel, Pointwise):
            raise TypeError(f"LinearLayer: kernel must be a kernels.Pointwise; got {type(kernel).__name__}")
        self.operator = IntegralOperator(kernel, residual=False, bias=bias, output_projection=False)

    @property
    def kernel(self) -> Pointwise:
        """The pointwise kernel."""
        assert isinstance(self.operator.kernel, Pointwise)
        return self.operator.kernel

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in_dim)` to `(..., out_dim)`.

        Raises:
            ValueError, TypeError: on other channels, dtypes or devices.
        """
        if not isinstance(x, Tensor) or x.ndim == 0:
            raise TypeError(f"LinearLayer: expected a tensor (..., {self.kernel.in_dim}); got {x!r}")
        out = self.operator(x.reshape(-1, 1, x.shape[-1]), Sequence(1))
        return out.view(*x.shape[:-1], self.kernel.out_dim)

    @classmethod
    def from_torch(cls, module: nn.Linear) -> Self:
        """The same layer as an operator, with copies of its parameters.

        Returns:
            A layer with the module's values, dtype, device, training mode and `requires_grad`.

        Raises:
            TypeError: for any other module, subclasses included.
        """
        if type(module) not in LINEAR:
            raise TypeError(f"LinearLayer.from_torch: converts nn.Linear itself; got {type(module).__name__}")
        layer = cls(Pointwise(module.in_features, module.out_features), bias=module.bias is not None)
        layer.to(device=module.weight.device, dtype=module.weight.dtype)
        copy_parameters(dict(module.named_parameters()), layer._by_torch_name())
        return layer.train(module.training)

    def to_torch(self) -> nn.Linear:
        """A `torch.nn.Linear` with copies of the parameters."""
        weight, bias = self.kernel.weight, self.operator.bias
        module = nn.Linear(
            self.kernel.in_dim, self.kernel.out_dim, bias=bias is not None, device=weight.device, dtype=weight.dtype
        )
        copy_parameters(self._by_torch_name(), dict(module.named_parameters()))
        return module.train(self.training)

    def _by_torch_name(self) -> dict[str, nn.Parameter]:
        bias = self.operator.bias
        return {"weight": self.kernel.weight} | ({} if bias is None else {"bias": bias})


# torch's attention holds its output projection in a class of its own, which is a plain linear layer
LINEAR: tuple[type[nn.Module], ...] = (nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)
