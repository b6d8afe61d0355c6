"""The SIREN: a perceptron of sines.

Legend
    h^l      layer l = 1 ... D - 1, h^0 = x        n_l     units of h^l; n_0 = s
    ω0       frequency of the sines

    h^l = sin(ω0 (W^l h^{l-1} + b^l)),   f(x) = W^D h^{D-1} + b^D

At the start: W^1 uniform in ±1/s, the other W^l in ±√(6/n_{l-1})/ω0, ω0 b^l uniform over one period, b^D = 0.

Source: Neural Fields Meet Attention, table 3, and Sitzmann et al. 2020, 3.2. Readings and deviations: the paper's
"num_layers" is taken as D, the output layer counted; its ±1/2 for W^1 is 1/s in the plane, and 1/3 in space; it does
not specify biases, which here start as in `kernels.KernelNetwork`.
"""

import itertools
import math
from typing import final

import torch
from torch import Tensor

from fredholm._settings import check_count, check_positive
from fredholm.fields.field import Field
from fredholm.fields.jet import Jet


@final
class SIREN(Field):
    """f(x) = W^D sin(ω0 (... sin(ω0 (W^1 x + b^1)) ...)) + b^D, for any number of fields at once.

    θ holds W^1 (rows of outputs), b^1, W^2, b^2, ... one after the other.

    Args:
        pos_dim: coordinates s of x.
        out_dim: values m.
        width: units n of each layer of sines.
        depth: linear layers D, the output layer counted, >= 2.
        omega_0: ω0, in radians per unit of x, > 0.

    Raises:
        ValueError: on sizes below 1, a depth below 2, or an ω0 that is not positive and finite.
    """

    def __init__(
        self, pos_dim: int, out_dim: int = 1, *, width: int = 64, depth: int = 3, omega_0: float = 30.0
    ) -> None:
        super().__init__()
        for what, size in (("pos_dim", pos_dim), ("out_dim", out_dim), ("width", width)):
            check_count("fields.SIREN", what, size)
        if depth < 2:
            raise ValueError(f"fields.SIREN: depth counts linear layers and must be at least 2; got {depth}")
        check_positive("fields.SIREN", "omega_0", omega_0)
        self.pos_dim, self.out_dim, self.omega_0 = pos_dim, out_dim, omega_0
        units = [pos_dim, *(width,) * (depth - 1), out_dim]
        self.shapes = [(outputs, inputs) for inputs, outputs in itertools.pairwise(units)]
        self.num_parameters = sum(outputs * (inputs + 1) for outputs, inputs in self.shapes)

    def layers(self, parameters: Tensor) -> list[tuple[Tensor, Tensor]]:
        """W^l `(..., n_l, n_{l-1})` and b^l `(..., n_l)`, views of θ `(..., P)`."""
        found, start = [], 0
        for outputs, inputs in self.shapes:
            middle = start + outputs * inputs
            weight = parameters[..., start:middle].unflatten(-1, (outputs, inputs))
            found.append((weight, parameters[..., middle : middle + outputs]))
            start = middle + outputs
        return found

    def _bounds(self) -> list[tuple[float, float]]:
        """Half the width of the uniform distribution of W^l and of b^l at the start."""
        bounds = []
        for index, (_, inputs) in enumerate(self.shapes):
            weight = 1 / inputs if index == 0 else math.sqrt(6 / inputs) / self.omega_0
            bounds.append((weight, math.pi / self.omega_0 if index < len(self.shapes) - 1 else 0.0))
        return bounds

    def draw(self) -> Tensor:
        """See `Field.draw`; the distribution is that at the top of this file."""
        parts = []
        for (outputs, inputs), (weight, bias) in zip(self.shapes, self._bounds(), strict=True):
            parts += [weight * (2 * torch.rand(outputs * inputs) - 1), bias * (2 * torch.rand(outputs) - 1)]
        return torch.cat(parts)

    def sizes(self) -> Tensor:
        """See `Field.sizes`; b^D counts as the weights of its layer do."""
        parts = []
        for (outputs, inputs), (weight, bias) in zip(self.shapes, self._bounds(), strict=True):
            parts += [torch.full((outputs * inputs,), weight), torch.full((outputs,), bias or weight)]
        return torch.cat(parts) / math.sqrt(3)

    def amplitudes(self) -> Tensor:
        """See `Field.amplitudes`: W^D and b^D."""
        outputs, inputs = self.shapes[-1]
        return torch.arange(self.num_parameters) >= self.num_parameters - outputs * (inputs + 1)

    def values(self, parameters: Tensor, x: Tensor) -> Tensor:
        """See `Field.values`."""
        *hidden, (weight, bias) = self.layers(parameters)
        for W, b in hidden:
            x = torch.sin(self.omega_0 * (x @ W.mT + b[..., None, :]))
        return x @ weight.mT + bias[..., None, :]

    def derivatives(self, parameters: Tensor, x: Jet) -> Jet:
        """See `Field.derivatives`: one pass forward, no second backward pass."""
        *hidden, (weight, bias) = self.layers(parameters)
        for W, b in hidden:
            x = x.mapped(W, b).sine(self.omega_0)
        return x.mapped(weight, bias)

    def extra_repr(self) -> str:
        """The sizes that `print(module)` shows."""
        return (
            f"pos_dim={self.pos_dim}, out_dim={self.out_dim}, width={self.shapes[0][0]}, depth={len(self.shapes)}, "
            f"omega_0={self.omega_0:g}"
        )
