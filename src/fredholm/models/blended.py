"""Blends of a network trained by gradient descent and a model fitted in closed form."""

from abc import ABC
from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.domains.checks import values_can_be_read
from fredholm.encoders.function import FunctionBatch
from fredholm.models.field_model import FieldModel
from fredholm.models.fields.function_regression import FunctionRegression
from fredholm.models.fitted.image_bank import ImageBank
from fredholm.models.saved_model import SavedModel

Network = TypeVar("Network", bound=SavedModel)
Fitted = TypeVar("Fitted", bound=SavedModel)


class Blended(SavedModel, ABC, Generic[Network, Fitted]):
    """s N(a) + (1 - s) R(a), the blend of a network N trained in steps and a model R fitted in closed form.

    In training it is the network alone, which so learns the whole output; s is chosen afterwards, on examples that
    neither was trained on. On few examples R is usually more accurate, on many N.

    Args:
        network: N.
        fitted: R, with the inputs and the number of outputs of N; its parameters are frozen.

    Attributes:
        share: s, a float32 scalar in [0, 1]; initially 1.
    """

    share: Tensor

    def __init__(self, network: Network, fitted: Fitted) -> None:
        super().__init__()
        self.network, self.fitted = network, fitted.requires_grad_(False)
        self.register_buffer("share", torch.ones(()))

    @final
    def with_share(self, share: float) -> Callable[..., Tensor]:
        """Returns `forward` with another s."""
        return lambda *given: self._blended(share, *given)

    @final
    def _answer(self, *given: Any) -> Tensor:
        """Computes the output of `forward`."""
        if self.training:
            return self.network(*given)
        return self._blended(float(self.share) if values_can_be_read(self.share) else self.share, *given)

    def _blended(self, share: float | Tensor, *given: Any) -> Tensor:
        if isinstance(share, float) and share in (0.0, 1.0):
            return self.network(*given) if share else self.fitted(*given)
        return self.mixed(self.network(*given), self.fitted(*given), share)

    def mixed(self, learnt: Tensor, fitted: Tensor, share: float | Tensor) -> Tensor:
        """Blends the outputs of both parts; `share` is s."""
        return blend(learnt, fitted, share)


def blend(learnt: Tensor, fitted: Tensor, share: float | Tensor) -> Tensor:
    """Returns s N + (1 - s) R in the dtype of N; for s of 0 or 1 one of them alone, even if the other is not finite."""
    if isinstance(share, float) and share in (0.0, 1.0):
        return learnt if share else fitted.to(learnt.dtype)
    return torch.lerp(fitted.to(learnt.dtype), learnt, share)


@final
class BlendedOperator(Blended[FieldModel, FunctionRegression]):
    """Blend of a neural operator and a kernel regression between functions; see `Blended`.

    The regression is better for linear operators and for few training pairs, the network for nonlinear operators
    and many pairs.

    Args:
        network: a network with an output at every point.
        fitted: a regression with as many outputs.

    Raises:
        ValueError: on a network that pools its signal.
    """

    def __init__(self, network: FieldModel, fitted: FunctionRegression) -> None:
        super().__init__(network, fitted)
        if network.pool != "none":
            raise ValueError(
                f"models.BlendedOperator: the network has pool={network.pool!r}; build it with pool='none', so that it "
                "answers at every point"
            )

    def forward(self, inputs: FunctionBatch, at: Domain | None = None) -> Tensor:
        """Returns outputs `(B, Nq, num_outputs)` at the points `at`, or at the inputs' points; see `FieldModel`."""
        return self._answer(inputs, at)


@final
class BlendedImages(Blended[SavedModel, ImageBank]):
    """Blend of a network of images and a bank of patches; see `Blended`.

    Outputs are blended, which are logits for classes and labels: probabilities are then weighted geometric means.

    Args:
        network: a network of images `(B, C, H, W)`.
        fitted: a bank with as many outputs.
    """

    def __init__(self, network: SavedModel, fitted: ImageBank) -> None:
        super().__init__(network, fitted)

    def forward(self, images: Tensor) -> Tensor:
        """Images `(B, C, H, W)` to outputs `(B, num_outputs)`."""
        return self._answer(images)
