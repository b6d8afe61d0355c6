"""Tasks that predict a label for each element of an example, such as each word of a sentence."""

from abc import ABC, abstractmethod
from typing import NamedTuple, final

from torch import Tensor, nn

from .task import Batch


@final
class LabelledElements(NamedTuple):
    """Predictions for the n elements of a batch whose label is known.

    Args:
        predicted, targets: numbers of labels, int64 `(n,)`.
        probability: of the predicted labels, `(n,)`.
    """

    predicted: Tensor
    targets: Tensor
    probability: Tensor


class LabelsElements(ABC):
    """Marks such tasks."""

    @property
    @abstractmethod
    def element_names(self) -> tuple[str, ...]:
        """The names of the labels."""

    @abstractmethod
    def labelled_elements(self, model: nn.Module, batch: Batch) -> LabelledElements:
        """Predictions for a batch of `held_out_batch`."""
