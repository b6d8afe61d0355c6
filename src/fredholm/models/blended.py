"""A network and a model in closed form beside it, of which each takes a share in the answer."""

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
    """s N(a) + (1 - s) R(a), of a network N that learns in steps and a model R in closed form.

    In training it is the network alone, which so learns the whole answer; s is chosen afterwards, by examples that
    neither was trained on. Of few examples R knows more, which its left-out errors fit to them; many by N.

    Args:
        network: N.
        fitted: R, which takes what N takes, with as many outputs; its parameters are frozen.

    Attributes:
        share: s, a float32 scalar, 0 to 1; 1 at first.
    """

    share: Tensor

    def __init__(self, network: Network, fitted: Fitted) -> None:
        super().__init__()
        self.network, self.fitted = network, fitted.requires_grad_(False)
        self.register_buffer("share", torch.ones(()))

    @final
    def with_share(self, share: float) -> Callable[..., Tensor]:
        """The same function with another s."""
        return lambda *given: self._blended(share, *given)

    @final
    def _answer(self, *given: Any) -> Tensor:
        """What `forward` gives."""
        if self.training:
            return self.network(*given)
        return self._blended(float(self.share) if values_can_be_read(self.share) else self.share, *given)

    def _blended(self, share: float | Tensor, *given: Any) -> Tensor:
        if isinstance(share, float) and share in (0.0, 1.0):
            return self.network(*given) if share else self.fitted(*given)
        return self.mixed(self.network(*given), self.fitted(*given), share)

    def mixed(self, learnt: Tensor, fitted: Tensor, share: float | Tensor) -> Tensor:
        """The answer of both, from that of each; `share` is s."""
        return blend(learnt, fitted, share)


def blend(learnt: Tensor, fitted: Tensor, share: float | Tensor) -> Tensor:
    """s N + (1 - s) R in the dtype of N; where s is 0 or 1, one of them alone, whatever the other one is."""
    if isinstance(share, float) and share in (0.0, 1.0):
        return learnt if share else fitted.to(learnt.dtype)
    return torch.lerp(fitted.to(learnt.dtype), learnt, share)


@final
class BlendedOperator(Blended[FieldModel, FunctionRegression]):
    """A network of functions with a kernel regression beside it; see `Blended`.

    An operator that is linear, or of which there are few pairs, is learnt better by the regression; what bends, and
    many pairs, by the network.

    Args:
        network: it answers at every point.
        fitted: with as many outputs.

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
        """The answers `(B, Nq, num_outputs)` at the points `at`, or where the inputs are; see `FieldModel.forward`."""
        return self._answer(inputs, at)


@final
class BlendedImages(Blended[SavedModel, ImageBank]):
    """A network of images with a bank of patches beside it; see `Blended`.

    Outputs are blended, of classes and labels the logits: probabilities are then their weighted geometric means.

    Args:
        network: of images `(B, C, H, W)`.
        fitted: with as many outputs.
    """

    def __init__(self, network: SavedModel, fitted: ImageBank) -> None:
        super().__init__(network, fitted)

    def forward(self, images: Tensor) -> Tensor:
        """Images `(B, C, H, W)` to outputs `(B, num_outputs)`."""
        return self._answer(images)
