"""The small network of a kernel: from positions to the values of a basis.

Legend
    x          position in [-1, 1]^s             h^l    hidden layer l = 1, 2, h^0 = x
    ω0         frequency of the sines            N      layer normalisation
    v_i, g_i   direction and length of row i     n      inputs of a layer

    h^l = sin(ω0 (W^l h^{l-1} + b^l))            "sine"
    h^l = N(φ(W^l h^{l-1} + b^l))                φ = ReLU, LeakyReLU or Swish
    W_i = g_i v_i / ‖v_i‖                        rows are weight-normalised; one with v = 0 is 0

With a single input v_i / ‖v_i‖ is the sign of v_i, which no gradient changes: v is then a buffer. At the start

    sine:    W^1 in ±1/s, W^2 in ±√(6/n)/ω0, uniform;  ω0 b_i uniform over one period, (-π, π)
    others:  W as Kaiming's for ReLU;  b_i = -W_i h^{l-1}(x_i), x_i uniform in [-1, 1]^s: unit i bends at x_i

Source: CKConv (arXiv 2102.02611), 4.2, B and E.1; W of the sines: Sitzmann et al. 2020, 3.2 and their supplement;
weight normalisation: Salimans and Kingma 2016, eq. 2. Deviations: the paper draws b_i from (-π/‖W_i‖, π/‖W_i‖). Behind
the factor ω0 that is ω0/‖W_i‖ periods and not one, phases of thousands of radians where a row is short; mod 2π both are
the same uniform phase, and one period keeps its precision. The paper uses layer normalisation in the other variants and
does not say where; here it follows φ, so that the bends stay at x_i.
"""

import math
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from fredholm._precision import at_least_float32, without_autocast
from fredholm._settings import check_positive, is_count, refuse_idle


@final
class WeightNormalised(nn.Module):
    """x ↦ W x + b with W_i = g_i v_i / ‖v_i‖, in at least float32 and never under autocast.

    Args:
        weight: W at the start, `(out, in)`; v starts as W and g as the norms of its rows.
        bias: b at the start, `(out,)`.

    Attributes:
        direction: v, `(out, in)`; a buffer where there is a single input.
        magnitude: g, `(out, 1)`.
        bias: b, `(out,)`.
    """

    no_weight_decay = frozenset({"magnitude"})

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.direction: Tensor
        if weight.shape[1] == 1:
            self.register_buffer("direction", weight.sign())
        else:
            self.direction = nn.Parameter(weight.clone())
        self.magnitude = nn.Parameter(torch.linalg.vector_norm(weight, dim=1, keepdim=True))
        self.bias = nn.Parameter(bias.clone())

    @property
    def weight(self) -> Tensor:
        """W, `(out, in)`, in at least float32."""
        # not inside `without_autocast`: autocast changes none of these operations, and exported graphs with nested
        # regions cannot be loaded
        return at_least_float32(self.magnitude) * nn.functional.normalize(at_least_float32(self.direction), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in)` to `(..., out)`."""
        weight = self.weight
        dtype = torch.promote_types(x.dtype, weight.dtype)
        with without_autocast(x):
            return nn.functional.linear(x.to(dtype), weight.to(dtype), self.bias.to(dtype))


KernelActivation = Literal["sine", "relu", "leaky_relu", "swish"]


@final
class KernelNetwork(nn.Module):
    """Two hidden layers: `(..., s)` positions in [-1, 1]^s to `(..., width)` basis functions there.

    Everything is computed in at least float32, under autocast too: bfloat16 cannot resolve a phase of hundreds of
    radians.

    Args:
        pos_dim: coordinates s of a position.
        width: units of each layer.
        activation: "sine", "relu", "leaky_relu" or "swish".
        omega_0: ω0 at the start, in radians per unit of position, > 0; refused without sines.
        learn_omega_0: whether ω0 is learned, as its logarithm; refused without sines.
        spread_bias: whether biases start by the formulas on top of this file, else at 0.
        layer_norm: whether to use layer normalisation; None: for all but sines.

    Attributes:
        log_omega_0: log ω0, a parameter if learned, else a buffer.

    Raises:
        ValueError: on an unknown activation, a width below 1, or an ω0 that is not positive and finite, or has no
            effect.
    """

    def __init__(
        self,
        pos_dim: int = 1,
        *,
        width: int = 32,
        activation: KernelActivation = "sine",
        omega_0: float = 30.0,
        learn_omega_0: bool = False,
        spread_bias: bool = True,
        layer_norm: bool | None = None,
    ) -> None:
        super().__init__()
        _check_options(width, activation, omega_0, learn_omega_0)
        self.width = width
        self.activation: KernelActivation = activation
        log_omega_0 = torch.tensor(math.log(omega_0))
        self.log_omega_0: Tensor
        if learn_omega_0:
            self.log_omega_0 = nn.Parameter(log_omega_0)
        else:
            self.register_buffer("log_omega_0", log_omega_0)
        normed = activation != "sine" if layer_norm is None else layer_norm
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)] if normed else [])
        self.layers = nn.ModuleList()
        spread = 2 * torch.rand(width, pos_dim) - 1  # x_i
        for inputs in (pos_dim, width):
            weight = torch.empty(width, inputs)
            bias = torch.zeros(width)
            if activation == "sine":
                bound = 1 / inputs if not self.layers else math.sqrt(6 / inputs) / omega_0
                nn.init.uniform_(weight, -bound, bound)
                if spread_bias:
                    nn.init.uniform_(bias, -math.pi / omega_0, math.pi / omega_0)
            else:
                nn.init.kaiming_uniform_(weight, nonlinearity="relu")
                if spread_bias:
                    with torch.no_grad():
                        bias = -(weight * self(spread)).sum(1)
            self.layers.append(WeightNormalised(weight, bias))

    def forward(self, x: Tensor) -> Tensor:
        """h²(x), `(..., width)`."""
        for index, layer in enumerate(self.layers):
            x = self._bent(layer(x))
            if self.norms:
                x = self._normalised(x, self.norms[index])
        return x

    def _bent(self, x: Tensor) -> Tensor:
        if self.activation == "sine":
            return torch.sin(self.log_omega_0.to(x.dtype).exp() * x)
        if self.activation == "relu":
            return nn.functional.relu(x)
        return nn.functional.leaky_relu(x) if self.activation == "leaky_relu" else nn.functional.silu(x)

    def _normalised(self, x: Tensor, norm: nn.Module) -> Tensor:
        assert isinstance(norm, nn.LayerNorm)
        weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
        return nn.functional.layer_norm(x, (self.width,), weight, bias, norm.eps)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"width={self.width}, activation={self.activation!r}"


def _check_options(width: int, activation: str, omega_0: float, learn_omega_0: bool) -> None:
    if not is_count(width):
        raise ValueError(f"kernels.KernelNetwork: width must be an integer >= 1; got {width!r}")
    if activation not in get_args(KernelActivation):
        raise ValueError(
            f"kernels.KernelNetwork: activation is one of {get_args(KernelActivation)}; got {activation!r}"
        )
    check_positive("kernels.KernelNetwork", "omega_0", omega_0)
    if activation != "sine":
        refuse_idle(
            "kernels.KernelNetwork",
            KernelNetwork,
            f"activation={activation!r}",
            "take activation='sine'",
            omega_0=omega_0,
            learn_omega_0=learn_omega_0,
        )
