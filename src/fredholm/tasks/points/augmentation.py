"""Random changes to clouds that keep their classes."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor

from fredholm._settings import refuse_idle

from .point_set import AXES

Rotation = Literal["none", "axis", "all"]
Axis = Literal["x", "y", "z"]


@final
class Clouds(NamedTuple):
    """Clouds of one batch: `pos (B, N, 3)`, `features (B, N, F)`, and `mask (B, N)`, True = this point exists."""

    pos: Tensor
    features: Tensor
    mask: Tensor


@final
class CloudAugmentation:
    """Scales, turns, jitters and thins each cloud about its centre, drawn for each cloud independently.

    Args:
        config: the changes.
        normal: indices of the features that are x, y and z of a normal, which turns with the cloud; None: no normal.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Settings of random changes to clouds; the defaults change nothing.

        Args:
            scale: range of the factors by which the three axes are stretched, drawn independently. An encoder that
                normalises sees only their ratios.
            rotation: none; about one axis by any angle; or any rotation of space.
            axis: the axis of the rotation; refused with other rotations.
            jitter: standard deviation of Gaussian noise on every coordinate, in radii of the cloud.
            jitter_limit: largest absolute value of the noise; refused without noise.
            drop: largest share of the points that are left out, from 0 to below 1; each cloud draws its own.
        """

        scale: tuple[float, float] = (1.0, 1.0)
        rotation: Rotation = "none"
        axis: Axis = "z"
        jitter: float = 0.0
        jitter_limit: float = 0.05
        drop: float = 0.0

        def __post_init__(self) -> None:
            if not 0 < self.scale[0] <= self.scale[1] < float("inf"):
                raise ValueError(f"scale is {self.scale}; expected two factors above 0, the smaller one first")
            for name, allowed in (("rotation", get_args(Rotation)), ("axis", get_args(Axis))):
                if getattr(self, name) not in allowed:
                    raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}")
            if not 0 <= self.jitter < float("inf") or not 0 < self.jitter_limit < float("inf"):
                raise ValueError(
                    f"jitter is {self.jitter} and jitter_limit {self.jitter_limit}; expected finite numbers of at "
                    "least 0 and above 0"
                )
            if not 0 <= self.drop < 1:
                raise ValueError(f"drop is {self.drop}; expected a share from 0 to below 1")
            if self.rotation != "axis":
                because = f"rotation={self.rotation!r}"
                refuse_idle("", type(self), because, "take the rotation 'axis'", axis=self.axis)
            if self.jitter == 0:
                refuse_idle("", type(self), "jitter=0", "give jitter", jitter_limit=self.jitter_limit)

        @property
        def changes_nothing(self) -> bool:
            """Whether clouds stay as they are."""
            return self == type(self)()

    def __init__(self, config: Config, normal: tuple[int, int, int] | None = None) -> None:
        self._config, self._normal = config, None if normal is None else list(normal)

    def __call__(self, clouds: Clouds, generator: torch.Generator) -> Clouds:
        """The clouds changed by draws from ``generator`` alone; at least one point of each stays."""
        config, (pos, features, mask) = self._config, clouds
        if config.changes_nothing:
            return clouds
        batch, dtype = len(pos), pos.dtype
        count = mask.sum(1).clamp(min=1).view(-1, 1, 1)
        centre = torch.where(mask[..., None], pos, 0.0).sum(1, keepdim=True) / count
        offset = torch.where(mask[..., None], pos - centre, 0.0)
        low, high = config.scale
        factors = low + (high - low) * torch.rand(batch, 1, 3, generator=generator, dtype=dtype)
        turn = _rotations(batch, config.rotation, AXES.index(config.axis), generator).to(dtype)
        offset = (offset * factors) @ turn.mT
        if self._normal is not None:
            # normals of a stretched surface are divided by the factors
            normal = ((features[..., self._normal].to(dtype) / factors) @ turn.mT).to(features.dtype)
            features = features.clone()
            features[..., self._normal] = torch.nn.functional.normalize(normal, dim=-1)
        if config.jitter:
            radius = offset.norm(dim=-1).amax(1).view(-1, 1, 1)
            noise = config.jitter * torch.randn(pos.shape, generator=generator, dtype=dtype)
            offset = offset + radius * noise.clamp(-config.jitter_limit, config.jitter_limit)
        if config.drop:
            share = config.drop * torch.rand(batch, 1, generator=generator)
            key = torch.rand(mask.shape, generator=generator)
            key = torch.where(mask, key, -1.0)
            mask = mask & ((key >= share) | (key == key.amax(1, keepdim=True)))
        return Clouds(torch.where(mask[..., None], centre + offset, 0.0), features, mask)


def _rotations(count: int, rotation: Rotation, axis: int, generator: torch.Generator) -> Tensor:
    """Rotation matrices, `(count, 3, 3)`, in float64: about an axis evenly in its angle, or evenly among all."""
    if rotation == "none":
        return torch.eye(3, dtype=torch.float64).expand(count, -1, -1)
    if rotation == "axis":
        half = torch.pi * torch.rand(count, generator=generator, dtype=torch.float64)
        quaternion = torch.zeros(count, 4, dtype=torch.float64)
        quaternion[:, 0], quaternion[:, 1 + axis] = half.cos(), half.sin()
    else:
        quaternion = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    w, x, y, z = torch.nn.functional.normalize(quaternion, dim=-1).unbind(-1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], dim=-1),
        torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], dim=-1),
        torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], dim=-1),
    ]
    return torch.stack(rows, dim=-2)
