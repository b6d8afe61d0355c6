"""Images as signals on a grid of patches."""

import dataclasses
import math
from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive, check_whole, refuse_idle
from fredholm.domains import Domain, Grid
from fredholm.domains.domain import check_tensor
from fredholm.encoders.encoder import FieldEncoder, check_dtype, check_places
from fredholm.kernels.fourier_features import fourier_features, sample_frequencies


@final
class Image(FieldEncoder):
    """Patches, each joined with Fourier features of its centre and projected to the signal (ITNet, 3.4).

    u(x) = W [E patch(x) ; γ(x)] + b on `Grid(H / P_h, W / P_w)`, where patch(x) is the patch of pixels centred at x; so
    u has a value at any x, see `at`. The paper names the projection without a formula; this is its plainest reading. E
    starts as a normal truncated at two standard deviations, of deviation 0.02 for the paper's patches of 16 x 16 x 3
    values and larger for smaller ones, so that the balance with the position features does not depend on patch size.

    Args:
        config: the images.
        embed_dim: channels of the signal.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        """Size and channels of the images, and of the patches they are cut into."""

        image_size: tuple[int, int] = (224, 224)
        """Height and width in pixels."""
        patch_size: int | tuple[int, int] = 16
        """Height and width of a patch in pixels; must divide the image's."""
        channels: int = 3
        any_size: bool = False
        """Also take images of other heights and widths, as long as patches divide them."""
        num_frequencies: int = 64
        """Fourier frequencies of the position features."""
        sigma: float = 10.0
        """Standard deviation of the frequencies, in cycles per image side; refused where there are none."""

        def __post_init__(self) -> None:
            if not isinstance(self.image_size, tuple) or len(self.image_size) != 2:
                raise TypeError(f"encoders.Image: image_size is (height, width); got {self.image_size!r}")
            for name, size in (("image height", self.image_size[0]), ("image width", self.image_size[1])):
                check_whole("encoders.Image", name, size)
                if size < 1:
                    raise ValueError(f"encoders.Image: {name} must be at least 1 pixel; got {size}")
            check_count("encoders.Image", "channels", self.channels)
            check_count("encoders.Image", "num_frequencies", self.num_frequencies, least=0)
            sides = self.patch_size if isinstance(self.patch_size, tuple) else (self.patch_size, self.patch_size)
            if len(sides) != 2:
                raise ValueError(f"encoders.Image: patch_size is a side, or (height, width); got {self.patch_size!r}")
            for side in sides:
                check_whole("encoders.Image", "patch_size", side)
            if self.num_frequencies == 0:
                refuse_idle("encoders.Image", type(self), "num_frequencies=0", "give num_frequencies", sigma=self.sigma)
            check_positive("encoders.Image", "sigma", self.sigma)
            if min(sides) < 1 or any(n % p for n, p in zip(self.image_size, self.patch, strict=True)):
                fitting = [_divisors(n) for n in self.image_size]
                raise ValueError(
                    f"encoders.Image: patches of {self.patch[0]} x {self.patch[1]} do not divide images of "
                    f"{self.image_size[0]} x {self.image_size[1]}; "
                    f"heights that do: {fitting[0]}, widths that do: {fitting[1]}"
                )

        @property
        def patch(self) -> tuple[int, int]:
            """Height and width of a patch."""
            return (self.patch_size, self.patch_size) if isinstance(self.patch_size, int) else self.patch_size

        @property
        def grid_shape(self) -> tuple[int, int]:
            """Number of patches along height and width of images of `image_size`."""
            return self.image_size[0] // self.patch[0], self.image_size[1] // self.patch[1]

        def check_images(self, name: str, images: Tensor) -> None:
            """Raises an error that begins with `name` unless the encoder accepts these images."""
            check_tensor(name, "images", images)
            height, width = self.patch
            sides = (f"a multiple of {height}", f"a multiple of {width}") if self.any_size else self.image_size
            fits = images.ndim == 4 and images.shape[1] == self.channels and images.dtype.is_floating_point
            if fits and self.any_size:
                fits = min(images.shape[2:]) > 0 and not images.shape[2] % height and not images.shape[3] % width
            elif fits:
                fits = tuple(images.shape[2:]) == self.image_size
            if not fits:
                message = (
                    f"{name}: expected float images of shape (batch, {self.channels}, {sides[0]}, {sides[1]}); "
                    f"got {tuple(images.shape)}, {images.dtype}"
                )
                if not images.dtype.is_floating_point:
                    message += "; bytes become floats from 0 to 1 by images / 255"
                elif images.ndim == 4 and images.shape[1] == self.channels and not self.any_size:
                    message += "; any_size=True takes other sizes too"
                raise ValueError(message)

    def __init__(self, config: Config, embed_dim: int) -> None:
        super().__init__()
        self.config, self.embed_dim, self.pos_dim = config, embed_dim, 2
        self.patch_embedding = nn.Linear(config.channels * config.patch[0] * config.patch[1], embed_dim)
        self.projection = nn.Linear(embed_dim + 2 * config.num_frequencies, embed_dim)
        self.register_buffer("frequencies", sample_frequencies(config.num_frequencies, 2, config.sigma))
        self.frequencies: Tensor
        deviation = 0.02 * math.sqrt(16 * 16 * 3 / self.patch_embedding.in_features)
        nn.init.trunc_normal_(self.patch_embedding.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        nn.init.zeros_(self.patch_embedding.bias)
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Number of patches along height and width of images of `image_size`."""
        return self.config.grid_shape

    def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """Images `(B, channels, H, W)`, float, to the signal `(B, N, embed_dim)` and its grid of N patches."""
        self.config.check_images("encoders.Image", inputs)
        height, width = self.config.patch
        rows, columns = inputs.shape[2] // height, inputs.shape[3] // width
        patches = inputs.unflatten(3, (columns, width)).unflatten(2, (rows, height))
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, N, channels·P_h·P_w)
        grid = Grid(rows, columns, device=inputs.device)
        return self._embedded(patches, grid), grid

    def at(self, inputs: Tensor, places: Domain) -> Tensor:
        """The signal at any points of the plane; see `FieldEncoder.at`.

        Patches between pixel centres are interpolated bilinearly; beyond the image its border pixels are repeated.
        """
        self.config.check_images("encoders.Image", inputs)
        check_places("encoders.Image", self.pos_dim, places)
        return self._embedded(windows(inputs, places.pos, self.config.patch), places)

    @torch.no_grad()
    def resampled(self, other: "Image") -> dict[str, Tensor]:
        """The other encoder's patch embedding E, resampled to this patch size and channels; see `Encoder.resampled`.

        With B the bilinear resampling of patches from the other size to this one, ⟨B x, E'⟩ = ⟨x, E⟩ in the least
        squares sense (FlexiViT, Beyer et al. 2023, section 3.4); exactly where patches grow. A grey image in three
        equal channels gives the same result as in one channel, and vice versa.
        """
        (height, width), channels = self.config.patch, self.config.channels
        if (other.config.patch, other.config.channels) == (self.config.patch, channels):
            return {}
        weight = other.patch_embedding.weight.double().unflatten(1, (other.config.channels, -1))
        if channels != other.config.channels:
            weight = weight.sum(1, keepdim=True).expand(-1, channels, -1) / channels
        if other.config.patch != self.config.patch:
            pixels = torch.eye(weight.shape[-1], dtype=weight.dtype, device=weight.device)
            scaled = nn.functional.interpolate(
                pixels.view(-1, 1, *other.config.patch), (height, width), mode="bilinear", antialias=True
            )  # Bᵀ, a row for each pixel of the other size
            weight = weight @ torch.linalg.pinv(scaled.flatten(1)).T
        return {"patch_embedding.weight": weight.flatten(1).to(other.patch_embedding.weight.dtype)}

    def _embedded(self, patches: Tensor, where: Domain) -> Tensor:
        check_dtype("encoders.Image", "images", patches, self.patch_embedding.weight)
        embedded = self.patch_embedding(patches)
        position = fourier_features(where.pos, self.frequencies).to(embedded.dtype)
        signal = torch.cat([embedded, position.expand(embedded.shape[0], -1, -1)], dim=-1)
        return self.projection(signal)


def windows(images: Tensor, pos: Tensor, size: tuple[int, int]) -> Tensor:
    """Pixels of windows centred at points of the unit square, interpolated bilinearly.

    Args:
        images: `(B, C, H, W)`; pixel (i, j) has its centre at ((i + 1/2) / H, (j + 1/2) / W), and beyond the border the
            outermost pixels are repeated.
        pos: `(N, 2)` or `(B, N, 2)`.
        size: height P_h and width P_w.

    Returns:
        `(B, N, C·P_h·P_w)`.
    """
    batch = images.shape[0]
    extent = pos.new_tensor(images.shape[2:])
    first = (pos * extent - pos.new_tensor(size) / 2).expand(batch, -1, -1)  # position of a window's upper left pixel
    corner = first.floor()
    share = (first - corner).to(images.dtype)
    # a window between pixel centres touches one more pixel along each axis
    rows, columns = (
        (corner[..., axis, None].long() + torch.arange(size[axis] + 1, device=pos.device)).clamp(
            0, images.shape[2 + axis] - 1
        )
        for axis in (0, 1)
    )
    entry = torch.arange(batch, device=pos.device)[:, None, None, None]
    touched = images.movedim(1, -1)[entry, rows[..., :, None], columns[..., None, :]]  # (B, N, P_h + 1, P_w + 1, C)
    down, right = (share[..., axis, None, None, None] for axis in (0, 1))
    touched = torch.lerp(touched[:, :, :-1], touched[:, :, 1:], down)
    return torch.lerp(touched[:, :, :, :-1], touched[:, :, :, 1:], right).movedim(-1, 2).flatten(2)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
