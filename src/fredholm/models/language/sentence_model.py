"""The common interface of models of sentences, and networks on the signal of an encoder of tokens."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable
from typing import ClassVar, Self, final

from torch import Tensor, nn

from fredholm._settings import check_count, refuse_idle
from fredholm.encoders.text import Text
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import AttentionConfig, ConvolutionConfig, SumConfig
from fredholm.models.model_settings import ModelSettings
from fredholm.models.signal_model import SignalModel


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenReading:
    """Description of the rows of tokens that a model reads, padded to the longest.

    Args:
        vocab_size: number of tokens V; tokens are 0 to V - 1.
        context: most tokens of a row.
        pad: the padding token.
        separator: the token that ends a sentence, once per row, or twice where rows are pairs of sentences.
        spelling: text of each token, with a space where a word begins or ends; "" for special tokens. None: unknown,
            so that models of letters are refused.
    """

    vocab_size: int
    context: int
    pad: int
    separator: int
    spelling: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context"):
            check_count("models.TokenReading", name, getattr(self, name))
        for name in ("pad", "separator"):
            token = getattr(self, name)
            if not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"models.TokenReading: {name} is {token}; expected a token, 0 to {self.vocab_size - 1}"
                )
        if self.spelling is not None and len(self.spelling) != self.vocab_size:
            raise ValueError(
                f"models.TokenReading: spelling is of {len(self.spelling)} tokens; expected vocab_size, "
                f"{self.vocab_size}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceModelConfig(ModelSettings, abc.ABC):
    """Configuration of a model from rows of tokens, int64 `(B, N)`, to one output vector per row."""

    learns_by_steps: ClassVar[bool] = True
    """Whether the model is trained in steps, so that a validation split is needed to choose the best one."""

    @property
    def max_input_tokens(self) -> int | None:
        """Most tokens that the model can read; None: no limit besides the context of the rows."""
        return None

    @abc.abstractmethod
    def check(self) -> None:
        """Raises a ValueError if the model has an output at every token where one output per sentence is needed."""

    @abc.abstractmethod
    def recommended(self, rows: Iterable[Tensor], reading: TokenReading, width: int, depth: int) -> Self:
        """Returns the settings with sizes recommended for the training sentences, where none were set.

        Args:
            rows: rows of tokens, batch by batch.
            reading: description of the rows.
            width: recommended number of channels of a network.
            depth: recommended number of blocks.
        """

    @abc.abstractmethod
    def build(self, reading: TokenReading, num_outputs: int) -> nn.Module:
        """Builds a model, with random numbers from the global torch seed.

        Args:
            reading: description of the rows.
            num_outputs: number of outputs, such as one logit per class.
        """


def _small() -> SignalModel.Config:
    """A small stack of convolution and attention; mean pooling keeps a trace of each word, as a bag of words does."""
    kernel = SumConfig(first=ConvolutionConfig(kernel_size=3, depthwise=True), second=AttentionConfig())
    return ITNet.Config(embed_dim=64, depth=1, kernel=kernel, pool="mean", dropout=0.3)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceStackConfig(SentenceModelConfig):
    """A network on the signal of `encoders.Text`; ITNet, section 3 and K.2.

    Rows begin with a class token, which the head may read.
    """

    stack: SignalModel.Config = dataclasses.field(default_factory=_small)
    """The network and its pooling."""
    position_frequencies: int = 16
    """Number of Fourier frequencies of the positions in the signal (kernels have their own); 0: none."""
    position_sigma: float = 10.0
    """Standard deviation of these frequencies, in cycles per context; refused without frequencies."""

    def __post_init__(self) -> None:
        if self.position_frequencies == 0:
            refuse_idle(
                "models.SentenceStackConfig",
                SentenceStackConfig,
                "position_frequencies=0",
                "give position_frequencies",
                position_sigma=self.position_sigma,
            )

    def check(self) -> None:
        """See `SentenceModelConfig.check`."""
        self.stack.check_pools("a sentence")

    def recommended(self, rows: Iterable[Tensor], reading: TokenReading, width: int, depth: int) -> Self:
        """See `SentenceModelConfig.recommended`: sets channels and blocks."""
        return dataclasses.replace(self, stack=self.stack.resized(width, depth, _small()))

    def build(self, reading: TokenReading, num_outputs: int) -> SignalModel:
        """See `SentenceModelConfig.build`."""
        encoder = Text(
            reading.vocab_size,
            self.stack.embed_dim,
            context=reading.context,
            num_frequencies=self.position_frequencies,
            sigma=self.position_sigma,
            pad=reading.pad,
            separator=reading.separator,
            has_class_token=True,
        )
        return self.stack.build(encoder, num_outputs)
