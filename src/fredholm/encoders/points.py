"""Point clouds as signals on scattered points of the unit box."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive, refuse_idle
from fredholm.domains import Domain, Points, nearest
from fredholm.domains.checks import values_can_be_read
from fredholm.encoders.encoder import Encoder
from fredholm.kernels.fourier_features import fourier_features, sample_frequencies
from fredholm.kernels.perceptron.mlp import norm

OFFSET = ("x to a neighbour", "y to a neighbour", "z to a neighbour", "distance of a neighbour")


@final
class PointBatch(NamedTuple):
    """Clouds of one batch, padded to one number of points.

    `pos (B, N, 3)` are finite coordinates where a point exists, and `features (B, N, F)` further values, such as a
    normal or a colour. `mask (B, N)` is True where a point exists; None: everywhere. `weights (B, N)`, at least 0, is
    the mass of each point, normalised to total 1 per cloud; None: equal masses.
    """

    pos: Tensor
    features: Tensor | None = None
    mask: Tensor | None = None
    weights: Tensor | None = None


@final
class PointCloud(Encoder):
    """Points as a signal (ITNet, section 3 and H.3.2): u_k = W x_k + V f_k + max_j F[x_j - x_k, ‖x_j - x_k‖, f_k, f_j].

    x_k lies in the unit box: the cloud's centre is subtracted, the largest radius becomes 1, and [-1, 1]³ becomes
    [0, 1]³; so the location and size of a cloud do not matter. F is a perceptron, and j runs over the K points nearest
    to k, itself among them. With Fourier features, W is applied to those of x_k. The result does not depend on the
    order of points, padding or the rest of the batch: of equally near points, up to K more than needed, those of
    smaller coordinates are taken.

    The paper states only the initialisation of F, normal with deviation 0.02, so that the local term starts near 0.
    Here F has one hidden layer as wide as the signal, and offsets are divided by the cloud's mean distance of a
    neighbour, so that they are about 1 for any number of points.

    Args:
        config: the clouds.
        embed_dim: channels of the signal.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        """Features of the points, normalisation, neighbours and centres."""

        num_features: int = 0
        """Number F of features of a point besides its coordinates."""
        normalise: bool = True
        """Scale each cloud into the unit sphere; else coordinates must be within [-1, 1]."""
        num_frequencies: int = 64
        """Number of Fourier frequencies of the coordinates; 0: the coordinates themselves."""
        sigma: float = 1.0
        """Standard deviation of the frequencies, in cycles per side of the unit box; refused where there are none."""
        num_neighbours: int = 16
        """Number K of neighbours that enter the signal of each point; 0: none."""
        num_centres: int | None = None
        """Number of points of the signal: farthest-point sampling of the cloud from the point of smallest coordinates.
        Neighbours are searched among all points. Weights of other points are added to the nearest centre; without
        weights the centres, which are spread evenly, have equal mass. None: all points."""

        def __post_init__(self) -> None:
            name = "encoders.PointCloud"
            for what in ("num_features", "num_frequencies", "num_neighbours"):
                check_count(name, what, getattr(self, what), least=0)
            check_positive(name, "sigma", self.sigma)
            if self.num_centres is not None:
                check_count(name, "num_centres", self.num_centres)
            if self.num_frequencies == 0:
                refuse_idle(name, type(self), "num_frequencies=0", "give num_frequencies", sigma=self.sigma)

    def __init__(self, config: Config, embed_dim: int) -> None:
        super().__init__()
        check_count("encoders.PointCloud", "embed_dim", embed_dim)
        self.config, self.embed_dim, self.pos_dim = config, embed_dim, 3
        self.register_buffer("frequencies", sample_frequencies(config.num_frequencies, 3, config.sigma))
        self.frequencies: Tensor
        self.coordinate_embedding = nn.Linear(2 * config.num_frequencies or 3, embed_dim)
        self.feature_embedding = nn.Linear(config.num_features, embed_dim, bias=False) if config.num_features else None
        self.local = None
        if config.num_neighbours:
            self.local = nn.Sequential(
                nn.Linear(4 + 2 * config.num_features, embed_dim), nn.GELU(), nn.Linear(embed_dim, embed_dim)
            )
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        for layer in self.local or ():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)

    def columns(self, channels: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See `Encoder.columns`; a neighbour's offset comes first, then the point's features and the neighbour's."""
        of_both = (*channels, *(f"neighbour's {name}" for name in channels))
        local = {"local.0.weight": (*OFFSET, *of_both)} if self.local is not None else {}
        return local | ({"feature_embedding.weight": tuple(channels)} if channels else {})

    def forward(self, inputs: Tensor | PointBatch) -> tuple[Tensor, Domain]:
        """A batch, or the coordinates `(B, N, 3)` of one, to the signal `(B, M, embed_dim)` and its M points.

        M is N, in the order of the points, or `num_centres` where clouds have more points. The signal is 0 at points
        that do not exist.

        Raises:
            ValueError: another shape or dtype; coordinates or features that are NaN or infinite at points that exist;
                inputs that `Points` refuses.
            TypeError: neither a tensor nor a batch.
        """
        if not isinstance(inputs, Tensor | PointBatch):
            raise TypeError(
                f"encoders.PointCloud: expected coordinates (batch, points, 3) or a PointBatch; got "
                f"{type(inputs).__name__}; pad clouds of several sizes to one, and mask the filler: PointBatch(pos, "
                "mask=mask)"
            )
        given = inputs if isinstance(inputs, PointBatch) else PointBatch(inputs)
        batch = check_clouds("encoders.PointCloud", given, self.config.num_features)
        order = _canonical_order(batch)
        pos, features, mask, weights = (None if part is None else _take(part, order) for part in batch)
        assert pos is not None
        exists = torch.ones(pos.shape[:2], dtype=torch.bool, device=pos.device) if mask is None else mask
        if weights is not None:
            weights = _shares(weights, exists)
        num_centres = self.config.num_centres
        if num_centres is None or num_centres >= pos.shape[1]:
            kept = order.argsort(dim=1)  # in the order of the input
        else:
            kept, owner = _farthest_points(pos, exists, num_centres)
            if weights is not None:
                weights = torch.zeros_like(weights).scatter_add(1, kept.gather(1, owner), weights)
        # by unscaled coordinates, since scaling breaks ties of equal distances by rounding
        around = _neighbours(pos, exists, kept, self.config.num_neighbours) if self.local is not None else None
        pos = (_in_unit_sphere(pos, exists) if self.config.normalise else pos).to(self.frequencies.dtype)
        pos = (pos + 1) / 2
        signal = torch.where(_take(exists, kept)[..., None], self._signal(pos, features, kept, around), 0.0)
        pos, mask, weights = (None if part is None else _take(part, kept) for part in (pos, mask, weights))
        assert pos is not None
        if weights is None:
            return signal, Points(pos, mask=mask)
        return signal, Points(pos, weights.to(pos.dtype), mask).counting_each()

    def _signal(
        self, pos: Tensor, features: Tensor | None, kept: Tensor, around: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """The signal at the points `kept (B, M)`, with neighbours `around (B, M, K)`."""
        at = _take(pos, kept)
        if self.config.num_frequencies:
            signal = self.coordinate_embedding(fourier_features(at, self.frequencies).to(pos.dtype))
        else:
            signal = self.coordinate_embedding(2 * at - 1)
        own = None
        if features is not None and self.feature_embedding is not None:
            features = features.to(pos.dtype)
            own = _take(features, kept)
            signal = signal + self.feature_embedding(own)
        if self.local is None or around is None or pos.shape[1] == 0:
            return signal
        index, is_there = around
        offsets = _take(pos, index) - at[..., None, :]
        lengths = norm(offsets)[..., None]
        counted = is_there.sum((1, 2)).clamp(min=1)
        unit = (torch.where(is_there, lengths[..., 0], 0.0).sum((1, 2)) / counted).view(-1, 1, 1, 1)
        unit = torch.where(unit > 0, unit, 1.0)
        parts = [offsets / unit, lengths / unit]
        if features is not None and own is not None:
            parts += [own[..., None, :].expand(*index.shape, -1), _take(features, index)]
        # one of several equal values gets the gradient, which is faster than sharing it; their inputs are equal
        return signal + self.local(torch.cat(parts, dim=-1)).max(2).values


def check_clouds(name: str, batch: PointBatch, num_features: int) -> PointBatch:
    """The checked batch, with zeros where no point exists.

    Args:
        name: prefix of messages.
        batch: the clouds.
        num_features: expected number of features of a point.

    Raises:
        ValueError: another shape or dtype, or values that are NaN or infinite at points that exist.
    """
    pos, features, mask, weights = batch
    if pos.ndim != 3 or pos.shape[2] != 3 or not pos.dtype.is_floating_point:
        raise ValueError(
            f"{name}: expected float coordinates of shape (batch, points, 3); got {tuple(pos.shape)}, {pos.dtype}"
        )
    found = 0 if features is None else features.shape[-1]
    if found != num_features or (features is not None and features.shape[:-1] != pos.shape[:-1]):
        shape = "none" if features is None else tuple(features.shape)
        raise ValueError(
            f"{name}: expected {num_features} features of each point, "
            f"{(*pos.shape[:2], num_features) if num_features else 'none'}; got {shape}"
        )
    for what, part in (("mask", mask), ("weights", weights)):
        if part is not None and part.shape != pos.shape[:2]:
            raise ValueError(
                f"{name}: expected {what} of shape {tuple(pos.shape[:2])}, one entry a point; got {tuple(part.shape)}"
            )
    if mask is not None:
        pos = torch.where(mask[..., None], pos, 0.0)
        features = None if features is None else torch.where(mask[..., None], features, 0.0)
        weights = None if weights is None else torch.where(mask, weights, 0.0)
    for what, part in (("coordinates", pos), ("features", features)):
        if part is not None and values_can_be_read(part) and not bool(part.isfinite().all()):
            raise ValueError(f"{name}: {what} are NaN or infinite at points that exist; leave them out")
    if weights is not None and values_can_be_read(weights) and not bool(((weights >= 0) & weights.isfinite()).all()):
        raise ValueError(f"{name}: weights are masses, finite and at least 0; got others")
    return PointBatch(pos, features, mask, weights)


def _take(values: Tensor, index: Tensor) -> Tensor:
    """Gathers `values (B, N, ...)` at `index (B, ...)` within each entry of the batch."""
    rows = torch.arange(values.shape[0], device=values.device).view(-1, *(1,) * (index.ndim - 1))
    return values[rows, index]


def _canonical_order(batch: PointBatch) -> Tensor:
    """Order `(B, N)` of points by x, then y, then z, masked points last; so that ties do not depend on the input order.

    Coinciding points are sorted by their features, and then by their weights.
    """
    keys = [] if batch.weights is None else [batch.weights.detach()]
    for part in (batch.features, batch.pos):
        keys += [] if part is None else [*part.detach().unbind(-1)[::-1]]
    if batch.mask is not None:
        keys.append((~batch.mask).to(batch.pos.dtype))
    order = keys[0].argsort(dim=1, stable=True)
    for key in keys[1:]:
        order = order.gather(1, key.gather(1, order).argsort(dim=1, stable=True))
    return order


def _shares(weights: Tensor, exists: Tensor) -> Tensor:
    """The weights, with total 1 in each cloud that has mass."""
    total = torch.where(exists, weights, 0.0).sum(1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def _in_unit_sphere(pos: Tensor, exists: Tensor) -> Tensor:
    """Clouds centred at 0 and scaled to radius 1; a cloud without extent is moved to 0."""
    count = exists.sum(1).clamp(min=1).view(-1, 1, 1)
    centred = torch.where(exists[..., None], pos - pos.sum(1, keepdim=True) / count, 0.0)
    if pos.shape[1] == 0:
        return centred
    first = pos.gather(1, exists.byte().argmax(1).view(-1, 1, 1).expand(-1, 1, 3))
    has_extent = ((pos != first) & exists[..., None]).flatten(1).any(1).view(-1, 1, 1)  # despite rounding of the mean
    radius = norm(centred).amax(1).view(-1, 1, 1)
    return torch.where(has_extent, centred / torch.where(has_extent, radius, 1.0), 0.0)


@torch.no_grad()
def _farthest_points(pos: Tensor, exists: Tensor, num_points: int) -> tuple[Tensor, Tensor]:
    """Farthest-point sampling from the first point on, `(B, M)`, and the index of the centre nearest to every point,
    `(B, N)`.

    Where fewer than M points exist, the other centres do not exist.
    """
    distance = torch.full(exists.shape, math.inf, dtype=pos.dtype, device=pos.device)
    rank = exists.to(pos.dtype)
    owner = torch.zeros(exists.shape, dtype=torch.int64, device=pos.device)
    chosen = []
    for k in range(num_points):
        chosen.append(rank.argmax(1))
        to_last = (pos - _take(pos, chosen[-1][:, None])).square().sum(-1)
        owner = torch.where(to_last < distance, k, owner)
        distance = torch.minimum(distance, to_last)
        # never chosen again
        distance = distance.scatter(1, chosen[-1][:, None], -2.0)
        rank = torch.where(exists, distance, -1.0)
    return torch.stack(chosen, dim=1), owner


@torch.no_grad()
def _neighbours(pos: Tensor, exists: Tensor, at: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices `(B, M, K)` of the K points nearest to each of `at (B, M)`, else the point itself, and their mask."""
    if pos.numel() == 0:
        index = at[..., None].expand(*at.shape, min(count, pos.shape[1]))
        return index, torch.zeros_like(index, dtype=torch.bool)
    found = nearest(pos, _take(pos, at), k=2 * count, mask=exists)
    # ties in the order of indices, among up to 2 K candidates
    by_index = found.points.sort(dim=-1)
    squared = found.squared.gather(-1, by_index.indices).sort(dim=-1, stable=True)
    index = by_index.values.gather(-1, squared.indices[..., :count])
    is_there = squared.values[..., :count].isfinite() & _take(exists, at)[..., None]
    return torch.where(is_there, index, at[..., None]), is_there
