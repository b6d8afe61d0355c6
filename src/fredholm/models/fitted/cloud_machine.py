"""A table machine on numeric descriptors of a whole point cloud.

Legend
    v       descriptors of a cloud: those of `cloud_numbers.py`, which are invariant to translation, scaling and, as set
            by `turns`, rotation;  those of features and normals of its points of `cloud_features.py`;  and, where
            position counts, its centre and the logarithm of its size
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
from fredholm.models.fitted.cloud_features import num_of_features, numbers_of_features
from fredholm.models.fitted.cloud_numbers import CloudFrame, Turns, num_numbers, numbers_of_clouds
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.ridge_head import Regressand
from fredholm.models.fitted.table_machine import NumbersMachine

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
        normal: indices of the features that are the x, y and z of a normal, which rotates with the cloud; empty: none
            are.
        keeps_place: whether the position and size of a cloud are used.

    Raises:
        ValueError: fewer than 0 features, or a normal that is not three of them.
    """

    num_features: int = 0
    normal: tuple[int, ...] = ()
    keeps_place: bool = False

    def __post_init__(self) -> None:
        check_count("models.CloudReading", "num_features", self.num_features, least=0)
        has_normal = len(set(self.normal)) == 3 and set(self.normal) <= set(range(self.num_features))
        if self.normal and not (len(self.normal) == 3 and has_normal):
            raise ValueError(
                f"models.CloudReading: normal is {self.normal}; expected 3 different indices below "
                f"num_features={self.num_features}, or none"
            )


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
        count = num_numbers(config.turns) + _OF_PLACE * reading.keeps_place
        if reading.num_features:
            count += num_of_features(reading.num_features, reading.normal, config.turns)
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
        whole = (pos, exists) if features is None else (pos, exists, features)
        parts = [whole] if some is None else zip(*(each.split(some) for each in whole), strict=True)
        found = [self._of_part(*part) for part in parts]
        return found[0] if some is None else torch.cat(found)

    def _of_part(self, pos: Tensor, exists: Tensor, features: Tensor | None = None) -> Tensor:
        """Descriptors of a few clouds."""
        frame = CloudFrame(pos, exists)
        found = [numbers_of_clouds(frame, self.config.turns)]
        if features is not None:
            found.append(numbers_of_features(frame, features, self.reading.normal, self.config.turns))
        if self.reading.keeps_place:
            found += [frame.centre, frame.size.clamp_min(1e-150).log()]
        return torch.cat(found, 1)
