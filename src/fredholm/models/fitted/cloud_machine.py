"""A table machine on numeric descriptors of a whole point cloud.

Legend
    v       descriptors of a cloud: those of `cloud_numbers.py`, which are invariant to translation, scaling and, as set
            by `turns`, rotation;  for each feature of its points mean, deviation, minimum, maximum and the covariance
            with the distance from the centre;  and, where position counts, its centre and the logarithm of its size
    outputs predictions of a `NumbersMachine` from v

The model needs neither gradient steps nor rotated copies of training clouds: a few dozen clouds are enough to
distinguish classes of different shape. It uses nothing but v.
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
"""Most features of a point that are summarised in full; with more features only their means are used."""
_OF_FEATURE = 5
_OF_PLACE = 4
_ROUNDING = 1e-9
"""Deviation of a descriptor, which is of order 1, up to which it counts as constant."""
_AT_ONCE = 2**19
"""Approximate number of pairs of points per chunk."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CloudReading:
    """Description of the clouds that a model reads.

    Args:
        num_features: number of features of a point besides its coordinates.
        keeps_place: whether the position and size of a cloud are used.

    Raises:
        ValueError: fewer than 0 features.
    """

    num_features: int = 0
    keeps_place: bool = False

    def __post_init__(self) -> None:
        check_count("models.CloudReading", "num_features", self.num_features, least=0)


@final
class CloudMachine(FittedModel[PointBatch]):
    """Predicts from descriptors of a cloud by a kernel machine and trees.

    Outputs do not depend on the order of points, padding or the rest of the batch. Masses of points are refused.

    Args:
        reading: description of the clouds.
        num_outputs: number of outputs, such as classes.
        config: sizes.
    """

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(CloudModelConfig):
        """Invariance and sizes."""

        learns_by_steps: ClassVar[bool] = False

        turns: Turns = "none"
        """Invariance of the outputs to rotation about z ("axis"), or to any rotation ("all")."""
        num_centres: int = 1024
        """Most training clouds that are centres of the kernel; the fit uses all clouds."""
        num_trees: int = 100
        """Most trees of each fold; 0: no trees."""

        def __post_init__(self) -> None:
            if self.turns not in get_args(Turns):
                raise ValueError(
                    f"models.CloudMachine: turns is {self.turns!r}; expected one of {', '.join(get_args(Turns))}"
                )
            check_count("models.CloudMachine", "num_centres", self.num_centres)
            check_count("models.CloudMachine", "num_trees", self.num_trees, least=0)

        def check_pools(self, whole: str) -> None:
            """See `CloudModelConfig.check_pools`: there is nothing to check, as there is one output per cloud."""

        def build(self, reading: CloudReading, num_outputs: int) -> "CloudMachine":
            """Builds a model, whose outputs are 0 before a fit."""
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
        """Maps a batch, or its coordinates `(B, N, 3)`, to outputs `(B, num_outputs)`, all equal before a fit.

        Raises:
            ValueError: another shape or dtype; coordinates or features that are NaN or infinite at existing points;
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
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits the machine; see `FittedModel.fit`."""
        if not batches:
            raise ValueError("models.CloudMachine: there is no cloud to fit to")
        found = torch.cat([self.numbers(batch) for batch, _ in batches])
        targets = torch.cat([targets for _, targets in batches])
        return self.machine.fit(found, targets, regressand, groups=groups, weights=weights)

    @torch.no_grad()
    def numbers(self, inputs: Tensor | PointBatch) -> Tensor:
        """Returns the descriptors of clouds, float64 `(B, numbers)`.

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
        # in an exported graph the number of clouds is unknown
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
