"""What the models of sentences have in common: how they are built, and networks that read tokens by an encoder."""

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
    """How sentences reach a model: as rows of tokens, filled up to the longest.

    Args:
        vocab_size: number of tokens V; tokens are 0 to V - 1.
        context: most tokens of a row.
        pad: the token that fills rows up.
        separator: the token that ends a sentence, once in a row, or twice where rows are pairs of them.
        spelling: what each token stands for, with a space before what begins a word and after what ends one, such as
            a mark; "" for what is no text. None: models that read letters are refused.
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
    """A model that takes rows of tokens, int64 `(B, N)`, and gives one vector a row."""

    learns_by_steps: ClassVar[bool] = True
    """Whether training goes on in steps, so that something is chosen by a validation split."""

    @property
    def most_tokens(self) -> int | None:
        """That the model can read; None: as many as it is built for."""
        return None

    @abc.abstractmethod
    def check(self) -> None:
        """Raises a ValueError where the model answers at every token, and one answer is wanted of a sentence."""

    @abc.abstractmethod
    def recommended(self, rows: Iterable[Tensor], reading: TokenReading, width: int, depth: int) -> Self:
        """The same with sizes that suit the training sentences, where none were set.

        Args:
            rows: of tokens, batch by batch.
            reading: of the rows.
            width: channels of a network for so many sentences.
            depth: its blocks.
        """

    @abc.abstractmethod
    def build(self, reading: TokenReading, num_outputs: int) -> nn.Module:
        """A new model, from the global torch seed.

        Args:
            reading: the rows of tokens.
            num_outputs: such as one logit a class.
        """


def _small() -> SignalModel.Config:
    """Words with their neighbours, and attention; the mean keeps something of each word, as a bag of them does."""
    kernel = SumConfig(first=ConvolutionConfig(kernel_size=3, depthwise=True), second=AttentionConfig())
    return ITNet.Config(embed_dim=64, depth=1, kernel=kernel, pool="mean", dropout=0.3)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceStackConfig(SentenceModelConfig):
    """A network on the signal of `encoders.Text`; ITNet, section 3 and K.2.

    Rows begin with a class token, which the head may read.
    """

    stack: SignalModel.Config = dataclasses.field(default_factory=_small)
    """The network, and what its head reads."""
    position_frequencies: int = 16
    """Fourier frequencies of the positions that enter the signal (kernels have theirs); 0 keeps positions out of it."""
    position_sigma: float = 10.0
    """Standard deviation of these frequencies, in cycles a context; refused where there are none."""

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
        """See `SentenceModelConfig.recommended`: the channels and the blocks."""
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
