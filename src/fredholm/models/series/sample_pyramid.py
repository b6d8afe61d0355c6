"""A network of stencils through grids of all scales, with outputs at each sample of a series."""

import dataclasses
import math
from typing import Self, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_rate
from fredholm.encoders.series import SeriesBatch
from fredholm.encoders.series_pyramid import SeriesPyramid
from fredholm.models.saved_model import SavedModel
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling

MOST_READ = 4096
"""Samples that are read at a time to answer, at least."""


@final
class SamplePyramid(SavedModel):
    """`encoders.SeriesPyramid`, a norm of the channels at each sample, and a linear head: a U-Net of series.

    Args:
        encoder: turns series into a signal at their samples.
        num_outputs: number of outputs of the head, such as one logit per class.
        config: sizes and regularisation.

    Raises:
        ValueError: on sizes below 1.
    """

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SeriesModelConfig):
        """Sizes and regularisation."""

        embed_dim: int = 64
        """Number of channels of the signal."""
        strides: tuple[int, ...] = (3, 3, 3)
        """Cells of each grid along one of the next, coarser one; the finest cells are the samples."""
        depth: int = 1
        """Residual stencils on each grid on the way down."""
        dropout: float = 0.1
        """Dropout rate before the head."""

        def __post_init__(self) -> None:
            check_count("models.SamplePyramid", "embed_dim", self.embed_dim)
            check_count("models.SamplePyramid", "depth", self.depth, 0)
            for stride in self.strides:
                check_count("models.SamplePyramid", "strides", stride, 2)
            if not self.strides:
                raise ValueError("models.SamplePyramid: strides is (); expected at least one")
            check_rate("models.SamplePyramid", "dropout", self.dropout)

        def check(self) -> None:
            """See `SeriesModelConfig.check`: raises, since there is one output per sample."""
            raise ValueError(
                "model is SamplePyramid, which has an output for each sample; give each a class, or take another model"
            )

        def answering_everywhere(self) -> Self:
            """See `SeriesModelConfig.answering_everywhere`."""
            return self

        @property
        def coarsest(self) -> int:
            """Samples of a cell of the coarsest grid."""
            return math.prod(self.strides)

        def window_of_answers(self, window: int | None) -> int | None:
            """See `SeriesModelConfig.window_of_answers`: norms over longer parts are more accurate."""
            return MOST_READ if window is None else max(window, MOST_READ)

        def build(self, sampling: SeriesSampling, num_outputs: int) -> "SamplePyramid":
            """See `SeriesModelConfig.build`."""
            encoder = SeriesPyramid(
                sampling.channels, self.embed_dim, self.strides, depth=self.depth, spacing=sampling.spacing
            )
            return SamplePyramid(encoder, num_outputs, self)

    def __init__(self, encoder: SeriesPyramid, num_outputs: int, config: Config) -> None:
        super().__init__()
        check_count("models.SamplePyramid", "num_outputs", num_outputs)
        self.config, self.encoder = config, encoder
        self.norm, self.dropout = nn.LayerNorm(encoder.embed_dim), nn.Dropout(config.dropout)
        self.head = nn.Linear(encoder.embed_dim, num_outputs)

    def forward(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Maps a batch to outputs `(B, N, num_outputs)`, which are 0 at samples that do not exist."""
        u, domain = self.encoder(inputs)
        outputs = self.head(self.dropout(nn.functional.gelu(self.norm(u))))
        return outputs if domain.mask is None else torch.where(domain.mask[..., None], outputs, 0.0)
