"""Rows of a batch: the points of a cloud that a model reads at a time, and one prediction from several rows."""

import zlib
from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fredholm.encoders.points import PointBatch
from fredholm.tasks.targets import UNKNOWN, ElementTarget, Target
from fredholm.tasks.task import Batch

from .augmentation import CloudAugmentation, Clouds
from .point_set import NORMAL, PointSet
from .turns import principal_turns

LEAST_RADIUS = 1e-150
"""The smallest radius whose square is above 0 in float64."""


@final
class CloudRows:
    """Makes rows of clouds, and averages the outputs of rows to one prediction for each cloud or point.

    A row is a cloud, points drawn from it or, where points are classified, one of the parts that it is divided into.

    Args:
        target: the target, of clouds or of their points.
        channels: the names of the features of points.
        mean: mean of each feature, `(F,)`, by which it is standardised.
        deviation: deviation of each feature, `(F,)`.
        size: mean and deviation of the logarithm of the radius of a cloud, which is a further feature; None: no such
            feature.
        num_points: most points of a row; None: all points of a cloud.
        augmentation: changes to rows in training.
        align: whether each row is turned to its principal axes.
    """

    def __init__(
        self,
        target: Target,
        *,
        channels: tuple[str, ...],
        mean: tuple[float, ...],
        deviation: tuple[float, ...],
        size: tuple[float, float] | None,
        num_points: int | None,
        augmentation: CloudAugmentation.Config,
        align: bool,
    ) -> None:
        self._target, self._classifies_points = target, isinstance(target, ElementTarget)
        self._mean, self._deviation = (torch.tensor(each, dtype=torch.float64) for each in (mean, deviation))
        self._size, self._num_points, self._align = size, num_points, align
        x, y, z = (channels.index(name) if name in channels else -1 for name in NORMAL)
        self._normal = (x, y, z) if min(x, y, z) >= 0 else None
        self._augment = CloudAugmentation(augmentation, self._normal)

    def drawn(self, clouds: PointSet, generator: torch.Generator) -> Batch:
        """A row of each cloud, augmented: `pos` (B, N, 3), `mask` (B, N), perhaps `features`, `weights`, `targets`."""
        rows = [(i, self._some(size, generator)) for i, size in enumerate(clouds.sizes.tolist())]
        batch = self.aligned(self._changed(self._gathered(clouds, rows), generator))
        return {name: tensor for name, tensor in batch.items() if name not in ("cloud", "point")}

    def whole(self, clouds: PointSet, *, votes: int) -> Batch:
        """For each vote one row for each cloud or, where points are classified, for each of its parts.

        A batch as from `drawn`, with `cloud` (B,), the index of the cloud of a row, and `point` (B, N), the indices of
        its points in the cloud. The first vote is not augmented. Draws depend on the points of a cloud alone, so a
        cloud has the same prediction in any batch.
        """
        batches, seeds = [], [zlib.crc32(pos.numpy().tobytes()) for pos in clouds.pos.split(clouds.sizes.tolist())]
        for vote in range(votes):
            for i, (size, seed) in enumerate(zip(clouds.sizes.tolist(), seeds, strict=True)):
                generator = torch.Generator().manual_seed(1_000_003 * vote + seed)
                if self._classifies_points and self._num_points is not None and size > self._num_points:
                    order = torch.randperm(size, generator=generator)
                    shown = order.tensor_split(-(-size // self._num_points))
                else:
                    shown = (self._some(size, generator),)
                rows = self._gathered(clouds, [(i, points) for points in shown])
                batches.append(self._changed(rows, generator) if vote else rows)
        return self.aligned(self._joined(batches))

    def _some(self, size: int, generator: torch.Generator) -> Tensor:
        """Indices of the points of a cloud that enter a row."""
        if self._num_points is None or size <= self._num_points:
            return torch.arange(size)
        return torch.randperm(size, generator=generator)[: self._num_points]

    def _gathered(self, clouds: PointSet, rows: Sequence[tuple[int, Tensor]]) -> Batch:
        """Rows of some points of a cloud each, padded to the longest."""
        index = pad_sequence([clouds.offsets[i] + points for i, points in rows], batch_first=True, padding_value=-1)
        mask, index = index >= 0, index.clamp(min=0)
        own = torch.tensor([i for i, _ in rows])
        batch = {"pos": torch.where(mask[..., None], clouds.pos[index], 0.0), "mask": mask}
        if clouds.channels:
            features = self.standardised(clouds.features[index])
            batch["features"] = torch.where(mask[..., None], features, 0.0)
        if clouds.weights is not None:
            batch["weights"] = torch.where(mask, clouds.weights[index], 0.0)
        if self._classifies_points and clouds.point_labels is not None:
            batch["targets"] = torch.where(mask, clouds.point_labels[index], UNKNOWN)
        elif not self._classifies_points and clouds.answers is not None:
            batch["targets"] = self._target.targets(clouds.answers.values[own])
        return batch | {"cloud": own, "point": index - clouds.offsets[own][:, None] * mask}

    def _joined(self, batches: Sequence[Batch]) -> Batch:
        """The rows of all batches, padded to the longest."""
        longest = max(batch["mask"].shape[1] for batch in batches)

        def padded(name: str, tensor: Tensor) -> Tensor:
            if tensor.ndim == 1 or (name == "targets" and not self._classifies_points):
                return tensor
            filler = UNKNOWN if name == "targets" else 0
            return F.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, longest - tensor.shape[1]), value=filler)

        return {name: torch.cat([padded(name, batch[name]) for batch in batches]) for name in batches[0]}

    def _changed(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The rows, augmented."""
        features = batch.get("features", torch.zeros(*batch["mask"].shape, 0))
        pos, features, mask = self._augment(Clouds(batch["pos"], features, batch["mask"]), generator)
        changed = batch | {"pos": pos, "mask": mask}
        if "features" in batch:
            changed["features"] = features
        if self._classifies_points and "targets" in batch:
            changed["targets"] = torch.where(mask, batch["targets"], UNKNOWN)
        return changed

    def aligned(self, batch: Batch) -> Batch:
        """The rows and their normals, turned to the principal axes where `align` is set."""
        if not self._align:
            return batch
        turns = principal_turns(batch["pos"], batch["mask"])
        changed = batch | {"pos": batch["pos"] @ turns}
        if self._normal is not None:
            features, normal = batch["features"].clone(), list(self._normal)
            features[..., normal] = features[..., normal] @ turns.to(features.dtype)
            changed["features"] = features
        return changed

    def standardised(self, features: Tensor) -> Tensor:
        """Standardised features, float32; the mean is subtracted in float64, which large values need."""
        return ((features - self._mean.to(features.device)) / self._deviation.to(features.device)).float()

    def given(self, batch: Batch) -> PointBatch:
        """The rows as the input of a model."""
        mask = None if bool(batch["mask"].all()) else batch["mask"]
        return PointBatch(batch["pos"], self.features(batch), mask, batch.get("weights"))

    def features(self, batch: Batch) -> Tensor | None:
        """Features of points, with the size of their cloud where it is a feature, `(B, N, F)`."""
        features = batch.get("features")
        if self._size is None:
            return features
        pos, exists, (mean, deviation) = batch["pos"].double(), batch["mask"][..., None], self._size
        centre = (pos * exists).sum(1, keepdim=True) / exists.sum(1, keepdim=True).clamp_min(1)
        radius = torch.where(exists, pos - centre, 0.0).square().sum(-1).amax(1).sqrt()
        size = torch.where(radius > 0, (radius.clamp_min(LEAST_RADIUS).log() - mean) / deviation, 0.0)
        size = (size[:, None, None] * exists).float()
        return size if features is None else torch.cat([features, size], 2)

    def votes_of(self, batch: Batch) -> list[Batch]:
        """The rows of `whole`, split into parts of one row for each cloud."""
        num_clouds = int(batch["cloud"].max()) + 1
        rows = range(0, len(batch["cloud"]), num_clouds)
        return [{name: tensor[start : start + num_clouds] for name, tensor in batch.items()} for start in rows]

    def averaged(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Means over the rows of each cloud, `(clouds, K)`, or over those of each point, `(clouds, N, K)`.

        They are means of probabilities or, where numbers are predicted, of outputs.

        Args:
            outputs: outputs of the model for the rows of `batch`.
            batch: a batch of `whole`.
        """
        cloud, num_clouds = batch["cloud"], int(batch["cloud"].max()) + 1
        if self._target.kind == "number":
            summed = outputs.new_zeros(num_clouds, outputs.shape[-1]).index_add_(0, cloud, outputs)
            return summed / (len(cloud) // num_clouds)  # where numbers are predicted, a cloud has one row per vote
        chances = outputs.softmax(-1)
        if self._classifies_points:
            place, there = self._places(batch), batch["mask"]
            summed = chances.new_zeros(num_clouds, self._longest(batch), chances.shape[-1])
            summed.view(-1, chances.shape[-1]).index_add_(0, place[there], chances[there])
        else:
            summed = chances.new_zeros(num_clouds, chances.shape[-1]).index_add_(0, cloud, chances)
        return summed / summed.sum(-1, keepdim=True).clamp(min=1e-12)

    def targets_of(self, batch: Batch) -> Tensor:
        """Targets of each cloud, `(clouds, ...)`, or labels of each point, `(clouds, N)`, `UNKNOWN` where missing."""
        cloud, num_clouds = batch["cloud"], int(batch["cloud"].max()) + 1
        if not self._classifies_points:
            targets = batch["targets"].new_zeros(num_clouds, *batch["targets"].shape[1:])
            targets[cloud] = batch["targets"]
            return targets
        targets = torch.full((num_clouds, self._longest(batch)), UNKNOWN, device=cloud.device)
        there = batch["mask"]
        targets.view(-1)[self._places(batch)[there]] = batch["targets"][there]
        return targets

    @staticmethod
    def _longest(batch: Batch) -> int:
        return int(batch["point"].max()) + 1

    def _places(self, batch: Batch) -> Tensor:
        """Indices of the points of rows among those of all clouds, padded to the longest."""
        return batch["cloud"][:, None] * self._longest(batch) + batch["point"]
