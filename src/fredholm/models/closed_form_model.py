"""Base class of models that are computed from data in closed form, which keep their precision."""

import abc
from collections.abc import Callable
from typing import Any, Self, final

import torch
from torch import Tensor

from fredholm.models.saved_model import SavedModel


class ClosedFormModel(SavedModel, abc.ABC):
    """A model whose numbers are computed from data, not learned by steps.

    These numbers, such as thresholds, centres, standardisation and weights, are never rounded to fewer digits:
    `.half()`, `.bfloat16()` and `.to` move them and widen them only. Rounded thresholds, and sums whose large terms
    cancel, would change outputs by far more than their last digit. Inputs may have 16 bits; unless a model says
    otherwise, outputs are in the dtype of its weights, float32 or float64.
    """

    @final
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Applies `fn` as `torch.nn.Module` does, in submodules too, but ignores conversions to narrower dtypes."""

        def applied(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            if tensor.is_floating_point() and torch.promote_types(tensor.dtype, found.dtype) != found.dtype:
                return tensor.to(found.device)
            return found

        apply: Any = super()._apply
        return apply(applied, recurse)
