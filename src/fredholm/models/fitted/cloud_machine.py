"""A kernel and trees that read numbers of a cloud of points as a whole, in closed form.

Legend
    v       numbers of a cloud: those of `cloud_numbers.py`, which do not depend on where it lies, how large it is, or,
            as `turns` says, which way it is turned;  of each feature of its points mean, deviation, least, largest and
            the covariance with the distance from the centre;  and, where places count, its centre and the logarithm of
            its size
    outputs what a `NumbersMachine` says of v

Nothing is drawn and nothing learnt by steps, and of turned clouds no turn has to be seen in training: some dozens of
clouds are enough to distinguish classes that differ in their shape. What is not in v is not known.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, final, get_args

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.domains.checks import values_can_be_read
from fredholm.encoders.points import PointBatch, check_clouds
from fredholm.models.cloud_model import CloudModelConfig
from fredholm.models.fitted.cloud_numbers import Turns, num_numbers, numbers_of_clouds
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.ridge_head import Regressand
from fredholm.models.fitted.table_machine import NumbersMachine

MOST_FEATURES = 64
"""Of a point, up to which each is summarised in full; of more the mean alone is read."""
_OF_FEATURE = 5
_OF_PLACE = 4
_ROUNDING = 1e-9
"""Deviation up to which a number of a cloud, which is of order 1, is taken for rounding."""
_AT_ONCE = 2**19
"""Pairs of points that are looked at together, about."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudReading:
    """How clouds reach a model.

    Args:
        num_features: numbers that each point has besides its coordinates.
        keeps_place: whether it counts where a cloud lies and how large it is.

    Raises:
        ValueError: fewer than 0 features.
    """

    num_features: int = 0
    keeps_place: bool = False

    def __post_init__(self) -> None:
        check_count("models.CloudReading", "num_features", self.num_features, least=0)


@final
class CloudMachine(FittedModel[PointBatch]):
    """What a kernel and trees say of numbers of a cloud.

    Neither the order of points nor padding nor batch mates change anything. Masses of points are not read.

    Args:
        reading: how clouds reach it.
        num_outputs: such as classes.
        config: sizes.
    """

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(CloudModelConfig):
        """What is read, and sizes."""

        learns_by_steps: ClassVar[bool] = False

        turns: Turns = "none"
        """What answers do not depend on: how a cloud is turned about z ("axis"), or in any way ("all")."""
        num_centres: int = 1024
        """Training clouds that are centres of the kernel, at most; all are learnt from."""
        num_trees: int = 100
        """Of each fold, at most; 0: there are none."""

        def __post_init__(self) -> None:
            if self.turns not in get_args(Turns):
                raise ValueError(
                    f"models.CloudMachine: turns is {self.turns!r}; expected one of {', '.join(get_args(Turns))}"
                )
            check_count("models.CloudMachine", "num_centres", self.num_centres)
            check_count("models.CloudMachine", "num_trees", self.num_trees, least=0)

        def check_pools(self, whole: str) -> None:
            """See `CloudModelConfig.check_pools`: it gives one answer in any case."""

        def build(self, reading: CloudReading, num_outputs: int) -> "CloudMachine":
            """A new model, which answers 0 before a fit."""
            return CloudMachine(reading, num_outputs, self)

    def __init__(self, reading: CloudReading, num_outputs: int, config: Config) -> None:
        super().__init__()
        self.config, self.reading = config, reading
        of_each = _OF_FEATURE if reading.num_features <= MOST_FEATURES else 1
        count = num_numbers(config.turns) + of_each * reading.num_features + _OF_PLACE * reading.keeps_place
        self.machine = NumbersMachine(
            count, num_outputs, num_centres=config.num_centres, num_trees=config.num_trees, rounding=_ROUNDING
        )

    def forward(self, inputs: Tensor | PointBatch) -> Tensor:
        """One batch, or the coordinates `(B, N, 3)` of one, to outputs `(B, num_outputs)`, all equal before a fit.

        Raises:
            ValueError: another shape or dtype; coordinates or features that are NaN or infinite at points that exist;
                masses of points.
        """
        return self.machine(self.numbers(inputs))

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[PointBatch, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
    ) -> Tensor:
        """Fits the machine; see `FittedModel.fit`."""
        if not batches:
            raise ValueError("models.CloudMachine: there is no cloud to fit to")
        found = torch.cat([self.numbers(batch) for batch, _ in batches])
        targets = torch.cat([targets for _, targets in batches])
        return self.machine.fit(found, targets, regressand, groups=groups)

    @torch.no_grad()
    def numbers(self, inputs: Tensor | PointBatch) -> Tensor:
        """What is read of clouds, float64 `(B, numbers)`.

        Raises:
            ValueError: see `forward`.
        """
        given = inputs if isinstance(inputs, PointBatch) else PointBatch(inputs)
        pos, features, mask, weights = check_clouds("models.CloudMachine", given, self.reading.num_features)
        if weights is not None:
            raise ValueError(
                "models.CloudMachine: points have masses, which it does not read; take a network, such as models.ITNet"
            )
        exists = torch.ones(pos.shape[:2], dtype=torch.bool, device=pos.device) if mask is None else mask
        # in a graph the number of clouds is not known
        some = max(1, _AT_ONCE // max(1, pos.shape[1] ** 2)) if values_can_be_read(pos) else None
        parts = [(pos, exists)] if some is None else zip(pos.split(some), exists.split(some), strict=True)
        of_shape = [numbers_of_clouds(*part, self.config.turns) for part in parts]
        found = [of_shape[0] if some is None else torch.cat(of_shape)]
        pos, count = pos.double(), exists.sum(1).clamp_min(1).double()[:, None]
        centre = pos.sum(1) / count
        away = torch.where(exists, (pos - centre[:, None]).norm(dim=2), 0.0)
        size = (away.square().sum(1, keepdim=True) / count).sqrt()
        if features is not None:
            found += self._of_features(features.double(), exists, count, away / size.clamp_min(1e-150))
        if self.reading.keeps_place:
            found += [centre, size.clamp_min(1e-150).log()]
        return torch.cat(found, 1)

    def _of_features(self, features: Tensor, exists: Tensor, count: Tensor, away: Tensor) -> list[Tensor]:
        """Summaries of features `(B, N, F)`, `(B, F)` each."""
        mean = features.sum(1) / count
        if self.reading.num_features > MOST_FEATURES:
            return [mean]
        there = exists[..., None]
        rest = torch.where(there, features - mean[:, None], 0.0)
        deviation = (rest.square().sum(1) / count).sqrt()
        along = (rest * away[..., None]).sum(1) / count
        anywhere = exists.any(1, keepdim=True)
        least = torch.where(anywhere, torch.where(there, features, torch.inf).amin(1), 0.0)
        largest = torch.where(anywhere, torch.where(there, features, -torch.inf).amax(1), 0.0)
        return [mean, deviation, least, largest, along]
