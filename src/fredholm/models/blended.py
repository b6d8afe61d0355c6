"""A network and a model in closed form beside it, of which each takes a share in the answer."""

from abc import ABC
from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
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
    def of_share(self, share: float) -> Callable[..., Tensor]:
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
