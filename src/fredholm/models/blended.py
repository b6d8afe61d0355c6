"""Blends of a network trained by gradient descent and a model fitted in closed form."""

from abc import ABC
from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.domains.checks import values_can_be_read
from fredholm.encoders.function import FunctionBatch
from fredholm.encoders.image_text import ImageTextBatch
from fredholm.encoders.series import SeriesBatch
from fredholm.models.field_model import FieldModel
from fredholm.models.fields.function_regression import FunctionRegression
from fredholm.models.fitted.banks.image_bank import ImageBank
from fredholm.models.fitted.graphs.node_machine import KnownNodes, NodeMachine
from fredholm.models.fitted.sample_machine import SampleMachine
from fredholm.models.fitted.table_machine import TableBatch, TableMachine
from fredholm.models.saved_model import SavedModel
from fredholm.models.series.reading_in_parts import read_in_parts

Network = TypeVar("Network", bound=SavedModel)
Fitted = TypeVar("Fitted", bound=SavedModel)


class Blended(SavedModel, ABC, Generic[Network, Fitted]):
    """s N(a) + (1 - s) R(a), the blend of a network N trained in steps and a model R fitted in closed form.

    Training uses the network alone, so that it learns the whole output. s is chosen afterwards, on examples that
    neither part was trained on. With few examples R is usually more accurate, with many N.

    Args:
        network: N.
        fitted: R, with the number of outputs of N; its parameters are frozen.

    Attributes:
        share: s, a float32 scalar in [0, 1]; initially 1.
    """

    share: Tensor

    def __init__(self, network: Network, fitted: Fitted) -> None:
        super().__init__()
        self.network, self.fitted = network, fitted.requires_grad_(False)
        self.register_buffer("share", torch.ones(()))

    def answer_network(self, *given: Any) -> Tensor:
        """Computes N(a) from the inputs of the blend."""
        return self.network(*given)

    def answer_fitted(self, *given: Any) -> Tensor:
        """Computes R(a) from the inputs of the blend."""
        return self.fitted(*given)

    @final
    def with_share(self, share: float) -> Callable[..., Tensor]:
        """Returns a function that computes `forward` with `share` for s."""
        return lambda *given: self._blended(share, *given)

    @final
    def _answer(self, *given: Any) -> Tensor:
        """Computes the output of `forward`."""
        if self.training:
            return self.answer_network(*given)
        return self._blended(float(self.share) if values_can_be_read(self.share) else self.share, *given)

    def _blended(self, share: float | Tensor, *given: Any) -> Tensor:
        if isinstance(share, float) and share in (0.0, 1.0):
            return self.answer_network(*given) if share else self.answer_fitted(*given)
        return self.mixed(self.answer_network(*given), self.answer_fitted(*given), share)

    def mixed(self, learnt: Tensor, fitted: Tensor, share: float | Tensor) -> Tensor:
        """Blends the outputs of both parts; `share` is s."""
        return blend(learnt, fitted, share)


def blend(learnt: Tensor, fitted: Tensor, share: float | Tensor) -> Tensor:
    """Returns s N + (1 - s) R in the dtype of N; just R for s = 0 and N for s = 1, even if the other is not finite."""
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


@final
class BlendedNodes(Blended[SavedModel, NodeMachine]):
    """Blend of a network of the nodes of a graph and a node machine; see `Blended`.

    Outputs are blended, as in `BlendedImages`. A node machine finds products of features, and links between unlike
    nodes, from fewer labelled nodes; a network combines many weak features.

    Args:
        network: a network of graphs with an output at every node.
        fitted: a machine with as many outputs.
    """

    def __init__(self, network: SavedModel, fitted: NodeMachine) -> None:
        super().__init__(network, fitted)

    def forward(self, inputs: KnownNodes) -> Tensor:
        """Maps a graph to outputs at all nodes `(N, num_outputs)`; the network does not use the known nodes."""
        return self._answer(inputs)

    def answer_network(self, *given: KnownNodes) -> Tensor:
        """See `Blended.answer_network`."""
        (inputs,) = given
        return self.network(inputs.graph)[0]


@final
class BlendedSamples(Blended[SavedModel, SampleMachine]):
    """Blend of a network with outputs at the samples of series, and a sample machine; see `Blended`.

    Outputs are blended, as in `BlendedImages`. A machine needs fewer series, and finds levels and spreads; a network
    finds shapes.

    Args:
        network: a network of series with an output at every sample.
        fitted: a machine with as many outputs.
        window: most samples that the network reads at a time, see `read_in_parts`; None: all. The machine reads whole
            series.
    """

    def __init__(self, network: SavedModel, fitted: SampleMachine, window: int | None = None) -> None:
        super().__init__(network, fitted)
        self.window = window

    def forward(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Maps a batch to outputs `(B, N, num_outputs)`, which are 0 at samples that do not exist."""
        return self._answer(inputs if isinstance(inputs, SeriesBatch) else SeriesBatch(inputs))

    def answer_network(self, *given: SeriesBatch) -> Tensor:
        """See `Blended.answer_network`."""
        (inputs,) = given
        return read_in_parts(self.network, inputs, self.window)


@final
class BlendedImageTexts(Blended[SavedModel, TableMachine]):
    """Blend of a network of images with a text and a table machine, which reads them as columns of a row.

    Logits are blended, as in `BlendedImages`. Where a text or an image alone determines the target, a table machine
    learns this from few examples; a network also learns relations between both, such as a question about an image.

    Args:
        network: a network of `ImageTextBatch`, with standardised images.
        fitted: a machine of one column of texts and a column for each image, with as many outputs.
        mean, deviation: per channel, of pixels in [0, 1]; the images were standardised with them.

    Raises:
        ValueError: the machine reads other columns, or has other channels.
    """

    def __init__(
        self, network: SavedModel, fitted: TableMachine, mean: tuple[float, ...], deviation: tuple[float, ...]
    ) -> None:
        super().__init__(network, fitted)
        reading = fitted.reading
        others = (reading.num_numbers, reading.num_categories, reading.series) != (0, (), ())
        if others or reading.num_texts != 1 or reading.num_images == 0:
            raise ValueError(
                "models.BlendedImageTexts: the table machine reads other columns; expected one of texts and at least "
                "one of images"
            )
        if not len(mean) == len(deviation) == reading.channels:
            raise ValueError(
                f"models.BlendedImageTexts: mean and deviation have {len(mean)} and {len(deviation)} channels; "
                f"expected {reading.channels}, as many as images of the table machine"
            )
        self.mean, self.deviation = mean, deviation

    def forward(self, inputs: ImageTextBatch) -> Tensor:
        """Texts with images to outputs `(B, num_outputs)`."""
        return self._answer(inputs)

    def answer_fitted(self, *given: ImageTextBatch) -> Tensor:
        """See `Blended.answer_fitted`."""
        (inputs,) = given
        return self.fitted(self.row(inputs))

    def row(self, inputs: ImageTextBatch) -> TableBatch:
        """Returns the rows that the table machine reads, with pixels from 0 to 255."""
        images = inputs.images.float()
        mean, deviation = (images.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.deviation))
        pixels = ((images * deviation + mean) * 255).round().clamp(0, 255).to(torch.uint8)
        return TableBatch.of(images.new_zeros(len(images), 0), tokens=inputs.tokens[:, None], images=pixels)
