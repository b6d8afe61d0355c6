"""Responses of an image to filters learned from patches of the training images, and a linear head in closed form.

Legend
    u (C, H, W)    an image, standardised; u_l  its means over squares of 2^l pixels, l = 0, 1, ... while the shorter
                   side has FEWEST_PIXELS
    p              a patch of u_l, as a vector; every one of `SIDES` pixels a side;  m_p, s_p²  its mean and variance
    n(p)           (p - m_p) / √(s_p² + CONTRAST)              μ, Σ   mean and covariance of n(p) over patches drawn
    w(p)           (Σ + WHITENING)^-½ (n(p) - μ)               d_k    centres of k-means of w(p), of length 1

    v_k±(x)        max(0, ±d_k·w(p_x) - θ), at the patch p_x about x; θ is THRESHOLD deviations of d_k·w(p)
    whole          √∫ v_k± dx               parts     the same over each of PARTS × PARTS parts of the image
    largest        √max_x v_k±(x)
    place          ∫ x q_k(x) dx,  q_k ∝ (v_k±(x) / max v_k±)^4 + 1e-3, from -1 to 1 along each side
    brightness     mean of each channel of u in 8 × 8 parts, and deviation in 4 × 4
    features       these five blocks f(u), or (f(u) + f(ũ)) / 2 with ũ the mirror image;   outputs from `RidgeHead`

Patches as filters of whitened pixels, and soft thresholds, are those of Coates, Lee and Ng (An analysis of single-layer
networks in unsupervised feature learning, 2011; Coates and Ng, 2011). Deviations: several scales; roots; maxima and
positions besides means; shares of blocks, and mirror invariance, are chosen by left-out errors. Filters are learned
from all images, but without targets, so that left-out errors are exact.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count
from fredholm.domains.checks import values_can_be_read
from fredholm.models.fitted.example_weights import some_of
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.ridge_head import SHARES, FeatureBlock, Regressand, RidgeHead, some_drawn
from fredholm.models.images.image_model import ImageModelConfig, ImageReading, Room

SIDES = (4, 6)
"""Sides of patches, in pixels; at most the sides of the image."""
FEWEST_PIXELS, MOST_LEVELS = 10, 4
"""Fewest pixels along the shorter side of a reduced image, and most sizes of an image."""
MOST_NODES = 64
"""Approximate number of patches along a side; in larger images every second one is read, every third, and so on."""
CONTRAST, WHITENING, THRESHOLD = 0.1, 0.1, 0.25
PARTS = 3
"""Number of parts along each side."""
MEANS, DEVIATIONS = 8, 4
"""Number of parts along each side for means and for deviations of brightness."""
NUM_PATCHES, ROUNDS = 20_000, 8
"""Number of patches that filters of one size are learned from, and rounds of k-means."""
CHOSEN_BY = 400
"""Most images by which shares of blocks and mirror invariance are chosen."""
_VALUES_AT_ONCE = 2**24
"""Responses of filters held at a time."""
_NOTHING = 1e-12


@final
class ImageBank(FittedModel[Tensor]):
    """A ridge regression on features of an image from filters learned from patches of the training images.

    Args:
        image_size: height and width of the training images in pixels; other images may have another size.
        channels: number of channels.
        num_outputs: number of outputs, such as classes.
        config: number of filters and mirror invariance.

    Attributes:
        mirrored: share of the mirror image in the features, 0 or 1/2.
        least_size: fewest pixels of an image along each side.

    Raises:
        ValueError: on sizes below 1.
    """

    mirrored: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ImageModelConfig):
        """Number of filters, and mirror invariance."""

        learns_by_steps: ClassVar[bool] = False

        num_filters: int = 128
        """Number of filters for each size of patches and of images."""
        may_mirror: bool = True
        """Whether the features may be made invariant to left-right mirroring, if that lowers left-out errors."""

        def __post_init__(self) -> None:
            check_count("models.ImageBank", "num_filters", self.num_filters)

        def sized_for(self, room: Room, default: ImageModelConfig) -> Self:
            """See `ImageModelConfig.sized_for`: the size does not depend on the data."""
            return self

        def build(self, image_size: tuple[int, int], channels: int, num_outputs: int) -> "ImageBank":
            """Builds the model; see `ImageBank`."""
            return ImageBank(image_size, channels, num_outputs, self)

        def build_for(self, reading: ImageReading, num_outputs: int) -> "ImageBank":
            """See `ImageModelConfig.build_for`."""
            return self.build(reading.image_size, reading.channels, num_outputs)

    def __init__(self, image_size: tuple[int, int], channels: int, num_outputs: int, config: Config) -> None:
        super().__init__()
        for what, size in (("height", image_size[0]), ("width", image_size[1]), ("channels", channels)):
            check_count("models.ImageBank", what, size)
        self.config, self.channels = config, channels
        self.register_buffer("mirrored", torch.zeros(()))
        shortest = min(image_size)
        levels = [n for n in range(MOST_LEVELS) if n == 0 or shortest >> n >= FEWEST_PIXELS]
        self.least_size = max(min(max(SIDES), shortest >> level) << level for level in levels)
        self.filters = nn.ModuleList(
            _Filters(channels, min(side, shortest >> level), 2**level, config.num_filters)
            for level in levels
            for side in SIDES
        )
        answers = 2 * config.num_filters * len(self.filters)
        sizes = (answers * PARTS**2, answers, 2 * answers)
        further = [FeatureBlock(size, standardised=False) for size in sizes]
        further.append(FeatureBlock(channels * (MEANS**2 + DEVIATIONS**2)))
        self.head = RidgeHead(answers + sum(block.size for block in further), num_outputs, further=further)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images `(B, channels, H, W)` to outputs `(B, num_outputs)`, which are all equal before a fit.

        Raises:
            ValueError: on another shape, or images smaller than the patches.
        """
        return self.head(self.features(images))

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[Tensor, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Learns the filters, chooses shares on some images, and fits the head to all; see `FittedModel.fit`."""
        targets = torch.cat([targets for _, targets in batches]) if batches else torch.zeros(0)
        if not len(targets):
            raise ValueError("models.ImageBank: there is no image to fit to")
        for filters in self.filters:
            assert isinstance(filters, _Filters)
            filters.learn([self._checked(images) for images, _ in batches])
        some = some_drawn(len(targets), groups, CHOSEN_BY).to(targets.device)
        parts = zip(batches, some.split([len(own) for _, own in batches]), strict=True)
        chosen = [images[own] for (images, _), own in parts if bool(own.any())]
        known = {"groups": None if groups is None else groups[some], "weights": some_of(weights, some)}
        own = targets[some]
        plain = torch.cat([self._read(images) for images in chosen])
        best = self._chosen(plain, own, regressand, **known)
        self.mirrored.zero_()
        if self.config.may_mirror:
            other = torch.cat([self._read(images.flip(-1)) for images in chosen])
            found = self._chosen(torch.lerp(plain, other, 0.5), own, regressand, **known)
            if found[0] < best[0]:
                self.mirrored.fill_(0.5)
                best = found
        features = torch.cat([self.features(images) for images, _ in batches])
        return self.head.fit(features, targets, regressand, groups=groups, weights=weights, shares=[best[1]])

    def _chosen(
        self,
        features: Tensor,
        targets: Tensor,
        regressand: Regressand,
        *,
        groups: Tensor | None,
        weights: Tensor | None,
    ) -> tuple[float, tuple[float, ...]]:
        """The smallest left-out error and its shares of blocks, chosen one block after the other."""
        count = len(self.head.blocks)
        shares, error = (1.0,), torch.inf
        for k in range(1, count):
            later = (0.0,) * (count - k - 1)
            tried = [(*((1 - share) * each for each in shares), share, *later) for share in SHARES]
            self.head.fit(features, targets, regressand, groups=groups, weights=weights, shares=tried)
            shares, error = tuple(self.head.shares.tolist()[: k + 1]), float(self.head.error)
        return error, shares

    def features(self, images: Tensor) -> Tensor:
        """Returns the features for the head, `(B, features)`, of images `(B, channels, H, W)`."""
        plain = self._read(images)
        if values_can_be_read(images, self.mirrored) and not self.mirrored:
            return plain
        return torch.lerp(plain, self._read(images.flip(-1)), self.mirrored)

    def _read(self, images: Tensor) -> Tensor:
        """The features f, computed in chunks of images."""
        images = self._checked(images)
        if not values_can_be_read(images) or not len(images):
            return self._features(images)
        nodes = min(images.shape[2], MOST_NODES) * min(images.shape[3], MOST_NODES)
        most = max(1, _VALUES_AT_ONCE // (2 * self.config.num_filters * nodes))
        return torch.cat([self._features(part) for part in images.split(most)])

    def _checked(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != self.channels or min(images.shape[2:]) < self.least_size:
            raise ValueError(
                f"models.ImageBank: images must be (batch, {self.channels}, at least {self.least_size}, at least "
                f"{self.least_size}); got {tuple(images.shape)}"
            )
        return images.to(self.mirrored.dtype)

    def _features(self, images: Tensor) -> Tensor:
        whole, parts, largest, places = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        with without_autocast(images):
            for filters in self.filters:
                answers = filters(images)
                height, width = answers.shape[2:]
                whole.append(_root(answers.mean((2, 3))))
                parts.append(_root(_in_parts(answers, PARTS)).flatten(1))
                most = answers.amax((2, 3), keepdim=True)
                largest.append(_root(most[..., 0, 0]))
                heavy = (answers / most.clamp_min(_NOTHING)).square().square() + 1e-3
                along = (heavy.sum(3), heavy.sum(2))
                for each, size in zip(along, (height, width), strict=True):
                    place = torch.linspace(-1, 1, size, dtype=each.dtype, device=each.device) if size > 1 else each * 0
                    places.append((each * place).sum(2) / each.sum(2))
            mean = _in_parts(images, DEVIATIONS)
            variance = _in_parts(images.square(), DEVIATIONS) - mean.square()
            brightness = [_in_parts(images, MEANS).flatten(1), _root(variance).flatten(1)]
        return torch.cat([*whole, *parts, *largest, *places, *brightness], 1)


@final
class _Filters(nn.Module):
    """The filters of one size of patches, on images reduced by one factor.

    Args:
        channels: number of channels of an image.
        side: side of a patch, in pixels of the reduced image.
        reduction: factor of the reduction along each side.
        count: number of filters.
    """

    kernels: Tensor
    offsets: Tensor
    threshold: Tensor

    def __init__(self, channels: int, side: int, reduction: int, count: int) -> None:
        super().__init__()
        self.side, self.reduction = side, reduction
        self.register_buffer("kernels", torch.zeros(count, channels, side, side))
        self.register_buffer("offsets", torch.zeros(count))
        self.register_buffer("threshold", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        """Returns responses of both signs `(B, 2 count, h, w)`, at every patch, or every second one, and so on."""
        reduced, side = self._reduced(images), self.side
        stride = [-(-size // MOST_NODES) for size in reduced.shape[2:]]
        grey = reduced.mean(1, keepdim=True)
        mean = F.avg_pool2d(grey, side, stride)
        square = F.avg_pool2d(reduced.square().mean(1, keepdim=True), side, stride)
        spread = ((square - mean.square()).clamp_min(0) + CONTRAST).sqrt()
        answers = F.conv2d(reduced, self.kernels, stride=stride) / spread - self.offsets[:, None, None]
        return torch.cat([F.relu(answers - self.threshold), F.relu(-answers - self.threshold)], 1)

    def learn(self, batches: Sequence[Tensor]) -> None:
        """Learns the filters from patches of images `(B, C, H, W)`, drawn with the global torch seed."""
        patches = self._drawn(batches)
        patches -= patches.mean(1, keepdim=True)
        patches /= (patches.square().mean(1, keepdim=True) + CONTRAST).sqrt()
        mean = patches.mean(0)
        patches -= mean
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        whitening = vectors * (values.clamp_min(0) + WHITENING).rsqrt() @ vectors.T
        white = patches @ whitening
        directions = _centres(white, len(self.kernels))
        directions = directions / directions.norm(dim=1, keepdim=True).clamp_min(_NOTHING)
        kernels = directions @ whitening
        self.offsets.copy_(kernels @ mean)
        # patches have mean 0, so that the response to a constant does not matter
        self.kernels.copy_((kernels - kernels.mean(1, keepdim=True)).view(self.kernels.shape))
        self.threshold.fill_(THRESHOLD * (white @ directions.T).square().mean().sqrt())

    def _drawn(self, batches: Sequence[Tensor]) -> Tensor:
        """A random sample of patches of all images, float64 `(NUM_PATCHES, C side²)`."""
        image = torch.randint(sum(map(len, batches)), (NUM_PATCHES,)).sort().values
        along = torch.rand(2, NUM_PATCHES)
        found, start = list[Tensor](), 0
        for images in batches:
            windows = self._reduced(images).unfold(2, self.side, 1).unfold(3, self.side, 1)
            own = (image >= start) & (image < start + len(images))
            row, column = ((along[k][own] * windows.shape[2 + k]).long().to(images.device) for k in range(2))
            found.append(windows[(image[own] - start).to(images.device), :, row, column].flatten(1).double())
            start += len(images)
        return torch.cat(found)

    def _reduced(self, images: Tensor) -> Tensor:
        return images if self.reduction == 1 else F.avg_pool2d(images, self.reduction)


def _centres(points: Tensor, count: int) -> Tensor:
    """Centres `(count, d)` of ROUNDS rounds of k-means on points `(n, d)`, initialised with random points."""
    start = torch.randperm(len(points))[:count].to(points.device)
    centres = points[start]
    if len(centres) < count:
        centres = centres.repeat(-(-count // len(centres)), 1)[:count]
    for _ in range(ROUNDS):
        half = centres.square().sum(1) / 2
        nearest = torch.cat([(part @ centres.T - half).argmax(1) for part in points.split(4096)])
        number = nearest.bincount(minlength=count)[:, None]
        total = torch.zeros_like(centres).index_add(0, nearest, points)
        centres = torch.where(number > 0, total / number.clamp_min(1), centres)
    return centres


def _in_parts(values: Tensor, parts: int) -> Tensor:
    """Means of `(B, K, h, w)` in parts along both sides, `(B, K, parts, parts)`; parts overlap where they do not
    divide a side."""
    rows, columns = (_averages(size, parts).to(values) for size in values.shape[2:])
    return rows @ values @ columns.T


def _averages(size: int, parts: int) -> Tensor:
    """The matrix that averages `size` numbers in parts, `(parts, size)`."""
    place = torch.arange(size)
    starts = torch.arange(parts) * size // parts
    ends = ((torch.arange(parts) + 1) * size + parts - 1) // parts
    within = ((place >= starts[:, None]) & (place < ends[:, None])).double()
    return within / within.sum(1, keepdim=True)


def _root(values: Tensor) -> Tensor:
    """Square root with a gradient of 0 at 0."""
    varies = values > _NOTHING
    return torch.where(varies, torch.where(varies, values, 1.0).sqrt(), 0.0)
