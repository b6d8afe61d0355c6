"""A classifier with one Yat prototype per class, each of the shape of an input."""

import copy
import math
from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.layers.yat_dense import YatDense


@final
class YatClassifier(nn.Module):
    """Logits s yat(x, w_c) of prototypes w_c in input space; the response of class c peaks next to w_c.

    Without a bias, the default, a logit is 0 for inputs orthogonal to w_c, and never negative.

    Args:
        in_features: d, or the shape of an input, such as (28, 28), which the prototypes then have too.
        num_classes: >= 1.
        bias, epsilon, learn_epsilon, scale: as in `YatDense`.

    Attributes:
        units: the `YatDense` layer.

    Raises:
        ValueError: on sizes below 1 and an ε that is not positive and finite.
    """

    def __init__(
        self,
        in_features: int | Sequence[int],
        num_classes: int,
        *,
        bias: bool = False,
        epsilon: float = 1e-3,
        learn_epsilon: bool = False,
        scale: bool = True,
    ) -> None:
        super().__init__()
        self.shape = tuple(in_features) if isinstance(in_features, Sequence) else (in_features,)
        if not self.shape:
            raise ValueError("YatClassifier: in_features is a number, or the shape of an input; got ()")
        for size in self.shape:
            check_count("YatClassifier", "in_features", size)
        check_count("YatClassifier", "num_classes", num_classes)
        self.units = YatDense(
            math.prod(self.shape), num_classes, bias=bias, epsilon=epsilon, learn_epsilon=learn_epsilon, scale=scale
        )

    @property
    def prototypes(self) -> Tensor:
        """w, `(num_classes, *shape)`, with its gradient."""
        return self.units.weight.unflatten(1, self.shape)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., *shape)` to logits `(..., num_classes)`.

        Raises:
            ValueError: on inputs of another shape.
            TypeError: as `YatDense`.
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"YatClassifier: expected a tensor; got {type(x).__name__}; torch.as_tensor makes one")
        axes = len(self.shape)
        if x.shape[-axes:] != self.shape:
            raise ValueError(f"YatClassifier: expected inputs that end in {self.shape}; got {tuple(x.shape)}")
        return self.units(x.flatten(-axes))

    def inverted(self) -> Self:
        """A copy with -w for w and everything else the same: the response to x is then that of w to -x, if b = 0."""
        other = copy.deepcopy(self)
        with torch.no_grad():
            other.units.weight.neg_()
        return other
