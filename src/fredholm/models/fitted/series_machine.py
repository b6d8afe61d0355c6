"""A bank of filters, and beside it a kernel and trees that read what a series is at which time, and its summaries.

Legend
    S, t_j, u_j     of a channel: samples at which it was observed, and their times and values
    n, Δ            samples of a series, and the time between two in training
    P               `num_places` equal parts of a series' own time, from its first sample to its last

    numbers         of each channel the nine summaries (`summary_bank.py`) and the means of u_j in the P parts, in an
                    empty part the line between the nearest ones that are not;  log n,  (t_n - t_1) / Δ,  and mean and
                    deviation of log (t_{j+1} - t_j) / Δ
    outputs         what both say together (`second_reading.py`)

Filters that are pooled forget when something happened, and what is linear in them cannot say that one thing matters
where another is so. The kernel and the trees know both, and no shapes.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.encoders.series import Series, SeriesBatch
from fredholm.models.fitted.filter_bank import FilterBank
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.ridge_head import Regressand
from fredholm.models.fitted.second_reading import SecondReading
from fredholm.models.fitted.summary_bank import NUM_SUMMARIES, observations, summarise
from fredholm.models.series.series_model import SeriesModelConfig, SeriesSampling

MOST_NUMBERS = 96
"""That are read of a series, about; channels share the places that these leave, at least one each."""
MOST_CHANNELS = 16
"""Up to which `fredholm train series` takes a series machine."""
NUM_OF_TIMES = 4


@final
class SeriesMachine(FittedModel[SeriesBatch]):
    """What a bank of filters says of a series, and what a kernel and trees say of its values by time.

    Args:
        sampling: of the training series.
        num_outputs: such as classes.
        config: sizes.

    Raises:
        ValueError: on sizes below 1.
    """

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SeriesModelConfig):
        """Sizes."""

        learns_by_steps: ClassVar[bool] = False

        bank: FilterBank.Config = dataclasses.field(default_factory=FilterBank.Config)
        """The filters."""
        num_places: int = 32
        """Parts of a series' time, at most; fewer where series are shorter or have many channels."""
        num_centres: int = 1024
        """Training series that are centres of the kernel, at most; all are learnt from."""
        num_trees: int = 100
        """Of each fold, at most; 0: there are none."""

        def __post_init__(self) -> None:
            check_count("models.SeriesMachine", "num_places", self.num_places)
            check_count("models.SeriesMachine", "num_centres", self.num_centres)
            check_count("models.SeriesMachine", "num_trees", self.num_trees, least=0)

        def check(self) -> None:
            """See `SeriesModelConfig.check`: it gives one answer in any case."""

        def build(self, sampling: SeriesSampling, num_outputs: int) -> "SeriesMachine":
            """See `SeriesModelConfig.build`."""
            return SeriesMachine(sampling, num_outputs, self)

    def __init__(self, sampling: SeriesSampling, num_outputs: int, config: Config) -> None:
        super().__init__()
        self.config, self.sampling = config, sampling
        self.bank = config.bank.build(sampling, num_outputs)
        self.encoder = Series(sampling.channels, spacing=sampling.spacing)
        channels = sampling.channels - len(sampling.observation)
        room = MOST_NUMBERS // channels - NUM_SUMMARIES
        self.num_places = max(1, min(config.num_places, sampling.longest, room))
        count = channels * (NUM_SUMMARIES + self.num_places) + NUM_OF_TIMES
        may_miss = tuple(range(count - NUM_OF_TIMES)) if sampling.observation else ()
        self.second = SecondReading(
            count, num_outputs, may_miss=may_miss, num_centres=config.num_centres, num_trees=config.num_trees
        )

    def forward(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """One batch to outputs `(B, num_outputs)`, all equal before a fit."""
        return self.second(self.bank(inputs), self.numbers(inputs))

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[SeriesBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
    ) -> Tensor:
        """Fits the bank and the machine, and chooses how they share; see `FittedModel.fit`."""
        return self.second.fit(self.bank, self.numbers, batches, regressand, groups=groups)

    @torch.no_grad()
    def numbers(self, inputs: Tensor | SeriesBatch) -> Tensor:
        """Summaries, means in parts of time, and what times say, `(B, numbers)`; NaN where one is not defined."""
        given = inputs if isinstance(inputs, SeriesBatch) else SeriesBatch(inputs)
        values, observed, times, exists = observations(self.encoder, self.sampling, given)
        times = times.double() / self.sampling.spacing
        start = torch.where(exists, times, torch.inf).amin(1, keepdim=True)
        end = torch.where(exists, times, -torch.inf).amax(1, keepdim=True)
        lasts = torch.where(exists.any(1, keepdim=True), end - start, 0.0)
        count = exists.sum(1, keepdim=True)
        gap = _gaps(times, exists)
        lies = gap > 0
        number = lies.sum(1, keepdim=True).clamp_min(1)
        logs = torch.where(lies, torch.where(lies, gap, 1.0).log(), 0.0)
        level = logs.sum(1, keepdim=True) / number
        spread = (torch.where(lies, logs - level, 0.0).square().sum(1, keepdim=True) / number).sqrt()
        part = torch.where(exists, times - start, 0.0) / torch.where(lasts > 0, lasts, 1.0)
        place = (part * self.num_places).floor().long().clamp(0, self.num_places - 1)
        found = [
            summarise(values, observed, times, exists),
            self._by_place(values, observed, place).flatten(1),
            torch.cat([count.clamp_min(1).log(), lasts, level, spread], 1),
        ]
        # in float32 whatever the weights are, since of quantiles that are numbers themselves ranks depend on each digit
        return torch.cat([each.float() for each in found], 1)

    def _by_place(self, values: Tensor, observed: Tensor, place: Tensor) -> Tensor:
        """Means of what was observed in each part, `(B, C, P)`, lines between them; NaN of a channel without any."""
        most, at = self.num_places, place[..., None].expand(values.shape)
        nothing = values.new_zeros((values.shape[0], most, values.shape[2]), dtype=torch.float64)
        total = nothing.scatter_add(1, at, torch.where(observed, values, 0.0).double()).transpose(1, 2)
        count = nothing.scatter_add(1, at, observed.double()).transpose(1, 2)
        known = count > 0
        mean = total / count.clamp_min(1)
        # the nearest parts to the left and to the right in which something was observed
        places = torch.arange(most, device=values.device)
        before = torch.where(known[..., None, :] & (places <= places[:, None]), places, -1).amax(-1)
        after = torch.where(known[..., None, :] & (places >= places[:, None]), places, most).amin(-1)
        left = torch.where(before >= 0, before, after).clamp(0, most - 1)
        right = torch.where(after < most, after, before).clamp(0, most - 1)
        share = (places - left) / (right - left).clamp_min(1)
        line = torch.lerp(mean.gather(-1, left), mean.gather(-1, right), share.to(mean.dtype))
        return torch.where(known.any(-1, keepdim=True), line, torch.nan)


def _gaps(times: Tensor, exists: Tensor) -> Tensor:
    """From each sample that exists to the next one that does, `(B, N - 1)`, 0 behind the last; of times `(B, N)`."""
    batch, length = times.shape
    # one after the other, those that do not exist in a place that is not read
    place = torch.where(exists, exists.long().cumsum(1) - 1, length)
    kept = times.new_zeros(batch, length + 1).scatter_add(1, place, torch.where(exists, times, 0.0))[:, :length]
    follows = torch.arange(1, length, device=times.device) < exists.sum(1, keepdim=True)
    return torch.where(follows, kept.diff(dim=1), 0.0)
